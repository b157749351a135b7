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
from nsqtools.sinks.files.locks import Lock, obtain
from nsqtools.sinks.files.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.sinks.files.aftercare import Care, Tally
    from nsqtools.sinks.files.hooks import Hook
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Rules

_NAMED = 3
"""How many files the last error names."""
_TIMES = (0, 1_234_567_890 * SECOND)
"""By which two formats of time are told apart."""


class Archives:
    """Archives under one output directory. All but ``lock`` and ``tallies`` block.

    ``wanted`` says whether a topic is one of these archives'. ``lock_file`` is one that an operator
    named, so that one such command runs at a time.
    """

    def __init__(
        self,
        rules: Rules,
        wanted: Callable[[str], bool],
        journal: Journal,
        care: Care,
        *,
        hook: Hook | None = None,
        lock_file: str = "",
        wait_lock: bool = False,
    ) -> None:
        self._rules = rules
        self._wanted = wanted
        self._journal = journal
        self._care = care
        self._hook = hook
        self._wait_lock = wait_lock
        self._locks = {"": Lock(lock_file, keep=True)} if lock_file else {}
        self._left_behind: list[Entry] = []
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
        """Make the directories, publish what crashes left behind, and do what files still owe.

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
        with self._opening:
            for name, revision in self._journal.revisions():
                rules.revisions.skip(name, revision)
            entries = self._left_behind + self._journal.adopt(self._wanted)
            self._left_behind = salvage(entries, rules, self._journal, self._care)
            self._care.prune()

    def topic(self, topic: str, now: float) -> Archive:
        """The archive of one topic, from ``now`` on in monotonic seconds; raises ConfigError."""
        guard = partial(self._guard, topic)
        return Archive(topic, self._rules, self._journal, self._care, now=now, guard=guard)

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
        """Wait for the last commands of ``--on-rotate``.

        Raises OutputError if a leftover could not be published, or a published file still waits
        for its command: the next run goes on with both.
        """
        if self._hook:
            self._hook.close()
            self._care.prune()
        if left := len(self._left_behind) + len(self._journal.damaged):
            raise OutputError(f"files of an earlier crash that are not published: {left}")
        if owed := self._journal.owed():
            names = ", ".join(owed[:_NAMED]) + (", ..." if len(owed) > _NAMED else "")
            todo = "" if self._hook else "; run with it again, or with --on-rotate true"
            raise OutputError(f"files that wait for --on-rotate: {len(owed)} ({names}){todo}")

    def unlock(self) -> None:
        """Give all locks back."""
        self._journal.close()
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
