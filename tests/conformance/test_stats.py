"""/stats: its fields, in order, and what they count."""

from __future__ import annotations

import re
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
MEMORY = ["heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"]
MEMORY += ["gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"]
MEMORY += ["gc_total_runs"]


def stats(nsqd: Nsqd, query: str = "") -> Any:
    return http_ask(nsqd.http, f"GET /stats?format=json{query}").json


def text(nsqd: Nsqd, query: str = "") -> str:
    return http_ask(nsqd.http, f"GET /stats?{query}").body.decode()


def test_the_fields_of_stats_are_these_in_this_order(
    client: Raw, connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic)
    connect().ask(f"PUB {topic}", b"x")
    found = stats(nsqd, f"&topic={topic}")
    assert list(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (found["version"], found["health"]) == ("1.3.0", "OK")
    assert abs(found["start_time"] - time.time()) < 600
    assert list(found["memory"]) == MEMORY
    assert all(type(number) is int for number in found["memory"].values())
    (entry,) = found["topics"]
    assert list(entry) == TOPIC
    (channel,) = entry["channels"]
    assert list(channel) == CHANNEL
    assert list(channel["clients"][0]) == CLIENT
    assert list(found["producers"][0]) == PRODUCER
    latency = {"count": 0, "percentiles": None}
    assert entry["e2e_processing_latency"] == channel["e2e_processing_latency"] == latency


def test_clients_and_memory_can_be_left_out(
    client: Raw, connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic)
    connect().ask(f"PUB {topic}", b"x")
    for no in ("false", "0"):
        found = stats(nsqd, f"&topic={topic}&include_clients={no}&include_mem={no}")
        assert "memory" not in found
        (channel,) = found["topics"][0]["channels"]
        assert (channel["clients"], channel["client_count"], found["producers"]) == (None, 1, None)
    found = stats(nsqd, f"&topic={topic}&include_clients=nonsense&include_mem=1")
    assert found["memory"]
    assert found["topics"][0]["channels"][0]["clients"]


def test_a_topic_counts_messages_and_their_bytes(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.ask(f"PUB {topic}", b"12345")
    client.ask(f"MPUB {topic}", mpub(b"12", b"123"))
    client.ask(f"DPUB {topic} 1000", b"1")
    http_ask(nsqd.http, f"POST /pub?topic={topic}", b"1234567")
    found = nsqd.topic(topic)
    assert (found["message_count"], found["message_bytes"], found["depth"]) == (5, 18, 5)
    assert found["backend_depth"] == 0


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


def producers(nsqd: Nsqd, query: str = "") -> dict[str, Any]:
    """By address."""
    return {each["remote_address"]: each for each in stats(nsqd, query)["producers"] or ()}


def producer(nsqd: Nsqd, client: Raw, query: str = "") -> Any:
    return producers(nsqd, query)[client.address]


def test_a_publishing_client_is_among_the_producers_with_its_count(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.identify(client_id="writer")
    client.ask(f"PUB {topic}", b"x")
    client.ask(f"MPUB {topic}", mpub(b"x", b"y"))
    shown = producer(nsqd, client)
    assert shown["pub_counts"] == [{"topic": topic, "count": 3}]
    assert (shown["client_id"], shown["state"]) == ("writer", 0)
    client.close()
    eventually(lambda: client.address not in producers(nsqd))


def test_a_producer_is_shown_whatever_topic_is_asked_for_with_a_count_of_one_at_most(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(f"{topic}.other")
    for suffix in "ab":
        client.ask(f"PUB {topic}.{suffix}", b"x")
    assert len(producer(nsqd, client)["pub_counts"]) == 1
    for suffix in "ab":
        shown = producer(nsqd, client, f"&topic={topic}.{suffix}")
        assert shown["pub_counts"] == [{"topic": f"{topic}.{suffix}", "count": 1}]
    assert "pub_counts" not in producer(nsqd, client, f"&topic={topic}.other")


def test_a_consumer_that_publishes_is_shown_in_both_lists(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic)
    client.ask(f"PUB {topic}", b"x")
    (shown,) = nsqd.channel(topic, "c")["clients"]
    assert shown["pub_counts"] == [{"topic": topic, "count": 1}]
    assert producer(nsqd, client)["state"] == 3


def test_an_idle_client_is_in_no_list(client: Raw, nsqd: Nsqd) -> None:
    client.identify()
    assert client.address not in producers(nsqd)


def test_stats_are_text_unless_json_is_asked_for(
    client: Raw, connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client.identify(hostname="reader", user_agent="agent/1")
    client.subscribe(topic, "archive", ready=3)
    nsqd.create(topic, "other")
    nsqd.pause(topic, "other")
    writer = connect()
    writer.identify(hostname="writer", user_agent="agent/2")
    writer.ask(f"PUB {topic}", b"x")
    client.send(f"REQ {client.message().id} 3600000")
    client.settle()
    eventually(lambda: nsqd.channel(topic, "other")["depth"] == 1)
    shown = text(nsqd, f"topic={topic}")
    lines = shown.split("\n")
    assert re.fullmatch(r"nsqd v1\.3\.0 \(.+\)", lines[0])
    assert re.fullmatch(r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", lines[1])
    assert re.fullmatch(r"uptime (\d+h)?(\d+m)?[\d.]+(s|ms|µs)", lines[2])
    assert lines[3:7] == ["", "Health: OK", "", "Memory:"]
    for line, name in zip(lines[7:16], MEMORY, strict=True):
        assert re.fullmatch(rf"   {name:<25}\t\d+", line)
    ports = [each.address.partition(":")[2] for each in (client, writer)]
    assert lines[16:18] == ["", "Topics:"]
    reader = f"reader:{ports[0]} agent/1"
    assert re.sub(r"connected: \d+s", "connected: Ns", "\n".join(lines[18:])) == (
        f"   [{topic:<15}] depth: 0     be-depth: 0     msgs: 1        e2e%: \n"
        f"      [{'archive':<25}] depth: 0     be-depth: 0     inflt: 0    def: 1    re-q: 1    "
        f" timeout: 0     msgs: 1        e2e%: \n"
        f"        [V2 {reader:<21}] state: 3 inflt: 0    rdy: 3    fin: 0        re-q: 1        "
        f"msgs: 1        connected: Ns\n"
        f"   *P [{'other':<25}] depth: 1     be-depth: 0     inflt: 0    def: 0    re-q: 0    "
        f" timeout: 0     msgs: 1        e2e%: \n"
        "\nProducers:\n"
        f"   [V2 {f'writer:{ports[1]} agent/2':<21}] msgs: 1        topics: {topic}=1 "
        "connected: Ns\n"
    )
