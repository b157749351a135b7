"""A connection over real sockets, with everything that goes wrong on them."""

# size: the faults of a connection share their servers

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from nsqtools.config import ConsumerConfig, ProducerConfig
from nsqtools.engine import consumer as consumer_module
from nsqtools.engine.connector import Subscription
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.producer import Producer
from nsqtools.engine.totals import ConsumerStats
from nsqtools.errors import ConnectionLostError, PeerError, ServerError, UnreachableError
from nsqtools.names import Address
from nsqtools.net import connection as connection_module
from nsqtools.net.connection import Connection, Listener
from nsqtools.net.tcp import close
from nsqtools.proto.codecs import Codec, Deflate, Snappy
from nsqtools.proto.messages import Message
from tests.support import wire
from tests.support.cancelling import Counted
from tests.support.clock import elapse, virtual
from tests.support.eventually import eventually_async
from tests.support.proxy import Cut, Faults, Proxy
from tests.support.scripted import Network, Recorder, undisturbed
from tests.support.servers import free_port
from tests.support.tls import Certificates
from tests.support.transport import FakeTransport

# Fixed texts, so that the dialogue has the same length in every run.
SMALL: dict[str, Any] = {"client_id": "x", "hostname": "x", "user_agent": "x"}
QUICK: dict[str, Any] = {"reconnect_delay": 0.001, "max_reconnect_delay": 0.001}
BODIES = [b"one", b"two\n", b"\0" * 40]


