"""``relay`` to where it comes from, however that is called, is refused."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.support.relays import CHANNEL, numbered, published, to
from tests.support.servers import at, empty

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


@pytest.fixture
def source(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


def refused(cli: Cli, *options: str) -> str:
    """What is said when a loop is refused."""
    ended = cli("relay", *options, "-n", "1")
    assert ended.code == 2, ended.stderr
    assert "round and round" in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_another_spelling_is_the_same_nsqd(
    nsqtools_cli: Cli, source: Nsqd, topic: str, host: str
) -> None:
    published(source, topic, [b"x"])
    goal = f"{host}:{source.tcp.port}"
    said = refused(
        nsqtools_cli, "--topic", topic, "--destination-nsqd-tcp-address", goal, *at(source)
    )
    assert f"topic {topic} would be relayed to {topic}" in said
    assert source.channel(topic, CHANNEL)["depth"] == 1


async def test_another_port_is_the_same_nsqd_if_http_says_so(
    nsqtools_cli: Cli, source: Nsqd, topic: str
) -> None:
    published(source, topic, [b"x"])
    async with Proxy(source.tcp) as proxy:
        await asyncio.to_thread(
            refused,
            nsqtools_cli,
            *("--topic", topic, "--destination-nsqd-tcp-address", str(proxy.address)),
            *("--nsqd-http-address", str(source.http), *at(source)),
            *("--destination-nsqd-http-address", str(source.http)),
        )


def test_a_destination_that_nsqlookupd_knows_is_of_the_same_cluster(
    nsqtools_cli: Cli, make_nsqlookupd: MakeNsqlookupd, make_nsqd: MakeNsqd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    first, second = (make_nsqd(lookupds=[lookupd]) for _ in range(2))
    published(first, topic, [b"x"])
    second.create("another")
    eventually(lambda: len(lookupd.lookup(topic) | lookupd.lookup("another")) == 2)
    where = ("--lookupd-http-address", str(lookupd.http))
    said = refused(nsqtools_cli, "--topic", topic, *to(second), *where)
    assert str(second.tcp) in said


def test_topics_that_are_mapped_in_a_circle_are_a_loop(nsqtools_cli: Cli, source: Nsqd) -> None:
    topics = ("--topic", "a.x", "--topic", "b.x")
    maps = ("--map", r"a\.(.*)=b.\1", "--map", r"b\.(.*)=a.\1")
    said = refused(nsqtools_cli, *topics, *maps, *to(source), *at(source))
    assert "topic a.x would be relayed to b.x" in said


def test_another_topic_of_the_same_nsqd_is_no_loop(
    nsqtools_cli: Cli, source: Nsqd, topic: str
) -> None:
    published(source, topic, numbered(10))
    other = ("--destination-topic", f"copy.{topic}")
    ended = nsqtools_cli("relay", "--topic", topic, *other, *to(source), *empty(source))
    assert ended.code == 0, ended.stderr
    assert source.topic(f"copy.{topic}")["message_count"] == 10


def test_a_loop_that_comes_once_something_was_relayed_is_a_failure(
    nsqtools_cli: Cli, make_nsqlookupd: MakeNsqlookupd, make_nsqd: MakeNsqd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    first, second = make_nsqd(lookupds=[lookupd]), make_nsqd()
    published(first, topic, [b"x"])
    eventually(lambda: lookupd.lookup(topic))
    relay = nsqtools_cli.start(
        *("relay", "--topic", topic, "--lookupd-http-address", str(lookupd.http), *to(second)),
        *("--consumer-opt", "lookupd_poll_interval,100ms"),
        stderr=subprocess.PIPE,
    )
    eventually(lambda: second.topic(topic)["message_count"] == 1)
    second.stop()
    second.lookupds = [lookupd]
    second.start()
    second.publish(topic, [b"y"])
    _, stderr = relay.communicate(timeout=30)
    assert relay.returncode == 1, stderr
    assert b"round and round" in stderr
