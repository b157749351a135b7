"""What dialogues cannot show of messages: times, chances, and what a crash leaves."""

import re
import time

import pytest

from tests.support.eventually import eventually
from tests.support.raw import Connect, Raw, http_ask, mpub
from tests.support.servers import MakeNsqd, Nsqd, drained


def test_a_message_has_a_hex_id_and_the_time_of_publication(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    before = time.time_ns()
    client.ask(f"MPUB {topic}", mpub(b"one", b"two"))
    after = time.time_ns()
    client.subscribe(topic, ready=2)
    one, two = client.message(), client.message()
    assert before <= one.timestamp <= two.timestamp <= after
    assert one.id != two.id
    for message in (one, two):
        assert re.fullmatch("[0-9a-f]{16}", message.id)
    found = http_ask(nsqd.http, f"GET /stats?format=json&topic={topic}").json
    (shown,) = found["topics"][0]["channels"][0]["clients"]
    for seconds in (found["start_time"], shown["connect_ts"]):
        assert abs(seconds - time.time()) < 600


def test_a_sample_rate_delivers_that_part_and_one_percent_more_and_drops_the_rest(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.identify(sample_rate=20)
    client.subscribe(topic, ready=2500)
    nsqd.publish(topic, [b"x"] * 2000)
    eventually(lambda: nsqd.channel(topic, "c")["message_count"] == 2000)
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 0)
    got = nsqd.channel(topic, "c")["in_flight_count"]
    assert 300 < got < 550  # 420, and it is 13 standard deviations to the ends
    for _ in range(got):
        client.send(f"FIN {client.message().id}")
    assert client.settle() == 0
    assert drained(nsqd, topic, "c")


def test_a_command_line_that_fills_the_read_buffer_closes_the_connection(client: Raw) -> None:
    client.write(b"x" * 20000)
    assert client.ended()


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
