"""The output of ``compact``: its files, and their inputs.

    <output>/date=2026-11-21/hour=07/part-<run>-*.parquet     the files for readers
    <output>/_nsqtools/compact/0000000007                     the newest step of a run
    <output>/_nsqtools/compact/files/2026-11-21/0000000007-   the state: the files of a day
    <output>/_nsqtools/compact/inputs/2026-11-21/0000000007-* the state: ingested inputs
    <output>/_nsqtools/compact-<run>/date=.../                a run's files on a mounted file system

A run writes its files, makes them durable, and then puts a step that names the new files, the
replaced files and the ingested inputs, unless another run has put one: at this moment the run is
committed, and each record is ingested once. Then it does what the step says, and changes the parts
of the state that the step touches. If the run is killed, the next run does so. Files of runs killed
before their commit are removed. The state is divided by day, so a run reads and writes parts of the
state that belong to its inputs, however many other inputs were ingested before.

On a mounted file system a run writes its files to a separate directory, and moves them after the
commit; elsewhere it writes them in place. Then it deletes the replaced files. Until their deletion
readers see the messages of the replaced files twice.

Hold the lock of the output before changing it. All calls block and raise OSError.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import posixpath
import re
import shutil
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from nsqtools.errors import ConfigError, RecordError
from nsqtools.spark.jobs.versions import Shares, Versions
from nsqtools.spark.lake.inputs import check_same, remove
from nsqtools.stores import in_threads, open_store
from nsqtools.stores.interface import UNNAMED
from nsqtools.stores.pinned import sync_directory
from nsqtools.stores.places import OURS, below, local

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from nsqtools.spark.lake.inputs import Input

log = logging.getLogger(__name__)

_STATE = f"{OURS}/compact"
_WORK = f"{OURS}/compact-"
_FORMAT, _ONE_FILE = "nsqtools compact 3", "nsqtools compact 2"
_STEPS = 100
"""Later steps after which no task of a killed run can write files any more."""
_THREADS = 8
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_SHARES = 256
"""Parts of the state for inputs without a date in their names."""
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

    ``checksum`` covers the rows identified only by their place, and is empty without such rows. The
    step number ``at`` ingested it, with rows of the minutes ``first`` to ``last`` since the epoch.
    """

    size: int
    mtime_ns: int
    rows: int
    checksum: str = ""
    at: int = 0
    first: int = 0
    last: int = sys.maxsize


class FileFacts(NamedTuple):
    """The rows found in a file, and the number of ``unkeyed`` rows, identified only by place.

    ``checksum`` covers the unkeyed rows, in any order; ``start`` covers the unkeyed rows already
    read by an earlier run. Rows are of the minutes ``first`` to ``last``.
    """

    rows: int = 0
    unkeyed: int = 0
    checksum: int = 0
    start: int = 0
    first: int = 0
    last: int = -1


