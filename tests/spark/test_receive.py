"""A quota of messages from nsqd into the staging: that many, and nothing left behind.

When something dies, nothing is lost, and nothing is there twice.
# size: one receiver and the faults of its servers
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from nsqtools.errors import (
    NSQError,
    OutputError,
    ProtocolError,
)
from nsqtools.proto.messages import Message
from nsqtools.spark.rows import ROW_SCHEMA, make_segment, rows_of
from nsqtools.spark.source.plans import BatchPlan, Quota
from nsqtools.spark.source.receive import receive
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.partitions import Claim, Ending
from nsqtools.stores.mounted import LocalStore
from tests.support import wire
from tests.support.counting import CountingNsqd
from tests.support.eventually import eventually
from tests.support.ledgers import bodies_of, claim_of
from tests.support.proxy import Faults, Proxy
from tests.support.servers import drained
from tests.support.streaming import numbered, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from nsqtools.names import Address
    from nsqtools.spark.rows import Segment
    from nsqtools.spark.staging.partitions import Sealed
    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates

    Found = list[dict[str, Any]]

STREAM = "0" * 32


@dataclass
class Staging:
    """A stream's staging, in which each ``pull`` is a batch of its own; and the topic in nsqd."""

    path: Path
    nsqd: Nsqd
    topic: str
    monkeypatch: pytest.MonkeyPatch
    batches: count[int] = field(default_factory=lambda: count(1))
    ending: Ending = field(default_factory=lambda: Ending(settled=True))
    """Of the last pull."""
    plans: dict[int, BatchPlan] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(str(self.path)), STREAM)

    def prepare(self, batch: int, partitions: int = 1) -> None:
        quota = Quota(self.topic, str(self.nsqd.tcp), 2000)
        self.plans[batch] = BatchPlan(STREAM, batch, ((quota,),) * partitions)
        self.ledger.prepare(self.plans[batch])

    def claim(self, batch: int | None = None, k: int = 0) -> tuple[int, Claim]:
        """A partition, of a new batch unless it is said which."""
        if batch is None:
            batch = next(self.batches)
            self.prepare(batch)
        claim = claim_of(self.ledger, self.plans[batch], k)
        assert isinstance(claim, Claim)
        return batch, claim

    def receive(
        self, claim: Claim, number: int, address: Address | None = None, **options: Any
    ) -> Ending:
        """From the topic's nsqd or ``address``; in names of ``options``, __ stands for a dot."""
        given = {"subscribe": self.topic, "channel": "c", "stagingLocation": "/unused"}
        given |= {name.replace("__", "."): text for name, text in options.items()}
        quota = Quota(self.topic, str(address or self.nsqd.tcp), number)
        return receive([quota], parse_source(given), claim)

    def pull(
        self,
        number: int,
        address: Address | None = None,
        *,
        batch: int | None = None,
        k: int = 0,
        on_add: Callable[[Callable[[], None], int], None] | None = None,
        **options: Any,
    ) -> Found:
        """Receive and seal; ``on_add`` is called for each segment with its add and its length."""
        _, claim = self.claim(batch, k)
        if on_add:
            add = claim.add

            def hooked(segment: Segment) -> None:
                on_add(lambda: add(segment), segment.keys.num_rows)

            self.monkeypatch.setattr(claim, "add", hooked)
        self.ending = self.receive(claim, number, address, **options)
        return found_in(claim.seal(self.ending))

    def publish(self, *bodies: bytes, alert: bool = False) -> None:
        publish(self.nsqd, self.topic, bodies, alert=alert)

    @property
    def channel(self) -> dict[str, Any]:
        found: dict[str, Any] = self.nsqd.channel(self.topic, "c")
        return found

    @property
    def depth(self) -> int:
        depth: int = self.channel["depth"]
        return depth

    def rest(self) -> int:
        """Wait until nsqd has nothing in flight; its depth is all that it holds then."""
        eventually(lambda: not (self.channel["in_flight_count"] or self.channel["clients"]))
        return self.depth

    def check(self, bodies: Iterable[bytes], *parts: Found) -> None:
        """The parts have each of these bodies once, and nsqd has nothing any more."""
        assert bodies_of(*parts) == Counter(bodies)
        assert drained(self.nsqd, self.topic, "c")


def found_in(sealed: Sealed) -> Found:
    found: Found = pa.Table.from_batches(sealed.batches("c"), ROW_SCHEMA).to_pylist()
    return found


@pytest.fixture
def staging(tmp_path: Path, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch) -> Staging:
    return Staging(tmp_path / "staging", nsqd, topic, monkeypatch)


