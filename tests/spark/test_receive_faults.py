"""Receiving when something dies: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from nsqtools.errors import OutputError
from nsqtools.spark import again
from nsqtools.spark import receive as receiving
from nsqtools.spark.ledger import ROW_SCHEMA, Claim, FencedError
from nsqtools.spark.plans import Quota
from nsqtools.spark.receive import receive
from tests.support import wire
from tests.support.eventually import eventually
from tests.support.ledgers import SETTLED
from tests.support.proxy import Faults, Proxy
from tests.support.pulling import ScriptedNsqd, Staging, bodies_of, depth, rests, settings
from tests.support.servers import drained
from tests.support.streaming import numbered, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import MakeNsqd, Nsqd


def test_an_attempt_takes_over_what_an_earlier_one_has_staged(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    """If that is the quota, no nsqd is needed."""
    publish(nsqd, topic, numbered(1000))
    for taken, number in ((300, 800), (200, 200)):
        batch, claim = staging.claim()
        receive(Quota(topic, str(nsqd.tcp), taken), settings(topic), claim)
        if taken == number:
            nsqd.stop()
        rows = staging.pull(nsqd.tcp, topic, number, batch=batch)
        assert len(bodies_of(rows)) == len(rows) == number


@pytest.mark.parametrize(("after", "cut"), [(300, "fin"), (40_000, "rst")])
async def test_a_connection_that_is_cut_ends_the_partition_and_loses_nothing(
    nsqd: Nsqd, staging: Staging, topic: str, after: int, cut: Any
) -> None:
    bodies = [b"%06d" % each + bytes(100) for each in range(2000)]
    publish(nsqd, topic, bodies, alert=True)
    quick = {"maxInFlight": "200", "nsq.msg_timeout": "1s"}
    async with Proxy(nsqd.tcp, [Faults(cut_down_after=after, cut=cut)]) as proxy:
        first = await asyncio.to_thread(staging.pull, proxy.address, topic, 2000, options=quick)
        assert len(first) < 2000
        await asyncio.to_thread(eventually, lambda: rests(nsqd, topic))
        left = depth(nsqd, topic)
        second = await asyncio.to_thread(staging.pull, proxy.address, topic, left, options=quick)
    assert bodies_of(first, second) == Counter(bodies)
    assert drained(nsqd, topic, "c")


@pytest.mark.parametrize("batches_later", [1, 30])
async def test_what_was_staged_when_the_connection_went_comes_again_and_is_finished(
    nsqd: Nsqd, staging: Staging, topic: str, batches_later: int
) -> None:
    publish(nsqd, topic, numbered(100), alert=True)
    loop = asyncio.get_running_loop()
    segments = []
    async with Proxy(nsqd.tcp) as proxy:

        async def cut() -> None:
            proxy.cut()

        def add_and_cut(add: Callable[[], None], rows: int) -> None:
            eventually(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 10)
            add()
            segments.append(rows)
            asyncio.run_coroutine_threadsafe(cut(), loop).result()
            eventually(lambda: not nsqd.channel(topic, "c")["clients"])

        rows = await asyncio.to_thread(
            staging.pull,
            proxy.address,
            topic,
            100,
            on_add=add_and_cut,
            options={"nsq.msg_timeout": "1s", "maxInFlight": "10"},
        )
        assert segments == [len(rows)]
        assert not staging.ending.settled
        reason = "connection lost: connection reset by peer"
        assert staging.ending.notes == (f"{proxy.address}: topic {topic}: {reason}",)
        await asyncio.to_thread(eventually, lambda: depth(nsqd, topic) == 100)
        for _ in range(1, batches_later):
            batch, claim = staging.claim()
            claim.seal(SETTLED)
            staging.ledger.clean(batch)
        rest = await asyncio.to_thread(staging.pull, proxy.address, topic, 100)
    assert bodies_of(rows, rest) == Counter(numbered(100))
    assert staging.ending.again == len(rows)
    assert drained(nsqd, topic, "c")


async def test_what_was_not_staged_when_the_connection_went_is_left_to_nsqd(
    staging: Staging,
) -> None:
    class Leaving(ScriptedNsqd):
        def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
            writer.write(wire.message(1) + wire.message(2))
            writer.close()

    async with Leaving() as nsqd:
        assert await asyncio.to_thread(staging.pull, nsqd.address, "t", 100) == []
    assert nsqd.finished == 0


KILLED = """
import os, signal, sys
from nsqtools.spark.ledger import Ledger
from nsqtools.spark.options import parse_source
from nsqtools.spark.plans import Quota
from nsqtools.spark.receive import receive
from nsqtools.spark.stores import LocalStore
root, topic, nsqd, segments, before = sys.argv[1:]
claim = Ledger(LocalStore(), root, "0" * 32).claim(1, 0)
add, left = claim.add, int(segments)
def hooked(rows):
    global left
    left -= 1
    if not left and before == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    add(rows)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
