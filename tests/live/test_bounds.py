"""What servers and archives may make a command keep in memory: at full size, in a process."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.eventually import eventually
from tests.support.hostile import MIB, Hostile, endless, header
from tests.support.servers import at, drained, empty
from tests.support.wire import MESSAGE, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

LIMIT = 200 << 10
"""KiB that no command may take."""

CLAIMED = 0x7FFFFFF0
STREAMED = 1 << 30
HUGE = 400
"""MiB of a line, which take no room where they are compressed."""


def commands(address: str) -> dict[str, tuple[str, ...]]:
    at = ("--topic", "t", "--nsqd-tcp-address", address)
    return {
        "tail": ("tail", *at, "--channel", "c", "--max-duration", "3s", "--snappy"),
        "doctor": ("doctor", *at),
    }


CUES = {"tail": "RDY", "doctor": "NOP"}


@pytest.mark.parametrize(("name", "kind"), [("tail", MESSAGE), ("doctor", RESPONSE)])
def test_a_frame_that_claims_two_gigabytes_is_refused_by_its_header(
    nsqtools_cli: Cli, name: str, kind: int
) -> None:
    def attack() -> Iterator[bytes]:
        return endless(header(CLAIMED, kind), STREAMED)

    with Hostile(attack, cue=CUES[name], snappy=name == "tail") as hostile:
        ended = nsqtools_cli.measured(*commands(str(hostile.address))[name])
    assert ended.peak < LIMIT
    lines = (ended.stdout.decode() + ended.stderr).splitlines()
    assert (said := [line for line in lines if str(CLAIMED) in line])
    assert all(str(hostile.address) in line for line in said)
    if name == "tail":
        assert all("--max-msg-size" in line for line in said)


@pytest.mark.parametrize(("size", "options"), [(1 << 20, ()), (20 << 20, ("--snappy",))])
def test_messages_that_real_nsqds_take_pass_by_default(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    tmp_path: Path,
    size: int,
    options: tuple[str, ...],
) -> None:
    nsqd = make_nsqd(f"-max-msg-size={size}", f"-max-body-size={2 * size}")
    body = random.Random(size).randbytes(size)
    for channel in "ab":
        nsqd.create(topic, channel)
    nsqd.request("POST", "/pub", body, topic=topic)
    common = ("--topic", topic, "-n", "1", "--max-duration", "1m", *at(nsqd), *options)
    seen = nsqtools_cli("tail", "--channel", "a", "--length-prefix", *common)
    assert (seen.code, seen.stdout) == (0, size.to_bytes(4, "big") + body)
    folder = tmp_path / "out"
    archived = ("to-file", "--channel", "b", "--format", "json", "--output-dir", str(folder))
    assert nsqtools_cli(*archived, *common).code == 0
    (path,) = archives.published(folder)
    assert nsqtools_cli("verify", "--format", "json", str(path)).code == 0


def bomb(path: Path) -> Path:
    """An archive of one JSON line whose body is huge, behind a good one."""
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(b'{"body":"good"}\n{"body":"')
        for _ in range(HUGE):
            packed.write(b"x" * MIB)
        packed.write(b'"}\n')
    return path


def test_neither_verify_nor_recovery_reads_a_line_that_is_larger_than_memory_may_be(
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
    before = bomb(left).read_bytes()
    nsqd.publish(topic, [b"fresh"])
    ended = nsqtools_cli.measured(*command, "--max-duration", "1m", *empty(nsqd))
    assert ended.code == 1
    (line,) = (each for each in ended.stderr.splitlines() if "--max-msg-size" in each)
    assert str(left) in line
    assert ended.peak < LIMIT
    assert left.read_bytes() == before
    (fresh,) = folder.glob("*.gz")
    assert json.loads(archives.plain(fresh))["body"] == "fresh"
    assert drained(nsqd, topic, "c")

    whole = left.rename(tmp_path / "events.log.gz")
    ended = nsqtools_cli.measured("verify", "--format", "json", str(whole))
    assert ended.code == 1
    (line,) = ended.stderr.splitlines()
    assert str(whole) in line
    assert "line 2 " in line
    assert "--max-msg-size" in line
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
    assert ended.code == 0
    assert nsqd.topic(f"{topic}.to")["depth"] == 1
    (letters,) = (tmp_path / "dead").iterdir()
    assert json.loads(letters.read_bytes())["body"] == "x" * 1000
    assert drained(nsqd, topic, "c")
