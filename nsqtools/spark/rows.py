"""Messages as rows: their schema, and their form in segments of the staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsqtools.errors import ProtocolError
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.proto.messages import Message

ROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("nsqd", pa.string()),
        ("message_id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("body", pa.binary()),
    ]
)
"""``nsqd`` is host:tcp_port, ``message_id`` 16 hex digits, ``timestamp`` the time of publishing."""

KEY_SCHEMA = pa.schema([("message_id", pa.string()), ("timestamp_ns", pa.int64())])
"""The columns that identify a message of a topic on an nsqd."""

_REST_SCHEMA = pa.schema([("attempts", pa.int32()), ("body", pa.binary())])


class RowOrigin(NamedTuple):
    """The origin shared by all messages of a partition; ``nsqd`` is host:tcp_port."""

    topic: str
    channel: str
    nsqd: str


class Segment(NamedTuple):
    """Messages of one origin in two batches of equal length: KEY_SCHEMA, and the rest."""

    keys: pa.RecordBatch
    rest: pa.RecordBatch

    def serialise(self) -> tuple[pa.Buffer, pa.Buffer]:
        """Return each batch as an Arrow stream."""
        return _serialise(self.keys), _serialise(self.rest)


def make_segment(messages: Sequence[Message], nsqd: str) -> Segment:
    """Return messages as a segment. Raises ProtocolError if an id is not UTF-8 text."""
    try:
        ids = pa.array([message.id for message in messages], pa.string())
    except pa.ArrowInvalid as error:
        raise ProtocolError(
            "sent a message id that is not text: is this an nsqd?", Address.parse(nsqd)
        ) from error
    nanoseconds = pa.array([message.timestamp for message in messages], pa.int64())
    attempts = pa.array([message.attempts for message in messages], pa.int32())
    bodies = pa.array([message.body for message in messages], pa.binary())
    return Segment(
        pa.RecordBatch.from_arrays([ids, nanoseconds], schema=KEY_SCHEMA),
        pa.RecordBatch.from_arrays([attempts, bodies], schema=_REST_SCHEMA),
    )


def rows_of(origin: RowOrigin, keys: pa.Buffer, rest: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a serialised segment, in ROW_SCHEMA."""
    with pa.ipc.open_stream(keys) as some, pa.ipc.open_stream(rest) as others:
        for each, other in zip(some, others, strict=True):
            ids, nanoseconds = each.columns
            columns = [
                *(pa.repeat(pa.scalar(name, pa.string()), each.num_rows) for name in origin),
                ids,
                pc.cast(nanoseconds.view(pa.timestamp("ns", "UTC")), _MICROSECONDS, safe=False),
                nanoseconds,
                *other.columns,
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


_MICROSECONDS = ROW_SCHEMA.field("timestamp").type


def _serialise(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
