"""A quota of messages from nsqd into the staging: that many, none lost, none left behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError, ProtocolError
from nsqtools.proto.messages import Message
from nsqtools.spark.ledger import ROW_SCHEMA, Claim, FencedError, Ledger
from nsqtools.spark.options import SourceSettings, parse_source
from nsqtools.spark.plans import Offset, Quota
from nsqtools.spark.receive import Rows, receive
from nsqtools.spark.stores import LocalStore
from tests.support.eventually import eventually
from tests.support.proxy import Faults, Proxy
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nsqtools.names import Address
    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates

    Found = list[dict[str, Any]]

NONE: Mapping[str, str] = {}
STREAM = "0" * 32


@dataclass
class Staging:
    """A stream's staging, in which each ``pull`` is a batch of its own."""

    path: Path
    monkeypatch: pytest.MonkeyPatch
    batches: count[int] = field(default_factory=lambda: count(1))

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(), str(self.path), STREAM)

    def prepare(self, batch: int) -> None:
        self.ledger.prepare(Offset(STREAM, batch, (Quota("t", "n:1", 1),)))

    def claim(self, batch: int | None = None) -> tuple[int, Claim]:
        """A partition, of a new batch unless it is said which."""
        if batch is None:
            batch = next(self.batches)
            self.prepare(batch)
        claim = self.ledger.claim(batch, 0)
        assert isinstance(claim, Claim)
        return batch, claim

    def pull(
        self,
        address: Address,
        topic: str,
        number: int,
        *,
        batch: int | None = None,
        on_add: Callable[[Callable[[], None], int], None] | None = None,
        options: Mapping[str, str] = NONE,
    ) -> Found:
        """Receive and seal; ``on_add`` is called for each segment with its add and its length."""
        _, claim = self.claim(batch)
        if on_add:
            add = claim.add

            def hooked(rows: pa.RecordBatch) -> None:
                on_add(lambda: add(rows), rows.num_rows)

            self.monkeypatch.setattr(claim, "add", hooked)
        receive(Quota(topic, str(address), number), settings(topic, options), claim)
        table = pa.Table.from_batches(claim.seal().batches(), ROW_SCHEMA)
        found: Found = table.to_pylist()
        return found


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    return Staging(tmp_path / "staging", monkeypatch)


def settings(topic: str, options: Mapping[str, str] = NONE) -> SourceSettings:
    given = {"subscribe": topic, "channel": "c", "stagingLocation": "/unused"}
    return parse_source({**given, **options})


def publish(nsqd: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, bodies)
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == len(bodies))


def numbered(number: int) -> list[bytes]:
    return [b"%d" % each for each in range(number)]


def bodies_of(*parts: Found) -> Counter[bytes]:
    return Counter(row["body"] for rows in parts for row in rows)


def depth(nsqd: Nsqd, topic: str) -> int:
    found: int = nsqd.channel(topic, "c")["depth"]
    return found


def rests(nsqd: Nsqd, topic: str) -> bool:
    """Whether nsqd has nothing in flight, so that its depth is all that it holds."""
    found = nsqd.channel(topic, "c")
    return not (found["in_flight_count"] or found["clients"])


