"""What servers, archives and limits may do to a command: at full size, in a process."""

import gzip
import json
import random
import resource
import time
from pathlib import Path

import pytest

from tests.support import archives
from tests.support.dead import answering, dead_cluster
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, Nsqd, at, drained, empty

MIB = 1 << 20
LIMIT = 200 << 10
"""KiB that no command may take."""
NSQDS, LOOKUP_LIMIT = 200_000, 150 << 10
"""KiB for so many nsqds."""
HUGE = 240
"""MiB of a line, more than LIMIT, which take no room where they are compressed."""
TIMEOUT = 4
SLACK = 26.0
"""Seconds besides --timeout, for a machine that is busy with much else."""
TOPICS = [f"t{number:02}" for number in range(40)]


@pytest.mark.parametrize(("size", "options"), [(MIB, ()), (20 * MIB, ("--snappy",))])
def test_messages_that_real_nsqds_take_pass_by_default(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, size: int, options: tuple[str, ...]
) -> None:
    nsqd = make_nsqd(f"-max-msg-size={size}", f"-max-body-size={2 * size}")
    body = random.Random(size).randbytes(size)
    nsqd.create(topic, "c")
    nsqd.request("POST", "/pub", body, topic=topic)
    seen = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", "--length-prefix", "-n", "1"),
        *("--max-duration", "1m", *at(nsqd), *options),
    )
    assert (seen.code, seen.stdout) == (0, size.to_bytes(4, "big") + body)


def test_neither_recovery_nor_verify_reads_a_line_that_is_larger_than_memory_may_be(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder), *at(nsqd)),
        *("--filename-format", "<TOPIC><REV>.log", "--format", "json", "--compress", "gzip"),
    )
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"first"])
    killed = nsqtools_cli.start(*command, "--sync-interval", "10ms")
    eventually(lambda: drained(nsqd, topic, "c"))
    killed.kill()
    killed.wait()
    (left,) = folder.glob("*.part")
    with gzip.open(left, "wb", compresslevel=1) as packed:
        packed.write(b'{"body":"good"}\n{"body":"')
        for _ in range(HUGE):
            packed.write(b"x" * MIB)
        packed.write(b'"}\n')
    before = left.read_bytes()
    nsqd.publish(topic, [b"fresh"])
    ended = nsqtools_cli.measured(*command, "--max-duration", "1m", *empty(nsqd))
    assert ended.code == 1
    assert str(left) in next(line for line in ended.stderr.splitlines() if "max-msg-size" in line)
    assert ended.peak < LIMIT
    assert left.read_bytes() == before
    (fresh,) = folder.glob("*.gz")
    assert json.loads(archives.plain(fresh))["body"] == "fresh"
    assert drained(nsqd, topic, "c")
    whole = left.rename(tmp_path / "events.log.gz")
    ended = nsqtools_cli.measured("verify", "--format", "json", str(whole))
    assert (ended.code, "--max-msg-size" in ended.stderr) == (1, True)
    assert ended.peak < LIMIT


def test_a_message_that_relay_may_not_publish_is_read_all_the_same(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x" * 1000, b"short"])
    ended = nsqtools_cli(
        *("relay", "--topic", topic, "--channel", "c", "--destination-topic", f"{topic}.to"),
        *("--destination-nsqd-tcp-address", str(nsqd.tcp), "--max-msg-size", "100"),
        *("--dead-letter-dir", str(tmp_path / "dead"), "--max-duration", "1m", *empty(nsqd)),
    )
    assert (ended.code, nsqd.topic(f"{topic}.to")["depth"]) == (0, 1)
    (letters,) = (tmp_path / "dead").iterdir()
    assert json.loads(letters.read_bytes())["body"] == "x" * 1000
    assert drained(nsqd, topic, "c")


def test_a_command_ends_in_time_and_stays_small_however_many_nsqds_are_dead(
    nsqtools_cli: Cli,
) -> None:
    with dead_cluster(refusing=9_500, hanging=500) as lookupd:
        where = ("--lookupd-http-address", str(lookupd), "--timeout", f"{TIMEOUT}s")
        for words in (("stats", "--once"), ("topic", "pause", "t"), ("doctor", "--topic", "t")):
            began = time.monotonic()
            ended = nsqtools_cli.measured(*words, *where)
            assert time.monotonic() - began < TIMEOUT + SLACK
            assert ended.code in {1, 3, 4}, ended.stderr[-2000:]
            assert "Traceback" not in ended.stderr
            assert ended.peak < LIMIT


@pytest.mark.full("lists of 200,000 nsqds")
def test_two_hundred_thousand_nsqds_take_little_memory(nsqtools_cli: Cli) -> None:
    def nsqd(number: int) -> dict[str, object]:
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        fields = {"broadcast_address": address, "hostname": f"nsqd-{number}.prod.example"}
        ports = {"tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
        return fields | ports | {"remote_address": f"{address}:51234", "topics": ["t"]}

    listed = {"channels": [], "producers": [nsqd(each) for each in range(NSQDS)]}
    with answering({"/nodes": listed, "/lookup": listed}) as lookupd:
        where = ("--lookupd-http-address", str(lookupd))
        nodes = nsqtools_cli.measured("lookup", "nodes", "--json", "--timeout", "100s", *where)
        assert (nodes.code, nodes.stdout.count(b'"hostname"')) == (0, NSQDS)
        assert nodes.peak < LOOKUP_LIMIT
        tail = nsqtools_cli.measured("tail", "--topic", "t", "--max-duration", "100s", *where)
        assert (tail.code, "lists 200,000 nsqds" in tail.stderr) == (2, True)
        assert tail.peak < LOOKUP_LIMIT  # it asks twice


def test_too_few_open_files_lose_nothing_and_the_fix_is_named(
    nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path
) -> None:
    for topic in TOPICS:
        nsqd.create(topic, "c")
        nsqd.publish(topic, [topic.encode()])
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    command = (
        *("to-file", "--channel", "c", "--output-dir", "a", "--sync-interval", "50ms"),
        *(*topics, *at(nsqd), "--requeue-delay", "0s"),
    )

    def run(limit: int, *options: str) -> str:
        with (tmp_path / "stderr").open("wb") as stderr:
            process = nsqtools_cli.start(
                *command,
                *options,
                stderr=stderr,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
            )
        code, said = process.wait(100), (tmp_path / "stderr").read_text()
        assert "Traceback" not in said
        return f"{code}: {said}"

    def written() -> list[str]:
        files = [each for each in (tmp_path / "a").glob("t*") if each.is_file()]
        return sorted(line for each in files for line in each.read_text().splitlines())

    said = run(64, "--max-duration", "3s")
    assert said.startswith("1: ")
    assert "at most 64 files may be open, enough for 10 topics" in said
    queues = {topic: nsqd.channel(topic, "c") for topic in TOPICS}
    left = [name for name, queue in queues.items() if queue["depth"] + queue["deferred_count"]]
    assert len(left) == len(TOPICS) - 10
    assert written() == sorted(set(TOPICS) - set(left))
    assert run(400, "-n", str(len(left))).startswith("0: ")
    assert written() == TOPICS