claim.add = hooked
options = {"subscribe": topic, "channel": "c", "stagingLocation": "/unused", "maxInFlight": "100",
           "nsq.msg_timeout": "1s"}
receive(Quota(topic, nsqd, 2000), parse_source(options), claim)
"""


@dataclass
class Killed:
    """A partition whose attempt was killed, and all that it had in flight has timed out."""

    nsqd: Nsqd
    topic: str
    staging: Staging
    again: int = 0
    """Messages that came again, were staged, and were finished only."""

    def __call__(self, segments: int, moment: str, partitions: int = 1) -> None:
        publish(self.nsqd, self.topic, numbered(2000), alert=True)
        self.staging.prepare(next(self.staging.batches), partitions)
        self.die(segments, moment)

    def die(self, segments: int, moment: str) -> None:
        """An attempt is killed at so many of its segments, and what it had comes again."""
        arguments = [str(self.staging.path), self.topic, str(self.nsqd.tcp), str(segments), moment]
        done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=60)
        assert done.returncode == -9
        eventually(lambda: rests(self.nsqd, self.topic))

    def pull(self, number: int = 2000, **kwargs: Any) -> list[dict[str, Any]]:
        quick = {"idleTimeoutMs": "500"}
        rows = self.staging.pull(self.nsqd.tcp, self.topic, number, options=quick, **kwargs)
        self.again += self.staging.ending.again
        return rows

    def check(self, *parts: list[dict[str, Any]]) -> None:
        """All is there once; what is left is taken in another batch."""
        left = depth(self.nsqd, self.topic)
        rest = self.pull(left) if left else []
        assert bodies_of(*parts, rest) == Counter(numbered(2000))
        assert drained(self.nsqd, self.topic, "c")


@pytest.fixture
def killed(nsqd: Nsqd, topic: str, staging: Staging) -> Killed:
    return Killed(nsqd, topic, staging)


@pytest.mark.parametrize(("segments", "moment"), [(1, "after"), (7, "before")])
def test_a_death_between_staging_and_finishing_loses_nothing_and_doubles_nothing(
    killed: Killed, segments: int, moment: str
) -> None:
    killed(segments, moment)
    killed.check(killed.pull(batch=1))
    # Before it, FINs of the segments until then may have been on their way out.
    assert killed.again > 0 or moment == "before"


def test_another_partition_gets_the_messages_before_the_dead_one_is_adopted(killed: Killed) -> None:
    killed(3, "after", partitions=2)
    rows = killed.pull(batch=1, k=1)
    assert killed.again > 0
    more = killed.pull(batch=1, k=0)
    killed.check(rows, more)


def test_they_come_many_batches_later(killed: Killed) -> None:
    killed(3, "after")
    staging = killed.staging
    first = pa.Table.from_batches(staging.claim(1)[1].seal(SETTLED).batches()).to_pylist()
    parts = []
    for _ in range(30):
        batch = next(staging.batches)
        staging.prepare(batch)
        staging.ledger.clean(batch - 1)
        parts.append(killed.pull(200, batch=batch))
        if killed.again:
            break
    assert len(parts) > 5
    killed.check(first, *parts)


def test_a_second_death_in_the_same_partition_changes_nothing(killed: Killed) -> None:
    killed(3, "after")
    killed.die(4, "after")
    killed.check(killed.pull(batch=1))


def test_who_was_taken_over_while_pulling_finishes_nothing_more(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(2000), alert=True)
    quick = {"maxInFlight": "100", "nsq.msg_timeout": "1s"}
    batch, claim = staging.claim()
    segments, add = count(1), claim.add
    others: list[Claim] = []

    def hooked(rows: pa.RecordBatch) -> None:
        if next(segments) == 5:
            others.append(staging.claim(batch)[1])
        add(rows)

    staging.monkeypatch.setattr(claim, "add", hooked)
    quota = Quota(topic, str(nsqd.tcp), 2000)
    with pytest.raises(FencedError):
        receive(quota, settings(topic, quick), claim)
    assert next(segments) == 6
    eventually(lambda: rests(nsqd, topic))
    (other,) = others
    assert other.rows + depth(nsqd, topic) == 2000
    receive(quota, settings(topic, quick), other)
    rows = pa.Table.from_batches(other.seal(SETTLED).batches(), ROW_SCHEMA).to_pylist()
    assert bodies_of(rows) == Counter(numbered(2000))
    assert drained(nsqd, topic, "c")


def test_what_cannot_be_staged_goes_back_to_nsqd_at_once_and_is_an_error(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(2000))
    segments = count(1)

    def fill_up(add: Callable[[], None], rows: int) -> None:
        if next(segments) == 5:
            raise OutputError("no space left on device")
        add()

    with pytest.raises(OutputError, match="no space left"):
        staging.pull(nsqd.tcp, topic, 2000, on_add=fill_up, options={"maxInFlight": "100"})
    eventually(lambda: rests(nsqd, topic))
    assert nsqd.channel(topic, "c")["timeout_count"] == 0
    left = depth(nsqd, topic)
    assert 0 < left < 2000
    rows = staging.pull(nsqd.tcp, topic, 2000, batch=1, options={"idleTimeoutMs": "300"})
    assert bodies_of(rows) == Counter(numbered(2000))


def test_a_message_that_timed_out_while_it_was_staged_comes_again_and_is_told(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(20), alert=True)
    late = count()

    def stall_once(add: Callable[[], None], rows: int) -> None:
        if next(late) == 0:
            eventually(lambda: nsqd.channel(topic, "c")["timeout_count"] > 0)
        add()

    quick = {"nsq.msg_timeout": "1s"}
    rows = staging.pull(nsqd.tcp, topic, 20, on_add=stall_once, options=quick)
    assert not staging.ending.settled
    assert "raise nsq.msg_timeout" in caplog.text
    staging.ledger.clean(1)
    eventually(lambda: rests(nsqd, topic))
    more = depth(nsqd, topic)
    rest = staging.pull(nsqd.tcp, topic, more) if more else []
    assert bodies_of(rows, rest) == Counter(numbered(20))
    assert drained(nsqd, topic, "c")


def test_a_stall_of_several_timeouts_stages_nothing_after_it_and_doubles_nothing(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    """nsqd sends a window and another one for as long as it lasts."""
    staging.monkeypatch.setattr(receiving, "WINDOW", 10)
    staging.monkeypatch.setattr(again, "_TAIL", 20)
    publish(nsqd, topic, numbered(300), alert=True)
    segments = []

    def stall_once(add: Callable[[], None], rows: int) -> None:
        segments.append(rows)
        if len(segments) == 3:
            eventually(lambda: nsqd.channel(topic, "c")["timeout_count"] > 10)
        add()

    rows = staging.pull(nsqd.tcp, topic, 300, on_add=stall_once, options={"nsq.msg_timeout": "1s"})
    assert len(segments) == 3
    assert max(segments) <= 10
    assert not staging.ending.settled
    staging.ledger.clean(1)
    eventually(lambda: rests(nsqd, topic))
    rest = staging.pull(nsqd.tcp, topic, depth(nsqd, topic))
    assert bodies_of(rows, rest) == Counter(numbered(300))
    assert drained(nsqd, topic, "c")


class Forgetful(ScriptedNsqd):
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
        asyncio.run_coroutine_threadsafe(nsqd.forget(), loop).result(20)
        add()

    async with Forgetful() as nsqd:
        window = {"maxInFlight": "10"}
        rows = await asyncio.to_thread(
            staging.pull, nsqd.address, "t", 10_000, on_add=stall, options=window
        )
    assert segments == [len(rows)]
    assert nsqd.sent > 10
    assert len(rows) + nsqd.requeued == nsqd.sent
    assert not staging.ending.settled
    assert "timed out" in staging.ending.notes[0]


async def test_a_message_that_comes_twice_in_one_segment_is_staged_once(staging: Staging) -> None:
    class Repeating(ScriptedNsqd):
        def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
            if count == 1:
                writer.write(wire.message(0))
            elif count == 10:
                again = [wire.message(each, attempts=2) for each in range(5)]
                writer.write(b"".join([*(wire.message(each) for each in range(1, 5)), *again]))

    async with Repeating() as nsqd:
        limits = {"maxInFlight": "10", "idleTimeoutMs": "100"}
        rows = await asyncio.to_thread(staging.pull, nsqd.address, "t", 100, options=limits)
    assert sorted(int(row["message_id"], 16) for row in rows) == list(range(5))
    assert staging.ending.again == 5


async def test_of_several_connections_one_may_be_cut(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=100")
    publish(nsqd, topic, numbered(2000), alert=True)
    quick = {"maxInFlight": "200", "nsq.msg_timeout": "1s"}
    async with Proxy(nsqd.tcp, [Faults(cut_down_after=5000), Faults()]) as proxy:
        first = await asyncio.to_thread(staging.pull, proxy.address, topic, 2000, options=quick)
        assert 0 < len(first) < 1000  # less than the share of the other one
        assert not staging.ending.settled
        await asyncio.to_thread(eventually, lambda: rests(nsqd, topic))
        left = depth(nsqd, topic)
        second = await asyncio.to_thread(staging.pull, proxy.address, topic, left, options=quick)
    assert bodies_of(first, second) == Counter(numbered(2000))
    assert drained(nsqd, topic, "c")
