"""Archives as one DataFrame."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, NamedTuple, cast

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    _parse_datatype_string,
)

from nsqtools.errors import ConfigError
from nsqtools.records.layout import Layout
from nsqtools.spark.executors import check_executors, readers_of
from nsqtools.spark.lake.archives import ArchiveSource, as_option
from nsqtools.spark.lake.bodies import (
    CORRUPT,
    DECODED,
    PARTITIONS,
    date_of,
    hour_of,
    read_schema,
    with_decoded,
)
from nsqtools.spark.lake.inputs import find
from nsqtools.spark.rows import ROW_SCHEMA
from nsqtools.stores.places import as_url, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.records.bodies.decoders import Decoding
    from nsqtools.spark.lake.inputs import Input
    from nsqtools.spark.lake.snapshots import TableSchema

__all__ = ["FILE", "STRICT", "body_schema", "dated", "frame", "is_keyed", "united", "view"]

log = logging.getLogger(__name__)

FILE = "_nsqtools_file"
"""The column of a frame with the path of each row's file."""
STRICT = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of Spark's readers: unreadable files are errors, whatever the session's settings."""

_PATTERNS = {"parquet": "*.parquet", "rows": "part-*.json*"}
_TYPES: dict[str, tuple[re.Pattern[str], type[DataType]]] = {
    "date": (re.compile(r"\d{4}-\d\d-\d\d"), DateType),
    "hour": (re.compile(r"\d\d?"), IntegerType),
}
"""Types of columns in directory names, if all values match; all other such columns are texts."""
_SAMPLE = 10_000
_LOOK = 1000
"""Maximum number of files searched for columns for a query."""
_SERIES = re.compile(r"/(date=[^/]*|batch=[^/-]*)")
_UNLIKE = re.compile(
    r"CANNOT_MERGE_SCHEMAS.*?Initial schema:\s*\"(.*?)\"\.?\s+Schema that.*?:\s*\"(.*)\"", re.DOTALL
)

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
    """Return the rows of exactly these inputs: ROW_SCHEMA, further columns, their place, and FILE.

    ``timestamp`` is never null: without a time in the data it is the modification time of the file.
    The place of a row, ``source_file`` and ``source_record``, is the place of its first reading. A
    job fails on a damaged or missing file.

    Raises ConfigError for columns with different types in different files, and for executors
    without a library for decompression.
    """
    parts = [_part(spark, *each, look=len(inputs)) for each in _trees(inputs, exact=True)]
    return united([part.drop("date", "hour") for part in parts])


def view(spark: SparkSession, inputs: Sequence[Input], *, required: str = "") -> DataFrame:
    """Return a frame for queries: with ``date`` and ``hour``, in UTC, and without FILE.

    Columns in the names of directories come from there, so Spark reads only the directories needed
    for a query. Spark lists the directories itself, and may read files added meanwhile. With more
    than 1,000 files, only the first and last file of each day are searched for columns. Raises
    ConfigError like ``frame``, and if files lack the column ``required``.
    """
    trees = _trees(inputs, exact=False)
    parts = [_part(spark, *each, look=_LOOK, required=required) for each in trees]
    return united([dated(part) for part in parts]).drop(FILE)


def body_schema(
    spark: SparkSession, schema: str, sample: str, decoding: Decoding | None = None
) -> StructType | None:
    """Return the columns of bodies, from ``schema`` or inferred from a sample; None without both.

    ``sample`` is an archive, or a file with a body in each line; its first 10,000 bodies count,
    which ``decoding`` decodes. Raises ConfigError for an invalid schema, and for a sample without
    JSON objects.
    """
    if not sample:
        return read_schema(schema) if schema else None
    bodies = view(spark, find([sample], Layout()), required="body").limit(_SAMPLE)
    reader = spark.read.options(inferTimestamp=True, columnNameOfCorruptRecord=CORRUPT)
    texts = bodies.select(F.col("body").cast("string"))
    if decoding:
        texts = with_decoded(bodies.select("body"), decoding).select(DECODED)
    found = reader.json(texts).drop(CORRUPT)
    if not found.columns:
        raise ConfigError(f"--infer {sample}: no body is a JSON object with fields")
    log.info("--infer %s: %s", sample, found.schema.toDDL())
    return read_schema(found.schema.json())


def united(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, with all columns; raises ConfigError if types differ."""
    _check_types(parts)
    found = parts[0]
    for part in parts[1:]:
        found = found.unionByName(part, allowMissingColumns=True)
    return found


def dated(found: DataFrame) -> DataFrame:
    """Return the frame with ``date`` and ``hour`` (0 to 23), if need be from ``timestamp``."""
    for name, value in (("date", date_of("timestamp")), ("hour", hour_of("timestamp"))):
        if name not in found.columns:
            found = found.withColumn(name, F.expr(value))
    return found


