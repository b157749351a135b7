"""Consumer, Producer, Runner and Connection, cancelled at each await point in turn.

Whatever is cancelled ends with CancelledError, leaves no task and no connection behind, and has
finished no message that was not handled.
"""

import asyncio
from random import Random

import pytest

from nsqtools.config.connection import ConsumerConfig, ProducerConfig
from nsqtools.engine.handler import Batch, Handler
from nsqtools.engine.producer import Producer
from nsqtools.errors import PublishError, UnreachableError
from nsqtools.net.connection import Connection
from nsqtools.proto import commands
from tests.support.cancelling import cancel_everywhere
from tests.support.clock import elapse
from tests.support.gathering import make_runner
from tests.support.scripted import Network, ScriptedNsqd, consume, flatten


class Slow(Handler):
    """Takes a moment for all that it does, and knows which messages are handled."""

    def __init__(self, *, holds: bool = False) -> None:
        self.handled: set[int] = set()
        self.closed = 0
        self._holds = holds
        self._held: list[Batch] = []

    async def open(self) -> None:
        await elapse(0.1)

    async def join(self, topic: str) -> None:
        await elapse(0.1)

    async def handle(self, batch: Batch) -> None:
        if self._holds:
            batch.hold()
            self._held.append(batch)
            return
        await elapse(0.1)
        self._settle(batch)

    async def drain(self, topic: str) -> None:
        await elapse(0.1)
        for batch in self._held:
            self._settle(batch)

    async def close(self, *, at_once: bool = False) -> None:
        self.closed += 1
        await elapse(0.1)

    def _settle(self, batch: Batch) -> None:
        self.handled.update(int(message.id, 16) for message in batch)
        batch.finish()


def settled(nsqd: ScriptedNsqd, verb: str) -> list[int]:
    """The ids of FIN or REQ commands."""
    return [int(text.split()[1]) for text in nsqd.commands if text.startswith(f"{verb} ")]


def check_settled(handler: Slow, network: Network) -> None:
    """What was finished was handled, once, and was not given back."""
    for nsqd in network.nsqds.values():
        finished = settled(nsqd, "FIN")
        assert len(finished) == len(set(finished))
        assert set(finished) <= handler.handled
        assert not set(finished) & set(settled(nsqd, "REQ"))


def later(seconds: float, act: object, *arguments: object) -> None:
    assert callable(act)
    asyncio.get_running_loop().call_later(seconds, act, *arguments)


def troubled(network: Network) -> list[ScriptedNsqd]:
    """One nsqd that is well, one that cannot be reached at first, and one that breaks off."""
    nsqds = [network.nsqd(name) for name in ("well", "down", "broken")]
    nsqds[1].down = True
    later(1.5, setattr, nsqds[1], "down", False)
    later(0.6, nsqds[2].break_off)
    return nsqds


def test_a_consumer() -> None:
    handler = Slow()

    async def work(network: Network) -> None:
        nonlocal handler
        handler = Slow()
        nsqds = troubled(network)
        consumer = consume(handler, *nsqds, max_in_flight=6, reconnect_delay=1.0, drain_timeout=1.0)
        for second in range(3):
            later(second, nsqds[0].publish, b"x", b"y", b"z")
        later(2.05, consumer.stop)
        await consumer.run()

    assert cancel_everywhere(work, lambda network: check_settled(handler, network)) > 20


def test_a_consumer_that_is_stopped_while_it_dials() -> None:
    async def work(network: Network) -> None:
        network.nsqd("well")
        network.nsqd("hole").hole = True
        consumer = consume(Slow(), *network.nsqds, drain_timeout=1.0)
        later(0.5, consumer.stop)
        await consumer.run()

    assert cancel_everywhere(work) > 3


