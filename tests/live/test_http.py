"""The HTTP clients against a real nsqd and nsqlookupd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.config import ClientConfig
from nsqtools.errors import HTTPError
from nsqtools.net.http import Lookup, Lookupd, NsqdHTTP, ask_all, union_producers
from nsqtools.net.tls import client_context
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from nsqtools.names import Address
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd
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


async def test_nsqlookupd_tells_topics_channels_and_nsqds(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    server = make_nsqd(lookupds=[nsqlookupd])
    server.create(topic, "archive")
    eventually(lambda: nsqlookupd.lookup(topic))
    async with lookupd(nsqlookupd.http) as client:
        assert await client.topics() == [topic]
        assert await client.channels(topic) == ["archive"]
        found = await client.lookup(topic)
        (node,) = await client.nodes()
    assert found.channels == ("archive",)
    (producer,) = found.producers
    assert (producer.tcp, producer.http, producer.version) == (server.tcp, server.http, "1.3.0")
    assert (node.tcp, node.topics, node.tombstones) == (server.tcp, (topic,), (False,))


async def test_nsqlookupd_knows_nothing_of_an_unknown_topic(nsqlookupd: Nsqlookupd) -> None:
    async with lookupd(nsqlookupd.http) as client:
        assert await client.topics() == []
        assert await client.channels("unknown") == []
        assert await client.lookup("unknown") == Lookup(known=False)
        assert await client.nodes() == []


async def test_a_tombstoned_nsqd_is_marked_among_the_nodes_and_not_looked_up(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    server = make_nsqd(lookupds=[nsqlookupd])
    server.create(topic)
    eventually(lambda: nsqlookupd.lookup(topic))
    nsqlookupd.request("POST", "/topic/tombstone", topic=topic, node=str(server.http))
    async with lookupd(nsqlookupd.http) as client:
        (node,) = await client.nodes()
        assert node.tombstones == (True,)
        assert (await client.lookup(topic)).producers == ()


async def test_nsqds_of_several_nsqlookupds_are_united_though_one_is_dead(
    make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    first, second, dead = make_nsqlookupd(), make_nsqlookupd(), make_nsqlookupd()
    both, alone = make_nsqd(lookupds=[first, second]), make_nsqd(lookupds=[second])
    for server in (both, alone):
        server.create(topic)
    eventually(lambda: first.lookup(topic) and len(second.lookup(topic)) == 2)
    dead.stop()
    async with (
        lookupd(first.http) as one,
        lookupd(dead.http) as two,
        lookupd(second.http) as three,
    ):
        answers = await ask_all([one, two, three], lambda client: client.lookup(topic))
    united = union_producers(answer.producers for answer in answers.values)
    assert set(united) == {both.tcp, alone.tcp}
    assert [address for address, _ in answers.failures] == [dead.http]


async def test_nsqd_is_well_and_says_who_it_is(nsqd: Nsqd) -> None:
    async with nsqd_http(nsqd.http) as client:
        await client.ping()
        info = await client.info()
    assert (info.version, info.broadcast_address) == ("1.3.0", "127.0.0.1")
    assert (info.tcp_port, info.http_port) == (nsqd.tcp.port, nsqd.http.port)
    assert info.start_time > 1_000_000_000


async def test_stats_hold_topics_with_their_channels(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "archive")
    nsqd.create(topic, "metrics")
    nsqd.create("other")
    nsqd.publish(topic, [b"one", b"two", b"three"])
    nsqd.pause(topic, "archive")
    eventually(lambda: nsqd.channel(topic, "archive")["depth"] == 3)
    async with nsqd_http(nsqd.http) as client:
        everything = await client.stats()
        (found,) = await client.stats(topic)
        (one,) = await client.stats(topic, "archive")
        assert await client.stats("unknown") == []
        assert await client.stats(topic, "unknown") == []
    assert {each.name for each in everything} == {topic, "other"}
    assert (found.message_count, found.paused) == (3, False)
    assert {channel.name for channel in found.channels} == {"archive", "metrics"}
    (channel,) = one.channels
    assert (channel.depth, channel.message_count, channel.client_count) == (3, 3, 0)
    assert (channel.in_flight, channel.deferred, channel.paused) == (0, 0, True)


async def test_the_tcp_port_leads_to_checking_the_port(nsqd: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    for address in (nsqd.tcp, nsqlookupd.tcp):
        async with nsqd_http(address) as client:
            with pytest.raises(HTTPError, match="check that this is the server's HTTP port"):
                await client.ping()


async def test_an_nsqd_that_requires_tls_leads_to_its_https_port(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    server = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    config = ClientConfig(tls_root_ca_file=str(certificates.ca))
    async with nsqd_http(f"https://{server.https}", config) as client:
        await client.ping()
    async with nsqd_http(server.http) as client:
        with pytest.raises(HTTPError, match=f"TLS_REQUIRED.*https://{server.https}"):
            await client.stats()
    async with nsqd_http(f"http://{server.https}") as client:
        with pytest.raises(HTTPError, match="HTTPS server"):
            await client.ping()
    async with nsqd_http(f"https://{server.http}", config) as client:
        with pytest.raises(HTTPError, match="does not speak TLS here"):
            await client.ping()


async def test_an_nsqd_that_requires_a_client_certificate_is_shown_it_or_asks_for_it(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    server = make_nsqd(
        "-tls-client-auth-policy=require-verify",
        "-tls-required=tcp-https",
        f"-tls-root-ca-file={certificates.ca}",
        *certificates.server.nsqd_args(),
    )
    url = f"https://{server.https}"
    config = ClientConfig(tls_root_ca_file=str(certificates.ca))
    identity = config.with_values(
        tls_cert=str(certificates.client.cert), tls_key=str(certificates.client.key)
    )
    async with nsqd_http(url, identity) as client:
        await client.ping()
    async with nsqd_http(url, config) as client:
        with pytest.raises(HTTPError, match="--tls-cert"):
            await client.ping()
