"""The listener of a connection that nothing is to come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqtools.errors import PeerError, ServerError
    from nsqtools.net.connection import Connection
    from nsqtools.proto.messages import Message


class Nobody:
    """As Listener; hears nothing."""

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """Nothing."""

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """Nothing."""

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """Nothing."""
