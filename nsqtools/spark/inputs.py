"""The files of archives that ``pipeline archive`` and ``to-file`` wrote.

The driver lists the files with size and time, so that changes during a job are detected. Skipped
are hidden files and directories, files that are not published yet, nsqtools' directory
``_nsqtools``, and Spark's own files.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.compression import method_of, require
from nsqtools.records.manifest import is_manifest
from nsqtools.spark.mounted import real
from nsqtools.spark.places import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nsqtools.records.layout import Layout

    ProgressReport = Callable[[str, int, int], None]
    """Called with progress: the current step, the amount done, and the total (0: unknown)."""

__all__ = ["Input", "ProgressReport", "find", "parquet"]

_UNPUBLISHED = (".part", ".torn", ".copy", ".lock")
_NO_DATA = frozenset(
    {OURS, "_SUCCESS", "_spark_metadata", "_temporary", "_metadata", "_common_metadata"}
)
_SPARK_JSON = re.compile(r"/batch=[^/]*/part-[^/]*\.json(?:\.[a-z0-9]+)?")
_READ = 1 << 20
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Input:
    """A file as it was found; ``path`` has no symbolic links.

    ``kind`` is ``parquet``, ``rows`` for JSON of ``pipeline archive``, or ``records`` for files of
    ``to-file``, which have a ``layout``. ``rows`` and ``schema`` come from a Parquet footer.
    ``skip`` is the number of records to skip at the beginning.
    """

    path: str
    size: int
    mtime_ns: int
    inode: int
    kind: str
    layout: Layout | None = None
    rows: int = 0
    schema: pa.Schema | None = None
    skip: int = 0

    @property
    def looks(self) -> tuple[str, int, int]:
        """Name, size and time, which a copy has in common with the file."""
        return os.path.basename(self.path), self.size, self.mtime_ns

    def digest(self, size: int | None = None) -> str:
        """Return the sha256 of the first ``size`` bytes, by default all, in hex; raises
        RecordError.
        """
        left = self.size if size is None else size
        found = hashlib.sha256()
        try:
            with open(self.path, "rb") as file:
                while left and (data := file.read(min(left, _READ))):
                    found.update(data)
                    left -= len(data)
        except OSError as error:
            raise RecordError(f"{self.path}: {error.strerror}") from error
        return found.hexdigest()

    def check_same(self) -> None:
        """Raise RecordError if the file has changed since it was found."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise RecordError(f"{self.path}: {error.strerror}") from error
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise RecordError(
                f"{self.path}: changed while it was read: omit files that are still being written"
            )


def find(
    places: Iterable[str],
    layout: Layout | None,
    *,
    exclude: Sequence[str] = (),
    until: int | None = None,
) -> list[Input]:
    """Return the files of archives by path, each once, whatever its names and copies.

    ``places`` are local files and directories; ``layout`` is the format of files that ``pipeline
    archive`` did not write. Excluded are the directories ``exclude``, manifests of ``to-file``, and
    files changed after ``until``, in ns since the epoch. A copy is a file of the same name, time
    and content.

    Raises ConfigError for an invalid place, and for a file that needs a layout or a library;
    RecordError for a damaged Parquet file.
    """
    excluded = [os.path.realpath(each) for each in exclude]
    files: dict[tuple[int, int], tuple[str, os.stat_result]] = {}
    for place in places:
        for path, status in _files_of(place, excluded):
            if until is not None and status.st_mtime_ns > until:
                continue
            known = files.setdefault((status.st_dev, status.st_ino), (path, status))
            if path < known[0]:
                files[status.st_dev, status.st_ino] = path, status
    with ThreadPoolExecutor(_THREADS) as pool:
        looked = pool.map(lambda each: _look(each[0], each[1], layout), sorted(files.values()))
        found = [each for each in looked if each]
    return _without_copies(found)


def parquet(path: str) -> Input:
    """Return an Input for a Parquet file; raises RecordError if it is damaged."""
    found = _look(path, os.stat(path), None)
    assert found
    return found


def _files_of(place: str, excluded: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    path = real(place, "inputs must be on a mounted file system")
    for folder in excluded:
        if _is_within(path, folder):
            raise ConfigError(f"{place}: is within {folder}, where the result goes: omit it")
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, excluded, set())
            return
    except OSError as error:
        raise ConfigError(f"{error.filename or place}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{place}: is neither a file nor a directory")
    if path.endswith(_UNPUBLISHED):
        raise ConfigError(f"{place}: is not published yet: to-file renames it when it is complete")
    yield path, status


def _walk(
    folder: str, excluded: Sequence[str], seen: set[str]
) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below a real path; links are followed, each directory is entered once."""
    if folder in seen:
        return
    seen.add(folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "_delta_log":
                raise ConfigError(
                    f"{folder}: is a Delta table: compact it with OPTIMIZE of Delta Lake"
                )
            if entry.name.startswith(".") or entry.name in _NO_DATA:
                continue
            path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if any(_is_within(path, each) for each in excluded):
                continue
            if entry.is_dir():
                yield from _walk(path, excluded, seen)
            elif entry.is_file() and not path.endswith(_UNPUBLISHED):
                yield path, os.stat(path)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _look(path: str, status: os.stat_result, layout: Layout | None) -> Input | None:
    """What kind of file it is; None for a manifest."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path!r}: the name is not UTF-8: rename the file") from None
    name = os.path.basename(path)
    found = Input(path, status.st_size, status.st_mtime_ns, status.st_ino, "records", layout)
    if name.endswith(".parquet"):
        if name.startswith("_"):
            raise ConfigError(
                f"{path}: Spark ignores files whose names begin with _: rename the file"
            )
        rows, schema = _footer(path)
        return replace(found, kind="parquet", layout=None, rows=rows, schema=schema)
    if _SPARK_JSON.search(path):
        return replace(found, kind="rows", layout=None)
    if _is_manifest(path):
        return None
    if layout is None:
        raise ConfigError(
            f"{path}: is not a Parquet file: give the --input-format that to-file wrote it in"
        )
    require(method_of(path))
    return found


def _footer(path: str) -> tuple[int, pa.Schema]:
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata.num_rows, file.schema_arrow.remove_metadata()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(f"{path}: cannot be read as a Parquet file: {reason}") from None


def _is_manifest(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return is_manifest(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _without_copies(inputs: Sequence[Input]) -> list[Input]:
    counts = Counter(each.looks for each in inputs)
    known: set[tuple[object, str]] = set()
    kept = []
    for each in inputs:
        if counts[each.looks] > 1:
            content = each.looks, each.digest()
            if content in known:
                continue
            known.add(content)
        kept.append(each)
    return kept
