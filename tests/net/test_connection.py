"""A connection, with everything that goes wrong on sockets."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from nsqtools.config.connection import ConsumerConfig, ProducerConfig
from nsqtools.config.sandbox import NsqdOptions
from nsqtools.engine import consumer as consumer_module
from nsqtools.engine.handler import Batch
from nsqtools.errors import ConnectionLostError, PeerError, UnreachableError
from nsqtools.names import Address
from nsqtools.net.connection import Connection, Listener
from nsqtools.proto.messages import Message
from nsqtools.sandbox.nsqd import Nsqd, client_link
from nsqtools.sandbox.nsqd.channel import Channel
from tests.support.cancelling import Counted
from tests.support.clock import elapse, virtual
from tests.support.eventually import eventually_async
from tests.support.proxy import Cut, Faults, Proxy
from tests.support.scripted import Network, Recorder, consume, undisturbed
from tests.support.servers import free_port
from tests.support.tls import Certificates

# Fixed texts, so that the dialogue has the same length in every run.
SMALL: dict[str, Any] = {"client_id": "x", "hostname": "x", "user_agent": "x"}
QUICK: dict[str, Any] = {"reconnect_delay": 0.001, "max_reconnect_delay": 0.001}
BODIES = [b"one", b"two\n", b"\0" * 40]


@contextlib.asynccontextmanager
async def serving(certificates: Certificates) -> AsyncIterator[Nsqd]:
    """An nsqd of the sandbox, which offers TLS."""
    identity = certificates.server
    nsqd = Nsqd(NsqdOptions(tls_cert=str(identity.cert), tls_key=str(identity.key)))
    async with undisturbed():
        try:
            await nsqd.start(tcp_port=0)
            yield nsqd
        finally:
            await nsqd.stop()


def load(nsqd: Nsqd, bodies: list[bytes]) -> Channel:
    """The channel of a new topic with these messages."""
    topic = nsqd.broker.topic(f"t{len(nsqd.broker.topics)}")
    channel = topic.channel("c")
    topic.put(bodies, nsqd.now, 0.0)
    return channel


def is_empty(channel: Channel) -> bool:
    """Whether all is finished. What lost connections have in flight times out at once."""
    for message in channel.in_flight.values():
        if message.consumer not in channel.consumers:
            message.deadline = 0.0
    channel.expire(0.0)
    return not channel.depth and not channel.in_flight


async def cut_everywhere(
    nsqd: Nsqd, use: Callable[[Address], Awaitable[None]], cut: Cut, step: int
) -> tuple[int, int]:
    """How many cuts ended a use with an error, and how many were lived through."""
    survived = 0
    named: list[bool] = []
    for direction in ("cut_up_after", "cut_down_after"):
        offset = connections = 0
        while connections != 1:  # something was cut
            faults: dict[str, Any] = {direction: offset, "cut": cut}
            connections = 0
            async with Proxy(nsqd.tcp, [Faults(**faults)]) as proxy:
                try:
                    await use(proxy.address)
                    survived += 1
                    connections = proxy.connections
                except UnreachableError as error:
                    named.append(str(error).startswith(f"{proxy.address}: "))
            offset += step
    assert all(named)
    return len(named), survived


@pytest.mark.parametrize("cut", ["rst", "fin"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tls_v1": True},
        {"snappy": True},
        {"deflate": True},
        {"tls_v1": True, "deflate": True},
    ],
    ids="+".join,
)
async def test_a_cut_at_any_byte_is_an_error_at_the_start_and_survived_later(
    options: dict[str, Any],
    cut: Cut,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    full: bool,
) -> None:
    monkeypatch.setattr(consumer_module, "_LINGER", 0.0)  # hundreds of times
    ca = {"tls_root_ca_file": str(certificates.ca)} if "tls_v1" in options else {}

    async def drain(address: Address) -> None:
        channel = load(nsqd, BODIES)
        found: set[bytes] = set()

        async def keep(batch: Batch) -> None:
            found.update(message.body for message in batch)

        consumer = consume(
            Recorder(keep),
            address,
            topic=channel.topic.name,
            max_in_flight=5,
            **{**SMALL, **QUICK, **options, **ca},
        )
        task = asyncio.create_task(consumer.run())
        await eventually_async(lambda: task.done() or is_empty(channel))
        consumer.stop()
        await task
        assert found == set(BODIES)

    step = 7 if full else 41
    async with serving(certificates) as nsqd:
        failed, survived = await cut_everywhere(nsqd, drain, cut, step)
    assert failed > 400 / step
    assert survived > 115 / step


async def test_a_secured_connection_that_is_cancelled_anywhere_is_closed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_link, "_HANDSHAKE_TIMEOUT", 1e6)  # for clients that hang
    config = ConsumerConfig(tls_v1=True, tls_root_ca_file=str(certificates.ca), **SMALL)
    point = points = 0

    async def work() -> None:
        connection = await Connection.open(nsqd.tcp, config)
        await connection.close()

    def tick() -> None:
        nonlocal points
        points += 1
        if points == point:
            task.cancel()

    async with serving(certificates) as nsqd:
        while points >= point:
            point, points = point + 1, 0
            task: asyncio.Task[None] = asyncio.Task(Counted(work(), tick))
            await asyncio.wait([task])
            assert task.cancelled() == (points >= point)
            await eventually_async(lambda: not nsqd.links)
    assert point > 4


class Owner(Listener):
    """A listener that remembers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ends: list[PeerError | None] = []

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        self.messages += messages

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        self.ends.append(error)