def test_a_consumer_that_looks_nsqds_up() -> None:
    async def work(network: Network) -> None:
        nsqds = [network.nsqd("first"), network.nsqd("second")]

        async def find(_: str) -> list[object]:
            await elapse(0.1)
            return [nsqd.address for nsqd in nsqds]

        options = {"lookupd_poll_interval": 3.0, "drain_timeout": 1.0}
        consumer = consume(Slow(), find=find, **options)  # type: ignore[arg-type]
        later(1, nsqds[1].break_off)
        later(6, consumer.stop)
        await consumer.run()

    assert cancel_everywhere(work) > 8


def test_a_block_with_a_consumer() -> None:
    handler = Slow()

    async def work(network: Network) -> None:
        nonlocal handler
        handler = Slow()
        nsqds = troubled(network)
        nsqds[0].publish(b"x", b"y", b"z")
        async with consume(handler, *nsqds, reconnect_delay=1.0, drain_timeout=1.0):
            await elapse(2)

    def check(network: Network) -> None:
        assert handler.closed <= 1
        check_settled(handler, network)

    assert cancel_everywhere(work, check) > 10


@pytest.mark.parametrize("holds", [False, True])
def test_a_runner(holds: bool) -> None:
    handler = Slow()

    async def work(network: Network) -> None:
        nonlocal handler
        handler = Slow(holds=holds)
        nsqds = troubled(network)
        nsqds[0].publish(*[b"x"] * 5)
        options = {"reconnect_delay": 1.0, "drain_timeout": 1.0}
        runner = make_runner(handler, *nsqds, topics=["a", "b"], max_duration=2.5, **options)
        await runner.run()

    def check(network: Network) -> None:
        assert handler.closed == 1
        check_settled(handler, network)

    assert cancel_everywhere(work, check) > 30


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "all"])
def test_a_producer(mode: str) -> None:
    published: list[bytes] = []

    async def work(network: Network) -> None:
        nonlocal published
        published = []
        nsqds = [network.nsqd("first"), network.nsqd("second")]
        config = ProducerConfig(mode=mode, reconnect_delay=0.5, publish_timeout=5.0)
        nsqds[0].refuses = lambda text: "E_PUB_FAILED busy" if "PUB" in text else None
        later(0.3, setattr, nsqds[0], "refuses", lambda _: None)
        async with Producer([nsqd.address for nsqd in nsqds], config, rng=Random(1)) as producer:
            for number in range(4):
                bodies = [b"%d.%d" % (number, each) for each in range(3)]
                await producer.publish("t", bodies)
                published += bodies
                nsqds[number % 2].break_off()

    def check(network: Network) -> None:
        for nsqd in network.nsqds.values() if mode == "all" else ():
            assert set(published) <= set(flatten(nsqd.published))
        everything = [body for nsqd in network.nsqds.values() for body in flatten(nsqd.published)]
        assert set(published) <= set(everything)

    assert cancel_everywhere(work, check) > 20


@pytest.mark.parametrize("mode", ["round-robin", "all"])
def test_a_producer_that_cannot_connect(mode: str) -> None:
    async def work(network: Network) -> None:
        well, down, hole = (network.nsqd(name) for name in ("well", "down", "hole"))
        down.down = hole.hole = True
        config = ProducerConfig(mode=mode, dial_timeout=1.0, publish_timeout=1.0)
        producer = Producer(list(network.nsqds), config, rng=Random(1))
        try:
            await producer.connect()
            well.answers = False
            await producer.publish("t", [b"never"])
        except (UnreachableError, PublishError):
            pass
        finally:
            await producer.close()

    assert cancel_everywhere(work) > 3


def test_a_connection() -> None:
    async def work(network: Network) -> None:
        nsqd = network.nsqd("nsqd", auth_required=True)
        nsqd.lingers = 0.5
        connection = await Connection.open(
            nsqd.address, ConsumerConfig(), subscription=("t", "c"), auth_secret="secret"
        )
        try:
            await connection.request(commands.publish("t", b"x"))
            connection.stop_messages()
            await connection.wait_closing()
            await connection.close()
        finally:
            connection.abort()

    assert cancel_everywhere(work) > 3
