"""How a run of many topics starts, stops and ends, over scripted nsqds in virtual time."""

import asyncio
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from nsqtools import Batch, Handler, Runner
from nsqtools.engine.lookup import Backlog
from nsqtools.errors import (
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PeerError,
    UnreachableError,
)
from nsqtools.policy.stopping import UNKNOWN_TIMEOUT, Left
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, make_runner, refusing, start, time
from tests.support.scripted import Network, running, undisturbed


@virtual
async def test_each_topic_is_drained_and_the_handler_closed_once_at_the_very_end() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"1", b"2", b"3")
    async with undisturbed():
        outcome = await start(sink, nsqd, topics=["a", "b", "a"], max_duration=5.0)
    assert sink.said[0] == "open"
    assert sorted(sink.said[1:-1]) == ["drain a", "drain b"]
    assert sink.said[-1] == "close"
    assert (nsqd.depth, nsqd.in_flight) == (0, 0)
    assert (outcome.reason, outcome.totals.finished) == ("max-duration", 3)
    assert sum(stats.finished for stats in outcome.by_topic.values()) == 3
    assert sorted(outcome.by_topic) == ["a", "b"]
    assert (outcome.lost, outcome.left, outcome.unreached, outcome.undrained) == (0, 0, [], [])


@virtual
async def test_one_topic_drains_without_waiting_for_the_handler_of_another() -> None:
    network, never = Network(), asyncio.Event()
    sink = Gathering(never.wait)
    nsqd = network.nsqd()
    nsqd.publish(b"stuck")
    run = start(sink, nsqd, topics=["a", "b"], max_duration=5.0)
    await elapse(5.5)
    assert len([text for text in sink.said if text.startswith("drain")]) == 1
    await run
    assert nsqd.in_flight == 0


@virtual
async def test_a_handler_that_only_handles_counts_and_logs_what_it_gave_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Handler):
        async def handle(self, batch: Batch) -> None:
            raise ValueError

    nsqd = Network().nsqd()
    nsqd.publish(b"1")
    options = {"max_attempts": 2, "default_requeue_delay": 1.0}
    outcome = await start(Failing(), nsqd, max_duration=60.0, **options)
    assert (outcome.lost, outcome.totals.given_up) == (1, 1)
    assert "gave up 1 message" in caplog.text


@virtual
async def test_stopping_drains_and_leaving_does_not() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    reached: list[float] = []
    runner = Runner(["t"], "c", sink, nsqds=[nsqd.address], on_ready=lambda: reached.append(1))
    run = asyncio.create_task(runner.run())
    await elapse(1)
    assert reached
    nsqd.publish(b"1")
    await elapse(1)
    assert (runner.is_open, runner.topic_count, runner.stats().in_flight) == (True, 1, 1)
    sink.draining = asyncio.Event().wait
    runner.stop()
    await elapse(1)
    assert not run.done()
    runner.leave()
    outcome = await run
    assert (outcome.reason, outcome.totals.finished) == ("stopped", 0)
    assert sink.said == ["open", "drain t", "close at once"]
    assert nsqd.commands[-2:] == ["CLS", "abort"]
    assert time() < 3.1


@virtual
async def test_leaving_interrupts_a_close_that_hangs() -> None:
    class Hanging(Gathering):
        async def close(self, *, at_once: bool = False) -> None:
            await super().close(at_once=at_once)
            await asyncio.Event().wait()

    nsqd, sink = Network().nsqd(), Hanging()
    runner = Runner(["t"], "c", sink, nsqds=[nsqd.address])
    run = asyncio.create_task(runner.run())
    await elapse(1)
    runner.stop()
    await elapse(60)
    assert not run.done()
    runner.leave()
    assert (await run).reason == "stopped"
    assert sink.said == ["open", "drain t", "close"]


@virtual
async def test_a_run_that_is_stopped_before_it_began_opens_and_closes() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    stopping: list[float] = []
    runner = Runner(
        ["t"], "c", sink, nsqds=[nsqd.address], on_stopping=lambda: stopping.append(time())
    )
    runner.stop()
    runner.stop()
    assert (await runner.run()).reason == "stopped"
    assert sink.said[-1] == "close"
    assert nsqd.dials == []
    assert stopping == [0]


@virtual
async def test_what_fails_to_open_is_closed_and_its_error_raised() -> None:
    async def refuse() -> None:
        raise LockedError("x.lock is locked")

    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = refuse
    with pytest.raises(LockedError, match=r"x\.lock is locked"):
        await start(sink, nsqd)
    assert sink.said == ["open", "close"]


