"""A consumer's side of one connection: the facts RDY is planned by, and settling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.policy.rdy import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.consumer import Consumer
    from nsqtools.errors import PeerError, ServerError
    from nsqtools.names import Address
    from nsqtools.net.connection import Connection
    from nsqtools.proto.messages import Message


class Link:
    """Listens to a connection and settles its batches."""

    __slots__ = (
        "_fresh",
        "_last_message",
        "_owner",
        "_rdy_since",
        "_served",
        "address",
        "connection",
        "stale",
    )

    connection: Connection

    def __init__(self, owner: Consumer, address: Address) -> None:
        self.address = address
        self.stale = False
        self._owner = owner
        self._fresh = True
        self._last_message = self._rdy_since = 0.0
        self._served = float("-inf")

    def opened(self, now: float) -> None:
        """The connection is made."""
        self._last_message = self._rdy_since = now

    def peer(self) -> Peer:
        """The facts of now."""
        connection = self.connection
        return Peer(
            address=self.address,
            rdy=connection.ready,
            max_rdy=connection.features.max_rdy_count,
            in_flight=connection.in_flight,
            received=connection.received,
            counts_down=connection.features.counts_rdy_down,
            fresh=self._fresh,
            last_message=self._last_message,
            rdy_since=self._rdy_since,
            served=self._served,
            closing=connection.closing,
        )

    def set_ready(self, count: int, now: float) -> None:
        """Send RDY and note since when it holds."""
        if count or self.connection.ready:
            self._served = now
        if count != self.connection.ready:
            self._rdy_since = now
        self.stale = False
        self.connection.set_ready(count)

    def needs_plan(self, now: float) -> bool:
        """Note a read with messages, and say whether it may have changed what RDY should be."""
        self._last_message = now
        connection = self.connection
        if self._fresh:
            self._fresh = False
            return True
        return (
            self.stale
            or connection.in_flight > connection.ready
            or (
                connection.features.counts_rdy_down
                and 4 * connection.received >= 3 * connection.ready
            )
        )

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """As Listener."""
        self._owner.received(self, messages)

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """As Listener."""
        self._owner.too_late(error)

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """As Listener."""
        self._owner.lost(self, error)

    def finish(self, messages: Sequence[Message]) -> None:
        """As Settle. What a lost connection delivered comes again; its FIN goes nowhere."""
        if not self.connection.is_lost:
            self._owner.settled(finished=len(messages))
            self.connection.settle(finish=[message.id for message in messages])
            self._settled()

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        """As Settle."""
        if self.connection.is_lost:
            return
        if backoff:
            self._owner.settled(failed=len(messages))
        else:
            self._owner.settled(requeued=len(messages))
        if delay is None:
            requeue_ms = self._owner.requeue_ms
            delays = [(message.id, requeue_ms(message.attempts)) for message in messages]
        else:
            delays = [(message.id, max(0, round(delay * 1000))) for message in messages]
        self.connection.settle(requeue=delays)
        self._settled()

    def touch(self, messages: Sequence[Message]) -> None:
        """As Settle."""
        self._owner.touched(len(messages))
        self.connection.settle(touch=[message.id for message in messages])

    def forget(self, messages: Sequence[Message]) -> None:
        """As Settle."""
        if not self.connection.is_lost:
            self.connection.in_flight -= len(messages)
            self._settled()

    def _settled(self) -> None:
        """A connection that rests may take part again once little is in flight."""
        if not self.connection.ready:
            self._owner.plan()
