"""``relay`` as a process on real servers: nsq_to_nsq's flags, exact JSON, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.relays import CHANNEL, held, numbered, published, to
from tests.support.servers import at, drained, empty
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.binaries import Nsq
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


@pytest.fixture
def source(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


@pytest.fixture
def goal(make_nsqd: MakeNsqd) -> Nsqd:
    return make_nsqd()


def test_everything_arrives_exactly_once_and_is_counted(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    goal.create(topic, "c")
    published(source, topic, numbered(20_000))
    ended = nsqtools_cli("relay", "--topic", topic, *to(goal), *empty(source))
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    assert ended.stderr == (
        f"nsqtools: {topic} -> {topic}: 20000 received, 20000 relayed, 0 filtered, "
        "0 dead-lettered, 0 lost, 0 requeued\n"
    )
    assert drained(source, topic, CHANNEL)
    assert held(nsqtools_cli, goal, topic) == Counter(numbered(20_000))


def test_quietly_it_says_nothing(nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str) -> None:
    published(source, topic, numbered(10))
    ended = nsqtools_cli("relay", "--topic", topic, *to(goal), *empty(source), "-q")
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")


@pytest.mark.nsqd_only("compares with nsq_to_nsq, for which there is the real nsqd")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-mode=round-robin", "--producer-opt=dial_timeout,2s", "-max-in-flight", "10"),
        ("-mode", "epsilon-greedy", "-require-json-field", "n"),
        ("--require-json-field=s", "-require-json-value", "text"),
        ("-require-json-field", "n", "-require-json-value=3", "--whitelist-json-field", "n"),
        ("-whitelist-json-field", "a", "-whitelist-json-field", "n"),
    ],
    ids=lambda flags: " ".join(flags) or "defaults",
)
def test_nsq_to_nsqs_flags_relay_the_same(
    nsqtools_cli: Cli,
    source: Nsqd,
    goal: Nsqd,
    nsq: Nsq,
    topic: str,
    flags: Sequence[str],
) -> None:
    """Both get the very same words. Messages are such as nsq_to_nsq does not spoil."""
    program = nsq.path("nsq_to_nsq", "that relay is like nsq_to_nsq")
    bodies = [
        json.dumps(
            {"a": number % 2, "n": number % 5, "s": ["text", "other"][number % 3 > 0]}
        ).encode()
        for number in range(100)
    ]

    def words(name: str) -> tuple[str, ...]:
        return (
            *(f"-topic={topic}", "-channel", name, "--destination-topic", name),
            *("-status-every=100", "--consumer-opt", "max_backoff_duration,2m", *flags),
            f"-nsqd-tcp-address={source.tcp}",
            f"-destination-nsqd-tcp-address={goal.tcp}",
        )

    for name in ("go", "py"):
        source.create(topic, name)
        goal.create(name, "c")
    source.publish(topic, bodies)
    ours = nsqtools_cli.start("relay", *words("py"))
    with subprocess.Popen([program, *words("go")], stderr=subprocess.DEVNULL) as theirs:
        try:
            eventually(lambda: drained(source, topic, "go") and drained(source, topic, "py"))
            for process in (ours, theirs):
                process.terminate()
                assert process.wait(20) == 0
        finally:
            theirs.kill()
    made = {name: held(nsqtools_cli, goal, name) for name in ("go", "py")}
    plain = {
        name: Counter(json.dumps(json.loads(body), sort_keys=True) for body in found.elements())
        for name, found in made.items()
    }
    assert plain["py"] == plain["go"]
    assert plain["py"]


def test_several_topics_are_mapped(nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str) -> None:
    for name in ("one", "two"):
        published(source, f"{name}.{topic}", [name.encode()])
    topics = ("--topic", f"one.{topic}", "--topic", f"two.{topic}")
    maps = ("--map", r"one\.(.*)=first.\1", "--map", r"nosuch.*=x")
    ended = nsqtools_cli("relay", *topics, *maps, *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    assert held(nsqtools_cli, goal, f"first.{topic}") == Counter([b"one"])
    assert held(nsqtools_cli, goal, f"two.{topic}") == Counter([b"two"])
    assert f"one.{topic} -> first.{topic}: 1 received, 1 relayed" in ended.stderr


def test_with_nsqlookupd_all_its_nsqds_are_relayed(
    nsqtools_cli: Cli,
    make_nsqlookupd: MakeNsqlookupd,
    make_nsqd: MakeNsqd,
    goal: Nsqd,
    topic: str,
) -> None:
    lookupd = make_nsqlookupd()
    nsqds = [make_nsqd(lookupds=[lookupd]) for _ in range(2)]
    for nsqd in nsqds:
        published(nsqd, topic, numbered(100))
    eventually(lambda: len(lookupd.lookup(topic)) == 2)
    where = ("--lookupd-http-address", str(lookupd.http))
    ended = nsqtools_cli("relay", "--topic", topic, *to(goal), *where, "--until-empty")
    assert ended.code == 0, ended.stderr
    assert goal.topic(topic)["message_count"] == 200


def test_json_keeps_its_big_numbers_order_and_characters(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    body = '{"z":12345678901234567890, "a":"<é\\u003c>&", "secret":1, "ok":true}'
    published(source, topic, [body.encode(), body.replace("true", "false").encode(), b"{}"])
    fields = ("--whitelist-json-field", "a", "--whitelist-json-field", "z")
    required = ("--require-json-field", "ok", "--require-json-value", "true")
    ended = nsqtools_cli("relay", "--topic", topic, *required, *fields, *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    assert "3 received, 1 relayed, 2 filtered" in ended.stderr
    expected = '{"z":12345678901234567890,"a":"<é\\u003c>&"}'
    assert held(nsqtools_cli, goal, topic) == Counter([expected.encode()])


@pytest.mark.parametrize("bodies", [[b"not json", b"[1]", b'{"a":1}']])
def test_what_is_not_json_is_a_dead_letter(
    nsqtools_cli: Cli,
    source: Nsqd,
    goal: Nsqd,
    topic: str,
    tmp_path: Path,
    bodies: Sequence[bytes],
) -> None:
    for target in (
        ("--dead-letter-topic", f"dead.{topic}"),
        ("--dead-letter-dir", str(tmp_path / "dead")),
    ):
        published(source, topic, bodies)
        rules = ("--require-json-field", "a", *target)
        ended = nsqtools_cli("relay", "--topic", topic, *rules, *to(goal), *empty(source))
        assert ended.code == 0, ended.stderr
        assert "3 received, 1 relayed, 0 filtered, 2 dead-lettered" in ended.stderr
        assert "went to the dead letters: not JSON" in ended.stderr
    assert held(nsqtools_cli, source, f"dead.{topic}") == Counter(bodies[:2])
    lines = (tmp_path / f"dead/{topic}.dead.jsonl").read_text().splitlines()
    assert {(each["body"], each["reason"]) for each in map(json.loads, lines)} == {
        ("not json", "not JSON"),
        ("[1]", "not a JSON object"),
    }


def test_dead_letters_can_be_posted(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    published(source, topic, [b"not json", b'{"a":1}'])
    with WebServer() as server:
        rules = ("--require-json-field", "a", "--dead-letter-url", server.url())
        ended = nsqtools_cli("relay", "--topic", topic, *rules, *to(goal), *empty(source))
        assert ended.code == 0, ended.stderr
        (letter,) = [json.loads(request.body) for request in server.requests]
    assert (letter["topic"], letter["body"], letter["reason"]) == (topic, "not json", "not JSON")


def test_without_a_place_for_dead_letters_what_is_not_json_stays_in_nsqd(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    published(source, topic, [b"not json", b'{"a":1}'])
    relay = nsqtools_cli.start(
        *("relay", "--topic", topic, "--require-json-field", "a", *to(goal), *at(source)),
        stderr=subprocess.PIPE,
    )
    eventually(lambda: source.channel(topic, CHANNEL)["deferred_count"] == 1)
    eventually(lambda: goal.topic(topic)["message_count"] == 1)
    relay.terminate()
    assert relay.wait(20) == 4
    assert relay.stderr
    assert b"1 messages cannot be relayed and go back to nsqd: not JSON" in relay.stderr.read()
    assert source.channel(topic, CHANNEL)["deferred_count"] == 1


def test_pass_invalid_relays_what_is_not_json_as_it_is(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    bodies = [b"not json", b"[1]", b'{"a":1}', b'{"b":1}']
    published(source, topic, bodies)
    rules = ("--require-json-field", "a", "--pass-invalid")
    ended = nsqtools_cli("relay", "--topic", topic, *rules, *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    assert held(nsqtools_cli, goal, topic) == Counter(bodies[:3])


def test_a_loss_over_max_attempts_is_logged_with_ids_and_is_status_4(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    published(source, topic, [b"not json"])
    options = ("--max-attempts", "2", "--consumer-opt", "default_requeue_delay,0s")
    rules = ("--require-json-field", "a", *options)
    ended = nsqtools_cli("relay", "--topic", topic, *rules, *to(goal), *empty(source))
    assert ended.code == 4
    assert "gave up 1 messages after too many attempts, they are lost: " in ended.stderr
    assert "3 received, 0 relayed" in ended.stderr


def test_jq_chooses_and_edits(nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str) -> None:
    pytest.importorskip("jq")
    published(source, topic, numbered(10))
    rules = ("--where", ".n >= 8", "--set", '.from = "eu"', "--set", ".n |= . + 1")
    ended = nsqtools_cli("relay", "--topic", topic, *rules, *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    expected = Counter([b'{"n":9,"from":"eu"}', b'{"n":10,"from":"eu"}'])
    assert held(nsqtools_cli, goal, topic) == expected


def test_defer_defers(nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str) -> None:
    goal.create(topic, "c")
    published(source, topic, numbered(5))
    ended = nsqtools_cli("relay", "--topic", topic, "--defer", "1h", *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    eventually(lambda: goal.channel(topic, "c")["deferred_count"] == 5)


def test_a_message_too_big_for_the_destination_is_a_dead_letter_alone(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, source: Nsqd, topic: str
) -> None:
    goal = make_nsqd("-max-msg-size=1000")
    bodies = numbered(200)
    bodies[77] = b"x" * 2000
    published(source, topic, bodies)
    options = ("--dead-letter-topic", f"dead.{topic}")
    ended = nsqtools_cli("relay", "--topic", topic, *options, *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    assert "E_BAD_MESSAGE" in ended.stderr
    found = held(nsqtools_cli, goal, topic)
    assert set(found) == {body for body in bodies if len(body) < 1000}
    assert held(nsqtools_cli, source, f"dead.{topic}") == Counter([bodies[77]])


def test_the_rate_is_not_exceeded(nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str) -> None:
    published(source, topic, numbered(100))
    started = time.monotonic()
    ended = nsqtools_cli("relay", "--topic", topic, "--rate", "50", *to(goal), *empty(source))
    assert ended.code == 0, ended.stderr
    assert time.monotonic() - started > 1.8
    assert goal.topic(topic)["message_count"] == 100


def test_sigterm_drains_and_leaves_the_rest(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    goal.create(topic, "c")
    published(source, topic, numbered(5000))
    relay = nsqtools_cli.start("relay", "--topic", topic, "--rate", "500", *to(goal), *at(source))
    eventually(lambda: goal.topic(topic)["message_count"] > 100)
    relay.send_signal(signal.SIGTERM)
    assert relay.wait(30) == 0
    relayed = goal.topic(topic)["message_count"]
    assert relayed < 5000
    eventually(lambda: source.channel(topic, CHANNEL)["in_flight_count"] == 0)
    assert source.channel(topic, CHANNEL)["depth"] == 5000 - relayed


def test_sigterm_gives_everything_back_while_the_destination_is_down(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    source.create(topic, CHANNEL)
    relay = nsqtools_cli.start("relay", "--topic", topic, *to(goal), *at(source))
    eventually(lambda: source.channel(topic, CHANNEL)["client_count"] == 1)
    goal.stop()
    published(source, topic, numbered(1000))
    eventually(lambda: source.channel(topic, CHANNEL)["in_flight_count"] > 0)
    relay.send_signal(signal.SIGTERM)
    assert relay.wait(30) == 0
    eventually(lambda: source.channel(topic, CHANNEL)["depth"] == 1000)
    assert source.channel(topic, CHANNEL)["in_flight_count"] == 0


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ((), "--destination-nsqd-tcp-address"),
        (("--destination-nsqd-tcp-address", "x:y"), "x:y"),
        (("--mode", "nosuch"), "--mode"),
        (("--require-json-value", "x"), "--require-json-field"),
        (("--map", "x"), "--map"),
        (("--map", "(=x"), "--map"),
        (("--map", "t=no spaces"), "no spaces"),
        (("--map", "a=b", "--destination-topic", "c"), "--destination-topic"),
        (("--where", ".a b"), "--where"),
        (("--set", ")"), "--set"),
        (("--defer", "2h"), "--defer"),
        (("--producer-opt", "nosuch,1"), "nosuch"),
        (("--dead-letter-topic", "t"), "--dead-letter-topic"),
        (("--dead-letter-topic", "d", "--dead-letter-dir", "d"), "--dead-letter-dir"),
    ],
)
def test_usage_errors_are_status_2(nsqtools_cli: Cli, options: Sequence[str], culprit: str) -> None:
    given = ("--destination-nsqd-tcp-address", "127.0.0.1:9") if options else ()
    ended = nsqtools_cli("relay", "--topic", "t", *given, *options)
    assert (ended.code, ended.stdout) == (2, b""), ended.stderr
    assert culprit in ended.stderr


def test_a_destination_that_cannot_be_reached_is_status_3_and_costs_no_attempt(
    nsqtools_cli: Cli, source: Nsqd, goal: Nsqd, topic: str
) -> None:
    published(source, topic, numbered(10))
    goal.stop()
    ended = nsqtools_cli("relay", "--topic", topic, *to(goal), *at(source))
    assert ended.code == 3
    assert f"{goal.tcp}: connection refused" in ended.stderr
    channel = source.channel(topic, CHANNEL)
    assert (channel["depth"], channel["requeue_count"]) == (10, 0)
