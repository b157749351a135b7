"""What happens by itself: timeouts, deferred messages, heartbeats.

The real nsqd looks for new channels every 5 s, and before that nothing in them is due; so all
channels of this file are made first, and no test begins before nsqd has come to see them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.raw import HEARTBEAT
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import Connect
    from tests.support.servers import Nsqd

POOL = 13


@pytest.fixture(scope="module")
def nsqd(nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with nsqd_class(tmp_path_factory.mktemp("nsqd"), "-max-msg-timeout=2s") as running:
        for number in range(POOL):
            running.create(f"old{number}", "c")
        running.create("seen", "c")
        running.request("POST", "/pub", b"x", topic="seen", defer=1)
        eventually(lambda: running.channel("seen", "c")["depth"] == 1)
        yield running


@pytest.fixture(scope="module", autouse=True)
def impatient(nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with nsqd_class(tmp_path_factory.mktemp("impatient"), "-msg-timeout=500ms") as running:
        running.create("t", "c")
        yield running


@pytest.fixture(scope="module")
def unused(server: str) -> Iterator[int]:
    return iter(range(POOL))


@pytest.fixture
def topic(unused: Iterator[int]) -> str:
    return f"old{next(unused)}"


def test_a_message_times_out_and_comes_again_with_one_more_attempt(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.identify(msg_timeout=1000)
    client.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"x"])
    first = client.message()
    assert client.message() == first._replace(attempts=2)
    found = nsqd.channel(topic, "c")
    assert (found["timeout_count"], found["requeue_count"]) == (1, 0)
    client.send(f"FIN {first.id}")
    client.settle()
    (shown,) = found["clients"]
    assert (shown["message_count"], shown["in_flight_count"]) == (2, 1)
    assert drained(nsqd, topic, "c")


def test_a_message_of_a_consumer_that_left_times_out_too(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    gone = connect()
    gone.identify(msg_timeout=1000)
    gone.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"x"])
    first = gone.message()
    gone.close()
    assert connect().subscribe(topic, ready=1).message() == first._replace(attempts=2)


def test_a_message_that_timed_out_belongs_to_the_consumer_that_gets_it_next(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    late, other = connect(), connect().subscribe(topic)
    late.identify(msg_timeout=1000)
    late.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"x"])
    first = late.message()
    late.send("RDY 0")
    late.settle()
    other.send("RDY 1")
    assert other.message() == first._replace(attempts=2)
    assert late.error(f"FIN {first.id}").endswith("failed client does not own message")


def test_timeouts_are_each_consumers_own(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    short, long = connect(), connect()
    short.identify(msg_timeout=1000)
    long.identify(msg_timeout=2000)
    long.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"long"])
    long.message()
    short.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"short"])
    for _ in range(2):
        assert short.message().body == b"short"
    assert nsqd.channel(topic, "c")["timeout_count"] == 1


def test_a_touched_message_times_out_after_those_that_were_not(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.identify(msg_timeout=1500)
    client.subscribe(topic, ready=2)
    nsqd.publish(topic, [b"1"])
    touched = client.message()
    nsqd.publish(topic, [b"2"])
    other = client.message()
    client.send(f"TOUCH {touched.id}")
    assert client.message() == other._replace(attempts=2)
    client.send(f"FIN {other.id}")
    assert client.message() == touched._replace(attempts=2)


def test_touch_cannot_hold_a_message_longer_than_max_msg_timeout(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.identify(msg_timeout=1000)
    client.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"x"])
    message = client.message()

    def touch() -> bool:
        client.send(f"TOUCH {message.id}")
        return client.settle() == 1 or nsqd.channel(topic, "c")["timeout_count"] == 1

    eventually(touch)


def test_deferred_messages_come_in_the_order_of_their_delays(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    for delay in (1500, 700, 100):
        assert client.ask(f"DPUB {topic} {delay}", b"%d" % delay) == b"OK"
    client.ask(f"PUB {topic}", b"0")
    client.subscribe(topic, ready=4)
    got = [client.message() for _ in range(4)]
    assert [message.body for message in got] == [b"0", b"100", b"700", b"1500"]
    assert [message.attempts for message in got] == [1] * 4


def test_a_deferred_requeue_comes_after_its_delay_and_an_earlier_one_before_it(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect().subscribe(topic, ready=2)
    nsqd.publish(topic, [b"1", b"2"])
    one, two = client.message(), client.message()
    client.send(f"REQ {one.id} 1000")
    client.send(f"REQ {two.id} 200")
    client.settle()
    assert nsqd.channel(topic, "c")["deferred_count"] == 2
    assert client.message() == two._replace(attempts=2)
    assert client.message() == one._replace(attempts=2)
    found = nsqd.channel(topic, "c")
    assert (found["deferred_count"], found["requeue_count"], found["timeout_count"]) == (0, 2, 0)


def test_pub_over_http_defers_too(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    nsqd.request("POST", "/pub", b"late", topic=topic, defer=700)
    nsqd.request("POST", "/pub", b"now", topic=topic)
    client = connect().subscribe(topic, ready=2)
    assert [client.message().body for _ in range(2)] == [b"now", b"late"]


def test_a_paused_channel_lets_messages_time_out_and_holds_them(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.identify(msg_timeout=1000)
    client.subscribe(topic, ready=1)
    nsqd.publish(topic, [b"x"])
    message = client.message()
    nsqd.pause(topic, "c")
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 1)
    assert client.settle() == 0
    assert client.error(f"FIN {message.id}").endswith("failed ID not in flight")
    nsqd.unpause(topic, "c")
    assert client.message().attempts == 2


def test_heartbeats_come_at_the_interval_asked_for_and_any_command_answers_them(
    connect: Connect, topic: str
) -> None:
    client = connect()
    client.identify(heartbeat_interval=1000)
    client.subscribe(topic)
    for number in range(3):
        assert client.frame() == HEARTBEAT
        client.send(f"RDY {number}")
    client.settle()


def test_a_client_that_is_silent_for_two_intervals_is_disconnected(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.identify(heartbeat_interval=1000)
    client.subscribe(topic)
    assert client.frame() == HEARTBEAT
    with contextlib.suppress(EOFError, ConnectionError):
        assert client.frame() == HEARTBEAT
        client.frame()
        pytest.fail("a third frame")
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 0)


def test_a_servers_msg_timeout_is_the_default_of_its_clients(
    impatient: Nsqd, connect: Connect
) -> None:
    client = connect(impatient).subscribe("t", ready=1)
    impatient.publish("t", [b"x"])
    first = client.message()
    assert client.message() == first._replace(attempts=2)
