"""What was published comes back from a lake to the byte, whichever way it went there."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.chance import seeded
from tests.support.eventually import eventually
from tests.support.servers import at, drained, empty
from tests.support.spark import java_options, needs_spark

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd

pytestmark = pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")

MESSAGES = 200_000 if os.environ.get("NSQTOOLS_TEST_FULL") == "1" else 60_000
SMALL = MESSAGES // 10
PATIENCE = 120.0  # seconds that a process of Spark may take on a busy machine

HOSTILE = [b"\0", b"\n", b"\r\n", b" ", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0\n" * 150]
"""What formats, codecs and shells like to lose: delimiters, halves of characters, surrogates."""


def random_bodies(rng: random.Random) -> list[bytes]:
    """Of 1 to 300 bytes; those of one byte, and some of two, are there many times."""
    sizes = [*range(1, 3)] * (SMALL // 2)
    sizes += [rng.randint(1, 300) for _ in range(MESSAGES - len(sizes) - 100 * len(HOSTILE))]
    bodies = [*map(rng.randbytes, sizes), *HOSTILE * 100]
    rng.shuffle(bodies)
    return bodies


def prefixed(bodies: Iterable[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def records(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        yield data[start + 4 : end]
        start = end


class Shell:
    """Runs commands that succeed and say nothing."""

    def __init__(self, cli: Cli, nsqd: Nsqd) -> None:
        self._cli = cli
        self.nsqd = nsqd

    def __call__(self, *args: str, stdin: bytes = b"") -> bytes:
        env = {"JDK_JAVA_OPTIONS": java_options()}
        ended: Result = self._cli(*args, stdin=stdin, env=env, timeout=PATIENCE)
        assert (ended.code, ended.stderr) == (0, ""), args
        return ended.stdout

    def pipeline(self, *args: str) -> None:
        self("pipeline", *args, "--master", "local[2]")

    def tail(self, topic: str) -> Counter[bytes]:
        options = ("--channel", "tail", "--length-prefix", *empty(self.nsqd))
        return Counter(records(self("tail", "--topic", topic, *options)))


def test_binary_bodies_come_back_the_same_by_archive_and_by_to_file(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    """``pub``, ``pipeline archive`` or ``to-file``, ``pipeline compact`` and ``replay``, ``tail``.

    One run of ``compact`` takes both in: rows that ``to-file`` wrote have no metadata.
    """
    needs_spark("round trips through a lake")
    shell = Shell(nsqtools_cli, make_nsqd("-mem-queue-size=1000"))
    nsqd, address = shell.nsqd, at(shell.nsqd)
    http = ("--nsqd-http-address", str(nsqd.http))
    bodies = random_bodies(seeded())
    sent = Counter(bodies)
    assert sent.total() == MESSAGES
    for channel in ("lake", "files"):
        nsqd.create(topic, channel)
    shell("pub", "--topic", topic, "--length-prefix", "-q", *address, stdin=prefixed(bodies))
    for channel in ("lake", "files"):
        eventually(lambda c=channel: nsqd.channel(topic, c)["message_count"] == MESSAGES)  # type: ignore[misc]

    lake, files, few = (str(tmp_path / name) for name in ("lake", "files", "few"))
    shell.pipeline(
        *("archive", "--topic", topic, "--channel", "lake", "--output", lake, *address, *http)
    )
    shell(
        *("to-file", "--topic", topic, "--channel", "files", "--output-dir", files, "-q"),
        *("--format", "length-prefixed", "--compress", "zstd", "--rotate-size", "4MiB"),
        *empty(nsqd),
    )
    assert drained(nsqd, topic, "lake")
    assert drained(nsqd, topic, "files")

    shell.pipeline(
        *("compact", "--input", lake, "--input", files, "--input-format", "length-prefixed"),
        *("--output", few),
    )
    for way, condition in (("archive", "IS NOT NULL"), ("to-file", "IS NULL")):
        goal = f"{topic}.{way}"
        nsqd.create(goal, "tail")
        where = f"message_id {condition}"
        shell.pipeline("replay", "--input", few, "--topic", goal, "--where", where, *address)
        found = shell.tail(goal)
        assert ((sent - found).total(), (found - sent).total()) == (0, 0), way
