"""What is done for each completed file, in threads, and retried if it fails: ``--on-rotate``."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import shlex
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.records.manifest import CompletedFile

log = logging.getLogger(__name__)

RETRIES = (1.0, 2.0, 4.0, 15.0, 60.0, 600.0)
"""Seconds from each failure to the next attempt; the last value repeats."""

_PATIENCE = 5.0
"""Maximum seconds between attempts while closing, as a cron job may wait for the end."""
_STDERR = 2


@dataclass(order=True, slots=True)
class Job:
    """A file that waits, and the time of the next attempt in monotonic seconds."""

    due: float
    number: int
    completed: CompletedFile = field(compare=False)
    done: Callable[[], object] = field(compare=False)
    failures: int = field(default=0, compare=False)


class FileQueue(ABC):
    """Does one thing for each completed file, in threads of its own, until it succeeds.

    ``flag`` is the option that asks for it. After each failure the file waits for the next of
    ``retries``, in seconds, while other files continue. No attempt begins before ``rest_until``, in
    monotonic seconds. ``changed`` guards all of this.
    """

    def __init__(self, flag: str, *, threads: int, retries: Sequence[float]) -> None:
        self.flag = flag
        self.retries = retries
        self.changed = threading.Condition()
        self.jobs: list[Job] = []  # a heap
        self.rest_until = 0.0
        self.closing = False
        self.threads: list[threading.Thread] = []
        self._numbers = count()
        self._max_threads = threads

    def submit(self, completed: CompletedFile, done: Callable[[], object] = bool) -> None:
        """Queue a file; returns at once.

        ``done`` is called after success, or after a failure if the file has been removed.
        """
        with self.changed:
            heapq.heappush(self.jobs, Job(monotonic(), next(self._numbers), completed, done))
            if len(self.threads) < self._max_threads:
                thread = threading.Thread(target=self._work, name=self.flag[2:], daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify()

    def close(self) -> None:
        """Attend to all waiting files now, with short delays between attempts.

        Each file gets at least one attempt that starts after this call, unless a running one
        succeeds. No file may be submitted afterwards.
        """
        self.hurry()
        for thread in self.threads:
            thread.join()

    def hurry(self) -> None:
        """Begin to close: all files are due."""
        with self.changed:
            self.closing, self.rest_until = True, 0.0
            for job in self.jobs:
                job.due = 0.0
            heapq.heapify(self.jobs)
            self.changed.notify_all()

    @abstractmethod
    def attempt(self, completed: CompletedFile) -> None:
        """Do it for a file; any exception is a failure."""

    @abstractmethod
    def failed(self, job: Job, problem: Exception, *, at_the_end: bool) -> float | None:
        """Log a failure; return the seconds to the next attempt, None to give up.

        ``at_the_end`` is whether the attempt began while closing. ``changed`` is held.
        """

    def succeeded(self, job: Job) -> None:
        """Note that a file needs nothing more."""
        job.done()

    def _work(self) -> None:
        while job := self._next():
            at_the_end = self.closing
            path = job.completed.path
            try:
                self.attempt(job.completed)
            except Exception as error:
                if os.path.lexists(path):
                    self._try_again(job, error, at_the_end)
                    continue
                log.warning("%s %s for %s: the file has been removed", self.flag, error, path)
            self.succeeded(job)

    def _next(self) -> Job | None:
        """Wait for the next due job; None when closed and no job is left."""
        with self.changed:
            while self.jobs or not self.closing:
                due = max(self.jobs[0].due, self.rest_until) if self.jobs else None
                wait = due - monotonic() if due is not None else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self.jobs)
                self.changed.wait(wait)
            return None

    def _try_again(self, job: Job, problem: Exception, at_the_end: bool) -> None:
        """Queue a failed job again, unless it is given up."""
        with self.changed:
            wait = self.failed(job, problem, at_the_end=at_the_end)
            job.failures += 1
            if wait is None:
                return
            job.due = monotonic() + wait
            heapq.heappush(self.jobs, job)
            self.changed.notify()


class Hook(FileQueue):
    """Runs a shell command for each completed file, one at a time.

    ``{}`` in the command is replaced by the path, quoted for the shell; without ``{}`` the path is
    appended. The environment has NSQ_FILE, NSQ_TOPIC, NSQ_COUNT, NSQ_FIRST_TIMESTAMP and
    NSQ_LAST_TIMESTAMP (ns; empty if unknown). Standard input is empty, and standard output goes to
    standard error. The command has its own process group, so that Ctrl-C does not end it, and it
    continues if this process ends before ``close`` returns. Each failure is logged. After
    ``timeout`` seconds the command and its process group are killed, which is a failure.
    """

    def __init__(
        self, command: str, *, timeout: float = 600.0, retries: Sequence[float] = RETRIES
    ) -> None:
        super().__init__("--on-rotate", threads=1, retries=retries)
        self._command = command
        self._timeout = timeout

    def attempt(self, completed: CompletedFile) -> None:
        """Run the command."""
        try:
            process = subprocess.Popen(  # noqa: S602 - it is a shell command
                _fill_in(self._command, completed.path),
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env={**os.environ, **_environment(completed)},
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise OutputError(f"cannot be started ({error})") from error
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise OutputError(f"was killed after {self._timeout:g} s") from error
        if status < 0:
            raise OutputError(f"was killed by signal {-status}")
        if status:
            raise OutputError(f"exited with status {status}")

    def failed(self, job: Job, problem: Exception, *, at_the_end: bool) -> float | None:
        """Log each failure; give up if the delay would be too long while closing."""
        wait = self.retries[min(job.failures, len(self.retries) - 1)]
        what = f"{self.flag} {problem} for {job.completed.path}"
        if at_the_end and wait > _PATIENCE:
            log.error("%s: giving up after %d attempts", what, job.failures + 1)
            return None
        if self.closing and not at_the_end:
            wait = 0.0
        log.warning("%s: trying again in %g s", what, wait)
        return wait


def _fill_in(command: str, path: str) -> str:
    quoted = shlex.quote(path)
    return command.replace("{}", quoted) if "{}" in command else f"{command} {quoted}"


def _environment(completed: CompletedFile) -> dict[str, str]:
    known = {
        "NSQ_FILE": completed.path,
        "NSQ_TOPIC": completed.topic,
        "NSQ_COUNT": completed.records,
        "NSQ_FIRST_TIMESTAMP": completed.first_timestamp,
        "NSQ_LAST_TIMESTAMP": completed.last_timestamp,
    }
    return {name: "" if value is None else str(value) for name, value in known.items()}
