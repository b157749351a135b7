"""What the tests of archives share: rules, batches, and an archive with a clock of the test's."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nsqtools.config.files import ArchiveOptions
from nsqtools.engine.handler import Batch, Message
from nsqtools.names import Address
from nsqtools.policy.filenames import NamePattern
from nsqtools.records.compression import METHODS, method_of, plain_chunks
from nsqtools.records.inspection import inspect
from nsqtools.records.layout import Layout
from nsqtools.records.manifest import CompletedFile
from nsqtools.sinks.files.aftercare import Aftercare
from nsqtools.sinks.files.completion import Completion
from nsqtools.sinks.files.journal import FOLDER, Entry, Journal
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.topicarchive import Archive, ArchiveEnding, Arrival
from nsqtools.sinks.files.workfile import Part

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
COMPRESSIONS = ["none", "gzip", "zstd"]
FORMATS = ["raw", "json", "length-prefixed"]
START = int(datetime(2026, 11, 20, 19, tzinfo=UTC).timestamp()) * SECOND


@dataclass
class Clocks:
    """The clocks of a host, which a test moves: in ns since the epoch, and since a boot."""

    wall: int = START
    uptime: int = 0
    boot: str = "first"

    def elapse(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)
        self.uptime += int(seconds * SECOND)

    def jump(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)


LOST = -1.0
"""The deadline of a batch that nsqd is certain to redeliver."""


class Settled:
    """What became of messages, by body and in order."""

    def __init__(self) -> None:
        self.finished: list[bytes] = []
        self.requeued: list[tuple[bytes, float | None, bool]] = []
        self.touched: list[bytes] = []
        self.forgotten: list[bytes] = []

    def is_lost(self, deadline: float) -> bool:
        return deadline == LOST

    def finish(self, messages: Sequence[Message]) -> None:
        self.finished += [message.body for message in messages]

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        self.requeued += [(message.body, delay, backoff) for message in messages]

    def touch(self, messages: Sequence[Message]) -> None:
        self.touched += [message.body for message in messages]

    def forget(self, messages: Sequence[Message]) -> None:
        self.forgotten += [message.body for message in messages]


def message(
    body: bytes,
    *,
    timestamp: int = START,
    number: int = 1,
    identity: bytes | None = None,
    attempts: int = 1,
) -> Message:
    """One with the number as its id, unless another is given."""
    return Message(b"%016x" % number if identity is None else identity, body, timestamp, attempts)


def batch(
    *bodies: bytes | Message,
    settled: Settled | None = None,
    topic: str = "events",
    is_lost: bool = False,
    **more: Any,
) -> Batch:
    """A batch; bodies are numbered from 1, and ``more`` is Batch's."""
    messages = [
        body if isinstance(body, Message) else message(body, number=number)
        for number, body in enumerate(bodies, 1)
    ]
    source = Address("127.0.0.1", 4150)
    made = Batch(
        messages, settled or Settled(), topic=topic, channel="archive", source=source, **more
    )
    if is_lost:
        made.deadline = LOST
    return made


def make_rules(
    folder: Path,
    *,
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log",
    datetime_format: str = "%Y-%m-%d_%H",
    **more: Any,
) -> Rules:
    """Rules for files in ``out`` below the folder, with revisions from 0 wherever REV stands.

    ``more`` is of Rules or ArchiveOptions.
    """
    own = {key: more.pop(key) for key in _OWN if key in more}
    out = str(folder / "out")
    usual: dict[str, Any] = {"output_dir": out, "work_dir": out, "skip_empty_files": True}
    options = ArchiveOptions(**usual | more)
    defaults: dict[str, Any] = {
        "options": options,
        "output_dir": options.output_dir,
        "work_dir": options.work_dir,
        "pattern": NamePattern(
            filename_format=filename_format,
            datetime_format=datetime_format,
            suffix=METHODS[options.compress].suffix,
            repeated_by="a test" if "<REV>" in filename_format else "",
        ),
        "layout": Layout.parse(options.format, options.delimiter),
        "hostname": "host.example.org",
        "pid": 1,
        "zone": UTC,
    }
    return Rules(**(defaults | own))


_OWN = ("pid", "hostname", "zone", "max_msg_size", "max_open_files")


@dataclass
class Notes:
    """A Aftercare that notes what it is told; ``record`` raises its error once."""

    recorded: list[CompletedFile] = field(default_factory=list)
    followed: list[CompletedFile] = field(default_factory=list)
    settled: list[CompletedFile] = field(default_factory=list)
    error: BaseException | None = None
    owes: tuple[str, ...] = ()

    def record(self, entry: Entry) -> None:
        if self.error:
            error, self.error = self.error, None
            raise error
        self.recorded.append(entry.completed)

    def follow(self, entry: Entry) -> None:
        self.followed.append(entry.completed)

    def pay(self, entry: Entry) -> None:
        self.settled.append(entry.completed)


def journal_of(rules: Rules) -> Journal:
    return Journal(rules.output_dir, rules.host, rules.own_work_dir)


def publication_of(rules: Rules, journal: Journal, aftercare: Notes | Aftercare) -> Completion:
    """One whose completed files somebody else cares for."""
    return Completion(rules, journal, aftercare)  # type: ignore[arg-type]


