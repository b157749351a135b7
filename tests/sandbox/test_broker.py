"""Topics and channels without a network, in time that the tests make.

Here is what takes time, or no nsqd can be made to do at will; the rest is in tests/conformance.
"""

from random import Random
from typing import Any

from nsqtools.sandbox.nsqd.broker import Broker
from nsqtools.sandbox.nsqd.channel import (
    MEM_QUEUE_SIZE,
    Channel,
    ChannelConsumer,
    QueuedMessage,
)

STAMP = 1_700_000_000 * 10**9


class Client:
    """The connection behind a consumer: it keeps what it was given."""

    def __init__(self, msg_timeout: float = 60.0) -> None:
        self.consumer = ChannelConsumer(self, msg_timeout, sample_rate=0)
        self.ids: list[bytes] = []
        self.bodies: list[bytes] = []

    def deliver(self, messages: list[QueuedMessage]) -> None:
        self.ids += [message.id for message in messages]
        self.bodies += [message.body for message in messages]

    def close(self) -> None: ...


def make_broker(**options: Any) -> Broker:
    return Broker(Random(1), clock_ns=lambda: STAMP, **options)


def subscribe(channel: Channel, rdy: int, client: Client | None = None) -> Client:
    client = client or Client()
    client.consumer.rdy = rdy
    channel.add(client.consumer)
    return client


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_ids_do_not_repeat_in_a_broker_started_later() -> None:
    ids: list[bytes] = []
    for clock in (lambda: STAMP, lambda: STAMP + 10**9):
        broker = Broker(Random(1), clock_ns=clock)
        channel = broker.topic("t").channel("c")
        broker.publish("t", bodies(5000), now=0.0)
        client = subscribe(channel, 5000)
        broker.tick(0.0)
        ids += client.ids
    assert len(set(ids)) == 10000
    assert ids == sorted(ids)


def test_a_message_comes_again_after_its_timeout_which_touching_puts_off_to_a_limit() -> None:
    broker = make_broker(max_msg_timeout=20.0)
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 2, Client(msg_timeout=10.0))
    broker.publish("t", bodies(2), now=0.0)
    broker.tick(0.0)
    touched, other = client.ids
    channel.touch(client.consumer, touched, 8.0)
    assert broker.tick(9.9) == 10.0
    broker.tick(10.0)
    assert client.ids == [touched, other, other]
    channel.finish(client.consumer, other)
    channel.touch(client.consumer, touched, 17.0)
    assert broker.tick(19.9) == 20.0
    broker.tick(20.0)
    assert client.ids[3:] == [touched]
    assert (channel.in_flight[touched].attempts, channel.timeout_count) == (2, 2)


def test_what_is_deferred_comes_after_its_delay() -> None:
    broker = make_broker()
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 9)
    for delay in (4.0, 2.0, 0.0):
        broker.publish("t", [b"%d" % delay], now=0.0, defer=delay)
    for now, come in ((0.0, 1), (1.9, 1), (2.0, 2), (3.9, 2), (4.0, 3)):
        broker.tick(now)
        assert client.bodies == [b"0", b"2", b"4"][:come]
    channel.requeue(client.consumer, client.ids[0], 5.0, 4.0)
    assert (broker.tick(8.9), channel.deferred_count) == (9.0, 1)
    broker.tick(9.0)
    assert client.bodies[3:] == [b"0"]


def test_ephemeral_topics_and_channels_drop_what_exceeds_their_memory() -> None:
    broker, most, more = make_broker(), MEM_QUEUE_SIZE, MEM_QUEUE_SIZE + 5
    broker.publish("t#ephemeral", bodies(more), now=0.0)
    ephemeral = broker.topics["t#ephemeral"]
    assert (ephemeral.depth, ephemeral.message_count) == (most, more)
    channel = broker.topic("t").channel("c#ephemeral")
    client = subscribe(channel, 5)
    broker.publish("t", bodies(more), now=0.0)
    broker.publish("t", bodies(more), now=0.0)
    broker.tick(0.0)
    assert (len(client.bodies), channel.depth) == (5, most)
    lasting = broker.topic("t").channel("c")
    broker.publish("t", bodies(more), now=0.0)
    assert lasting.depth == more
