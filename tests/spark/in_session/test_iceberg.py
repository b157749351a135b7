"""Tables of Iceberg: a batch is committed once, whoever writes to the table meanwhile."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType, TimeType
from pyspark.sql import DataFrame, SparkSession

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.lake.dataframes import view
from nsqtools.spark.lake.iceberg import IcebergTable
from nsqtools.spark.lake.inputs import find
from nsqtools.spark.lake.tables import Token
from nsqtools.spark.lake.write import write_files
from tests.support.restcatalog import RestCatalogs
from tests.support.servers import free_port
from tests.support.tables import files_read

OURS, THEIRS = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab", "5e0fa0a1-9c1d-4f0b-8a00-000000000000"
NAME = "lake.events"
LATE = datetime(2026, 11, 22, 9, 59, 59, tzinfo=UTC)
KNOWN = "timestamp TIMESTAMP, topic STRING, body BINARY"
EVERYWHERE = pytest.mark.parametrize("catalog", ["disk", "rest", "store"], indirect=True)


@pytest.fixture(scope="module")
def rest_catalogs() -> Iterator[RestCatalogs]:
    with RestCatalogs("tables of a REST catalog of Iceberg") as catalogs:
        yield catalogs


@pytest.fixture(params=["disk"])
def catalog(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Catalog:
    """The catalog ``here``: of SQL with tables on the disk or in a store, or of REST."""
    uri, warehouse, reader = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse", {}
    if request.param == "rest":
        uri = request.getfixturevalue("rest_catalogs").serve(tmp_path / "warehouse")
        warehouse = "name"
    elif request.param == "store":
        warehouse = request.getfixturevalue("bucket").replace("s3a:", "s3:")
        environment = request.getfixturevalue("minio").environment
        reader = {"s3.endpoint": environment["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
        for name, value in environment.items():  # tasks do not have that of this process
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__WAREHOUSE", warehouse)
    return load_catalog("here", uri=uri, warehouse=warehouse, **reader)


def opened(**more: Any) -> IcebergTable:
    return IcebergTable("here", NAME, **more)


def messages(spark: SparkSession, *topics: str | None, **more: Any) -> DataFrame:
    """Two rows for each topic, in two hours; ``more`` are columns with a type and a value."""
    rows = [
        (LATE + timedelta(seconds=n), topic, b"%d" % n, *(value for _, value in more.values()))
        for topic in topics
        for n in range(2)
    ]
    types = [f"{name} {kind}" for name, (kind, _) in more.items()]
    return spark.createDataFrame(rows, ", ".join([KNOWN, *types]))


def commit(table: IcebergTable, rows: DataFrame, token: Token) -> None:
    """Write rows and commit them, as a stream does."""
    table.check(rows.schema)
    assert not table.has(token)
    rows = table.spelled(rows)
    schema = rows.schema
    place, rows, partitions = table.prepare(rows, schema, ["timestamp", "topic"])
    files = write_files(rows, place, "parquet", name=str(token.number), partitions=partitions)
    table.commit(files, schema, partitions, token)


def taken(catalog: Catalog, columns: str = "topic, count(*)") -> list[tuple[Any, ...]]:
    """What another engine makes of the table."""
    there = catalog.load_table(NAME).scan().to_arrow()  # noqa: F841 - in SQL
    found = duckdb.sql(f"SELECT {columns} FROM there GROUP BY ALL ORDER BY ALL")
    assert found
    return found.fetchall()


@pytest.mark.timeout(900)  # MinIO may have to be built
@EVERYWHERE
def test_a_batch_is_committed_once_and_others_may_write_meanwhile(
    catalog: Catalog, spark: SparkSession
) -> None:
    """The partitions are hours of UTC, and a topic may need escapes, or be missing."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        first, other = opened(), opened()
        assert not other.has(Token(OURS, 0))
        commit(first, messages(spark, "a#ephemeral", None), Token(OURS, 0))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert other.has(Token(OURS, 0))
    assert not other.has(Token(OURS, 1))
    commit(other, messages(spark, "t"), Token(THEIRS, 7))
    commit(first, messages(spark, "t"), Token(OURS, 1))
    assert taken(catalog) == [("a#ephemeral", 2), ("t", 4), (None, 2)]
    table = catalog.load_table(NAME)
    ten = table.scan(row_filter="timestamp >= '2026-11-22T10:00:00+00:00' and topic = 't'")
    assert [each.file.record_count for each in ten.plan_files()] == [1, 1]
    # Snapshots expire, the property stays.
    maintenance: Any = table.maintenance
    maintenance.expire_snapshots().older_than(datetime(2100, 1, 1)).commit()
    assert opened().has(Token(OURS, 1))


