"""The journal: the state of archive files, kept safe from crashes.

Each archive file has an entry, a small JSON file in ``.nsqtools`` with a checksum, from before its
first byte until all its debts are paid. Only the file's process changes the entry. After the end of
this process, a start for the same topic, host and work directory takes the entry over.

under way  NAME.part is locked by its process. A message is finished once its record is in a
           complete, synced block. A start cuts the file back to complete records and completes
           it, or removes a file without records.
named      The entry has the inode, size and time of the complete file, its final name, and in
           ``owes`` all its future debts. NAME.part still exists. If NAME is this file, a start
           removes NAME.part; otherwise it completes the file, as above, under the next free name.
owing      NAME is durable, NAME.part is gone. ``owes`` has the remaining steps, in the order of
           ``DEBTS``; a start does the rest. No process writes to the file, and retention does not
           delete it. Once all debts are paid, the entry is removed.
completed  NAME, without an entry. The last 15,000 names with <REV> are noted in ``names`` and not
           used again. Without <REV> the next message for NAME continues the file: it is under way
           again, with the entry of a failed attempt, if any.
gone       Neither NAME nor NAME.part exists: the crash came before the file was created, or a hook
           or a user removed the file. A start removes the entry and logs this.

A start warns of the files of other topics, hosts and work directories, and of an orphaned NAME.part
without an entry, as after the removal of ``.nsqtools``. It logs unreadable entries and leaves them
alone. Other users may write to the directory: links are not followed, names stay inside.

All functions block and raise OSError.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import logging
import os
import secrets
import threading
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO

from nsqtools.checksum import is_torn, sealed, unsealed
from nsqtools.config.units import enumerated
from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import REV, inside
from nsqtools.records.diskqueue.queuefiles import open_regular
from nsqtools.records.manifest import CompletedFile
from nsqtools.sinks.files.disk import WORK, append_lines, rewrite_lines
from nsqtools.sinks.files.locks import Lock
from nsqtools.stores.interface import naming
from nsqtools.stores.mounted import is_locked, write_all
from nsqtools.stores.pinned import PinnedPath, is_same, pinned, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

log = logging.getLogger(__name__)

FOLDER = ".nsqtools"
MANIFEST, UPLOAD, HOOK, DELETE = "--manifest", "--upload", "--on-rotate", "--delete-uploaded"
DEBTS = (MANIFEST, UPLOAD, HOOK, DELETE)
"""The possible debts of a file: options to follow after completing, in this order."""

_ENTRY, _LOCK, _NEW = ".json", ".lock", ".new"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RECENT = 1 << 20
"""Minimum bytes of used names to keep: about 15,000 names."""
_LARGEST = 1 << 16
"""Maximum bytes of an entry; those written here have about 1,000."""


class FileState(enum.Enum):
    """The states of files with an entry, as described above."""

    UNDER_WAY = "under way"
    NAMED = "named"
    OWING = "owing"
    GONE = "gone"


@dataclass(slots=True, kw_only=True)
class Entry:
    """A file under way or completed.

    ``completed`` has the facts known so far; its name is the final name. ``base`` is the result of
    ``FileNames.at``, which contains ``<REV>``. ``host`` is the host whose processes may continue
    the file, empty for any host. ``work_dir`` is empty for the output directory; its inode
    distinguishes the directory from an empty mount point. ``inode`` and ``mtime_ns`` belong to the
    file with the final name, or about to get it, and are 0 before. ``owes`` has the remaining
    ``DEBTS``, the next debt first.
    """

    completed: CompletedFile
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

    def is_completed(self, output_dir: str) -> bool:
        """Whether the work file has its final name, too.

        On another file system the final name is a copy. Its inode may have been reused, so mtime
        and size must match too.
        """
        if not self.inode:
            return False
        there = status(self.completed.path, output_dir)
        if there is None:
            return False
        if is_same(there, status(self.work_path(output_dir), self.root(output_dir))):
            return True
        ours = (self.inode, self.mtime_ns, self.completed.size)
        return (there.st_ino, there.st_mtime_ns, there.st_size) == ours

    def state(self, output_dir: str) -> FileState:
        """Return the current state of this file."""
        if status(self.work_path(output_dir), self.root(output_dir)):
            is_completed = self.is_completed(output_dir)
            return FileState.NAMED if is_completed else FileState.UNDER_WAY
        # Its time and size may have changed, as with touch.
        is_owing = self.inode and status(self.completed.path, output_dir)
        return FileState.OWING if is_owing else FileState.GONE

    def root(self, output_dir: str) -> str:
        """Return the directory of work files, ``pinned``'s root."""
        return self.work_dir or output_dir

    def work_path(self, output_dir: str) -> str:
        """Return the path of the work file."""
        return os.path.join(output_dir, self.work_dir, self.work) + WORK

    def work_dir_is_there(self) -> bool:
        """Whether the work directory is the one of the entry, and not, for example, unmounted."""
        try:
            return not self.work_dir or os.stat(self.work_dir).st_ino == self.work_dir_inode
        except OSError:
            return False

    def copy_name(self) -> str:
        """Return the name of the copy, next to the file, for completing on another file system."""
        return f".{self.key}.copy"


