"""The output of ``compact``: its files, and their inputs.

    <output>/date=2026-11-21/hour=07/part-<run>-*.parquet    the files for readers
    <output>/_nsqtools/compact/0000000007                    the state: every file, every input
    <output>/_nsqtools/compact-<run>/date=.../               a run's files on a mounted file system

The state lists the ingested inputs and the current files of the output together, so each record is
ingested once. A run writes its files, makes them durable, and then puts the next state, unless
another run has put one: at this moment the run is committed. The state also lists the remaining
work, for the next run if this run is killed. Files of runs killed before their commit are removed.

On a mounted file system a run writes its files to a separate directory, and moves them after the
commit; elsewhere it writes them in place. Then it deletes the replaced files. Until their deletion
readers see the messages of the replaced files twice.

Hold the lock of the output before changing it. All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from nsqtools.errors import ConfigError, RecordError
from nsqtools.spark.jobs.versions import Versions
from nsqtools.spark.lake.inputs import check_same, remove
from nsqtools.stores import open_store, stored
from nsqtools.stores.mounted import sync_directory
from nsqtools.stores.places import OURS, below, local

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from nsqtools.spark.lake.inputs import Input

log = logging.getLogger(__name__)

_STATES = f"{OURS}/compact"
_WORK = f"{OURS}/compact-"
_FORMAT = "nsqtools compact 2"
_RUNS = 20  # unfinished runs with recognised files
_THREADS = 8
ALL = sys.maxsize
"""A number of ingested records that means: every record of the file."""


@dataclass(frozen=True, slots=True)
class HourFile:
    """Sizes of a file, its rows and their bytes before compression.

    Rows are of the minutes ``first`` to ``last`` since the epoch.
    """

    size: int
    rows: int
    raw: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Known:
    """An ingested input, with its size and time at that moment.

    ``checksum`` covers the rows identified only by their place, and is empty without such rows.
    ``whole`` becomes false when an hour is removed from the output.
    """

    size: int
    mtime_ns: int
    rows: int
    checksum: str = ""
    whole: bool = True


class FileFacts(NamedTuple):
    """The rows found in a file, and the number of ``unkeyed`` rows, identified only by place.

    ``checksum`` covers the unkeyed rows, in any order; ``start`` covers the unkeyed rows already
    read by an earlier run.
    """

    rows: int = 0
    unkeyed: int = 0
    checksum: int = 0
    start: int = 0


class CompactOutput:
    """The ``files`` of an output by path, and their ``inputs``, from its state.

    Raises ConfigError if the state cannot be read.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.files: dict[str, HourFile] = {}
        self.inputs: dict[str, Known] = {}
        self._store = open_store(place, "--output")
        self._folder = local(place)
        self._unfinished: list[str] = []
        self._found: set[str] = set()
        self._versions = Versions(self._store, _STATES)
        self._todo = self._load()

    def recover(self) -> None:
        """Complete or remove the work of a killed run.

        Raises ConfigError if the output has files from other programs.
        """
        if self._todo:
            self._settle(**self._todo)
            self._save()
        self._check(self._sweep())

    def begin(self) -> str:
        """Return the name of a new run."""
        self._unfinished = [*self._unfinished, run := uuid4().hex][-_RUNS:]
        if self._folder is None:
            self._save()
        return run

    def work(self, run: str) -> str:
        """Return the place for the files of a run; their names begin with ``prefix``."""
        return self.place if self._folder is None else below(self.place, f"{_WORK}{run}")

    def discard(self) -> None:
        """Remove the files of an uncommitted run; after an error, the next run removes them."""
        with contextlib.suppress(OSError):
            self._sweep()

    def divide(self, found: Iterable[Input]) -> tuple[list[Input], list[Input]]:
        """Return the new or changed inputs, and the others."""
        new: list[Input] = []
        known: list[Input] = []
        for each in found:
            self._found.add(each.path)
            before = self.inputs.get(each.path)
            same = before and (before.size, before.mtime_ns) == (each.size, each.mtime_ns)
            (known if same else new).append(each)
        return new, known

    def starts(self, new: Iterable[Input]) -> dict[str, int]:
        """Return the earlier number of records of each changed file with unkeyed rows.

        More records may have been appended to such a file.
        """
        known = {each.path: self.inputs.get(each.path) for each in new if each.kind == "records"}
        return {path: each.rows for path, each in known.items() if each and each.checksum}

    def recognised(
        self, new: Iterable[Input], found: Mapping[str, FileFacts]
    ) -> tuple[dict[str, Known], dict[str, int]]:
        """Return the facts to remember of files, and the number of their ingested first records.

        ``ALL`` means every record was already ingested: the file was touched, moved or copied.
        """
        known: dict[str, Known] = {}
        read: dict[str, int] = {}
        alike = {_looks(path, old): old for path, old in self.inputs.items() if old.checksum}
        for each in new:
            facts = found.get(each.path, FileFacts())
            checksum = str(facts.checksum) if facts.unkeyed else ""
            mine = other = Known(each.size, each.mtime_ns, facts.rows, checksum)
            before = self.inputs.get(each.path)
            if before and before.checksum and before.checksum == str(facts.start):
                other = before
                read[each.path] = before.rows if facts.rows > before.rows else ALL
            elif checksum:
                other = alike.setdefault(_looks(each.path, mine), mine)
                if other is not mine:
                    read[each.path] = ALL
            known[each.path] = replace(mine, whole=other.whole)
        return known, read

    def meeting(self, minutes: Mapping[int, int], file_size: int) -> dict[str, HourFile]:
        """Return files with rows of the same minutes, and small files of the same hours."""
        hours = {minute // 60 for minute in minutes}
        return {
            path: part
            for path, part in self.files.items()
            if any(minute in minutes for minute in range(part.first, part.last + 1))
            or (part.raw * 2 < file_size and part.first // 60 in hours)
        }

    def commit(
        self,
        run: str,
        files: Mapping[str, HourFile],
        replaced: Collection[str],
        inputs: Mapping[str, Known],
    ) -> None:
        """Add the durable files of a run, in place of others, and record inputs as read.

        Raises LockedError if another run has taken over.
        """
        kept = {path: part for path, part in self.files.items() if path not in replaced}
        self.files = {**kept, **files}
        # A deleted file without unkeyed rows may be forgotten: its rows are recognised by key.
        self.inputs = {
            path: known
            for path, known in self.inputs.items()
            if known.checksum or path in self._found or not _is_gone(path)
        } | dict(inputs)
        todo: dict[str, Any] = {"run": run, "remove": [*replaced]}
        self._unfinished = [each for each in self._unfinished if each != run]
        self._save(**todo)
        self._settle(**todo)
        self._save()
        self._sweep()

    def delete(self, found: Sequence[Input], report: Callable[[int, int], None]) -> tuple[int, int]:
        """Delete ingested inputs; return the numbers of deleted and kept files.

        A file is kept if it has changed since, if a process has locked it, or if one of its hours
        was removed from the output.
        """
        doomed, kept = [], 0
        for each in found:
            known = self.inputs.get(each.path)
            if known and known.whole:
                doomed.append(each)
            else:
                log.warning("%s: not deleted: an hour of the output was removed", each.path)
                kept += 1
        if not doomed:
            return 0, kept
        self._save(deleting=[each.path for each in doomed])
        folders = set()
        with ThreadPoolExecutor(_THREADS) as pool:
            for number, (each, reason) in enumerate(
                zip(doomed, pool.map(remove, doomed), strict=True), 1
            ):
                report(number, len(doomed))
                if reason:
                    log.warning("%s: not deleted: %s", each.path, reason)
                    kept += 1
                else:
                    del self.inputs[each.path]
                    folders.add(posixpath.dirname(each.path))
        for folder in folders:
            if local(folder) is not None:
                sync_directory(folder)
                if os.path.basename(folder).startswith("batch="):
                    with contextlib.suppress(OSError):  # not empty
                        os.rmdir(folder)
        self._save()
        return len(found) - kept, kept

    def _load(self) -> dict[str, Any]:
        """Read the state; return a killed run's remaining work, as arguments of ``_settle``."""
        try:
            state = self._versions.load()
            if state["format"] != _FORMAT:
                raise ValueError
            self.files = {path: HourFile(**part) for path, part in state["files"].items()}
            self.inputs = {path: Known(**facts) for path, facts in state["inputs"].items()}
            self._unfinished = state.get("unfinished", [])
            return {key: state[key] for key in ("run", "remove", "deleting") if state.get(key)}
        except FileNotFoundError:
            return {}
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ConfigError(
                f"{self._versions.url}: is damaged, or was written by another version: restore "
                "it, or give another --output and this output as an --input"
            ) from None

    def _save(self, **todo: Any) -> None:
        """Put the next state; raises LockedError if another run has done so."""
        state = {
            "format": _FORMAT,
            **todo,
            "unfinished": self._unfinished,
            "files": {path: asdict(part) for path, part in self.files.items()},
            "inputs": {path: asdict(known) for path, known in self.inputs.items()},
            "nonce": uuid4().hex,  # distinguishes this state from another run's
        }
        self._versions.save(state)

    def _settle(
        self, run: str = "", remove: Iterable[str] = (), deleting: Iterable[str] = ()
    ) -> None:
        """Do the remaining work: put files in place, and remove the replaced files.

        Deleted inputs are forgotten: another file with the same name is a new input.
        """
        if run and self._folder is not None:
            self._publish(run)
        for path in remove:
            self._store.delete(path)
        self._sync(remove)
        for path in deleting:
            known = self.inputs.get(path)
            with contextlib.suppress(RecordError):
                if known:
                    check_same(path, known.size, known.mtime_ns)
                    continue
            self.inputs.pop(path, None)

    def _publish(self, run: str) -> None:
        """Put a run's files in place, except those already there, and make them durable."""
        mine = [path for path in self.files if posixpath.basename(path).startswith(prefix(run))]
        for path in mine:
            os.makedirs(below(self.place, posixpath.dirname(path)), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(below(self.work(run), path), below(self.place, path))
        self._sync(mine)

    def _sync(self, paths: Iterable[str]) -> None:
        for folder in {posixpath.dirname(path) for path in paths}:
            self._store.sync(folder)

    def _sweep(self) -> dict[str, int]:
        """Remove the files of ended runs; return the sizes of the files visible to readers."""
        for path in self._folder.glob(f"{_WORK}*") if self._folder else ():
            shutil.rmtree(path, ignore_errors=True)
        there = {}
        ended = tuple(map(prefix, self._unfinished))
        days = [name for name in self._store.list("") if name.startswith("date=")]
        for each in [each for day in days for each in self._store.files(day)]:
            names = each.path.split("/")
            if names[-1].startswith(ended):
                self._store.delete(each.path)
            elif not any(name.startswith((".", "_")) for name in names):
                there[each.path] = each.size
        return there

    def _check(self, there: Mapping[str, int]) -> None:
        """Raise ConfigError for what is not ours; hours that are gone are forgotten."""
        hours = set(map(posixpath.dirname, there))
        gone = {posixpath.dirname(path) for path in self.files} - hours
        for hour in sorted(gone):
            log.warning("%s: %s was removed from the output", self.place, hour)
        self.files = {p: part for p, part in self.files.items() if posixpath.dirname(p) in hours}
        if gone:
            self.inputs = {p: replace(known, whole=False) for p, known in self.inputs.items()}
        if odd := there.items() ^ {(path, part.size) for path, part in self.files.items()}:
            raise ConfigError(
                f"{self._store.url(min(odd)[0])}: is not as compact left it: give another "
                "--output, or move the directory away and give it as an --input"
            )


def _looks(path: str, known: Known) -> tuple[object, ...]:
    """Return name, size, time and content: a copy shares these with its original."""
    return posixpath.basename(path), known.size, known.mtime_ns, known.checksum


def prefix(run: str) -> str:
    """Return the prefix of the file names of a run."""
    return f"part-{run}-"


def _is_gone(path: str) -> bool:
    store, relative = stored(path)
    try:
        store.stat(relative)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
