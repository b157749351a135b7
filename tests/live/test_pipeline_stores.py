"""The commands of ``pipeline`` as processes, with all that they keep in an object store."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Lake, loses_nothing
from tests.support.minio import Minio
from tests.support.process import Cli, Result
from tests.support.replays import Taken
from tests.support.servers import MakeNsqd, at, drained

pytestmark = pytest.mark.timeout(900)  # MinIO may have to be built


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[Minio]:
    with Minio(tmp_path / "minio", "a pipeline on s3a") as server:
        yield server


@pytest.fixture
def lake(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, minio: Minio
) -> Iterator[Lake]:
    folder = tmp_path / "lake"
    folder.mkdir()
    lake = Lake(nsqtools_cli, make_nsqd("-msg-timeout=2s"), topic, folder, minio.place())
    yield lake
    assert {each.name for each in folder.iterdir()} <= {"c.toml", "log", "s.log"}


def succeed(done: Result) -> bytes:
    assert (done.code, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.full("every command of the pipeline on s3a, with a Spark of its own")
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_what_is_archived_in_a_bucket_is_compacted_queried_and_replayed_there(
    lake: Lake, nsqtools_cli: Cli, form: str
) -> None:
    """A table is compacted where it is."""
    lake.publish(range(1000))
    options = ("--format", form, "--max-per-trigger", "300")
    while not drained(lake.nsqd, lake.topic, "lake"):
        succeed(lake.drain(*options))
    lake.check(1000)
    assert lake.place.names("_nsqtools") >= {"checkpoint", "staging"}

    expected = Counter(b"%d" % each for each in range(1000))
    compacted = lake.place if form == "delta" else lake.place.beside("compacted")
    place = () if form == "delta" else ("--output", compacted.url)
    succeed(lake.run("compact", "--input", lake.place.url, *place))
    if form == "parquet":
        assert compacted.bodies() == expected

    query = "SELECT CAST(body AS STRING) FROM nsq WHERE date >= '2026-01-01'"
    printed = succeed(lake.run("sql", "--input", compacted.url, "--query", query))
    assert Counter(printed.split()) == expected

    lake.nsqd.create("again", "c")
    given = ("--input", lake.place.url, "--topic", "again", *at(lake.nsqd))
    succeed(lake.run("replay", *given))
    assert Counter(Taken(nsqtools_cli, lake.nsqd, "again")()) == expected


@pytest.mark.full("an archive on s3a is killed again and again, and so is the store")
def test_kill_9_also_of_the_store_loses_nothing_and_doubles_nothing(
    lake: Lake, rng: random.Random, minio: Minio
) -> None:
    def outage() -> None:
        minio.kill()
        minio.start()

    loses_nothing(lake, rng, messages=8000, workers=2, batch=1000, outages=[outage])
