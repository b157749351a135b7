"""One run at a time on a checkpoint, or on the output of a job.

On a mounted file system the kernel holds a lock. Elsewhere a run puts an entry, which no other run
can put, and renews a file as its lease. If the lease expires, the next run takes over by putting
the next entry. If the earlier run was not dead after all, it finds this entry and stops. No message
depends on these times: the staging fences attempts by itself, and every run writes a batch with the
same content.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqtools.errors import ConfigError, LockedError, OutputError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.jobs.versions import Versions
from nsqtools.spark.properties import JAVA_PID
from nsqtools.stores import open_store, probe
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.pinned import make_directory
from nsqtools.stores.places import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from nsqtools.stores.interface import Store

log = logging.getLogger(__name__)

_LOCK = "lock"
_JAVA = "java"
_JAVA_ENDS = 60.0  # seconds
_LOOK = 0.1

_RUNS = "runs"
_RENEWED = f"{_RUNS}/renewed"
_RENEW_INTERVAL = 5.0
_LEASE = 30.0
"""Seconds without a renewal after which a run counts as dead."""
_PATIENCE = 20.0
"""Seconds of failed renewals after which a run stops, before another run takes over."""


class RunGuard:
    """The right to run; subclasses implement the steps to keep it."""

    def note_java(self, spark: SparkSession) -> None:
        """Record the Java process of this run, for the next run on this host."""

    def stops(self, stop: threading.Event) -> None:
        """Set ``stop`` once another run has taken over."""

    def check(self) -> None:
        """Raise LockedError if another run has taken over."""


def only_one(place: str, flag: str = "--checkpoint") -> contextlib.AbstractContextManager[RunGuard]:
    """Hold the right to run on a place, which ``flag`` names in errors.

    Raises LockedError if another run holds it, and ConfigError or OutputError if the place cannot
    be written.

    Spark itself notices two runs only when one of them fails.
    """
    path = local(place)
    return _lock(path, flag) if path is not None else _lease(place, flag)


class _LocalGuard(RunGuard):
    def __init__(self, path: Path) -> None:
        self._path = path

    def note_java(self, spark: SparkSession) -> None:
        """Write the process to a file."""
        if process := _java_of(spark):
            (self._path / _JAVA).write_text(" ".join(process))


@contextlib.contextmanager
def _lock(path: Path, flag: str) -> Iterator[RunGuard]:
    """Hold a lock file; directories created for it are removed at the end if empty."""
    made = [each for each in (path, *path.parents) if not os.path.exists(each)]
    lock = Lock(str(path / _LOCK))
    try:
        try:
            make_directory(str(path), 0o777)  # as the umask says: others read an output above it
            held = lock.acquire()
        except OSError as error:
            kind = OutputError if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
            raise kind(f"{flag} {path}: {error.strerror}: give another {flag}") from error
        if not held:
            raise lock.refusal(f"give another {flag}")
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid, began = (path / _JAVA).read_text().split()
            _outlive(pid, began)
        yield _LocalGuard(path)
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()


@contextlib.contextmanager
def _lease(place: str, flag: str) -> Iterator[RunGuard]:
    store = open_store(place, flag)
    probe(store, flag)
    lease = Lease(store)
    with as_output_error(place):
        lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


class Lease(RunGuard):
    """The right to run on a place in a store without locks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs = Versions(store, _RUNS)
        self._facts: dict[str, Any] = {
            "run": uuid4().hex,
            "host": os.uname().nodename,
            "kernel": _kernel(),
            "processes": [_process(os.getpid())],
        }
        self._beat = 0
        self._stop: threading.Event | None = None
        self._lost = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def acquire(self) -> None:
        """Take the right, from a dead run if need be; raises LockedError and OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._await_end(self._runs.load())
        self._runs.save(self._facts)
        self._renew()
        self._store.patience = _RENEW_INTERVAL  # a longer wait would hide a lost lease
        self._thread.start()

    def release(self) -> None:
        """Let the next run begin at once."""
        self._end.set()
        self._thread.join()
        if not self._lost.is_set():
            with contextlib.suppress(OSError):
                self._renew(ended=True)

    def note_java(self, spark: SparkSession) -> None:
        """Add the process to the renewed facts."""
        if process := _java_of(spark):
            self._facts["processes"].append(process)

    def stops(self, stop: threading.Event) -> None:
        """Set ``stop`` once another run has taken over."""
        self._stop = stop
        if self._lost.is_set():
            stop.set()

    def check(self) -> None:
        """Raise LockedError if another run has taken over, or may have."""
        if self._lost.is_set():
            raise LockedError(
                f"{self._store.place}: another run has taken over, because this one could not "
                f"renew its entry for {_PATIENCE:.0f} seconds"
            )

    def _await_end(self, entry: dict[str, Any]) -> None:
        """Return once the run of an entry has ended or is dead; raises LockedError."""
        first = self._renewal(entry["run"])
        if first.get("ended"):
            return
        facts = first or entry
        if facts["kernel"] == self._facts["kernel"]:
            run, *others = facts["processes"]
            if not _is_running(*run):
                for process in others:
                    _outlive(*process)
                return
        deadline = time.monotonic() + _LEASE
        while (now := self._renewal(entry["run"])) == first:
            if time.monotonic() > deadline:
                log.warning(
                    "%s: took over from a run on %s that has not renewed its entry for %d seconds",
                    *(self._store.place, facts["host"], _LEASE),
                )
                return
            time.sleep(_LOOK)
        if now and not now.get("ended"):
            raise LockedError(
                f"{self._store.place}: in use by process {now['processes'][0][0]} on {now['host']}"
            )

    def _renewal(self, run: str) -> dict[str, Any]:
        """Return a run's last renewal; empty without one, or if another run has renewed since."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads(self._store.get(_RENEWED))
            return found if found["run"] == run else {}
        return {}

    def _renew(self, *, ended: bool = False) -> None:
        self._beat += 1
        facts = self._facts | {"beat": self._beat, "ended": ended}
        self._store.put(_RENEWED, json.dumps(facts).encode())

    def _keep(self) -> None:
        """Renew until the end, or until the right is lost."""
        renewed = time.monotonic()
        while not self._end.wait(_RENEW_INTERVAL):
            began, is_newest = time.monotonic(), True
            with contextlib.suppress(OSError):
                is_newest = self._runs.is_newest()
                if is_newest:
                    self._renew()
                    renewed = began
            if not is_newest or time.monotonic() - renewed > _PATIENCE:
                self._lost.set()
                if self._stop:
                    self._stop.set()
                return


def _java_of(spark: SparkSession) -> tuple[str, str] | None:
    pid = spark.conf.get(JAVA_PID, None)
    return _process(int(pid)) if pid else None


def _kernel() -> str:
    """Return an id of machine, boot and container: process ids are comparable only within it."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return uuid4().hex


def _process(pid: int) -> tuple[str, str]:
    """Return a process id and its start, in clock ticks since boot; '' for an ended process."""
    try:
        state, *_, began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return str(pid), ""
    return str(pid), "" if state == "Z" else began


def _is_running(pid: str, began: str) -> bool:
    return bool(began) and _process(int(pid)) == (pid, began)


def _outlive(pid: str, began: str) -> None:
    """Wait until the Java process of a killed run has ended.

    Until then it might still write a batch while the new run writes the same batch. Raises
    LockedError if it does not end.
    """
    deadline = time.monotonic() + _JAVA_ENDS
    while _is_running(pid, began):
        if time.monotonic() > deadline:
            raise LockedError(
                f"the Java process {pid} of a killed run is still running: try again when it has "
                "ended"
            )
        time.sleep(_LOOK)
