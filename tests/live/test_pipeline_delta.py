"""``pipeline archive --format delta``, with the Spark that has Delta Lake."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqtools.cli.docs import sections
from tests.support.environments import environment
from tests.support.eventually import eventually
from tests.support.examples import shown
from tests.support.killing import Lake, Place, kill
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, drained
from tests.support.spark import START, needs_artifact

TESTS = "tables of Delta Lake"
GUIDE = sections("spark", "guides")["Delta Lake"]

_BODIES = """
import sys, deltalake
rows = deltalake.DeltaTable(sys.argv[1]).to_pyarrow_table(columns=["body"])
print(*(body.decode() for body in rows["body"].to_pylist()))
"""
_STATEMENTS = """
import sys
from nsqtools.spark.sparksession import open_session
with open_session("local[2]", dict(each.split("=") for each in sys.argv[1].split())) as spark:
    for each in sys.argv[2:]:
        spark.sql(each)
"""


@dataclass(frozen=True, slots=True)
class Table(Place):
    """A table, which delta-rs reads."""

    def bodies(self) -> Counter[bytes]:
        return Counter(self.python(_BODIES, self.path).split())

    def python(self, program: str, *args: str) -> bytes:
        """What a program prints in the environment that has Delta Lake."""
        command = [sys.executable, "-c", program, *args]
        given = {**os.environ, **self.environment}
        return subprocess.run(command, env=given, stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture
def lake(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Lake:
    (spark,) = re.findall(r"pip install '(pyspark\S+)'", GUIDE)
    (package,) = re.findall(r"spark\.jars\.packages=(\S+)", GUIDE)
    needs_artifact(package, TESTS)
    programs = environment(TESTS, tmp_path / "venv", spark, "deltalake")
    (site,) = programs.parent.glob("lib/python*/site-packages")
    path = str(tmp_path / "table")
    conf = (f"spark.jars.packages={package}", "spark.databricks.delta.snapshotPartitions=2")
    table = Table(path, path, environment={"PYTHONPATH": str(site)}, conf=conf)
    return Lake(nsqtools_cli, make_nsqd("-msg-timeout=2s"), topic, tmp_path, table)


@pytest.mark.full("an archive to Delta Lake, with a Spark of another version")
@pytest.mark.timeout(1200)
def test_a_batch_is_in_the_table_once_although_the_run_is_killed_after_its_commit(
    lake: Lake,
) -> None:
    # size: an environment that takes long to make serves all
    options = ("--format", "delta", "--max-per-trigger", "300")
    lake.publish(range(2000))

    def is_in_doubt(version: int) -> bool:
        """Whether Delta Lake has a commit, of a batch, that Spark does not know of."""
        process = lake.start(*options, "--trigger", "0s")
        log = Path(lake.place.path, "_delta_log", f"{version:020d}.json")
        eventually(log.exists, START)
        kill(process, alone=False)
        return str(version) in lake.batches("offsets") - lake.batches("commits")

    assert any(map(is_in_doubt, (1, 4, 7)))

    def all_taken() -> bool:
        done = lake.drain(*options)
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)
    lake.check(2000)

    name = f"delta.`{lake.place.path}`"
    statements = [f"INSERT INTO {name} SELECT * FROM {name}"]
    merges = [block for block in shown(GUIDE) if "delta.`" in block]
    for hour in Path(lake.place.path).glob("date=*/hour=*"):
        for block in merges:
            text = block.replace("/lake/events", lake.place.path)
            text = re.sub(r"(date = )'.*?'", rf"\1'{hour.parent.name[5:]}'", text)
            statements.append(re.sub(r"(hour = )\d+", rf"\g<1>{hour.name[5:]}", text))
    assert len(statements) > len(merges) == 2
    assert isinstance(lake.place, Table)
    lake.place.python(_STATEMENTS, " ".join(lake.place.conf), *statements)
    lake.check(2000)
