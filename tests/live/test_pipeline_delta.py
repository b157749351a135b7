"""``pipeline archive --format delta``, killed after its commits, and the guide's programs."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from nsqtools.cli.docs import sections
from tests.support.eventually import eventually
from tests.support.examples import shown
from tests.support.killing import Lake, Place, kill
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, drained
from tests.support.spark import START

GUIDE = sections("tables", "guides")


@dataclass(frozen=True, slots=True)
class Table(Place):
    """A table, which delta-rs reads."""

    def bodies(self) -> Counter[bytes]:
        return Counter(DeltaTable(self.path).to_pyarrow_table(columns=["body"])["body"].to_pylist())


@pytest.fixture
def lake(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Lake:
    path = str(tmp_path / "table")
    nsqd = make_nsqd("-msg-timeout=2s")
    return Lake(nsqtools_cli, nsqd, topic, tmp_path, Table(path, path))


@pytest.mark.full("an archive to Delta Lake is killed between its commits and Spark's")
@pytest.mark.timeout(1200)
def test_a_batch_is_in_the_table_once_although_the_run_is_killed_after_its_commit(
    lake: Lake,
) -> None:
    options = ("--format", "delta", "--max-per-trigger", "300")
    lake.publish(range(2000))

    def is_in_doubt(batch: int) -> bool:
        """Whether the table has a batch that Spark does not know of."""
        process = lake.start(*options, "--trigger", "0s")
        log = Path(lake.place.path, "_delta_log", f"{batch + 1:020d}.json")
        eventually(log.exists, START)
        kill(process, alone=False)
        return str(batch) in lake.batches("offsets") - lake.batches("commits")

    assert any(map(is_in_doubt, (0, 2, 4)))

    def all_taken() -> bool:
        done = lake.drain(*options)
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)
    lake.check(2000)

    [once] = (block for block in shown(GUIDE["Delta Lake"]) if "import deltalake" in block)
    place = lake.place.path
    for hour in Path(place).glob("date=*/hour=*"):
        text = once.replace("/lake/events", place).replace("2026-11-22", hour.parent.name[5:])
        exec(re.sub(r"(hour = )\d+", rf"\g<1>{int(hour.name[5:])}", text), {})
    done = lake.run("compact", "--input", place)
    assert (done.code, done.stderr) == (0, "")
    hours = {(each.parent, int(each.name[5:])) for each in Path(place).glob("date=*/hour=*")}
    assert len(DeltaTable(place).file_uris()) == len(hours)
    lake.check(2000)
