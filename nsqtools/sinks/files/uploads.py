"""Uploads of completed files to a store: ``--upload``."""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.sinks.files.hooks import FileQueue
from nsqtools.stores import open_store
from nsqtools.stores.interface import reason
from nsqtools.stores.pinned import pinned
from nsqtools.stores.places import local

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsqtools.records.manifest import CompletedFile
    from nsqtools.sinks.files.hooks import Job

log = logging.getLogger(__name__)

_RETRIES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_RETRIES_OF_REQUESTS = 4
_HUNG = 150.0
"""Seconds after which a request without a response is a failure: its client has tried it twice."""
_NAME_TAKEN = 600.0
"""Seconds until a file whose name is taken is tried again, as somebody may have moved the other."""
_THREADS = 4
_LAST_ATTEMPTS = 3
"""Failures without a success between them after which no more is tried while closing."""
_PATIENCE = 5.0
"""Maximum seconds without progress while closing, if uploads fail."""
_LONG_PATIENCE = 30.0
"""The same if none has failed: a part of a file may be on a slow line."""
_CHECK_INTERVAL = 0.1


class Uploads(FileQueue):
    """Uploads each completed file, several at a time, under its name in the output directory.

    An existing file is never replaced. One with the same content was uploaded by an earlier
    attempt; any other is an error, which is logged once. While the store fails, all uploads pause
    for the next of ``retries``. The beginning and the end of that are logged. Raises ConfigError
    for a URL that is not supported, and for the output directory itself.
    """

    def __init__(self, url: str, output_dir: str, *, retries: Sequence[float] = _RETRIES) -> None:
        super().__init__("--upload", threads=_THREADS, retries=retries)
        self._store = open_store(url, self.flag, _RETRIES_OF_REQUESTS)
        self._store.patience = _HUNG
        if (place := local(url)) and _is_same(place, output_dir):
            raise ConfigError(f"{self.flag} {url}: this is --output-dir: name another directory")
        self._root = output_dir
        self._failing: set[int] = set()
        self._taken: set[int] = set()
        self._swept: set[str] = set()
        self._failures = 0
        self._moved = monotonic()
        self._settling = threading.Lock()
        self._abandoned = False

    def attempt(self, completed: CompletedFile) -> None:
        """Upload a file, after removing what killed uploads have left in its folder."""
        folder = os.path.dirname(completed.name)
        if folder not in self._swept:
            self._store.sweep(folder)
            self._swept.add(folder)
        with pinned(completed.path, self._root) as found:
            fd = found.open(os.O_RDONLY | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            self._store.upload(file, completed.name, moved=self._note_progress)
        log.info("uploaded %s", completed.name)

    def failed(self, job: Job, problem: Exception, *, at_the_end: bool) -> float | None:
        """Log the first failure after successes, and each name that is taken, once."""
        if self._abandoned:
            return None
        url = self._store.url(job.completed.name)
        if isinstance(problem, FileExistsError):
            if job.number not in self._taken:
                self._taken.add(job.number)
                log.error("%s %s: %s: move one of the two away", self.flag, url, reason(problem))
            self._note_answer(job)
            return None if self.closing else _NAME_TAKEN
        if not self._failing:
            log.warning("%s %s: %s: trying again", self.flag, url, reason(problem))
        self._failing.add(job.number)
        if monotonic() >= self.rest_until:  # otherwise several files failed at a time
            self.rest_until = monotonic() + self._wait(self._failures)
            self._failures += 1
        if self.closing and self._failures >= _LAST_ATTEMPTS:
            self.jobs.clear()
            return None
        return self._wait(job.failures)

    def succeeded(self, job: Job) -> None:
        """Settle the file, unless ``close`` has returned."""
        with self.changed:
            self._note_answer(job)
        with self._settling:
            if not self._abandoned:
                job.done()

    def close(self) -> None:
        """Upload all waiting files now, as long as there is progress.

        Files that remain are uploaded by the next run. No file may be submitted afterwards.
        """
        self._note_progress()
        self._failures = 0
        self.hurry()
        for thread in self.threads:
            while thread.is_alive() and not self._is_stuck():
                thread.join(_CHECK_INTERVAL)
            if thread.is_alive() and not self._failing:
                log.warning("%s %s: no response", self.flag, self._store.place)
                break
        with self._settling:
            self._abandoned = True
        with self.changed:
            self.jobs.clear()

    def _wait(self, failures: int) -> float:
        return self.retries[0 if self.closing else min(failures, len(self.retries) - 1)]

    def _note_answer(self, job: Job) -> None:
        """Note that the store works; ``changed`` is held."""
        self._note_progress()
        self._failures, self.rest_until = 0, 0.0
        self.changed.notify_all()
        if job.number in self._failing:
            self._failing.discard(job.number)
            if not self._failing:
                log.warning("%s %s: uploads succeed again", self.flag, self._store.place)

    def _note_progress(self) -> None:
        self._moved = monotonic()

    def _is_stuck(self) -> bool:
        patience = _PATIENCE if self._failing else _LONG_PATIENCE
        return monotonic() - self._moved > patience


def _is_same(place: Path, output_dir: str) -> bool:
    """Whether both are one directory, which may not exist yet."""
    try:
        return os.path.samefile(place, output_dir)
    except FileNotFoundError:
        return os.path.realpath(place) == os.path.realpath(output_dir)
