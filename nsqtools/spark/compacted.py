"""The output of ``compact`` on disk: its hours, and the inputs that they contain.

    <output>/date=2026-11-21/hour=07/part-*.parquet    what others read
    <output>/_nsqtools/compact.json                    the state: every hour's files, every input
    <output>/_nsqtools/compact-<uuid>/new/date=.../    a run's work; ``old`` has what it replaced

The state says all at once that inputs are in and which files the hours have now, so each record
gets in once. A run writes its hours aside, makes them last, and then replaces the state by the next
one, which lists the hours still to be put in place. That is the moment at which the run has
happened: a crash before it leaves but a work directory, which the next run removes; after it the
next run first puts the rest of the hours in place. Each is put there by two renames, between which
a reader does not see it.

Whoever uses this holds the lock of the output. All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqtools.errors import ConfigError
from nsqtools.sinks.files.disk import is_at, make_directory, sync_directory
from nsqtools.spark.mounted import replace_json
from nsqtools.spark.places import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsqtools.spark.inputs import Input

__all__ = ["HourFile", "Known", "OutputDirectory"]

log = logging.getLogger(__name__)

_STATE = "compact.json"
_WORK = "compact-"
_FORMAT = "nsqtools compact 1"


@dataclass(frozen=True, slots=True)
class HourFile:
    """A file of an hour."""

    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class Known:
    """An input in the output, as it was when it was read: its ``rows`` are in these ``hours``.

    ``sha256`` covers its ``size`` bytes if rows are identified by their place only. ``whole``
    becomes false when one of the hours is removed from the output.
    """

    size: int
    mtime_ns: int
    inode: int
    rows: int
    hours: tuple[str, ...]
    sha256: str = ""
    whole: bool = True


class OutputDirectory:
    """An output directory, created if necessary; completes or removes the work of a killed run.

    Raises ConfigError if it has files that ``compact`` did not write, or an unreadable state.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.hours: dict[str, dict[str, HourFile]] = {}
        """Files by name, of hours by directory, such as ``date=2026-11-21/hour=07``."""
        self.inputs: dict[str, Known] = {}
        self._ours = os.path.join(root, OURS)
        make_directory(self._ours)
        run, swapped, deleting = self._load()
        self._settle(deleting)
        if run:
            self._swap(run, swapped)
        if run or deleting:
            self._save()
        self._sweep()
        self._check_hours()

    def files(self, hours: Iterable[str]) -> list[str]:
        """Return the paths of the existing files of these hours."""
        return [
            os.path.join(self.root, hour, name)
            for hour in hours
            for name in self.hours.get(hour, ())
        ]

    def begin(self) -> str:
        """Return the path for a run's new hours, which is not created."""
        return os.path.join(self._ours, f"{_WORK}{uuid4().hex}", "new")

    def discard(self, made: str) -> None:
        """Remove the files of a run that was not committed."""
        shutil.rmtree(os.path.dirname(made), ignore_errors=True)

    def divide(self, found: Iterable[Input]) -> tuple[list[Input], list[Input]]:
        """Return the inputs with records that are not in the output, and the others.

        If a file has grown and has rows without a key, its old records are skipped.
        """
        alike: dict[tuple[str, int, int], list[Known]] = {}
        for path, entry in self.inputs.items():
            if entry.sha256:
                looks = os.path.basename(path), entry.size, entry.mtime_ns
                alike.setdefault(looks, []).append(entry)
        new, known = [], []
        for each in found:
            rest = self._rest(each, alike)
            if rest:
                new.append(rest)
            else:
                known.append(each)
        return new, known

    def commit(
        self,
        made: str,
        hours: Mapping[str, Mapping[str, HourFile]],
        inputs: Mapping[str, Known],
    ) -> None:
        """Replace hours of the output by those below ``made``, which are durable.

        ``inputs`` are recorded as part of the output.
        """
        self.hours |= {hour: dict(parts) for hour, parts in hours.items()}
        # Of a file that is gone, rows with a key are told apart without its being known.
        self.inputs = {
            path: known
            for path, known in self.inputs.items()
            if known.sha256 or os.path.lexists(path)
        } | dict(inputs)
        run = os.path.basename(os.path.dirname(made))
        self._save(swap={"run": run, "hours": list(hours)})
        self._swap(run, list(hours))
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
                    self.root,
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
                folders.add(os.path.dirname(each.path))
        for folder in folders:
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
            self._rename(each, known)
            return None
        for other in alike.get(each.looks, ()) if not known else ():
            if each.digest() == other.sha256:  # moved, or a copy
                self._rename(each, other)
                return None
        return each

    def _rename(self, each: Input, known: Known) -> None:
        self.inputs[each.path] = replace(known, mtime_ns=each.mtime_ns, inode=each.inode)

    def _load(self) -> tuple[str, list[str], list[str]]:
        """Read the state: the run whose hours are to be put in place, these, and doomed inputs."""
        path = os.path.join(self._ours, _STATE)
        try:
            with open(path, "rb") as file:
                state = json.load(file)
            if state["format"] != _FORMAT:
                raise ValueError
            self.hours = {
                hour: {name: HourFile(**part) for name, part in parts.items()}
                for hour, parts in state["hours"].items()
            }
            self.inputs = {
                path: Known(**{**known, "hours": tuple(known["hours"])})
                for path, known in state["inputs"].items()
            }
            swap = state["swap"] or {"run": "", "hours": []}
            return swap["run"], swap["hours"], state["deleting"]
        except FileNotFoundError:
            return "", [], []
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ConfigError(
                f"{path}: is not a readable state of compact: restore it, or give another --output"
            ) from None

    def _save(self, *, swap: Mapping[str, Any] | None = None, deleting: Sequence[str] = ()) -> None:
        """Replace the state, and have it last."""
        state = {
            "format": _FORMAT,
            "swap": swap,
            "deleting": list(deleting),
            "hours": {
                hour: {name: asdict(part) for name, part in parts.items()}
                for hour, parts in self.hours.items()
            },
            "inputs": {path: asdict(known) for path, known in self.inputs.items()},
        }
        replace_json(os.path.join(self._ours, _STATE), state)

    def _settle(self, deleting: Iterable[str]) -> None:
        """Forget inputs that a killed run has deleted: another of that name is a new one."""
        for path in deleting:
            known = self.inputs.get(path)
            try:
                inode = os.stat(path, follow_symlinks=False).st_ino
            except OSError:
                inode = -1
            if known and inode != known.inode:
                del self.inputs[path]

    def _swap(self, run: str, hours: Iterable[str]) -> None:
        """Put a run's hours in place, as far as that has not happened, and have it last."""
        folder = os.path.join(self._ours, run)
        changed = set()
        for hour in hours:
            made, old, target = (
                os.path.join(base, hour) for base in (f"{folder}/new", f"{folder}/old", self.root)
            )
            changed.add(os.path.dirname(target))  # by a run that was stopped, perhaps
            if not os.path.lexists(made):
                continue
            if os.path.lexists(target):
                make_directory(os.path.dirname(old))
                os.rename(target, old)
            make_directory(os.path.dirname(target))
            os.rename(made, target)
        for parent in filter(os.path.isdir, changed):
            sync_directory(parent)

    def _sweep(self) -> None:
        """Remove the work of runs that have ended."""
        with os.scandir(self._ours) as entries:
            left = [each.path for each in entries if each.name.startswith(_WORK)]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)

    def _check_hours(self) -> None:
        """Raise ConfigError for what is not ours; hours that are gone are forgotten."""
        for hour, there in _hours(self.root):
            ours = {name: part.size for name, part in self.hours.get(hour, {}).items()}
            if there != ours:
                path = os.path.join(self.root, hour)
                raise ConfigError(
                    f"{path}: has files that compact did not write: give another --output, or move "
                    "the directory away and compact it as an input"
                )
        gone = {hour for hour in self.hours if not os.path.lexists(f"{self.root}/{hour}")}
        for hour in sorted(gone):
            log.warning("%s: %s was removed from the output", self.root, hour)
            del self.hours[hour]
        for path, known in self.inputs.items() if gone else ():
            if not gone.isdisjoint(known.hours):
                self.inputs[path] = replace(known, whole=False)


def _hours(root: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Directories below those that are called like dates, and the sizes of what they hold.

    A file in the place of such a directory holds itself.
    """
    with os.scandir(root) as entries:
        dates = sorted(each.name for each in entries if each.name.startswith("date="))
    for date in dates:
        for hour in sorted(_visible(os.path.join(root, date))):
            relative = f"{date}/{hour}"
            yield relative, _visible(os.path.join(root, relative))


def _visible(path: str) -> dict[str, int]:
    """Names and sizes in a directory, without what readers skip; a file is alone in itself."""
    try:
        with os.scandir(path) as entries:
            return {
                each.name: each.stat().st_size
                for each in entries
                if not each.name.startswith((".", "_"))
            }
    except NotADirectoryError:
        return {"": os.stat(path).st_size}


def _remove(each: Input) -> str:
    """Delete a file that is as it was found, and is nobody's; else why not."""
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