class Server:
    """A small nsqd: one channel; what a lost client had in flight comes again at once."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.finished: set[bytes] = set()
        self.all_finished = asyncio.Event()
        self.published: list[str] = []
        self._queue: deque[int] = deque()
        self._bodies: dict[int, bytes] = {}
        self._tls = tls
        self._arrived = asyncio.Event()

    def load(self, bodies: list[bytes]) -> None:
        self.finished.clear()
        self.all_finished.clear()
        self.published.clear()
        self._bodies = dict(enumerate(bodies))
        self._queue = deque(self._bodies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        in_flight: set[int] = set()
        try:
            await self._talk(reader, writer, in_flight)
        except (OSError, ValueError):
            pass  # cut
        finally:
            self._queue.extendleft(sorted(in_flight, reverse=True))
            self._arrived.set()
            writer.transport.abort()

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, in_flight: set[int]
    ) -> None:
        rest, codec, ready, subscribed = b"", None, 0, False
        while data := await reader.read(65536):
            plain = b"".join(codec.decode(data)) if codec else data
            found, rest = wire.split_commands(rest + plain)
            out, chosen = b"", codec
            for name, _, args in (command.partition(" ") for command in found):
                match name:
                    case "IDENTIFY":
                        features, chosen = self._negotiate(args)
                        writer.write(features)
                        if b'"tls_v1": true' in features and self._tls:
                            await writer.start_tls(self._tls)
                            writer.write(wire.OK)
                        out += wire.OK if chosen else b""
                        codec = chosen
                    case "SUB":
                        subscribed = True
                        out += wire.OK
                    case "RDY":
                        ready = int(args)
                    case "FIN":
                        in_flight.discard(int(args, 16))
                        self.finished.add(self._bodies[int(args, 16)])
                        if len(self.finished) == len(self._bodies):
                            self.all_finished.set()
                    case "CLS":
                        ready = 0
                        out += wire.CLOSE_WAIT
                    case "PUB" | "MPUB":
                        self.published.append(args)
                        out += wire.OK
            while subscribed and self._queue and ready > len(in_flight):
                number = self._queue.popleft()
                in_flight.add(number)
                out += wire.message(number, self._bodies[number])
            if out:
                writer.write(codec.encode(out) if codec else out)
                await writer.drain()

    def _negotiate(self, body: str) -> tuple[bytes, Codec | None]:
        codec: Codec | None = None
        if '"snappy": true' in body:
            codec = Snappy()
        elif '"deflate": true' in body:
            codec = Deflate()
        tls = '"tls_v1": true' in body
        features = {"snappy": isinstance(codec, Snappy), "deflate": isinstance(codec, Deflate)}
        return wire.negotiated(tls_v1=tls, **features), codec


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
) -> AsyncIterator[Address]:
    async with undisturbed():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield Address(*server.sockets[0].getsockname())
        finally:
            await close(server)
            await asyncio.sleep(0)


class Plan:
    """The faults of the next connection; all after it have none."""

    def __init__(self) -> None:
        self.next: Faults | None = None
        self.met = False

    def __iter__(self) -> Iterator[Faults]:
        while True:
            faults, self.next = self.next or Faults(), None
            yield faults


async def drain(address: Address, server: Server, config: ConsumerConfig) -> ConsumerStats:
    """Consume until the server has a FIN for every message; raises what the consumer raises."""
    subscription = Subscription(topic="t", channel="c", nsqds=(address,))
    recorder = Recorder()
    consumer = Consumer(subscription, recorder, config)
    async with asyncio.timeout(60):
        task = asyncio.create_task(consumer.run())
        finished = asyncio.create_task(server.all_finished.wait())
        await asyncio.wait([task, finished], return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        consumer.stop()
        return await task


def cut_after(direction: str, offset: int, cut: Cut) -> Faults:
    if direction == "up":
        return Faults(cut_up_after=offset, cut=cut)
    return Faults(cut_down_after=offset, cut=cut)


async def cut_everywhere(
    address: Address, server: Server, config: ConsumerConfig, *, cut: Cut, step: int
) -> tuple[int, int]:
    """How many cuts ended the start with an error, and how many were lived through."""
    plan = Plan()
    failed = survived = 0
    texts: list[str] = []
    async with Proxy(address, plan) as proxy:
        for direction in ("up", "down"):
            offset = 0
            while True:
                plan.next = cut_after(direction, offset, cut)
                before = proxy.connections
                server.load(BODIES)
                try:
                    await drain(proxy.address, server, config)
                    assert server.finished == set(BODIES)
                    survived += 1
                except UnreachableError as error:
                    texts.append(str(error))
                    failed += 1
                if proxy.connections == before + 1 and server.finished == set(BODIES):
                    break  # nothing was cut
                offset += step
    assert all(text.startswith(f"{proxy.address}: ") for text in texts), texts
    return failed, survived


@pytest.mark.parametrize("cut", ["rst", "fin"])
async def test_a_cut_at_any_byte_is_an_error_at_the_start_and_survived_later(
    cut: Cut, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(consumer_module, "_LINGER", 0.0)  # a thousand times
    server = Server()
    config = ConsumerConfig(max_in_flight=5, **SMALL, **QUICK)
    step = 1 if full else 5
    async with serving(server.serve) as address:
        failed, survived = await cut_everywhere(address, server, config, cut=cut, step=step)
    assert failed > 400 / step
    assert survived > 200 / step


@pytest.mark.parametrize("cut", ["rst", "fin"])
@pytest.mark.parametrize(
    "options",
    [{"tls_v1": True}, {"snappy": True}, {"deflate": True}, {"tls_v1": True, "deflate": True}],
    ids="+".join,
)
async def test_so_are_cuts_of_a_secured_or_compressed_connection(
    options: dict[str, Any], cut: Cut, certificates: Certificates, full: bool
) -> None:
    server = Server(certificates.server.context())
    if "tls_v1" in options:
        options = {**options, "tls_root_ca_file": str(certificates.ca)}
    config = ConsumerConfig(max_in_flight=5, **SMALL, **QUICK, **options)
    async with serving(server.serve) as address:
        step = 23 if full else 53
        failed, survived = await cut_everywhere(address, server, config, cut=cut, step=step)
    assert failed > 460 / step
    assert survived > 115 / step


async def test_a_secured_connection_that_is_cancelled_anywhere_is_closed(
    certificates: Certificates,
) -> None:
    config = ConsumerConfig(tls_v1=True, tls_root_ca_file=str(certificates.ca), **SMALL)
    point = points = 0

    async def work() -> None:
        connection = await Connection.open(address, config)
        await connection.close()

    def tick() -> None:
        nonlocal points
        points += 1
        if points == point:
            task.cancel()

    async with serving(Server(certificates.server.context()).serve) as address:
        before = asyncio.all_tasks()
        while points >= point:
            point, points = point + 1, 0
            task: asyncio.Task[None] = asyncio.Task(Counted(work(), tick))
            await asyncio.wait([task])
            assert task.cancelled() == (points >= point)
            # The server's tasks end when it sees the end of their connections.
            await eventually_async(lambda: asyncio.all_tasks() == before)
    assert point > 4


@pytest.mark.parametrize("cut", ["rst", "fin"])
async def test_a_publish_cut_at_any_byte_arrives_all_the_same(cut: Cut, full: bool) -> None:
    server = Server()
    config = ProducerConfig(**SMALL, **QUICK)
    plan, step = Plan(), 1 if full else 5
    failed = survived = 0
    async with serving(server.serve) as address, Proxy(address, plan) as proxy:
        for direction in ("up", "down"):
            offset, cuts = 0, True
            while cuts:
                plan.next = cut_after(direction, offset, cut)
                before = proxy.connections
                server.load([])
                try:
                    async with asyncio.timeout(60), Producer([proxy.address], config) as producer:
                        await producer.publish("t", [b"one", b"two"])
                        await producer.publish("t", [b"three"])
                    assert set(server.published) == {"t [b'one', b'two']", "t b'three'"}
                    survived += 1
                except UnreachableError:
                    failed += 1
                cuts = proxy.connections > before + 1 or len(server.published) < 2
                offset += step
    assert failed > 400 / step
    assert survived > 50 / step


class Owner(Listener):
    """A listener that remembers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures: list[ServerError] = []
        self.ends: list[PeerError | None] = []

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        self.messages += messages

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        self.failures.append(error)

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        self.ends.append(error)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_HANDSHAKE_TIMEOUT", 0.05)
    async with serving(say_nothing) as address:
        with pytest.raises(UnreachableError, match=f"^{address}: ") as caught:
            await Connection.open(address, ConsumerConfig(), Owner())
    assert caught.value.reason == "silence"


