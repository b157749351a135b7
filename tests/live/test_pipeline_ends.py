"""Jobs of Spark that are killed, stopped, or lose their reader, before they are done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.lakes import sent, to_parquet
from tests.support.servers import at
from tests.support.spark import START, java_options, needs_spark
from tests.support.streaming import publish
from tests.support.trees import descendants, is_alive

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import Nsqd

pytestmark = [
    pytest.mark.full("jobs with a Spark of their own that end before they are done"),
    pytest.mark.timeout(900),  # with four JVMs in a row, on a busy machine
]

BODIES = [b"%d" % number for number in range(1000)]
TEXT = "CAST(body AS STRING)"


class Job:
    """A job on an archive, which is at a step of its work."""

    def __init__(self, cli: Cli, folder: Path, step: str, *command: str) -> None:
        needs_spark("what becomes of a job that ends before it is done")
        self.folder, self.log = folder, folder / "log"
        to_parquet(folder / "lake/part-1.parquet", sent(*(b"%d" % n for n in range(50_000))))
        with self.log.open("wb") as stderr:
            self.process = cli.start(
                *("pipeline", *command, "--input", "lake", "-v", "--master", "local[2]"),
                env={"JDK_JAVA_OPTIONS": java_options()},
                cwd=folder,
                stderr=stderr,
            )
        eventually(lambda: f"info: {step}\n" in self.log.read_text(), timeout=START)

    def check(self, code: int) -> str:
        """It has left nothing; the one line that it says."""
        assert self.process.wait(START) == code
        for left in ("out/date=*", "out/_nsqtools/*", "lake/_nsqtools/*/replay.json"):
            assert not list(self.folder.glob(left))
        (line,) = re.findall("^(?!nsqtools: info: ).*\n", self.log.read_text(), re.MULTILINE)
        return str(line)


@pytest.mark.parametrize(
    ("step", "command"),
    [
        ("reading", ("compact", "--output", "out")),
        ("staging", ("replay", "--order-by", "sha2(body, 512)")),
    ],
    ids=["compact", "replay"],
)
def test_a_java_process_that_dies_is_one_line_and_a_failure(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, step: str, command: tuple[str, ...]
) -> None:
    more = ("--topic", topic, *at(nsqd)) if step == "staging" else ()
    job = Job(nsqtools_cli, tmp_path, step, *command, *more)
    below = descendants(job.process.pid)
    (java,) = [each for each in below if Path(f"/proc/{each}/comm").read_text() == "java\n"]
    os.kill(java, signal.SIGKILL)
    said = job.check(1)
    assert said.startswith("nsqtools: Spark's Java process has ended: ")
    assert "--spark-log" in said


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
