"""Every example that a command's help gives is run as it stands, on a real nsqd.

The lines are many because the examples are: each has a scenario of its own. Those of ``pipeline``
are tested with Spark, those of ``completion`` in the shells.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from shlex import quote
from typing import TYPE_CHECKING

import pytest

from nsqtools.sinks.members import plain_chunks
from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.examples import BODIES, LINES, Stage
from tests.support.metrics import scrape
from tests.support.nagios import read
from tests.support.raw import Raw
from tests.support.servers import drained as is_drained
from tests.support.servers import free_port
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.servers import MakeNsqd, Nsqlookupd

    Scenario = Callable[[Stage, str], None]

EXAMPLES = [line for line in LINES if not re.search("nsqtools (pipeline|completion) ", line)]
TEXT = b"".join(body + b"\n" for body in BODIES)


@pytest.fixture
def stage(tmp_path: Path, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd) -> Iterator[Stage]:
    folder = tmp_path / "stage"
    folder.mkdir()
    stage = Stage(folder, make_nsqd(lookupds=[nsqlookupd]), nsqlookupd)
    yield stage
    stage.cli.close()


def consumes(command: str, then: Scenario) -> Scenario:
    """A consumer of ``events`` that SIGTERM ends once it has taken all messages."""

    def scenario(stage: Stage, line: str) -> None:
        running = stage.start(line)
        stage.subscribed("events")
        stage.nsqd.publish("events", BODIES)
        stage.published("events", len(BODIES))
        eventually(lambda: [c["depth"] for c in stage.nsqd.topic("events")["channels"]] == [0])
        assert running.end(stop=command) == b""
        then(stage, line)

    return scenario


def drains(channel: str, then: Scenario) -> Scenario:
    """A consumer that ends by itself once the channel of ``events`` is empty."""

    def scenario(stage: Stage, line: str) -> None:
        stage.nsqd.create("events", channel)
        stage.nsqd.publish("events", BODIES)
        then(stage, line)

    return scenario


def tail_ends_by_itself(stage: Stage, line: str) -> None:
    running = stage.start(line)
    stage.subscribed("events")
    stage.nsqd.publish("events", BODIES)
    assert running.end() == TEXT


def tail_into_jq(stage: Stage, line: str) -> None:
    needs("jq", "that messages can be piped to jq")
    running = stage.start(line)
    stage.subscribed("events")
    stage.nsqd.publish("events", BODIES)
    stage.published("events", len(BODIES))
    (channel,) = [c["channel_name"] for c in stage.nsqd.topic("events")["channels"]]
    eventually(lambda: is_drained(stage.nsqd, "events", channel))
    assert running.end(stop="tail") == b"1\n2\n3\n4\n5\n"


def print_with_times(stage: Stage, line: str) -> None:
    stamp = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* "
    shown = stage.run(line).splitlines()
    assert [re.sub(stamp, b"", each) for each in shown] == BODIES
    assert all(re.match(stamp, each) for each in shown)


def pub_one(stage: Stage, line: str) -> None:
    assert stage.run(line) == b""
    stage.published("events", 1)


def pub_a_file(stage: Stage, line: str) -> None:
    (stage.folder / "events.log").write_bytes(TEXT)
    assert stage.run(line) == b""
    stage.published("events", len(BODIES))


def copy_a_topic(stage: Stage, line: str) -> None:
    running = stage.start(line)
    stage.subscribed("a")
    bodies = [bytes(range(256)), *BODIES]
    stage.nsqd.publish("a", bodies)
    stage.published("b", len(bodies))
    assert running.end(stop="tail") == b""


def pub_an_archive(stage: Stage, line: str) -> None:
    """What came within three seconds takes the tenth part of that."""
    stamped = (
        {"timestamp": n * 750_000_000, "body": body.decode()} for n, body in enumerate(BODIES)
    )
    envelopes = "".join(f"{json.dumps(each)}\n" for each in stamped)
    (stage.folder / "events.log.gz").write_bytes(gzip.compress(envelopes.encode()))
    began = time.monotonic()
    assert stage.run(line) == b""
    assert time.monotonic() - began >= 0.3
    stage.published("events", len(BODIES))


def archived(path: Path) -> bytes:
    with path.open("rb") as file:
        return b"".join(plain_chunks(file, {".gz": "gzip", ".zst": "zstd"}[path.suffix]))


def is_archived(stage: Stage, line: str) -> None:
    """All messages in one file, and nothing half written."""
    assert [archived(path) for path in (stage.folder / "archive").glob("*.log.*")] == [TEXT]


def archive_a_channel(stage: Stage, line: str) -> None:
    assert stage.run(line) == b""
    is_archived(stage, line)


def archive_by_day(stage: Stage, line: str) -> None:
    assert stage.run(line) == b""
    partitions = sorted((stage.folder / "lake").glob("dt=*/events.*.json.zst"))
    records = [json.loads(each) for path in partitions for each in archived(path).splitlines()]
    assert [record["body"].encode() for record in records] == BODIES
    days = [time.strftime("%Y-%m-%d", time.gmtime(r["timestamp"] // 10**9)) for r in records]
    assert sorted(set(days)) == [path.parent.name.removeprefix("dt=") for path in partitions]


def archive_and_upload(stage: Stage, line: str) -> None:
    """The program to upload with is one that notes what it is asked for."""
    uploads = stage.folder / "uploads"
    stage.program("aws", f'echo "$NSQ_COUNT $*" >> {quote(str(uploads))}')
    consumes("to-file", is_archived)(stage, line)
    (path,) = (stage.folder / "archive").glob("*.log.*")
    assert uploads.read_text() == f"5 s3 cp {path} s3://archive/\n"


def deliver(stage: Stage, line: str) -> None:
    with WebServer() as server:
        here = line.replace("127.0.0.1:8080", str(server.address))
        consumes("to-http", lambda *_: None)(stage, here)
        bodies = [each for request in server.requests for each in request.body.splitlines()]
    assert sorted(bodies) == BODIES
    assert (stage.folder / "dead").is_dir() == ("--dead-letter-dir dead" in line)


def show_requests(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "nsq_to_http")
    running = stage.start(line)
    eventually(lambda: any(stage.nsqd.topic("events")["channels"][1:]))
    stage.subscribed("events")
    stage.nsqd.publish("events", BODIES)
    eventually(lambda: sorted(c["depth"] for c in stage.nsqd.topic("events")["channels"]) == [0, 5])
    shown = running.end(stop="to-http")
    assert shown.count(b"POST /hook HTTP/1.1\nHost: 127.0.0.1:8080\n") == len(BODIES)
    assert all(b"\n\n" + body + b"\n\n" in shown for body in BODIES)


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


def move_a_channel(stage: Stage, line: str) -> None:
    stage.nsqd.create("orders", "archive")
    stage.nsqd.publish("orders", BODIES)
    here = line.replace("127.0.0.1:4150", str(stage.nsqd.tcp))
    assert stage.start(here).end(said=None) == b""
    stage.published("orders.old", len(BODIES))


def verify_archives(stage: Stage, line: str) -> None:
    for name in ("events.a.log.gz", "events.b.log.gz"):
        (stage.folder / name).write_bytes(gzip.compress(TEXT))
    shown = stage.run(line).decode().splitlines()
    assert [each.partition(",")[0] for each in shown] == [
        "events.a.log.gz: ok",
        "events.b.log.gz: ok",
    ]
    assert all(", 5 records, " in each for each in shown)


def archive(stage: Stage, *options: str) -> None:
    """Have ``to-file`` make an archive in the folder of the stage."""
    stage.nsqd.create("events", "nsq_to_file")
    stage.nsqd.publish("events", BODIES)
    stage.run(" ".join(("nsqtools to-file --topic events --until-empty", *options)))


def verify_json(stage: Stage, line: str) -> None:
    archive(stage, "--format json --compress zstd --filename-format '<TOPIC><REV>.json'")
    assert stage.run(line).startswith(b"events-000000.json.zst: ok, 5 records, ")


def verify_a_manifest(stage: Stage, line: str) -> None:
    archive(stage, "--manifest manifest")
    assert stage.run(line) == b""
    assert stage.run(line.replace(" -q", "")).startswith(b"manifest: ok, 5 records, ")
    (path,) = stage.folder.glob("*.log")
    path.write_bytes(TEXT[:-1])
    assert stage.start(line).end(code=4).startswith(b"manifest: ")


def names(*wanted: str) -> Scenario:
    """One name a line, of what the topic ``events`` with a channel brings about."""

    def scenario(stage: Stage, line: str) -> None:
        announced(stage)
        assert stage.run(line).decode().split() == list(wanted)

    return scenario


def announced(stage: Stage) -> None:
    """Create a topic and a channel, and wait until nsqlookupd knows of them."""
    stage.nsqd.create("events", "archive")
    eventually(lambda: stage.lookupd.lookup("events") == {stage.nsqd.tcp})
    eventually(lambda: b"archive" in stage.lookupd.request("GET", "/channels", topic="events"))


def filled(stage: Stage) -> None:
    """As ``announced``, with all messages in the channel."""
    announced(stage)
    stage.nsqd.publish("events", BODIES)
    eventually(lambda: stage.nsqd.channel("events", "archive")["depth"] == len(BODIES))


def producers(stage: Stage, line: str) -> None:
    announced(stage)
    assert stage.run(line).decode().startswith(f"{stage.nsqd.tcp}\t{stage.nsqd.http}\t")


def nodes(stage: Stage, line: str) -> None:
    announced(stage)
    (node,) = json.loads(stage.run(line))["producers"]
    assert (node["tcp_port"], node["topics"]) == (stage.nsqd.tcp.port, ["events"])


def report_a_channel(stage: Stage, line: str) -> None:
    filled(stage)
    running = stage.start(line)
    assert running.process.stdout
    titles, row = [running.process.stdout.readline().split() for _ in range(3)][1:]
    assert (titles[0], row[3], row[11]) == (b"ingress", b"5", b"5")
    running.end(stop="stats")


def report_all(stage: Stage, line: str) -> None:
    filled(stage)
    rows = [row.split() for row in stage.run(line).splitlines()[2:] if row]
    assert [(row[3], *row[14:]) for row in rows] == [
        (b"0", b"events", b"-"),
        (b"5", b"events", b"archive"),
    ]


def watch_all(stage: Stage, line: str) -> None:
    script = needs("script", "that the example of a live view runs")
    announced(stage)
    running = stage.start(f"TERM=xterm {script} -qec {quote(line)} /dev/null")
    shown = b""
    assert running.process.stdout
    while not (b"archive" in shown and b"q quit" in shown):
        data = os.read(running.process.stdout.fileno(), 65536)
        assert data, shown
        shown += data
    running.end(stop="stats")


def find_the_deepest(stage: Stage, line: str) -> None:
    filled(stage)
    stage.nsqd.create("other", "shallow")
    assert stage.run(line).split(b",")[1:3] == [b"events", b"archive"]


def find_the_idle(stage: Stage, line: str) -> None:
    needs("jq", "that reports can be piped to jq")
    announced(stage)
    with Raw(stage.nsqd.tcp) as consumer:
        consumer.identify(hostname="idle.example")
        consumer.subscribe("events", "archive")
        assert stage.run(line) == b"idle.example\n"


def at_home(stage: Stage, line: str) -> str:
    """The line with the servers of the stage in place of those on the default ports."""
    here = {"127.0.0.1:4161": stage.lookupd.http, "127.0.0.1:4151": stage.nsqd.http}
    for usual, address in here.items():
        line = line.replace(usual, str(address))
    return line


def changes(state: str, wanted: object, *, paused: bool = False) -> Scenario:
    """What a command leaves of a topic with one message in its channel and, if paused, another."""

    def scenario(stage: Stage, line: str) -> None:
        announced(stage)
        stage.nsqd.publish("events", [b"x"])
        eventually(lambda: stage.nsqd.channel("events", "archive")["depth"] == 1)
        if paused:
            stage.nsqd.pause("events")
            stage.nsqd.pause("events", "archive")
            stage.nsqd.publish("events", [b"y"])
        assert b"failed" not in stage.run(at_home(stage, line))
        assert state_of(stage)[state] == wanted

    return scenario


def state_of(stage: Stage) -> dict[str, object]:
    """The topic and its channel, on nsqd and on nsqlookupd."""
    found = {each["topic_name"]: each for each in stage.nsqd.stats()["topics"] or ()}
    topic = found.get("events", {"channels": [], "depth": None, "paused": None})
    channels = {each["channel_name"]: each for each in topic["channels"]}
    archive = channels.get("archive", {"depth": None, "paused": None})
    known = json.loads(stage.lookupd.request("GET", "/channels", topic="events"))["channels"]
    return {
        "topic depth": topic["depth"],
        "topic paused": topic["paused"],
        "depth": archive["depth"],
        "paused": archive["paused"],
        "channels": (sorted(channels), sorted(known)),
        "lookup": stage.lookupd.lookup("events"),
    }


def make_a_topic_known(stage: Stage, line: str) -> None:
    assert stage.run(at_home(stage, line)) == f"nsqlookupd\t{stage.lookupd.http}\tdone\n".encode()
    assert json.loads(stage.lookupd.request("GET", "/topics")) == {"topics": ["events"]}


def make_a_channel(stage: Stage, line: str) -> None:
    stage.nsqd.create("events")
    eventually(lambda: stage.lookupd.lookup("events"))
    stage.run(line)
    assert state_of(stage)["channels"] == (["archive"], ["archive"])


def ask_the_doctor(stage: Stage, line: str) -> None:
    announced(stage)
    stage.nsqd.publish("events", [b"x"])
    eventually(lambda: stage.nsqd.channel("events", "archive")["depth"] == 1)
    shown = stage.run(at_home(stage, line)).decode().splitlines()
    found = [each for each in shown if "depth 1, in flight 0, deferred 0, 0 consumers" in each]
    assert [each.split()[0] for each in found] == ["warning"]
    assert {each.split()[0] for each in shown} == {"ok", "warning", "fix:"}


def check_a_channel(stage: Stage, line: str) -> None:
    announced(stage)
    output = read(stage.run(line).decode())
    assert (output.state, output.data["events/archive:depth"].value) == ("OK", 0)
    stage.nsqd.publish("events", [b"x"] * 1001)
    eventually(lambda: stage.nsqd.channel("events", "archive")["depth"] == 1001)
    assert read(stage.start(line).end(code=1).decode()).state == "WARNING"


def serve_metrics(stage: Stage, line: str) -> None:
    """At another port, as that one may be taken here."""
    announced(stage)
    port = free_port()
    running = stage.start(line.replace("9117", str(port)))
    found = eventually(lambda: scrape(f"http://127.0.0.1:{port}/metrics"))
    assert found["nsq_channel_depth", "archive", str(stage.nsqd.http), "events"] == 0
    assert running.end(stop="stats") == b""


def show_settings(*wanted: str) -> Scenario:
    """Lines of option, value, source and place."""

    def scenario(stage: Stage, line: str) -> None:
        stage.environment["NSQTOOLS_CLIENT_ID"] = "me"
        shown = [each.split("\t") for each in stage.run(line).decode().splitlines()]
        assert ["client-id", "me", "environment", "NSQTOOLS_CLIENT_ID"] in shown
        assert {each.partition("=")[0]: each.partition("=")[2] for each in wanted}.items() <= {
            option: value for option, value, *_ in shown
        }.items()

    return scenario


def check_the_file(stage: Stage, line: str) -> None:
    file = stage.folder / ".config/nsqtools/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[tail]\ncount = 5\n")
    assert stage.run(line) == f"{file}: ok\n".encode()


def begin_a_file(stage: Stage, line: str) -> None:
    assert stage.run(line) == b""
    assert stage.run("nsqtools config check nsqtools.toml") == b"nsqtools.toml: ok\n"


def sandbox(stage: Stage, line: str) -> None:
    running = stage.start(line)
    assert running.process.stdout
    addresses = json.loads(running.process.stdout.readline())
    assert set(addresses) >= {"nsqd_tcp_address", "lookupd_http_address"}
    assert running.end(stop="sandbox") == b""


def demo(stage: Stage, line: str) -> None:
    """It begins; all of it is tested elsewhere."""
    running = stage.start(line)
    assert running.process.stdout
    while not running.process.stdout.readline().startswith(b"$ nsqtools "):
        pass
    running.end(stop="demo", said=None, code=1)


EXPECTED: dict[str, Scenario] = {
    "nsqtools tail --topic events -n 5": tail_ends_by_itself,
    "nsqtools tail --topic events | jq .user": tail_into_jq,
    "nsqtools tail --topic events --channel archive --timestamps --until-empty": drains(
        "archive", print_with_times
    ),
    "nsqtools pub --topic events hello": pub_one,
    "nsqtools pub --topic events --file events.log": pub_a_file,
    "nsqtools tail --topic a --json | nsqtools pub --topic b --json": copy_a_topic,
    "nsqtools pub --topic events --from-archive --json --pace 10x events.log.gz": pub_an_archive,
    "nsqtools to-file --topic events --output-dir archive --compress zstd": consumes(
        "to-file", is_archived
    ),
    "nsqtools to-file --topic events --output-dir archive --gzip --until-empty --max-duration 9m "
    "--lock events.lock -q": drains("nsq_to_file", archive_a_channel),
    "nsqtools to-file --topic events --output-dir lake --format json --compress zstd "
    "--name-by message --filename-format 'dt=<DATETIME>/<TOPIC>.<HOST><REV>.json' "
    "--datetime-format %Y-%m-%d --utc --until-empty": drains("nsq_to_file", archive_by_day),
    "nsqtools to-file --topic events --output-dir archive --gzip --rotate-size 256MiB "
    "--on-rotate 'aws s3 cp {} s3://archive/' --max-age 168h": archive_and_upload,
    "nsqtools to-http --topic events --post http://127.0.0.1:8080/hook": deliver,
    "nsqtools to-http --topic events --post http://127.0.0.1:8080/bulk --batch 100 "
    "--max-attempts 5 --dead-letter-dir dead": deliver,
    "nsqtools to-http --topic events --post http://127.0.0.1:8080/hook --dry-run": show_requests,
    "nsqtools relay --topic orders --topic clicks "
    "--destination-nsqd-tcp-address 127.0.0.1:5150": relays(BODIES, goal="orders", relayed=BODIES),
    "nsqtools relay --topic orders --channel archive --destination-topic orders.old "
    "--destination-nsqd-tcp-address 127.0.0.1:4150 --until-empty": move_a_channel,
    "nsqtools relay --topic orders --destination-nsqd-tcp-address 127.0.0.1:5150 "
    "--require-json-field paid --require-json-value true "
    "--whitelist-json-field id --whitelist-json-field paid --dead-letter-dir dead": relays(
        [b'{"id": 1, "card": 2, "paid": true}', b'{"id": 2, "paid": false}', b"no JSON"],
        goal="orders",
        relayed=[b'{"id":1,"paid":true}'],
    ),
    "nsqtools relay --topic orders --destination-nsqd-tcp-address 127.0.0.1:5150 "
    "--where '.total > 100' --set '.from = \"eu\"' --map '(.*)=eu.\\1' "
    "--dead-letter-dir dead": relays(
        [b'{"total":101}', b'{"total":99}'],
        goal="eu.orders",
        relayed=[b'{"total":101,"from":"eu"}'],
    ),
    "nsqtools verify events.*.log.gz": verify_archives,
    "nsqtools verify --format json *.json.zst": verify_json,
    "nsqtools verify -q manifest": verify_a_manifest,
    "nsqtools lookup topics": names("events"),
    "nsqtools lookup channels events": names("archive"),
    "nsqtools lookup producers events": producers,
    "nsqtools lookup nodes --json": nodes,
    "nsqtools stats --topic events --channel archive": report_a_channel,
    "nsqtools stats --once": report_all,
    "nsqtools stats --watch": watch_all,
    "nsqtools stats --once --csv | sort -t, -k6 -nr | head": find_the_deepest,
    "nsqtools stats --once --clients --json | jq -r '.topics[].channels[].consumers[] | "
    "select(.finished == 0).hostname'": find_the_idle,
    "nsqtools doctor --topic events": ask_the_doctor,
    "nsqtools doctor --topic events --channel archive "
    "--lookupd-http-address 127.0.0.1:4161": ask_the_doctor,
    "nsqtools topic create events --lookupd-http-address 127.0.0.1:4161": make_a_topic_known,
    "nsqtools topic delete events --dry-run": changes("depth", 1),
    "nsqtools topic delete events --yes": changes("channels", ([], [])),
    "nsqtools topic empty events --yes": changes("topic depth", 0, paused=True),
    "nsqtools topic pause events": changes("topic paused", True),
    "nsqtools topic unpause events": changes("topic paused", False, paused=True),
    "nsqtools channel create events archive": make_a_channel,
    "nsqtools channel delete events archive --yes": changes("channels", ([], [])),
    "nsqtools channel empty events archive --yes --json": changes("depth", 0),
    "nsqtools channel pause events archive": changes("paused", True),
    "nsqtools channel unpause events archive": changes("paused", False, paused=True),
    "nsqtools node tombstone events 127.0.0.1:4151 --lookupd-http-address 127.0.0.1:4161": changes(
        "lookup", set()
    ),
    "nsqtools config show tail": show_settings("count=0"),
    "nsqtools config show tail --topic events -n 5": show_settings("count=5", "topic=events"),
    "nsqtools config check": check_the_file,
    "nsqtools config init > nsqtools.toml": begin_a_file,
    "nsqtools stats --check --topic events --channel archive --depth-warn 1000 "
    "--depth-crit 10000": check_a_channel,
    "nsqtools stats --serve 127.0.0.1:9117": serve_metrics,
    "nsqtools sandbox --seed-topic events": sandbox,
    "nsqtools sandbox --port 0": sandbox,
    "nsqtools demo": demo,
}
"""What is expected of each example, by its line."""


def test_every_example_is_expected_to_do_something_and_nothing_else_is() -> None:
    assert set(EXPECTED) == set(EXAMPLES)


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_does_what_it_says(stage: Stage, line: str) -> None:
    EXPECTED[line](stage, line)