def is_keyed() -> Column:
    """Whether (topic, message_id, timestamp_ns) identifies a row, wherever it is stored."""
    return (
        F.col("topic").isNotNull()
        & F.col("message_id").isNotNull()
        & F.col("timestamp_ns").isNotNull()
    )


class _Tree(NamedTuple):
    """The place of files of a kind: ``columns`` are in directory names below ``base``.

    The files of a table have its ``schema``.
    """

    kind: str
    base: str = ""
    columns: tuple[str, ...] = ()
    schema: TableSchema | None = None


def _trees(
    inputs: Sequence[Input], *, exact: bool
) -> list[tuple[_Tree, Sequence[Input], Sequence[str]]]:
    """Return the files of each tree, and the paths to read.

    Unless ``exact``, the path is a directory if all files of a place belong to one tree.
    """
    found: dict[_Tree, list[Input]] = {}
    places: dict[str, set[_Tree]] = {}
    for each in inputs:
        tree = _tree(each)
        found.setdefault(tree, []).append(each)
        places.setdefault(each.place, set()).add(tree)

    def path(each: Input) -> str:
        whole = each.whole and not exact and len(places[each.place]) == 1
        if not whole or "/_" in each.path:
            return each.path
        (tree,) = places[each.place]
        return max(each.place, tree.base, key=len)

    return [
        (tree, files, list(dict.fromkeys(map(path, files))))
        for tree, files in (found or {_Tree("records"): []}).items()
    ]


def _tree(each: Input) -> _Tree:
    """Return a file's tree as Spark sees it.

    Columns are in the last run of directories named ``column=value``, which may begin above the
    searched place.
    """
    if each.kind == "records":
        return _Tree(each.kind)
    if each.schema and not (each.schema.partitions or each.schema.hours):
        return _Tree(each.kind, schema=each.schema)
    folders = each.path.split("/")[:-1]
    end, top = len(folders), each.place.count("/") + 1
    while end > top and "=" not in folders[end - 1]:
        end -= 1
    start = end
    while start and "=" in folders[start - 1]:
        start -= 1
    if start == end:
        return _Tree(each.kind, schema=each.schema)
    columns = tuple(name.partition("=")[0] for name in folders[start:end])
    return _Tree(each.kind, "/".join(folders[:start]) or "/", columns, each.schema)


def _part(
    spark: SparkSession,
    tree: _Tree,
    files: Sequence[Input],
    paths: Sequence[str],
    look: int,
    required: str = "",
) -> DataFrame:
    """Return the rows of a tree, with the columns of all files, or of a few each day.

    All files are searched for columns if there are at most ``look``.
    """
    if tree.kind == "records":
        return _records(spark, files)
    schema = _table_columns(tree) if tree.schema else _file_columns(spark, tree, files, look)
    if required and required not in [field.name.lower() for field in schema]:
        raise ConfigError(f"{files[0].path}: has no column {required}")
    reader = spark.read.options(**STRICT, mode="FAILFAST", pathGlobFilter=_PATTERNS[tree.kind])
    reader = reader.schema(schema)
    if tree.columns:
        reader = reader.option("basePath", as_url(tree.base))
    if tree.kind == "parquet":
        raw = reader.parquet(*map(literal, paths))
        if tree.schema and tree.schema.hours:
            raw = _dated_by(raw, tree.schema.hours).drop(*tree.columns)
        return _aligned(raw, F.col("_metadata.row_index"))
    raw = reader.json(list(map(literal, paths)))
    body = F.coalesce(F.encode("body", "UTF-8"), F.unbase64("body_b64"))
    place = F.monotonically_increasing_id()
    return _aligned(raw, place, {"body": body}, hidden=("body_b64",))


def _table_columns(tree: _Tree) -> StructType:
    """Return the columns of a table; those in names of directories are last."""
    assert tree.schema
    found = StructType.fromJson(json.loads(tree.schema.columns))
    names = tree.schema.partitions
    fields = sorted(found.fields, key=lambda field: field.name in names)
    if tree.schema.hours:
        fields += [StructField(name, StringType()) for name in tree.columns]
    return StructType(fields)


def _dated_by(raw: DataFrame, hours: str) -> DataFrame:
    """Return the frame with ``date`` and ``hour`` from the names of directories.

    So Spark reads only the files of the hours that a query asks for.
    """
    text = F.col(f"`{hours}`")
    date, hour = F.substring(text, 1, 10).cast("date"), F.substring(text, 12, 2).cast("int")
    return raw.withColumns({"date": date, "hour": hour})


