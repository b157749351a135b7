"""What trouble with one topic, of nsqd or of the handler, does to a run; in virtual time."""

import asyncio

import pytest

from nsqtools.errors import (
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PeerError,
)
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, errors, refusing, start, time
from tests.support.scripted import Network, undisturbed

REFUSED = "E_BAD_TOPIC refused"
TROUBLE = [
    OutputError("bad.log: Permission denied"),
    ConfigError("..: makes no file name"),
    LockedError("bad.lock is locked"),
]


@virtual
async def test_a_topic_that_is_refused_stops_no_other_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    run = start(sink, nsqd, topics=["good", "bad"], idle_timeout=100.0)
    await elapse(59)
    nsqd.publish(b"1")
    await elapse(0.5)
    assert sink.bodies == [b"1"]
    sink.flush()
    (told,) = errors(caplog)
    assert told.startswith("topic bad: ")
    assert REFUSED in told
    nsqd.refuses = lambda _: None
    await elapse(2)
    assert len(nsqd.clients) == 2
    assert (await run).unreached == []


@virtual
async def test_a_topic_that_was_refused_to_the_end_was_unreached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    # The attempts of the failing topic are no messages, so the others are idle.
    outcome = await start(sink, nsqd, topics=["bad", "good"], idle_timeout=200.0)
    assert outcome.unreached == ["bad"]
    assert 200 <= time() < 202
    assert len(errors(caplog)) == 1
    assert sink.said == ["open", *["drain bad"] * 4, "drain good", "close"]


@virtual
async def test_if_all_topics_are_refused_the_first_error_ends_the_run() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("a", "b")
    with pytest.raises(PeerError, match=REFUSED):
        await start(sink, nsqd, topics=["a", "b"])
    assert time() < 1
    assert sink.said == ["open", "drain a", "drain b", "close"]


@virtual
async def test_the_refresh_is_how_often_a_refused_topic_is_tried() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    await start(sink, nsqd, topics=["good", "bad"], refresh=5.0, max_duration=18.0)
    assert sum(text.startswith("SUB bad") for _, text in nsqd.log) == 4


@virtual
async def test_a_topic_that_waits_for_a_lock_does_not_keep_the_run_from_ending() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.waiting = {"a"}
    async with undisturbed():
        await start(sink, nsqd, topics=["a", "b"], max_duration=5.0)
    assert sink.said == ["open", "drain b", "close"]
    assert time() < 6


@pytest.mark.parametrize("error", TROUBLE)
@virtual
async def test_a_topic_that_the_handler_cannot_take_stops_no_other_and_is_tried_again(
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
    assert (await run).unreached == []
    assert sorted(sink.said) == ["close", "drain bad", "drain good", "open"]


@virtual
async def test_if_the_handler_takes_no_topic_the_run_ends_and_each_error_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.unready = {"a": TROUBLE[0], "b": TROUBLE[1]}
    with pytest.raises(NSQError) as raised:
        await start(sink, nsqd, topics=["a", "b"])
    assert [str(TROUBLE[1])] == [str(raised.value)]
    assert errors(caplog) == [f"topic a: {TROUBLE[0]}"]
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
async def test_a_topic_that_is_not_drained_in_time_was_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    sink.draining = asyncio.Event().wait
    outcome = await start(sink, nsqd, max_duration=5.0)
    assert outcome.totals.abandoned == 1
    (told,) = errors(caplog)
    assert told.startswith("topic t: the handler did not drain")
    assert (nsqd.depth, nsqd.in_flight) == (1, 0)