class CompactOutput:
    """The ``files`` of an output by path, and their ``inputs``, as far as they were needed.

    Raises ConfigError if the state cannot be read.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.files: dict[str, HourFile] = {}
        self.inputs: dict[str, Known] = {}
        self._store = open_store(place, "--output")
        self._folder = local(place)
        self._steps = Versions(self._store, _STATE)
        self._days = Shares(self._store, f"{_STATE}/files")
        self._shares = Shares(self._store, f"{_STATE}/inputs")
        self._loaded: set[tuple[Shares, str]] = set()
        self._unfinished: dict[str, tuple[int, list[str]]] = {}  # runs: their steps and days
        self._removed = -1  # the last step before an hour was removed from the output
        self._gone: list[str] = []
        self._todo = self._load()

    def recover(self) -> None:
        """Complete or remove the work of a killed run.

        Raises ConfigError if the output has files from other programs, and no state.
        """
        if not self._steps.number:
            self._check(_day(name) for name in self._store.list("") if name.startswith("date="))
        if self._todo:
            self._do(**self._todo)
        self._sweep()

    def now(self) -> int:
        """Return the time in ns by the clock that dates the files of the store."""
        path = f"{UNNAMED}now-{uuid4().hex}"
        self._store.put_if_absent(path, b"1")
        try:
            return self._store.stat(path).mtime_ns
        finally:
            self._store.delete(path)

    def begin(self, days: Iterable[str]) -> str:
        """Return the name of a new run, which writes files of these days."""
        run = uuid4().hex
        if self._folder is None:
            self._unfinished[run] = self._steps.number, sorted(days)
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
        shares: dict[str, dict[str, Input]] = {}
        for each in found:
            shares.setdefault(_share(each.path), {})[each.path] = each
        known: list[Input] = []
        for name in list(shares):
            if _mark(shares[name]) == self._shares.mark(name):
                known += shares.pop(name).values()
        self._load_inputs(shares)
        new: list[Input] = []
        for each in chain.from_iterable(inputs.values() for inputs in shares.values()):
            before = self.inputs.get(each.path)
            same = before and (before.size, before.mtime_ns) == (each.size, each.mtime_ns)
            (known if same else new).append(each)
        return new, known

    def gone(self, found: Iterable[Input]) -> list[str]:
        """Return ingested inputs to forget: they are not among all files found in their places.

        Files with unkeyed rows are not forgotten: they may have been moved, and come again.
        """
        listed = {each.path: each.place for each in found}
        places = set(listed.values())
        return [
            path
            for path, known in self.inputs.items()
            if not known.checksum and path not in listed and not places.isdisjoint(_above(path))
        ]

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
            span = {"at": self._steps.number + 1, "first": facts.first, "last": facts.last}
            mine = other = Known(each.size, each.mtime_ns, facts.rows, checksum, **span)
            before = self.inputs.get(each.path)
            if before and before.checksum and before.checksum == str(facts.start):
                other = before
                read[each.path] = before.rows if facts.rows > before.rows else ALL
            elif checksum:
                other = alike.setdefault(_looks(each.path, mine), mine)
                if other is not mine:
                    read[each.path] = ALL
            first, last = min(mine.first, other.first), max(mine.last, other.last)
            known[each.path] = replace(mine, at=other.at, first=first, last=last)
        return known, read

    def meeting(self, minutes: Collection[int], file_size: int) -> dict[str, HourFile]:
        """Return files with rows of the same minutes, and small files of the same hours.

        Raises ConfigError if the days of these minutes have files from other programs.
        """
        self._check(days_of(minutes))
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
        replaced: Iterable[str],
        inputs: Mapping[str, Known],
        forgotten: Iterable[str] = (),
    ) -> None:
        """Add the durable files of a run, in place of others, and record inputs as read.

        Raises LockedError if another run has taken over.
        """
        self._unfinished.pop(run, None)
        self._do(
            run=run,
            files={path: asdict(part) for path, part in files.items()},
            remove=[*replaced, *self._gone],
            inputs={path: asdict(known) for path, known in inputs.items()},
            forget=[*forgotten],
        )
        self._gone = []
        self._sweep()

    def delete(self, found: Sequence[Input], report: Callable[[int, int], None]) -> tuple[int, int]:
        """Delete ingested inputs; return the numbers of deleted and kept files.

        A file is kept if it has changed since, if a process has locked it, or if an hour was
        removed from the output after it was ingested.
        """
        self._load_inputs({_share(each.path) for each in found})
        self._check_hours(self.inputs[each.path] for each in found if each.path in self.inputs)
        doomed, kept = [], 0
        for each in found:
            known = self.inputs.get(each.path)
            if known and known.at > self._removed:
                doomed.append(each)
            else:
                log.warning("%s: not deleted: an hour of the output was removed", each.path)
                kept += 1
        if not doomed:
            return 0, kept
        self._save(deleting=[each.path for each in doomed])
        deleted: list[str] = []
        with ThreadPoolExecutor(_THREADS) as pool:
            for number, (each, reason) in enumerate(
                zip(doomed, pool.map(remove, doomed), strict=True), 1
            ):
                report(number, len(doomed))
                if reason:
                    log.warning("%s: not deleted: %s", each.path, reason)
                    kept += 1
                else:
                    deleted.append(each.path)
        for folder in {posixpath.dirname(path) for path in deleted}:
            if local(folder) is not None:
                sync_directory(folder)
                if os.path.basename(folder).startswith("batch="):
                    with contextlib.suppress(OSError):  # not empty
                        os.rmdir(folder)
        self._do(forget=deleted)
        return len(found) - kept, kept

    def _load(self) -> dict[str, Any]:
        """Read the newest step; return it if it is not done, as arguments of ``_do``."""
        try:
            state = self._steps.load()
            if state["format"] == _ONE_FILE:
                return self._converted(state)
            if state["format"] != _FORMAT:
                raise ValueError
            self._removed = state["removed"]
            self._unfinished = {
                run: (step, days)
                for run, (step, days) in state["unfinished"].items()
                if step > self._steps.number - _STEPS
            }
            todo: dict[str, Any] = state["todo"]
            return todo
        except FileNotFoundError:
            return {}
        except (AttributeError, LookupError, TypeError, ValueError):
            raise self._damaged() from None

    def _converted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a step that makes the parts of the state that an earlier version had in one."""
        inputs = state["inputs"]
        for facts in inputs.values():
            facts["at"] = 0 if facts.pop("whole") else -1
        self.files = {path: HourFile(**part) for path, part in state["files"].items()}
        self.inputs = {path: Known(**known) for path, known in inputs.items()}
        days = sorted({_day(path) for path in self.files})
        runs = state.get("unfinished", ())
        self._unfinished = dict.fromkeys(runs, (self._steps.number, days))
        todo = {key: state[key] for key in ("run", "remove", "deleting") if state.get(key)}
        return {"files": state["files"], "inputs": inputs, **todo}

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"{self._steps.url}: is damaged, or was written by another version: restore it, or "
            "give another --output and this output as an --input"
        )

    def _read(self, shares: Shares, names: Iterable[str]) -> dict[str, Any]:
        """Return the entries of parts of the state that were not read before."""
        missing = [name for name in names if (shares, name) not in self._loaded]
        self._loaded.update((shares, name) for name in missing)
        try:
            found: dict[str, Any] = {}
            for entries in shares.load(missing):
                found |= entries
        except (TypeError, ValueError):
            raise self._damaged() from None
        return found

    def _load_inputs(self, names: Iterable[str]) -> None:
        found = self._read(self._shares, names)
        self.inputs |= {path: Known(**facts) for path, facts in found.items()}

    def _load_files(self, days: Iterable[str]) -> None:
        found = self._read(self._days, days)
        self.files |= {path: HourFile(**facts) for path, facts in found.items()}

    def _save(self, **todo: Any) -> None:
        """Put the next step; raises LockedError if another run has done so."""
        state = {
            "format": _FORMAT,
            "todo": todo,
            "unfinished": self._unfinished,
            "removed": self._removed,
            "nonce": uuid4().hex,  # distinguishes this step from another run's
        }
        self._steps.save(state)

    def _do(
        self,
        *,
        run: str = "",
        files: Mapping[str, Any] | None = None,
        remove: Collection[str] = (),
        inputs: Mapping[str, Any] | None = None,
        forget: Collection[str] = (),
        deleting: Collection[str] = (),
    ) -> None:
        """Put a step and do it: put files in place, remove others, and change the state.

        Of the inputs that a killed run was ``deleting``, those that are gone or have changed are
        forgotten: another file with the same name is a new input.
        """
        files, inputs = files or {}, inputs or {}
        todo = {"run": run, "files": files, "remove": remove, "inputs": inputs}
        self._save(**todo, forget=forget, deleting=deleting)
        if run and self._folder is not None:
            self._publish(run, files)
        in_threads(self._store.delete, remove)
        self._sync(remove)
        days = {_day(path) for path in chain(files, remove)}
        self._load_files(days)
        self.files |= {path: HourFile(**part) for path, part in files.items()}
        for path in remove:
            self.files.pop(path, None)
        shares = {_share(path) for path in chain(inputs, forget, deleting)}
        self._load_inputs(shares)
        self.inputs |= {path: Known(**known) for path, known in inputs.items()}
        unchanged = in_threads(self._is_unchanged, deleting)
        deleted = [path for path, there in zip(deleting, unchanged, strict=True) if not there]
        for path in chain(forget, deleted):
            self.inputs.pop(path, None)
        self._save_parts(days, shares)
        self._save()

    def _save_parts(self, days: Collection[str], shares: Collection[str]) -> None:
        """Write the parts of the state of these days and names."""
        by_day: dict[str, dict[str, HourFile]] = {day: {} for day in days}
        for path, part in self.files.items():
            if _day(path) in by_day:
                by_day[_day(path)][path] = part
        by_share: dict[str, dict[str, Known]] = {name: {} for name in shares}
        for path, known in self.inputs.items():
            if _share(path) in by_share:
                by_share[_share(path)][path] = known
        number = self._steps.number
        self._days.save(number, {day: ("", _plain(parts)) for day, parts in by_day.items()})
        self._shares.save(
            number, {name: (_mark(known), _plain(known)) for name, known in by_share.items()}
        )

    def _is_unchanged(self, path: str) -> bool:
        known = self.inputs.get(path)
        try:
            if known:
                check_same(path, known.size, known.mtime_ns)
        except RecordError:
            return False
        return known is not None

    def _publish(self, run: str, files: Collection[str]) -> None:
        """Put a run's files in place, except those already there, and make them durable."""
        for path in files:
            os.makedirs(below(self.place, posixpath.dirname(path)), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(below(self.work(run), path), below(self.place, path))
        self._sync(files)

    def _sync(self, paths: Iterable[str]) -> None:
        for folder in {posixpath.dirname(path) for path in paths}:
            self._store.sync(folder)

    def _sweep(self) -> None:
        """Remove the files of ended runs."""
        for path in self._folder.glob(f"{_WORK}*") if self._folder else ():
            shutil.rmtree(path, ignore_errors=True)
        ended = tuple(map(prefix, self._unfinished))
        days = sorted({day for _, days in self._unfinished.values() for day in days})
        there = chain.from_iterable(in_threads(self._listed, days))
        doomed = [path for path, _ in there if posixpath.basename(path).startswith(ended)]
        in_threads(self._store.delete, doomed)

    def _listed(self, day: str) -> list[tuple[str, int]]:
        """Return the files of a day with their sizes."""
        return [(each.path, each.size) for each in self._store.files(f"date={day}")]

    def _check(self, days: Iterable[str]) -> None:
        """Read the state of days, and compare it with the files visible to readers.

        Raises ConfigError for files that are not ours; hours that are gone are forgotten.
        """
        names = {*days}
        self._load_files(names)
        ended = tuple(map(prefix, self._unfinished))
        there = {
            path: size
            for path, size in chain.from_iterable(in_threads(self._listed, sorted(names)))
            if not any(name.startswith((".", "_")) for name in path.split("/"))
            and not (ended and posixpath.basename(path).startswith(ended))
        }
        known = {path: part.size for path, part in self.files.items() if _day(path) in names}
        hours = set(map(posixpath.dirname, there))
        for hour in sorted({posixpath.dirname(path) for path in known} - hours):
            log.warning("%s: %s was removed from the output", self.place, hour)
            self._removed = self._steps.number
            for path in [path for path in known if posixpath.dirname(path) == hour]:
                del known[path], self.files[path]
                self._gone.append(path)
        if odd := there.items() ^ known.items():
            raise ConfigError(
                f"{self._store.url(min(odd)[0])}: is not as compact left it: give another "
                "--output, or move the directory away and give it as an --input"
            )

    def _check_hours(self, ingested: Iterable[Known]) -> None:
        """Notice whether an hour is gone that has rows of these inputs."""
        spans = {(_named(each.first), _named(each.last)) for each in ingested}
        self._check(
            day for day in self._days.names() if any(first <= day <= last for first, last in spans)
        )


def days_of(minutes: Iterable[int]) -> set[str]:
    """Return the days of minutes since the epoch, as in the names of directories."""
    return {_named(each * 1440) for each in {minute // 1440 for minute in minutes}}


def _named(minute: int) -> str:
    """Return the day of a minute."""
    days = min(minute // 1440, (date.max - date(1970, 1, 1)).days)
    return (date(1970, 1, 1) + timedelta(days)).isoformat()


def _day(path: str) -> str:
    """Return the day of a file of the output."""
    return path.partition("/")[0].removeprefix("date=")


def _share(path: str) -> str:
    """Return the name of the part of the state that has an input, by its date if it has one.

    A file that grows or is moved keeps its name, and so its part of the state.
    """
    name = posixpath.basename(path)
    is_lake = name.endswith(".parquet") or "/batch=" in path
    dates = _DATE.findall(path if is_lake else name)
    return dates[-1] if dates else f"{zlib.crc32(name.encode()) % _SHARES:02x}"


def _mark(entries: Mapping[str, Input] | Mapping[str, Known]) -> str:
    """Return a digest of inputs with their sizes and times."""
    texts = sorted(f"{path}\0{each.size}\0{each.mtime_ns}\n" for path, each in entries.items())
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:32]


def _plain(entries: Mapping[str, HourFile] | Mapping[str, Known]) -> dict[str, Any]:
    return {path: asdict(each) for path, each in entries.items()}


def _above(path: str) -> Iterable[str]:
    """Yield the directories that contain a file."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path or "/"


def _looks(path: str, known: Known) -> tuple[object, ...]:
    """Return name, size, time and content: a copy shares these with its original."""
    return posixpath.basename(path), known.size, known.mtime_ns, known.checksum


def prefix(run: str) -> str:
    """Return the prefix of the file names of a run."""
    return f"part-{run}-"
