"""A connection over real sockets, with everything that goes wrong on them."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import pytest

from nsqtools.config import ConsumerConfig, ProducerConfig
from nsqtools.engine.consumer import Consumer, ConsumerStats
from nsqtools.engine.membership import Subscription
from nsqtools.engine.producer import Producer
from nsqtools.errors import (
    ConnectError,
    ConnectionLostError,
    HTTPPortError,
    NSQError,
    PeerError,
    ProtocolError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address
from nsqtools.net import connection as connection_module
from nsqtools.net.connection import Connection
from nsqtools.proto.codecs import Codec, Deflate, Snappy
from nsqtools.proto.messages import Message
from tests.support import wire
from tests.support.clock import virtual
from tests.support.proxy import Cut, Faults, Proxy
from tests.support.scripted import Recorder, undisturbed
from tests.support.servers import free_port
from tests.support.tls import Certificates
from tests.support.transport import FakeTransport

# Fixed texts, so that the dialogue has the same length in every run.
SMALL: dict[str, Any] = {"client_id": "x", "hostname": "x", "user_agent": "x"}
QUICK: dict[str, Any] = {"reconnect_delay": 0.001, "max_reconnect_delay": 0.001}
import os
STEP = int(os.environ.get("STEP", "23"))
BODIES = [b"one", b"two\n", b"\0" * 40]


class Server:
    """A small nsqd: one channel; what a lost client had in flight comes again at once."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.finished: set[bytes] = set()
        self.published: list[str] = []
        self._queue: deque[int] = deque()
        self._bodies: dict[int, bytes] = {}
        self._tls = tls
        self._arrived = asyncio.Event()

    def load(self, bodies: list[bytes]) -> None:
        self.finished.clear()
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
    address = Address("127.0.0.1", free_port())
    async with undisturbed():
        server = await asyncio.start_server(serve, *address)
        try:
            yield address
        finally:
            server.close()
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
    async with asyncio.timeout(20):
        task = asyncio.create_task(consumer.run())
        while not task.done() and len(server.finished) < len(BODIES):
            await asyncio.sleep(0.0005)
        consumer.stop()
        return await task


async def cut_everywhere(
    address: Address,
    server: Server,
    config: ConsumerConfig,
    *,
    cut: Cut,
    step: int = 1,
) -> tuple[int, int]:
    """How many cuts ended the start with an error, and how many were lived through."""
    plan = Plan()
    failed = survived = 0
    async with Proxy(address, plan) as proxy:
        for direction in ("up", "down"):
            offset = 0
            while True:
                plan.next = Faults(**{f"cut_{direction}_after": offset}, cut=cut)
                before = proxy.connections
                server.load(BODIES)
                try:
                    await drain(proxy.address, server, config)
                    assert server.finished == set(BODIES)
                    survived += 1
                except UnreachableError as error:
                    assert str(error).startswith(f"{proxy.address}: "), error
                    assert len(error.text) > 5
                    failed += 1
                if proxy.connections == before + 1 and server.finished == set(BODIES):
                    break  # nothing was cut
                offset += step
    return failed, survived


@pytest.mark.parametrize("cut", ["rst", "fin"])
async def test_a_cut_at_any_byte_is_an_error_at_the_start_and_survived_later(cut: Cut) -> None:
    server = Server()
    config = ConsumerConfig(max_in_flight=5, **SMALL, **QUICK)
    async with serving(server.serve) as address:
        failed, survived = await cut_everywhere(address, server, config, cut=cut)
    assert failed > 400
    assert survived > 200


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server.cert, certificates.server.key)
    return context


@pytest.mark.parametrize("cut", ["rst", "fin"])
@pytest.mark.parametrize(
    "options",
    [{"tls_v1": True}, {"snappy": True}, {"deflate": True}, {"tls_v1": True, "deflate": True}],
    ids="+".join,
)
async def test_so_are_cuts_of_a_secured_or_compressed_connection(
    options: dict[str, Any], cut: Cut, certificates: Certificates
) -> None:
    server = Server(server_context(certificates))
    if "tls_v1" in options:
        options = {**options, "tls_root_ca_file": str(certificates.ca)}
    config = ConsumerConfig(max_in_flight=5, **SMALL, **QUICK, **options)
    async with serving(server.serve) as address:
        failed, survived = await cut_everywhere(address, server, config, cut=cut, step=STEP)
    assert failed > 20
    assert survived > 5
