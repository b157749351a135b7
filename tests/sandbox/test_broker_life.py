"""Any life of a topic: RDY is kept to, and every message is held or finished, once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqtools.sandbox.broker import Channel  # noqa: TC001 - hypothesis reads the annotations
from tests.support.brokers import Client, bodies, make_broker, subscribe


@settings(max_examples=150, stateful_step_count=40, deadline=None)
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
        self.attempts: dict[tuple[str, bytes], int] = {}
        self.seen: dict[Client, int] = {}

    @rule(count=st.integers(1, 8), defer=st.sampled_from([0.0, 0.0, 5.0]))
    def publish(self, count: int, defer: float) -> None:
        self.broker.publish("t", bodies(count), now=self.now, defer=defer)
        self.published += count

    @precondition(lambda self: len(self.clients) < 5)
    @rule(which=st.integers(0, 1), rdy=st.integers(0, 4), timeout=st.sampled_from([3.0, 10.0]))
    def arrive(self, which: int, rdy: int, timeout: float) -> None:
        client = subscribe(self.channels[which], rdy, Client(msg_timeout=timeout))
        self.clients.append((self.channels[which], client))
        self.seen[client] = 0

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        channel, client = data.draw(st.sampled_from(self.clients))
        self.clients.remove((channel, client))
        channel.remove(client.consumer)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), rdy=st.integers(0, 6), blocked=st.booleans())
    def ready(self, data: st.DataObject, rdy: int, blocked: bool) -> None:
        channel, client = data.draw(st.sampled_from(self.clients))
        client.consumer.rdy, client.consumer.blocked = rdy, blocked
        channel.changed()

    @precondition(lambda self: any(client.batches for _, client in self.clients))
    @rule(data=st.data(), verb=st.sampled_from(["finish", "requeue", "defer", "touch"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        busy = [(channel, client) for channel, client in self.clients if client.batches]
        channel, client = data.draw(st.sampled_from(busy))
        id_ = data.draw(st.sampled_from(client.ids))
        held = client.consumer.holds(id_)
        consumer = client.consumer
        if verb == "finish":
            failed = channel.finish(consumer, id_)
            self.finished[channel] += not failed
        elif verb == "touch":
            failed = channel.touch(consumer, id_, self.now)
        else:
            failed = channel.requeue(consumer, id_, 5.0 * (verb == "defer"), self.now)
        assert bool(failed) is not held
        assert consumer.holds(id_) is (held and verb == "touch")

    @rule(which=st.integers(0, 1), paused=st.booleans())
    def pause(self, which: int, paused: bool) -> None:
        channel = self.channels[which]
        channel.pause() if paused else channel.unpause()

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 31.0]))
    def tick(self, seconds: float) -> None:
        room = {id(client): client.consumer.rdy for _, client in self.clients}
        self.now += seconds
        due = self.broker.tick(self.now)
        assert due is None or due > self.now
        for channel, client in self.clients:
            consumer = client.consumer
            new = client.ids[self.seen[client] :]
            self.seen[client] += len(new)
            assert not new or consumer.in_flight <= room[id(client)]
            assert not new or not channel.paused
            for id_ in new:
                key = channel.name, id_
                self.attempts[key] = self.attempts.get(key, 0) + 1

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for channel in self.channels:
            held = channel.depth + channel.deferred_count + channel.in_flight_count
            assert held + self.finished[channel] + self.broker.topics["t"].depth == self.published
            assert channel.message_count == self.published

    @invariant()
    def attempts_count_the_deliveries(self) -> None:
        for channel, client in self.clients:
            for message in (each for batch in client.batches for each in batch):
                assert message.attempts == self.attempts[channel.name, message.id]

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
