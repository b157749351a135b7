"""The ``--on-rotate`` command, which runs for each published file and is retried if it fails."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import shlex
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.records.manifest import Published

__all__ = ["RETRIES", "Hook"]

log = logging.getLogger(__name__)

RETRIES = (1.0, 2.0, 4.0, 15.0, 60.0, 600.0)
"""Seconds from each failure to the next attempt; the last value repeats."""

_PATIENCE = 5.0
"""Maximum seconds between attempts while closing, as a cron job may wait for the end."""
_STDERR = 2


@dataclass(order=True, slots=True)
class _Job:
    """A file for the command, and the time of the next attempt in monotonic seconds."""

    due: float
    number: int
    published: Published = field(compare=False)
    done: Callable[[], object] = field(compare=False)
    failures: int = field(default=0, compare=False)


class Hook:
    """Runs a shell command for each published file, one at a time, in a thread of its own.

    ``{}`` in the command is replaced by the path, quoted for the shell; without ``{}`` the path is
    appended. The environment has NSQ_FILE, NSQ_TOPIC, NSQ_COUNT, NSQ_FIRST_TIMESTAMP and
    NSQ_LAST_TIMESTAMP (ns; empty if unknown). Standard input is empty, and standard output goes to
    standard error. The command has its own process group, so that Ctrl-C does not end it, and it
    continues if this process ends before ``close`` returns. A failure is logged, and the command is
    run again after each of ``retries``, in seconds, while other files continue. After ``timeout``
    seconds the command and its process group are killed, which is a failure.
    """

    def __init__(
        self, command: str, *, timeout: float = 600.0, retries: Sequence[float] = RETRIES
    ) -> None:
        self._command = command
        self._timeout = timeout
        self._retries = retries
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []  # a heap
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, published: Published, done: Callable[[], object] = bool) -> None:
        """Queue a file for the command; returns at once.

        ``done`` is called after the command has succeeded or the file has been removed.
        """
        with self._changed:
            heapq.heappush(self._jobs, _Job(monotonic(), next(self._numbers), published, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="on-rotate", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Run the command for all waiting files now, with short delays between attempts.

        Each file gets at least one attempt that starts after this call, unless a running one
        succeeds. No file may be submitted afterwards.
        """
        with self._changed:
            self._closing = True
            for job in self._jobs:
                job.due = 0.0
            heapq.heapify(self._jobs)
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while job := self._next():
            at_the_end = self._closing
            problem = self._attempt(job.published)
            if problem and os.path.lexists(job.published.path):
                self._try_again(job, problem, at_the_end)
                continue
            if problem:
                log.warning(
                    "--on-rotate %s for %s, which has been removed", problem, job.published.path
                )
            job.done()

    def _next(self) -> _Job | None:
        """Wait for the next due job; None when closed and no job is left."""
        with self._changed:
            while self._jobs or not self._closing:
                wait = self._jobs[0].due - monotonic() if self._jobs else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._jobs)
                self._changed.wait(wait)
            return None

    def _attempt(self, published: Published) -> str:
        """Run the command; return what went wrong, or an empty text."""
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

    def _try_again(self, job: _Job, problem: str, at_the_end: bool) -> None:
        """Queue a failed job again, unless the delay would be too long while closing."""
        path = job.published.path
        with self._changed:
            wait = self._retries[min(job.failures, len(self._retries) - 1)]
            job.failures += 1
            if at_the_end and wait > _PATIENCE:
                log.error(
                    "--on-rotate %s for %s: giving up after %d attempts",
                    problem,
                    path,
                    job.failures,
                )
                return
            if self._closing and not at_the_end:
                wait = 0.0
            job.due = monotonic() + wait
            heapq.heappush(self._jobs, job)
        log.warning("--on-rotate %s for %s: trying again in %g s", problem, path, wait)


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
