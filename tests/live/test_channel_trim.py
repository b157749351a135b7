"""``channel trim`` as a process: what is old goes, what is younger stays, whoever consumes too."""

from __future__ import annotations

import gzip
import json
import signal
import struct
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dead import dead_cluster
from tests.support.eventually import eventually
from tests.support.raw import Raw
from tests.support.reporting import http, lookup, registered
from tests.support.servers import at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

DAY = 86_400 * 10**9
OLD, YOUNGER = 500, 300

pytestmark = pytest.mark.nsqd_only("it is about messages on disk")


def age(nsqd: Nsqd, topic: str, bodies: list[bytes]) -> None:
    """Put messages into channel ``c`` that were published two days ago."""
    nsqd.create(topic, "c")
    nsqd.stop()
    published = time.time_ns() - 2 * DAY
    records = b""
    for number, body in enumerate(bodies):
        message = struct.pack(">qH16s", published, 1, b"0ld%013x" % number) + body
        records += struct.pack(">i", len(message)) + message
    name = f"{nsqd.data_path}/{topic}:c.diskqueue"
    with open(f"{name}.000000.dat", "wb") as data:
        data.write(records)
    with open(f"{name}.meta.dat", "w") as meta:
        meta.write(f"{len(bodies)}\n0,0\n0,{len(records)}\n")
    nsqd.start()


def state(nsqd: Nsqd, topic: str) -> tuple[int, ...]:
    """Depth, in flight, deferred and timed out of channel ``c``."""
    found = nsqd.channel(topic, "c")
    names = ("depth", "in_flight_count", "deferred_count", "timeout_count")
    return tuple(found[name] for name in names)


@dataclass
class Trimmed:
    """An nsqd whose channel has old and younger messages."""

    cli: Cli
    nsqd: Nsqd
    topic: str

    @property
    def command(self) -> tuple[str, ...]:
        return ("channel", "trim", self.topic, "c", "--older-than", "24h", *http([self.nsqd]))

    def run(self, *options: str, code: int = 0) -> Result:
        ended = self.cli(*self.command, *options)
        assert ended.code == code, ended.stderr
        return ended

    def rest(self) -> list[tuple[bytes, int]]:
        """What the channel has in the end, each with its attempts."""
        said = ("--format", "%s %a\\n", "--until-empty", *http([self.nsqd]), *at(self.nsqd))
        ended = self.cli("tail", "--topic", self.topic, "--channel", "c", *said)
        lines = [line.rsplit(b" ", 1) for line in ended.stdout.splitlines()]
        return sorted((body, int(attempts)) for body, attempts in lines)


@pytest.fixture
def trimmed(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str) -> Trimmed:
    nsqd = make_nsqd("-mem-queue-size=100")
    age(nsqd, topic, [b"old%d" % number for number in range(OLD)])
    nsqd.publish(topic, [b"new%03d" % number for number in range(YOUNGER)])
    eventually(lambda: state(nsqd, topic) == (OLD + YOUNGER, 0, 0, 0))
    return Trimmed(nsqtools_cli, nsqd, topic)


def test_what_is_old_is_in_the_archive_and_what_is_younger_in_the_channel(
    trimmed: Trimmed, tmp_path: Path
) -> None:
    with Raw(trimmed.nsqd.tcp) as other:
        other.identify()
        other.subscribe(trimmed.topic, "c", ready=1)
        deferred = other.message()
        other.send("RDY 0")
        other.send(f"REQ {deferred.id} 3600000")
        eventually(lambda: state(trimmed.nsqd, trimmed.topic) == (OLD + YOUNGER - 1, 0, 1, 0))
    assert "800 messages" in trimmed.run("--dry-run").stderr
    ended = trimmed.run("--archive", str(tmp_path / "old"), "--json")
    (path,) = (tmp_path / "old").glob(f"{trimmed.topic}.c.*.json.gz")
    lines = gzip.decompress(path.read_bytes()).splitlines()
    archived = {json.loads(line)["body"].encode() for line in lines}
    old = {b"old%d" % number for number in range(OLD)} - {deferred.body}
    new = {b"new%03d" % number for number in range(YOUNGER)} - {deferred.body}
    assert archived == old
    (server,) = json.loads(ended.stdout)["servers"]
    assert (server["finished"], server["younger"]) == (len(old), len(new))
    assert state(trimmed.nsqd, trimmed.topic) == (len(new), 0, 1, 0)
    checked = trimmed.cli("verify", "--format", "json", str(path))
    assert checked.code == 0, checked.stdout
    count = ("-n", str(len(new)), "--format", "%s %a\\n", *at(trimmed.nsqd))
    tailed = trimmed.cli("tail", "--topic", trimmed.topic, "--channel", "c", *count)
    assert sorted(tailed.stdout.splitlines()) == sorted(body + b" 2" for body in new)


def test_a_signal_gives_back_what_is_held(trimmed: Trimmed) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Raw(trimmed.nsqd.tcp) as other:
        other.identify()
        other.subscribe(trimmed.topic, "c", ready=1)
        taken = other.message()
        other.send("RDY 0")
        running = trimmed.cli.start(*trimmed.command, "--yes", **pipes)
        younger = YOUNGER - taken.body.startswith(b"new")
        eventually(lambda: state(trimmed.nsqd, trimmed.topic) == (0, younger + 1, 0, 0))
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        finished = OLD + YOUNGER - 1 - younger
        assert out.split()[2:] == [b"%d" % finished, b"%d" % younger]
        assert running.returncode == 130
        other.send(f"REQ {taken.id} 0")
        eventually(lambda: state(trimmed.nsqd, trimmed.topic)[0] == younger + 1)
    assert len(trimmed.rest()) == younger + 1


def test_an_archive_that_cannot_be_written_loses_nothing(trimmed: Trimmed, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = trimmed.cli(*trimmed.command, "--archive", str(tmp_path / "file"))
    assert ended.code in (1, 2)
    assert state(trimmed.nsqd, trimmed.topic) == (OLD + YOUNGER, 0, 0, 0)


def test_nothing_is_done_without_consent_or_where_nothing_can_be_trimmed(trimmed: Trimmed) -> None:
    trimmed.run(code=2)
    ended = trimmed.cli(
        *("channel", "trim", trimmed.topic, "d", "--older-than", "24h", "--yes"),
        *http([trimmed.nsqd]),
    )
    assert ended.code == 1
    assert len(trimmed.nsqd.topic(trimmed.topic)["channels"]) == 1
    trimmed.nsqd.pause(trimmed.topic, "c")
    assert "unpause" in trimmed.run("--yes", code=1).stderr
    assert state(trimmed.nsqd, trimmed.topic) == (OLD + YOUNGER, 0, 0, 0)


def test_an_nsqd_that_is_listed_and_dead_is_named_and_the_others_are_trimmed(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    age(nsqd, "t", [b"x"] * 9)
    registered("t", [nsqlookupd])
    with dead_cluster(refusing=1) as dead:
        where = (*lookup([nsqlookupd]), "--lookupd-http-address", str(dead))
        ended = nsqtools_cli("channel", "trim", "t", "c", "--older-than", "1h", "--yes", *where)
    assert ended.code == 4
    assert "127.1.0.1:1" in ended.stderr
    assert state(nsqd, "t") == (0, 0, 0, 0)
