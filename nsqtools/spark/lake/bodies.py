"""Columns from bodies that are JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from nsqtools.errors import ConfigError
from nsqtools.spark.sparksession import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame

    from nsqtools.records.bodies.decoders import Decoding

DECODED = "decoded"
"""The column with the JSON text of a decoded body."""
CORRUPT = "_corrupt"
CORRUPT_COUNT = "nsqtools_corrupt"
"""The prefix of names of observed metrics that count rows with a value in this column."""
PARTITIONS = ("date", "hour", "batch")

_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_JSON = "_nsqtools_json"

_FLAT = r"^[^}]*\}[ \t\r\n]*\z"
_END = f"end_{uuid4().hex}"
"""Nobody's field."""


def date_of(name: str) -> str:
    """Return SQL for the day of a timestamp in UTC, whatever the session's time zone."""
    micros = f"unix_micros({name})"
    return f"date_from_unix_date(cast(({micros} - pmod({micros}, {_DAY_US})) div {_DAY_US} as int))"


def hour_of(name: str) -> str:
    """Return SQL for the hour of a timestamp in UTC, from 0 to 23."""
    return f"cast(pmod(unix_micros({name}), {_DAY_US}) div {_HOUR_US} as int)"


def read_schema(text: str) -> StructType:
    """Parse columns in SQL or Spark's JSON; needs a Spark session. Raises ConfigError."""
    try:
        if text.lstrip().startswith("{"):
            found = StructType.fromJson(json.loads(text))
        else:
            found = cast("StructType", StructType.fromDDL(text))
    except (PySparkException, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"--schema: {first_line(error)}") from error
    if not found.fields:
        raise ConfigError("--schema: expected at least one column")
    names = [each.name.lower() for each in found.fields]
    if CORRUPT in names:
        raise ConfigError(
            f"--schema: {CORRUPT} is reserved for bodies that cannot be parsed: rename the column"
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"--schema: {name!r} is named more than once: rename one of the columns"
            )
    return found


def with_decoded(frame: DataFrame, decoding: Decoding) -> DataFrame:
    """Return the frame with the column ``decoded``, null for a body that does not decode.

    Raises ConfigError if the frame has such a column already. Each task has a decoder of its own.
    """
    if DECODED in [name.lower() for name in frame.columns]:
        raise ConfigError(f"--decode: the messages have a column {DECODED} already")
    text: Any = arrow_udf(_decode(decoding), StringType())  # type: ignore[call-overload]
    return frame.withColumn(DECODED, text(F.col("body").cast("binary")))


def _decode(decoding: Decoding) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Return the function to run on executors, which Spark sends as code because it is nested."""

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decoder = decoding.make()
        try:
            for batch in batches:
                bodies = [body or b"" for body in batch.to_pylist()]
                yield pa.array(decoder.decode_all(bodies), pa.string())
                decoder.undecoded = 0  # Spark counts these, for all tasks
        finally:
            decoder.close()

    # Spark reads the hints of types at run time, and takes the function for one of iterators.
    decode.__annotations__ = dict.fromkeys(("batches", "return"), Iterator[pa.Array])
    return decode


def with_columns(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the frame with columns for the fields of ``body``, and ``_corrupt``.

    The fields are those of ``decoded`` instead, if the body was decoded.
    If a body is not UTF-8, or not exactly one JSON object of these types, the fields that cannot be
    parsed are null and ``_corrupt`` has the text, with invalid UTF-8 replaced. That column replaces
    one of an archive. A field is named ``body_<field>`` if the frame or a partition already has a
    column of that name.
    """
    kept = [name for name in frame.columns if name.lower() != CORRUPT]
    taken = {*(name.lower() for name in kept), *PARTITIONS, CORRUPT}
    wanted = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    body = F.col("body").cast("string")
    if DECODED in kept:
        body = F.coalesce(F.col(DECODED), body)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = F.from_json(F.try_validate_utf8(body), wanted, options)
    found = F.col(_JSON)
    return frame.withColumn(_JSON, F.when(_is_alone(body), parsed)).select(
        *kept,
        *(found.getField(each.name).alias(_free(each.name, taken)) for each in schema.fields),
        _corrupt(found, body).alias(CORRUPT),
    )


def counted_corrupt(frame: DataFrame, source: str) -> DataFrame:
    """Return the frame, of which Spark counts the rows with ``_corrupt`` when they are read.

    ``source`` distinguishes frames that one query reads.
    """
    return frame.observe(f"{CORRUPT_COUNT}_{source}", F.count(CORRUPT).alias(CORRUPT_COUNT))


def counted_undecoded(frame: DataFrame, source: str) -> DataFrame:
    """Return the frame, of which Spark counts the rows that did not decode as corrupt."""
    count = F.count_if(F.col(DECODED).isNull())
    return frame.observe(f"{CORRUPT_COUNT}_{source}", count.alias(CORRUPT_COUNT))


def texts(frame: DataFrame) -> DataFrame:
    """Return ``body`` as text, or as ``body_b64`` if it is not text, as ``to-file --format json``
    does.
    """
    if dict(frame.dtypes).get("body") != "binary":
        return frame
    body = F.col("body")
    text = F.try_validate_utf8(body.cast("string"))
    return frame.withColumns({"body": text, "body_b64": F.when(text.isNull(), F.base64(body))})


def _is_alone(body: Column) -> Column:
    """Whether there is nothing more than white space behind the JSON value that a body begins with.

    ``from_json`` does not look there. An object that has one brace to close ends with that, which
    costs little to see. Another value is made the first of an array, whose second one comes from
    here: what follows the value breaks the array, or is the second one itself.
    """
    array = F.concat(F.lit("["), body, F.lit(f',{{"{_END}":1}}]'))
    second = F.get(F.from_json(array, f"ARRAY<STRUCT<{_END} INT>>"), F.lit(1))
    return body.rlike(_FLAT) | (second.getField(_END) == 1)


def _corrupt(found: Column, body: Column) -> Column:
    """The text of a body that did not parse; of one without an object Spark makes null."""
    lost = F.when(found.isNull(), F.make_valid_utf8(body))
    return F.coalesce(found.getField(CORRUPT), lost)


def _free(name: str, taken: Collection[str]) -> str:
    return f"body_{name}" if name.lower() in taken else name
