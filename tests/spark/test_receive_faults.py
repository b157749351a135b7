"""Receiving when something dies: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import OutputError
from nsqtools.spark.staging.log import FencedError
from tests.support import wire
from tests.support.eventually import eventually
from tests.support.ledgers import SETTLED
from tests.support.proxy import Faults, Proxy
from tests.support.pulling import CountingNsqd, Staging, bodies_of, rows_of
from tests.support.streaming import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.spark.rows import Segment
    from nsqtools.spark.staging.partitions import Claim
    from tests.support.servers import MakeNsqd

SECOND: dict[str, Any] = {"nsq__msg_timeout": "1s"}
"""After which nsqd delivers again; no shorter one is to be had."""


def test_an_attempt_takes_over_what_an_earlier_one_has_staged(staging: Staging) -> None:
    """If that is the quota, no nsqd is needed."""
    staging.publish(*numbered(1000))
    for taken, number in ((300, 800), (200, 200)):
        batch, claim = staging.claim()
        staging.receive(claim, taken)
        if taken == number:
            staging.nsqd.stop()
        rows = staging.pull(number, batch=batch)
        assert len(bodies_of(rows)) == len(rows) == number


async def test_what_was_staged_when_the_connection_went_comes_again_and_is_finished(
    staging: Staging,
) -> None:
    staging.publish(*numbered(100), alert=True)
    loop = asyncio.get_running_loop()
    segments = []
    async with Proxy(staging.nsqd.tcp) as proxy:

        async def cut() -> None:
            proxy.cut()

        def add_and_cut(add: Callable[[], None], rows: int) -> None:
            eventually(lambda: staging.channel["in_flight_count"] == 10)
            add()
            segments.append(rows)
            asyncio.run_coroutine_threadsafe(cut(), loop).result()
            eventually(lambda: not staging.channel["clients"])

        def pull() -> None:
            given = {"maxInFlight": "10", **SECOND}
            rows = staging.pull(100, proxy.address, on_add=add_and_cut, **given)
            assert segments == [len(rows)]
            assert not staging.ending.settled
            (note,) = staging.ending.notes
            assert f"{proxy.address}: topic {staging.topic}: " in note
            eventually(lambda: staging.depth == 100)
            staging.check(numbered(100), rows, staging.pull(100, proxy.address))
            assert staging.ending.again == len(rows)

        await asyncio.to_thread(pull)


async def test_what_was_not_staged_when_the_connection_went_is_left_to_nsqd(
    staging: Staging,
) -> None:
    class Leaving(CountingNsqd):
        def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
            writer.write(wire.message(1) + wire.message(2))
            writer.close()

    async with Leaving() as nsqd:
        assert await asyncio.to_thread(staging.pull, 100, nsqd.address) == []
    assert nsqd.finished == 0


def test_who_was_taken_over_while_pulling_finishes_nothing_more(staging: Staging) -> None:
    staging.publish(*numbered(2000), alert=True)
    quick = {"maxInFlight": "100", **SECOND}
    batch, claim = staging.claim()
    segments, add = count(1), claim.add
    others: list[Claim] = []

    def hooked(segment: Segment) -> None:
        if next(segments) == 5:
            others.append(staging.claim(batch)[1])
        add(segment)

    staging.monkeypatch.setattr(claim, "add", hooked)
    with pytest.raises(FencedError):
        staging.receive(claim, 2000, **quick)
    assert next(segments) == 6
    (other,) = others
    assert other.rows + staging.rest() == 2000
    staging.receive(other, 2000, **quick)
    staging.check(numbered(2000), rows_of(other.seal(SETTLED)))


def test_what_cannot_be_staged_goes_back_to_nsqd_at_once_and_is_an_error(staging: Staging) -> None:
    staging.publish(*numbered(2000))
    segments = count(1)

    def fill_up(add: Callable[[], None], rows: int) -> None:
        if next(segments) == 5:
            raise OutputError("no space left on device")
        add()

    with pytest.raises(OutputError, match="no space left"):
        staging.pull(2000, on_add=fill_up, maxInFlight="100")
    assert 0 < staging.rest() < 2000
    assert staging.channel["timeout_count"] == 0
    staging.check(numbered(2000), staging.pull(2000, batch=1))


def test_a_message_that_timed_out_while_it_was_staged_comes_again_and_is_told(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    staging.publish(*numbered(20), alert=True)
    late = count()

    def stall_once(add: Callable[[], None], rows: int) -> None:
        if next(late) == 0:
            eventually(lambda: staging.channel["timeout_count"] > 0)
        add()

    rows = staging.pull(20, on_add=stall_once, **SECOND)
    assert not staging.ending.settled
    assert "nsq.msg_timeout" in caplog.text
    staging.ledger.clean(1)
    more = staging.rest()
    staging.check(numbered(20), rows, staging.pull(more) if more else [])


class Forgetful(CountingNsqd):
    """One that can give up on all that is in flight and send a window more, again and again."""

    sent = ready = in_flight = 0

    def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
        self.ready, self.writer = count, writer
        while self.in_flight < self.ready:
            writer.write(wire.message(self.sent))
            self.sent += 1
            self.in_flight += 1

    async def forget(self) -> None:
        """Until it may send nothing."""
        while self.ready:
            self.in_flight = 0
            self.on_ready(self.ready, self.writer)
            await self.writer.drain()
            await asyncio.sleep(0)


async def test_more_than_a_window_is_told_of_and_given_back_and_followed_by_nothing(
    staging: Staging,
) -> None:
    loop = asyncio.get_running_loop()
    segments = []

    def stall(add: Callable[[], None], rows: int) -> None:
        segments.append(rows)
        asyncio.run_coroutine_threadsafe(nsqd.forget(), loop).result(60)
        add()

    async with Forgetful() as nsqd:
        rows = await asyncio.to_thread(
            staging.pull, 10_000, nsqd.address, on_add=stall, maxInFlight="10"
        )
    assert segments == [len(rows)]
    assert nsqd.sent > 10
    assert len(rows) + nsqd.requeued == nsqd.sent
    assert not staging.ending.settled
    assert "timed out" in staging.ending.notes[0]


async def test_a_message_that_comes_twice_in_one_segment_is_staged_once(staging: Staging) -> None:
    class Repeating(CountingNsqd):
        def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
            if count == 1:
                writer.write(wire.message(0))
            elif count == 10:
                again = [wire.message(each, attempts=2) for each in range(5)]
                writer.write(b"".join([*(wire.message(each) for each in range(1, 5)), *again]))

    async with Repeating() as nsqd:
        limits: dict[str, Any] = {"maxInFlight": "10", "idleTimeoutMs": "1000"}
        rows = await asyncio.to_thread(staging.pull, 100, nsqd.address, **limits)
    assert sorted(int(row["message_id"], 16) for row in rows) == list(range(5))
    assert staging.ending.again == 5


async def test_of_several_connections_one_may_be_cut(make_nsqd: MakeNsqd, staging: Staging) -> None:
    staging.nsqd = make_nsqd("-max-rdy-count=100")
    staging.publish(*numbered(2000), alert=True)
    faults = [Faults(cut_down_after=5000), Faults()]
    async with Proxy(staging.nsqd.tcp, faults) as proxy:

        def pull() -> None:
            first = staging.pull(2000, proxy.address, maxInFlight="200", **SECOND)
            assert 0 < len(first) < 1000  # less than the share of the other one
            assert not staging.ending.settled
            second = staging.pull(staging.rest(), proxy.address, maxInFlight="200", **SECOND)
            staging.check(numbered(2000), first, second)

        await asyncio.to_thread(pull)
