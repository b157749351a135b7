"""What the archives of all topics share: locks, leftovers of crashes, and care for what is done."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError
from nsqtools.policy.filenames import SECOND, FileNames
from nsqtools.sinks.files import publish
from nsqtools.sinks.files.archive import Archive
from nsqtools.sinks.files.leftovers import find, sweep
from nsqtools.sinks.files.locks import Lock, obtain
from nsqtools.sinks.files.salvage import salvage

if TYPE_CHECKING:
    from nsqtools.policy.leftovers import Matcher
    from nsqtools.sinks.files.aftercare import Care, Tally
    from nsqtools.sinks.files.hooks import Hook
    from nsqtools.sinks.files.rules import Rules

_TIMES = (0, 1_234_567_890 * SECOND)
"""By which two formats of time are told apart."""


class Archives:
    """Archives under one output directory. All but ``lock`` and ``tallies`` block.

    ``leftovers`` knows the names that a run before may have given. ``lock_file`` is one that an
    operator named, so that one such command runs at a time.
    """

    def __init__(
        self,
        rules: Rules,
        leftovers: Matcher,
        care: Care,
        *,
        hook: Hook | None = None,
        lock_file: str = "",
        wait_lock: bool = False,
    ) -> None:
        self._rules = rules
        self._leftovers = leftovers
        self._care = care
        self._hook = hook
        self._wait_lock = wait_lock
        self._locks = {"": Lock(lock_file, keep=True)} if lock_file else {}
        self._left_behind = 0
        self._opening = threading.Lock()

    async def lock(self, topic: str) -> bool:
        """Make sure that no other process writes the same names; whether that took waiting.

        The empty topic is for ``lock_file``. Raises LockedError or OSError.
        """
        if topic:
            self._locks.setdefault(topic, Lock(self._lock_path(topic)))
        lock = self._locks.get(topic)
        if lock is None or lock.acquire():
            return False
        await obtain(lock, wait=self._wait_lock)
        return True

    def open(self) -> None:
        """Make the directories, and publish what crashes left behind.

        Raises OSError, or ConfigError for a manifest that is none.
        """
        rules = self._rules
        self._care.check()
        for directory in (rules.output_dir, rules.work_dir):
            publish.make_directory(directory)
            if not os.path.isdir(directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "cannot be written to", directory)
        sweep(rules.output_dir, self._leftovers)
        with self._opening:  # what another call holds would look like a living process's
            leftovers = find(rules.work_dir, self._leftovers, publish.WORK)
            self._left_behind = salvage(leftovers, rules, self._care)
            self._care.prune()

    def topic(self, topic: str, now: float) -> Archive:
        """The archive of one topic, from ``now`` on in monotonic seconds; raises ConfigError."""
        return Archive(topic, self._rules, self._care, now=now, guard=partial(self._guard, topic))

    def leave(self, topic: str) -> None:
        """The topic is archived no more."""
        if lock := self._locks.pop(topic, None):
            lock.release()

    def tend(self) -> None:
        """Do what is due without a message; call it now and then."""
        self._care.prune()

    def tallies(self) -> dict[str, Tally]:
        """What was published until now, by topic."""
        return self._care.tallies()

    def close(self) -> None:
        """Wait for the last commands of ``--on-rotate``; raises OutputError if one has failed.

        So it does for leftovers that could not be published.
        """
        failed = self._hook.close() if self._hook else []
        given_up = len(failed) + (self._hook.given_up if self._hook else 0)
        if self._left_behind:
            raise OutputError(f"{self._left_behind} files of an earlier crash are not published")
        if given_up:
            raise OutputError(f"--on-rotate failed for {given_up} files")

    def unlock(self) -> None:
        """Give all locks back."""
        for lock in self._locks.values():
            lock.release()

    def _guard(self, topic: str) -> None:
        """Take the lock again if its file was removed, as with its directory; raises OSError."""
        lock = self._locks.get(topic)
        if lock and not lock.acquire():
            raise OSError(errno.EAGAIN, "another process has taken the lock", lock.path)

    def _lock_path(self, topic: str) -> str:
        """One for all that give the same names, however their options are spelled."""
        rules = self._rules
        names = FileNames(
            rules.pattern, topic=topic, hostname=rules.hostname, pid=rules.pid, zone=UTC
        )
        same = "\0".join(map(names.at, _TIMES)).encode("utf-8", "surrogateescape")
        key = hashlib.sha256(same).hexdigest()[:8]
        return os.path.join(rules.output_dir, f".{topic}.{key}.lock")
