"""A TCP server with a coroutine per connection, stoppable at any time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

MAX_CONNECTIONS = 250
"""Maximum connections of a server, to save file descriptors. A further connection replaces the
connection idle longest; if no connection is idle, the new connection is closed.
"""


@contextlib.contextmanager
def naming(address: Address) -> Iterator[None]:
    """Add the address to an OSError, as its ``filename``."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        text = os.strerror(number) if number > 0 else str(error)
        raise OSError(number, text, str(address)) from error


def bound(server: asyncio.Server) -> Address:
    """The listening address of a server."""
    return Address(*server.sockets[0].getsockname()[:2])


def listening_socket(address: Address) -> socket.socket:
    """Bind and listen; port 0 means any free port.

    Raises OSError with the address as ``filename``.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with naming(address):
        return socket.create_server(address, family=family, backlog=1024)


def cannot_listen(option: str, address: Address, error: Exception) -> ConfigError:
    """Return the error about the address of an option, for one of ``listening_socket``."""
    number = error.errno if isinstance(error, OSError) else -1
    # Python 3.13 gives no number for an address of another machine.
    number = number or errno.EADDRNOTAVAIL
    reason = os.strerror(number).lower() if number > 0 else "no such host"
    return ConfigError(
        f"{option}: cannot listen on {address}: {reason}; give another address, or port 0 for a "
        "free one"
    )


def name_of(host: str) -> str:
    """The host name for clients: the name of this machine if ``host`` is a wildcard address."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - not bound


def peer_address(writer: asyncio.StreamWriter | asyncio.BaseTransport) -> Address:
    """The address of the client; the host is empty if the connection has already ended."""
    return Address(*(writer.get_extra_info("peername") or ("", 0))[:2])


async def close(server: asyncio.Server | None) -> None:
    """Stop listening, once the tasks of just accepted connections have begun.

    asyncio never closes a connection still being made when its server closes, and a task that is
    cancelled before it has begun cannot close its connection.
    """
    if server:
        for each in server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        await asyncio.sleep(0)
        server.close()


class StreamServer:
    """Runs ``serve`` for each connection; ``address`` is the bound address."""

    def __init__(self, serve: Serve) -> None:
        self.address = Address("", 0)
        self._serve = serve
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 means any free port. Raises OSError with the address as ``filename``."""
        with naming(Address(host, port)):
            self._server = await asyncio.start_server(self._accept, host, port)
        self.address = bound(self._server)

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        self._stopped = True
        await close(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server:
            await self._server.wait_closed()

    def set_idle(self, idle: bool) -> None:
        """Note whether the current task's connection may be closed to make room for another.

        A new connection is not idle.
        """
        task = asyncio.current_task()
        assert task
        self._idle.pop(task, None)
        if idle:
            self._idle[task] = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = len(self._tasks) >= MAX_CONNECTIONS
        if self._stopped or (is_full and not self._idle):
            writer.transport.abort()
            return
        if is_full:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.cancel()
        task = asyncio.get_running_loop().create_task(self._run(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle.pop(task, None)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
            writer.close()
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise
