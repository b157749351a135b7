"""Topics and channels without a network, in time that the tests make.

Many rules make many lines; they share their consumers.
"""

from __future__ import annotations

from random import Random

import pytest

from nsqtools.sandbox.broker import NOT_IN_FLIGHT, NOT_OWNED, Broker
from nsqtools.sandbox.consumer import TURN_BYTES
from tests.support.brokers import STAMP, TIMEOUT, Client, bodies, make_broker, subscribe


class Log:
    """A listener: what came and went."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def created(self, topic: str, channel: str = "") -> None:
        self.lines.append(f"+{topic} {channel}".rstrip())

    def deleted(self, topic: str, channel: str = "") -> None:
        self.lines.append(f"-{topic} {channel}".rstrip())


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def test_the_first_channel_gets_the_backlog_and_later_ones_only_what_follows(
    broker: Broker,
) -> None:
    broker.publish("t", [b"1", b"2"], now=0.0)
    assert broker.topics["t"].depth == 2
    first = broker.topic("t").channel("first")
    broker.tick(0.0)
    second = broker.topic("t").channel("second")
    broker.publish("t", [b"3"], now=0.0)
    assert (broker.topics["t"].depth, first.depth, second.depth) == (0, 3, 1)


def test_every_channel_gets_a_copy_that_counts_its_own_attempts(broker: Broker) -> None:
    channels = [broker.topic("t").channel(name) for name in "abc"]
    broker.publish("t", [b"x"], now=0.0)
    clients = [subscribe(channel, 1) for channel in channels]
    broker.tick(0.0)
    first = clients[0].batches[0][0]
    channels[0].requeue(clients[0].consumer, first.id, 0, 0.0)
    broker.tick(0.0)
    assert [client.ids for client in clients] == [[first.id] * 2, [first.id], [first.id]]
    assert first.attempts == 2
    assert clients[1].batches[0][0].attempts == 1


def test_messages_carry_16_digits_and_the_time_of_the_publish(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    broker.publish("t", bodies(3), now=0.0)
    client = subscribe(channel, 3)
    broker.tick(0.0)
    assert {message.timestamp for message in client.batches[0]} == {STAMP}
    assert len(set(client.ids)) == 3
    assert all(len(id_) == 16 and int(id_, 16) for id_ in client.ids)


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


def test_a_consumer_gets_no_more_than_its_rdy_and_the_next_with_each_finish(
    broker: Broker,
) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 2)
    broker.publish("t", bodies(4), now=0.0)
    broker.tick(0.0)
    assert client.bodies == [b"0", b"1"]
    assert channel.finish(client.consumer, client.ids[0]) == ""
    broker.tick(0.0)
    assert client.bodies == [b"0", b"1", b"2"]
    assert (channel.depth, channel.in_flight_count) == (1, 2)
    assert (client.consumer.message_count, client.consumer.finish_count) == (3, 1)


def test_messages_are_shared_out_among_consumers_with_rdy(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    clients = [subscribe(channel, rdy) for rdy in (1000, 1000, 10, 0)]
    broker.publish("t", bodies(1500), now=0.0)
    broker.tick(0.0)
    counts = [len(client.bodies) for client in clients]
    assert sum(counts) == 1500
    assert min(counts[:2]) > 300
    assert counts[2:] == [10, 0]


def test_single_messages_go_to_either_of_two_waiting_consumers(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    clients = [subscribe(channel, 100) for _ in range(2)]
    for _ in range(60):
        broker.publish("t", [b"x"], now=0.0)
        broker.tick(0.0)
    assert min(len(client.bodies) for client in clients) > 10


def test_a_consumer_whose_peer_does_not_keep_up_is_given_no_more(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = Client()
    client.blocks_after = 1
    subscribe(channel, 100, client)
    broker.publish("t", [b"x" * (TURN_BYTES // 4)] * 100, now=0.0)
    broker.tick(0.0)
    assert len(client.bodies) == 4
    client.blocks_after = 2
    client.consumer.blocked = False
    channel.changed()
    broker.tick(0.0)
    assert len(client.bodies) == 8


def test_what_is_not_finished_in_time_is_delivered_again(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 1, Client(msg_timeout=10.0))
    broker.publish("t", [b"x"], now=0.0)
    assert broker.tick(0.0) == 10.0
    broker.tick(9.9)
    assert len(client.batches) == 1
    assert broker.tick(10.0) == 20.0
    assert [batch[0].attempts for batch in client.batches] == [2, 2]  # one message, twice
    assert channel.timeout_count == 1
    assert channel.finish(client.consumer, client.ids[0]) == ""
    assert broker.tick(20.0) is None


def test_the_attempts_wrap_as_a_uint16(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 1)
    broker.publish("t", [b"x"], now=0.0)
    broker.tick(0.0)
    client.batches[0][0].attempts = 0xFFFF
    channel.requeue(client.consumer, client.ids[0], 0, 0.0)
    broker.tick(0.0)
    assert client.batches[1][0].attempts == 0


def test_requeue_with_a_delay_comes_back_after_it_and_frees_the_slot(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 1)
    broker.publish("t", [b"1", b"2"], now=0.0)
    broker.tick(0.0)
    assert channel.requeue(client.consumer, client.ids[0], 5.0, 1.0) == ""
    assert broker.tick(1.0) == 6.0
    assert (channel.deferred_count, channel.requeue_count) == (1, 1)
    assert client.bodies == [b"1", b"2"]
    client.consumer.rdy = 2
    broker.tick(6.0)
    assert client.bodies == [b"1", b"2", b"1"]
    assert channel.deferred_count == 0


def test_deferred_messages_count_at_once_and_come_in_order_of_their_time(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 9)
    for delay in (3.0, 1.0, 2.0):
        broker.publish("t", [b"%g" % delay], now=0.0, defer=delay)
    assert broker.tick(0.0) == 1.0
    assert (channel.message_count, channel.deferred_count, channel.depth) == (3, 3, 0)
    broker.tick(2.5)
    assert client.bodies == [b"1", b"2"]
    broker.tick(3.0)
    assert client.bodies == [b"1", b"2", b"3"]


def test_a_deferral_begins_when_the_message_reaches_a_channel(broker: Broker) -> None:
    broker.publish("t", [b"x"], now=0.0, defer=5.0)
    client = subscribe(broker.topic("t").channel("c"), 1)
    assert broker.tick(100.0) == 105.0
    broker.tick(105.0)
    assert client.bodies == [b"x"]


def test_touch_begins_the_timeout_anew_up_to_the_longest(broker: Broker) -> None:
    broker = make_broker(max_msg_timeout=25.0)
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 3, Client(msg_timeout=10.0))
    broker.publish("t", bodies(3), now=0.0)
    broker.tick(0.0)
    kept, _, finished = client.ids
    for now in (9.0, 18.0, 24.0):
        assert channel.touch(client.consumer, kept, now) == ""
        assert channel.touch(client.consumer, finished, now) == ""
        broker.tick(now)
    assert channel.timeout_count == 1  # the one that was not touched
    assert channel.finish(client.consumer, finished) == ""
    broker.tick(24.9)
    assert channel.timeout_count == 1
    broker.tick(25.0)
    assert channel.timeout_count == 2


def test_settling_what_is_not_held_says_whether_another_holds_it(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    holder, other = subscribe(channel, 1), subscribe(channel, 0)
    broker.publish("t", [b"x"], now=0.0)
    broker.tick(0.0)
    id_ = holder.ids[0]
    assert channel.finish(other.consumer, id_) == NOT_OWNED
    assert channel.requeue(other.consumer, id_, 0, 0.0) == NOT_OWNED
    assert channel.touch(other.consumer, id_, 0.0) == NOT_OWNED
    assert channel.finish(other.consumer, b"0" * 16) == NOT_IN_FLIGHT
    assert channel.finish(holder.consumer, id_) == ""
    assert channel.finish(holder.consumer, id_) == NOT_IN_FLIGHT
    assert other.consumer.finish_count == 0


def test_what_a_lost_client_held_waits_for_its_timeout(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    lost, other = subscribe(channel, 1), subscribe(channel, 0)
    broker.publish("t", [b"x"], now=0.0)
    broker.tick(0.0)
    channel.remove(lost.consumer)
    other.consumer.rdy = 1
    channel.changed()
    broker.tick(1.0)
    assert (channel.depth, channel.in_flight_count, other.bodies) == (0, 1, [])
    assert channel.finish(other.consumer, lost.ids[0]) == NOT_OWNED
    broker.tick(TIMEOUT)
    assert other.bodies == [b"x"]
    assert (channel.timeout_count, channel.in_flight_count) == (1, 1)


def test_a_paused_channel_delivers_nothing_but_takes_answers(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 1)
    broker.publish("t", [b"1", b"2"], now=0.0)
    broker.tick(0.0)
    channel.pause()
    assert channel.finish(client.consumer, client.ids[0]) == ""
    broker.tick(0.0)
    assert (client.bodies, channel.depth) == ([b"1"], 1)
    channel.unpause()
    broker.tick(0.0)
    assert client.bodies == [b"1", b"2"]


def test_a_paused_topic_keeps_its_messages_from_the_channels(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    broker.topics["t"].pause()
    broker.publish("t", [b"xyz"], now=0.0)
    broker.tick(0.0)
    assert (broker.topics["t"].depth, channel.depth, channel.message_count) == (1, 0, 0)
    assert (broker.topics["t"].message_count, broker.topics["t"].message_bytes) == (1, 3)
    broker.topics["t"].unpause()
    broker.tick(0.0)
    assert (broker.topics["t"].depth, channel.depth, channel.message_count) == (0, 1, 1)


def test_a_held_topic_waits_for_the_channels_that_are_looked_up(broker: Broker) -> None:
    topic = broker.topic("t")
    topic.held = True
    early = topic.channel("early")
    broker.publish("t", [b"x"], now=0.0)
    broker.tick(0.0)
    assert early.depth == 0
    late = topic.channel("late")
    topic.held = False
    topic.changed()
    broker.tick(0.0)
    assert (early.depth, late.depth) == (1, 1)


def test_an_emptied_channel_forgets_what_is_queued_deferred_and_in_flight(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    client, lost = subscribe(channel, 1), subscribe(channel, 1)
    broker.publish("t", bodies(5), now=0.0)
    broker.publish("t", [b"later"], now=0.0, defer=1.0)
    broker.tick(0.0)
    channel.remove(lost.consumer)
    channel.empty()
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (0, 0, 0)
    assert client.consumer.in_flight == 0
    assert channel.finish(client.consumer, client.ids[0]) == NOT_IN_FLIGHT
    broker.tick(2 * TIMEOUT)
    assert (channel.depth, channel.timeout_count, channel.message_count) == (0, 0, 6)


def test_an_emptied_topic_forgets_its_backlog_only(broker: Broker) -> None:
    broker.publish("t", bodies(5), now=0.0)
    broker.topics["t"].empty()
    assert broker.topics["t"].depth == 0
    assert broker.topics["t"].message_count == 5


def test_a_deleted_channel_closes_its_clients_and_the_topic_keeps_what_follows(
    broker: Broker,
) -> None:
    client = subscribe(broker.topic("t").channel("c"), 1)
    broker.publish("t", bodies(3), now=0.0)
    broker.tick(0.0)
    assert broker.topics["t"].delete_channel("c")
    assert not broker.topics["t"].delete_channel("c")
    assert client.closed
    broker.publish("t", [b"x"], now=0.0)
    broker.tick(2 * TIMEOUT)
    assert broker.topics["t"].depth == 1


def test_a_deleted_topic_closes_the_clients_of_all_channels(broker: Broker) -> None:
    clients = [subscribe(broker.topic("t").channel(name), 1) for name in "ab"]
    assert broker.delete_topic("t")
    assert not broker.delete_topic("t")
    assert all(client.closed for client in clients)
    assert not broker.topics


def test_ephemeral_channels_and_topics_go_with_the_last_that_used_them(broker: Broker) -> None:
    broker.listener = log = Log()
    topic = broker.topic("t#ephemeral")
    clients = [subscribe(topic.channel("c#ephemeral"), 1) for _ in range(2)]
    channel = topic.channels["c#ephemeral"]
    channel.remove(clients[0].consumer)
    assert channel.name in topic.channels
    channel.remove(clients[1].consumer)
    assert not broker.topics
    ends = ["-t#ephemeral c#ephemeral", "-t#ephemeral"]
    assert log.lines == ["+t#ephemeral", "+t#ephemeral c#ephemeral", *ends]


def test_an_ephemeral_channel_of_a_lasting_topic_takes_what_it_held_with_it(
    broker: Broker,
) -> None:
    topic = broker.topic("t")
    client = subscribe(topic.channel("c#ephemeral"), 1)
    broker.publish("t", bodies(3), now=0.0)
    broker.tick(0.0)
    topic.channels["c#ephemeral"].remove(client.consumer)
    assert (list(topic.channels), topic.depth) == ([], 0)


def test_ephemeral_topics_and_channels_drop_what_exceeds_their_memory() -> None:
    broker = make_broker(mem_queue_size=10)
    broker.publish("t#ephemeral", bodies(15), now=0.0)
    assert (broker.topics["t#ephemeral"].depth, broker.topics["t#ephemeral"].message_count) == (
        10,
        15,
    )
    channel = broker.topic("t").channel("c#ephemeral")
    client = subscribe(channel, 5)
    broker.publish("t", bodies(30), now=0.0)
    broker.publish("t", bodies(30), now=0.0)
    broker.tick(0.0)
    assert (len(client.bodies), channel.depth) == (5, 10)
    lasting = broker.topic("t").channel("c")
    broker.publish("t", bodies(30), now=0.0)
    assert lasting.depth == 30


def test_a_sample_rate_of_n_lets_n_plus_one_percent_through_and_the_rest_is_gone(
    broker: Broker,
) -> None:
    channel = broker.topic("t").channel("c")
    client = subscribe(channel, 20000, Client(sample_rate=9))
    broker.publish("t", bodies(20000), now=0.0)
    broker.tick(0.0)
    assert 1800 < len(client.bodies) < 2200
    assert client.consumer.message_count == len(client.bodies) == channel.in_flight_count
    assert channel.depth == 0


def test_a_sample_rate_of_99_lets_everything_through(broker: Broker) -> None:
    client = subscribe(broker.topic("t").channel("c"), 1000, Client(sample_rate=99))
    broker.publish("t", bodies(1000), now=0.0)
    broker.tick(0.0)
    assert len(client.bodies) == 1000


def test_wake_is_called_whenever_a_tick_would_do_something(broker: Broker) -> None:
    calls: list[str] = []
    broker.wake = lambda: calls.append("wake")

    def woken() -> bool:
        before = len(calls)
        calls.clear()
        broker.tick(0.0)
        return before > 0

    broker.publish("t", [b"x"], now=0.0)
    woken()
    channel = broker.topics["t"].channel("c")
    assert woken()
    client = subscribe(channel, 0)
    woken()
    client.consumer.rdy = 1
    channel.changed()
    assert woken()
    channel.requeue(client.consumer, client.ids[0], 1.0, 0.0)
    assert woken()
    assert not woken()
