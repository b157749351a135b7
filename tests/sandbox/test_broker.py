"""Topics and channels without a network, in time that the tests make.

Here is what takes time, or no nsqd can be made to do at will; the rest is in tests/conformance.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqtools.sandbox.nsqd.broker import Broker
from nsqtools.sandbox.nsqd.channel import (
    MEM_QUEUE_SIZE,
    Channel,
    ChannelConsumer,
    NotInFlightError,
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


@settings(max_examples=50, stateful_step_count=40)
class Life(RuleBasedStateMachine):
    """Any life of one topic with two channels: what was published is held or finished, once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.broker = make_broker(max_msg_timeout=30.0)
        self.channels = [self.broker.topic("t").channel(name) for name in "ab"]
        self.clients: list[tuple[Channel, Client]] = []
        self.published = 0
        self.finished = dict.fromkeys(self.channels, 0)

    @rule(count=st.integers(1, 8), defer=st.sampled_from([0.0, 0.0, 5.0]))
    def publish(self, count: int, defer: float) -> None:
        self.broker.publish("t", bodies(count), now=self.now, defer=defer)
        self.published += count

    @precondition(lambda self: len(self.clients) < 5)
    @rule(which=st.integers(0, 1), rdy=st.integers(0, 4), timeout=st.sampled_from([3.0, 10.0]))
    def arrive(self, which: int, rdy: int, timeout: float) -> None:
        client = subscribe(self.channels[which], rdy, Client(msg_timeout=timeout))
        self.clients.append((self.channels[which], client))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), rdy=st.integers(0, 6), leaves=st.booleans())
    def change(self, data: st.DataObject, rdy: int, leaves: bool) -> None:
        channel, client = data.draw(st.sampled_from(self.clients))
        client.consumer.rdy = rdy
        channel.changed()
        if leaves:
            self.clients.remove((channel, client))
            channel.remove(client.consumer)

    @precondition(lambda self: any(client.ids for _, client in self.clients))
    @rule(data=st.data(), verb=st.sampled_from(["finish", "requeue", "defer", "touch"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        busy = [(channel, client) for channel, client in self.clients if client.ids]
        channel, client = data.draw(st.sampled_from(busy))
        id_ = data.draw(st.sampled_from(client.ids))
        consumer = client.consumer
        message = channel.in_flight.get(id_)
        held = message is not None and message.consumer is consumer
        with nullcontext() if held else pytest.raises(NotInFlightError):
            if verb == "finish":
                channel.finish(consumer, id_)
                self.finished[channel] += 1
            elif verb == "touch":
                channel.touch(consumer, id_, self.now)
            else:
                channel.requeue(consumer, id_, 5.0 * (verb == "defer"), self.now)

    @rule(which=st.integers(0, 1), paused=st.booleans())
    def pause(self, which: int, paused: bool) -> None:
        channel = self.channels[which]
        channel.pause() if paused else channel.unpause()

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 31.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        due = self.broker.tick(self.now)
        assert due is None or due > self.now

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for channel in self.channels:
            held = channel.depth + channel.deferred_count + len(channel.in_flight)
            assert held + self.finished[channel] + self.broker.topics["t"].depth == self.published
        for channel, client in self.clients:
            held_by = [each.consumer for each in channel.in_flight.values()]
            assert client.consumer.in_flight == held_by.count(client.consumer)

    def teardown(self) -> None:
        for channel in self.channels:
            channel.unpause()
            for consumer in tuple(channel.consumers):
                channel.remove(consumer)
        last = [subscribe(channel, 10**6) for channel in self.channels]
        self.broker.tick(self.now + 1000.0)
        for channel, client in zip(self.channels, last, strict=True):
            left = self.published - self.finished[channel]
            assert len(set(client.ids)) == len(client.ids) == left


TestLife = Life.TestCase
