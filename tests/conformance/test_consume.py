"""SUB, RDY, FIN, REQ, TOUCH and CLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.support.raw import Connect, Raw
    from tests.support.servers import MakeNsqd, Nsqd

SETTLING = ["FIN {}", "REQ {} 0", "TOUCH {}"]


def test_a_channel_takes_no_more_than_max_channel_consumers(
    make_nsqd: MakeNsqd, connect: Connect, topic: str
) -> None:
    nsqd = make_nsqd("-max-channel-consumers=2")
    first, _ = (connect(nsqd).subscribe(topic) for _ in range(2))
    assert connect(nsqd).fatal(f"SUB {topic} c") == (
        f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 2"
    )
    connect(nsqd).subscribe(topic, "d")
    first.close()
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 1)
    connect(nsqd).subscribe(topic)


def test_rdy_bounds_what_is_in_flight(client: Raw, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"%d" % number for number in range(10)])
    client.subscribe(topic, ready=3)
    ids = [client.message().id for _ in range(3)]
    assert client.settle() == 0
    found = nsqd.channel(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (7, 3)
    client.send(f"FIN {ids[0]}")
    client.message()
    assert client.settle() == 0
    assert nsqd.channel(topic, "c")["in_flight_count"] == 3


@pytest.mark.parametrize("command", SETTLING)
def test_settling_what_another_consumer_holds_fails_and_is_not_fatal(
    command: str, connect: Connect, topic: str
) -> None:
    name = command.partition(" ")[0]
    one, other = connect().subscribe(topic, ready=1), connect().subscribe(topic)
    assert other.ask(f"PUB {topic}", b"x") == b"OK"
    message = one.message()
    text = f"E_{name}_FAILED {name} {message.id} failed client does not own message"
    assert other.error(command.format(message.id)) == text
    one.send(f"FIN {message.id}")
    one.settle()
    other.settle()


def test_a_requeued_message_goes_behind_those_that_wait(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    for number in range(3):
        nsqd.request("POST", "/pub", b"%d" % number, topic=topic)
    client.subscribe(topic, ready=1)
    client.send(f"REQ {client.message().id} 0")
    bodies = []
    for _ in range(3):
        message = client.message()
        bodies.append(message.body)
        client.send(f"FIN {message.id}")
    assert bodies == [b"1", b"2", b"0"]


def test_after_cls_nothing_is_delivered_but_messages_are_still_settled(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic, ready=3)
    nsqd.publish(topic, [b"1", b"2", b"3"])
    one, two, three = (client.message().id for _ in range(3))
    assert client.ask("CLS") == b"CLOSE_WAIT"
    client.send("RDY 3")
    client.send("RDY nonsense")
    client.send(f"FIN {one}")
    client.send(f"REQ {two} 0")
    client.send(f"TOUCH {three}")
    assert client.settle() == 0
    found = nsqd.channel(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (1, 1)
    (shown,) = found["clients"]
    assert (shown["state"], shown["ready_count"]) == (4, 0)


@pytest.mark.nsqd_only("it is about messages on disk")
def test_a_killed_nsqd_keeps_only_what_waited_on_disk(
    make_nsqd: MakeNsqd, connect: Connect, topic: str
) -> None:
    """As the guide ``delivery`` says of -mem-queue-size 0; a clean stop keeps all."""
    nsqd = make_nsqd("-mem-queue-size=0", "-sync-every=1")
    nsqd.create(topic, "c")
    for stop, kept in ((nsqd.kill, 8), (nsqd.stop, 10)):
        nsqd.empty(topic, "c")
        nsqd.publish(topic, [b"x"] * 10)
        client = connect(nsqd).subscribe(topic, ready=1)
        # Published with a delay, it would wait without one if nsqd was still busy with the others.
        client.send(f"REQ {client.message().id} 600000")
        client.message()

        def counts() -> list[int]:
            found = nsqd.channel(topic, "c")
            return [found[name] for name in ("depth", "in_flight_count", "deferred_count")]

        eventually(lambda: counts() == [8, 1, 1])
        stop()
        nsqd.start()
        assert sum(counts()) == kept
