"""The files of disk queues: their numbers, and their messages in order.

nsqd may be running: it appends to the last file, removes files after reading them, and renames
unreadable files to ``.bad``. Links are not followed, since another user with write access
to a data path could lead the reader elsewhere. Functions raise OSError with the file's name.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import RecordError
from nsqtools.names import is_valid_name
from nsqtools.records.diskqueue.decoder import QueueDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.proto.messages import Message

_READ = 1 << 20
_META_SIZE = 200
_FILE = re.compile(
    r"(.+)\.diskqueue\.(?:meta|(\d{6}|[1-9]\d{6,17}))\.dat(?P<bad>\.bad)?", re.DOTALL
)
_META = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n?")

# Seconds for nsqd to complete a record: nsqd writes each record in one call.
_COMPLETION = 0.1


class FilePosition(NamedTuple):
    """A position in a queue: the number of a file, and an offset in bytes."""

    file: int
    offset: int


_BEGINNING = FilePosition(0, 0)


@dataclass(frozen=True, slots=True)
class QueueMeta:
    """The content of a meta file, which nsqd writes at least every two seconds if there is traffic.

    ``depth`` is the number of messages between the positions, which a crash may leave wrong.
    """

    depth: int = 0
    read: FilePosition = _BEGINNING
    write: FilePosition = _BEGINNING

    @classmethod
    def parse(cls, data: bytes) -> QueueMeta:
        """Raises RecordError."""
        match = _META.fullmatch(data)
        if not match:
            raise RecordError("not a meta file of a disk queue")
        depth, *places = map(int, match.groups())
        return cls(depth, FilePosition(*places[:2]), FilePosition(*places[2:]))

    def encode(self) -> bytes:
        """Return the text of the file."""
        return b"%d\n%d,%d\n%d,%d\n" % (self.depth, *self.read, *self.write)


@dataclass(slots=True)
class DiskQueue:
    """The queue of a topic or, if ``channel`` is not empty, of a channel."""

    folder: str
    topic: str
    channel: str = ""
    numbers: list[int] = field(default_factory=list)
    """The numbers of its files, in order, when they were listed."""
    bad: list[int] = field(default_factory=list)
    """The numbers of the files renamed to ``.bad`` by nsqd."""

    def path(self, part: int | str) -> str:
        """The path of the file with this number, or of ``meta``."""
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        part = f"{part:06}" if isinstance(part, int) else part
        return os.path.join(self.folder, f"{name}.diskqueue.{part}.dat")

    @property
    def source(self) -> str:
        """The folder; writers of messages use it in place of nsqd's address."""
        return self.folder.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def is_same(self, other: DiskQueue) -> bool:
        """Whether the other is the queue of the same topic and channel."""
        return (self.topic, self.channel) == (other.topic, other.channel)

    def meta(self) -> QueueMeta | None:
        """Read the meta file; None if there is none. Raises RecordError with the file's name."""
        path = self.path("meta")
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return None
        try:
            return QueueMeta.parse(os.read(fd, _META_SIZE))
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None
        finally:
            os.close(fd)


def open_regular(path: str) -> int:
    """Open a regular file for reading; raises OSError for a link and anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def disk_queues(folder: str) -> tuple[list[DiskQueue], list[str]]:
    """Return the queues in a data path, sorted, and why files of other queues are left out.

    The reasons begin with the name of the file.
    """
    found: dict[tuple[str, str], DiskQueue] = {}
    strange = []
    for entry in os.scandir(folder):
        match = _FILE.fullmatch(entry.name)
        if not match:
            continue
        topic, colon, channel = match[1].partition(":")
        if not all(is_valid_name(each) for each in (topic, *([channel] if colon else []))):
            strange.append(f"{entry.name}: not the name of a topic or channel")
        elif not entry.is_file(follow_symlinks=False):
            strange.append(f"{entry.name}: not a regular file")
        else:
            queue = found.setdefault((topic, channel), DiskQueue(folder, topic, channel))
            if match[2]:
                (queue.bad if match["bad"] else queue.numbers).append(int(match[2]))
    for queue in found.values():
        queue.numbers.sort()
        queue.bad.sort()
    return [found[key] for key in sorted(found)], sorted(strange)


class QueueReader:
    """Reads the messages of a queue, from the read position of ``meta`` or, without it, all
    of its files. With ``bad`` it first reads the files that nsqd has given up, from their start.

    Bodies have at most ``max_msg_size`` bytes; larger bodies count as damage.
    """

    def __init__(
        self, queue: DiskQueue, meta: QueueMeta | None, max_msg_size: int, *, bad: bool = False
    ) -> None:
        self._queue = queue
        self._from = meta.read if meta else _BEGINNING
        self._max_msg_size = max_msg_size
        self._bad = bad
        self.skipped: dict[str, int] = {}
        """How many bytes of each damaged file were skipped so far, by its path."""

    def batches(
        self, *, since: int | None = None, until: int | None = None, count: int = 0
    ) -> Iterator[list[Message]]:
        """Yield messages in the order of the files, up to the end of the last one as it is then.

        ``since`` and ``until`` limit their times, in ns since the epoch; ``until`` is excluded.
        ``count`` is the maximum number of messages, 0 for no limit. No batch is empty.
        """
        left = count
        for batch in self._batches():
            if since is not None:
                batch = [each for each in batch if each.timestamp >= since]
            if until is not None:
                batch = [each for each in batch if each.timestamp < until]
            if count:
                batch = batch[:left]
                left -= len(batch)
            if batch:
                yield batch
            if count and not left:
                return

    def _batches(self) -> Iterator[list[Message]]:
        for number in self._queue.bad if self._bad else ():
            yield from self._read(f"{self._queue.path(number)}.bad", 0)
        for number in self._numbers():
            offset = self._from.offset if number == self._from.file else 0
            yield from self._read(self._queue.path(number), offset)

    def _numbers(self) -> Iterator[int]:
        """The files to read, including files begun by nsqd meanwhile."""
        found, least = self._queue, self._from.file
        while numbers := [each for each in found.numbers if each >= least]:
            yield from numbers
            least = numbers[-1] + 1
            found = next(filter(self._queue.is_same, disk_queues(found.folder)[0]), found)

    def _read(self, path: str, offset: int) -> Iterator[list[Message]]:
        try:
            fd = open_regular(path)
        except FileNotFoundError:  # nsqd has read it to the end, and removed it
            return
        decoder = QueueDecoder(self._max_msg_size)
        try:
            while chunk := os.pread(fd, _READ, offset) or self._completion(fd, offset, decoder):
                offset += len(chunk)
                yield decoder.feed(chunk)
            yield decoder.finish()
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)
            if decoder.skipped:
                self.skipped[path] = decoder.skipped

    def _completion(self, fd: int, offset: int, decoder: QueueDecoder) -> bytes:
        """The bytes added by nsqd to a record still being written."""
        if not decoder.is_within_record():
            return b""
        time.sleep(_COMPLETION)
        return os.pread(fd, _READ, offset)
