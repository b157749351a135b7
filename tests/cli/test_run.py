"""How a command's consumers start, fail, stop and end, over scripted nsqds in virtual time."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nsqtools.cli.run import consume
from nsqtools.config import ArchiveSourceOptions, ConsumerConfig, StopOptions
from nsqtools.errors import ConfigError, OutputError, PeerError, UnreachableError
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, errors, refusing, start, time
from tests.support.scripted import Network, undisturbed

REFUSED = "E_BAD_TOPIC refused"


@virtual
async def test_each_topic_is_drained_and_the_sink_closed_once_at_the_very_end() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"1", b"2", b"3")
    async with undisturbed():
        assert await start(sink, nsqd, topics=["a", "b", "a"], max_duration=5.0) == 0
    assert sink.said[0] == "open"
    assert sorted(sink.said[1:-1]) == ["drain a", "drain b"]
    assert sink.said[-1] == "close"
    assert (nsqd.depth, nsqd.in_flight) == (0, 0)


@virtual
async def test_one_topic_drains_without_waiting_for_the_handler_of_another() -> None:
    network, never = Network(), asyncio.Event()
    sink = Gathering(never.wait)
    nsqd = network.nsqd()
    nsqd.publish(b"stuck")
    run = start(sink, nsqd, topics=["a", "b"], max_duration=5.0)
    await elapse(5.5)
    assert len([text for text in sink.said if text.startswith("drain")]) == 1
    assert await run == 0
    assert nsqd.in_flight == 0


@virtual
async def test_an_idle_timeout_asks_for_what_is_only_gathered_and_ends_soon_after() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"1", b"2")
    assert await start(sink, nsqd, idle_timeout=10.0) == 0
    assert len(sink.flushed) == 1
    assert 10 <= sink.flushed[0] < 10.1
    assert time() < 11
    assert nsqd.in_flight == nsqd.depth == 0


@virtual
async def test_a_sink_that_is_stuck_keeps_an_idle_timeout_waiting() -> None:
    ready = asyncio.Event()
    nsqd, sink = Network().nsqd(), Gathering(ready.wait)
    nsqd.publish(b"1")
    run = start(sink, nsqd, idle_timeout=3.0)
    await elapse(12)
    assert not run.done()
    ready.set()
    assert await run == 0
    assert time() < 14


@virtual
async def test_a_count_is_reached_though_the_sink_holds_what_nsqd_waits_for() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(*[b"x"] * 6)
    run = start(sink, nsqd, count=10)
    await elapse(1)
    nsqd.publish(*[b"y"] * 10)
    assert await run == 0
    assert len(sink.bodies) == 10
    assert time() < 2
    assert (nsqd.depth, nsqd.in_flight) == (6, 0)


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
    assert await run == 0


@virtual
async def test_a_topic_that_was_refused_to_the_end_is_named_and_makes_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    # The attempts of the failing topic are no messages, so the others are idle.
    assert await start(sink, nsqd, topics=["bad", "good"], idle_timeout=200.0) == 1
    assert 200 <= time() < 202
    assert ["bad" in told for told in errors(caplog)] == [True, True]
    assert sink.said == ["open", "drain good", "close"]


@virtual
async def test_if_all_topics_are_refused_the_first_error_ends_the_run() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("a", "b")
    with pytest.raises(PeerError, match=REFUSED):
        await start(sink, nsqd, topics=["a", "b"])
    assert time() < 1
    assert sink.said == ["open", "close"]


@virtual
async def test_a_topic_that_waits_for_a_lock_does_not_keep_the_run_from_ending() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.waiting = {"a"}
    async with undisturbed():
        assert await start(sink, nsqd, topics=["a", "b"], max_duration=5.0) == 0
    assert sink.said == ["open", "drain b", "close"]
    assert time() < 6


@virtual
async def test_a_sink_that_fails_ends_the_run_with_its_error() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    run = start(sink, nsqd, topics=["a", "b"])
    await elapse(1)
    sink.failed.set_exception(OutputError("no space"))
    with pytest.raises(OutputError, match="no space"):
        await run
    assert sorted(sink.said) == ["close", "drain a", "drain b", "open"]


@virtual
async def test_a_hangup_calls_what_it_should_and_stops_nothing() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    hangups: list[float] = []
    run = start(sink, nsqd, hangup=lambda: hangups.append(time()))
    await elapse(1)
    for count in (1, 2, 3):
        os.kill(os.getpid(), signal.SIGHUP)
        await elapse(1)
        assert len(hangups) == count
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0
    assert sink.said == ["open", "drain t", "close"]


@virtual
async def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    hangups: list[float] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start(sink, nsqd, hangup=lambda: hangups.append(time()), max_duration=5.0)
        await elapse(1)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await run == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hangups == []


@virtual
async def test_named_topics_that_do_not_match_a_pattern_are_left_out() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    stop = StopOptions(max_duration=1.0)

    def source(pattern: str) -> ArchiveSourceOptions:
        return ArchiveSourceOptions(
            topic=("orders", "other", "reorder"),
            topic_pattern=pattern,
            nsqd_tcp_address=(str(nsqd.address),),
        )

    assert await consume(source("order"), "c", ConsumerConfig(), stop, sink) == 0
    assert sorted(sink.said) == ["close", "drain orders", "drain reorder", "open"]
    with pytest.raises(ConfigError, match="--topic-pattern"):
        await consume(source("^x"), "c", ConsumerConfig(), stop, sink)


@virtual
async def test_the_refresh_of_topics_is_how_often_a_refused_one_is_tried() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    source = ArchiveSourceOptions(
        topic=("good", "bad"), topic_refresh=5.0, nsqd_tcp_address=(str(nsqd.address),)
    )
    await consume(source, "c", ConsumerConfig(), StopOptions(max_duration=18.0), sink)
    assert sum(text.startswith("SUB bad") for _, text in nsqd.log) == 4


@virtual
async def test_an_nsqd_that_does_not_let_us_in_before_the_time_is_over_is_unreachable() -> None:
    nsqd = Network().nsqd()
    nsqd.hole = True
    with pytest.raises(UnreachableError):
        await start(Gathering(), nsqd, max_duration=0.1)


@virtual
async def test_a_signal_before_an_nsqd_has_let_us_in_is_no_failure() -> None:
    nsqd = Network().nsqd()
    nsqd.hole = True
    run = start(Gathering(), nsqd, max_duration=10.0)
    await elapse(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0
