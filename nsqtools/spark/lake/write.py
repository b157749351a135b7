"""The files of outputs, written by tasks.

A file is at ``<partition>=<value>/.../batch=<name>/part-<task>-<number>.<format>``. The name of a
batch of an archive follows from the batch alone: a retry has the same rows in the same tasks, so it
overwrites the same files, and an obsolete task may safely keep writing. For a table, each attempt
has a name of its own, and only files that were committed are in the table.
"""

from __future__ import annotations

import posixpath
import re
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.lake.bodies import texts
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from pyspark.sql import Column

    from nsqtools.stores.interface import Store

ROW_GROUP = 32 << 20
"""Maximum bytes of the rows of a row group; readers hold a whole row group in memory."""
FILE_SIZE = 256 << 20
"""Bytes of rows in a file, before compression; the last row group may exceed it."""

_PART = "part-"
_PAGE = 1 << 20
_MEMORY = 96 << 20  # bytes held by a task for incomplete files
_OPEN = 4 << 20  # bytes to count for an open file, for its buffers
_DISTINCT = frozenset({"message_id", "timestamp", "timestamp_ns", "body"})
"""Columns with few repeated values: a dictionary would cost time and save nothing."""

_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition of rows without one, in a path."""

_NUMBERS = dict.fromkeys(("rows", "size", "length", "oldest", "newest"), pa.int64())
_SUMMARY = pa.schema({"path": pa.string(), **_NUMBERS})
_SUMMARY_DDL = "path STRING, rows LONG, size LONG, length LONG, oldest LONG, newest LONG"


class PartFile(NamedTuple):
    """A file written by a task; ``path`` is relative to the output.

    ``size`` are its bytes of rows, ``length`` its own, after compression. ``oldest`` and ``newest``
    are in microseconds since the epoch, None if there were no times.
    """

    path: str
    rows: int
    size: int
    length: int
    oldest: int | None
    newest: int | None


def write_files(
    rows: DataFrame,
    output: str,
    form: str,
    *,
    name: str = "",
    prefix: str = _PART,
    partitions: Sequence[str] = (),
    times: str = "",
    tasks: int | None = None,
    size: int = FILE_SIZE,
    replace: bool = False,
) -> list[PartFile]:
    """Write rows once, as ``form`` (parquet or json), and return the durable files.

    Rows go below ``<partition>=<value>`` for the columns ``partitions`` and, with a ``name``, below
    ``batch=<name>``, into files with names beginning with ``prefix``. The files lack the columns
    ``partitions`` and ``times``; the timestamps in ``times`` are only summarised. At most ``tasks``
    tasks write, each a new file per ``size`` bytes of rows. Afterwards, other files of tasks in the
    same directories are removed: an earlier attempt of a task or stage, or an earlier run, may have
    written them. Without ``name`` and ``prefix`` they are removed only with ``replace``, because
    other programs may have written them. Raises OutputError, and errors of Spark.
    """
    path = local(output)
    output = output if path is None else str(path)  # tasks have another current directory
    aside = [*partitions, *([times] if times else [])]
    if form == "json":
        kept = texts(rows.drop(*aside))
        line = F.to_json(F.struct(*map(_column, kept.columns)))
        rows = texts(rows).select(*aside, line.alias("line"))
    if tasks:
        rows = rows.coalesce(tasks)
    work = WriteTask(output, form, name, tuple(partitions), times, size, prefix)
    files = [PartFile(**each.asDict()) for each in _map_in_arrow(rows, work).collect()]
    store = open_store(output, "--output")
    # A task cannot know from Spark whether its whole stage is retried.
    replace = replace or bool(name) or prefix != _PART
    with as_output_error(output):
        _settle(store, files, prefix if replace else "")
    return files


def summary(files: Iterable[PartFile]) -> Written:
    """Return the total number of rows and the newest time of files."""
    files = list(files)
    newest = [each.newest / 1e6 for each in files if each.newest is not None]
    return Written(sum(each.rows for each in files), max(newest, default=None))


def escaped(value: object) -> str:
    """Return the value of a partition in a path, as Hive and Spark write it.

    An int, as an hour, has at least two digits.
    """
    if value is None or value == "":
        return NULL
    text = f"{value:02d}" if isinstance(value, int) else str(value)
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _settle(store: Store, files: Iterable[PartFile], replaced: str) -> None:
    """Make the names of files durable, from their directories up to the place.

    Tasks have done so only for new directories. Removes other files in the directories with names
    beginning with ``replaced``.
    """
    written = {each.path for each in files}
    for folder in sorted({posixpath.dirname(path) for path in written}):
        if replaced:
            for each in store.list(folder):
                path = posixpath.join(folder, each)
                if each.startswith(replaced) and path not in written:
                    store.delete(path)
        store.sync(folder)


def _map_in_arrow(rows: DataFrame, work: WriteTask) -> DataFrame:
    """Return ``rows.mapInArrow(work)``, without that method's needless import of pandas."""
    udf = UserDefinedFunction(work, _SUMMARY_DDL, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*map(_column, rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def _column(name: str) -> Column:
    """Return a column by its name, quoted for any characters."""
    return F.col(f"`{name.replace('`', '``')}`")


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The function of each task: writes its rows to files."""

    output: str
    form: str
    name: str
    partitions: tuple[str, ...]
    times: str
    size: int
    prefix: str = _PART

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files, and yield their summary as one batch."""
        context = TaskContext.get()
        number = context.partitionId() if context else 0
        with as_output_error(self.output), ExitStack() as stack:
            files = _PartFiles(self, number, stack)
            for batch in batches:
                for values, part in self._parts(batch):
                    files.add(values, part)
            files.close()
        rows = [each._asdict() for each in files.done]
        yield pa.RecordBatch.from_pylist(rows, schema=_SUMMARY)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Yield the rows by partition, usually a single one, in slices of at most a row group."""
        keys = [batch.column(each) for each in self.partitions]
        rows = batch.drop_columns(list(self.partitions)) if keys else batch
        if not rows.num_rows:
            return
        if all(_is_constant(key) for key in keys):
            yield from _sliced(tuple(key[0].as_py() for key in keys), rows)
            return
        indices: dict[tuple[Any, ...], list[int]] = {}
        for index, values in enumerate(zip(*(key.to_pylist() for key in keys), strict=True)):
            indices.setdefault(values, []).append(index)
        for values, chosen in indices.items():
            yield from _sliced(values, rows.take(pa.array(chosen, pa.int64())))

    def folder(self, values: Sequence[object]) -> str:
        """Return the directory of a partition, relative to the output."""
        pairs = [*zip(self.partitions, values, strict=True)]
        pairs += [("batch", self.name)] if self.name else []
        return "/".join(f"{key}={escaped(value)}" for key, value in pairs)


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return False
    found = pc.min_max(column)
    return bool(found["min"] == found["max"])


def _sliced(
    values: tuple[Any, ...], rows: pa.RecordBatch
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    count = -(-rows.num_rows // max(1, -(-rows.nbytes // ROW_GROUP)))
    for start in range(0, rows.num_rows, count):
        yield values, rows.slice(start, count)


class _PartFiles:
    """The incomplete files of a task, one for each partition; the least recent is closed first.

    Files still incomplete at the end of ``stack`` never appear.
    """

    def __init__(self, task: WriteTask, number: int, stack: ExitStack) -> None:
        self.done: list[PartFile] = []
        self._task = task
        self._number = number
        self._stack = stack
        self._store = open_store(task.output, "--output")
        self._open: OrderedDict[tuple[Any, ...], _IncompletePart] = OrderedDict()
        self._count: dict[str, int] = {}
        self._held = 0

    def add(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        """Add rows of a partition; they are at most a row group."""
        file = self._open.get(values)
        if file is None:
            file = self._open[values] = self._next(values)
        self._open.move_to_end(values)
        self._held -= file.held
        file.add(rows)
        self._held += file.held
        if file.size >= self._task.size:
            self._close(values)
        while self._held > _MEMORY:
            self._close(next(iter(self._open)))

    def close(self) -> None:
        """Complete all files."""
        while self._open:
            self._close(next(iter(self._open)))

    def _next(self, values: tuple[Any, ...]) -> _IncompletePart:
        folder = self._task.folder(values)
        number = self._count[folder] = self._count.get(folder, -1) + 1
        name = f"{self._task.prefix}{self._number:05d}-{number:03d}.{self._task.form}"
        file = _IncompletePart(self._store, posixpath.join(folder, name), self._task)
        self._stack.callback(file.abort)
        return file

    def _close(self, values: tuple[Any, ...]) -> None:
        file = self._open[values]
        self._held -= file.held
        file.close()
        del self._open[values]
        times = file.oldest, file.newest
        self.done.append(PartFile(file.path, file.rows, file.size, file.length, *times))


class _IncompletePart:
    """A file with the rows of its next row group; it is created with the first one."""

    def __init__(self, store: Store, path: str, task: WriteTask) -> None:
        self.path = path
        self.rows = self.size = self.length = 0
        self.oldest: int | None = None
        self.newest: int | None = None
        self._store = store
        self._task = task
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._stack = ExitStack()
        self._append: Callable[[pa.Table], object] | None = None

    @property
    def held(self) -> int:
        """Approximate bytes in memory."""
        return self._bytes + (_OPEN if self._append else 0)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, and write a row group when it is full."""
        size = rows.nbytes
        if self._rows and self._bytes + size > ROW_GROUP:
            self._write()
        self._rows.append(rows)
        self._bytes += size
        self.rows += rows.num_rows
        self.size += size

    def close(self) -> None:
        """Complete the file, so that it appears."""
        self._write()
        self._append = None
        self._stack.close()

    def abort(self) -> None:
        """Forget the file, unless it is complete."""
        # A new error: the current error may name another file.
        self._stack.__exit__(Exception, Exception("not completed"), None)

    def _write(self) -> None:
        table = pa.Table.from_batches(self._rows)
        self._rows, self._bytes = [], 0
        if self._task.times:
            self._note(table[self._task.times])
            table = table.drop_columns(self._task.times)
        if self._append is None:
            file = self._stack.enter_context(self._store.create(self.path))
            self._stack.callback(lambda: self._measure(file))
            if self._task.form == "json":
                self._append = lambda lines: file.write(_text_of(lines))
            else:
                writer = self._stack.enter_context(_parquet(file, table))
                self._append = lambda rows: writer.write_table(rows, rows.num_rows)
        self._append(table)

    def _measure(self, file: BinaryIO) -> None:
        """Note the length of the file, once all is written to it."""
        self.length = file.tell()

    def _note(self, times: pa.ChunkedArray) -> None:
        found = pc.min_max(times.cast(pa.int64()))
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is not None:
            self.oldest = least if self.oldest is None else min(self.oldest, least)
            self.newest = most if self.newest is None else max(self.newest, most)


def _text_of(lines: pa.Table) -> bytes:
    return "".join(f"{line}\n" for line in lines[0].to_pylist()).encode()


def _parquet(file: BinaryIO, first: pa.Table) -> pq.ParquetWriter:
    """Return a writer for rows like the first ones.

    pyarrow checks the size of a page only every 1,024 values by default. With bodies of 1 MB, pages
    would grow to 1 GB, too much for any reader.
    """
    mean = max(1, first.nbytes // max(1, first.num_rows))
    return pq.ParquetWriter(
        file,
        first.schema,
        compression="zstd",
        use_dictionary=[name for name in first.schema.names if name not in _DISTINCT],
        write_statistics=[name for name in first.schema.names if name != "body"],
        data_page_size=_PAGE,
        write_batch_size=min(1024, max(1, _PAGE // mean)),
        store_schema=False,
    )
