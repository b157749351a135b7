"""The HTTP clients against a real nsqd and nsqlookupd: their answers, changes and refusals.

That each change does what it says is tested by the commands, in test_administration.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http import Lookup, Lookupd, NsqdHTTP
from tests.support.eventually import eventually
from tests.support.reporting import fill, registered

if TYPE_CHECKING:
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

PATIENCE = 15.0


def lookupd(address: Address) -> Lookupd:
    return Lookupd(str(address), connect_timeout=PATIENCE, request_timeout=PATIENCE)


async def test_nsqlookupd_tells_topics_channels_and_nsqds_and_what_is_hidden(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    server = make_nsqd(lookupds=[nsqlookupd])
    server.create(topic, "archive")
    registered(topic, [nsqlookupd])
    eventually(lambda: b"archive" in nsqlookupd.request("GET", "/channels", topic=topic))
    async with lookupd(nsqlookupd.http) as client:
        assert await client.topics() == [topic]
        assert await client.channels(topic) == ["archive"]
        found = await client.lookup(topic)
        (node,) = await client.nodes()
        assert found.channels == ("archive",)
        (producer,) = found.producers
        assert (producer.tcp, producer.http, producer.version) == (server.tcp, server.http, "1.3.0")
        assert (node.tcp, node.topics, node.tombstones) == (server.tcp, (topic,), (False,))
        await client.tombstone(topic, Address("unknown", 1))
        await client.tombstone(topic, server.http)
        (node,) = await client.nodes()
        assert node.tombstones == (True,)
        assert (await client.lookup(topic)).producers == ()


async def test_an_unknown_name_is_no_answer_or_a_refusal_that_says_so(
    nsqlookupd: Nsqlookupd,
) -> None:
    async with lookupd(nsqlookupd.http) as client:
        assert await client.topics() == []
        assert await client.channels("unknown") == []
        assert await client.lookup("unknown") == Lookup(known=False)
        assert await client.nodes() == []
        await client.delete_topic("unknown")
        with pytest.raises(HTTPError) as raised:
            await client.delete_channel("unknown", "c")
        assert (raised.value.status, raised.value.code) == (404, "CHANNEL_NOT_FOUND")


async def test_nsqd_says_who_it_is_and_what_it_has(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, "archive")
    nsqd.create(topic, "metrics")
    nsqd.create("other")
    nsqd.pause(topic, "archive")
    address = str(nsqd.http)
    async with NsqdHTTP(
        address, connect_timeout=PATIENCE, request_timeout=PATIENCE, tls=None
    ) as client:
        await client.ping()
        info = await client.info()
        everything = await client.stats()
        (found,) = await client.stats(topic)
        (one,) = await client.stats(topic, "archive")
        assert await client.stats("unknown") == []
        assert await client.stats(topic, "unknown") == []
    assert (info.version, info.broadcast_address) == ("1.3.0", "127.0.0.1")
    assert (info.tcp_port, info.http_port) == (nsqd.tcp.port, nsqd.http.port)
    assert info.start_time > 1_000_000_000
    assert {each.name for each in everything} == {topic, "other"}
    assert (found.message_count, found.paused) == (3, False)
    assert {channel.name for channel in found.channels} == {"archive", "metrics"}
    (channel,) = one.channels
    assert (channel.depth, channel.message_count, channel.client_count) == (3, 3, 0)
    assert (channel.in_flight, channel.deferred, channel.paused) == (0, 0, True)
