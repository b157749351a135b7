"""``pipeline archive`` to a table, killed after its commits, and the program of Delta's guide."""

import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from nsqtools.cli.docs import sections
from tests.support.eventually import eventually
from tests.support.examples import shown
from tests.support.killing import Lake, Place, kill
from tests.support.minio import PASSWORD, USER
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, drained
from tests.support.spark import START
from tests.support.trees import descendants, signal_process

GUIDE = sections("tables", "guides")["Delta Lake"]
CATALOG = "PYICEBERG_CATALOG__HERE__"


class DeltaPlace(Place):
    """The place of a table, which delta-rs reads."""

    @property
    def options(self) -> tuple[str, ...]:
        return ("--format", "delta")

    def bodies(self) -> Counter[bytes]:
        return Counter(DeltaTable(self.path).to_pyarrow_table(columns=["body"])["body"].to_pylist())

    def commits(self) -> int:
        """How many batches the table has."""
        return len(list(Path(self.path).glob("_delta_log/*.json"))) - 1  # one made the table


class IcebergPlace(Place):
    """The warehouse of a catalog, beside the checkpoint; pyiceberg and DuckDB read its table."""

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("--format", "iceberg", "--catalog", "here", "--output", "lake.events"),
            *("--checkpoint", f"{self.url}/_nsqtools/checkpoint"),
        )

    def bodies(self) -> Counter[bytes]:
        there = self._load().scan(selected_fields=("body",)).to_arrow()  # noqa: F841 - in SQL
        found = duckdb.sql("SELECT body, count(*) FROM there GROUP BY body")
        assert found
        return Counter(dict(found.fetchall()))

    def commits(self) -> int:
        """How many batches the table has."""
        with (
            closing(sqlite3.connect(self._database)) as catalog,
            suppress(sqlite3.OperationalError),
        ):
            for (path,) in catalog.execute("SELECT metadata_location FROM iceberg_tables"):
                return int(path.rpartition("/")[2].partition("-")[0])  # the version 0 has none
        return 0

    @property
    def _database(self) -> str:
        return self.environment[f"{CATALOG}URI"].removeprefix("sqlite:///")

    def _load(self) -> Table:
        store = {
            "s3.endpoint": self.environment.get("AWS_ENDPOINT_URL", ""),
            "s3.access-key-id": USER,
            "s3.secret-access-key": PASSWORD,
            "s3.region": "us-east-1",
        }
        uri = f"sqlite:///{self._database}"
        return load_catalog("here", uri=uri, **store).load_table("lake.events")


@pytest.fixture(params=["delta", "iceberg in a store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaPlace | IcebergPlace:
    """The place of a table: one on a disk, one in a store."""
    if request.param == "delta":
        path = str(tmp_path / "table")
        return DeltaPlace(path, path)
    place = request.getfixturevalue("minio").place()
    catalog = {
        f"{CATALOG}URI": f"sqlite:///{tmp_path}/catalog.db",
        f"{CATALOG}WAREHOUSE": f"{place.url.replace('s3a:', 's3:')}/warehouse",
    }
    environment = {**place.environment, **catalog}
    return IcebergPlace(place.url, place.path, place.filesystem, environment, place.conf)


@pytest.mark.full("an archive to a table is killed between its commits and Spark's")
@pytest.mark.timeout(1200)
def test_a_batch_is_in_the_table_once_although_the_run_is_killed_after_its_commit(
    place: DeltaPlace | IcebergPlace,
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    tmp_path: Path,
) -> None:
    lake = Lake(nsqtools_cli, make_nsqd("-msg-timeout=2s"), topic, tmp_path, place)
    options = (*place.options, "--max-per-trigger", "300")
    lake.publish(range(2000))

    def is_in_doubt(batch: int) -> bool:
        """Whether the table has a batch that Spark does not know of."""
        process = lake.start(*options, "--trigger", "0s")
        eventually(lambda: str(batch) in lake.batches("offsets"), START)
        below = descendants(process.pid)
        eventually(lambda: place.commits() > batch, START)
        for each in below:  # to find them takes longer than a commit
            signal_process(each, signal.SIGSTOP)
        kill(process, alone=False)
        return str(batch) in lake.batches("offsets") - lake.batches("commits")

    assert any(map(is_in_doubt, range(6)))

    def all_taken() -> bool:
        done = lake.drain(*options)
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)
    lake.check(2000)
    if isinstance(place, DeltaPlace):
        run_guide(place.path)
        done = lake.run("compact", "--input", place.path)
        assert (done.code, done.stderr) == (0, "")
        lake.check(2000)


def run_guide(place: str) -> None:
    """Run the guide's program, which removes duplicates, on each hour of a table."""
    (once,) = (block for block in shown(GUIDE) if "import deltalake" in block)
    for hour in Path(place).glob("date=*/hour=*"):
        text = once.replace("/lake/events", place).replace("2026-11-22", hour.parent.name[5:])
        exec(re.sub(r"(hour = )\d+", rf"\g<1>{int(hour.name[5:])}", text), {})
