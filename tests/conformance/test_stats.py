"""/stats: its fields, in order, and what they count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually
from tests.support.raw import http_ask, mpub

if TYPE_CHECKING:
    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd

TOPIC = ["topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes"]
TOPIC += ["paused", "e2e_processing_latency"]
CHANNEL = ["channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count"]
CHANNEL += ["message_count", "requeue_count", "timeout_count", "client_count", "clients"]
CHANNEL += ["paused", "e2e_processing_latency"]
CLIENT = ["client_id", "hostname", "version", "remote_address", "state", "ready_count"]
CLIENT += ["in_flight_count", "message_count", "finish_count", "requeue_count", "connect_ts"]
CLIENT += ["sample_rate", "deflate", "snappy", "user_agent", "tls", "tls_cipher_suite"]
CLIENT += ["tls_version", "tls_negotiated_protocol", "tls_negotiated_protocol_is_mutual"]
PRODUCER = [*CLIENT[:15], "pub_counts", *CLIENT[15:]]


def stats(nsqd: Nsqd, query: str = "") -> Any:
    return http_ask(nsqd.http, f"GET /stats?format=json{query}").json


def test_the_fields_of_stats_are_these_in_this_order(
    client: Raw, connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic)
    connect().ask(f"PUB {topic}", b"x")
    found = stats(nsqd, f"&topic={topic}&include_mem=false")
    assert list(found) == ["version", "health", "start_time", "topics", "producers"]
    assert (found["version"], found["health"]) == ("1.3.0", "OK")
    assert abs(found["start_time"] - time.time()) < 600
    (entry,) = found["topics"]
    assert list(entry) == TOPIC
    (channel,) = entry["channels"]
    assert list(channel) == CHANNEL
    assert list(channel["clients"][0]) == CLIENT
    assert list(found["producers"][0]) == PRODUCER
    latency = {"count": 0, "percentiles": None}
    assert entry["e2e_processing_latency"] == channel["e2e_processing_latency"] == latency


def test_a_client_counts_what_it_was_sent_and_did(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.subscribe(topic, ready=5)
    nsqd.publish(topic, [b"1", b"2", b"3"])
    one, two, three = (client.message().id for _ in range(3))
    client.send(f"FIN {one}")
    client.send(f"REQ {two} 3600000")
    client.send(f"TOUCH {three}")
    client.settle()
    (shown,) = nsqd.channel(topic, "c")["clients"]
    names = ("message_count", "finish_count", "requeue_count", "in_flight_count", "ready_count")
    assert [shown[name] for name in names] == [3, 1, 1, 1, 5]
    assert (shown["version"], shown["state"]) == ("V2", 3)
    assert shown["remote_address"] == client.address
    assert abs(shown["connect_ts"] - time.time()) < 600
    assert [shown[name] for name in ("tls", "snappy", "deflate")] == [False] * 3
    assert [shown[name] for name in CLIENT[-4:]] == ["", "", "", False]


def test_a_channel_counts_what_came_what_was_requeued_and_who_listens(
    client: Raw, connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic, ready=1)
    connect().subscribe(topic)
    nsqd.publish(topic, [b"1", b"2"])
    for _ in range(3):
        client.send(f"REQ {client.message().id} 0")
    client.send(f"FIN {client.message().id}")
    client.message()
    client.settle()
    found = nsqd.channel(topic, "c")
    names = ("message_count", "requeue_count", "timeout_count", "client_count", "depth")
    assert [found[name] for name in names] == [2, 3, 0, 2, 0]


def producers(nsqd: Nsqd) -> dict[str, Any]:
    """By address."""
    return {each["remote_address"]: each for each in stats(nsqd)["producers"] or ()}


def test_a_publishing_client_is_among_the_producers_with_its_count(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.identify(client_id="writer")
    client.ask(f"PUB {topic}", b"x")
    client.ask(f"MPUB {topic}", mpub(b"x", b"y"))
    shown = producers(nsqd)[client.address]
    assert shown["pub_counts"] == [{"topic": topic, "count": 3}]
    assert (shown["client_id"], shown["state"]) == ("writer", 0)
    client.close()
    eventually(lambda: client.address not in producers(nsqd))
