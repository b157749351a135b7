"""A quota of messages from nsqd into the staging: that many, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import ProtocolError
from nsqtools.names import Address
from nsqtools.proto.messages import Message
from nsqtools.spark.ledger import ROW_SCHEMA
from nsqtools.spark.rows import Rows
from nsqtools.spark.segments import Ending
from tests.support import wire
from tests.support.pulling import Staging, bodies_of, depth, numbered, publish
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import MakeNsqd, Nsqd


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    return Staging(tmp_path / "staging", monkeypatch)


@pytest.mark.parametrize(
    ("number", "window"), [(1, 1), (7, 2), (999, 2500), (3210, 500), (5000, 2500), (5999, 10_000)]
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


class EagerNsqd:
    """An nsqd with messages without end, which sends all it may after each single command."""

    def __init__(self, max_rdy_count: int) -> None:
        self.max_rdy_count = max_rdy_count
        self.delivered = self.in_flight = self.most_in_flight = self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ready = in_flight = 0
        rest = b""
        while data := await reader.read(65536):
            found, rest = wire.split_commands(rest + data)
            for command in found:
                name, _, argument = command.partition(" ")
                if name == "RDY":
                    ready = int(argument)
                elif name == "FIN":
                    in_flight -= 1
                    self.in_flight -= 1
                elif reply := self.reply(name):
                    writer.write(reply)
                while in_flight < ready:
                    writer.write(wire.message(self.delivered))
                    in_flight += 1
                    self.delivered += 1
                    self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
        writer.close()

    def reply(self, name: str) -> bytes:
        match name:
            case "IDENTIFY":
                return wire.negotiated(max_rdy_count=self.max_rdy_count)
            case "SUB":
                return wire.OK
            case "CLS":
                return wire.CLOSE_WAIT
        return b""


@pytest.mark.parametrize("allowed", [7, 100, 2500])
@pytest.mark.parametrize(("number", "window"), [(1, 10), (10, 3), (1000, 100), (3456, 700)])
async def test_no_order_of_commands_lets_nsqd_send_more_than_the_quota(
    staging: Staging, number: int, window: int, allowed: int
) -> None:
    nsqd = EagerNsqd(allowed)
    server = await asyncio.start_server(nsqd.serve, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname())
    async with server:
        rows = await asyncio.to_thread(
            staging.pull, address, "t", number, options={"maxInFlight": str(window)}
        )
    assert nsqd.delivered == number
    assert {int(row["message_id"], 16) for row in rows} == set(range(number))
    assert nsqd.in_flight == 0
    assert nsqd.most_in_flight <= window + nsqd.connections - 1


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


def test_a_window_that_nsqd_allows_no_connection_is_had_by_several(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=100")
    publish(nsqd, topic, numbered(2000))
    clients, in_flight = [], []

    def look(add: Callable[[], None], rows: int) -> None:
        found = nsqd.channel(topic, "c")
        clients.append(len(found["clients"]))
        in_flight.append(found["in_flight_count"])
        add()

    rows = staging.pull(nsqd.tcp, topic, 1500, on_add=look, options={"maxInFlight": "250"})
    assert len(bodies_of(rows)) == len(rows) == 1500
    assert max(clients) == 3
    assert 100 < max(in_flight) <= 252
    assert depth(nsqd, topic) == 500
    assert nsqd.channel(topic, "c")["in_flight_count"] == 0


def test_an_nsqd_that_allows_very_little_is_not_flooded_with_connections(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=1")
    publish(nsqd, topic, numbered(100))
    clients = []

    def look(add: Callable[[], None], rows: int) -> None:
        clients.append(len(nsqd.channel(topic, "c")["clients"]))
        add()

    assert bodies_of(staging.pull(nsqd.tcp, topic, 100, on_add=look)) == Counter(numbered(100))
    assert max(clients) == 8


def test_an_nsqd_that_allows_one_consumer_gives_all_to_that(
    make_nsqd: MakeNsqd, staging: Staging, topic: str
) -> None:
    nsqd = make_nsqd("-max-rdy-count=100", "-max-channel-consumers=1")
    publish(nsqd, topic, numbered(500))
    assert bodies_of(staging.pull(nsqd.tcp, topic, 500)) == Counter(numbered(500))
    assert drained(nsqd, topic, "c")


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
