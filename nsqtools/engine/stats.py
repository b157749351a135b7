"""What a consumer counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqtools.names import Address


@dataclass(slots=True)
class ConsumerStats:
    """Totals since the start; connections, in_flight and backoff_level are of now."""

    received: int = 0
    received_bytes: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    too_late: int = 0
    """FIN, REQ or TOUCH that nsqd refused: the message had timed out and comes again."""
    abandoned: int = 0
    """Handlers that had not closed when the time to drain was over."""
    connections: int = 0
    connected: int = 0
    """Connections that there were."""
    in_flight: int = 0
    backoff_level: int = 0
    """Failures not yet outweighed by successes."""
    last_message: float = 0.0
    """Loop time of the last message, or of the start."""
    nsqds: list[Address] = field(default_factory=list)
