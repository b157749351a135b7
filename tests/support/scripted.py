"""nsqds in memory, on the virtual clock: real Consumers and Producers reach them and nothing else.

A ``Network`` answers the running loop's ``create_connection``, so everything from Connection up is
the real thing. Its nsqds keep to the rules of ``nsqd/protocol_v2.go`` and ``channel.go``: they
deliver within RDY, time messages out, close clients that fall silent, and record what they read.
"""

# size: one server, with the rules of nsqd

import ast
import asyncio
import contextlib
import gc
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.connector import NsqdFinder, Subscription
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.handler import Batch, Handler, Message
from nsqtools.engine.limit import MessageLimit
from nsqtools.names import Address
from tests.support import wire
from tests.support.clock import VirtualLoop, elapse
from tests.support.transport import FakeTransport

R = TypeVar("R", covariant=True)

HANDSHAKE = ("  V2", "IDENTIFY", "SUB", "AUTH", "NOP")


@contextlib.asynccontextmanager
async def undisturbed() -> AsyncIterator[None]:
    """Fails if a callback raised, or if a task's exception was never looked at."""
    problems: list[dict[str, Any]] = []

    def note(_: object, context: dict[str, Any]) -> None:
        # Python 3.11's own callback trips over a cancelled task of a server, here the proxy's.
        if "StreamReaderProtocol" not in context["message"]:
            problems.append(context)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(note)
    if outermost := not gc.get_freeze_count():
        gc.freeze()  # so that only what is made from here on is looked through
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    if outermost:
        gc.unfreeze()
    assert not problems, f"{len(problems)}, the first: {problems[0]}"


@dataclass(slots=True)
class Stored:
    """A message inside an nsqd; ``number`` is its id."""

    number: int
    body: bytes
    attempts: int = 0


