"""Work on completed files: the manifest, uploads, ``--on-rotate`` and retention."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.checksum import is_torn, unsealed
from nsqtools.config.units import counted
from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import INCOMPLETE
from nsqtools.policy.retention import Retention
from nsqtools.records.manifest import is_manifest
from nsqtools.sinks.files.ages import Ages
from nsqtools.sinks.files.disk import append_lines
from nsqtools.sinks.files.hooks import Hook
from nsqtools.sinks.files.journal import DEBTS, DELETE, MANIFEST, in_journal
from nsqtools.sinks.files.uploads import Uploads
from nsqtools.stores.pinned import open_below, pinned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.policy.matcher import NameMatcher
    from nsqtools.policy.retention import Kept
    from nsqtools.records.manifest import CompletedFile
    from nsqtools.sinks.files.hooks import FileQueue
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Rules

log = logging.getLogger(__name__)

_BLOCK = 1 << 16
_START = b'{"name": '
"""The start of each line of a manifest."""
_RECENT = 1 << 20
"""Bytes at the end of a manifest to search in ``has``: about 2000 lines."""


class Aftercare:
    """The steps demanded by options for completed files, in this order; thread-safe.

    The manifest is written, then the file is uploaded, ``--on-rotate`` is run, and the file is
    deleted if it was uploaded. Retention deletes no file with remaining steps. ``matcher``
    recognises the names of archives. The completed files are listed once, when retention is first
    applied.
    """

    def __init__(self, rules: Rules, journal: Journal, matcher: NameMatcher) -> None:
        options = rules.options
        self._root = rules.output_dir
        self._journal = journal
        self._matcher = matcher
        self._manifest: Manifest | None = None
        if options.manifest:
            self._manifest = Manifest(rules.target_path(options.manifest), rules.output_dir)
        self._retention = Retention(
            keep=options.keep, max_age=options.max_age, max_total=options.max_total
        )
        queues: list[FileQueue] = []
        if options.upload:
            queues.append(Uploads(options.upload, rules.output_dir))
        if options.on_rotate:
            queues.append(Hook(options.on_rotate, timeout=options.on_rotate_timeout))
        self._queues = {each.flag: each for each in queues}
        flags = {*self._queues}
        if options.manifest:
            flags.add(MANIFEST)
        if options.delete_uploaded:
            flags.add(DELETE)
        self.owes = tuple(flag for flag in DEBTS if flag in flags)
        """The debts of a file at its completion."""
        self._ages = Ages(rules.output_dir, options.max_age)
        self._files: dict[str, dict[str, Kept]] | None = None
        self._listing = threading.Lock()
        self._warned = False
        """Whether the reason why nothing is deleted was logged."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._counting = threading.Lock()

    def check(self) -> None:
        """Check the manifest before anything is written; raises ConfigError or OSError."""
        if self._manifest:
            self._manifest.check()

    def record(self, entry: Entry) -> None:
        """Add the line of a file to the manifest if owed and still missing.

        Raises OSError; the caller tries again, even after a crash.
        """
        if self._manifest and entry.owes[:1] == (MANIFEST,):
            completed = entry.completed
            if not self._manifest.has(completed.path, sha256=completed.sha256):
                self._manifest.append(completed)
            self._journal.paid(entry)

    def pay(self, entry: Entry) -> None:
        """Pay a file's debts after ``record``, as far as this run has the options for them.

        Raises nothing.
        """
        if entry.owes[:1] == (DELETE,):
            if DELETE in self.owes and not self._delete_uploaded(entry.completed):
                return  # the next start tries again
            self._journal.paid(entry)
        elif entry.owes and (queues := self._queues.get(entry.owes[0])):
            queues.submit(entry.completed, partial(self._paid, entry))

    def _paid(self, entry: Entry) -> None:
        self._journal.paid(entry)
        self.pay(entry)

    def _delete_uploaded(self, completed: CompletedFile) -> bool:
        if self._files is not None:
            self._files.get(completed.topic, {}).pop(completed.path, None)
        # Its entry goes next: with it, a file that comes back after a power failure is forgotten.
        return self._unlink(completed.path, durably=True)

    def follow(self, entry: Entry) -> None:
        """Count a completed file, begin to pay its debts, and apply retention. Raises nothing."""
        completed = entry.completed
        self._count(completed)
        if self._retention.unlimited:
            self.pay(entry)
            return
        files = self._listed(but=completed.path).setdefault(completed.topic, {})
        with self._listing:
            self._ages.note(completed.path)
            files[completed.path] = self._ages.kept(completed.path, completed.size)
        self.pay(entry)
        self._delete(files)

    def prune(self) -> None:
        """Delete files over the limits of retention; blocks."""
        if not self._retention.unlimited:
            files = list(self._listed().values())
            with self._listing:
                self._ages.tick()
            for each in files:
                self._delete(each)

    def close(self) -> None:
        """Wait for the last uploads and commands, then delete the files that waited for them and
        exceed the limits.
        """
        for queues in self._queues.values():
            queues.close()
        if self._queues:
            self.prune()

    def counts(self) -> Counter[tuple[str, str]]:
        """Return ``files``, ``records`` and ``bytes`` completed so far, by topic.

        A continued file counts in full each time. Does not block.
        """
        with self._counting:
            return self._counts.copy()

    def _count(self, completed: CompletedFile) -> None:
        topic = completed.topic
        with self._counting:
            self._counts["files", topic] += 1
            self._counts["records", topic] += completed.records
            self._counts["bytes", topic] += completed.size

    def _listed(self, but: str = "") -> dict[str, dict[str, Kept]]:
        """Return the completed files by topic and path; the first call leaves out one of them."""
        with self._listing:
            if self._files is None:
                self._ages.read()
                found = [each for each in find(self._root, self._matcher) if each[1] != but]
                self._meet([each[1:] for each in found])
                self._files = {}
                for topic, path, status in found:
                    kept = self._ages.kept(path, status.st_size)
                    self._files.setdefault(topic, {})[path] = kept
            return self._files

    def _meet(self, files: Sequence[tuple[str, os.stat_result]]) -> None:
        """Note files whose completion no run with retention has seen: they are new from now on.

        Their order is a guess, but nothing else tells.
        """
        unknown = [each for each in files if not self._ages.knows(each[0])]
        unknown.sort(key=lambda each: (each[1].st_mtime_ns, each[0]))
        if unknown and self._retention.max_age:
            log.warning(
                "%s: the age of %s is unknown: --max-age counts from now",
                *(self._root, counted(len(unknown), "file")),
            )
        self._ages.note(*(path for path, _ in unknown))

    def _delete(self, files: dict[str, Kept]) -> None:
        surplus = self._retention.surplus(list(files.values()), self._ages.now())
        if not surplus:
            return
        try:
            busy = in_journal(self._root)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s: %s: no file is deleted while this part of the journal cannot be read, "
                    "because a file named there may be waiting for --upload or --on-rotate",
                    *(error.filename, error.strerror),
                )
            return
        self._warned = False
        for kept in surplus:
            # One under way has been completed before, and is continued: what is here next is new.
            if kept.path not in busy and self._unlink(kept.path):
                files.pop(kept.path, None)  # another thread may have removed it

    def _unlink(self, path: str, *, durably: bool = False) -> bool:
        """Delete a file; return whether it is gone. A failure is logged."""
        try:
            with pinned(path, self._root) as file:
                if file.unlink():
                    log.info("deleted %s", path)
                if durably:
                    file.sync()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("cannot delete %s: %s", path, error.strerror)
            return False
        return True


