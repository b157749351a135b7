"""How the jobs of Spark that are no streams end before they are done."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.lakes import sent, to_parquet
from tests.support.servers import at
from tests.support.spark import java_options, needs_spark
from tests.support.trees import descendants

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import Nsqd

pytestmark = pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")

START = 120.0  # seconds that Spark may take to begin on a busy machine

ENDLESS = "SELECT count(*) FROM range(1000000000000), nsq"


@pytest.mark.parametrize(
    ("step", "command"),
    [
        ("reading", ("compact", "--output", "out")),
        ("staging", ("replay", "--order-by", "sha2(body, 512)")),
        ("querying", ("sql", "--query", ENDLESS)),
    ],
    ids=["compact", "replay", "sql"],
)
def test_a_java_process_that_dies_is_one_line_and_a_failure(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, step: str, command: tuple[str, ...]
) -> None:
    needs_spark("what becomes of a job whose Java process dies")
    lake = tmp_path / "lake"
    to_parquet(lake / "part-1.parquet", sent(*(b"%d" % number for number in range(50_000))))
    more = ("--topic", topic, *at(nsqd)) if step == "staging" else ()
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = nsqtools_cli.start(
            *("pipeline", *command, *more, "--input", str(lake), "-v", "--master", "local[2]"),
            env={"JDK_JAVA_OPTIONS": java_options()},
            cwd=tmp_path,
            stderr=stderr,
        )
    eventually(lambda: f"info: {step}\n" in log.read_text(), timeout=START)
    (java,) = [each for each in descendants(process.pid) if name(each) == "java"]
    os.kill(java, signal.SIGKILL)
    assert process.wait(START) == 1
    said = re.sub("^nsqtools: info: .*\n", "", log.read_text(), flags=re.MULTILINE)
    assert said == "nsqtools: Spark's Java process has ended: --spark-log FILE shows why\n"
    assert not list(tmp_path.glob("out/date=*"))
    assert not list(tmp_path.glob("out/_nsqtools/*"))
    assert not list(lake.glob("_nsqtools/*/replay.json"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_at_once_stops_as_one_to_the_command(
    nsqtools_cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    needs_spark("what becomes of a job that is stopped")
    lake = tmp_path / "lake"
    to_parquet(lake / "part-1.parquet", sent(*(b"%d" % number for number in range(50_000))))
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = nsqtools_cli.start(
            *("pipeline", "compact", "--input", str(lake), "--output", "out", "-v"),
            env={"JDK_JAVA_OPTIONS": java_options()},
            cwd=tmp_path,
            stderr=stderr,
        )
    eventually(lambda: "info: reading\n" in log.read_text(), timeout=START)
    os.killpg(process.pid, number)
    assert process.wait(START) == {signal.SIGTERM: 1, signal.SIGINT: 130}[number]
    said = re.sub("^nsqtools: info: .*\n", "", log.read_text(), flags=re.MULTILINE)
    assert said == "nsqtools: warning: stopped: the output is as it was\n"
    assert not list(tmp_path.glob("out/date=*"))


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