@virtual
async def test_another_error_is_logged_and_of_a_bug_its_kind_and_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Gathering()
    sink.stuck = {
        "a": OutputError("first"),
        "b": OutputError("second"),
        "d": OutputError("first"),
    }
    bug = KeyError("third")
    nsqd = Network().nsqd()
    runner = make_runner(sink, nsqd, topics=["a", "b", "c", "d"])
    run = asyncio.create_task(runner.run())
    await elapse(1)
    sink.stuck["c"] = bug  # type: ignore[assignment]
    runner.stop()
    with pytest.raises(OutputError, match="first"):
        await run
    logged = {record.message: record.exc_info for record in caplog.records if record.levelno >= 40}
    assert {text: info and info[1] for text, info in logged.items()} == {
        "second": None,
        "'third'": bug,
    }


@pytest.mark.parametrize("step", ["open", "join"])
@virtual
async def test_a_handler_that_awaits_something_cancelled_fails_and_was_not_stopped(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def await_cancelled(*_: object) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    nsqd, sink = Network().nsqd(), Gathering()
    monkeypatch.setattr(sink, step, await_cancelled)
    with pytest.raises(RuntimeError, match="cancelled"):
        await start(sink, nsqd)
    assert sink.said[-1] == "close"


@virtual
async def test_an_idle_timeout_asks_for_what_is_only_gathered_and_ends_soon_after() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"1", b"2")
    assert (await start(sink, nsqd, idle_timeout=10.0)).reason == "idle-timeout"
    assert len(sink.flushed) == 1
    assert 10 <= sink.flushed[0] < 10.1
    assert time() < 11
    assert nsqd.in_flight == nsqd.depth == 0


@virtual
async def test_a_handler_that_is_stuck_keeps_an_idle_timeout_waiting() -> None:
    ready = asyncio.Event()
    nsqd, sink = Network().nsqd(), Gathering(ready.wait)
    nsqd.publish(b"1")
    run = start(sink, nsqd, idle_timeout=3.0)
    await elapse(12)
    assert not run.done()
    ready.set()
    await run
    assert time() < 14


@virtual
async def test_a_count_is_reached_though_the_handler_holds_what_nsqd_waits_for() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(*[b"x"] * 6)
    run = start(sink, nsqd, count=10)
    await elapse(1)
    nsqd.publish(*[b"y"] * 10)
    assert (await run).reason == "count"
    assert len(sink.bodies) == 10
    assert time() < 2
    assert (nsqd.depth, nsqd.in_flight) == (6, 0)


@virtual
async def test_topics_share_a_count_though_a_sync_fails() -> None:
    network = Network()
    nsqds = [network.nsqd(name) for name in "ab"]
    sink = Gathering()
    sink.is_eager = True
    sink.failing_flushes = 2
    for nsqd in nsqds:
        nsqd.publish(*[b"x"] * 20)
    await start(sink, *nsqds, topics=["s", "t"], count=25, max_in_flight=6)
    assert sum(text.startswith("FIN") for nsqd in nsqds for text in nsqd.commands) == 25
    assert sum(nsqd.depth for nsqd in nsqds) == 15
    assert sum(nsqd.in_flight for nsqd in nsqds) == 0


def holding(monkeypatch: pytest.MonkeyPatch, *answers: Left) -> list[float]:
    """Has nsqds answer so, the last for ever; returns the times at which they are asked."""
    asked: list[float] = []

    async def left(_: Backlog) -> Left:
        asked.append(time())
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(Backlog, "exists", AsyncMock(return_value=True))
    monkeypatch.setattr(Backlog, "left", left)
    return asked


SILENT = Left(unknown=("nsqd:4151: connection refused",))


@pytest.mark.parametrize("left", [Left(), Left(waiting=2, deferred=1), SILENT])
@pytest.mark.parametrize("reason", ["max-duration", "idle-timeout"])
@virtual
async def test_what_is_left_when_the_time_is_over_before_the_channel_is_empty(
    monkeypatch: pytest.MonkeyPatch, left: Left, reason: str
) -> None:
    nsqd = Network().nsqd()
    nsqd.publish(b"1")
    holding(monkeypatch, left)
    limit: dict[str, Any] = {reason.replace("-", "_"): 3.0}
    runner = make_runner(Gathering(partial(elapse, 1000)), nsqd, until_empty=True, **limit)
    outcome = await runner.run()
    assert outcome.reason == reason
    with pytest.raises(RuntimeError, match="runs once"):
        await runner.run()
    assert outcome.left == (None if left.unknown else left.messages)
    assert outcome.unknown == left.unknown


@virtual
async def test_a_topic_that_no_nsqd_has_is_not_taken_for_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = holding(monkeypatch, Left())
    monkeypatch.setattr(Backlog, "exists", AsyncMock(return_value=False))
    with pytest.raises(NSQError, match="no nsqd has topic t"):
        await start(Gathering(), Network().nsqd(), until_empty=True)
    outcome = await start(Gathering(), Network().nsqd(), max_duration=1.0)
    assert (outcome.reason, asked) == ("max-duration", [])