async def failure(
    address: Address, resolved: Sequence[str] | socket.gaierror, **options: Any
) -> UnreachableError:
    """Why there is no connection to a name that is resolved to these."""

    async def resolve(*_: object, **__: object) -> list[Any]:
        if isinstance(resolved, socket.gaierror):
            raise resolved
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, address.port)) for host in resolved
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        with pytest.raises(UnreachableError) as caught:
            await Connection.open(address, ConsumerConfig(**options), Owner())
    assert type(caught.value) is UnreachableError
    assert str(caught.value).startswith(f"{address}: ")
    return caught.value


@pytest.mark.parametrize("options", [{}, {"tls_v1": True}], ids="+".join)
async def test_a_port_where_nobody_listens_is_a_refused_connection(options: dict[str, Any]) -> None:
    address = Address("localhost", free_port())
    for resolved in (["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
        error = await failure(address, resolved, **options)
        assert (error.text, error.reason) == (os.strerror(errno.ECONNREFUSED).lower(), "dial")


async def test_a_name_that_does_not_resolve_is_named() -> None:
    unknown = socket.gaierror(-2, "Name or service not known")
    error = await failure(Address("nsqd.test", 4150), unknown)
    assert "'nsqd.test'" in error.text
    assert error.reason == "name"


@pytest.mark.parametrize("tls", [False, True])
async def test_the_last_commands_are_read_before_the_connection_ends(
    tls: bool, certificates: Certificates
) -> None:
    server = Server(certificates.server.context())
    server.load([b"%d" % n for n in range(2000)])
    options: dict[str, Any] = (
        {"tls_v1": True, "tls_root_ca_file": str(certificates.ca)} if tls else {}
    )
    owner = Owner()
    async with serving(server.serve) as address:
        connection = await Connection.open(
            address, ConsumerConfig(**options), owner, subscription=("t", "c")
        )
        connection.set_ready(2500)
        await eventually_async(lambda: len(owner.messages) == 2000)
        connection.settle(finish=[message.id for message in owner.messages])
        await connection.close()
        await eventually_async(lambda: len(server.finished) == 2000)
    assert owner.ends == [None]
    assert connection.is_lost


async def test_a_server_that_stops_reading_is_dropped(certificates: Certificates) -> None:
    stopped = asyncio.Event()

    async def stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(wire.negotiated())
        cast("asyncio.Transport", writer.transport).pause_reading()
        await stopped.wait()
        writer.transport.abort()

    owner = Owner()
    config = ProducerConfig(write_timeout=0.1)
    async with serving(stop_reading) as address:
        connection = await Connection.open(address, config, owner)
        with pytest.raises(ConnectionLostError) as caught:
            await connection.request(b"x" * (64 << 20))
        stopped.set()
    assert [str(end) for end in owner.ends] == [str(caught.value)]


@virtual
async def test_a_server_that_reads_slowly_is_not_dropped() -> None:
    transports = []

    async def dial(factory: Callable[[], asyncio.Protocol], *_: object, **__: object) -> object:
        transport = FakeTransport(protocol := factory())
        transports.append(transport)
        transport.connect()
        transport.deliver(wire.negotiated())
        return transport, protocol

    loop = asyncio.get_running_loop()
    loop.create_connection = dial  # type: ignore[assignment,method-assign]
    async with undisturbed():
        config = ProducerConfig(write_timeout=1, read_timeout=300)
        connection = await Connection.open(Address("a", 1), config, Owner())
        (transport,) = transports
        transport.stall()
        reply = connection.request(b"x" * (2 << 20))
        for _ in range(100):
            await elapse(0.9)
            transport.drain(1)
        assert not reply.done()
        transport.unstall()
        await elapse(100)
        assert not reply.done()
        transport.stall()
        late = connection.request(b"x" * (2 << 20))
        for unanswered in (reply, late):
            with pytest.raises(ConnectionLostError):
                await unanswered


async def test_an_error_of_nsqd_answers_the_oldest_request_and_ends_the_others() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(wire.negotiated())
        await reader.readuntil(b"third")
        writer.write(wire.OK + wire.error("E_BAD_TOPIC no") + wire.OK)
        writer.close()

    owner = Owner()
    async with serving(refuse) as address:
        connection = await Connection.open(address, ProducerConfig(), owner)
        replies = [connection.request(word) for word in (b"first", b"second", b"third", b"fourth")]
        results = await asyncio.gather(*replies, return_exceptions=True)
        with pytest.raises(ConnectionLostError):
            connection.request(b"late")
    assert results[0] == b"OK"
    assert all("E_BAD_TOPIC no" in str(result) for result in results[1:])
    assert [type(result) for result in results[1:]] == [ServerError] + [ConnectionLostError] * 2
    assert len(owner.ends) == 1


async def test_a_connection_may_start_from_a_chosen_local_address() -> None:
    peers = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[0])
        await hang_up(reader, writer)

    async with serving(note) as address:
        with pytest.raises(UnreachableError):
            await Connection.open(address, ConsumerConfig(local_addr="127.0.0.2"), Owner())
    assert peers == ["127.0.0.2"]


@virtual
async def test_a_connection_is_lost_as_soon_as_nothing_is_sent_over_it() -> None:
    for end in (Connection.abort, Connection.close):
        async with undisturbed():
            nsqd = Network().nsqd()
            connection = await Connection.open(nsqd.address, ConsumerConfig())
            connection.stop_messages()
            assert not connection.is_lost
            ending = asyncio.ensure_future(end(connection) or asyncio.sleep(0))
            await asyncio.sleep(0)
            assert connection.is_lost
            await ending
            assert connection.is_lost