@pytest.mark.timeout(900)  # MinIO may have to be built
@EVERYWHERE
def test_of_two_who_write_a_batch_one_commits_it(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits between our look and our commit, and then our own batch is there."""
    commit(opened(), messages(spark, "t"), Token(THEIRS, 0))
    rows = messages(spark, "u")
    first, second = opened(), opened()
    real = type(catalog).commit_table
    late = iter([Token(OURS, 5)])

    def meanwhile(*args: Any) -> Any:
        for token in late:
            commit(first, rows, token)
        return real(*args)

    monkeypatch.setattr(type(catalog), "commit_table", meanwhile)
    commit(second, rows, Token(OURS, 5))
    assert taken(catalog) == [("t", 2), ("u", 2)]


def test_a_writer_who_is_always_late_is_an_error(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened()
    commit(table, messages(spark, "t"), Token(OURS, 0))

    def late(*_: Any) -> None:
        raise CommitFailedException("late")

    monkeypatch.setattr("nsqtools.spark.lake.iceberg._PAUSE", 0)
    monkeypatch.setattr(type(catalog), "commit_table", late)
    with pytest.raises(OutputError, match=f"{NAME}: other writers"):
        commit(table, messages(spark, "t"), Token(OURS, 1))


@pytest.mark.parametrize("catalog", ["disk", "rest"], indirect=True)
def test_metadata_is_durable_before_the_catalog_names_it(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}").split("/.")[0])
    )
    commit(opened(), messages(spark, "t"), Token(OURS, 0))
    folder = Path(catalog.load_table(NAME).location().removeprefix("file://"), "metadata")
    assert len(list(folder.glob("*.avro"))) == 2  # a list of manifests, and a manifest
    assert {str(folder), str(folder.parent), str(folder.parent.parent)} <= synced


def test_s3_is_reached_as_the_environment_says_unless_the_catalog_is_configured(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    known = opened()._catalog.properties
    assert (known["s3.endpoint"], known["client.region"]) == ("http://a", "eu-north-1")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__S3__ENDPOINT", "http://b")
    assert opened()._catalog.properties["s3.endpoint"] == "http://b"


def test_columns_are_compared_and_new_ones_added_when_asked(
    catalog: Catalog, spark: SparkSession
) -> None:
    """Rows of other writers stay, and a nested column is null in them."""
    commit(opened(), messages(spark, "t"), Token(OURS, 0))
    user = messages(spark, "t", user=("STRUCT<id: SHORT, tags: ARRAY<STRING>>", (1, ["a"])))
    with pytest.raises(ConfigError, match=r"lacks user: .*--evolve"):
        opened().check(user.schema)
    text = spark.sql("SELECT 't' AS topic, 'text' AS body")
    with pytest.raises(ConfigError, match="has body as binary, not string"):
        opened(evolve=True).check(text.schema)
    commit(opened(evolve=True), user.withColumnRenamed("body", "BODY"), Token(OURS, 1))
    assert taken(catalog, "user.id, count(*)") == [(1, 2), (None, 2)]
    assert [each.name for each in catalog.load_table(NAME).schema().fields][-2:] == ["body", "user"]


def test_the_partitions_of_a_table_that_exists_are_its_own(
    catalog: Catalog, spark: SparkSession
) -> None:
    schema = Schema(
        NestedField(1, "timestamp", TimestamptzType()),
        NestedField(2, "topic", StringType()),
        NestedField(3, "gone", LongType()),
    )
    fields = [
        PartitionField(1, 1000, DayTransform(), "day"),
        PartitionField(3, 1001, BucketTransform(4), "gone_bucket"),
    ]
    catalog.create_namespace("lake")
    catalog.create_table(NAME, schema, partition_spec=PartitionSpec(*fields))
    commit(opened(evolve=True), messages(spark, "t"), Token(OURS, 0))
    files = [each.file for each in catalog.load_table(NAME).scan().plan_files()]
    assert sum(each.record_count for each in files) == 2
    assert {each.file_path.split("/")[-3] for each in files} == {"day=2026-11-22"}
    rows = messages(spark, "t", gone=("LONG", 5))
    with pytest.raises(ConfigError, match=r"gone_bucket, bucket\[4\] of gone: expected identity"):
        commit(opened(), rows, Token(OURS, 1))


def test_a_table_is_read_by_its_own_log(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    """Files without a commit are no rows, and a column that came later is null before."""
    place = f"iceberg:here/{NAME}"
    with pytest.raises(ConfigError, match="there is no such table"):
        find([place], None)
    commit(opened(), messages(spark, "a b", "t"), Token(OURS, 0))
    user = messages(spark, "t", user=("STRUCT<id: SHORT, tags: ARRAY<STRING>>", (1, ["a"])))
    commit(opened(evolve=True), user, Token(OURS, 1))
    rows = messages(spark, "t")
    folder, rows, partitions = opened().prepare(rows, rows.schema, [])
    write_files(rows, folder, "parquet", name="torn", partitions=partitions)
    found = view(spark, find([place], None))
    assert found.where("topic = 't'").count() == 4
    counted = found.groupBy("date", "hour", "user.id").count().collect()
    assert sorted((row.hour, row.id or 0, row["count"]) for row in counted) == [
        *((hour, user, 2 - user) for hour in (9, 10) for user in (0, 1))
    ]
    table = catalog.load_table(NAME)
    first = table.snapshots()[0].snapshot_id
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 4
    chosen = found.where("date = '2026-11-22' AND hour = 9").select("body")
    assert (chosen.count(), files_read(chosen)) == (3, len(table.inspect.files()) // 2)
    other = tmp_path / "other.parquet"
    pq.write_table(table.scan(row_filter="topic = 'a b'").to_arrow().slice(0, 1), other)
    table.add_files([str(other)])
    found = view(spark, find([place], None)).where("hour IN (9, 10)")
    assert found.count() == 7, "a file that is in no directory of an hour"


def test_a_table_whose_files_are_not_its_rows_is_refused(
    catalog: Catalog, spark: SparkSession
) -> None:
    commit(opened(), messages(spark, "t", n=("INT", 1)), Token(OURS, 0))
    table = catalog.load_table(NAME)
    with table.update_schema() as columns:
        columns.rename_column("n", "number")
    with pytest.raises(ConfigError, match="column number was renamed"):
        opened().files()
    with table.update_schema() as columns:
        columns.delete_column("number")
    with table.update_schema() as columns:
        columns.add_column("at", TimeType())
    with pytest.raises(ConfigError, match="at is of type time"):
        opened().files()
    with table.update_schema() as columns:
        columns.delete_column("at")
    assert len(opened().files().files) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileScanTask, "delete_files", {"of another engine"}, raising=False)
        patch.setattr(DataScan, "plan_files", lambda _: [FileScanTask.__new__(FileScanTask)])
        with pytest.raises(ConfigError, match="deletion vectors"):
            opened().files()


@pytest.mark.parametrize(
    ("culprit", "query"),
    [
        ("requires values of topic", "SELECT 't' AS topic"),
        ("a is of type void", "SELECT null AS a"),
        ("a is of type interval", "SELECT array(INTERVAL 1 DAY) AS a"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    culprit: str, query: str, catalog: Catalog, spark: SparkSession
) -> None:
    catalog.create_namespace("lake")
    catalog.create_table(NAME, Schema(NestedField(1, "topic", StringType(), required=True)))
    with pytest.raises(ConfigError, match=culprit):
        opened().check(spark.sql(query).schema)


def test_what_is_not_configured_or_fails_is_named(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--output events: expected NAMESPACE\.TABLE"):
        IcebergTable("here", "events")
    with pytest.raises(ConfigError, match=r"catalog none .*PYICEBERG_CATALOG__NONE__URI"):
        IcebergTable("none", NAME)
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(OutputError, match=r"^catalog away: [^\n]+$"):
        IcebergTable("away", NAME)
    table = opened()
    (tmp_path / "catalog.db").write_bytes(b"no database" * 100)
    with pytest.raises(OutputError, match=f"^{NAME}: [^\n]+$"):
        table.has(Token(OURS, 0))
    monkeypatch.delitem(sys.modules, "nsqtools.spark.lake.iceberg")
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ConfigError, match=r"nsqtools\[iceberg\]"):
        import nsqtools.spark.lake.iceberg  # noqa: F401
