"""Records: files of ``to-file`` as a Spark data source, read by executors in batches.

The files are an option of the source: the driver has listed them, and assigns each to one task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from nsqtools.errors import RecordError
from nsqtools.records.compression import METHODS, method_of, plain_chunks
from nsqtools.records.forms import make_reader
from nsqtools.records.layout import Layout
from nsqtools.spark.lake.inputs import Input, check_same, in_shares, open_file
from nsqtools.spark.rows import ROW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    from pyspark.sql.types import StructType

INPUT_SCHEMA = pa.schema([*ROW_SCHEMA, ("source_file", pa.string()), ("source_record", pa.int64())])
"""A record and its place: ``source_record`` counts from 0 in ``source_file``."""

_ROWS = 16384
_BYTES = 4 << 20
"""Of bodies. A batch ends with the piece of the file that makes it reach either."""

_SHARES_PER_CORE = 4
_TIMESTAMPS = range(1 << 63)
_ATTEMPTS = range(1 << 31)


def read(archive: Input) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in INPUT_SCHEMA, in batches of limited size.

    Unknown columns are null, except the time, which is then the modification time of the file.
    Raises RecordError, which names file and position, if the file is damaged or incomplete, or has
    changed since it was found.
    """
    check_same(archive.path, archive.size, archive.mtime_ns)
    try:
        with open_file(archive.path) as file:
            yield from _batches(archive, file)
    except OSError as error:
        raise RecordError(f"{archive.path}: {error.strerror or error}") from None
    except RecordError as error:
        raise RecordError(f"{archive.path}: {error}") from None
    check_same(archive.path, archive.size, archive.mtime_ns)


def _batches(archive: Input, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    compression = method_of(archive.path)
    if not archive.size and compression != "none":
        raise RecordError(f"empty: it has no {METHODS[compression].noun}")
    position = size = 0
    bodies: list[bytes] = []
    envelopes: list[dict[str, Any]] = []  # of bodies that are in one
    assert archive.layout
    reader = make_reader(archive.layout, complete=True, observe=envelopes.append)
    for chunk in chain(plain_chunks(file, compression), (None,)):
        found = reader.finish() if chunk is None else reader.feed(chunk)
        bodies += found
        size += sum(map(len, found))
        if chunk is None or len(bodies) >= _ROWS or size >= _BYTES:
            yield from _batch(archive, bodies, envelopes, position)
            position += len(bodies)
            size = 0
            bodies.clear()
            envelopes.clear()


def _batch(
    archive: Input,
    bodies: Sequence[bytes],
    envelopes: Sequence[dict[str, Any]],
    position: int,
) -> Iterator[pa.RecordBatch]:
    """One batch of the records from this position on; none without records."""
    if not bodies:
        return
    if archive.layout and archive.layout.format == "json":
        columns = _from_envelopes(archive, bodies, envelopes)
    else:
        columns = _from_bodies(archive, bodies)
    places = pa.array(range(position, position + len(bodies)), pa.int64())
    files = pa.repeat(pa.scalar(archive.path, pa.string()), len(bodies))
    yield pa.RecordBatch.from_arrays([*columns, files, places], schema=INPUT_SCHEMA)


def _from_bodies(archive: Input, bodies: Sequence[bytes]) -> list[pa.Array]:
    nothing = {field.name: pa.nulls(len(bodies), field.type) for field in ROW_SCHEMA}
    when = pa.scalar(archive.mtime_ns // 1000, pa.int64()).cast(ROW_SCHEMA.field("timestamp").type)
    known = {"timestamp": pa.repeat(when, len(bodies)), "body": pa.array(bodies, pa.binary())}
    return list((nothing | known).values())


def _from_envelopes(
    archive: Input, bodies: Sequence[bytes], envelopes: Sequence[dict[str, Any]]
) -> list[pa.Array]:
    """As the JSON writer has them; of other keys, and values that cannot be, nothing is known."""
    stamps = [_number(each.get("timestamp"), _TIMESTAMPS) for each in envelopes]
    times = [(archive.mtime_ns if ns is None else ns) // 1000 for ns in stamps]
    attempts = [_number(each.get("attempts"), _ATTEMPTS) for each in envelopes]
    try:
        texts = [
            pa.array([_text(each.get(key)) for each in envelopes], pa.string())
            for key in ("topic", "channel", "nsqd", "id")
        ]
    except UnicodeEncodeError:
        raise RecordError("a topic, channel, nsqd or id has half of a surrogate pair") from None
    return [
        *texts,
        pa.array(times, pa.int64()).cast(ROW_SCHEMA.field("timestamp").type),
        pa.array(stamps, pa.int64()),
        pa.array(attempts, pa.int32()),
        pa.array(bodies, pa.binary()),
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object, allowed: range) -> int | None:
    return value if type(value) is int and value in allowed else None


@dataclass
class Share(InputPartition):
    """The files that one task reads; not frozen, as its base has a constructor."""

    archives: tuple[Input, ...]


class ArchiveSource(DataSource):
    """The data source ``format("nsqtools-archive")``; its option ``archives`` comes from
    ``as_option``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nsqtools-archive"

    def schema(self) -> StructType:
        """Return INPUT_SCHEMA as a Spark schema."""
        schema: StructType = from_arrow_schema(INPUT_SCHEMA)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for the files in the options."""
        return _ArchiveReader(self.options["archives"], int(self.options["cores"]))


class _ArchiveReader(DataSourceReader):
    def __init__(self, archives: str, cores: int) -> None:
        self._archives = archives
        self._cores = cores

    def partitions(self) -> Sequence[InputPartition]:
        archives = [
            Input(path, size, mtime_ns, "records", "", Layout(form, bytes.fromhex(delimiter)))
            for path, size, mtime_ns, form, delimiter in json.loads(self._archives)
        ]
        shares = in_shares([each.size for each in archives], self._cores * _SHARES_PER_CORE)
        return [Share(tuple(archives[share])) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        for archive in partition.archives:
            yield from read(archive)


def as_option(archives: Iterable[Input]) -> str:
    """Return files with a layout as the text of an option."""
    rows = []
    for each in archives:
        assert each.layout
        form = each.layout.format, each.layout.delimiter.hex()
        rows.append((each.path, each.size, each.mtime_ns, *form))
    return json.dumps(rows)
