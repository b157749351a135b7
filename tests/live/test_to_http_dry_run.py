"""``to-http --dry-run`` as a process: it takes no message from anybody, and leaves no channel."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.posting import DIRECT
from tests.support.servers import at, free_port
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.process import Cli
    from tests.support.servers import Nsqd, Nsqlookupd


@pytest.mark.parametrize("channels", [(), ("other#ephemeral",)])
def test_a_dry_run_makes_no_channel_of_a_topic_without_one_and_says_so(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, channels: tuple[str, ...]
) -> None:
    for channel in channels:
        nsqd.create(topic, channel)
    nsqd.publish(topic, [b"precious"])
    ended = nsqtools_cli(
        *("to-http", "--topic", topic, "--channel", "c", "--post", "http://127.0.0.1:9/"),
        *("--dry-run", *at(nsqd), "--nsqd-http-address", str(nsqd.http)),
    )
    assert (ended.code, ended.stdout) == (3, b"")
    assert f"channel create {topic} c" in ended.stderr
    there = nsqd.topic(topic)
    assert there["message_count"] == 1
    assert {each["channel_name"] for each in there["channels"]} == set(channels)


def test_a_dry_run_of_a_topic_that_is_not_there_makes_none(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    ended = nsqtools_cli(
        *("to-http", "--topic", topic, "--channel", "c", "--post", "http://127.0.0.1:9/"),
        *("--dry-run", *at(nsqd), "--nsqd-http-address", str(nsqd.http)),
    )
    assert (ended.code, ended.stdout) == (3, b"")
    assert topic not in {each["topic_name"] for each in nsqd.stats()["topics"]}


def test_a_dry_run_that_cannot_see_the_channels_subscribes_to_none(posting: Posting) -> None:
    posting.publish([b"precious"])
    ended = posting.cli(
        *posting.command("--post", "http://127.0.0.1:9/", "--dry-run", *at(posting.nsqd)),
        *("--nsqd-http-address", f"127.0.0.1:{free_port()}"),
    )
    assert (ended.code, ended.stdout) == (3, b"")
    assert "--nsqd-http-address" in ended.stderr
    assert [each["message_count"] for each in posting.nsqd.topic(posting.topic)["channels"]] == [1]


def test_a_dry_run_finds_the_channels_through_nsqlookupd(
    nsqtools_cli: Cli, lookupds: list[Nsqlookupd], nsqds: list[Nsqd], topic: str
) -> None:
    nsqds[0].create(topic, "c")
    nsqds[0].publish(topic, [b"precious"])
    eventually(lambda: lookupds[0].lookup(topic) == {nsqds[0].tcp})
    ended = nsqtools_cli(
        *("to-http", "--topic", topic, "--channel", "c", "--post", "http://127.0.0.1:9/"),
        *("--dry-run", "--max-duration", "1s"),
        *("--lookupd-http-address", str(lookupds[0].http)),
    )
    assert (ended.code, ended.stdout) == (0, b"")
    assert f"1 message in its channels at {nsqds[0].tcp}" in ended.stderr


def test_a_dry_run_prints_requests_and_takes_nothing(posting: Posting) -> None:
    posting.publish([b"before"])
    with WebServer() as web:
        process = posting.cli.start(
            *posting.command("--post", web.url("/in"), "--header", "X-Own: 1", "--dry-run"),
            *("--count", "2", *at(posting.nsqd)),
            *("--nsqd-http-address", str(posting.nsqd.http)),
            env=DIRECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

        def clients() -> int:
            channels = posting.nsqd.topic(posting.topic)["channels"]
            return sum(each["client_count"] for each in channels)

        eventually(clients)
        posting.publish([b"one", b"two\x1b[31m"])
        stdout, stderr = process.communicate(timeout=20)
        assert process.returncode == 0
        assert web.connections == 0
    assert b"1 message in its channels" in stderr
    assert posting.channel()["depth"] == 3
    assert stdout.count(b"POST /in HTTP/1.1\nHost: 127.0.0.1") == 2
    assert stdout.count(b"X-Own: 1\n") == 2
    assert stdout.count(b"\n\none\n\n") == stdout.count(b"\n\ntwo\x1b[31m\n\n") == 1
    eventually(lambda: len(posting.nsqd.topic(posting.topic)["channels"]) == 1)
    posting.nsqd.empty(posting.topic, "c")
