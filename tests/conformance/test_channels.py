"""Which channel gets what: copies, backlog, pause, empty, delete, ephemeral ones, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.servers import drained

if TYPE_CHECKING:
    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd


def depth(nsqd: Nsqd, topic: str, channel: str = "") -> int:
    found = nsqd.channel(topic, channel) if channel else nsqd.topic(topic)
    count: int = found["depth"]
    return count


def test_a_topic_without_channels_keeps_its_messages_for_the_first_one(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    nsqd.publish(topic, [b"1", b"2", b"3"])
    assert depth(nsqd, topic) == 3
    client.subscribe(topic, ready=3)
    assert [client.message().body for _ in range(3)] == [b"1", b"2", b"3"]
    found = nsqd.topic(topic)
    assert (found["depth"], found["message_count"]) == (0, 3)


def test_a_paused_topic_keeps_messages_from_its_channels(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic, ready=5)
    nsqd.pause(topic)
    nsqd.publish(topic, [b"1", b"2"])
    assert depth(nsqd, topic) == 2
    assert client.settle() == 0
    assert nsqd.channel(topic, "c")["message_count"] == 0
    nsqd.unpause(topic)
    assert {client.message().body for _ in range(2)} == {b"1", b"2"}
    assert depth(nsqd, topic) == 0


def test_emptying_a_channel_drops_waiting_deferred_and_in_flight_messages(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"1", b"2", b"3"])
    held = client.message()
    client.ask(f"DPUB {topic} 3600000", b"x")
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] == 1)
    client.send("RDY 0")
    client.settle()
    nsqd.empty(topic, "c")
    assert drained(nsqd, topic, "c")
    (shown,) = nsqd.channel(topic, "c")["clients"]
    assert shown["in_flight_count"] == 0
    assert client.error(f"FIN {held.id}") == f"E_FIN_FAILED FIN {held.id} failed ID not in flight"


def test_emptying_a_topic_drops_its_own_messages_but_not_its_channels_ones(
    nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"in the channel"])
    eventually(lambda: depth(nsqd, topic, "c") == 1)
    nsqd.pause(topic)
    nsqd.publish(topic, [b"in the topic"])
    nsqd.empty(topic)
    assert (depth(nsqd, topic), depth(nsqd, topic, "c")) == (0, 1)


def test_a_message_deferred_before_the_first_channel_is_deferred_in_that(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    assert client.ask(f"DPUB {topic} 3600000", b"x") == b"OK"
    assert depth(nsqd, topic) == 1
    nsqd.create(topic, "c")
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] == 1)
    assert depth(nsqd, topic) == 0


def test_deleting_a_topic_closes_all_its_consumers(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    consumers = [connect().subscribe(topic, channel) for channel in "ab"]
    nsqd.delete(topic)
    assert all(consumer.ended() for consumer in consumers)
    with pytest.raises(LookupError):
        nsqd.topic(topic)


def channels(nsqd: Nsqd, topic: str) -> list[str]:
    return [each["channel_name"] for each in nsqd.topic(topic)["channels"]]


def test_an_ephemeral_channel_goes_with_its_last_consumer(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    one, other = (connect().subscribe(topic, "c#ephemeral") for _ in range(2))
    one.close()
    eventually(lambda: nsqd.channel(topic, "c#ephemeral")["client_count"] == 1)
    other.close()
    eventually(lambda: channels(nsqd, topic) == [])
    nsqd.publish(topic, [b"x"])
    assert depth(nsqd, topic) == 1


def topics(nsqd: Nsqd) -> list[str]:
    return [each["topic_name"] for each in nsqd.stats()["topics"]]


def test_an_ephemeral_topic_goes_with_its_last_channel(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    name = f"{topic[:50]}#ephemeral"
    one, other = connect().subscribe(name, "a#ephemeral"), connect().subscribe(name, "b#ephemeral")
    one.close()
    eventually(lambda: channels(nsqd, name) == ["b#ephemeral"])
    other.close()
    eventually(lambda: name not in topics(nsqd))


def test_a_sample_rate_delivers_that_part_and_one_percent_more_and_drops_the_rest(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.identify(sample_rate=20)
    client.subscribe(topic, ready=2500)
    nsqd.publish(topic, [b"x"] * 2000)
    eventually(lambda: nsqd.channel(topic, "c")["message_count"] == 2000)
    eventually(lambda: depth(nsqd, topic, "c") == 0)
    got = nsqd.channel(topic, "c")["in_flight_count"]
    assert 300 < got < 550  # 420, and it is 13 standard deviations to the ends
    for _ in range(got):
        client.send(f"FIN {client.message().id}")
    assert client.settle() == 0
    assert drained(nsqd, topic, "c")
