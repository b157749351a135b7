"""The files of archives written by ``pipeline archive``, ``pipeline compact`` and ``to-file``.

The driver lists the files with size and time, to detect changes during a job. It skips hidden files
and directories, files not published yet, nsqtools' directory ``_nsqtools``, and Spark's own files.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import glob
import os
import posixpath
import re
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, RecordError
from nsqtools.policy.filenames import INCOMPLETE
from nsqtools.records.compression import method_of, require
from nsqtools.records.manifest import is_manifest
from nsqtools.sinks.files.disk import is_at
from nsqtools.spark.lake.snapshots import DELTA, table_at
from nsqtools.stores import in_threads, stored
from nsqtools.stores.interface import READ, StoredFile
from nsqtools.stores.places import OURS, as_url, is_pattern, local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from nsqtools.records.layout import Layout
    from nsqtools.spark.lake.snapshots import TableSchema
    from nsqtools.stores.interface import Store

    _Listed = tuple[object, StoredFile]

    ProgressReport = Callable[[str, int, int], None]
    """Called with progress: the current step, the amount done, and the total (0: unknown)."""

_INCOMPLETE = (*INCOMPLETE, ".lock")
_NO_DATA = frozenset(
    {OURS, "_SUCCESS", "_spark_metadata", "_temporary", "_metadata", "_common_metadata"}
)
_SPARK_JSON = re.compile(r"/batch=[^/]*/part-[^/]*\.json(?:\.[a-z0-9]+)?")
_WILD = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_LINE = 1 << 14
"""Bytes to read for the first line of a manifest; longer lines take another read."""


@dataclass(frozen=True, slots=True)
class Input:
    """A file as it was found: ``path`` is a URL, or a path without symbolic links.

    ``kind`` is ``parquet``, ``rows`` for JSON of ``pipeline archive``, or ``records`` for files of
    ``to-file``, which have a ``layout``. ``place`` is the searched directory, file or table;
    ``whole`` is true if a directory has no other files than its inputs. The files of a table have
    its ``schema``, and no time.
    """

    path: str
    size: int
    mtime_ns: int
    kind: str
    place: str
    layout: Layout | None = None
    whole: bool = False
    schema: TableSchema | None = None


def find(
    places: Iterable[str], layout: Layout | None, *, exclude: Sequence[str] = ()
) -> list[Input]:
    """Return the files of archives, ready to be read.

    Parameters and errors are those of ``list_files`` and ``checked``.
    """
    return checked(list_files(places, exclude=exclude), layout)


def list_files(places: Iterable[str], *, exclude: Sequence[str] = ()) -> list[Input]:
    """Return the files of archives by path, each once, whatever its names; opens no file.

    ``places`` are files, directories and patterns, as paths or URLs. The directories ``exclude``
    are left out. Raises ConfigError for an invalid place, and errors of ``table_at``.
    """
    excluded = [real(each) for each in exclude]
    partial: set[str] = set()

    def search(place: str) -> tuple[str, TableSchema | None, list[_Listed]]:
        if table := table_at(place):
            return place, table.schema, [(each.path, each) for each in table.files]
        return place, None, list(_files_of(place, excluded, partial))

    files: dict[object, tuple[StoredFile, str, TableSchema | None]] = {}
    for place, schema, listed in in_threads(search, expanded(places)):
        for identity, each in listed:
            known, *_ = files.setdefault(identity, (each, place, schema))
            if known.path != each.path:
                partial.add(place)
            if each.path < known.path:
                files[identity] = each, place, schema
    return [
        Input(
            *(*each, _kind(each.path), place),
            whole=schema is None and place not in partial,
            schema=schema,
        )
        for each, place, schema in sorted(files.values())
    ]


def checked(files: Iterable[Input], layout: Layout | None) -> list[Input]:
    """Return the files that can be read, without the manifests of ``to-file``.

    ``layout`` is the format of files not written by ``pipeline archive``. Raises ConfigError for a
    file without the necessary layout, library or name.
    """
    return [each for each in in_threads(lambda each: _checked(each, layout), files) if each]


def in_shares(sizes: Sequence[int], count: int) -> Iterator[slice]:
    """Yield about ``count`` slices of files of these sizes, each of about 1 to 64 MiB."""
    share = min(max(sum(sizes) // count, 1 << 20), 64 << 20)
    start = size = 0
    for end, each in enumerate(sizes, 1):
        size += each
        if size >= share or end == len(sizes):
            yield slice(start, end)
            start, size = end, 0


def open_file(path: str, ahead: int = READ) -> BinaryIO:
    """Open a file for reading, wherever it is; raises OSError.

    A file in a store is read in pieces of ``ahead`` bytes.
    """
    if local(path) is not None:
        return open(path, "rb")
    store, relative = stored(path)
    return store.open(relative, ahead)


def check_same(path: str, size: int, mtime_ns: int) -> None:
    """Raise RecordError unless a file has this size and time; 0 is any time."""
    store, relative = stored(path)
    try:
        now = store.stat(relative)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    if (now.size, now.mtime_ns if mtime_ns else 0) != (size, mtime_ns):
        raise RecordError(
            f"{path}: changed while it was read: omit files that are still being written"
        )


def check_unchanged(inputs: Sequence[Input]) -> None:
    """Raise RecordError if an input has changed since it was found."""
    in_threads(lambda each: check_same(each.path, each.size, each.mtime_ns), inputs)


def remove(each: Input) -> str:
    """Delete a file if it is unchanged and no process writes to it; else return the reason."""
    store, path = stored(each.path)
    try:
        with _locked(each.path):
            check_same(each.path, each.size, each.mtime_ns)
            store.delete(path)
    except RecordError:
        return "it has changed"
    except BlockingIOError:
        return "a process writes to it"
    except OSError as error:
        return f"it cannot be deleted: {error.strerror}"
    if local(each.path) is not None:
        folder, name = os.path.split(path)
        with contextlib.suppress(OSError):
            store.delete(f"{folder}/.{name}.crc")  # Hadoop's checksums of it
    return ""


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock a local file as to-file does while writing; raises BlockingIOError if it is locked."""
    if local(path) is None:
        yield
        return
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_at(fd, path):
            raise BlockingIOError
        yield
    finally:
        os.close(fd)


