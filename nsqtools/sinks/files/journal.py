"""The journal: the state of archive files that must survive a crash.

Each file has an entry, a small file in ``.nsqtools`` below the output directory. The entry is
written before the work file is created, and again before the file gets its final name. It is
removed when the file is published and all that it owes is done, such as ``--on-rotate``. From an
entry of a process that has ended, the next start learns the file and how far it had got; the
contents of files are never compared.

All functions block and raise OSError.
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
from nsqtools.sinks.files.disk import WORK, open_locked
from nsqtools.sinks.files.locks import Lock
from nsqtools.stores.interface import naming
from nsqtools.stores.mounted import sync_directory, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

FOLDER = ".nsqtools"
DELETE = "--delete-uploaded"
"""The last of what a file can owe; a file that owes only this may go."""

_ENTRY, _LOCK, _NEW = ".json", ".lock", ".new"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RECENT = 1 << 20
"""Minimum bytes of used names that are kept: about 15,000 names."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """A file that is being written or has been published.

    ``published`` has the facts known so far; its name is the final name. ``base`` is the result of
    ``FileNames.at``, which contains ``<REV>``. ``host`` is the host whose processes may continue
    the file, empty for any host. ``work_dir`` is empty for the output directory; its inode
    distinguishes the directory from an empty mount point. ``inode`` and ``mtime_ns`` belong to the
    file that has the final name or is about to get it, and are 0 before that. ``owes`` has the
    options that remain to be followed for the published file, the next one first.
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
    owes: tuple[str, ...] = ()
    key: str = field(default="", compare=False)

    def is_published(self) -> bool:
        """Whether the file has its final name; mtime and size must match, as inodes are reused."""
        try:
            there = os.stat(self.published.path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        ours = (self.inode, self.mtime_ns, self.published.size)
        return (there.st_ino, there.st_mtime_ns, there.st_size) == ours

    def work_path(self, output_dir: str) -> str:
        """Return the path of the work file."""
        return os.path.join(output_dir, self.work_dir, self.work) + WORK

    def work_dir_is_there(self) -> bool:
        """Whether the work directory is the one of the entry, and not, for example, unmounted."""
        try:
            return not self.work_dir or os.stat(self.work_dir).st_ino == self.work_dir_inode
        except OSError:
            return False

    def copy_path(self) -> str:
        """Return the path of the copy that is made for publishing on another file system."""
        return os.path.join(os.path.dirname(self.published.path), f".{self.key}.copy")


class Journal:
    """The entries of this process and adopted entries of ended processes; thread-safe.

    A process with entries holds a lock next to them until it ends.
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
        """Write the current state of an entry durably."""
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
            # On a full disk, overwrite the entry in its own block. A kill cannot tear it; a power
            # failure may.
            _write(path, data.ljust(os.stat(path).st_size))
        sync_directory(self._folder)
        self._entries[entry.key] = entry

    def remove(self, entry: Entry) -> None:
        """Forget a file, but remember its published name as used.

        If a crash brings the entry back, its file is published or gone.
        """
        if self._entries.pop(entry.key, None) and entry.inode and REV in entry.base:
            try:
                self._remember(entry.base, entry.revision)
            except OSError as error:  # the entry keeps the name until the next start
                log.warning("cannot write %s: %s", self._used, error.strerror)
                return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(entry.key, _ENTRY))

    def settle(self, entry: Entry) -> None:
        """Note that the first of what a published file owes is done. Failures are logged."""
        entry.owes = entry.owes[1:]
        try:
            if entry.owes and entry.key in self._entries:
                self.write(entry)
            else:
                self.remove(entry)
        except OSError as error:
            log.warning("cannot update %s: %s", error.filename, error.strerror)

    def reopened(self, path: str) -> None:
        """Forget the entry of a published file that is being written again."""
        for entry in list(self._entries.values()):
            if entry.inode and entry.published.path == path:
                self.remove(entry)

    def adopt(self, wanted: Callable[[str], bool]) -> list[Entry]:
        """Take over the entries of ended processes for wanted topics, oldest first.

        Entries of other hosts are ignored. An entry that cannot be read is logged and added to
        ``damaged``.
        """
        owners = {name.partition(".")[0] for name in _names(self._folder) if "." in name}
        owners.discard(self._owner)
        adopted: list[tuple[int, Entry]] = []
        for owner in sorted(owners):
            lock = Lock(self._path(owner, _LOCK))
            try:
                if not lock.acquire():
                    continue
            except OSError as error:
                self._unreadable(error)
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
        """Yield names with ``<REV>`` and their used revisions, including those of removed files.

        An entry that cannot be read is logged and skipped.
        """
        for entry in _entries(self._output_dir, self._unreadable):
            yield entry.base, entry.revision
        with contextlib.suppress(FileNotFoundError), open(self._used, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):  # an incomplete line
                    base, revision = json.loads(line)
                    yield base, revision

    def _remember(self, base: str, revision: int) -> None:
        """Note a used name, so that consumers of the files never see two files with one name."""
        fd = open_locked(self._used, os.O_APPEND, wait=True)
        assert fd is not None
        try:
            size = os.fstat(fd).st_size
            if size > 2 * _RECENT:
                recent = os.pread(fd, _RECENT, size - _RECENT).partition(b"\n")[2]
                new = self._path(self._owner, _NEW)
                _write(new, recent)
                os.rename(new, self._used)
                renamed = os.open(self._used, os.O_WRONLY | os.O_APPEND)
                os.close(fd)
                fd = renamed
            write_all(fd, b"\n%b\n" % json.dumps([base, revision]).encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def owed(self) -> dict[str, list[Published]]:
        """Return this process's published files that wait, by what they wait for."""
        waiting: dict[str, list[Published]] = {}
        for entry in sorted(self._entries.values(), key=lambda each: each.published.path):
            if entry.owes:
                waiting.setdefault(entry.owes[0], []).append(entry.published)
        return waiting

    def close(self) -> None:
        """Release the lock, so that other processes can adopt remaining entries."""
        self._lock.release()

    def _hold(self) -> None:
        # another process holds the lock while it checks for ended processes
        while not self._lock.acquire():
            if self._entries:
                raise OSError(errno.EAGAIN, "another process has taken the lock", self._lock.path)
            self._owner = secrets.token_hex(4)
            self._lock = Lock(self._path(self._owner, _LOCK))

    def _find(self, name: str) -> Entry | None:
        """Read the entry in a file that no other process is writing."""
        path = os.path.join(self._folder, name)
        if name.endswith(_NEW):
            os.unlink(path)
        if not name.endswith(_ENTRY):
            return None
        try:
            return _read(self._output_dir, path)
        except (OSError, ValueError) as error:
            if path not in self.damaged:
                log.error("%s: damaged journal entry, its file is not recovered: %s", path, error)
            self.damaged.add(path)
            return None

    def _unreadable(self, error: OSError) -> None:
        log.warning("%s: left alone: %s", error.filename, error.strerror)

    def _take(self, entry: Entry) -> int:
        """Make an entry ours, remove an unfinished copy of its file; return the entry's mtime."""
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
    """Return ``owing`` of the output directory that contains a file.

    The set is empty without such a directory or the right to read its journal.
    """
    folder = os.path.dirname(path)
    while not os.path.isdir(os.path.join(folder, FOLDER)) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        return owing(folder)
    except PermissionError:
        return set()


def owing(output_dir: str) -> set[str]:
    """Return the paths of published files, of all processes, that wait for something.

    Raises OSError for an entry that cannot be read: its file may wait, too.
    """

    def unreadable(error: OSError) -> None:
        raise error

    return {entry.published.path for entry in _entries(output_dir, unreadable) if entry.owes}


def _entries(output_dir: str, unreadable: Callable[[OSError], object]) -> Iterator[Entry]:
    """Yield all entries but damaged ones; ``unreadable`` is called for each that cannot be read."""
    folder = os.path.join(output_dir, FOLDER)
    for name in _names(folder):
        if name.endswith(_ENTRY):
            try:
                yield _read(output_dir, os.path.join(folder, name))
            except (FileNotFoundError, ValueError):
                pass
            except OSError as error:
                unreadable(error)


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
    """Read an entry; raises ValueError if ``Journal.write`` cannot have written it."""
    with open(path, "rb") as file:
        value = json.load(file)
    try:
        about = value.pop("published")
        relative = inside(about["name"])
        inside(value["work"])
        published = Published(path=os.path.join(output_dir, relative), **about)
        key = os.path.basename(path).removesuffix(_ENTRY)
        owes = ["--on-rotate"] if value["owes"] is True else value["owes"] or []
        entry = Entry(published=published, key=key, **{**value, "owes": tuple(owes)})
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        raise ValueError(f"not an entry ({error})") from None
    numbers = [entry.revision, entry.inode, entry.mtime_ns, entry.work_dir_inode]
    numbers += [published.records, published.size]
    texts = [entry.base, entry.host, entry.work_dir, published.topic, published.delimiter]
    texts += entry.owes
    if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
        raise ValueError("not an entry (wrong types)")
    return entry
