"""Archives for tests, made by the formats, encoders and Parquet writers that make real ones."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsqtools.engine.handler import Batch, Message
from nsqtools.names import Address
from nsqtools.records.compression import make_encoder, method_of
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.spark.rows import ROW_SCHEMA

HOUR = 3600 * 10**9
NINE = 1_795_251_600 * 10**9
"""2026-11-21 09:00 UTC, in ns."""

RAW, JSON, PREFIXED = Layout(), Layout("json"), Layout("length-prefixed")


@dataclass(frozen=True)
class Sent:
    """A message as nsqd knows it; ``ns`` is its timestamp."""

    body: bytes
    ns: int = NINE
    id: str = "0" * 16
    attempts: int = 1
    topic: str = "events"
    channel: str = "lake"
    nsqd: str = "db1:4150"

    @property
    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "channel": self.channel,
            "nsqd": self.nsqd,
            "message_id": self.id,
            "timestamp": pa.scalar(self.ns // 1000, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "timestamp_ns": self.ns,
            "attempts": self.attempts,
            "body": self.body,
        }


def sent(*bodies: bytes, start: int = NINE, step: int = 1_000_003, **facts: Any) -> list[Sent]:
    """Messages one after the other, each with an id of its own."""
    return [
        Sent(body, start + number * step, f"{number:016x}", **facts)
        for number, body in enumerate(bodies)
    ]


def to_file(path: Path, messages: Sequence[Sent], layout: Layout, *, members: int = 3) -> Path:
    """A file as to-file writes it, compressed as its name says, in some members."""
    writer = make_writer(layout)
    encoder = make_encoder(method_of(path.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    share = max(-(-len(messages) // members), 1)
    with path.open("wb") as file:
        for start in range(0, max(len(messages), 1), share):
            for batch in map(_batch, messages[start : start + share]):
                file.write(encoder.write(b"".join(writer.render(batch, batch))))
            file.write(encoder.finish() or (encoder.empty() if not messages else b""))
    return path


def _batch(each: Sent) -> Batch:
    message = Message(each.id.encode(), each.body, each.ns, each.attempts)
    host, _, port = each.nsqd.rpartition(":")
    settle: Any = None
    return Batch(
        [message], settle, topic=each.topic, channel=each.channel, source=Address(host, int(port))
    )


def to_parquet(path: Path, messages: Sequence[Sent], **columns: pa.Array) -> Path:
    """A file as ``pipeline archive`` writes it, with these columns more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [each.row for each in messages]
    table = pa.table({name: [row[name] for row in rows] for name in ROW_SCHEMA.names}, ROW_SCHEMA)
    for name, column in columns.items():
        table = table.append_column(name, column)
    pq.write_table(table, path)
    return path


def at(path: Path, ns: int) -> Path:
    """The file, last changed then."""
    os.utime(path, ns=(ns, ns))
    return path