def real(place: str) -> str:
    """Return a local path without symbolic links, or a URL without a slash at its end.

    Raises ConfigError for a path that is not UTF-8.
    """
    path = local(place)
    if path is None:
        return as_url(place).rstrip("/")
    found = os.path.realpath(path)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{found!r}: the name is not UTF-8: rename it") from None
    return found


def expanded(places: Iterable[str]) -> Iterator[str]:
    """Yield the places, and the matches of each pattern. Raises ConfigError without a match."""
    for place in places:
        if not is_pattern(place):
            yield real(place)
            continue
        path = local(place)
        found: list[str] = []
        for pattern in _alternatives(place if path is None else str(path)):
            if path is None:
                store, relative = stored(pattern)
                found += map(store.url, _matching(store, relative.split("/")))
            else:
                named = (each for each in glob.glob(pattern) if os.path.basename(each) != OURS)
                found += map(real, named)
        if not found:
            raise ConfigError(f"{place}: no file or directory matches")
        yield from found


def _alternatives(pattern: str) -> Iterator[str]:
    """Yield the patterns without braces for a pattern with braces."""
    found = _BRACES.search(pattern)
    if not found:
        yield pattern
        return
    for each in found[1].split(","):
        yield from _alternatives(pattern[: found.start()] + each + pattern[found.end() :])


