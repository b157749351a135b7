"""The counters of a consumer."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class ConsumerStats:
    """Totals since the start, and the present state of the connections.

    For example::

        stats = consumer.stats()
        print(f"{stats.finished} of {stats.received} messages finished")
        print(f"{stats.in_flight} in flight on {stats.connections} connections")
    """

    received: int = 0
    received_bytes: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    too_late: int = 0
    """Timed-out messages: nsqd refused their FIN or REQ, or the consumer forgot them before."""
    abandoned: int = 0
    """Consumers with a handler that did not end its batch, drain or close within drain_timeout."""
    failing: int = 0
    """Messages on which the handler failed since it last finished one; nsqd redelivers them."""
    unconfirmed: int = 0
    """Connections ended with unconfirmed last FINs: nsqd may redeliver their messages."""
    connections: int = 0
    connected: int = 0
    """Connections made since the start."""
    in_flight: int = 0
    backoff_level: int = 0
    """The backoff level: failures minus successes, at least 0."""
    last_message: float = 0.0
    """Event loop time of the last message, or of the start."""

    def follow(self, later: ConsumerStats) -> None:
        """Add the counters of a later consumer of the same topic."""
        if later.finished:
            self.failing = 0
        self.add(later)

    def add(self, other: ConsumerStats) -> None:
        """Add another consumer's counters; keep the higher level and the later last_message."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.backoff_level = max(self.backoff_level, other.backoff_level)
        if other.received:  # otherwise other.last_message is the time of its start
            self.last_message = max(self.last_message, other.last_message)


_COUNTERS = [each.name for each in fields(ConsumerStats) if type(each.default) is int]
_COUNTERS.remove("backoff_level")
