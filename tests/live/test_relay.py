"""``relay`` as a process on real servers: nsq_to_nsq's flags, exact JSON, exit codes, loops."""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqtools.cli.clusterproducer import ClusterProducer
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import SourceOptions
from nsqtools.errors import UnreachableError
from tests.support.binaries import Nsq
from tests.support.consuming import run_beside
from tests.support.decoding import order, protobuf_file
from tests.support.eventually import eventually, eventually_async
from tests.support.process import Cli
from tests.support.proxy import Proxy
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, at, empty

CHANNEL = "nsq_to_nsq"


@pytest.fixture
def goal(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


def published(nsqd: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Messages that wait on relay's channel."""
    nsqd.create(topic, CHANNEL)
    nsqd.publish(topic, bodies)


def arrived(cli: Cli, nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """All that an nsqd got of a topic since it was started."""
    count = nsqd.topic(topic)["message_count"]
    tailed = cli("tail", "--topic", topic, "--channel", "c", "--count", str(count), *at(nsqd))
    assert tailed.code == 0, tailed.stderr
    return Counter(tailed.stdout.splitlines())


@pytest.mark.nsqd_only("compares with nsq_to_nsq, for which there is the real nsqd")
@pytest.mark.parametrize(
    "flags",
    [
        ("-mode=round-robin", "--producer-opt=dial_timeout,2s", "-max-in-flight", "10"),
        ("--require-json-field=s", "-require-json-value", "text"),
        ("-require-json-field", "n", "-require-json-value=3", "--whitelist-json-field", "n"),
        ("-whitelist-json-field", "a", "-whitelist-json-field", "n"),
    ],
    ids=" ".join,
)
def test_nsq_to_nsqs_flags_relay_the_same(
    nsqtools_cli: Cli, nsqd: Nsqd, goal: Nsqd, nsq: Nsq, topic: str, flags: Sequence[str]
) -> None:
    """Both get the very same words. Messages are such as nsq_to_nsq does not spoil."""
    program = nsq.path("nsq_to_nsq", "that relay is like nsq_to_nsq")

    def words(name: str) -> tuple[str, ...]:
        return (
            *(f"-topic={topic}", "-channel", name, "--destination-topic", name),
            *("-status-every=100", "--consumer-opt", "max_backoff_duration,2m", *flags),
            f"-nsqd-tcp-address={nsqd.tcp}",
            f"-destination-nsqd-tcp-address={goal.tcp}",
        )

    for name in ("go", "py"):
        nsqd.create(topic, name)
    objects = [
        {"a": number % 2, "n": number % 5, "s": ["text", "other"][number % 3 > 0]}
        for number in range(100)
    ]
    nsqd.publish(topic, [json.dumps(each).encode() for each in objects])
    run_beside(nsqtools_cli, ("relay", *words("py")), (program, *words("go")), nsqd, topic)
    made = {name: arrived(nsqtools_cli, goal, name) for name in ("go", "py")}
    plain = {
        name: Counter(json.dumps(json.loads(body), sort_keys=True) for body in found.elements())
        for name, found in made.items()
    }
    assert plain["py"] == plain["go"]
    assert plain["py"]


def test_topics_are_mapped_their_messages_deferred_and_what_is_not_json_is_a_dead_letter(
    nsqtools_cli: Cli, nsqd: Nsqd, goal: Nsqd, topic: str
) -> None:
    other, dead, bad = f"b.{topic}", f"dead.{topic}", [b"not json", b"[1]"]
    for each in (topic, f"second.{topic}"):
        goal.create(each, "c")
    published(nsqd, topic, [*bad, b'{"a":1}'])
    published(nsqd, other, [b'{"a":2}'])
    ended = nsqtools_cli(
        *("relay", "--topic", topic, "--topic", other, "--map", r"b\.(.*)=second.\1"),
        *("--map", r"nosuch.*=x", "--count", "4", "--status-every", "9", "--defer", "1h"),
        *("--require-json-field", "a", "--dead-letter-topic", dead),
        *("--destination-nsqd-tcp-address", str(goal.tcp), *at(nsqd)),
    )
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    for each in (topic, f"second.{topic}"):
        eventually(lambda each=each: goal.channel(each, "c")["deferred_count"] == 1)  # type: ignore[misc]
    assert f"{other} -> second.{topic}: 1 received, 1 relayed" in ended.stderr
    assert "3 received, 1 relayed, 0 filtered, 2 dead-lettered" in ended.stderr
    assert arrived(nsqtools_cli, nsqd, dead) == Counter(bad)


@pytest.mark.nsqd_only("it lists its producers")
async def test_a_producer_for_dead_letters_is_connected_from_the_first_one_on(
    make_nsqlookupd: MakeNsqlookupd, make_nsqd: MakeNsqd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    source = SourceOptions(topic=("t",), lookupd_http_address=(str(lookupd.http),))
    producer = ClusterProducer(source, ConsumerConfig())
    await producer.close()
    with pytest.raises(UnreachableError):
        await producer.publish(topic, [b"x"])
    nsqd = make_nsqd(lookupds=[lookupd])
    eventually(lambda: json.loads(lookupd.request("GET", "/nodes"))["producers"])
    for _ in range(2):
        await producer.publish(topic, [b"x"])
    assert [each["pub_counts"][0]["count"] for each in nsqd.stats()["producers"]] == [2]
    await producer.close()
    await eventually_async(lambda: not nsqd.stats()["producers"])


# To relay to where it comes from, however that is called, is refused.


async def test_another_port_is_the_same_nsqd_if_http_says_so(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, [b"x"])
    async with Proxy(nsqd.tcp) as proxy:
        ended = await asyncio.to_thread(
            nsqtools_cli,
            *("relay", "--topic", topic, "-n", "1", *at(nsqd)),
            *("--destination-nsqd-tcp-address", str(proxy.address)),
            *("--nsqd-http-address", str(nsqd.http)),
            *("--destination-nsqd-http-address", str(nsqd.http)),
        )
    assert ended.code == 2, ended.stderr
    assert f"topic {topic} would be relayed to {topic}" in ended.stderr
    assert nsqd.channel(topic, CHANNEL)["depth"] == 1


def test_a_loop_that_comes_once_something_was_relayed_is_a_failure(
    nsqtools_cli: Cli, make_nsqlookupd: MakeNsqlookupd, make_nsqd: MakeNsqd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    first, second = make_nsqd(lookupds=[lookupd]), make_nsqd()
    published(first, topic, [b"x"])
    eventually(lambda: lookupd.lookup(topic))
    relay = nsqtools_cli.start(
        *("relay", "--topic", topic, "--lookupd-http-address", str(lookupd.http)),
        *("--destination-nsqd-tcp-address", str(second.tcp)),
        *("--consumer-opt", "lookupd_poll_interval,100ms"),
        stderr=subprocess.PIPE,
    )
    eventually(lambda: second.topic(topic)["message_count"] == 1)
    second.stop()
    second.lookupds = [lookupd]
    second.start()
    second.publish(topic, [b"y"])
    _, stderr = relay.communicate(timeout=100)
    assert (relay.returncode, f"topic {topic} would be relayed".encode() in stderr) == (1, True)


def test_rules_see_decoded_bodies_and_the_bodies_arrive_as_they_were(
    nsqtools_cli: Cli, nsqd: Nsqd, goal: Nsqd, topic: str, tmp_path: Path
) -> None:
    bodies = [order(id=number).SerializeToString() for number in (1, 2, 3)]
    published(nsqd, topic, bodies)
    done = nsqtools_cli(
        *("relay", "--topic", topic, "--destination-nsqd-tcp-address", str(goal.tcp)),
        *("--decode", protobuf_file(tmp_path), "--where", ".id > 1", *empty(nsqd)),
    )
    assert (done.code, "2 relayed, 1 filtered" in done.stderr) == (0, True), done.stderr
    assert arrived(nsqtools_cli, goal, topic) == Counter(bodies[1:])
