"""The HTTP clients against a real nsqd and nsqlookupd: their answers, changes and refusals.

That each change does what it says is tested by the commands, in test_administration.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.config import ClientConfig
from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http import Lookup, Lookupd, NsqdHTTP
from nsqtools.net.tls import client_context
from tests.support.eventually import eventually
from tests.support.reporting import fill, registered

if TYPE_CHECKING:
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates

PATIENCE = 15.0


def lookupd(address: Address) -> Lookupd:
    return Lookupd(str(address), connect_timeout=PATIENCE, request_timeout=PATIENCE)


def nsqd_http(address: Address | str, config: ClientConfig | None = None) -> NsqdHTTP:
    return NsqdHTTP(
        str(address),
        connect_timeout=PATIENCE,
        request_timeout=PATIENCE,
        tls=client_context(config) if config else None,
    )


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


async def test_an_nsqd_of_ipv6_is_looked_up_and_tombstoned(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    server = make_nsqd("-broadcast-address=::1", lookupds=[nsqlookupd])
    server.create(topic)
    registered(topic, [nsqlookupd])
    async with lookupd(nsqlookupd.http) as client:
        (producer,) = (await client.lookup(topic)).producers
        assert producer.http == Address("::1", server.http.port)
        await client.tombstone(topic, producer.http)
        assert (await client.lookup(topic)).producers == ()


async def test_nsqd_says_who_it_is_and_what_it_has(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, "archive")
    nsqd.create(topic, "metrics")
    nsqd.create("other")
    nsqd.pause(topic, "archive")
    async with nsqd_http(nsqd.http) as client:
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


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
async def test_nsqd_says_whether_the_topic_or_the_channel_is_not_there(
    nsqd: Nsqd, topic: str, verb: str
) -> None:
    async with nsqd_http(nsqd.http) as client:
        nsqd.create("other")
        for kind, names, code in (
            ("topic", [topic], "TOPIC_NOT_FOUND"),
            ("channel", [topic, "c"], "TOPIC_NOT_FOUND"),
            ("channel", ["other", "c"], "CHANNEL_NOT_FOUND"),
        ):
            if verb == "create" and (kind == "topic" or names[0] == "other"):
                continue  # that is what it makes
            with pytest.raises(HTTPError) as raised:
                await getattr(client, f"{verb}_{kind}")(*names)
            assert (raised.value.status, raised.value.code) == (404, code)
            assert str(raised.value) == f"{nsqd.http}: /{kind}/{verb}: 404 {code}"


async def test_a_name_that_nsqd_does_not_take_is_refused(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic)
    async with nsqd_http(nsqd.http) as client:
        with pytest.raises(HTTPError) as of_topic:
            await client.create_topic("bad!")
        with pytest.raises(HTTPError) as of_channel:
            await client.create_channel(topic, "bad!")
    assert (of_topic.value.status, of_topic.value.code) == (400, "INVALID_TOPIC")
    assert (of_channel.value.status, of_channel.value.code) == (400, "INVALID_ARG_CHANNEL")


async def test_the_tcp_port_leads_to_checking_the_port(nsqd: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    for address in (nsqd.tcp, nsqlookupd.tcp):
        async with nsqd_http(address) as client:
            with pytest.raises(HTTPError, match=f"{address}.*HTTP port"):
                await client.ping()


async def test_an_nsqd_that_requires_tls_leads_to_its_https_port(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    server = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    config = ClientConfig(tls_root_ca_file=str(certificates.ca))
    async with nsqd_http(f"https://{server.https}", config) as client:
        await client.ping()
    for url, tls, words in (
        (f"http://{server.http}", None, f"TLS_REQUIRED.*https://{server.https}"),
        (f"http://{server.https}", None, "HTTPS server"),
        (f"https://{server.http}", config, "does not speak TLS"),
    ):
        async with nsqd_http(url, tls) as client:
            with pytest.raises(HTTPError, match=words):
                await client.stats()