class Journal:
    """The entries of this process and adopted entries of ended processes; thread-safe.

    A process with entries holds a lock next to them until it ends. ``work_dir`` is empty for the
    output directory.
    """

    def __init__(self, output_dir: str, host: str, work_dir: str = "") -> None:
        self._output_dir = output_dir
        self._host = host
        self._work_dir = work_dir
        self._folder = os.path.join(output_dir, FOLDER)
        self._used = os.path.join(self._folder, "names")
        self._owner = secrets.token_hex(4)
        self._lock = self._lock_of(self._owner)
        self._numbers = count()
        self._entries: dict[str, Entry] = {}
        self._guard = threading.Lock()
        self.damaged: set[str] = set()
        """The paths of unreadable entries, and the places of damaged lines of used names."""

    def write(self, entry: Entry) -> None:
        """Write the current state of an entry durably."""
        with self._guard:
            self._hold()
            entry.key = entry.key or f"{self._owner}.{next(self._numbers)}"
        path = self._path(entry.key, _ENTRY)
        data = sealed(_as_object(entry))
        try:
            self._put(path, data)
        except OSError as error:
            if error.errno not in _FULL or entry.key not in self._entries:
                raise
            # On a full disk, overwrite the entry in its own block. A kill cannot tear it; a power
            # failure may.
            with self._pinned(path) as file:
                _write(file, data.ljust(os.stat(path).st_size))
        self._entries[entry.key] = entry

    def _put(self, path: str, data: bytes) -> None:
        """Write a file and rename it: a crash leaves either the old content or the new."""
        while True:
            with self._pinned(path) as file:
                new = file.beside(f"{self._owner}.{next(self._numbers)}{_NEW}")
                try:
                    _write(new, data, os.O_CREAT | os.O_EXCL)
                    new.rename(file)
                except FileExistsError:  # put there by another user
                    continue
                except OSError:
                    with contextlib.suppress(OSError):
                        new.unlink()
                    raise
                file.sync()
                return

    def restore(self, entry: Entry) -> None:
        """Write the entries of this process again if another program has removed this one."""
        if self._lock.held and os.path.lexists(self._path(entry.key, _ENTRY)):
            return
        with self._guard:
            self._hold()
        known = list(self._entries.values())
        missing = [each for each in known if not os.path.lexists(self._path(each.key, _ENTRY))]
        for each in missing:
            self.write(each)
        if missing:
            log.warning("%s: was removed by another program, written again", self._folder)

    def remove(self, entry: Entry) -> None:
        """Forget a file, but remember its completed name as used.

        If a crash brings the entry back, its file is completed or gone.
        """
        if entry.inode and REV in entry.base:
            try:
                self._remember(entry.base, entry.revision)
            except OSError as error:
                log.warning("cannot write %s: %s", self._used, error.strerror)
                with contextlib.suppress(OSError):
                    self.write(entry)  # it keeps the name until the next start, and owes nothing
                self._entries.pop(entry.key, None)
                return
        self._entries.pop(entry.key, None)
        with (
            contextlib.suppress(FileNotFoundError),
            self._pinned(self._path(entry.key, _ENTRY)) as file,
        ):
            file.unlink()

    def paid(self, entry: Entry) -> None:
        """Note the payment of a completed file's first debt. Failures are logged."""
        entry.owes = entry.owes[1:]
        try:
            if entry.owes and entry.key in self._entries:
                self.write(entry)
            else:
                self.remove(entry)
        except OSError as error:
            log.warning("cannot update %s: %s", error.filename, error.strerror)

    def debt(self, path: str) -> str:
        """Return the next debt of a completed file in any process's entries; empty without one."""
        for entry in list(self._entries.values()):
            if entry.owes and entry.completed.path == path:
                return entry.owes[0]
        for entry in entries(self._output_dir, self._skip):
            is_ours = entry.key.startswith(f"{self._owner}.")  # paid, but could not be removed
            if not is_ours and entry.completed.path == path and entry.owes:
                return entry.owes[0]
        return ""

    def key_of(self, work: str) -> str:
        """Return the key of this process's entry for a work file; empty if there is none."""
        for key, entry in list(self._entries.items()):
            if entry.work_path(self._output_dir) == work:
                return key
        return ""

    def has(self, entry: Entry) -> bool:
        """Whether this process still has the entry of a file."""
        return self._entries.get(entry.key) is entry

    def adopt(self, wanted: Callable[[str], bool]) -> list[Entry]:
        """Take over the entries of ended processes for wanted topics, oldest first.

        Entries of other topics, hosts and work directories are left, with a warning. Unreadable
        entries are logged and added to ``damaged``.
        """
        owners = {name.partition(".")[0] for name in _names(self._folder) if "." in name}
        owners.discard(self._owner)
        adopted: list[tuple[int, Entry]] = []
        left: dict[str, list[str]] = {}
        for owner in sorted(owners):
            lock = self._lock_of(owner)
            try:
                if not lock.acquire():
                    continue
            except OSError as error:
                self._skip(lock.path, error)
                continue
            try:
                names = [each for each in _names(self._folder) if each.startswith(f"{owner}.")]
                for entry in filter(None, map(self._find, names)):
                    if remedy := self._remedy(entry, wanted):
                        if file := self._unfinished(entry):
                            left.setdefault(remedy, []).append(file)
                    else:
                        adopted.append((self._take(entry), entry))
            finally:
                lock.release()
        for remedy, files in sorted(left.items()):
            log.warning("left by a crash: %s: run to-file with %s", enumerated(files), remedy)
        return [entry for _, entry in sorted(adopted, key=lambda each: (each[0], each[1].key))]

    def _remedy(self, entry: Entry, wanted: Callable[[str], bool]) -> str:
        """Return how another run takes an entry over; empty if this one does."""
        remedies = []
        if not wanted(entry.completed.topic):
            remedies.append(f"--topic {entry.completed.topic}")
        if entry.host not in ("", self._host):
            remedies.append(f"--host-identifier {entry.host} (or on the host {entry.host})")
        if entry.work_dir not in ("", self._work_dir):
            remedies.append(f"--work-dir {entry.work_dir}")
        return " ".join(remedies)

    def _unfinished(self, entry: Entry) -> str:
        """Return the path of a file left by an ended process; empty without such a file."""
        work = entry.work_path(self._output_dir)
        try:
            state = entry.state(self._output_dir)
        except OSError as error:
            self._skip(work, error)
            return ""
        if state in (FileState.UNDER_WAY, FileState.NAMED):
            return "" if is_locked(work) else work
        return entry.completed.path if state == FileState.OWING and entry.owes else ""

    def revisions(self) -> Iterator[tuple[str, int]]:
        """Yield names with ``<REV>`` and their used revisions, including those of removed files.

        Unreadable entries and lines are logged and skipped.
        """
        for entry in entries(self._output_dir, self._skip):
            yield entry.base, entry.revision
        try:
            with open(open_regular(self._used), "rb") as file:
                lines = file.read(4 * _RECENT).split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            self._skip(self._used, error)
            return
        if lines[-1] and is_torn(lines[-1]):
            log.warning("%s: ignored the incomplete last line that a crash left", self._used)
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                if line and (found := _used_name(line)):
                    yield found
            except ValueError as error:
                place = f"{self._used}: line {number}"
                self._note(place, f"damaged, a used name is unknown: {error}: remove the line")

    def _remember(self, base: str, revision: int) -> None:
        """Note a used name: consumers must never see two files with the same name."""
        found = status(self._used, self._output_dir)
        if found and found.st_size > 2 * _RECENT:
            rewrite_lines(self._used, _recent, root=self._output_dir)
        line = sealed({"name": base, "revision": revision}) + b"\n"
        append_lines(self._used, line, root=self._output_dir)

    def owed(self) -> dict[str, list[CompletedFile]]:
        """Return this process's completed files that wait, by what they wait for."""
        waiting: dict[str, list[CompletedFile]] = {}
        for entry in sorted(self._entries.values(), key=lambda each: each.completed.path):
            if entry.owes:
                waiting.setdefault(entry.owes[0], []).append(entry.completed)
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
            self._lock = self._lock_of(self._owner)

    def _find(self, name: str) -> Entry | None:
        """Read the entry in a file that no other process is writing."""
        path = os.path.join(self._folder, name)
        if name.endswith(_NEW):
            with contextlib.suppress(OSError), self._pinned(path) as file:  # nobody reads it
                file.unlink()
        if not name.endswith(_ENTRY):
            return None
        try:
            return _read(self._output_dir, path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self._note(path, f"damaged journal entry, its file is not recovered: {why}")
            return None

    def _note(self, place: str, damage: str) -> None:
        if place not in self.damaged:
            self.damaged.add(place)
            log.error("%s: %s", place, damage)

    def _skip(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError):  # ``adopt`` logs damaged ones
            log.warning("%s: left alone: %s", path, error.strerror)

    def _take(self, entry: Entry) -> int:
        """Make an entry ours, remove an unfinished copy of its file; return the entry's mtime."""
        with contextlib.suppress(OSError), self._pinned(entry.completed.path) as completed:
            completed.beside(entry.copy_name()).unlink()
        with self._guard:
            self._hold()
            key = f"{self._owner}.{next(self._numbers)}"
        path = self._path(key, _ENTRY)
        with self._pinned(path) as file:
            file.beside(entry.key + _ENTRY).rename(file)
            file.sync()
        entry.key = key
        self._entries[key] = entry
        return os.stat(path).st_mtime_ns

    def _path(self, key: str, suffix: str) -> str:
        return os.path.join(self._folder, key + suffix)

    def _lock_of(self, owner: str) -> Lock:
        return Lock(self._path(owner, _LOCK), root=self._output_dir)

    def _pinned(self, path: str) -> AbstractContextManager[PinnedPath]:
        return pinned(path, self._output_dir)


def owing_near(path: str) -> set[str]:
    """Return the paths of completed files, of all processes, that owe something.

    They are those of the output directory that contains a file. The set is empty without such a
    directory or the right to read its journal.
    """
    folder = os.path.dirname(path)
    while not os.path.isdir(os.path.join(folder, FOLDER)) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        return {each.completed.path for each in _readable(folder, OSError) if each.owes}
    except PermissionError:
        return set()


def in_journal(output_dir: str) -> set[str]:
    """Return the final paths of all files, of all processes, that are under way or owe something.

    Raises OSError for an entry that cannot be read or is damaged.
    """
    return {each.completed.path for each in _readable(output_dir, Exception)}


def _readable(output_dir: str, fatal: type[Exception]) -> Iterator[Entry]:
    """Yield the entries of all processes; raises OSError for a ``fatal`` error of one of them."""

    def unreadable(path: str, error: OSError | ValueError) -> None:
        if isinstance(error, fatal):
            why = getattr(error, "strerror", None) or f"damaged journal entry: {error}"
            raise OSError(getattr(error, "errno", None) or errno.EINVAL, why, path)

    yield from entries(output_dir, unreadable)


def entries(
    output_dir: str, unreadable: Callable[[str, OSError | ValueError], object]
) -> Iterator[Entry]:
    """Yield the entries of all processes.

    ``unreadable`` is called with the path of an entry that cannot be read, and with the reason, a
    ValueError if it is damaged.
    """
    folder = os.path.join(output_dir, FOLDER)
    for name in _names(folder):
        if name.endswith(_ENTRY):
            path = os.path.join(folder, name)
            try:
                yield _read(output_dir, path)
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                unreadable(path, error)


def _write(file: PinnedPath, data: bytes, flags: int = 0) -> None:
    """Write from the beginning of a file; ``flags`` are added to open's."""
    fd = file.open(os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags)
    try:
        with naming(file.path):
            write_all(fd, data)
            os.fsync(fd)
    finally:
        os.close(fd)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _recent(names: BinaryIO) -> BinaryIO:
    """Return a file of used names without the oldest."""
    names.seek(max(0, os.fstat(names.fileno()).st_size - _RECENT))
    names.readline()
    return names


def _used_name(line: bytes) -> tuple[str, int] | None:
    """Return a used name and its revision; raises ValueError for a damaged line.

    Version 0.3 wrote lists without a checksum, and left incomplete ones after a crash.
    """
    if line.startswith(b"[") and not line.startswith(b'["name": '):
        try:
            base, revision = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return None
    else:
        value = unsealed(line)
        base, revision = value.get("name"), value.get("revision")
    if type(base) is not str or type(revision) is not int:
        raise ValueError("no name with its revision")
    return base, revision


def _as_object(entry: Entry) -> dict[str, Any]:
    value = asdict(entry)
    del value["key"], value["completed"]["path"]
    value["published"] = value.pop("completed")  # the key since the first release
    return value


def _read(output_dir: str, path: str) -> Entry:
    """Read an entry; raises ValueError if ``Journal.write`` cannot have written it."""
    with open(open_regular(path), "rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"larger than {_LARGEST} bytes")
    value = unsealed(data)
    try:
        about = value.pop("published")
        for name in (value["base"], value["work"], about["name"]):
            inside(name)
        completed = CompletedFile(path=os.path.join(output_dir, about["name"]), **about)
        key = os.path.basename(path).removesuffix(_ENTRY)
        owes = [HOOK] if value["owes"] is True else value["owes"] or []
        entry = Entry(completed=completed, key=key, **{**value, "owes": tuple(owes)})
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        raise ValueError(f"not an entry ({error})") from None
    numbers = [entry.revision, entry.inode, entry.mtime_ns, entry.work_dir_inode]
    numbers += [completed.records, completed.size]
    texts = [entry.base, entry.host, entry.work_dir, completed.topic, completed.sha256]
    texts += [completed.format, completed.delimiter, completed.compression]
    if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
        raise ValueError("not an entry (wrong types)")
    if not all(debt in DEBTS for debt in entry.owes) or "\0" in entry.work_dir:
        raise ValueError("not an entry (wrong values)")
    return entry
