"""PUB, MPUB, DPUB, and commands that are none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.raw import mpub

if TYPE_CHECKING:
    from tests.support.raw import Raw
    from tests.support.servers import Nsqd


def test_a_refused_mpub_publishes_nothing_but_creates_its_topic(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.fatal(f"MPUB {topic}", mpub(b"one", b"two", b""))
    assert nsqd.topic(topic)["message_count"] == 0


def test_a_command_line_that_fills_the_read_buffer_closes_the_connection(client: Raw) -> None:
    client.write(b"x" * 20000)
    assert client.ended()


def test_a_message_has_a_hex_id_the_time_of_publication_and_its_first_attempt(
    client: Raw, topic: str
) -> None:
    before = time.time_ns()
    client.ask(f"MPUB {topic}", mpub(b"one", b"two"))
    after = time.time_ns()
    client.subscribe(topic, ready=2)
    one, two = client.message(), client.message()
    assert (one.attempts, two.attempts) == (1, 1)
    assert before <= one.timestamp <= two.timestamp <= after
    assert one.id != two.id
    for message in (one, two):
        assert len(message.id) == 16
        int(message.id, 16)
        assert message.id == message.id.lower()


def test_dpub_defers_up_to_an_hour_in_each_channel(client: Raw, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "a")
    nsqd.create(topic, "b")
    assert client.ask(f"DPUB {topic} 3600000", b"x") == b"OK"
    eventually(lambda: all(nsqd.channel(topic, name)["deferred_count"] == 1 for name in "ab"))
    for name in "ab":
        found = nsqd.channel(topic, name)
        assert (found["depth"], found["message_count"]) == (0, 1)
