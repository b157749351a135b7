"""How many messages a micro-batch is planned for."""

import logging
from dataclasses import replace

import pytest

from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.net.http.replies import ChannelStats, TopicStats
from nsqtools.spark.source.depths import Depths, depth
from nsqtools.spark.source.sourceoptions import SourceSettings, parse_source
from tests.support.eventually import eventually
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd, free_port

BODIES = [b"x"] * 3


def settings(*nsqds: Nsqd, topics: str, **options: str) -> SourceSettings:
    given = {"subscribe": topics, "channel": "lake", "staginglocation": "/staging"}
    if nsqds:
        given["nsqd.tcp.addresses"] = ",".join(f"{each.tcp}/{each.http.port}" for each in nsqds)
    return parse_source(given | {key.replace("__", "."): text for key, text in options.items()})


def channel(name: str, depth: int, *, paused: bool = False) -> ChannelStats:
    return ChannelStats(name, depth, 0, 7, 8, 0, 0, 0, 0, paused)


def topic_of(depth: int, *channels: ChannelStats, paused: bool = False) -> TopicStats:
    return TopicStats("t", depth, 0, 0, paused, channels)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (None, 0),
        (topic_of(5), 5),
        (topic_of(5, channel("other", 9)), 5),
        (topic_of(0, channel("lake", 4), channel("other", 9)), 4),
        (topic_of(2, channel("lake", 4)), 6),
        (topic_of(2, channel("lake", 4, paused=True)), 0),
        (topic_of(2, channel("lake", 4), paused=True), 4),
        (topic_of(2, paused=True), 0),
    ],
)
def test_depth_is_what_a_consumer_would_get_now(topic: TopicStats | None, expected: int) -> None:
    assert depth(topic, "lake") == expected


async def test_each_topic_on_each_nsqd_has_its_depth_and_is_made_so_that_it_gets_what_comes(
    make_nsqd: MakeNsqd, topic: str
) -> None:
    one, two = make_nsqd(), make_nsqd()
    depths = Depths(settings(one, two, topics=f"{topic},{topic}.new"))
    one.create(topic, "other")
    two.publish(topic, BODIES * 2)
    found = {
        (topic, str(one.tcp)): 0,
        (f"{topic}.new", str(one.tcp)): 0,
        (topic, str(two.tcp)): 6,
        (f"{topic}.new", str(two.tcp)): 0,
    }
    assert await depths.ask() == found
    assert one.channel(f"{topic}.new", "lake")["depth"] == 0
    one.publish(topic, BODIES)
    eventually(lambda: one.channel(topic, "lake")["depth"] == 3)
    assert await depths.ask() == found | {(topic, str(one.tcp)): 3}


async def test_nsqlookupds_name_the_nsqds_that_have_the_topic(
    make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd, dead = make_nsqlookupd(), make_nsqlookupd()
    addresses = f"{lookupd.http},{dead.http}"
    one, two = make_nsqd(lookupds=[lookupd]), make_nsqd(lookupds=[lookupd])
    dead.stop()
    depths = Depths(settings(topics=topic, nsqlookupd__http__addresses=addresses))
    assert await depths.ask() == {}
    assert [str(dead.http) in each for each in depths.unknown] == [True]
    assert depths.missing == set(), "it may be the silent one that knows the topic"
    one.publish(topic, BODIES)
    eventually(lambda: lookupd.lookup(topic) == {one.tcp})
    assert await depths.ask() == {(topic, str(one.tcp)): 3}
    two.publish(topic, BODIES * 2)
    eventually(lambda: lookupd.lookup(topic) == {one.tcp, two.tcp})
    assert await depths.ask() == {(topic, str(one.tcp)): 3, (topic, str(two.tcp)): 6}


async def test_an_nsqd_that_does_not_answer_is_empty_and_told_once_until_it_does(
    make_nsqd: MakeNsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make_nsqd(), make_nsqd()
    one.publish(topic, BODIES)
    depths = Depths(settings(one, two, topics=topic))
    two.stop()
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        found = await depths.ask()
        assert found == {(topic, str(one.tcp)): 3, (topic, str(two.tcp)): 0}
    assert len(caplog.messages) == 1
    assert str(two.http) in caplog.messages[0]
    caplog.set_level(logging.INFO, "nsqtools.spark.source.depths")
    two.start()
    for _ in range(2):
        await depths.ask()
    assert len(caplog.messages) == 2
    assert str(two.http) in caplog.messages[1]
    two.stop()
    await depths.ask()
    assert len(caplog.messages) == 3


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
async def test_that_nobody_answers_is_an_error_at_the_start_unless_they_are_waited_for(
    nsqd: Nsqd, nsqlookupd: Nsqlookupd, topic: str, kind: str
) -> None:
    server: Nsqd | Nsqlookupd = nsqd
    given, nothing = settings(nsqd, topics=topic), {(topic, str(nsqd.tcp)): 0}
    if kind == "nsqlookupd":
        server = nsqlookupd
        given = settings(topics=topic, nsqlookupd__http__addresses=str(nsqlookupd.http))
        nothing = {}
    heard, deaf = Depths(given), Depths(given)
    assert await heard.ask() == nothing
    server.stop()
    for depths in (heard, Depths(replace(given, wait_for_servers=True))):
        assert await depths.ask() == nothing
        assert str(server.http) in depths.unknown[0]
    with pytest.raises(UnreachableError, match=str(server.http)):
        await deaf.ask()


async def test_a_wrong_http_port_and_a_ca_file_that_is_not_there_are_told_by_their_option(
    nsqd: Nsqd, topic: str
) -> None:
    wrong = settings(topics=topic, nsqd__tcp__addresses=f"{nsqd.tcp}/{free_port()}")
    for given, way in ((wrong, "host:tcp/http"), (replace(wrong, flags=True), "--nsqd-http")):
        with pytest.raises(UnreachableError, match=way) as caught:
            await Depths(given).ask()
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^nsq\.tls_root_ca_file /no/such: "):
        Depths(settings(topics=topic, nsq__tls_root_ca_file="/no/such"))
