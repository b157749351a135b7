"""The archive of one topic: assigns messages to files and completes the files.

All methods block and belong in a thread, one call at a time. They do not read the clock: ``now`` is
in monotonic seconds, ``wall`` in ns since the epoch.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from nsqtools.config.units import counted
from nsqtools.errors import OutputError
from nsqtools.policy.filenames import REV, FileNames
from nsqtools.policy.rotation import OpenFile
from nsqtools.records.forms import make_writer
from nsqtools.records.manifest import CompletedFile
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.journal import Entry
from nsqtools.sinks.files.workfile import CutError, MovedError, WorkFile, digest_of
from nsqtools.stores.pinned import make_directory, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.sinks.files.completion import Completion
    from nsqtools.sinks.files.workfile import GoodPart, Part

    Synced = Callable[[list[Part]], object]

log = logging.getLogger(__name__)

ArchiveEnding = Literal["", "reopen", "close"]
"""The action of a step on open files: rotate them by the rules, or complete all of them."""


class OwedError(OutputError):
    """Messages wait for the payment of a file's debt."""


class Arrival(NamedTuple):
    """A batch and the time of its arrival in ns since the epoch."""

    wall: int
    batch: Batch


class Archive:
    """The open files of one topic. Raises ConfigError for invalid names.

    ``synced`` is called with messages as soon as they may be finished. ``guard`` is called before a
    file is created, and raises OSError to prevent it.
    """

    def __init__(
        self,
        topic: str,
        completion: Completion,
        synced: Synced,
        *,
        now: float,
        guard: Callable[[], object] = bool,
    ) -> None:
        self._topic = topic
        self._completion = completion
        self._rules = rules = completion.rules
        self._journal = completion.journal
        self._synced = synced
        self._guard = guard
        self._names = FileNames(
            rules.pattern, topic=topic, hostname=rules.hostname, pid=rules.pid, zone=rules.zone
        )
        self._rotation = rules.rotation()
        self._writer = make_writer(rules.layout)
        self._files: dict[str, WorkFile] = {}
        self._finished: list[WorkFile] = []
        self._bare_since = now
        self._written = 0
        self._may_tear = rules.layout.format == "raw"
        """Whether to warn of the next body that contains the delimiter."""

    def step(
        self, arrivals: Sequence[Arrival], *, now: float, wall: int, ending: ArchiveEnding = ""
    ) -> bool:
        """Write batches, sync, and rotate files when due; return whether anything was written.

        After OSError, OutputError or ConfigError, unsynced messages have been removed
        from the files, and the caller must requeue them.
        """
        before = self._written
        try:
            self._complete_finished()
            for arrival in arrivals:
                for name, messages in self._named(arrival):
                    self._write(name, arrival, messages, now)
            self._sync()
            if not ending:
                self._rotate_due(now, wall)
            else:
                for name in list(self._files):
                    self._end(name, now)
                self._complete_finished()
        except BaseException:
            for file in self._files.values():
                file.cut_back()
            raise
        return self._written > before

    def release(self) -> None:
        """Close incomplete files; the next start recovers them."""
        for file in (*self._files.values(), *self._finished):
            file.close()
        self._files.clear()
        self._finished.clear()

    def next_due(self, *, now: float, wall: int) -> float:
        """Return the monotonic time of the next step if no message arrives; infinite for none."""
        rules = self._rules
        if self._finished:
            return now
        if not self._files:
            empty_after = rules.options.sync_interval
            return self._bare_since + empty_after if rules.makes_empty else math.inf
        files = self._files.values()
        renamed = None if rules.by_message else self._names.next_change(wall)
        look = partial(self._rotation.next_due, now=now, wall=wall, renamed=renamed)
        due = [at for file in files if (at := look(file.facts)) is not None]
        if rules.by_message:
            due += [file.used + rules.options.close_idle for file in files]
        return min(due, default=math.inf)

    def _named(self, arrival: Arrival) -> Iterator[tuple[str, Sequence[Message]]]:
        if self._rules.by_message:
            yield from self._names.by_name(arrival.batch).items()
        else:
            yield self._names.at(arrival.wall), arrival.batch

    def _write(self, name: str, arrival: Arrival, messages: Sequence[Message], now: float) -> None:
        """Add messages to the file of this name and, as files fill up, to the following ones."""
        batch = arrival.batch
        records = self._writer.render(batch, messages)
        if self._may_tear:
            self._look_for_delimiters(records, len(messages))
        while messages:
            file = self._file_for(name, arrival.wall, now)
            room = self._rotation.room(file.facts)
            if sum(map(len, records)) <= room:
                file.add(records, batch, messages, now)
                return
            chunk, taken = self._fill(batch, messages, room)
            file.add([chunk], batch, messages[:taken], now)
            messages, records = messages[taken:], [b"".join(records)[len(chunk) :]]

    def _fill(self, batch: Batch, messages: Sequence[Message], room: float) -> tuple[bytes, int]:
        """Return the fitting records, the last one possibly in part, and their number."""
        records: list[bytes] = []
        size = 0
        for message in messages:
            if size > room:
                break
            records.append(b"".join(self._writer.render(batch, [message])))
            size += len(records[-1])
        return b"".join(records), len(records)

    def _look_for_delimiters(self, records: Sequence[bytes], number: int) -> None:
        delimiter = self._rules.layout.delimiter
        # To look is many times as fast as to count, and a large body is a piece of its own.
        if sum([each.count(delimiter) for each in records if delimiter in each]) > number:
            self._may_tear = False
            log.warning(
                "topic %s: a body contains the delimiter, so that it is read back as several "
                "records: use --format json or length-prefixed",
                self._topic,
            )

    def _file_for(self, name: str, wall: int, now: float) -> WorkFile:
        """Return the open file of this name, after closing the files it replaces."""
        for known in [name] if self._rules.by_message else list(self._files):
            file = self._files.get(known)
            if file and self._rotation.decide(file.facts, name=name, now=now, wall=wall):
                self._finish(known, now)
        if name not in self._files:
            while len(self._files) >= self._rules.max_open_files:
                oldest = min(self._files, key=lambda each: self._files[each].used)
                self._finish(oldest, now)
            self._files[name] = self._open(name, wall, now)
        return self._files[name]

    def _sync(self) -> None:
        for file in list(self._files.values()):
            if file.is_dirty:
                self._sync_one(file)

    def _sync_one(self, file: WorkFile) -> None:
        """Sync one file, even after its name was moved or removed."""
        while True:
            try:
                if file.is_dirty:  # without its entry no start would find the records
                    self._journal.restore(file.entry)
                done = file.sync()
                self._written += len(done)
                if done:
                    self._synced(done)
                return
            except MovedError as error:
                self._guard()
                entry, fd = self._create(file.facts.name)
                path, old = entry.work_path(self._rules.output_dir), file.entry
                log.warning("%s: its records are moved to %s", error, entry.work)
                try:
                    file.move_to(fd, path, entry)
                except BaseException:
                    os.close(fd)
                    self._completion.discard(entry, path)
                    raise
                self._journal.remove(old)
            except CutError as error:
                log.error(
                    "%s: the data that was cut off is lost; the file is left unchanged", error
                )
                self._files = {n: each for n, each in self._files.items() if each is not file}
                self._finished = [each for each in self._finished if each is not file]
                file.close()
                raise

    def _rotate_due(self, now: float, wall: int) -> None:
        rules = self._rules
        for name, file in list(self._files.items()):
            current = name if rules.by_message else self._names.at(wall)
            idle = rules.by_message and now >= file.used + rules.options.close_idle
            if idle or self._rotation.decide(file.facts, name=current, now=now, wall=wall):
                self._finish(name, now)
                if rules.makes_empty:
                    self._files[current] = self._open(current, wall, now)
        is_bare = rules.makes_empty and not self._files
        if is_bare and now >= self._bare_since + rules.options.sync_interval:
            name = self._names.at(wall)
            self._files[name] = self._open(name, wall, now)

    def _open(self, name: str, wall: int, now: float) -> WorkFile:
        self._guard()
        rules = self._rules
        facts = OpenFile(name=name, opened=now, opened_wall=wall)
        if REV not in name and (continued := self._continue(name)):
            entry, found = continued
            fd = found.fd
            facts.size, facts.compressed = found.plain, found.good
            facts.records = found.records
        else:
            entry, fd = self._create(name)
        path = entry.work_path(rules.output_dir)
        try:
            digest = digest_of(fd) if rules.options.manifest else None
            return WorkFile(fd, path, facts, rules.encoder(), entry=entry, digest=digest)
        except BaseException:
            os.close(fd)
            raise

    def _create(self, name: str) -> tuple[Entry, int]:
        """Create a work file; return its journal entry and descriptor."""
        while True:
            revision = self._completion.revisions.take(name) if REV in name else 0
            entry = self._entry(name, revision)
            work = entry.work_path(self._rules.output_dir)
            if REV not in name:
                if os.path.lexists(work):
                    aside = disk.move_aside(work, self._rules.work_dir)
                    log.warning("%s belongs to another process, renamed to %s", work, aside)
                return entry, self._begin(entry, work)
            if os.path.lexists(entry.completed.path) or os.path.lexists(work):
                continue
            with contextlib.suppress(FileExistsError):
                return entry, self._begin(entry, work)

    def _continue(self, name: str) -> tuple[Entry, GoodPart] | None:
        """Continue a completed file, as nsq_to_file does: it becomes the work file again.

        A work file that a failed attempt or a crash has left is continued too. Returns None if
        there is neither. Raises OwedError while the completed file has debts: their payment may
        need the file as it is, or remove it.
        """
        entry, rules = self._entry(name, 0), self._rules
        target, work = entry.completed.path, entry.work_path(rules.output_dir)
        self._completion.resume(target)
        is_left, is_completed = os.path.lexists(work), os.path.lexists(target)
        if not (is_left or is_completed):
            return None
        if is_left and is_completed:
            raise FileExistsError(
                errno.EEXIST, "a file that a crash left is in the way: move it away", work
            )
        if is_completed and (debt := self._journal.debt(target)):
            raise OwedError(
                f"{target}: no message is added while it waits for {debt}: add <REV> to "
                "--filename-format to begin another file"
            )
        path = work if is_left else target
        root = rules.work_dir if is_left else rules.output_dir
        fd = disk.hold(path, root)
        if fd is None:
            raise OSError(errno.EAGAIN, "another process writes to it", path)
        try:
            found = self._completion.good_part(fd, path, rules.layout, root)
            fd = found.fd
            entry.key = self._journal.key_of(work)  # a second one would be wrong once this is done
            self._journal.write(entry)
            if is_completed:
                with (
                    pinned(target, rules.output_dir) as old,
                    pinned(work, rules.work_dir, make=True) as new,
                ):
                    old.rename(new)
                    # before the first byte: a file without .part is complete, also after a crash
                    new.sync()
                    if rules.own_work_dir:
                        old.sync()
        except BaseException:
            os.close(fd)
            raise
        return entry, found

    def _entry(self, name: str, revision: int) -> Entry:
        """Return a journal entry for a file not yet created."""
        rules = self._rules
        relative = self._names.path(name, revision)
        work_dir = rules.own_work_dir
        make_directory(work_dir)
        completed = CompletedFile(
            path=rules.target_path(relative),
            name=relative,
            topic=self._topic,
            records=0,
            size=0,
            sha256="",
            format=rules.layout.format,
            delimiter=rules.options.delimiter if rules.layout.format == "raw" else "",
            compression=rules.compression,
        )
        return Entry(
            completed=completed,
            base=name,
            revision=revision,
            host=rules.host if "<HOST>" in rules.pattern.filename_format else "",
            work_dir=work_dir,
            work_dir_inode=os.stat(work_dir).st_ino if work_dir else 0,
            work=relative,
        )

    def _begin(self, entry: Entry, work: str) -> int:
        self._journal.write(entry)
        try:
            return disk.create(work, self._rules.work_dir)
        except BaseException:
            self._journal.remove(entry)
            raise

    def _finish(self, name: str, now: float) -> None:
        """Sync and complete a file."""
        self._end(name, now)
        self._complete_finished()

    def _end(self, name: str, now: float) -> None:
        file = self._files[name]
        self._sync_one(file)
        del self._files[name]
        self._bare_since = now
        self._finished.append(file)

    def _complete_finished(self) -> None:
        while self._finished:
            file = self._finished[0]
            self._complete(file)
            del self._finished[0]
            file.close()
            if file.is_completed:
                self._completion.follow(file.entry)

    def _complete(self, file: WorkFile) -> None:
        facts, entry = file.facts, file.entry
        # The rest of completing failed the last time, or the naming did although it was done.
        file.is_completed = file.is_completed or entry.is_completed(self._rules.output_dir)
        if not file.is_completed:
            self._sync_one(file)  # its name may have been removed since
            entry = file.entry
            if self._rules.options.skip_empty_files and not facts.size:
                self._completion.discard(entry, file.path)
                return
            file.seal()
            first, last = file.first, file.last
            entry.completed = replace(
                entry.completed,
                records=facts.records,
                size=facts.compressed,
                sha256=file.digest.hexdigest() if file.digest else "",
                first_timestamp=first.timestamp if first else None,
                last_timestamp=last.timestamp if last else None,
                first_id=first.id.decode("latin-1") if first else None,
                last_id=last.id.decode("latin-1") if last else None,
            )
            self._completion.give_name(entry, file.path)
            file.is_completed = True
        self._completion.complete(entry, file.path)
        self._written += 1
        log.info("completed %s: %s", entry.completed.name, counted(facts.records, "record"))
