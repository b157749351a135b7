"""The command of ``--on-rotate``: run with each published file, and again when it fails."""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.records.manifest import Published

__all__ = ["RETRIES", "Hook", "Job", "Schedule"]

log = logging.getLogger(__name__)

RETRIES = (1.0, 2.0, 4.0, 15.0, 60.0)
"""Seconds from a failure to the next attempt."""

_LATER = 600.0
"""Seconds between attempts after those."""
_LONG = 300.0
_PATIENCE = 5.0
"""Seconds between attempts at the end: whoever waits for it may be a cron job."""
_STDERR = 2


@dataclass(order=True, slots=True)
class Job:
    """A file that the command has to be run with, from ``due`` on, in monotonic seconds."""

    due: float
    number: int
    published: Published = field(compare=False)
    done: Callable[[], object] = field(compare=False)
    failures: int = field(default=0, compare=False)


class Schedule:
    """Jobs in the order in which they are due; one that failed waits while others go on."""

    def __init__(self, retries: Sequence[float] = RETRIES) -> None:
        self._retries = retries
        self._jobs: list[Job] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, published: Published, now: float, done: Callable[[], object] = bool) -> None:
        """A new job, due at once; ``done`` is called when the command has succeeded."""
        self._number += 1
        heapq.heappush(self._jobs, Job(now, self._number, published, done))

    def wait(self, now: float) -> float | None:
        """Seconds until the next job is due, 0 if one is; None without jobs."""
        return max(0.0, self._jobs[0].due - now) if self._jobs else None

    def pop(self) -> Job:
        """Take out the job that is, or will be, due first; raises IndexError without jobs."""
        return heapq.heappop(self._jobs)

    def retry(self, job: Job, now: float, longest: float = math.inf) -> float | None:
        """Put a job that failed back; seconds to wait.

        None: it would have to wait for more than ``longest``, and is out.
        """
        job.failures += 1
        wait = self._retries[job.failures - 1] if job.failures <= len(self._retries) else _LATER
        if wait > longest:
            return None
        job.due = now + wait
        heapq.heappush(self._jobs, job)
        return wait

    def hurry(self, now: float) -> None:
        """All jobs are due."""
        for job in self._jobs:
            job.due = min(job.due, now)
        heapq.heapify(self._jobs)


class Hook:
    """Runs a shell command with each published file, one after another, in a thread of its own.

    ``{}`` in the command stands for the path, quoted for the shell; without one it is appended.
    The command finds NSQ_FILE, NSQ_TOPIC, NSQ_COUNT, NSQ_FIRST_TIMESTAMP and NSQ_LAST_TIMESTAMP
    (ns; empty if unknown) in its environment, nothing on its standard input, and what it prints
    goes to our standard error. It has a process group of its own, so that Ctrl-C does not end it.
    When our process ends before ``close`` returns, the command goes on alone. A failure is logged,
    and the command run again after each of ``retries``, in seconds. One that runs for more than
    ``timeout`` seconds is killed with its process group, and has failed.
    """

    def __init__(
        self,
        command: str,
        *,
        timeout: float = 600.0,
        retries: Sequence[float] = RETRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._timeout = timeout
        self._clock = clock
        self._changed = threading.Condition()
        self._schedule = Schedule(retries)
        self._thread: threading.Thread | None = None
        self._current: Job | None = None
        self._since = 0.0
        self._closing = self._last = False

    def submit(self, published: Published, done: Callable[[], object] = bool) -> None:
        """Have the command run with this file, after those before it; returns at once.

        ``done`` is called once it has succeeded, or the file is gone.
        """
        with self._changed:
            now = self._clock()
            self._schedule.add(published, now, done)
            self._warn_of_a_long_run(now)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="on-rotate", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Run the command with all that is waiting, now, and again after short delays.

        Each file has an attempt that begins from now on; one that is running may make it needless.
        Nothing may be submitted afterwards.
        """
        with self._changed:
            self._closing = True
            self._schedule.hurry(self._clock())
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._record(job, self._attempt(job.published))

    def _next(self) -> Job | None:
        """Wait for a job; None when there is nothing left to do."""
        with self._changed:
            while True:
                wait = self._schedule.wait(self._clock())
                if wait is None and self._closing:
                    return None
                if wait == 0:
                    self._last = self._closing
                    self._current, self._since = self._schedule.pop(), self._clock()
                    return self._current
                self._changed.wait(wait)

    def _attempt(self, published: Published) -> str:
        """Run the command; what went wrong, empty if nothing did."""
        try:
            process = subprocess.Popen(  # noqa: S602 - it is a shell command
                _fill_in(self._command, published.path),
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env={**os.environ, **_environment(published)},
                process_group=0,
            )
        except (OSError, ValueError) as error:
            return f"cannot be started ({error})"
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"was killed after {self._timeout:g} s"
        if status < 0:
            return f"was killed by signal {-status}"
        return f"exited with status {status}" if status else ""

    def _record(self, job: Job, problem: str) -> None:
        path = job.published.path
        with self._changed:
            self._current = None
            if problem and not os.path.lexists(path):
                log.warning("--on-rotate %s for %s, which is gone", problem, path)
            elif problem:
                now = self._clock()
                wait = self._schedule.retry(job, now, _PATIENCE if self._last else math.inf)
                if wait is not None:
                    if self._closing and not self._last:
                        self._schedule.hurry(now)
                    log.warning("--on-rotate %s for %s, again in %g s", problem, path, wait)
                    return
                log.error(
                    "--on-rotate %s for %s, given up after %d attempts", problem, path, job.failures
                )
                return
        job.done()

    def _warn_of_a_long_run(self, now: float) -> None:
        if self._current and now - self._since >= _LONG:
            log.warning(
                "--on-rotate has been running for %d s for %s, %d files wait",
                now - self._since,
                self._current.published.path,
                len(self._schedule),
            )
            self._since = now


def _fill_in(command: str, path: str) -> str:
    quoted = shlex.quote(path)
    return command.replace("{}", quoted) if "{}" in command else f"{command} {quoted}"


def _environment(published: Published) -> dict[str, str]:
    known = {
        "NSQ_FILE": published.path,
        "NSQ_TOPIC": published.topic,
        "NSQ_COUNT": published.records,
        "NSQ_FIRST_TIMESTAMP": published.first_timestamp,
        "NSQ_LAST_TIMESTAMP": published.last_timestamp,
    }
    return {name: "" if value is None else str(value) for name, value in known.items()}
