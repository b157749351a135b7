"""A quota of messages from nsqd into the staging: that many, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError, ProtocolError, RefusedError
from nsqtools.proto.messages import Message
from nsqtools.spark.rows import ROW_SCHEMA, RowOrigin, make_segment, rows_of
from nsqtools.spark.staging.partitions import Ending
from tests.support import wire
from tests.support.proxy import Faults, Proxy
from tests.support.pulling import CountingNsqd, Staging
from tests.support.streaming import numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nsqtools.names import Address
    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd
    from tests.support.tls import Certificates


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
    assert staging.ending == Ending(settled=True)
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
    (rows,) = rows_of(RowOrigin("t", "c", "n:1"), *make_segment(messages, "n:1").serialise())
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA
    first, second = rows.to_pylist()
    assert (first["body"], second["body"]) == (b"", b"x")
    assert first["timestamp_ns"] == at
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    with pytest.raises(ProtocolError, match=r"^n:1: "):
        make_segment([Message(b"\xff" * 16, b"", 0, 1)], "n:1")


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
    parts: list[list[dict[str, Any]]] = []
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


def test_time_that_is_over_leaves_nothing_in_flight(staging: Staging) -> None:
    staging.publish(*numbered(20_000))
    rows = staging.pull(20_000, maxReadMs="5")
    found = staging.channel
    assert found["in_flight_count"] <= 4  # one for each connection, under way when CLS came
    assert len(rows) + found["depth"] + found["in_flight_count"] == 20_000
    assert staging.ending == Ending(settled=True)


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
    tls = {"nsq__tls_v1": "true", "nsq__tls_root_ca_file": str(certificates.ca)}
    rows = staging.pull(len(bodies), **options, **tls if codec == "snappy" else {})
    staging.check(bodies, rows)
    assert "reset by peer" not in staging.nsqd.log.read_text()


def refused(staging: Staging, address: Address | None = None, **options: Any) -> NSQError:
    """The error of the query, which names options as Spark has them, not flags."""
    with pytest.raises(NSQError) as caught:
        staging.pull(10, address, **options)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
    return caught.value


def test_an_nsqd_that_wants_a_secret_is_an_error_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, authd: Authd, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.nsqd = make_nsqd(*authd.nsqd_args())
    staging.publish(*numbered(10))
    error = refused(staging)
    assert isinstance(error, AuthError)
    assert "nsq.auth_secret_file" in str(error)
    monkeypatch.setenv("NSQ_SECRET", "wrong")
    for variable, kind in (("NSQ_SECRET", AuthError), ("NSQ_NONE", ConfigError)):
        assert isinstance(refused(staging, nsq__auth_secret_env=variable), kind)
    assert staging.depth == 10


def test_tls_that_cannot_be_and_what_is_no_nsqd_are_errors_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, certificates: Certificates
) -> None:
    staging.nsqd = make_nsqd(*certificates.server.nsqd_args())
    error = refused(staging, nsq__tls_v1=True, nsq__tls_root_ca_file=str(certificates.other_ca))
    assert isinstance(error, RefusedError | ConfigError)
    assert "nsq.tls_root_ca_file" in str(error)
    assert str(staging.nsqd.http) in str(refused(staging, staging.nsqd.http))
