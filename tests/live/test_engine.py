"""Consumer and Producer against real servers, and what happens when those misbehave."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.config import ConsumerConfig, ProducerConfig
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.limit import Limit
from nsqtools.engine.membership import Subscription
from nsqtools.engine.producer import Producer
from nsqtools.errors import PublishError
from tests.support.consuming import make_known
from tests.support.eventually import eventually_async
from tests.support.proxy import Faults, Proxy
from tests.support.scripted import Recorder, consume, running, undisturbed
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.engine.handler import Batch
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd

CUTS = {
    "cut.700": Faults(cut_down_after=700, cut="fin"),
    "cut.5500": Faults(cut_down_after=5500, cut="rst"),
    "cut.40000": Faults(cut_down_after=40_000, cut="fin"),
}


class Bodies(Recorder):
    """Counts how often each body was handled, and may wait ``pause`` seconds with the first."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__(self.count)
        self.counts: dict[bytes, int] = {}
        self._pause = pause

    async def count(self, batch: Batch) -> None:
        for message in batch:
            self.counts[message.body] = self.counts.get(message.body, 0) + 1
        pause, self._pause = self._pause, 0.0
        await asyncio.sleep(pause)


@pytest.fixture(scope="module")
def old_nsqd(nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd with channels in which messages time out and are deferred."""
    with nsqd_class(tmp_path_factory.mktemp("old-nsqd")) as nsqd:
        make_known(nsqd, "failing", "deferred", "1.4", "2.5", *CUTS)
        yield nsqd


def numbered(count: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(count)]


async def test_a_full_channel_is_handled_once_each_and_left_empty(nsqd: Nsqd, topic: str) -> None:
    bodies = numbered(5000, 200)
    nsqd.create(topic, "c")
    nsqd.publish(topic, bodies)
    handler = Bodies()
    async with running(consume(handler, nsqd.tcp, topic=topic, max_in_flight=2500)):
        await eventually_async(lambda: drained(nsqd, topic, "c"))
    assert handler.counts == dict.fromkeys(bodies, 1)
    stats = nsqd.channel(topic, "c")
    assert (stats["requeue_count"], stats["timeout_count"], stats["clients"]) == (0, 0, [])
    assert "reset by peer" not in nsqd.log.read_text()


async def test_stopping_gives_back_at_once_what_was_not_handled(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, numbered(100))
    handler = Bodies(pause=60)
    options: dict[str, Any] = {"max_in_flight": 10, "drain_timeout": 0.1}
    async with running(consume(handler, nsqd.tcp, topic=topic, **options)):
        await eventually_async(lambda: handler.counts)
    stats = nsqd.channel(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (100, 0, 0)
    assert stats["clients"] == []


@pytest.mark.parametrize("count", [1, 2500])
async def test_a_limit_takes_exactly_its_number_from_one_nsqd(
    count: int, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, numbered(5000))
    handler = Bodies()

    def remaining(left: int) -> None:
        consumer.set_max_in_flight(min(2500, left))

    limit = Limit(handler, count, remaining, lambda: consumer.stop())
    consumer = consume(limit, nsqd.tcp, topic=topic, max_in_flight=min(2500, count))
    async with running(consumer) as task:
        assert (await task).finished == count
    assert len(handler.counts) == count
    stats = nsqd.channel(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (
        5000 - count,
        0,
        0,
    )


async def test_three_nsqds_are_found_through_one_of_two_nsqlookupds_and_a_fourth_when_it_appears(
    make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    alive, dead = make_nsqlookupd(), make_nsqlookupd()
    lookupds = [alive, dead]
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    await eventually_async(lambda: len(alive.lookup(topic)) == 3)
    dead.kill()
    handler = Bodies()
    subscription = Subscription(
        topic=topic, channel="c", lookupds=tuple(str(lookupd.http) for lookupd in lookupds)
    )
    config = ConsumerConfig(max_in_flight=9, lookupd_poll_interval=0.1)
    consumer = Consumer(subscription, handler, config)
    async with running(consumer):
        await eventually_async(lambda: consumer.stats().connections == 3)
        nsqds.append(make_nsqd(lookupds=[alive]))
        for number, nsqd in enumerate(nsqds):
            nsqd.publish(topic, [b"%d" % number])
        await eventually_async(lambda: consumer.stats().connections == 4)
        await eventually_async(lambda: all(drained(nsqd, topic, "c") for nsqd in nsqds))
        assert set(handler.counts) == {b"0", b"1", b"2", b"3"}
        await asyncio.to_thread(nsqds[0].restart)
        nsqds[0].create(topic, "c")  # the sandbox's has forgotten it
        await eventually_async(lambda: consumer.stats().connections == 4)
        nsqds[0].publish(topic, [b"again"])
        await eventually_async(lambda: handler.counts.get(b"again"))


async def publish(
    addresses: Sequence[Any], topic: str, bodies: list[bytes], **options: Any
) -> None:
    async with undisturbed(), Producer(addresses, ProducerConfig(**options)) as producer:
        await producer.publish(topic, bodies)


async def test_bodies_that_are_too_big_for_nsqd_are_named_and_all_others_published(
    make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=1000")
    nsqd.create(topic, "c")
    bodies = numbered(64)
    bodies[7] = b"x" * 1001
    bodies[8] = b"x" * 100_000
    bodies[9] = b"x" * 1000
    with pytest.raises(PublishError, match="E_BAD_MESSAGE") as caught:
        await publish([nsqd.tcp], topic, bodies, reconnect_delay=0.01)
    assert caught.value.refused == [7, 8]
    assert caught.value.permanent
    handler = Bodies()
    async with running(consume(handler, nsqd.tcp, topic=topic, max_in_flight=100)):
        await eventually_async(lambda: drained(nsqd, topic, "c"))
    assert handler.counts == dict.fromkeys(bodies[:7] + bodies[9:], 1)


async def test_a_batch_that_is_too_big_for_nsqd_is_published_in_parts(
    make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-body-size=100000")
    nsqd.create(topic, "c")
    bodies = numbered(400, 10_000)
    await publish([nsqd.tcp], topic, bodies, reconnect_delay=0.01)
    stats = nsqd.topic(topic)
    assert stats["message_count"] == 400


@pytest.mark.nsqd_only("it is about messages on disk")
async def test_publishing_goes_on_when_one_of_two_nsqds_dies(
    make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqds = [make_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    bodies = numbered(2000)
    config = ProducerConfig(reconnect_delay=0.05)
    async with undisturbed(), Producer([nsqd.tcp for nsqd in nsqds], config) as producer:
        await producer.publish(topic, bodies[:500])
        await producer.publish(topic, bodies[500:1000])
        rest = [
            asyncio.create_task(producer.publish(topic, bodies[n : n + 10]))
            for n in range(1000, 2000, 10)
        ]
        await asyncio.to_thread(nsqds[0].stop)
        await asyncio.gather(*rest)
    await asyncio.to_thread(nsqds[0].start)
    handler = Bodies()
    addresses = [nsqd.tcp for nsqd in nsqds]
    async with running(consume(handler, *addresses, topic=topic, max_in_flight=200)):
        await eventually_async(lambda: all(drained(nsqd, topic, "c") for nsqd in nsqds))
    assert set(handler.counts) == set(bodies)


async def test_bytes_split_at_random_carry_the_same_messages(nsqd: Nsqd, topic: str) -> None:
    random = Random(7)
    bodies = [random.randbytes(random.randint(1, 3000)) for _ in range(100)]
    nsqd.create(topic, "c")
    handler = Bodies()
    async with Proxy(nsqd.tcp, [Faults(splits=random)] * 2) as proxy:
        await publish([proxy.address], topic, bodies)
        async with running(consume(handler, proxy.address, topic=topic, max_in_flight=40)):
            await eventually_async(lambda: drained(nsqd, topic, "c"))
    assert handler.counts == dict.fromkeys(bodies, 1)


async def test_a_handler_that_stalls_over_many_heartbeats_keeps_its_connection_and_messages(
    nsqd: Nsqd, topic: str
) -> None:
    """20 kB bodies overflow the socket buffers, and nsqd gives up a reader that pauses."""

    async def stall(name: str, size: int) -> None:
        bodies = numbered(300, size)
        nsqd.create(name, "c")
        nsqd.publish(name, bodies)
        handler = Bodies(pause=2.5)
        options: dict[str, Any] = {
            "max_in_flight": 300,
            "heartbeat_interval": 1,
            "read_timeout": 1.6,
        }
        consumer = consume(handler, nsqd.tcp, topic=name, **options)
        task = asyncio.create_task(consumer.run())
        await eventually_async(lambda: nsqd.channel(name, "c")["clients"])
        (before,) = nsqd.channel(name, "c")["clients"]
        await eventually_async(lambda: drained(nsqd, name, "c"))
        (after,) = nsqd.channel(name, "c")["clients"]
        for key in ("remote_address", "connect_ts"):
            assert before[key] == after[key]
        assert handler.counts == dict.fromkeys(bodies, 1)
        nsqd.publish(name, [b"later"])
        await eventually_async(lambda: handler.counts.get(b"later"))
        consumer.stop()
        await task

    async with undisturbed():
        await asyncio.gather(stall(f"{topic}.small", 100), stall(f"{topic}.big", 20_000))


async def test_a_failed_message_comes_again_after_its_delay_and_is_given_up_in_the_end(
    old_nsqd: Nsqd,
) -> None:
    old_nsqd.publish("failing", [b"bad"])
    handler = Recorder()
    options: dict[str, Any] = {
        "max_attempts": 3,
        "default_requeue_delay": 0.1,
        "backoff_multiplier": 0.01,
    }
    async with running(consume(handler, old_nsqd.tcp, topic="failing", **options)):
        await eventually_async(lambda: handler.lost)
        await eventually_async(lambda: drained(old_nsqd, "failing", "c"))
    assert [attempts for _, attempts in handler.seen] == [1, 2, 3]
    gaps = [after - before for before, after in zip(handler.times, handler.times[1:], strict=False)]
    assert gaps[0] >= 0.1
    assert gaps[1] >= 0.2


async def test_a_deferred_message_waits(old_nsqd: Nsqd) -> None:
    handler = Recorder()
    started = time.monotonic()
    async with undisturbed(), Producer([old_nsqd.tcp], ProducerConfig()) as producer:
        await producer.publish("deferred", [b"one", b"two"], defer=0.5)
        with pytest.raises(PublishError, match="E_INVALID") as caught:
            await producer.publish("deferred", [b"x"], defer=7200)
        assert caught.value.permanent
    async with running(consume(handler, old_nsqd.tcp, topic="deferred")):
        await eventually_async(lambda: len(handler.seen) == 2)
    assert time.monotonic() - started >= 0.5


@pytest.mark.parametrize("topic", CUTS)
async def test_an_nsqd_that_is_cut_off_in_the_middle_of_a_frame_delivers_all_again(
    topic: str, old_nsqd: Nsqd
) -> None:
    bodies = numbered(20, 5000)
    old_nsqd.publish(topic, bodies)
    handler = Bodies()
    options: dict[str, Any] = {"max_in_flight": 20, "reconnect_delay": 0.05, "msg_timeout": 1}
    async with (
        Proxy(old_nsqd.tcp, [CUTS[topic]]) as proxy,
        running(consume(handler, proxy.address, topic=topic, **options)),
    ):
        await eventually_async(lambda: drained(old_nsqd, topic, "c"))
        assert proxy.connections == 2
    assert set(handler.counts) == set(bodies)


@pytest.mark.parametrize("seconds", ["1.4", "2.5"])
async def test_a_handler_that_blocks_the_process_too_long_is_recovered_from(
    seconds: str, old_nsqd: Nsqd
) -> None:
    """After one heartbeat interval nsqd stops writing for good, after two it hangs up."""
    bodies = numbered(600, 20_000)
    old_nsqd.publish(seconds, bodies)
    handler = Bodies()
    blocked = False

    async def block(batch: Batch) -> None:
        nonlocal blocked
        await handler.count(batch)
        if not blocked and len(handler.counts) > 5:
            blocked = True
            time.sleep(float(seconds))  # noqa: ASYNC251 - that is the point

    options: dict[str, Any] = {
        "max_in_flight": 600,
        "heartbeat_interval": 1,
        "read_timeout": 1.6,
        "msg_timeout": 1,
        "max_attempts": 0,
        "reconnect_delay": 0.05,
    }
    async with running(consume(Recorder(block), old_nsqd.tcp, topic=seconds, **options)):
        await eventually_async(lambda: len(handler.counts) == 600, timeout=20)
        await eventually_async(lambda: drained(old_nsqd, seconds, "c"), timeout=20)
