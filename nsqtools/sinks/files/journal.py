"""What must survive a crash about an archive: files under way, and what published files still owe.

Each file has an entry, a small file in ``.nsqtools`` below the output directory. It is written
before the work file is made, written again before the file gets its name, and removed when the
file is published and owes nothing. An entry left by a process that has ended names its file and
says how far it had got; contents are never compared.

All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import threading
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import REV, inside
from nsqtools.records.manifest import Published
from nsqtools.sinks.files.disk import WORK, naming, open_locked, sync_directory, write_all
from nsqtools.sinks.files.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FOLDER", "Entry", "Journal", "owing", "owing_near"]

log = logging.getLogger(__name__)

FOLDER = ".nsqtools"
_ENTRY, _LOCK, _NEW = ".json", ".lock", ".new"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RECENT = 1 << 20
"""Bytes of used names that are remembered at least: some 15,000."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """A file under way, or a published one.

    ``published`` is what is known so far: its name is the one that the file is to have.
    ``base`` is that of ``FileNames.at``, with ``<REV>`` in it. ``host`` is the host whose processes
    may go on with the file, empty for any. ``work_dir`` is empty for the output directory; its
    inode tells it from the directory on which it is mounted.
    ``inode`` and ``mtime_ns`` are those of the file that has the name or is about to get it, 0
    before. ``owes`` says that ``--on-rotate`` has not succeeded with the published file yet.
    """

    published: Published
    base: str
    revision: int
    host: str
    work_dir: str
    work_dir_inode: int
    work: str
    inode: int = 0
    mtime_ns: int = 0
    owes: bool = False
    key: str = field(default="", compare=False)

    def is_published(self) -> bool:
        """Whether the file has its name. An inode alone may have been another file's before."""
        try:
            there = os.stat(self.published.path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        ours = (self.inode, self.mtime_ns, self.published.size)
        return (there.st_ino, there.st_mtime_ns, there.st_size) == ours

    def work_path(self, output_dir: str) -> str:
        """Where the file is, or was, written."""
        return os.path.join(output_dir, self.work_dir, self.work) + WORK

    def work_dir_is_there(self) -> bool:
        """Whether a work file that is missing is gone, and not on a disk that is not mounted."""
        try:
            return not self.work_dir or os.stat(self.work_dir).st_ino == self.work_dir_inode
        except OSError:
            return False

    def copy_path(self) -> str:
        """Where it is copied before it is published on another file system."""
        return os.path.join(os.path.dirname(self.published.path), f".{self.key}.copy")


class Journal:
    """The entries of this process, and those of processes that have ended; threads may share it.

    While a process lives it holds a lock beside its entries, from its first one on.
    """

    def __init__(self, output_dir: str, host: str) -> None:
        self._output_dir = output_dir
        self._host = host
        self._folder = os.path.join(output_dir, FOLDER)
        self._used = os.path.join(self._folder, "names")
        self._owner = secrets.token_hex(4)
        self._lock = Lock(self._path(self._owner, _LOCK))
        self._numbers = count()
        self._entries: dict[str, Entry] = {}
        self._guard = threading.Lock()
        self.damaged: set[str] = set()

    def write(self, entry: Entry) -> None:
        """Make the entry last as it is now."""
        with self._guard:
            self._hold()
            entry.key = entry.key or f"{self._owner}.{next(self._numbers)}"
        path = self._path(entry.key, _ENTRY)
        new = self._path(entry.key, _NEW)
        data = json.dumps(_as_object(entry)).encode()
        try:
            _write(new, data)
            os.rename(new, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(new)
            if error.errno not in _FULL or entry.key not in self._entries:
                raise
            # Its block has room on a full disk, too. No kill tears it there; a power cut may.
            _write(path, data.ljust(os.stat(path).st_size))
        sync_directory(self._folder)
        self._entries[entry.key] = entry

    def remove(self, entry: Entry) -> None:
        """Forget the file, but not the name by which it has been published.

        A crash may bring the entry back: then it is published, or gone.
        """
        if self._entries.pop(entry.key, None) and entry.inode and REV in entry.base:
            try:
                self._remember(entry.base, entry.revision)
            except OSError as error:  # the entry remembers it until the next start
                log.warning("%s: cannot be written: %s", self._used, error.strerror)
                return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(entry.key, _ENTRY))

    def settle(self, entry: Entry) -> None:
        """The published file owes nothing any more. A failure is logged."""
        entry.owes = False
        try:
            self.remove(entry)
        except OSError as error:
            log.warning("%s: cannot be updated: %s", error.filename, error.strerror)

    def reopened(self, path: str) -> None:
        """A published file is written to again: what it owes, it owes when it is published anew."""
        for entry in list(self._entries.values()):
            if entry.inode and entry.published.path == path:
                self.remove(entry)

    def adopt(self, wanted: Callable[[str], bool]) -> list[Entry]:
        """Take over the entries that ended processes left of wanted topics, the oldest first.

        Entries of other hosts are left alone. One that cannot be read is logged, and counts as
        ``damaged`` from then on.
        """
        owners = {name.partition(".")[0] for name in _names(self._folder) if "." in name}
        owners.discard(self._owner)
        adopted: list[tuple[int, Entry]] = []
        for owner in sorted(owners):
            lock = Lock(self._path(owner, _LOCK))
            if not lock.acquire():
                continue
            try:
                left = [each for each in _names(self._folder) if each.startswith(f"{owner}.")]
                adopted += [
                    (self._take(entry), entry)
                    for entry in filter(None, map(self._find, left))
                    if wanted(entry.published.topic) and entry.host in ("", self._host)
                ]
            finally:
                lock.release()
        return [entry for _, entry in sorted(adopted, key=lambda each: (each[0], each[1].key))]

    def revisions(self) -> Iterator[tuple[str, int]]:
        """Names with ``<REV>`` and the revisions used, also of files that are gone."""
        for entry in _entries(self._output_dir):
            yield entry.base, entry.revision
        with contextlib.suppress(FileNotFoundError), open(self._used, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):  # torn
                    base, revision = json.loads(line)
                    yield base, revision

    def _remember(self, base: str, revision: int) -> None:
        """Whoever takes files away by their names must not get the same name for another file."""
        fd = open_locked(self._used, os.O_APPEND, wait=True)
        assert fd is not None
        try:
            size = os.fstat(fd).st_size
            if size > 2 * _RECENT:
                recent = os.pread(fd, _RECENT, size - _RECENT).partition(b"\n")[2]
                new = self._path(self._owner, _NEW)
                _write(new, recent)
                os.rename(new, self._used)
                os.close(fd)
                fd = os.open(self._used, os.O_WRONLY | os.O_APPEND)
            write_all(fd, b"\n%b\n" % json.dumps([base, revision]).encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def owed(self) -> list[str]:
        """The paths of our published files that wait for ``--on-rotate``."""
        entries = list(self._entries.values())
        return sorted(entry.published.path for entry in entries if entry.owes)

    def close(self) -> None:
        """Let others adopt what is left."""
        self._lock.release()

    def _hold(self) -> None:
        while not self._lock.acquire():  # another looked whether this process has ended
            if self._entries:
                raise OSError(errno.EAGAIN, "another process has taken the lock", self._lock.path)
            self._owner = secrets.token_hex(4)
            self._lock = Lock(self._path(self._owner, _LOCK))

    def _find(self, name: str) -> Entry | None:
        """The entry in the file of this name, which nobody else writes now."""
        path = os.path.join(self._folder, name)
        if name.endswith(_NEW):
            os.unlink(path)
        if not name.endswith(_ENTRY):
            return None
        try:
            return _read(self._output_dir, path)
        except ValueError as error:
            if path not in self.damaged:
                log.error("%s: damaged, so the file it tells of is left alone: %s", path, error)
            self.damaged.add(path)
            return None

    def _take(self, entry: Entry) -> int:
        """Make an entry ours; a copy that was under way goes. The entry's age is its mtime."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.copy_path())
        with self._guard:
            self._hold()
            key = f"{self._owner}.{next(self._numbers)}"
        path = self._path(key, _ENTRY)
        os.rename(self._path(entry.key, _ENTRY), path)
        sync_directory(self._folder)
        entry.key = key
        self._entries[key] = entry
        return os.stat(path).st_mtime_ns

    def _path(self, key: str, suffix: str) -> str:
        return os.path.join(self._folder, key + suffix)


def owing_near(path: str) -> set[str]:
    """As ``owing``, of the output directory that the file is in.

    It is empty where the file is in none, and for those who may not read the journal.
    """
    folder = os.path.dirname(path)
    while not os.path.isdir(os.path.join(folder, FOLDER)) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        return owing(folder)
    except PermissionError:
        return set()


def owing(output_dir: str) -> set[str]:
    """The published files that wait for ``--on-rotate``: of all processes, living or not."""
    return {entry.published.path for entry in _entries(output_dir) if entry.owes}


def _entries(output_dir: str) -> Iterator[Entry]:
    """All entries that are there and can be read."""
    folder = os.path.join(output_dir, FOLDER)
    for name in _names(folder):
        if name.endswith(_ENTRY):
            with contextlib.suppress(FileNotFoundError, ValueError):
                yield _read(output_dir, os.path.join(folder, name))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        with naming(path):
            write_all(fd, data)
            os.fsync(fd)
    finally:
        os.close(fd)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _as_object(entry: Entry) -> dict[str, Any]:
    value = asdict(entry)
    del value["key"], value["published"]["path"]
    return value


def _read(output_dir: str, path: str) -> Entry:
    """Raises ValueError for what ``Journal.write`` has not written."""
    with open(path, "rb") as file:
        value = json.load(file)
    try:
        about = value.pop("published")
        relative = inside(about["name"])
        inside(value["work"])
        published = Published(path=os.path.join(output_dir, relative), **about)
        key = os.path.basename(path).removesuffix(_ENTRY)
        entry = Entry(published=published, key=key, **{**value, "owes": bool(value["owes"])})
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        raise ValueError(f"not an entry ({error})") from None
    numbers = [entry.revision, entry.inode, entry.mtime_ns, entry.work_dir_inode]
    numbers += [published.records, published.size]
    texts = (entry.base, entry.host, entry.work_dir, published.topic, published.delimiter)
    if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
        raise ValueError("not an entry (wrong types)")
    return entry
