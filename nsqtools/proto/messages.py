"""A message as nsqd delivers it (tcp_protocol_spec, Data Format)."""

# size: every part of the package uses this class

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Message:
    """One delivery of a message; a redelivery is another object.

    For example::

        message = Message(id=b"0123456789abcdef", body=b"{}", timestamp=10**18, attempts=1)
        published = datetime.fromtimestamp(message.timestamp / 1e9, UTC)
        print(message.id.decode(), published, json.loads(message.body))
    """

    id: bytes
    """16 hexadecimal characters, unique only within a topic on one nsqd."""
    body: bytes
    timestamp: int
    """Time of publishing, in ns since the epoch by nsqd's clock."""
    attempts: int
    """Number of deliveries, from 1."""
