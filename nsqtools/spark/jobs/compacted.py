"""The output of ``compact``: its hours, and the inputs that they contain.

    <output>/date=2026-11-21/hour=07/part-*.parquet    what others read
    <output>/_nsqtools/compact/0000000007              the state: every hour's files, every input
    <output>/_nsqtools/compact-<run>/new/date=.../     a run's work on a mounted file system

The state says all at once that inputs are in and which files the hours have now, so each record
gets in once. A run writes its files, makes them last, and then puts the next state, if no other run
has: that is the moment at which the run has happened. This state also says what is left to do, and
the next run does it if this one is killed. Files of a run that was killed before are removed.

On a mounted file system a run writes its hours aside, and then puts each in place by two renames,
between which a reader does not see it. Elsewhere nothing can be renamed: a run writes its files
beside those that they replace, in directories batch=<run>, and then deletes the others. Until then
a reader sees messages of these hours twice.

Whoever uses this holds the lock of the output. All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import posixpath
import shutil
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.files.disk import is_at
from nsqtools.spark.jobs.versions import Versions
from nsqtools.spark.lake.archives import check_same
from nsqtools.stores import open_store, stored
from nsqtools.stores.mounted import sync_directory
from nsqtools.stores.places import OURS, below, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsqtools.spark.lake.inputs import Input

__all__ = ["CompactOutput", "HourFile", "Known"]

log = logging.getLogger(__name__)

_STATES = f"{OURS}/compact"
_WORK = f"{OURS}/compact-"
_FORMAT = "nsqtools compact 1"
_RUNS = 20
"""Unfinished runs whose files are recognised."""


@dataclass(frozen=True, slots=True)
class HourFile:
    """A file of an hour: its size, and the rows in it with their bytes before compression."""

    size: int
    rows: int
    raw: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """An input in the output, as it was when it was read: its ``rows`` are in these ``hours``.

    ``sha256`` covers its ``size`` bytes if rows are identified by their place only. ``whole``
    becomes false when one of the hours is removed from the output.
    """

    size: int
    mtime_ns: int
    rows: int
    hours: tuple[str, ...]
    sha256: str = ""
    whole: bool = True


Hours = dict[str, dict[str, HourFile]]
"""Files by name, of hours by directory, such as ``date=2026-11-21/hour=07``."""


class CompactOutput:
    """An output, created if necessary; completes or removes the work of a killed run.

    Raises ConfigError if it has files that ``compact`` did not write, or an unreadable state.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.hours: Hours = {}
        self.inputs: dict[str, Known] = {}
        self._store = open_store(place, "--output")
        self._folder = local(place)
        self._unfinished: list[str] = []
        self._found: set[str] = set()
        self._versions = Versions(self._store, _STATES, f"{_STATES}.json")
        if todo := self._load():
            self._settle(**todo)
            self._save()
        self._sweep()
        self._check_hours()

    def begin(self) -> tuple[str, str]:
        """Return the place for the files of a new run, and the name of its directories there.

        Without a name they need none, because nobody else has the place.
        """
        run = uuid4().hex
        if self._folder is not None:
            return below(self.place, f"{_WORK}{run}", "new"), ""
        self._unfinished = [*self._unfinished, run][-_RUNS:]
        self._save()
        return self.place, run

    def discard(self) -> None:
        """Remove the files of a run that was not committed; what remains the next run removes."""
        with contextlib.suppress(OSError):
            self._sweep()

    def divide(self, found: Iterable[Input]) -> tuple[list[Input], list[Input]]:
        """Return the inputs with records that are not in the output, and the others.

        If a file has grown and has rows without a key, its old records are skipped.
        """
        alike: dict[tuple[str, int, int], list[Known]] = {}
        for path, entry in self.inputs.items():
            if entry.sha256:
                looks = posixpath.basename(path), entry.size, entry.mtime_ns
                alike.setdefault(looks, []).append(entry)
        new, known = [], []
        for each in found:
            self._found.add(each.path)
            rest = self._rest(each, alike)
            if rest:
                new.append(rest)
            else:
                known.append(each)
        return new, known

    def commit(
        self,
        made: tuple[str, str],
        hours: Mapping[str, Mapping[str, HourFile]],
        inputs: Mapping[str, Known],
    ) -> None:
        """Replace hours of the output by the files of a run, which are durable.

        ``made`` is what ``begin`` returned. ``inputs`` are recorded as part of the output. Raises
        LockedError if another run has taken over.
        """
        place, run = made
        replaced = [f"{hour}/{name}" for hour in hours for name in self.hours.get(hour, ())]
        self.hours |= {hour: dict(parts) for hour, parts in hours.items()}
        # Of a file that is gone, rows with a key are told apart without its being known.
        self.inputs = {
            path: known for path, known in self.inputs.items() if known.sha256 or not _is_gone(path)
        } | dict(inputs)
        todo: dict[str, Any] = {"remove": replaced}
        if self._folder is not None:
            todo = {"swap": {"run": place.split("/")[-2], "hours": list(hours)}}
        else:
            self._unfinished.remove(run)
        self._save(**todo)
        self._settle(**todo)
        self._save()
        self._sweep()

    def delete(self, found: Iterable[Input]) -> tuple[int, int]:
        """Delete inputs that are in the output; return how many were deleted and kept.

        A file is kept if it has changed since, if a process has locked it, or if one of its hours
        was removed from the output.
        """
        doomed, kept = [], 0
        for each in found:
            known = self.inputs.get(each.path)
            if known and known.whole:
                doomed.append(each)
            else:
                log.warning(
                    "%s: not deleted, because hours with its records were removed from %s",
                    each.path,
                    self.place,
                )
                kept += 1
        if not doomed:
            return 0, kept
        self._save(deleting=[each.path for each in doomed])
        deleted = 0
        folders = set()
        for each in doomed:
            if reason := _remove(each):
                log.warning("%s: not deleted: %s", each.path, reason)
                kept += 1
            else:
                deleted += 1
                del self.inputs[each.path]
                folders.add(posixpath.dirname(each.path))
        for folder in folders:
            if local(folder) is not None:
                sync_directory(folder)
                if os.path.basename(folder).startswith("batch="):
                    with contextlib.suppress(OSError):  # others are in it
                        os.rmdir(folder)
        self._save()
        return deleted, kept

    def _rest(
        self, each: Input, alike: Mapping[tuple[str, int, int], Sequence[Known]]
    ) -> Input | None:
        """The input as it is to be read; None if all of it is in the output.

        ``alike`` are those of the same name, size and time.
        """
        known = self.inputs.get(each.path)
        if known and (known.size, known.mtime_ns) == (each.size, each.mtime_ns):
            return None
        if known and known.sha256 and known.size <= each.size and each.kind == "records":
            if each.digest(known.size) != known.sha256:
                return each
            if known.size < each.size:
                return replace(each, skip=known.rows)
            self.inputs[each.path] = replace(known, mtime_ns=each.mtime_ns)
            return None
        for other in alike.get(each.looks, ()) if not known else ():
            if each.digest() == other.sha256:  # moved, or a copy
                self.inputs[each.path] = other
                return None
        return each

    def _load(self) -> dict[str, Any]:
        """Read the state; return what a killed run has left to do, as arguments of ``_settle``."""
        try:
            state = self._versions.load()
            if state["format"] != _FORMAT:
                raise ValueError
            self.hours = {
                hour: {name: HourFile(**part) for name, part in parts.items()}
                for hour, parts in state["hours"].items()
            }
            self.inputs = {path: _known(facts) for path, facts in state["inputs"].items()}
            self._unfinished = state.get("unfinished", [])
            return {key: state[key] for key in ("swap", "remove", "deleting") if state.get(key)}
        except FileNotFoundError:
            return {}
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ConfigError(
                f"{self._store.url(self._versions.path)}: is not a readable state of compact: "
                "restore it, or give another --output"
            ) from None

    def _save(self, **todo: Any) -> None:
        """Put the next state; raises LockedError if another run has done so."""
        state = {
            "format": _FORMAT,
            **todo,
            "unfinished": self._unfinished,
            "hours": {
                hour: {name: asdict(part) for name, part in parts.items()}
                for hour, parts in self.hours.items()
            },
            "inputs": {path: asdict(known) for path, known in self.inputs.items()},
            "run": uuid4().hex,  # by which a store knows this state from that of another run
        }
        self._versions.save(state)

    def _settle(
        self,
        swap: Mapping[str, Any] | None = None,
        remove: Iterable[str] = (),
        deleting: Iterable[str] = (),
    ) -> None:
        """Do what is left to do: put hours in place, or remove files that others replace.

        Inputs that were deleted are forgotten: another file of that name is a new one.
        """
        if swap and self._folder is not None:
            self._swap(f"{self._folder}/{OURS}/{swap['run']}", swap["hours"])
        for path in remove:
            self._store.delete(path)
        for path in deleting:
            known = self.inputs.get(path)
            with contextlib.suppress(RecordError):
                if known:
                    check_same(path, known.size, known.mtime_ns)
                    continue
            self.inputs.pop(path, None)

    def _swap(self, work: str, hours: Iterable[str]) -> None:
        """Put a run's hours in place, as far as that has not happened, and have it last."""
        changed = set()
        for hour in hours:
            made, old, target = f"{work}/new/{hour}", f"{work}/old/{hour}", f"{self._folder}/{hour}"
            changed.add(os.path.dirname(hour))  # by a run that was stopped, perhaps
            if not os.path.lexists(made):
                continue
            if os.path.lexists(target):
                os.makedirs(os.path.dirname(old), exist_ok=True)
                os.rename(target, old)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(made, target)
        for folder in changed:
            self._store.sync(folder)

    def _sweep(self) -> None:
        """Remove the files of runs that have ended."""
        if self._folder is not None:
            for path in self._folder.glob(f"{_WORK}*"):
                shutil.rmtree(path, ignore_errors=True)
        elif self._unfinished:
            for each in list(self._store.files()):
                if any(f"/batch={run}/" in each.path for run in self._unfinished):
                    self._store.delete(each.path)

    def _check_hours(self) -> None:
        """Raise ConfigError for what is not ours; hours that are gone are forgotten."""
        found: dict[str, dict[str, int]] = {}
        for each in self._store.files():
            names = each.path.split("/")
            if names[0].startswith("date=") and not any(map(_is_hidden, names)):
                hour, name = "/".join(names[:2]), "/".join(names[2:])
                found.setdefault(hour, {})[name] = each.size
        for hour, there in found.items():
            ours = {name: part.size for name, part in self.hours.get(hour, {}).items()}
            if there != ours:
                raise ConfigError(
                    f"{self._store.url(hour)}: has files that compact did not write: give another "
                    "--output, or move the directory away and compact it as an input"
                )
        gone = self.hours.keys() - found.keys()
        for hour in sorted(gone):
            log.warning("%s: %s was removed from the output", self.place, hour)
            del self.hours[hour]
        for path, known in self.inputs.items() if gone else ():
            if not gone.isdisjoint(known.hours):
                self.inputs[path] = replace(known, whole=False)