@pytest.mark.parametrize(
    ("number", "window"), [(1, 1), (7, 2), (999, 2500), (3210, 500), (5000, 2500)]
)
def test_the_quota_is_met_and_nothing_beyond_it_is_ever_in_flight(
    nsqd: Nsqd, staging: Staging, topic: str, number: int, window: int
) -> None:
    publish(nsqd, topic, numbered(6000))
    seen = []

    def look(add: Callable[[], None], rows: int) -> None:
        found = nsqd.channel(topic, "c")
        seen.append((found["in_flight_count"], 6000 - found["depth"]))
        add()

    rows = staging.pull(nsqd.tcp, topic, number, on_add=look, options={"maxInFlight": str(window)})
    assert len(rows) == number
    assert max(in_flight for in_flight, _ in seen) <= window
    assert max(taken for _, taken in seen) <= number
    found = nsqd.channel(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (6000 - number, 0)
    assert (found["requeue_count"], found["timeout_count"]) == (0, 0)
    rest = staging.pull(nsqd.tcp, topic, 6000 - number)
    assert bodies_of(rows, rest) == Counter(numbered(6000))
    assert drained(nsqd, topic, "c")


def test_a_row_says_where_a_message_came_from_and_what_it_was(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, [b"one"])
    (row,) = staging.pull(nsqd.tcp, topic, 1)
    assert (row["topic"], row["channel"], row["nsqd"]) == (topic, "c", str(nsqd.tcp))
    assert len(row["message_id"]) == 16
    assert int(row["message_id"], 16) >= 0
    assert row["attempts"] == 1
    assert row["body"] == b"one"
    assert int(row["timestamp"].timestamp() * 1e6) in range(
        row["timestamp_ns"] // 1000 - 1, row["timestamp_ns"] // 1000 + 2
    )


def test_bodies_of_all_bytes_and_sizes_arrive_as_they_are(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    random = Random(7)
    bodies = [
        bytes(range(256)),
        b"\0",
        b"\0" * 1000,
        *(random.randbytes(1 << n) for n in range(20)),
    ]
    bodies += [random.randbytes(1 << 20) for _ in range(40)]
    publish(nsqd, topic, bodies)
    assert bodies_of(staging.pull(nsqd.tcp, topic, len(bodies))) == Counter(bodies)


def test_rows_have_the_schema_of_the_ledger_even_for_empty_bodies() -> None:
    at = 1_700_000_000_123_456_789
    maker = Rows("t", "c", "n:1")
    rows = maker.make([Message(b"0" * 16, b"", at, 3), Message(b"1" * 16, b"x", 0, 1)])
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA
    first, second = rows.to_pylist()
    assert first["body"] == b""
    assert second["body"] == b"x"
    assert first["timestamp_ns"] == at
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert [maker.make([Message(b"0" * 16, b"", 0, 1)] * n).num_rows for n in (0, 1, 9)] == [
        0,
        1,
        9,
    ]


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"^n:1: .*not text"):
        Rows("t", "c", "n:1").make([Message(b"\xff" * 16, b"", 0, 1)])


def test_large_bodies_make_the_window_smaller(nsqd: Nsqd, staging: Staging, topic: str) -> None:
    bodies = [bytes(100_000)] * 100
    publish(nsqd, topic, bodies)
    in_flight = []

    def look(add: Callable[[], None], rows: int) -> None:
        in_flight.append(nsqd.channel(topic, "c")["in_flight_count"])
        add()

    limit = {"nsq.max_in_flight_bytes": "1000000"}
    assert len(staging.pull(nsqd.tcp, topic, 100, on_add=look, options=limit)) == 100
    assert max(in_flight) <= 10


def test_an_nsqd_that_allows_less_is_asked_for_less(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=30")
    publish(nsqd, topic, numbered(500))
    assert bodies_of(staging.pull(nsqd.tcp, topic, 500)) == Counter(numbered(500))


def test_silence_ends_a_partition_short_of_its_quota(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(50))
    caplog.set_level(logging.INFO)
    rows = staging.pull(nsqd.tcp, topic, 80, options={"idleTimeoutMs": "200"})
    assert bodies_of(rows) == Counter(numbered(50))
    assert drained(nsqd, topic, "c")
    assert "50 of 80 messages in this partition: idleTimeoutMs passed" in caplog.text


def test_time_ends_a_partition_short_of_its_quota(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(50))
    caplog.set_level(logging.INFO)
    limits = {"idleTimeoutMs": "60000", "maxReadMs": "500"}
    rows = staging.pull(nsqd.tcp, topic, 80, options=limits)
    assert bodies_of(rows) == Counter(numbered(50))
    assert drained(nsqd, topic, "c")
    assert "50 of 80 messages in this partition: maxReadMs is over" in caplog.text


def test_an_nsqd_that_is_down_gives_an_empty_partition(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.stop()
    assert staging.pull(nsqd.tcp, topic, 10) == []
    assert f"{nsqd.tcp}: topic {topic}: 0 of 10 messages" in caplog.text


def test_an_attempt_takes_over_what_an_earlier_one_has_staged(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(1000))
    batch, claim = staging.claim()
    receive(Quota(topic, str(nsqd.tcp), 300), settings(topic), claim)
    rows = staging.pull(nsqd.tcp, topic, 1000, batch=batch)
    assert bodies_of(rows) == Counter(numbered(1000))


def test_a_partition_that_has_its_quota_needs_no_nsqd(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    batch, claim = staging.claim()
    receive(Quota(topic, str(nsqd.tcp), 10), settings(topic), claim)
    nsqd.stop()
    assert len(staging.pull(nsqd.tcp, topic, 10, batch=batch)) == 10


@pytest.mark.parametrize("cut", ["rst", "fin"])
@pytest.mark.parametrize("after", [300, 40_000, 100_000])
async def test_a_connection_that_is_cut_ends_the_partition_and_loses_nothing(
    nsqd: Nsqd, staging: Staging, topic: str, after: int, cut: Any
) -> None:
    bodies = [b"%06d" % each + bytes(100) for each in range(2000)]
    publish(nsqd, topic, bodies)
    quick = {"maxInFlight": "200", "nsq.msg_timeout": "1s"}
    async with Proxy(nsqd.tcp, [Faults(cut_down_after=after, cut=cut)]) as proxy:
        first = await asyncio.to_thread(staging.pull, proxy.address, topic, 2000, options=quick)
    assert len(first) < 2000
    await asyncio.to_thread(eventually, lambda: rests(nsqd, topic))
    left = depth(nsqd, topic)
    second = await asyncio.to_thread(staging.pull, nsqd.tcp, topic, left, options=quick)
    found = bodies_of(first, second)
    assert set(found) == set(bodies)
    assert found.total() - 2000 <= 200
    assert drained(nsqd, topic, "c")


async def test_what_is_staged_when_the_connection_goes_counts(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(100))
    loop = asyncio.get_running_loop()
    async with Proxy(nsqd.tcp) as proxy:

        async def cut() -> None:
            proxy.cut()

        def cut_first(add: Callable[[], None], rows: int) -> None:
            add()
            asyncio.run_coroutine_threadsafe(cut(), loop).result()
            eventually(lambda: not nsqd.channel(topic, "c")["clients"])

        rows = await asyncio.to_thread(staging.pull, proxy.address, topic, 100, on_add=cut_first)
    assert 0 < len(rows) <= 100
    assert not Counter(numbered(100)) - bodies_of(rows) or len(rows) < 100


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


@pytest.mark.parametrize(("segments", "moment"), [(1, "after"), (7, "after"), (7, "before")])
def test_a_death_between_staging_and_finishing_loses_nothing_and_doubles_a_window_at_most(
    nsqd: Nsqd, staging: Staging, topic: str, segments: int, moment: str
) -> None:
    publish(nsqd, topic, numbered(2000))
    staging.prepare(next(staging.batches))
    arguments = [str(staging.path), topic, str(nsqd.tcp), str(segments), moment]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=60)
    assert done.returncode == -9
    eventually(lambda: rests(nsqd, topic))
    rows = staging.pull(nsqd.tcp, topic, 2000, batch=1, options={"idleTimeoutMs": "500"})
    more = depth(nsqd, topic)
    rest = staging.pull(nsqd.tcp, topic, more) if more else []
    found = bodies_of(rows, rest)
    assert set(found) == set(numbered(2000))
    assert found.total() - 2000 <= (100 if moment == "after" else 0)
    if moment == "after":
        assert found.total() > 2000
    assert drained(nsqd, topic, "c")


def test_who_was_taken_over_while_pulling_finishes_nothing_more(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    publish(nsqd, topic, numbered(2000))
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
    rows = pa.Table.from_batches(other.seal().batches(), ROW_SCHEMA).to_pylist()
    assert bodies_of(rows) == Counter(numbered(2000))
    assert drained(nsqd, topic, "c")


def test_a_message_that_timed_out_while_it_was_staged_comes_again_and_is_told(
    nsqd: Nsqd, staging: Staging, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(20))
    late = count()

    def stall_once(add: Callable[[], None], rows: int) -> None:
        if next(late) == 0:
            eventually(lambda: nsqd.channel(topic, "c")["timeout_count"] > 0)
        add()

    quick = {"nsq.msg_timeout": "1s"}
    rows = staging.pull(nsqd.tcp, topic, 20, on_add=stall_once, options=quick)
    more = depth(nsqd, topic)
    rest = staging.pull(nsqd.tcp, topic, more) if more else []
    assert set(bodies_of(rows, rest)) == set(numbered(20))
    assert drained(nsqd, topic, "c")
    assert "raise nsq.msg_timeout" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nsq.snappy": "true"},
        {"nsq.deflate": "true"},
        {"nsq.tls_v1": "true"},
        {"nsq.tls_v1": "true", "nsq.snappy": "true"},
    ],
    ids=["plain", "snappy", "deflate", "tls", "tls-snappy"],
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
    plain = make_nsqd()
    secure = make_nsqd(*certificates.server.nsqd_args())
    strict = make_nsqd(
        *certificates.server.nsqd_args(),
        f"-tls-root-ca-file={certificates.ca}",
        "-tls-client-auth-policy=require-verify",
    )
    elsewhere = make_nsqd(*certificates.other_host.nsqd_args())
    publish(secure, topic, numbered(10))

    def text(nsqd: Nsqd, ca: object) -> str:
        options = {"nsq.tls_root_ca_file": str(ca)}
        return str(refused(staging, nsqd.tcp, topic, options))

    assert "does not offer TLS" in text(plain, certificates.ca)
    assert "signed it with nsq.tls_root_ca_file" in text(secure, certificates.other_ca)
    assert "connect by a name that it holds" in text(elsewhere, certificates.ca)
    assert "client certificate" in text(strict, certificates.ca)
    assert "nsq.tls_root_ca_file /no/such: no such file" in text(secure, "/no/such")
    assert depth(secure, topic) == 10


def test_what_is_no_nsqd_is_an_error_of_the_query(nsqd: Nsqd, staging: Staging, topic: str) -> None:
    assert "not nsqd's TCP port" in str(refused(staging, nsqd.http, topic))


def test_an_nsqd_that_falls_silent_in_the_handshake_gives_an_empty_partition(
    nsqd: Nsqd, staging: Staging, topic: str
) -> None:
    async def pull() -> Found:
        faults = [Faults(cut_down_after=1, cut="fin")]
        async with Proxy(nsqd.tcp, faults) as proxy:
            return await asyncio.to_thread(staging.pull, proxy.address, topic, 10)

    assert asyncio.run(pull()) == []


def test_executors_need_neither_httpx_nor_pyspark() -> None:
    code = (
        "import sys; sys.modules.update(httpx=None, pyspark=None, click=None, rich=None); "
        "import nsqtools.spark.receive, nsqtools.spark.ledger, nsqtools.spark.options"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
