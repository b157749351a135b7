"""Archives as Spark reads them: columns from the names of directories, and no more than needed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from nsqtools.errors import ConfigError
from nsqtools.spark.lake import dataframes
from nsqtools.spark.lake.dataframes import view
from nsqtools.spark.lake.inputs import find
from nsqtools.spark.lake.snapshots import compact_table
from tests.support.lakes import NINE, RAW, sent, to_file, to_parquet
from tests.support.tables import BY, files_read, to_table


def to_lake(folder: Path, *, topics: bool) -> Path:
    """Two days of two hours, with or without directories of topics."""
    for day in (20, 21):
        for hour in (7, 8):
            for topic in ("123", "a.b", "2026-11-20"):
                batch = f"topic={topic}/batch=0a-{hour:08}" if topics else f"batch=0{topic}-1"
                path = folder / f"date=2026-11-{day}/hour={hour:02}" / batch / "part-0-0.parquet"
                to_parquet(path, sent(b"x", topic=topic))
                if topics:
                    table = pa.parquet.ParquetFile(path).read().drop_columns("topic")
                    pa.parquet.write_table(table, path)
    return folder


@pytest.mark.parametrize("topics", [True, False])
def test_a_query_reads_only_the_files_it_asks_for(
    spark: SparkSession, tmp_path: Path, *, topics: bool
) -> None:
    """And none that were left out, by way of their directory."""
    lake = to_lake(tmp_path / "lake [x]+%41", topics=topics)
    (lake / "link").symlink_to(lake / "date=2026-11-21")
    to_parquet(lake / "staging/part-0.parquet", sent(b"s"))
    inputs = find([str(lake)], None, exclude=[str(lake / "staging")])
    found = view(spark, inputs)
    assert files_read(found.select("body")) == 12
    hour = found.where("date = '2026-11-21' AND hour = 7").select("body")
    assert (hour.count(), files_read(hour)) == (3, 3)
    topic = found.where("topic = '123'").select("body")
    assert (topic.count(), files_read(topic)) == (4, 4 if topics else 12)
    for place in (tmp_path / "*/date=2026-11-2[1-9]", lake / "date=2026-11-21"):
        day = view(spark, find([str(place)], None)).groupBy("date").count().collect()
        assert [(str(row.date), row["count"]) for row in day] == [("2026-11-21", 6)]


def test_columns_of_directories_have_the_types_of_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = to_lake(tmp_path / "lake", topics=True)
    to_parquet(lake / "date=2026-11-22/hour=00/topic=007/batch=0a-1/part-0.parquet", sent(b"y"))
    found = view(spark, find([str(lake)], None))
    types = dict(found.dtypes)
    assert (types["date"], types["hour"], types["topic"]) == ("date", "int", "string")
    assert "batch" not in types
    row = found.where("topic = '007'").first()
    assert row
    assert (str(row.date), row.hour, row.topic) == ("2026-11-22", 0, "007")


def test_trees_of_several_shapes_are_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    """With and without topics, of JSON, and with directories that mean something else."""
    lake = to_lake(tmp_path / "lake", topics=True)
    to_lake(lake, topics=False)
    to_parquet(lake / "part-1.parquet", sent(b"alone"))
    to_parquet(lake / "region=eu" / "date=November" / "part-1.parquet", sent(b"eu"))
    to_file(lake / "logs" / "x.log", sent(b"raw"), RAW)
    path = lake / "date=2026-11-20/hour=07/batch=0c-1/part-0-0.json"
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"topic":"t","body":"x","timestamp_ns":{NINE}}}\n' * 3)
    found = view(spark, find([str(lake)], RAW)).cache()
    assert found.count() == 12 + 12 + 1 + 1 + 1 + 3
    assert found.where("region = 'eu'").count() == 1
    assert found.where("date = '2026-11-20' and hour = 7").count() == 6 + 3
    assert found.where("date = '2026-11-21' and hour = 9").count() == 2, "by their times"


def test_of_many_files_the_columns_of_each_day_are_known(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataframes, "_LOOK", 3)
    lake = to_lake(tmp_path / "lake", topics=False)
    path = lake / "date=2026-11-22/hour=00/batch=0a-2/part-0.parquet"
    to_parquet(path, sent(b"new"), price=pa.array([1.5]))
    found = view(spark, find([str(lake)], None))
    assert found.where("price = 1.5").count() == 1
    assert found.count() == 13


def test_a_required_column_that_is_missing_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"message": ["x"]}), tmp_path / "part-0.parquet")
    found = find([str(tmp_path)], None)
    with pytest.raises(ConfigError, match="body"):
        view(spark, found, required="body")
    assert view(spark, found).columns[-2:] == ["date", "hour"]


def test_spark_reads_a_table_with_its_columns_and_only_the_partitions_it_asks_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Files of several shapes, a column that came later, and a table of another program."""
    place = str(tmp_path / "ta ble")
    to_table(place, "a", "a")
    compact_table(place, 1 << 20)
    assert view(spark, find([place], None)).count() == 4, "replaced files are still there"
    to_table(place, "a", "b", "007", batch="b")
    found = view(spark, find([place], None))
    assert found.count() == 10
    assert {name: dict(found.dtypes)[name] for name in BY} == {
        "date": "date",
        "hour": "int",
        "topic": "string",
    }
    assert found.where("topic = '007' AND hour = 9 AND date = '2026-11-22'").count() == 2
    chosen = found.where("date = '2026-11-22' AND topic = 'a'").select("body")
    assert (chosen.count(), files_read(chosen)) == (6, 2)

    other = str(tmp_path / "other")
    write_deltalake(other, pa.table({"body": ["x"], "region": ["eu"]}), partition_by=["region"])
    more = pa.table({"body": ["y"], "region": ["us"], "price": [1.5]})
    write_deltalake(other, more, mode="append", schema_mode="merge")
    found = view(spark, find([other], None), required="body")
    assert found.where("region = 'us'").select("price").collect() == [(1.5,)]
    assert sorted(row.body for row in found.collect()) == [b"x", b"y"]
    assert found.schema == view(spark, find([other, other], None)).schema
