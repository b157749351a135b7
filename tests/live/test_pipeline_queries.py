"""That a query to the console loses nothing that it has not shown."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.servers import at
from tests.support.spark import java_options, needs_spark
from tests.support.trees import descendants, is_alive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

pytestmark = pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")

START = 120.0  # seconds that Spark may take to begin on a busy machine
BODIES = [b"%d" % number for number in range(1000)]
TEXT = "CAST(body AS STRING)"


class Console:
    """Queries of a topic, without a checkpoint."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path) -> None:
        needs_spark("queries to the console")
        self.cli = cli
        self.nsqd = nsqd
        self.topic = topic
        self.state = folder / "state"
        self.log = folder / "log"
        self.options = (
            *("--topic", topic, "--channel", "c", "--master", "local[2]", *at(nsqd)),
            *("--nsqd-http-address", str(nsqd.http)),
        )
        self.env = {"JDK_JAVA_OPTIONS": java_options(), "XDG_STATE_HOME": str(self.state)}

    def start(self, column: str, *options: str, stdout: int) -> subprocess.Popen[bytes]:
        command = ("pipeline", "sql", "--query", f"SELECT {column} FROM nsq", *self.options)
        with self.log.open("wb") as log:
            return self.cli.start(*command, *options, env=self.env, stdout=stdout, stderr=log)

    def through_head(self, column: str) -> int:
        """The exit status of a query whose reader takes a line."""
        process = self.start(column, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        return process.wait(START)

    def killed(self, column: str) -> None:
        """The query is in the midst of its rows, since nobody takes more of them than one."""
        process = self.start(column, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        below = descendants(process.pid)
        process.kill()
        process.wait()
        eventually(lambda: not any(map(is_alive, below)), timeout=30)

    @property
    def waiting(self) -> int:
        found = self.nsqd.channel(self.topic, "c")
        return int(found["depth"] + found["in_flight_count"])

    @property
    def kept(self) -> list[Path]:
        return [*self.state.rglob("*.arrow")]


def test_what_a_query_has_not_shown_is_shown_by_the_next_one_or_is_in_nsqd(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    console = Console(nsqtools_cli, nsqd, topic, tmp_path)
    nsqd.create(topic, "c")
    nsqd.publish(topic, [*BODIES[:500], b"x", *BODIES[500:]])
    eventually(lambda: console.waiting == 1001)

    assert console.through_head(f"CAST({TEXT} AS INT)") == 1
    said = console.log.read_text()
    assert "CAST_INVALID_INPUT" in said
    (kept,) = console.state.glob("nsqtools/sql-*")
    assert f"{1001 - console.waiting:,} messages received" in said
    assert str(kept) in said
    assert kept.stat().st_mode & 0o007 == 0

    console.killed(f"rpad({TEXT}, 1000, ' ')")
    assert console.kept

    assert console.through_head(f"try_cast({TEXT} AS INT)") == -signal.SIGPIPE
    assert "1,001 messages received" in console.log.read_text()
    assert console.waiting == 0

    shown = tmp_path / "shown"
    with shown.open("wb") as out:
        process = console.start(TEXT, "--continuous", "--trigger", "100ms", stdout=out.fileno())
    eventually(lambda: shown.read_bytes().count(b"\n") == 1001, timeout=START)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(START) == 0
    assert sorted(shown.read_bytes().split()) == sorted([*BODIES, b"x"])
    assert (console.waiting, console.kept, console.log.read_text()) == (0, [], "")