def _file_columns(
    spark: SparkSession, tree: _Tree, files: Sequence[Input], look: int
) -> StructType:
    """Return the columns of files, and of the names of their directories."""
    sample = [literal(each.path) for each in (files if len(files) <= look else _ends(files))]
    data = (
        _parquet_columns(spark, sample) if tree.kind == "parquet" else _json_columns(spark, sample)
    )
    return _with_partitions(data, _partitions(tree, files))


def _ends(files: Sequence[Input]) -> list[Input]:
    """Return the first and the last of the files written by one query on one day."""
    days: dict[object, list[Input]] = {}
    for each in files:
        days.setdefault(tuple(_SERIES.findall(each.path)), []).append(each)
    ends = (sorted(day, key=lambda each: each.mtime_ns) for day in days.values())
    return [each for day in ends for each in (day[0], *day[1:][-1:])]


def _parquet_columns(spark: SparkSession, paths: Sequence[str]) -> list[StructField]:
    looker = spark.read.options(**STRICT, mergeSchema="true", recursiveFileLookup="true")
    try:
        return looker.parquet(*paths).schema.fields
    except Exception as error:
        if found := _UNLIKE.search(str(error)):
            raise _difference(*found.groups()) from error
        raise


def _json_columns(spark: SparkSession, paths: Sequence[str]) -> list[StructField]:
    """Return the columns of ``pipeline archive --format json``, with ``body_b64`` for binary."""
    looker = spark.read.option("columnNameOfCorruptRecord", _CORRUPT)  # FAILFAST names no file
    types = {field.name: field for field in _row_schema()}
    types |= {name: StructField(name, StringType()) for name in ("body", "body_b64")}
    inferred = looker.options(recursiveFileLookup="true").json(list(paths)).schema
    return [*types.values(), *(each for each in inferred if each.name not in (*types, _CORRUPT))]


def _partitions(tree: _Tree, files: Sequence[Input]) -> list[StructField]:
    """Return the columns of directories with types; otherwise Spark would guess the types."""
    fields = []
    for name in tree.columns:
        pattern, kind = _TYPES.get(name, (None, None))
        values = {
            part.partition("=")[2]
            for each in files
            for part in each.path.split("/")
            if pattern and part.startswith(f"{name}=")
        }
        known = pattern and all(map(pattern.fullmatch, values))
        fields.append(StructField(name, kind() if kind and known else StringType()))
    return fields


def _with_partitions(data: Iterable[StructField], partitions: Sequence[StructField]) -> StructType:
    """Return all columns; raises ConfigError for a data column reserved for directories."""
    names = [field.name.lower() for field in partitions]
    kept = [field for field in data if field.name.lower() not in names]
    for field in data:
        if field.name.lower() in PARTITIONS:
            raise ConfigError(
                f"column {field.name} has the name of a directory: select it under another name"
            )
    return StructType([*kept, *partitions])


def _records(spark: SparkSession, inputs: Sequence[Input]) -> DataFrame:
    if packages := readers_of(each.path for each in inputs):
        check_executors(spark, packages)
    spark.dataSource.register(ArchiveSource)
    cores = spark.sparkContext.defaultParallelism
    options = {"archives": as_option(inputs), "cores": str(cores)}
    found = spark.read.format(ArchiveSource.name()).options(**options).load()
    return found.withColumn(FILE, F.col("source_file"))


def _aligned(
    raw: DataFrame,
    record: Column,
    given: Mapping[str, Column] | None = None,
    hidden: Sequence[str] = (),
) -> DataFrame:
    """Return our columns in their types, others except ``hidden``, and the place of each row.

    Columns in ``given`` replace those of the file.
    """
    there = {field.name.lower(): field for field in raw.schema.fields}
    there.pop("batch", None)
    for name, (_, kind) in _TYPES.items():
        if name in there and not isinstance(there[name].dataType, kind):
            del there[name]  # the directories' names have another meaning
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
    if there.keys() >= places.keys():  # written by compact
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
    """Raise ConfigError unless a cast to the wanted type preserves the values."""
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
                raise _unlike(field, other)


def _unlike(field: StructField, other: StructField) -> ConfigError:
    return ConfigError(
        f"column {field.name} is {field.dataType.simpleString()} in some inputs and "
        f"{other.dataType.simpleString()} in others: read them separately"
    )


def _difference(one: str, another: str) -> ConfigError:
    """Return the error for the first different column of two schemas in Spark's DDL."""
    first, second = (cast("StructType", _parse_datatype_string(each)) for each in (one, another))
    known = {field.name: field for field in first}
    for field in second:
        if field.name in known and known[field.name].dataType != field.dataType:
            return _unlike(field, known[field.name])
    return ConfigError(f"the columns of inputs differ: {one} and {another}")