class Archiving:
    """An archive of one topic; ``more`` is that of ``make_rules``.

    ``safe`` has the bodies that may be finished, in the order in which they became safe.
    """

    def __init__(
        self,
        folder: Path,
        *,
        topic: str = "events",
        wall: int = START,
        rules: Rules | None = None,
        notes: Notes | None = None,
        **more: Any,
    ) -> None:
        self.now = 1000.0
        self.wall = wall
        self.rules = rules or make_rules(folder, **more)
        self.notes = notes or Notes()
        self.safe: list[bytes] = []
        self._topic = topic
        self.journal = journal_of(self.rules)
        completion = publication_of(self.rules, self.journal, self.notes)
        for base, revision in self.journal.revisions():
            completion.revisions.skip(base, revision)
        self.archive = Archive(topic, completion, self._synced, now=self.now)

    def step(self, *batches: Batch, ending: ArchiveEnding = "") -> None:
        """One step with these batches, that come now."""
        arrivals = [Arrival(self.wall, each) for each in batches]
        self.archive.step(arrivals, now=self.now, wall=self.wall, ending=ending)

    def _synced(self, parts: list[Part]) -> None:
        self.safe += [message.body for _, messages in parts for message in messages]

    def write(self, *bodies: bytes | Message) -> None:
        self.step(batch(*bodies, topic=self._topic))

    def close(self) -> None:
        self.step(ending="close")

    def elapse(self, seconds: float) -> None:
        self.now += seconds
        self.wall += int(seconds * SECOND)

    def next_due(self) -> float:
        """Seconds from now."""
        return self.archive.next_due(now=self.now, wall=self.wall) - self.now

    def crash(self) -> None:
        """Give the files and the lock back as the end of the process does."""
        self.archive.release()
        self.journal.close()

    def completed(self) -> dict[str, bytes]:
        """The plain bytes of the completed files, by path; all are whole."""
        root = Path(self.rules.output_dir)
        return {name: whole(root / name, self.rules) for name in self.names() if not _is_work(name)}

    def names(self) -> list[str]:
        """The paths of all files below the output directory."""
        return below(self.rules.output_dir)

    def work(self) -> list[str]:
        """The paths of what is under way."""
        return [name for name in below(self.rules.work_dir) if _is_work(name)]


def below(folder: str) -> list[str]:
    """The paths of all files but the journal's."""
    root = Path(folder)
    paths = (path.relative_to(root) for path in root.rglob("*") if not path.is_dir())
    return sorted(str(path) for path in paths if FOLDER not in path.parts)


def _is_work(name: str) -> bool:
    return name.endswith((".part", ".torn", ".copy"))


def plain(path: Path) -> bytes:
    with path.open("rb") as file:
        return b"".join(plain_chunks(file, method_of(path.name.removesuffix(".part"))))


def whole(path: Path, rules: Rules) -> bytes:
    """The plain bytes of a file of whole records and members."""
    with path.open("rb") as file:
        found = inspect(file, rules.layout, compression=rules.compression)
    assert found.problem == ""
    return plain(path)


def completed(path: object, **facts: Any) -> CompletedFile:
    """What is told of a completed file."""
    known: dict[str, Any] = {
        "name": os.path.basename(str(path)),
        "topic": "events",
        "records": 1,
        "size": 4,
        "sha256": "",
        "format": "raw",
        "delimiter": "\\n",
        "compression": "none",
    }
    return CompletedFile(path=str(path), **{**known, **facts})


def entry_of(rules: Rules, name: str) -> Entry:
    """What the journal knows of a file under way."""
    number = re.search(r"-(\d{6})", name)
    base = name.replace(number[0], "<REV>") if number else name
    told = completed(
        rules.target_path(name),
        name=name,
        records=0,
        size=0,
        format=rules.layout.format,
        delimiter=rules.options.delimiter if rules.layout.format == "raw" else "",
        compression=rules.compression,
    )
    return Entry(
        completed=told,
        base=base,
        revision=int(number[1]) if number else 0,
        host=rules.host,
        work_dir=rules.own_work_dir,
        work_dir_inode=os.stat(rules.work_dir).st_ino if os.path.exists(rules.work_dir) else 0,
        work=name,
    )


def leave(
    rules: Rules, data: bytes, name: str = "events.host-000000.2026-11-20_19.log", *, inode: int = 0
) -> Path:
    """A work file of a process that has ended."""
    journal = journal_of(rules)
    Path(rules.output_dir).mkdir(exist_ok=True)
    Path(rules.work_dir).mkdir(exist_ok=True, parents=True)
    entry = entry_of(rules, name)
    entry.inode, entry.completed = inode, replace(entry.completed, size=len(data) if inode else 0)
    journal.write(entry)
    journal.close()
    work = Path(entry.work_path(rules.output_dir))
    work.parent.mkdir(parents=True, exist_ok=True)
    work.write_bytes(data)
    return work


def recover(
    rules: Rules, notes: Notes | Aftercare | None = None, journal: Journal | None = None
) -> int:
    """As at the start of the next run, which ends at once; how many files it could not complete."""
    os.makedirs(rules.output_dir, exist_ok=True)
    journal = journal or journal_of(rules)
    entries = journal.adopt(lambda topic: topic == "events")
    completion = publication_of(rules, journal, notes or Notes())
    completion.salvage(entries)
    journal.close()
    return len(completion.left)


def give_away(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the link another user's."""
    if not os.getuid():
        os.lchown(link, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