def _matching(store: Store, parts: Sequence[str], folder: str = "") -> Iterator[str]:
    """Yield the matching paths in a store, component by component."""
    if not parts:
        yield folder
    elif not _WILD.search(parts[0]):
        yield from _matching(store, parts[1:], posixpath.join(folder, parts[0]))
    else:
        names = (name for name in store.list(folder) if not _is_hidden(name))
        for name in fnmatch.filter(names, parts[0]):
            yield from _matching(store, parts[1:], posixpath.join(folder, name))


def _files_of(place: str, excluded: Sequence[str], partial: set[str]) -> Iterator[_Listed]:
    """Yield the files of a place, each after an identity shared by all names of the file.

    Adds the place to ``partial`` if Spark would find other files there.
    """
    for folder in excluded:
        if _is_within(place, folder):
            raise ConfigError(f"{place}: is within {folder}, where the result goes: omit it")
    if local(place) is None:
        yield from _remote(place, excluded, partial)
        return
    try:
        status = os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(place, excluded, partial)
            return
    except OSError as error:
        raise ConfigError(f"{error.filename or place}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{place}: is neither a file nor a directory")
    _check_published(place)
    yield _entry(place, status)


def _remote(place: str, excluded: Sequence[str], partial: set[str]) -> Iterator[_Listed]:
    store, folder = stored(place)
    try:
        found = list(store.files(folder))
        if not found:
            found = [store.stat(folder)]
            _check_published(place)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}") from error
    for each in found:
        path = store.url(each.path)
        names = each.path.removeprefix(folder).strip("/").split("/")
        if DELTA in names:
            raise _table_within(place, path.partition(f"/{DELTA}")[0])
        if any(map(_is_hidden, names)) or path.endswith(_INCOMPLETE):
            continue
        if any(_is_within(path, other) for other in excluded):
            partial.add(place)
            continue
        yield path, each._replace(path=path)


def _walk(place: str, excluded: Sequence[str], partial: set[str]) -> Iterator[_Listed]:
    """Yield regular files below a real path; follows links, enters each directory once."""
    folders, seen = [place], {place}
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == DELTA:
                    raise _table_within(place, folder)
                if _is_hidden(entry.name):
                    continue
                path, is_link, is_folder = entry.path, entry.is_symlink(), entry.is_dir()
                if is_link:
                    path = os.path.realpath(path)
                    partial.add(place)
                if (is_link or is_folder) and any(_is_within(path, each) for each in excluded):
                    partial.add(place)
                elif is_folder:
                    if path not in seen:
                        seen.add(path)
                        folders.append(path)
                elif entry.is_file() and not path.endswith(_INCOMPLETE):
                    yield _entry(path, entry.stat())


def _entry(path: str, status: os.stat_result) -> _Listed:
    identity = status.st_dev, status.st_ino
    return identity, StoredFile(path, status.st_size, status.st_mtime_ns)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _NO_DATA


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _check_published(place: str) -> None:
    if place.endswith(_INCOMPLETE):
        raise ConfigError(f"{place}: is not complete yet: to-file renames it when it is complete")


def _table_within(place: str, table: str) -> ConfigError:
    return ConfigError(f"--input {place}: contains the table {table}: give it as another --input")


def _kind(path: str) -> str:
    if path.endswith(".parquet"):
        return "parquet"
    return "rows" if _SPARK_JSON.search(path) else "records"


def _checked(found: Input, layout: Layout | None) -> Input | None:
    """Return a file with its layout; None for a manifest."""
    path = found.path
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path!r}: the name is not UTF-8: rename the file") from None
    if found.kind == "parquet" and posixpath.basename(path).startswith("_"):
        raise ConfigError(f"{path}: Spark ignores files whose names begin with _: rename the file")
    if found.kind != "records":
        return found
    try:
        with open_file(path, _LINE) as file:
            if is_manifest(file):
                return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if layout is None:
        raise ConfigError(
            f"{path}: is not a Parquet file: give the --input-format that to-file wrote it in"
        )
    require(method_of(path))
    return replace(found, layout=layout)
