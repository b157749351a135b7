"""What trouble of the sink with one topic, or at the end, does to a run; in virtual time."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nsqtools.errors import ConfigError, LockedError, NSQError, OutputError
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, errors, start, time
from tests.support.scripted import Network, undisturbed

TROUBLE = [
    OutputError("bad.log: Permission denied"),
    ConfigError("..: makes no file name"),
    LockedError("bad.lock is locked"),
]


@pytest.mark.parametrize("error", TROUBLE)
@virtual
async def test_a_topic_that_the_sink_cannot_take_stops_no_other_and_is_tried_again(
    caplog: pytest.LogCaptureFixture, error: NSQError
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.unready = {"bad": error}
    run = start(sink, nsqd, topics=["bad", "good"], max_duration=200.0)
    await elapse(1)
    nsqd.publish(b"1")
    await elapse(1)
    assert sink.bodies == [b"1"]
    await elapse(128)
    assert sink.joined == ["bad", "good", "bad", "bad"]
    assert errors(caplog) == [f"topic bad: {error}"]
    sink.unready = {}
    assert await run == 0
    assert sorted(sink.said) == ["close", "drain bad", "drain good", "open"]


@virtual
async def test_a_topic_that_the_sink_never_took_is_named_and_makes_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.unready = {"bad": TROUBLE[0]}
    assert await start(sink, nsqd, topics=["good", "bad"], max_duration=200.0) == 1
    assert ["bad" in told for told in errors(caplog)] == [True, True]


@virtual
async def test_if_the_sink_takes_no_topic_the_first_error_ends_the_run() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.unready = {"a": TROUBLE[0], "b": TROUBLE[1]}
    with pytest.raises(OutputError, match=r"bad\.log: Permission denied"):
        await start(sink, nsqd, topics=["a", "b"])
    assert time() < 1
    assert nsqd.dials == []
    assert sink.said == ["open", "close"]


@virtual
async def test_a_topic_that_cannot_be_drained_at_the_end_is_the_error_of_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(*[b"x"] * 3)
    sink.stuck = {"a": OutputError("a.log: no space"), "c": OutputError("c.log: no space")}
    async with undisturbed():
        with pytest.raises(OutputError, match="log: no space"):
            await start(sink, nsqd, topics=["a", "b", "c"], max_duration=5.0)
    (other,) = errors(caplog)
    assert other.endswith(".log: no space")
    assert sorted(sink.said) == ["close", "drain a", "drain b", "drain c", "open"]
    assert nsqd.in_flight == 0


@virtual
async def test_a_topic_that_is_not_drained_in_time_makes_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    sink.draining = asyncio.Event().wait
    assert await start(sink, nsqd, max_duration=5.0) == 1
    (told,) = errors(caplog)
    assert told.startswith("topic t: ")
    assert (nsqd.depth, nsqd.in_flight) == (1, 0)


@pytest.mark.parametrize("failures", [0, 1, 2])
@virtual
async def test_a_count_is_of_messages_that_were_finished_though_a_sync_fails(
    failures: int,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.is_eager = True
    sink.failing_flushes = failures
    nsqd.publish(*[b"x"] * 30)
    assert await start(sink, nsqd, count=10, max_in_flight=4) == 0
    assert sum(text.startswith("FIN") for text in nsqd.commands) == 10
    assert (nsqd.depth, nsqd.in_flight) == (20, 0)


@virtual
async def test_topics_share_a_count_though_a_sync_fails() -> None:
    network = Network()
    nsqds = [network.nsqd(name) for name in "ab"]
    sink = Gathering()
    sink.is_eager = True
    sink.failing_flushes = 2
    for nsqd in nsqds:
        nsqd.publish(*[b"x"] * 20)
    assert await start(sink, *nsqds, topics=["s", "t"], count=25, max_in_flight=6) == 0
    assert sum(text.startswith("FIN") for nsqd in nsqds for text in nsqd.commands) == 25
    assert sum(nsqd.depth for nsqd in nsqds) == 15
    assert sum(nsqd.in_flight for nsqd in nsqds) == 0


@virtual
async def test_a_signal_that_comes_to_the_process_and_to_its_group_is_one() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    drained = asyncio.Event()
    sink.draining = drained.wait
    run = start(sink, nsqd)
    await elapse(1)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)  # as timeout(1) does
        await elapse(0.05)
    drained.set()
    assert await run == 0
    assert "close at once" not in sink.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
@virtual
async def test_a_second_signal_drops_what_the_sink_holds(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("it did not end by itself"))
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    sink.draining = asyncio.Event().wait
    run = start(sink, nsqd)
    await elapse(1)
    os.kill(os.getpid(), number)
    await elapse(1)
    os.kill(os.getpid(), number)
    assert await run == code
    assert sink.said == ["open", "drain t", "close at once"]
    assert nsqd.commands[-2:] == ["CLS", "abort"]
    assert time() < 2.1
