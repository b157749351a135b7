"""Messages as rows: their schema, and their form in segments of the staging."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsqtools.errors import ProtocolError
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.proto.messages import Message
    from nsqtools.spark.source.plans import TopicOnNsqd

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

_NAME = pa.dictionary(pa.int32(), pa.string())
KEY_SCHEMA = pa.schema(
    [
        ("topic", _NAME),
        ("nsqd", _NAME),
        ("message_id", pa.string()),
        ("timestamp_ns", pa.int64()),
    ]
)
"""The columns that identify a message."""

_REST_SCHEMA = pa.schema([("attempts", pa.int32()), ("body", pa.binary())])


class Segment(NamedTuple):
    """Messages in two batches of equal length: KEY_SCHEMA, and the rest."""

    keys: pa.RecordBatch
    rest: pa.RecordBatch

    def serialise(self) -> tuple[pa.Buffer, pa.Buffer]:
        """Return each batch as an Arrow stream."""
        return _serialise(self.keys), _serialise(self.rest)


def make_segment(parts: Sequence[tuple[TopicOnNsqd, Sequence[Message]]]) -> Segment:
    """Return the messages of topics on nsqds as a segment, in this order.

    Raises ProtocolError if an id is not UTF-8 text.
    """
    messages = list(chain.from_iterable(part for _, part in parts))
    try:
        ids = pa.array([message.id for message in messages], pa.string())
    except pa.ArrowInvalid as error:
        nsqd = next(
            queue[1] for queue, part in parts if not all(_is_text(message.id) for message in part)
        )
        raise ProtocolError(
            "sent a message id that is not text: is this an nsqd?", Address.parse(nsqd)
        ) from error
    nanoseconds = pa.array([message.timestamp for message in messages], pa.int64())
    attempts = pa.array([message.attempts for message in messages], pa.int32())
    bodies = pa.array([message.body for message in messages], pa.binary())
    topics, nsqds = (
        pa.concat_arrays(
            [pa.repeat(pa.scalar(queue[each], pa.string()), len(part)) for queue, part in parts]
        ).dictionary_encode()
        for each in range(2)
    )
    return Segment(
        pa.RecordBatch.from_arrays([topics, nsqds, ids, nanoseconds], schema=KEY_SCHEMA),
        pa.RecordBatch.from_arrays([attempts, bodies], schema=_REST_SCHEMA),
    )


def rows_of(
    channel: str, keys: pa.Buffer, rest: pa.Buffer, queue: TopicOnNsqd | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a serialised segment, in ROW_SCHEMA; ``queue`` as in ``keys_of``."""
    with pa.ipc.open_stream(rest) as others:
        for each, other in zip(keys_of(keys, queue).to_batches(), others, strict=True):
            topics, nsqds, ids, nanoseconds = each.columns
            columns = [
                topics.dictionary_decode(),
                pa.repeat(pa.scalar(channel, pa.string()), each.num_rows),
                nsqds.dictionary_decode(),
                ids,
                pc.cast(nanoseconds.view(pa.timestamp("ns", "UTC")), _MICROSECONDS, safe=False),
                nanoseconds,
                *other.columns,
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def keys_of(keys: pa.Buffer, queue: TopicOnNsqd | None) -> pa.Table:
    """Return the keys of a serialised segment, in KEY_SCHEMA.

    Segments of earlier versions have one topic on one nsqd, ``queue``, without columns for it.
    """
    table = pa.ipc.open_stream(keys).read_all()
    if queue and "topic" not in table.column_names:
        names = [pa.repeat(name, table.num_rows).dictionary_encode() for name in queue]
        table = pa.table([*names, *table.columns], schema=KEY_SCHEMA)
    return table


_MICROSECONDS = ROW_SCHEMA.field("timestamp").type


def _is_text(message_id: bytes) -> bool:
    try:
        message_id.decode()
    except UnicodeDecodeError:
        return False
    return True


def _serialise(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