def _known(facts: dict[str, Any]) -> Known:
    facts.pop("inode", None)  # of version 0.1
    return Known(**{**facts, "hours": tuple(facts["hours"])})


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_gone(path: str) -> bool:
    store, relative = stored(path)
    try:
        store.stat(relative)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _remove(each: Input) -> str:
    """Delete a file that is as it was found, and is nobody's; else why not."""
    if local(each.path) is not None:
        return _remove_unlocked(each)
    store, path = stored(each.path)
    try:
        check_same(each.path, each.size, each.mtime_ns)
        store.delete(path)
    except RecordError:
        return "it has changed"
    except OSError as error:
        return f"it cannot be deleted: {error.strerror}"
    return ""


def _remove_unlocked(each: Input) -> str:
    try:
        fd = os.open(each.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as to-file holds a file it writes
        now = os.fstat(fd)
        if (now.st_size, now.st_mtime_ns) != (each.size, each.mtime_ns) or not is_at(fd, each.path):
            return "it has changed"
        os.unlink(each.path)
    except BlockingIOError:
        return "a process writes to it"
    except OSError as error:
        return f"it cannot be deleted: {error.strerror}"
    finally:
        os.close(fd)
    folder, name = os.path.split(each.path)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, f".{name}.crc"))  # Hadoop's checksums of it
    return ""
