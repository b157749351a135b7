"""Consumer and Producer against real servers, and what happens when those misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from nsqtools.config import ConsumerConfig
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.membership import Subscription
from tests.support.consuming import make_known
from tests.support.eventually import eventually_async
from tests.support.scripted import Recorder, consume, running
from tests.support.servers import drained

if TYPE_CHECKING:
    from nsqtools.engine.handler import Batch
    from tests.support.servers import MakeNsqd, MakeNsqlookupd


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


def numbered(count: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(count)]


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


async def test_a_handler_that_blocks_the_process_too_long_is_recovered_from(
    make_nsqd: MakeNsqd, topic: str
) -> None:
    """After one heartbeat interval nsqd stops writing for good, after two it hangs up."""
    nsqd = make_nsqd()
    make_known(nsqd, topic)
    bodies = numbered(600, 20_000)
    nsqd.publish(topic, bodies)
    handler = Bodies()
    blocked = False

    async def block(batch: Batch) -> None:
        nonlocal blocked
        await handler.count(batch)
        if not blocked and len(handler.counts) > 5:
            blocked = True
            time.sleep(2.5)  # noqa: ASYNC251 - that is the point

    options: dict[str, Any] = {
        "max_in_flight": 600,
        "heartbeat_interval": 1,
        "read_timeout": 1.6,
        "msg_timeout": 1,
        "max_attempts": 0,
        "reconnect_delay": 0.05,
    }
    async with running(consume(Recorder(block), nsqd.tcp, topic=topic, **options)):
        await eventually_async(lambda: len(handler.counts) == 600)
        await eventually_async(lambda: drained(nsqd, topic, "c"))