@virtual
async def test_a_server_that_did_not_answer_once_is_asked_again_until_empty(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though no message comes for long: one is deferred."""
    nsqd, deferred = Network().nsqd(), Left(deferred=1)
    asked = holding(monkeypatch, deferred, SILENT, *[deferred] * 60, Left())
    outcome = await start(Gathering(), nsqd, until_empty=True)
    assert (outcome.reason, outcome.left, outcome.unknown) == ("empty", 0, ())
    assert len(asked) == 64
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@virtual
async def test_what_stays_unknown_ends_the_run_after_its_time_and_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = Network().nsqd()
    holding(monkeypatch, *[Left(waiting=1) + SILENT] * 40, SILENT)
    outcome = await start(Gathering(), nsqd, until_empty=True)
    assert (outcome.reason, outcome.left, outcome.unknown) == ("unknown", None, SILENT.unknown)
    assert time() == pytest.approx(20 + UNKNOWN_TIMEOUT, abs=1.5)
    assert sum(SILENT.unknown[0] in each.message for each in caplog.records) == 1


@virtual
async def test_messages_restart_the_time_of_a_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    holding(monkeypatch, SILENT)
    run = start(sink, nsqd, until_empty=True)
    for _ in range(5):
        await elapse(UNKNOWN_TIMEOUT - 2)
        nsqd.publish(b"x")
    assert (await run).reason == "unknown"
    assert len(sink.bodies) == 5


@virtual
async def test_a_server_that_hangs_does_not_make_a_run_longer_than_its_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(_: Backlog) -> Left:
        if time() < 3:
            await elapse(1000)
        return SILENT

    nsqd = Network().nsqd()
    monkeypatch.setattr(Backlog, "exists", AsyncMock(return_value=True))
    monkeypatch.setattr(Backlog, "left", hang)
    outcome = await start(Gathering(), nsqd, until_empty=True, max_duration=3.0)
    assert (outcome.reason, outcome.unknown) == ("max-duration", SILENT.unknown)
    assert time() < 4


@virtual
async def test_a_timeout_that_a_check_raises_is_an_error_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Backlog, "exists", AsyncMock(return_value=True))
    monkeypatch.setattr(Backlog, "left", AsyncMock(side_effect=TimeoutError("a bug")))
    with pytest.raises(TimeoutError, match="a bug"):
        await start(Gathering(), Network().nsqd(), until_empty=True)


@virtual
async def test_what_is_waited_for_is_said_when_it_changes_and_twice_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nsqtools.waiting")
    nsqd = Network().nsqd()
    falling = [Left(deferred=100 - number) for number in range(100)]
    holding(monkeypatch, *[Left(deferred=100)] * 200, *falling, Left())
    await start(Gathering(), nsqd, until_empty=True)
    said = [each.message for each in caplog.records if each.name == "nsqtools.waiting"]
    assert "100 deferred" in said[0]
    assert 1 < len(said) <= 3
    assert len(set(said)) == len(said)


@virtual
async def test_a_patient_run_waits_for_its_servers_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink, reached = Network().nsqd(), Gathering(), Mock()
    nsqd.down = True
    runner = make_runner(sink, nsqd, topics=["a", "b"], patient=True, on_ready=reached)
    async with running(runner) as run:
        await elapse(300)
        reached.assert_called()  # so that systemd goes on, too
        assert not run.done()
        nsqd.down = False
        await elapse(120)
        nsqd.publish(b"1")
        await elapse(1)
        assert sink.bodies == [b"1"]
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert sum("cannot connect" in each for each in warnings) == 1
    assert sum("waiting" in each for each in warnings) == 1
    assert len(warnings) == 2


@pytest.mark.parametrize("patient", [False, True])
@virtual
async def test_a_run_that_is_refused_by_all_ends_however_patient_it_is(patient: bool) -> None:
    nsqd = Network().nsqd()
    nsqd.refuses = refusing("t")
    with pytest.raises(PeerError, match="refused"):
        await start(Gathering(), nsqd, patient=patient)


@virtual
async def test_http_addresses_for_some_nsqds_are_refused() -> None:
    nsqds = [Network().nsqd(name) for name in "ab"]
    with pytest.raises(ConfigError, match="--nsqd-http-address is given for 1 of 2 nsqds"):
        make_runner(Gathering(), *nsqds, until_empty=True, nsqd_http_address=("a:4151",))


@virtual
async def test_an_nsqd_that_does_not_let_us_in_before_the_time_is_over_is_unreachable() -> None:
    nsqd = Network().nsqd()
    nsqd.hole = True
    with pytest.raises(UnreachableError):
        await start(Gathering(), nsqd, max_duration=0.1)


@virtual
async def test_a_handler_that_fails_ends_the_run_with_its_error() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    run = start(sink, nsqd, topics=["a", "b"])
    await elapse(1)
    sink.ended.set_exception(OutputError("no space"))
    with pytest.raises(OutputError, match="no space"):
        await run
    assert sorted(sink.said) == ["close", "drain a", "drain b", "open"]
