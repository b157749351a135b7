"""A message as nsqd delivers it (tcp_protocol_spec, Data Format)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Message:
    """One delivery of a message; a redelivery is another object with more ``attempts``."""

    id: bytes
    """16 hexadecimal characters, unique per topic and nsqd only."""
    body: bytes
    timestamp: int
    """Time of publishing, in ns since the epoch by nsqd's clock."""
    attempts: int
    """Number of deliveries, from 1."""
