"""The examples of the commands' help: lines that nsqtools takes, which do what they say.

What a single command does is tested elsewhere, the examples of ``pipeline`` with Spark, those of
``completion`` in the shells. Here are those that are more: pipes, and what messages are made of.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.archives import plain
from tests.support.binaries import needs
from tests.support.command_lines import commands, parse
from tests.support.eventually import eventually
from tests.support.examples import BODIES, LINES, Stage
from tests.support.servers import drained as is_drained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Scenario = Callable[[Stage, str], None]


def tail_into_jq(stage: Stage, line: str) -> None:
    needs("jq", "that messages can be piped to jq")
    running = stage.start(line)
    stage.subscribed("events")
    stage.nsqd.publish("events", BODIES)
    stage.published("events", len(BODIES))
    (channel,) = [c["channel_name"] for c in stage.nsqd.topic("events")["channels"]]
    eventually(lambda: is_drained(stage.nsqd, "events", channel))
    assert running.end(stop="tail") == b"1\n2\n3\n4\n5\n"


def copy_a_topic(stage: Stage, line: str) -> None:
    running = stage.start(line)
    stage.subscribed("a")
    bodies = [bytes(range(256)), *BODIES]
    stage.nsqd.publish("a", bodies)
    stage.published("b", len(bodies))
    assert running.end(stop="tail") == b""


def archive_by_day(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "nsq_to_file")
    stage.nsqd.publish("events", BODIES)
    assert stage.run(line) == b""
    partitions = sorted((stage.folder / "lake").glob("dt=*/events.*.json.zst"))
    records = [json.loads(each) for path in partitions for each in plain(path).splitlines()]
    assert [record["body"].encode() for record in records] == BODIES
    days = [time.strftime("%Y-%m-%d", time.gmtime(r["timestamp"] // 10**9)) for r in records]
    assert sorted(set(days)) == [path.parent.name.removeprefix("dt=") for path in partitions]


def relays(published: Sequence[bytes], *, goal: str, relayed: Sequence[bytes]) -> Scenario:
    """What comes out of the topic ``goal`` of another nsqd."""

    def scenario(stage: Stage, line: str) -> None:
        with type(stage.nsqd)(stage.folder / "other") as other:
            running = stage.start(line.replace("127.0.0.1:5150", str(other.tcp)))
            stage.subscribed("orders")
            stage.nsqd.publish("orders", published)
            eventually(lambda: other.topic(goal)["message_count"] == len(relayed))
            eventually(lambda: is_drained(stage.nsqd, "orders", "nsq_to_nsq"))
            assert running.end(stop="relay", said=None) == b""
            address = f"--nsqd-tcp-address {other.tcp}"
            shown = stage.run(
                f"nsqtools tail --topic {goal} --channel c -n {len(relayed)} {address}"
            )
        assert sorted(shown.splitlines()) == sorted(relayed)

    return scenario


def find_the_deepest(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "archive")
    stage.nsqd.publish("events", BODIES)
    eventually(lambda: stage.nsqd.channel("events", "archive")["depth"] == len(BODIES))
    stage.nsqd.create("other", "shallow")
    eventually(lambda: stage.lookupd.lookup("events"))
    assert stage.run(line).split(b",")[1:3] == [b"events", b"archive"]


EXPECTED: dict[str, Scenario] = {
    "nsqtools tail --topic events | jq .user": tail_into_jq,
    "nsqtools tail --topic a --json | nsqtools pub --topic b --json": copy_a_topic,
    "nsqtools to-file --topic events --output-dir lake --format json --compress zstd "
    "--name-by message --filename-format 'dt=<DATETIME>/<TOPIC>.<HOST><REV>.json' "
    "--datetime-format %Y-%m-%d --utc --until-empty": archive_by_day,
    "nsqtools relay --topic orders --destination-nsqd-tcp-address 127.0.0.1:5150 "
    "--require-json-field paid --require-json-value true "
    "--whitelist-json-field id --whitelist-json-field paid --dead-letter-dir dead": relays(
        [b'{"id": 1, "card": 2, "paid": true}', b'{"id": 2, "paid": false}', b"no JSON"],
        goal="orders",
        relayed=[b'{"id":1,"paid":true}'],
    ),
    "nsqtools stats --once --csv | sort -t, -k6 -nr | head": find_the_deepest,
}
"""What more than options makes: shells, other programs, and what messages are made of."""


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_a_line_that_nsqtools_takes(line: str) -> None:
    assert commands(line)
    for args in commands(line):
        parse(args)


@pytest.mark.parametrize("line", EXPECTED)
def test_an_example_does_what_it_says(stage: Stage, line: str) -> None:
    assert line in LINES
    EXPECTED[line](stage, line)
