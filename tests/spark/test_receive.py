"""A quota of messages from nsqd into the staging: that many, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError, ProtocolError, RefusedError
from nsqtools.proto.messages import Message
from nsqtools.spark.ledger import ROW_SCHEMA
from nsqtools.spark.rows import Rows
from nsqtools.spark.segments import Ending
from tests.support import wire
from tests.support.proxy import Faults, Proxy
from tests.support.pulling import NONE, ScriptedNsqd, Staging, bodies_of, depth
from tests.support.servers import drained
from tests.support.streaming import numbered, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nsqtools.names import Address
    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates


class Looks:
    """Looks at the channel at each segment, before it is added."""

    def __init__(self, nsqd: Nsqd, topic: str) -> None:
        self._nsqd, self._topic = nsqd, topic
        self.seen: list[dict[str, Any]] = []

    def __call__(self, add: Callable[[], None], rows: int) -> None:
        self.seen.append(self._nsqd.channel(self._topic, "c"))
        add()

    @property
    def in_flight(self) -> int:
        """The most that there were."""
        return max(each["in_flight_count"] for each in self.seen)

    @property
    def clients(self) -> int:
        return max(len(each["clients"]) for each in self.seen)


@pytest.fixture
def look(nsqd: Nsqd, topic: str) -> Looks:
    return Looks(nsqd, topic)


@pytest.mark.parametrize(
    ("number", "window"), [(1, 1), (7, 2), (3210, 500), (5000, 2500), (5999, 10_000)]
)
def test_the_quota_is_met_and_nothing_beyond_it_is_ever_in_flight(
    nsqd: Nsqd, staging: Staging, topic: str, look: Looks, number: int, window: int
) -> None:
    publish(nsqd, topic, numbered(6000))
    rows = staging.pull(nsqd.tcp, topic, number, on_add=look, options={"maxInFlight": str(window)})
    assert len(rows) == number
    assert look.in_flight <= window
    assert min(each["depth"] for each in look.seen) >= 6000 - number
    found = nsqd.channel(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (6000 - number, 0)
    assert (found["requeue_count"], found["timeout_count"]) == (0, 0)
    rest = staging.pull(nsqd.tcp, topic, 6000 - number)
    assert bodies_of(rows, rest) == Counter(numbered(6000))
    assert drained(nsqd, topic, "c")


class EagerNsqd(ScriptedNsqd):
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
        rows = await asyncio.to_thread(
            staging.pull, nsqd.address, "t", number, options={"maxInFlight": str(window)}
        )
    assert nsqd.delivered == number
    assert {int(row["message_id"], 16) for row in rows} == set(range(number))
    assert nsqd.in_flight.total() == 0
    assert nsqd.most_in_flight <= window + nsqd.connections - 1


def test_a_row_says_where_a_message_came_from_and_what_it_was(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, [b"one"])
    (row,) = staging.pull(nsqd.tcp, topic, 1)
    assert (row["topic"], row["channel"], row["nsqd"]) == (topic, "c", str(nsqd.tcp))
    assert len(row["message_id"]) == 16
    assert int(row["message_id"], 16) >= 0
    assert (row["attempts"], row["body"]) == (1, b"one")
    assert abs(row["timestamp"].timestamp() * 1e6 - row["timestamp_ns"] // 1000) < 2


def test_bodies_of_all_bytes_and_sizes_arrive_as_they_are(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    random = Random(7)
    bodies = [bytes(range(256)), b"\0", b"\0" * 1000]
    bodies += [random.randbytes(size) for size in (*(1 << n for n in range(20)), *[1 << 20] * 10)]
    publish(nsqd, topic, bodies)
    assert bodies_of(staging.pull(nsqd.tcp, topic, len(bodies))) == Counter(bodies)


def test_rows_have_the_schema_of_the_ledger_even_for_empty_bodies() -> None:
    at = 1_700_000_000_123_456_789
    maker = Rows("t", "c", "n:1")
    rows = maker.make([Message(b"0" * 16, b"", at, 3), Message(b"1" * 16, b"x", 0, 1)])
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA
    first, second = rows.to_pylist()
    assert (first["body"], second["body"]) == (b"", b"x")
    assert first["timestamp_ns"] == at
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    for count in (0, 1, 9):  # of bodies that are all empty
        assert maker.make([Message(b"0" * 16, b"", 0, 1)] * count).num_rows == count
    with pytest.raises(ProtocolError, match=r"^n:1: "):
        maker.make([Message(b"\xff" * 16, b"", 0, 1)])


def test_large_bodies_make_the_window_smaller(
    nsqd: Nsqd, staging: Staging, topic: str, look: Looks
) -> None:
    publish(nsqd, topic, [bytes(100_000)] * 100)
    limit = {"nsq.max_in_flight_bytes": "1000000"}
    assert len(staging.pull(nsqd.tcp, topic, 100, on_add=look, options=limit)) == 100
    assert look.in_flight <= 10


def test_a_window_that_nsqd_allows_no_connection_is_had_by_several(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=100")
    look = Looks(nsqd, topic)
    publish(nsqd, topic, numbered(2000))
    rows = staging.pull(nsqd.tcp, topic, 1500, on_add=look, options={"maxInFlight": "250"})
    assert len(bodies_of(rows)) == len(rows) == 1500
    assert look.clients == 3
    assert 100 < look.in_flight <= 252
    found = nsqd.channel(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (500, 0)


@pytest.mark.parametrize(
    ("flags", "clients"),
    [(("-max-rdy-count=1",), 8), (("-max-rdy-count=100", "-max-channel-consumers=1"), 1)],
    ids=["flooded by none", "one consumer"],
)
def test_an_nsqd_that_allows_little_gives_all_to_few_connections(
    make_nsqd: MakeNsqd, staging: Staging, topic: str, flags: tuple[str, ...], clients: int
) -> None:
    nsqd = make_nsqd(*flags)
    look = Looks(nsqd, topic)
    publish(nsqd, topic, numbered(300))
    rows = staging.pull(nsqd.tcp, topic, 300, on_add=look)
    assert bodies_of(rows) == Counter(numbered(300))
    assert look.clients == clients
    assert drained(nsqd, topic, "c")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"idleTimeoutMs": "200"}, "idleTimeoutMs"),
        ({"idleTimeoutMs": "60000", "maxReadMs": "500"}, "maxReadMs"),
    ],
)
def test_silence_or_time_ends_a_partition_short_of_its_quota(
    nsqd: Nsqd,
    staging: Staging,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    limits: dict[str, str],
    reason: str,
) -> None:
    publish(nsqd, topic, numbered(50))
    caplog.set_level(logging.INFO)
    rows = staging.pull(nsqd.tcp, topic, 80, options=limits)
    assert bodies_of(rows) == Counter(numbered(50))
    assert drained(nsqd, topic, "c")
    assert "50 of 80 messages" in caplog.text
    assert reason in caplog.text


def test_an_nsqd_that_is_down_gives_an_empty_partition(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.stop()
    assert staging.pull(nsqd.tcp, topic, 10) == []
    assert f"{nsqd.tcp}: topic {topic}: 0 of 10 messages" in caplog.text


def test_time_that_is_over_leaves_nothing_in_flight(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(20_000))
    rows = staging.pull(nsqd.tcp, topic, 20_000, options={"maxReadMs": "5"})
    found = nsqd.channel(topic, "c")
    assert found["in_flight_count"] <= 4  # one for each connection, under way when CLS came
    assert len(rows) + found["depth"] + found["in_flight_count"] == 20_000
    assert staging.ending == Ending(settled=True)


@pytest.mark.parametrize("number", [999, 4000])
def test_a_partition_that_ends_as_planned_has_all_its_fins_processed(
    nsqd: Nsqd, staging: Staging, topic: str, number: int
) -> None:
    publish(nsqd, topic, numbered(1000))
    staging.pull(nsqd.tcp, topic, number, options={"idleTimeoutMs": "100"})
    assert staging.ending == Ending(settled=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"nsq.deflate": "true"}, {"nsq.tls_v1": "true", "nsq.snappy": "true"}],
    ids=["plain", "deflate", "tls-snappy"],
)
def test_connections_are_encrypted_compressed_and_authorised_as_told(
    make_nsqd: MakeNsqd,
    staging: Staging,
    topic: str,
    certificates: Certificates,
    authd: Authd,
    tmp_path: Path,
    options: dict[str, str],
) -> None:
    authd.grant("open sesame")
    nsqd = make_nsqd(*certificates.server.nsqd_args(), *authd.nsqd_args())
    bodies = [*numbered(3000), bytes(1 << 20), Random(3).randbytes(1 << 20)]
    publish(nsqd, topic, bodies)
    (secret := tmp_path / "secret").write_text("open sesame\n")
    options = options | {"nsq.auth_secret_file": str(secret)}
    if "nsq.tls_v1" in options:
        options["nsq.tls_root_ca_file"] = str(certificates.ca)
    rows = staging.pull(nsqd.tcp, topic, len(bodies), options=options)
    assert bodies_of(rows) == Counter(bodies)
    assert drained(nsqd, topic, "c")
    assert "reset by peer" not in nsqd.log.read_text()


def refused(
    staging: Staging, address: Address, topic: str, options: Mapping[str, str] = NONE
) -> NSQError:
    """The error of the query, which names options as Spark has them, not flags."""
    with pytest.raises(NSQError) as caught:
        staging.pull(address, topic, 10, options=options)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
    return caught.value


def test_an_nsqd_that_wants_a_secret_is_an_error_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, topic: str, authd: Authd, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    publish(nsqd, topic, numbered(10))
    error = refused(staging, nsqd.tcp, topic)
    assert isinstance(error, AuthError)
    assert "nsq.auth_secret_file" in str(error)
    monkeypatch.setenv("NSQ_SECRET", "wrong")
    for variable, kind in (("NSQ_SECRET", AuthError), ("NSQ_NONE", ConfigError)):
        options = {"nsq.auth_secret_env": variable}
        assert isinstance(refused(staging, nsqd.tcp, topic, options), kind)
    assert depth(nsqd, topic) == 10


def test_tls_that_cannot_be_is_an_error_of_the_query(
    make_nsqd: MakeNsqd, staging: Staging, topic: str, certificates: Certificates
) -> None:
    secure = make_nsqd(*certificates.server.nsqd_args())
    strict = make_nsqd(
        *certificates.server.nsqd_args(),
        f"-tls-root-ca-file={certificates.ca}",
        "-tls-client-auth-policy=require-verify",
    )
    publish(secure, topic, numbered(10))
    for nsqd, ca, culprit in (
        (make_nsqd(), certificates.ca, "TLS"),
        (secure, certificates.other_ca, "nsq.tls_root_ca_file"),
        (make_nsqd(*certificates.other_host.nsqd_args()), certificates.ca, "name"),
        (strict, certificates.ca, "client certificate"),
        (secure, "/no/such", "nsq.tls_root_ca_file /no/such"),
    ):
        error = refused(staging, nsqd.tcp, topic, {"nsq.tls_root_ca_file": str(ca)})
        assert isinstance(error, RefusedError | ConfigError)
        assert culprit in str(error)
    assert depth(secure, topic) == 10


def test_what_is_no_nsqd_is_an_error_of_the_query(nsqd: Nsqd, staging: Staging, topic: str) -> None:
    assert str(nsqd.http) in str(refused(staging, nsqd.http, topic))


async def test_an_nsqd_that_falls_silent_in_the_handshake_gives_an_empty_partition(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    async with Proxy(nsqd.tcp, [Faults(cut_down_after=1, cut="fin")]) as proxy:
        assert await asyncio.to_thread(staging.pull, proxy.address, topic, 10) == []


def test_executors_need_none_of_the_libraries_that_only_the_driver_uses() -> None:
    code = (
        "import sys; sys.modules.update(httpx=None, click=None, rich=None); "
        "import nsqtools.spark.source, nsqtools.spark.sink"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