class Looks:
    """Looks at the channel at each segment, before it is added."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.seen: list[dict[str, Any]] = []

    def __call__(self, add: Callable[[], None], rows: int) -> None:
        self.seen.append(self._staging.channel)
        add()

    @property
    def in_flight(self) -> int:
        """The most that there were."""
        return max(int(each["in_flight_count"]) for each in self.seen)

    @property
    def clients(self) -> int:
        return max(len(each["clients"]) for each in self.seen)


@pytest.fixture
def look(staging: Staging) -> Looks:
    return Looks(staging)


@pytest.mark.parametrize(("number", "window"), [(3210, 500), (5999, 10_000)])
def test_the_quota_is_met_and_nothing_beyond_it_is_ever_in_flight(
    staging: Staging, look: Looks, number: int, window: int
) -> None:
    staging.publish(*numbered(6000))
    rows = staging.pull(number, on_add=look, maxInFlight=str(window))
    assert len(rows) == number
    assert look.in_flight <= window
    assert min(each["depth"] for each in look.seen) >= 6000 - number
    assert staging.ending == Ending(settled=True, rows=(number,))
    found = staging.channel
    assert (found["depth"], found["in_flight_count"]) == (6000 - number, 0)
    assert (found["requeue_count"], found["timeout_count"]) == (0, 0)
    staging.check(numbered(6000), rows, staging.pull(6000 - number))


class EagerNsqd(CountingNsqd):
    """One with messages without end, which sends all it may after each single command."""

    delivered = most_in_flight = 0

    def __init__(self, max_rdy_count: int) -> None:
        super().__init__(max_rdy_count)
        self.ready: dict[asyncio.StreamWriter, int] = {}
        self.in_flight: Counter[asyncio.StreamWriter] = Counter()

    def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
        self.ready[writer] = count
        while self.in_flight[writer] < self.ready[writer]:
            writer.write(wire.message(self.delivered))
            self.in_flight[writer] += 1
            self.delivered += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight.total())

    def on_finish(self, writer: asyncio.StreamWriter) -> None:
        self.in_flight[writer] -= 1
        self.on_ready(self.ready[writer], writer)


@pytest.mark.parametrize("allowed", [7, 100, 2500])
@pytest.mark.parametrize(("number", "window"), [(1, 10), (10, 3), (3456, 700)])
async def test_no_order_of_commands_lets_nsqd_send_more_than_the_quota(
    staging: Staging, number: int, window: int, allowed: int
) -> None:
    async with EagerNsqd(allowed) as nsqd:
        rows = await asyncio.to_thread(staging.pull, number, nsqd.address, maxInFlight=str(window))
    assert nsqd.delivered == number
    assert {int(row["message_id"], 16) for row in rows} == set(range(number))
    assert nsqd.in_flight.total() == 0
    assert nsqd.most_in_flight <= window + nsqd.connections - 1


def test_rows_have_the_schema_of_the_ledger_even_for_empty_bodies() -> None:
    at = 1_700_000_000_123_456_789
    messages = [Message(b"0" * 16, b"", at, 3), Message(b"1" * 16, b"x", 0, 1)]
    queue = ("t", "n:1")
    (rows,) = rows_of("c", *make_segment([(queue, messages)]).serialise())
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA
    first, second = rows.to_pylist()
    assert (first["body"], second["body"]) == (b"", b"x")
    assert first["timestamp_ns"] == at
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    with pytest.raises(ProtocolError, match=r"^n:1: "):
        make_segment([(queue, [Message(b"\xff" * 16, b"", 0, 1)])])


def test_large_bodies_make_the_window_smaller(staging: Staging, look: Looks) -> None:
    staging.publish(*[bytes(100_000)] * 100)
    limit: dict[str, Any] = {"nsq__max_in_flight_bytes": "1000000"}
    assert len(staging.pull(100, on_add=look, **limit)) == 100
    assert look.in_flight <= 10


@pytest.mark.parametrize(
    ("flags", "window", "clients", "most"),
    [
        (("-max-rdy-count=100",), 250, 3, 252),
        (("-max-rdy-count=1",), 5000, 8, 8),
        (("-max-rdy-count=100", "-max-channel-consumers=1"), 5000, 1, 100),
    ],
    ids=["several have it", "flooded by none", "one consumer"],
)
def test_a_window_that_nsqd_allows_no_connection_is_had_by_several(
    make_nsqd: MakeNsqd,
    staging: Staging,
    look: Looks,
    flags: tuple[str, ...],
    window: int,
    clients: int,
    most: int,
) -> None:
    staging.nsqd = make_nsqd(*flags)
    staging.publish(*numbered(600))
    rows = staging.pull(600, on_add=look, maxInFlight=str(window))
    staging.check(numbered(600), rows)
    assert look.clients == clients
    assert 0.4 * most < look.in_flight <= most


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"idleTimeoutMs": "200"}, "idleTimeoutMs"),
        ({"idleTimeoutMs": "60000", "maxReadMs": "500"}, "maxReadMs"),
    ],
)
def test_silence_or_time_ends_a_partition_short_of_its_quota(
    staging: Staging, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], reason: str
) -> None:
    staging.publish(*numbered(50))
    caplog.set_level(logging.INFO)
    parts: list[Found] = []
    while sum(map(len, parts)) < 50:  # a busy machine is silent in between, too
        parts.append(staging.pull(80, **limits))
        assert f"{len(parts[-1])} of 80 messages" in caplog.text
    staging.check(numbered(50), *parts)
    assert reason in caplog.text


async def test_an_nsqd_that_is_down_or_falls_silent_gives_an_empty_partition(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(staging.nsqd.tcp, [Faults(cut_down_after=1, cut="fin")]) as proxy:
        assert await asyncio.to_thread(staging.pull, 10, proxy.address) == []
    staging.nsqd.stop()
    assert await asyncio.to_thread(staging.pull, 10) == []
    assert f"{staging.nsqd.tcp}: topic {staging.topic}: 0 of 10 messages" in caplog.text


@pytest.mark.parametrize("codec", ["deflate", "snappy"])
def test_connections_are_encrypted_compressed_and_authorised_as_told(
    make_nsqd: MakeNsqd,
    staging: Staging,
    certificates: Certificates,
    authd: Authd,
    tmp_path: Path,
    codec: str,
) -> None:
    authd.grant("open sesame")
    staging.nsqd = make_nsqd(*certificates.server.nsqd_args(), *authd.nsqd_args())
    sizes = (*(1 << n for n in range(20)), 1 << 20, 1 << 20)
    bodies = [*numbered(3000), bytes(range(256)), b"\0" * 1000, *map(Random(3).randbytes, sizes)]
    staging.publish(*bodies)
    (secret := tmp_path / "secret").write_text("open sesame\n")
    options: dict[str, Any] = {f"nsq__{codec}": "true", "nsq__auth_secret_file": str(secret)}
    tls: dict[str, Any] = {"nsq__tls_v1": "true", "nsq__tls_root_ca_file": str(certificates.ca)}
    rows = staging.pull(len(bodies), **options, **tls if codec == "snappy" else {})
    staging.check(bodies, rows)
    assert "reset by peer" not in staging.nsqd.log.read_text()


def test_tls_that_cannot_be_and_what_is_no_nsqd_are_errors_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, certificates: Certificates
) -> None:
    """Which name options as Spark has them, not flags."""
    staging.nsqd = make_nsqd(*certificates.server.nsqd_args())
    wrong: dict[str, Any] = {
        "nsq__tls_v1": "true",
        "nsq__tls_root_ca_file": str(certificates.other_ca),
    }
    with pytest.raises(NSQError, match=r"^(?!.*--).*nsq\.tls_root_ca_file[^\n]*$"):
        staging.pull(10, **wrong)
    with pytest.raises(NSQError, match=f"{staging.nsqd.http}[^\n]*$"):
        staging.pull(10, staging.nsqd.http)


SECOND: dict[str, Any] = {"nsq__msg_timeout": "1s"}
"""After which nsqd delivers again; no shorter one is to be had."""


def test_an_attempt_takes_over_what_an_earlier_one_has_staged(staging: Staging) -> None:
    """If that is the quota, no nsqd is needed."""
    staging.publish(*numbered(1000))
    batch, claim = staging.claim()
    staging.receive(claim, 300)
    staging.receive(staging.claim(batch)[1], 800)
    staging.nsqd.stop()
    rows = staging.pull(800, batch=batch)
    assert len(bodies_of(rows)) == len(rows) == 800


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


async def test_a_fin_that_was_too_late_is_told_of_and_followed_by_nothing(
    staging: Staging,
) -> None:
    class Late(EagerNsqd):
        def on_finish(self, writer: asyncio.StreamWriter) -> None:
            writer.write(wire.error("E_FIN_FAILED FIN 0 failed"))
            super().on_finish(writer)

    async with Late(10) as nsqd:
        rows = await asyncio.to_thread(staging.pull, 1000, nsqd.address, maxInFlight="10")
    assert len(rows) < 1000
    assert not staging.ending.settled
    assert "timed out" in staging.ending.notes[0]


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
    assert (staging.ending.rows, staging.ending.silent) == ((5,), ())


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
