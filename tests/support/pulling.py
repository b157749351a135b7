"""What tests of receiving share: a staging to pull into, looks at nsqd, and one to script."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from nsqtools.names import Address
from nsqtools.spark.rows import ROW_SCHEMA, RowOrigin
from nsqtools.spark.source.plans import Offset, Quota
from nsqtools.spark.source.receive import receive
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.partitions import Claim, Ending
from nsqtools.stores.mounted import LocalStore
from tests.support import wire
from tests.support.eventually import eventually
from tests.support.ledgers import claim_of
from tests.support.servers import drained
from tests.support.streaming import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

    from nsqtools.spark.rows import Segment
    from nsqtools.spark.staging.partitions import Sealed
    from tests.support.servers import Nsqd

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
    offsets: dict[int, Offset] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(str(self.path)), STREAM)

    def prepare(self, batch: int, partitions: int = 1) -> None:
        quota = Quota(self.topic, str(self.nsqd.tcp), 2000)
        self.offsets[batch] = Offset(STREAM, batch, (quota,) * partitions)
        self.ledger.prepare(self.offsets[batch])

    def claim(self, batch: int | None = None, k: int = 0) -> tuple[int, Claim]:
        """A partition, of a new batch unless it is said which."""
        if batch is None:
            batch = next(self.batches)
            self.prepare(batch)
        claim = claim_of(self.ledger, self.offsets[batch], k)
        assert isinstance(claim, Claim)
        return batch, claim

    def receive(
        self, claim: Claim, number: int, address: Address | None = None, **options: Any
    ) -> Ending:
        """From the topic's nsqd or ``address``; in names of ``options``, __ stands for a dot."""
        given = {"subscribe": self.topic, "channel": "c", "stagingLocation": "/unused"}
        given |= {name.replace("__", "."): text for name, text in options.items()}
        quota = Quota(self.topic, str(address or self.nsqd.tcp), number)
        return receive(quota, parse_source(given), claim)

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
        return rows_of(claim.seal(self.ending))

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


def rows_of(sealed: Sealed) -> Found:
    found: Found = pa.Table.from_batches(
        sealed.batches(RowOrigin("t", "c", "n")), ROW_SCHEMA
    ).to_pylist()
    return found


def bodies_of(*parts: Found) -> Counter[bytes]:
    return Counter(row["body"] for rows in parts for row in rows)


class CountingNsqd:
    """An nsqd that takes every subscription and sends what ``on_ready`` writes; it counts."""

    def __init__(self, max_rdy_count: int = 2500) -> None:
        self._max_rdy_count = max_rdy_count
        self.connections = self.requeued = self.finished = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        rest = b""
        while data := await reader.read(65536):
            found, rest = wire.split_commands(rest + data)
            for command in found:
                match command.split():
                    case ["IDENTIFY", *_]:
                        writer.write(wire.negotiated(max_rdy_count=self._max_rdy_count))
                    case ["SUB", *_]:
                        writer.write(wire.OK)
                    case ["RDY", count]:
                        self.on_ready(int(count), writer)
                    case ["FIN", *_]:
                        self.finished += 1
                        self.on_finish(writer)
                    case ["REQ", *_]:
                        self.requeued += 1
                    case ["CLS"]:
                        self.on_ready(0, writer)
                        writer.write(wire.CLOSE_WAIT)
        writer.close()

    def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
        """RDY of this count has come."""

    def on_finish(self, writer: asyncio.StreamWriter) -> None:
        """A FIN has come."""
