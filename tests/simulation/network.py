"""The network of the simulation: TCP between hosts by name, with latency and faults.

Bytes of one direction of a connection arrive in order. A link between two hosts may be cut, then
they wait as TCP sends them again; a host may vanish without a word, as when its power fails.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.loop import SimulatedLoop
    from tests.support.processes import Process

SOCKET_BUFFERS = 64 << 10
"""Bytes that systems hold between two processes before the sender has to wait."""
_FIRST_PORT = 50_000


class Network:
    """Who listens, who is connected, and which links are cut."""

    def __init__(self, loop: SimulatedLoop, rng: Random) -> None:
        self.loop = loop
        self.slowness = [0.0005]
        """Mean seconds for one way; the largest counts."""
        self.cuts = Counter[frozenset[str]]()
        """Pairs of hosts that do not reach each other, with the number of reasons."""
        self.down = Counter[str]()
        """Hosts without power."""
        self._rng = rng
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ends: list[End] = []
        self._ports = _FIRST_PORT
        self._stalled: list[tuple[str, str, Callable[[], None]]] = []

    @property
    def latency(self) -> float:
        """Mean seconds for one way."""
        return max(self.slowness)

    def reaches(self, one: str, other: str) -> bool:
        """Whether packets arrive."""
        return not (self.cuts[frozenset((one, other))] or self.down[one] or self.down[other])

    def travel(self, one: str, other: str, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` after the latency; while the link is cut, after that."""

        def arrived() -> None:
            if self.reaches(one, other):
                arrive()
            else:
                self._stalled.append((one, other, arrive))

        self.loop.outside(self.latency * 2 * self._rng.random(), arrived)

    def retry(self) -> None:
        """Send again what has waited for a link; call it when one was repaired."""
        stalled, self._stalled = self._stalled, []
        for one, other, arrive in stalled:
            self.travel(one, other, arrive)

    def listen(
        self, process: Process, factory: Callable[[], Any], host: str, port: int
    ) -> Listener:
        """Let a process accept connections; port 0 takes a free one."""
        if not port:
            self._ports += 1
            port = self._ports
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = Listener(self, process, factory, (host, port))
        self._listeners[host, port] = listener
        process.on_end.append(listener.close)
        return listener

    def unlisten(self, address: tuple[str, int], listener: Listener) -> None:
        """Refuse connections again."""
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    async def connect(
        self, process: Process, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[End, Any]:
        """Connect; raises ConnectionRefusedError where nobody listens, and hangs on a cut link."""
        made: asyncio.Future[End] = self.loop.create_future()
        self._ports += 1
        local, remote = (process.host, self._ports), (host, port)

        def arrive() -> None:
            listener = self._listeners.get(remote)
            if listener is None:
                self.travel(host, process.host, refuse)
                return
            ours, theirs = End(self, process, local, remote), None
            theirs = End(self, listener.process, remote, local)
            ours.peer, theirs.peer = theirs, ours
            self._ends += (ours, theirs)
            listener.process.context.run(self.loop.call_soon, theirs.begin, listener.factory)
            self.travel(host, process.host, lambda: accept(ours))

        def accept(end: End) -> None:
            if not process.alive or made.done():
                end.vanish()
                return
            process.context.run(self.loop.call_soon, accepted, end)

        def accepted(end: End) -> None:
            if made.done():
                end.vanish()
            else:
                made.set_result(end)

        def refuse() -> None:
            if process.alive and not made.done():
                error = ConnectionRefusedError(
                    errno.ECONNREFUSED, f"Connect call failed ('{host}', {port})"
                )
                made.set_exception(error)

        self.travel(process.host, host, arrive)
        end = await made
        end.begin(factory)
        return end, end.get_protocol()

    def ends_between(self, one: str, other: str = "") -> list[End]:
        """The open ends at a host, of connections to another one or to any."""
        return [
            end
            for end in self._ends
            if not end.over and end.local[0] == one and (not other or end.remote[0] == other)
        ]

    def ends_of(self, process: Process) -> list[End]:
        """The connections that a process has not closed."""
        return [e for e in self._ends if e.process is process and e._protocol and not e._closing]

    def forget(self, end: End) -> None:
        """An end is over."""
        if end in self._ends:
            self._ends.remove(end)

    def sizes(self) -> tuple[int, int]:
        """How many bytes a read returns at least and at most; some see a byte at a time."""
        return self._rng.choice(((1 << 18, 1 << 18), (1 << 18, 1 << 18), (1, 4000), (1, 400)))

    def some(self, least: int, most: int) -> int:
        """A size of a read."""
        return self._rng.randint(least, most)


class Listener:
    """A listening socket, as asyncio.Server has it."""

    def __init__(
        self,
        network: Network,
        process: Process,
        factory: Callable[[], Any],
        address: tuple[str, int],
    ) -> None:
        self.process = process
        self.factory = factory
        self._network = network
        self._address = address
        self.sockets = (_Socket(address),)

    def close(self) -> None:
        """Accept no more."""
        self._network.unlisten(self._address, self)

    def is_serving(self) -> bool:
        return True

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class _Socket:
    """What is asked of a socket beside its bytes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: object) -> None:
        """There are no options."""


class End(asyncio.Transport):
    """One end of a connection: what it sends is in ``outbox`` until the other end has read it."""

    peer: End

    def __init__(
        self, network: Network, process: Process, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        facts = {"sockname": local, "peername": remote, "socket": _Socket(local)}
        super().__init__(facts)
        self.local, self.remote = local, remote
        self.process = process
        self.over = False
        """Whether the system has closed it."""
        self._network = network
        self._loop = network.loop
        self._protocol: Any = None
        self._outbox = bytearray()
        self._inbox: deque[bytes] = deque()
        self._unread = 0
        self._ended_out = self._ended_in = self._eof_sent = False
        self._closing = self._reading_paused = self._writing_paused = False
        self._flying = False
        self._lost = False
        self._scheduled = False
        self._high, self._low = 64 << 10, 16 << 10
        self._sizes = network.sizes()
        process.on_end.append(self._process_ended)

    def begin(self, factory: Callable[[], Any]) -> None:
        """Give it the process's protocol."""
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._pump()

    # Of asyncio.Transport

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._pump()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, len(self._outbox) + self.peer._unread - SOCKET_BUFFERS)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._closing or self._ended_out or self.over:
            return
        self._outbox += data
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()
        self._send()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._ended_out = True
        self._send()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._ended_out = True
        if self._eof_sent:
            self._close_socket()
        self._send()
        self._drained()

    def abort(self) -> None:
        self._outbox.clear()
        self._closing = True
        if not self.over:
            self._close_socket()
            self._reset_peer()
        self._lose(None)

    # Of the system

    def vanish(self) -> None:
        """Close what nobody has accepted."""
        self._close_socket()
        self._reset_peer()

    def _close_socket(self) -> None:
        self.over = True
        self._network.forget(self)

    def break_off(self) -> None:
        """A router has forgotten the connection: both sides are reset."""
        self._loop.outside(0.0, self._reset)
        self._loop.outside(0.0, self.peer._reset)

    def lose_power(self) -> None:
        """The host is gone, and the other side is not told."""
        self._close_socket()

    def _process_ended(self) -> None:
        if self.over:
            return
        self._closing = True
        if self._unread:  # as the system does when there is something to read
            self._outbox.clear()
            self._close_socket()
            self._reset_peer()
        elif self._eof_sent:
            self._close_socket()
        else:
            self._ended_out = True
            self._send()

    def _send(self) -> None:
        """Let what is to be sent travel, as much as the other side has room for."""
        if self._flying or self.over:
            return
        size = min(len(self._outbox), max(0, SOCKET_BUFFERS - self.peer._unread))
        if not size and not (self._ended_out and not self._outbox and not self._eof_sent):
            return
        data = bytes(self._outbox[:size])
        eof = self._ended_out and size == len(self._outbox)
        self._flying = True

        def arrive() -> None:
            self._flying = False
            if self.peer.over:
                self._reset_by_peer()
                return
            del self._outbox[:size]
            self.peer._arrived(data)
            if eof and not self._eof_sent and not self._outbox:
                self._eof_sent = True
                self.peer._arrived_end()
                if self._closing:
                    self._close_socket()
            self._writable()
            self._send()

        self._network.travel(self.local[0], self.remote[0], arrive)

    def _reset_by_peer(self) -> None:
        """What was sent came to nobody: a reset, unless the host is gone."""
        if not self._network.down[self.remote[0]]:
            self._network.travel(self.remote[0], self.local[0], self._reset)

    def _writable(self) -> None:
        if self._writing_paused and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self._schedule(self._protocol.resume_writing)
        if self._closing:
            self._drained()

    def _drained(self) -> None:
        if self._closing and not self._outbox:
            self._lose(None)

    def _arrived(self, data: bytes) -> None:
        least, most = self._sizes
        while data:
            size = self._network.some(least, most)
            self._inbox.append(data[:size])
            self._unread += len(data[:size])
            data = data[size:]
        self._pump()

    def _arrived_end(self) -> None:
        self._ended_in = True
        self._pump()

    def _pump(self) -> None:
        """Let the process read."""
        if self._scheduled or self._protocol is None or self._lost:
            return
        if (self._inbox or self._ended_in) and not self._reading_paused:
            self._scheduled = True
            self._schedule(self._read)

    def _schedule(self, callback: Callable[..., object], *args: object) -> None:
        self.process.context.run(self._loop.call_soon, callback, *args)

    def _read(self) -> None:
        self._scheduled = False
        if self._lost or self._reading_paused:
            return
        if self._inbox:
            data = self._inbox.popleft()
            self._unread -= len(data)
            self.peer._send()
            if not self._closing:
                self._give(data)
        elif self._ended_in:
            self._ended_in = False
            if not self._closing and not self._protocol.eof_received():
                self.close()
            return
        self._pump()

    def _give(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            buffer: Any = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def _reset_peer(self) -> None:
        peer = self.peer
        self._network.travel(self.local[0], self.remote[0], peer._reset)

    def _reset(self) -> None:
        if self.over:
            return
        self._close_socket()
        self._inbox.clear()
        self._outbox.clear()
        self._closing = True
        self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _lose(self, error: Exception | None) -> None:
        """Tell the protocol, once."""
        if not self._lost:
            self._lost = True
            if self._protocol is not None:
                self._schedule(self._end_protocol, error)

    def _end_protocol(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
