"""Queries to the console that fail, are killed, stopped, or lose their reader."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.servers import Nsqd, at
from tests.support.spark import START, java_options, needs_spark
from tests.support.streaming import publish
from tests.support.trees import descendants, is_alive

BODIES = [b"%d" % number for number in range(1000)]
TEXT = "CAST(body AS STRING)"


class Console:
    """Queries of a topic, without a checkpoint."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path) -> None:
        needs_spark("queries to the console")
        self.cli, self.nsqd, self.topic = cli, nsqd, topic
        self.state, self.log = folder / "state", folder / "log"

    def start(self, column: str, *options: str, stdout: int) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return self.cli.start(
                *("pipeline", "sql", "--query", f"SELECT {column} FROM nsq", *at(self.nsqd)),
                *("--topic", self.topic, "--channel", "c", "--master", "local[2]"),
                *("--nsqd-http-address", str(self.nsqd.http), *options),
                env={"JDK_JAVA_OPTIONS": java_options(), "XDG_STATE_HOME": str(self.state)},
                stdout=stdout,
                stderr=log,
            )

    def through_head(self, column: str) -> subprocess.Popen[bytes]:
        """A query in the midst of its rows, of which its reader has taken a line."""
        process = self.start(column, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        return process

    @property
    def waiting(self) -> int:
        found = self.nsqd.channel(self.topic, "c")
        return int(found["depth"] + found["in_flight_count"])

    @property
    def kept(self) -> list[Path]:
        return [*self.state.rglob("b*/p*/[0-9]*")]


@pytest.mark.full("queries with a Spark of their own that end before they are done")
@pytest.mark.timeout(900)  # with four JVMs in a row, on a busy machine
def test_what_a_query_has_not_shown_is_shown_by_the_next_one_or_is_in_nsqd(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    console = Console(nsqtools_cli, nsqd, topic, tmp_path)
    publish(nsqd, topic, [*BODIES[:500], b"x", *BODIES[500:]])

    failing = console.through_head(f"CAST({TEXT} AS INT)")
    assert failing.wait(START) == 1
    said = console.log.read_text()
    assert "CAST_INVALID_INPUT" in said
    (kept,) = console.state.glob("nsqtools/sql-*")
    assert f"{1001 - console.waiting:,} messages" in said
    assert str(kept) in said
    assert kept.stat().st_mode & 0o007 == 0

    killed = console.through_head(f"rpad({TEXT}, 1000, ' ')")
    below = descendants(killed.pid)
    killed.kill()
    killed.wait()
    eventually(lambda: not any(map(is_alive, below)))
    assert console.kept

    left = console.through_head(f"try_cast({TEXT} AS INT)")
    assert left.stdout
    left.stdout.close()
    assert left.wait(START) == -signal.SIGPIPE
    assert "1,001 messages" in console.log.read_text()
    assert console.waiting == 0

    shown = tmp_path / "shown"
    with shown.open("wb") as out:
        process = console.start(TEXT, "--continuous", "--trigger", "100ms", stdout=out.fileno())
    eventually(lambda: shown.read_bytes().count(b"\n") == 1001, timeout=START)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(START) == 0
    assert sorted(shown.read_bytes().split()) == sorted([*BODIES, b"x"])
    assert (console.waiting, console.kept, console.log.read_text()) == (0, [], "")