class Manifest:
    """A file with a line of JSON for each completed file; several processes may share it.

    ``root`` is as in ``pinned``.
    """

    def __init__(self, path: str, root: str = "") -> None:
        self._path = os.path.abspath(path)
        self._root = root

    def check(self) -> None:
        """Raise ConfigError if the file is not a manifest, and OSError if it cannot be read."""
        try:
            with open_below(self._path, self._root) as file:
                first = file.readline(_BLOCK)
                file.seek(0)
                is_ours = _is_begun(first) or is_manifest(file)
        except FileNotFoundError:
            return
        if not is_ours:
            raise ConfigError(
                f"--manifest {self._path}: the file exists, but is not a manifest; name another "
                "file"
            )

    def append(self, completed: CompletedFile) -> None:
        """Add a line and sync the file. An incomplete last line after a crash is removed first.

        A complete last line without a line end, as editors may leave it, gets one. In the line,
        ``name`` is relative to the directory of the manifest, and ``completed`` is the current
        time. Raises OSError with the file's name; the manifest is then unchanged.
        """
        line = completed.line(self._name(completed.path))
        append_lines(self._path, line, follow=True, root=self._root)

    def has(self, path: str, *, sha256: str) -> bool:
        """Whether the last MiB of the manifest lists this file with this checksum.

        The last line with the file's name counts, as names are reused, with other content or the
        same. Raises OSError if the manifest exists but cannot be read.
        """
        name = self._name(path)
        try:
            with open_below(self._path, self._root) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _RECENT))
                recent = file.read()
        except FileNotFoundError:
            return False
        wanted = json.dumps(name).encode()
        if wanted not in recent:
            return False
        for line in reversed(recent.split(b"\n")):
            if wanted in line:
                with contextlib.suppress(ValueError):  # damaged, so the file gets another line
                    found = unsealed(line)
                    if found.get("name") == name:
                        return bool(found.get("sha256") == sha256)
        return False

    def _name(self, path: str) -> str:
        return _relative(path, os.path.dirname(self._path))


def _relative(path: str, folder: str) -> str:
    """Return the path relative to the folder, correct even if directories are symbolic links."""
    path = os.path.abspath(path)
    plain = os.path.relpath(path, folder)
    if plain.partition(os.sep)[0] != os.pardir:
        return plain
    parent, name = os.path.split(path)
    return os.path.join(os.path.relpath(os.path.realpath(parent), os.path.realpath(folder)), name)


def _is_begun(line: bytes) -> bool:
    """Whether the first line is empty, or incomplete after a crash, perhaps with zeros."""
    if line.endswith(b"\n") or len(line) >= _BLOCK or not is_torn(line):
        return False
    return line.startswith(_START) or _START.startswith(line.rstrip(b"\0"))


def find(
    root: str, matcher: NameMatcher, *, suffix: str = ""
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield topic, path and status of regular files below root whose names match.

    With ``suffix``, only files are found that have it after such a name.

    Symbolic links are ignored, and directories without possible archives are skipped.
    Unreadable directories are logged, unless they have been removed.
    """

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s: cannot search for archives: %s", error.filename, error.strerror)

    for folder, folders, names in os.walk(root, onerror=unreadable):
        prefix = "" if folder == root else f"{os.path.relpath(folder, root)}/"
        folders[:] = [name for name in folders if matcher.descend(prefix + name)]
        for name in names:
            plain = name.removesuffix(suffix)
            if (suffix and plain == name) or plain.endswith(INCOMPLETE):
                continue
            topic = matcher.match(prefix + plain)
            if topic is None:
                continue
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError as error:
                unreadable(error)
                continue
            if stat.S_ISREG(status.st_mode):
                yield topic, path, status
