"""Serves the application with uvicorn, until it is cancelled."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nsqtools.names import Address
from nsqtools.net.tcp import cannot_listen, listening_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

MAX_CONNECTIONS = 900  # with more, requests are answered with 503
_MAX_REFUSED = 100  # connections beyond these are closed at once
_MAX_HEAD = 16 << 10
_HEAD_TIMEOUT = 10.0  # seconds for the head of a request; uvicorn itself waits forever


class PatientProtocol(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request; beyond all limits, refuse the connection."""
        super().connection_made(transport)
        self._seen: object = None
        self._unread = 0
        self._wait()
        if len(self.connections) > MAX_CONNECTIONS + _MAX_REFUSED:
            transport.abort()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(_HEAD_TIMEOUT, self._look)

    def _look(self) -> None:
        """Close the connection if it was idle for the whole time, or the client reads nothing."""
        is_idle = self.cycle is None or self.cycle.response_complete
        unread, self._unread = self._unread, self.transport.get_write_buffer_size()
        if unread and unread == self._unread:
            self.transport.abort()
            return
        if self.transport.is_closing() or (is_idle and self.cycle is self._seen):
            self.transport.close()
            return
        self._seen = self.cycle if is_idle else None
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._timer.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command."""
        yield

    async def shutdown(self, sockets: Any = None) -> None:
        """Cut what does not end soon, without uvicorn's traceback for each request."""
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)


class PageServer:
    """Listens at ``address`` from the start; raises ConfigError naming ``--address``."""

    def __init__(self, address: Address, app: ASGIApp) -> None:
        try:
            self._listener = listening_socket(address)
        except OSError as error:
            raise cannot_listen("--address", address, error) from error
        self.address = Address(*self._listener.getsockname()[:2])
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)

    async def serve(self) -> None:
        """Serve until ``stop`` or cancelled; what has not ended a second later is cut."""
        serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._listener])
        )
        try:
            await asyncio.shield(serving)
        finally:
            self.stop()
            await asyncio.wait([serving])

    def stop(self) -> None:
        """End ``serve``."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
