"""``tail`` as a process on real servers: pipes, signals, failures, exit codes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import Consuming
from tests.support.eventually import eventually
from tests.support.process import COMMAND, neutral
from tests.support.servers import at, empty

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd

PIPE = subprocess.PIPE


@dataclass(frozen=True, slots=True)
class Tail(Consuming):
    """``tail`` of a topic of its own."""

    name = "tail"


@pytest.fixture
def tail(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path) -> Tail:
    made = Tail(nsqtools_cli, nsqd, topic, tmp_path)
    made.create()
    return made


def test_a_short_reader_leaves_the_unread_messages_to_others(tail: Tail) -> None:
    tail.publish([b"%06d" % number + b"x" * 1000 for number in range(20_000)])
    command = " ".join([*COMMAND, *tail.command(), *at(tail.nsqd)])
    for line, printed in (
        (f'{command} | head -3; echo "${{PIPESTATUS[@]}}"', 4),
        (f"{command} -n 10 | head -3", 3),
        (f"{command} -n 10 --channel d | true", 0),
    ):
        ended = subprocess.run(
            ["bash", "-c", line], env=neutral(), capture_output=True, timeout=60, check=False
        )
        assert ended.stderr == b""
        lines = ended.stdout.splitlines()
        assert len(lines) == printed
        assert printed < 4 or lines[-1] == b"141 0"
    # Finished is what the pipe holds beyond the three lines that were read.
    assert tail.depth() > 17_000


def test_a_dead_server_beside_a_living_one_is_a_warning(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    nsqd.create(topic, "c")
    eventually(lambda: lookupd.lookup(topic))
    for place in (("--lookupd-http-address", str(lookupd.http)), at(nsqd)):
        nsqd.publish(topic, [b"found"])
        dead = (place[0], "127.0.0.1:1")
        tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", "-n", "1", *dead, *place)
        assert (tailed.code, tailed.stdout) == (0, b"found\n")
        assert tailed.stderr.count("127.0.0.1:1: ") == tailed.stderr.count("\n") == 1
        alone = nsqtools_cli("tail", "--topic", topic, "-n", "1", *dead)
        assert (alone.code, alone.stderr.count("\n")) == (3, 1)


def test_until_empty_names_the_nsqlookupd_of_which_it_is_unknown(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    nsqd.create(topic, "c")
    eventually(lambda: nsqlookupd.lookup(topic))
    nsqd.publish(topic, [b"x"])
    tailed = nsqtools_cli(
        *("-q", "tail", "--topic", topic, "--channel", "c"),
        *("--until-empty", "--max-duration", "2s"),
        *("--lookupd-http-address", str(nsqlookupd.http), "--lookupd-http-address", "127.0.0.1:1"),
    )
    assert (tailed.code, tailed.stdout) == (4, b"x\n")
    assert "127.0.0.1:1: " in tailed.stderr


def test_a_terminal_shows_what_until_empty_waits_for(tail: Tail) -> None:
    tail.make_known()
    tail.cli("pub", "--topic", tail.topic, "--defer", "1h", *at(tail.nsqd), "late")
    leader, follower = os.openpty()
    with tail.cli.start(
        *tail.command(*empty(tail.nsqd)), stdout=subprocess.DEVNULL, stderr=follower
    ) as process:
        os.close(follower)
        assert b"1 deferred" in os.read(leader, 1000)
        process.terminate()
        assert process.wait(100) == 0
    os.close(leader)


def test_control_bytes_never_reach_a_terminal(tail: Tail) -> None:
    tail.publish([b"\x1b[31mred\x07"])
    leader, follower = os.openpty()
    running = tail.start("-n", "1", stdout=follower)
    os.close(follower)
    assert os.read(leader, 1000) == b"\\x1b[31mred\\x07\r\n"
    assert running.process.wait(100) == 0
    os.close(leader)