@pytest.mark.parametrize("tls", [False, True])
async def test_it_begins_at_the_chosen_address_and_ends_after_the_last_commands_are_read(
    tls: bool, certificates: Certificates
) -> None:
    ca = str(certificates.ca) if tls else ""
    config = ConsumerConfig(local_addr="127.0.0.2", tls_v1=tls, tls_root_ca_file=ca)
    owner = Owner()
    async with serving(certificates) as nsqd:
        channel = load(nsqd, [b"%d" % n for n in range(2000)])
        connection = await Connection.open(
            nsqd.tcp, config, owner, subscription=(channel.topic.name, "c")
        )
        assert [client.link.address.host for client in nsqd.clients] == ["127.0.0.2"]
        connection.set_ready(2500)
        await eventually_async(lambda: len(owner.messages) == 2000)
        connection.settle(finish=[message.id for message in owner.messages])
        await connection.close()
        await eventually_async(lambda: is_empty(channel))
    assert owner.ends == [None]
    assert connection.is_lost


@pytest.mark.parametrize("options", [{}, {"tls_v1": True}], ids="+".join)
async def test_what_cannot_be_reached_says_why(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    refused = os.strerror(errno.ECONNREFUSED).lower()
    unknown = socket.gaierror(-2, "Name or service not known")
    for hosts, text, reason in (
        (["127.0.0.1"], refused, "dial"),
        (["127.0.0.1", "127.0.0.2"], refused, "dial"),
        (unknown, "cannot resolve 'nsqd.test'", "name"),
    ):

        def resolve(*_: object, hosts: Any = hosts, **__: object) -> list[Any]:
            if isinstance(hosts, OSError):
                raise hosts
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with pytest.raises(UnreachableError) as caught:
            await Connection.open(Address("nsqd.test", port), ConsumerConfig(**options))
        assert type(caught.value) is UnreachableError
        assert str(caught.value) == f"nsqd.test:{port}: {text}"
        assert caught.value.reason == reason


@virtual
async def test_a_server_that_says_nothing_is_given_up() -> None:
    nsqd = Network().nsqd()
    nsqd.silent = True
    with pytest.raises(UnreachableError, match=r"^nsqd:4150: ") as caught:
        await Connection.open(nsqd.address, ConsumerConfig())
    assert caught.value.reason == "silence"
    assert nsqd.clients[0].transport.aborted


@virtual
async def test_a_server_that_reads_slowly_is_not_dropped_but_one_that_stops_is() -> None:
    owner = Owner()
    async with undisturbed():
        nsqd = Network().nsqd()
        config = ProducerConfig(write_timeout=1, read_timeout=300)
        connection = await Connection.open(nsqd.address, config, owner)
        nsqd.answers = False
        transport = nsqd.clients[0].transport
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
            with pytest.raises(ConnectionLostError) as caught:
                await unanswered
    (end,) = owner.ends
    assert end
    assert caught.value.text.endswith(end.text)


@virtual
@pytest.mark.parametrize("end", [Connection.abort, Connection.close])
async def test_a_connection_is_lost_as_soon_as_nothing_is_sent_over_it(
    end: Callable[[Connection], Awaitable[None] | None],
) -> None:
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
        with pytest.raises(ConnectionLostError):
            connection.request(b"late")
