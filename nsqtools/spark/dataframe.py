"""Archives as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from nsqtools.errors import ConfigError
from nsqtools.spark.bodies import DATE, HOUR, PARTITIONS
from nsqtools.spark.ledger import ROW_SCHEMA
from nsqtools.spark.places import literal
from nsqtools.spark.reading import ArchiveFile, ArchiveSource, as_option
from nsqtools.spark.shipping import check_executors, readers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.spark.inputs import Input

__all__ = ["FILE", "STRICT", "dated", "frame", "is_keyed", "united", "view"]

FILE = "_nsqtools_file"
"""The column of a frame with the path of the file that a row was read from."""
STRICT = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of Spark's readers: what cannot be read is an error, whatever the session says."""

_CORRUPT = "_nsqtools_corrupt"
_CHANGED = "_nsqtools_changed"
_URL = "replace(regexp_replace(_metadata.file_path, '^file:/+', '/'), '+', '%2B')"
_PATH = f"url_decode({_URL})"
_CASTS: dict[str, tuple[type[DataType], ...]] = {
    "timestamp": (TimestampNTZType,),  # in the session's time zone, which is UTC
    "timestamp_ns": (IntegerType,),
    "attempts": (ByteType, ShortType, LongType),
    "body": (StringType,),
}


def frame(spark: SparkSession, inputs: Sequence[Input]) -> DataFrame:
    """Return the rows of all inputs: ROW_SCHEMA, further columns, their place, and FILE.

    ``timestamp`` is never null: without a time in the data it is the modification time of the file.
    The place of a row, ``source_file`` and ``source_record``, is where it was first read. A file
    that is damaged or has changed fails the job that reads it.

    Raises ConfigError for columns whose types differ between files, and for executors that lack a
    library for decompression.
    """
    records = [each for each in inputs if each.kind == "records"]
    rows = [each.path for each in inputs if each.kind == "rows"]
    by_schema: dict[str, list[str]] = {}
    for each in inputs:
        if each.kind == "parquet":
            by_schema.setdefault(str(each.schema), []).append(each.path)
    parts = [_parquet(spark, paths) for paths in by_schema.values()]
    if rows:
        parts.append(_json(spark, rows))
    if records or not parts:
        parts.append(_records(spark, records))
    return united(parts)


def united(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, with all columns; raises ConfigError if types differ."""
    _check_types(parts)
    found = parts[0]
    for part in parts[1:]:
        found = found.unionByName(part, allowMissingColumns=True)
    return found


def dated(found: DataFrame) -> DataFrame:
    """Return the frame with ``date`` and ``hour`` (0 to 23) appended, from ``timestamp`` in UTC."""
    return found.withColumn("date", F.expr(DATE)).withColumn("hour", F.expr(HOUR))


def view(found: DataFrame) -> DataFrame:
    """Return a frame for queries: with ``date`` and ``hour``, without FILE."""
    return dated(found).drop(FILE)


def is_keyed() -> Column:
    """Whether (topic, message_id, timestamp_ns) identifies a row wherever it was stored."""
    return (
        F.col("topic").isNotNull()
        & F.col("message_id").isNotNull()
        & F.col("timestamp_ns").isNotNull()
    )


def _records(spark: SparkSession, inputs: Sequence[Input]) -> DataFrame:
    archives = []
    for each in inputs:
        assert each.layout
        archives.append(
            ArchiveFile(
                each.path,
                each.size,
                each.mtime_ns,
                each.layout.format,
                each.layout.delimiter,
                each.skip,
            )
        )
    if packages := readers_of(each.path for each in archives):
        check_executors(spark, packages)
    spark.dataSource.register(ArchiveSource)
    cores = spark.sparkContext.defaultParallelism
    options = {"archives": as_option(archives), "cores": str(cores)}
    found = spark.read.format(ArchiveSource.name()).options(**options).load()
    return found.withColumn(FILE, F.col("source_file"))


def _parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    raw = spark.read.options(**STRICT).parquet(*map(literal, paths))
    return _aligned(raw, F.col("_metadata.row_index"))


def _json(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """``pipeline archive --format json``: a body that is not UTF-8 is in ``body_b64``."""
    reader = spark.read.options(mode="FAILFAST", **STRICT)
    looker = spark.read.option("columnNameOfCorruptRecord", _CORRUPT)  # FAILFAST names no file
    patterns = list(map(literal, paths))
    types = {field.name: field for field in _row_schema()}
    types |= {name: StructField(name, StringType()) for name in ("body", "body_b64")}
    inferred = looker.json(patterns).schema
    others = [field for field in inferred if field.name not in (*types, _CORRUPT)]
    raw = reader.schema(StructType([*types.values(), *others])).json(patterns)
    body = F.coalesce(F.encode("body", "UTF-8"), F.unbase64("body_b64"))
    place = F.monotonically_increasing_id()
    return _aligned(raw, place, {"body": body}, hidden=("body_b64",))


def _aligned(
    raw: DataFrame,
    record: Column,
    given: Mapping[str, Column] | None = None,
    hidden: Sequence[str] = (),
) -> DataFrame:
    """Our columns in their types, others but those ``hidden``, and the place of each row.

    ``given`` are columns that are not as they stand in the file.
    """
    there = {field.name.lower(): field for field in raw.schema.fields}
    for name in PARTITIONS:
        if name in there:
            raise ConfigError(
                f"column {name} has the name of a directory: select it under another name"
            )
    columns = []
    for field in _row_schema():
        found = there.pop(field.name, None)
        column = F.lit(None)
        if given and field.name in given:
            column = given[field.name]
        elif found:
            _check_cast(found, field)
            column = _named(found)
        columns.append(column.cast(field.dataType).alias(field.name))
    places = {"source_file": F.expr(_PATH), "source_record": record.cast("bigint")}
    if there.keys() >= places.keys():  # what compact wrote
        known = {name: there.pop(name) for name in places}
        has_place = _named(known["source_file"]).isNotNull()
        places = {
            name: F.when(has_place, _named(known[name])).otherwise(place)
            for name, place in places.items()
        }
    columns += [_named(field) for name, field in there.items() if name not in hidden]
    columns += [place.alias(name) for name, place in places.items()]
    columns += [
        F.expr(_PATH).alias(FILE),
        F.col("_metadata.file_modification_time").alias(_CHANGED),
    ]
    exact = F.expr("timestamp_micros(timestamp_ns div 1000)")
    time = F.coalesce(exact, F.col("timestamp"), F.col(_CHANGED))
    return raw.select(columns).withColumn("timestamp", time).drop(_CHANGED)


def _row_schema() -> StructType:
    schema: StructType = from_arrow_schema(ROW_SCHEMA)
    return schema


def _named(field: StructField) -> Column:
    quoted = field.name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _check_cast(found: StructField, wanted: StructField) -> None:
    """Raise ConfigError unless a cast to the wanted type keeps what a value says."""
    allowed = (type(wanted.dataType), *_CASTS.get(wanted.name, ()))
    if not isinstance(found.dataType, (*allowed, NullType)):
        raise ConfigError(
            f"column {found.name} is {found.dataType.simpleString()}: expected "
            f"{wanted.dataType.simpleString()}"
        )


def _check_types(parts: Sequence[DataFrame]) -> None:
    known: dict[str, StructField] = {}
    for part in parts:
        for field in part.schema:
            other = known.setdefault(field.name.lower(), field)
            if other.dataType != field.dataType:
                raise ConfigError(
                    f"column {field.name} is {field.dataType.simpleString()} in some inputs and "
                    f"{other.dataType.simpleString()} in others: read them separately"
                )
