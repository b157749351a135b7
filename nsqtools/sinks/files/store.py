"""Resources shared by the archives of all topics: locks, recovery and maintenance."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections import Counter
from contextlib import nullcontext
from datetime import UTC
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from nsqtools.config.units import enumerated
from nsqtools.errors import OutputError
from nsqtools.policy.filenames import SECOND, FileNames
from nsqtools.policy.matcher import NameMatcher
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.aftercare import Aftercare, find
from nsqtools.sinks.files.completion import Completion
from nsqtools.sinks.files.journal import Journal, entries
from nsqtools.sinks.files.locks import Lock
from nsqtools.sinks.files.topicarchive import Archive
from nsqtools.stores.mounted import is_locked

if TYPE_CHECKING:
    from collections.abc import Collection

    from nsqtools.names import TopicPattern
    from nsqtools.records.manifest import CompletedFile
    from nsqtools.sinks.files.rules import Rules
    from nsqtools.sinks.files.topicarchive import Synced

log = logging.getLogger(__name__)

_TIMES = (0, 1_234_567_890 * SECOND)
"""Two times to show whether two filename formats differ."""


class Archives:
    """The archives of the topics in an output directory. All methods but ``lock`` block.

    ``topics`` is passed to ``NameMatcher``, which raises ConfigError.
    """

    def __init__(self, rules: Rules, topics: Collection[str] | TopicPattern) -> None:
        self.rules = rules
        matcher = NameMatcher(rules.pattern, hostname=rules.hostname, topics=topics)
        self._wanted = matcher.accepts
        self._matcher = matcher
        self._journal = Journal(rules.output_dir, rules.host, rules.own_work_dir)
        self.aftercare = Aftercare(rules, self._journal, matcher)
        self._completion = Completion(rules, self._journal, self.aftercare)
        self._locks: dict[str, Lock] = {}
        if rules.options.lock:  # named by the user: one command with this lock runs at a time
            self._locks[""] = Lock(os.path.abspath(rules.options.lock), keep=True)

    def lock(self, topic: str) -> None:
        """Exclude other processes writing the same names.

        An empty topic takes the lock of ``--lock``. Raises LockedError, OSError or ConfigError.
        """
        if topic:
            self._locks.setdefault(topic, Lock(self._lock_path(topic)))
        lock = self._locks.get(topic)
        with nullcontext() if topic else disk.named_option("--lock", self.rules.options.lock):
            if lock and not lock.acquire():
                raise lock.refusal()

    def open(self) -> None:
        """Create the directories, recover files left by crashes, and apply retention.

        Raises OSError, or ConfigError if a directory is unusable or the file of ``--manifest`` is
        not a manifest.
        """
        rules = self.rules
        self.aftercare.check()
        for flag, directory in (("--output-dir", rules.output_dir), ("--work-dir", rules.work_dir)):
            with disk.named_option(flag, directory):
                disk.make_writable_directory(directory)
        for name, revision in self._journal.revisions():
            self._completion.revisions.skip(name, revision)
        self._completion.salvage(self._journal.adopt(self._wanted))
        self._name_orphans()
        self.aftercare.prune()

    def _name_orphans(self) -> None:
        """Warn of work files without an entry in the journal and without a writing process."""
        rules = self.rules
        known = {
            entry.work_path(rules.output_dir)
            for entry in entries(rules.output_dir, lambda *_: None)
        }
        for _, work, _ in find(rules.work_dir, self._matcher, suffix=disk.WORK):
            if work in known or is_locked(work):
                continue
            name = os.path.relpath(work.removesuffix(disk.WORK), rules.work_dir)
            log.warning(
                "%s: left by a crash, but unknown to the journal: check it with 'nsqtools verify "
                "%s', and complete it with 'mv -n %s %s'",
                *(work, quote(work), quote(work), quote(rules.target_path(name))),
            )

    def topic(self, topic: str, synced: Synced, *, now: float) -> Archive:
        """Return the archive of a topic; ``now`` is in monotonic seconds. Raises ConfigError."""
        guard = partial(self._guard, topic)
        return Archive(topic, self._completion, synced, now=now, guard=guard)

    def leave(self, topic: str) -> None:
        """Release the lock of a topic."""
        if lock := self._locks.pop(topic, None):
            lock.release()

    def close(self) -> None:
        """Wait for the last uploads and ``--on-rotate`` commands.

        Raises OutputError if a file left by a crash could not be completed or was damaged, or a
        completed file still waits. The next run continues with those left and those that wait.
        """
        self.aftercare.close()
        faults = []
        left = [*filter(self._journal.has, self._completion.left)]
        if left:
            faults.append(f"files of an earlier crash that could not be completed: {len(left)}")
        if broken := sorted(self._journal.damaged):
            faults.append(f"parts of the journal that cannot be read: {enumerated(broken)}")
        if damaged := self._completion.damaged:
            faults.append(f"damaged data was put aside in {enumerated(damaged)}: look at it")
        if not faults and (owed := self._journal.owed()):
            faults += map(self._waiting, owed, owed.values())
        if faults:
            raise OutputError("; ".join(faults))

    def _waiting(self, flag: str, files: list[CompletedFile]) -> str:
        names = enumerated([each.path for each in files])
        todo = "" if flag in self.aftercare.owes else f"; run again with {flag}"
        if todo and flag == "--on-rotate":
            todo += ", or with --on-rotate true to skip them"
        return f"files that wait for {flag}: {len(files)} ({names}){todo}"

    def waiting(self) -> Counter[str]:
        """Return the number of completed files with remaining steps, by topic."""
        owed = self._journal.owed().values()
        return Counter(completed.topic for files in owed for completed in files)

    def unlock(self) -> None:
        """Release all locks."""
        self._journal.close()
        for lock in self._locks.values():
            lock.release()

    def _guard(self, topic: str) -> None:
        """Take the lock again if its file or directory was removed; raises OSError."""
        lock = self._locks.get(topic)
        if lock and not lock.acquire():
            raise OSError(errno.EAGAIN, "another process has taken the lock", lock.path)

    def _lock_path(self, topic: str) -> str:
        """Return one path for all options with the same resulting file names."""
        rules = self.rules
        names = FileNames(
            rules.pattern, topic=topic, hostname=rules.hostname, pid=rules.pid, zone=UTC
        )
        same = "\0".join(map(names.at, _TIMES)).encode("utf-8", "surrogateescape")
        key = hashlib.sha256(same).hexdigest()[:8]
        return os.path.join(rules.output_dir, f".{topic}.{key}.lock")
