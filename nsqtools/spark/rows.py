"""Messages as rows of the staging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nsqtools.errors import ProtocolError
from nsqtools.names import Address
from nsqtools.spark.ledger import ROW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.proto.messages import Message


class Rows:
    """Converts messages to ROW_SCHEMA, column by column, which is fastest with Arrow."""

    def __init__(self, topic: str, channel: str, nsqd: str) -> None:
        self._names = (topic, channel, nsqd)
        self._repeated: tuple[pa.Array, ...] = ()

    def make(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Return one row per message. Raises ProtocolError for an id that is not text."""
        count = len(messages)
        if not self._repeated or len(self._repeated[0]) < count:
            self._repeated = tuple(pa.repeat(name, count) for name in self._names)
        try:
            ids = pa.array([message.id for message in messages], pa.string())
        except pa.ArrowInvalid as error:
            nsqd = Address.parse(self._names[2])
            raise ProtocolError(
                "sent a message id that is not text: is this an nsqd?", nsqd
            ) from error
        nanoseconds = pa.array([message.timestamp for message in messages], pa.int64())
        timestamps = nanoseconds.view(pa.timestamp("ns", "UTC"))
        columns = [
            *(each.slice(0, count) for each in self._repeated),
            ids,
            timestamps.cast(pa.timestamp("us", "UTC"), safe=False),
            nanoseconds,
            pa.array([message.attempts for message in messages], pa.int32()),
            pa.array([message.body for message in messages], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
