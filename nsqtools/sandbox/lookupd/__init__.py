"""The embedded nsqlookupd: its TCP and HTTP ports and its registry."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from nsqtools.clock import wall_ns
from nsqtools.names import Address
from nsqtools.net.http.server import serve
from nsqtools.net.tcp import StreamServer, name_of
from nsqtools.sandbox.http_api import VERSION
from nsqtools.sandbox.lookupd.lookupd_http import lookupd_api
from nsqtools.sandbox.lookupd.lookupd_tcp import converse
from nsqtools.sandbox.lookupd.registrations import Registrations


class Nsqlookupd:
    """An nsqlookupd in this event loop; timeouts are in seconds.

    ``tcp`` and ``http`` are the bound addresses after ``start``. nsqds query channels at the
    broadcast address, by default the address that nsqlookupd listens on.
    """

    def __init__(
        self,
        *,
        broadcast_address: str = "",
        inactive_producer_timeout: float = 300.0,
        tombstone_lifetime: float = 45.0,
    ) -> None:
        self.registry = Registrations(inactive_producer_timeout, tombstone_lifetime)
        self.tcp = self.http = Address("", 0)
        self._broadcast_address = broadcast_address
        self._tcp_server = StreamServer(partial(converse, self))
        self._http_server: StreamServer | None = None

    async def start(self, host: str, tcp_port: int, http_port: int) -> None:
        """Listen; port 0 picks a free port. Call ``stop`` even if this fails.

        Raises OSError with the address as its ``filename``.
        """
        self._broadcast_address = self._broadcast_address or name_of(host)
        self._http_server = await serve(lookupd_api(self), host, http_port)
        self.http = self._http_server.address
        await self._tcp_server.start(host, tcp_port)
        self.tcp = self._tcp_server.address

    async def stop(self) -> None:
        """Close all connections and forget their registrations."""
        await self._tcp_server.stop()
        if self._http_server:
            await self._http_server.stop()

    def info(self) -> dict[str, Any]:
        """Return the response to IDENTIFY."""
        return {
            "broadcast_address": self._broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http.port,
            "tcp_port": self.tcp.port,
            "version": VERSION,
        }

    @property
    def now(self) -> int:
        """The time in nanoseconds since the epoch."""
        return wall_ns()