@dataclass(slots=True, eq=False)
class Client:
    """One connection, as its nsqd sees it."""

    transport: FakeTransport
    ready: int = 0
    subscribed: bool = False
    closing: bool = False
    heartbeat: float = 30.0
    last_command: float = 0.0
    unread: bytes = b""
    in_flight: dict[int, tuple[Stored, asyncio.TimerHandle]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class ScriptedNsqd:
    """One nsqd with one channel. ``features`` are what it answers to IDENTIFY.

    ``log`` holds pairs of time and command, the last of a connection is "end of stream" or "abort";
    ids in it are plain numbers. The switches say what it
    does wrong: ``down`` refuses connections, ``hole`` never completes them, ``silent`` sends
    nothing any more, ``refuses`` gives the text of an E_* frame for a command or None, ``old``
    answers OK to IDENTIFY and counts RDY down, ``one_by_one`` sends each message in a read of its
    own, without ``answers`` a publish gets no OK, and it ``lingers`` for so many seconds, with one
    more heartbeat, before it hangs up on a client that did.
    """

    def __init__(self, address: Address, **features: object) -> None:
        self.address = address
        self.log: list[tuple[float, str]] = []
        self.published: list[list[bytes]] = []
        self.clients: list[Client] = []
        self.dials: list[float] = []
        self._ever: list[Client] = []
        self.down = self.hole = self.silent = self.old = self.one_by_one = False
        self.answers = True
        self.lingers = 0.0
        self.delivered = 0
        self.refuses: Callable[[str], str | None] = lambda _: None
        self._features = features
        self._msg_timeout = float(str(features.get("msg_timeout", 60_000))) / 1000
        self._queue: deque[Stored] = deque()
        self._numbers = 0
        self._loop = asyncio.get_running_loop()

    # The test's side

    def publish(self, *bodies: bytes, attempts: int = 0) -> None:
        """Put messages into the channel, as if delivered ``attempts`` times already."""
        for body in bodies:
            self._numbers += 1
            self._queue.append(Stored(self._numbers, body, attempts))
        self._loop.call_soon(self._pump)

    def send(self, data: bytes) -> None:
        """Send bytes to every client."""
        for client in tuple(self.clients):
            client.transport.deliver(data)

    def break_off(self) -> None:
        """Reset every connection."""
        for client in tuple(self.clients):
            self._forget(client)
            client.transport.lose(ConnectionResetError(104, "Connection reset by peer"))

    @property
    def commands(self) -> list[str]:
        """All but the handshakes and NOPs."""
        return [text for _, text in self.log if not text.startswith(HANDSHAKE)]

    @property
    def ready(self) -> int:
        """RDY of all connections."""
        return sum(client.ready for client in self.clients)

    @property
    def in_flight(self) -> int:
        """Messages that wait for FIN, REQ or their timeout; on lost connections as well."""
        return sum(len(client.in_flight) for client in self._ever)

    @property
    def depth(self) -> int:
        """Messages that wait; without those that are deferred."""
        return len(self._queue)

    # nsqd's side

    async def accept(self, protocol: asyncio.Protocol) -> FakeTransport:
        self.dials.append(self._loop.time())
        if self.hole:
            await self._loop.create_future()
        if self.down:
            raise ConnectionRefusedError(111, f"Connect call failed {tuple(self.address)}")
        transport = _Transport(protocol)
        client = Client(transport, last_command=self._loop.time())
        transport.on_write = lambda data: self._read(client, data)
        transport.on_end = lambda how: self._ended(client, how)
        self.clients.append(client)
        self._ever.append(client)
        transport.connect()
        return transport

    def _read(self, client: Client, data: bytes) -> None:
        found, client.unread = wire.split_commands(client.unread + data)
        for command in found:
            if client not in self.clients:
                return
            client.last_command = self._loop.time()
            text = _short(command)
            self.log.append((self._loop.time(), text))
            if error := self.refuses(text):
                self._answer(client, wire.error(error))
                if not error.startswith(("E_FIN", "E_REQ", "E_TOUCH")):
                    self._forget(client)
                    client.transport.deliver_eof()
                continue
            self._obey(client, command, text.split(" "))
        self._pump()

    def _obey(self, client: Client, command: str, words: Sequence[str]) -> None:
        match words:
            case ["IDENTIFY", *_]:
                body = json.loads(command.partition(" ")[2])
                client.heartbeat = body.get("heartbeat_interval", 30_000) / 1000
                self._answer(client, wire.OK if self.old else wire.negotiated(**self._features))
                self._beat(client)
            case ["AUTH", *_]:
                self._answer(client, wire.response(b'{"identity":"","permission_count":1}'))
            case ["SUB", *_]:
                client.subscribed = True
                self._answer(client, wire.OK)
            case ["RDY", count] if not client.closing:
                client.ready = int(count)
            case ["CLS"]:
                client.closing = True
                client.ready = 0
                self._answer(client, wire.CLOSE_WAIT)
            case ["FIN", number]:
                self._settle(client, int(number), "FIN")
            case ["REQ", number, delay]:
                if stored := self._settle(client, int(number), "REQ"):
                    self._loop.call_later(int(delay) / 1000, self._requeue, stored)
            case ["TOUCH", number]:
                if stored := self._settle(client, int(number), "TOUCH"):
                    self._start_timeout(client, stored)
            case [("PUB" | "DPUB"), *_] | ["MPUB", *_]:
                bodies = _bodies(command)
                self.published.append(bodies)
                if self.answers:
                    self._answer(client, wire.OK)

    def _pump(self) -> None:
        """Deliver what RDY allows; all of one connection's messages in one read."""
        for client in tuple(self.clients):
            frames = []
            while (
                client.subscribed
                and self._queue
                and not self.silent
                and client.ready > (0 if self.old else len(client.in_flight))
            ):
                stored = self._queue.popleft()
                stored.attempts += 1
                self._start_timeout(client, stored)
                client.ready -= self.old
                self.delivered += 1
                frames.append(wire.message(stored.number, stored.body, attempts=stored.attempts))
            for piece in frames if self.one_by_one else [b"".join(frames)]:
                if piece:
                    client.transport.deliver(piece)

    def _answer(self, client: Client, data: bytes) -> None:
        if not self.silent:
            client.transport.deliver(data)

    def _settle(self, client: Client, number: int, verb: str) -> Stored | None:
        if number not in client.in_flight:
            self._answer(client, wire.error(f"E_{verb}_FAILED {verb} {number:016x} failed"))
            return None
        stored, timer = client.in_flight.pop(number)
        timer.cancel()
        return stored

    def _start_timeout(self, client: Client, stored: Stored) -> None:
        timer = self._loop.call_later(self._msg_timeout, self._timed_out, client, stored)
        client.in_flight[stored.number] = stored, timer

    def _timed_out(self, client: Client, stored: Stored) -> None:
        del client.in_flight[stored.number]
        self._requeue(stored)

    def _requeue(self, stored: Stored) -> None:
        self._queue.append(stored)
        self._pump()

    def _beat(self, client: Client) -> None:
        """A heartbeat, unless the client has said nothing for two of them: then it is dropped."""
        if client not in self.clients:
            return
        now = self._loop.time()
        if now - client.last_command > 2 * client.heartbeat:
            self.log.append((now, "dropped a silent client"))
            self._forget(client)
            client.transport.deliver_eof()
            return
        if client.timer:
            self._answer(client, wire.HEARTBEAT)
        client.timer = self._loop.call_later(client.heartbeat, self._beat, client)

    def _ended(self, client: Client, how: str) -> None:
        """The client hung up; its messages in flight wait for their timeout."""
        if client in self.clients:
            self.log.append((self._loop.time(), how))
            self._forget(client)
            if self.lingers:
                client.transport.deliver(wire.HEARTBEAT)
            self._loop.call_later(self.lingers, client.transport.deliver_eof)

    def _forget(self, client: Client) -> None:
        self.clients.remove(client)
        if client.timer:
            client.timer.cancel()


class Network:
    """All nsqds of a test; made inside the running loop."""

    def __init__(self) -> None:
        self.nsqds: dict[Address, ScriptedNsqd] = {}
        loop = asyncio.get_running_loop()
        loop.create_connection = self._create_connection  # type: ignore[assignment,method-assign]

    def nsqd(self, name: str = "nsqd", **features: object) -> ScriptedNsqd:
        """Add an nsqd at ``name:4150``."""
        address = Address(name, 4150)
        self.nsqds[address] = ScriptedNsqd(address, **features)
        return self.nsqds[address]

    async def _create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        protocol = factory()
        return await self.nsqds[Address(host, port)].accept(protocol), protocol


class Recorder(Handler):
    """A handler that notes what it sees and when, and then does as ``act`` says.

    ``seen`` and ``given_up`` hold (number, attempts); without ``act`` a body of b"bad" raises.
    """

    def __init__(self, act: Callable[[Batch], Awaitable[object]] | None = None) -> None:
        self.seen: list[tuple[int, int]] = []
        self.times: list[float] = []
        self.given_up: list[tuple[int, int]] = []
        self.batches: list[Batch] = []
        self.closed = 0
        self._act = act

    async def handle(self, batch: Batch) -> None:
        now = asyncio.get_running_loop().time()
        self.seen += _numbers(batch)
        self.times += [now] * len(batch)
        self.batches.append(batch)
        if self._act:
            await self._act(batch)
        elif any(message.body == b"bad" for message in batch):
            raise ValueError("bad body")

    async def close(self, *, at_once: bool = False) -> None:
        self.closed += 1

    async def gave_up(self, batch: Batch) -> None:
        self.given_up += _numbers(batch)


class ScriptedFinder(NsqdFinder):
    """Calls ``find`` with the URL of an nsqlookupd instead of asking it."""

    def __init__(self, find: Callable[[str], Awaitable[Iterable[Address]]]) -> None:
        super().__init__(ConsumerConfig())
        self._find = find

    async def find(self, lookupd: str, topic: str) -> Iterable[Address]:
        return await self._find(lookupd)


def consume(
    handler: Handler,
    *nsqds: ScriptedNsqd | Address,
    find: Callable[[str], Awaitable[Iterable[Address]]] | None = None,
    topic: str = "t",
    limit: MessageLimit | None = None,
    **options: Any,
) -> Consumer:
    """A consumer of channel c; ``options`` are ConsumerConfig's."""
    addresses = [nsqd.address if isinstance(nsqd, ScriptedNsqd) else nsqd for nsqd in nsqds]
    subscription = Subscription(
        topic=topic,
        channel="c",
        nsqds=() if find else tuple(addresses),
        lookupds=("lookupd:4161",) if find else (),
    )
    config = ConsumerConfig(**options)
    finder = ScriptedFinder(find) if find else None
    return Consumer(subscription, handler, config, rng=Random(1), finder=finder, limit=limit)


class Runs(Protocol[R]):
    """A Consumer or a Runner."""

    async def run(self) -> R: ...
    def stop(self) -> None: ...


@contextlib.asynccontextmanager
async def running(consumer: Runs[R]) -> AsyncIterator[asyncio.Task[R]]:
    """Runs the consumer until the block ends, and then sees it stop without a stray error."""
    async with undisturbed():
        task = asyncio.create_task(consumer.run())
        try:
            if isinstance(asyncio.get_running_loop(), VirtualLoop):
                await elapse(0.001)  # the first connections are made
            yield task
            consumer.stop()
            await task
        finally:
            task.cancel()


def _short(command: str) -> str:
    name, *rest = command.split(" ")
    if name in ("FIN", "REQ", "TOUCH"):
        return " ".join([name, str(int(rest[0], 16)), *rest[1:]])
    return command


def _numbers(messages: Iterable[Message]) -> list[tuple[int, int]]:
    return [(int(message.id, 16), message.attempts) for message in messages]


def _bodies(command: str) -> list[bytes]:
    """The bodies of a PUB, DPUB or MPUB in the text that ``wire`` makes of it."""
    head = 3 if command.startswith("DPUB") else 2
    found = ast.literal_eval(command.split(" ", head)[head])
    return found if isinstance(found, list) else [found]


class _Transport(FakeTransport):
    """Tells its nsqd when the client ends the connection."""

    on_end: Callable[[str], object]

    def write_eof(self) -> None:
        super().write_eof()
        self._loop.call_soon(self.on_end, "end of stream")

    def abort(self) -> None:
        super().abort()
        self._loop.call_soon(self.on_end, "abort")


def flatten(parts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """All bodies of ``published``."""
    return (body for part in parts for body in part)
