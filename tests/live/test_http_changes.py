"""Topics and channels made, emptied, paused and deleted over HTTP."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import HTTPError
from nsqtools.names import Address
from tests.live.test_http import lookupd, nsqd_http
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

ON_TOPICS = ("delete_topic", "empty_topic", "pause_topic", "unpause_topic")
ON_CHANNELS = ("delete_channel", "empty_channel", "pause_channel", "unpause_channel")


async def test_nsqd_makes_a_topic_and_a_channel_once(nsqd: Nsqd, topic: str) -> None:
    async with nsqd_http(nsqd.http) as client:
        for _ in range(2):
            await client.create_topic(topic)
            await client.create_channel(topic, "c#ephemeral")
    assert nsqd.channel(topic, "c#ephemeral")["depth"] == 0


async def test_nsqd_deletes_a_channel_and_then_a_topic(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "gone")
    nsqd.create(topic, "kept")
    async with nsqd_http(nsqd.http) as client:
        await client.delete_channel(topic, "gone")
        assert [each["channel_name"] for each in nsqd.topic(topic)["channels"]] == ["kept"]
        await client.delete_topic(topic)
        assert await client.stats(topic) == []


async def test_nsqd_empties_a_topic_and_a_channel_each_for_itself(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"in the channel"])
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 1)
    nsqd.pause(topic)
    nsqd.publish(topic, [b"in the topic"] * 2)
    async with nsqd_http(nsqd.http) as client:
        await client.empty_topic(topic)
        assert (nsqd.topic(topic)["depth"], nsqd.channel(topic, "c")["depth"]) == (0, 1)
        await client.empty_channel(topic, "c")
        assert nsqd.channel(topic, "c")["depth"] == 0


async def test_nsqd_pauses_and_unpauses_a_topic_and_a_channel(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")

    def paused() -> tuple[bool, bool]:
        return nsqd.topic(topic)["paused"], nsqd.channel(topic, "c")["paused"]

    async with nsqd_http(nsqd.http) as client:
        await client.pause_topic(topic)
        assert paused() == (True, False)
        await client.pause_channel(topic, "c")
        await client.unpause_topic(topic)
        assert paused() == (False, True)
        await client.unpause_channel(topic, "c")
        assert paused() == (False, False)


@pytest.mark.parametrize("method", ON_TOPICS)
async def test_nsqd_says_that_a_topic_is_not_there(nsqd: Nsqd, topic: str, method: str) -> None:
    async with nsqd_http(nsqd.http) as client:
        with pytest.raises(HTTPError) as raised:
            await getattr(client, method)(topic)
    path = "/".join(reversed(method.split("_")))
    assert (raised.value.status, raised.value.code) == (404, "TOPIC_NOT_FOUND")
    assert str(raised.value) == f"{nsqd.http}: /{path}: 404 TOPIC_NOT_FOUND"


@pytest.mark.parametrize("method", ON_CHANNELS)
async def test_nsqd_says_whether_the_topic_or_the_channel_is_not_there(
    nsqd: Nsqd, topic: str, method: str
) -> None:
    async with nsqd_http(nsqd.http) as client:
        call = functools.partial(getattr(client, method), topic, "c")
        for code in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            with pytest.raises(HTTPError, match=code) as raised:
                await call()
            assert (raised.value.status, raised.value.code) == (404, code)
            nsqd.create(topic)


async def test_nsqd_makes_no_channel_of_a_topic_that_is_not_there(nsqd: Nsqd, topic: str) -> None:
    async with nsqd_http(nsqd.http) as client:
        with pytest.raises(HTTPError) as raised:
            await client.create_channel(topic, "c")
        assert raised.value.code == "TOPIC_NOT_FOUND"
        assert await client.stats(topic) == []


async def test_a_name_that_nsqd_does_not_take_is_refused(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic)
    async with nsqd_http(nsqd.http) as client:
        with pytest.raises(HTTPError, match="INVALID_TOPIC") as of_topic:
            await client.create_topic("bad!")
        with pytest.raises(HTTPError, match="INVALID_ARG_CHANNEL") as of_channel:
            await client.create_channel(topic, "bad!")
    assert (of_topic.value.status, of_channel.value.status) == (400, 400)


async def test_nsqlookupd_makes_topics_and_channels_known_and_forgets_them(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    async with lookupd(nsqlookupd.http) as client:
        await client.create_topic(topic)
        assert (await client.topics(), await client.channels(topic)) == ([topic], [])
        await client.create_channel(topic, "c#ephemeral")
        await client.create_channel("other", "c")
        assert sorted(await client.topics()) == sorted([topic, "other"])
        assert await client.channels(topic) == ["c#ephemeral"]
        await client.delete_channel(topic, "c#ephemeral")
        assert await client.channels(topic) == []
        for _ in range(2):
            await client.delete_topic(topic)
        assert await client.topics() == ["other"]


async def test_nsqlookupd_says_that_a_channel_is_not_there(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    async with lookupd(nsqlookupd.http) as client:
        with pytest.raises(HTTPError) as raised:
            await client.delete_channel(topic, "c")
        assert (raised.value.status, raised.value.code) == (404, "CHANNEL_NOT_FOUND")


async def test_nsqlookupd_tombstones_one_nsqd_for_one_topic(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    hidden, other = make_nsqd(lookupds=[nsqlookupd]), make_nsqd(lookupds=[nsqlookupd])
    for server in (hidden, other):
        server.create(topic)
        server.create("second")
    eventually(lambda: len(nsqlookupd.lookup(topic)) == len(nsqlookupd.lookup("second")) == 2)
    async with lookupd(nsqlookupd.http) as client:
        await client.tombstone(topic, hidden.http)
        assert [each.tcp for each in (await client.lookup(topic)).producers] == [other.tcp]
        assert len((await client.lookup("second")).producers) == 2
        await client.tombstone(topic, Address("unknown", 1))


async def test_an_nsqd_of_ipv6_is_tombstoned(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    server = make_nsqd("-broadcast-address=::1", lookupds=[nsqlookupd])
    server.create(topic)
    eventually(lambda: nsqlookupd.lookup(topic))
    async with lookupd(nsqlookupd.http) as client:
        (producer,) = (await client.lookup(topic)).producers
        assert producer.http == Address("::1", server.http.port)
        await client.tombstone(topic, producer.http)
        assert (await client.lookup(topic)).producers == ()
