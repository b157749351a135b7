"""Reads the dead letters of a file that are not published yet, lot by lot."""

from __future__ import annotations

import fcntl
import hashlib
import os
import zlib
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqtools.errors import RecordError
from nsqtools.names import is_valid_name
from nsqtools.records.compression import METHODS, method_of, plain_chunks, whole_members
from nsqtools.records.readers import Delimited, TooBigError, line_limit
from nsqtools.redrive.publishedlines import LineRange
from nsqtools.redrive.redriver import DEAD, LARGEST_LOT, LARGEST_LOT_BYTES
from nsqtools.sinks.deadletters import dead_letter, is_torn_letter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from nsqtools.redrive.redriver import Choice
    from nsqtools.sinks.deadletters import DeadLetter

_ENDINGS = (".jsonl", ".json", ".log")
_FORMS = tuple(end + method.suffix for end in _ENDINGS for method in METHODS.values())
_BLOCK = 1 << 16


def letter_files(folder: str) -> list[str]:
    """Return the names of the files to read in a directory, in order; raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(
            each.name
            for each in entries
            if each.name.endswith(_FORMS)
            and not each.name.startswith(".")
            and each.is_file(follow_symlinks=False)
        )


class LetterLot(NamedTuple):
    """Dead letters of one file to publish together to ``topic``."""

    topic: str
    bodies: list[bytes]
    reasons: list[str]
    lines: list[LineRange]

    def split(self, count: int) -> tuple[LetterLot, LetterLot]:
        """Return the first ``count`` messages, and the others."""
        _, bodies, reasons, lines = self
        return (
            LetterLot(self.topic, bodies[:count], reasons[:count], lines[:count]),
            LetterLot(self.topic, bodies[count:], reasons[count:], lines[count:]),
        )

    def without(self, positions: Sequence[int]) -> list[LineRange]:
        """Return the lines of all messages but these."""
        left_out = set(positions)
        return [line for n, line in enumerate(self.lines) if n not in left_out]


class LetterFile:
    """A file of dead letters, or an archive in JSON of a dead-letter topic.

    It is read to the end that it has now, and stays the same file if another gets its name. A last
    line without a line end is left for the next time. The topic of a message is ``topic`` or, if
    that is empty, the topic in its line. Used as a context manager; blocks, and raises OSError, or
    RecordError if the file is damaged.
    """

    def __init__(self, path: str, choice: Choice, *, topic: str, max_msg_size: int) -> None:
        self.name = os.path.basename(path)
        self._path = path
        self._choice = choice
        self._topic = topic
        self._max_line = line_limit(max_msg_size)
        self._compression = method_of(path)
        self.passed = 0
        """Number of messages not chosen."""
        self.unusable = 0
        """Number of lines without a message or a topic to publish."""
        self.fault = ""
        """What is wrong with the first of these."""
        self.damage = ""
        """Why not all of the file is read, empty if all is."""

    def __enter__(self) -> Self:
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self._file = open(fd, "rb")
        try:
            self._size = self._whole()
            first = next((line for _, line in self._lines()), b"")
        except BaseException:
            self._file.close()
            raise
        self.digest = hashlib.sha256(first).hexdigest()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def sync(self) -> None:
        """Make the lines durable that a killed writer left, before they count as published.

        If they were gone after a power failure, other lines would get their place.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def lots(self, published: Sequence[LineRange]) -> Iterator[LetterLot]:
        """Yield the chosen messages that are not published, up to LARGEST_LOT together.

        ``published`` is in order. The caller publishes a lot before it takes the next one.
        """
        lot: LetterLot | None = None
        size = 0
        for letter, line in self._letters(published):
            topic = self._topic_of(letter)
            if not topic:
                continue
            is_full = lot and (len(lot.bodies) >= LARGEST_LOT or size >= LARGEST_LOT_BYTES)
            if lot and (is_full or lot.topic != topic):
                yield lot
                lot = None
            if lot is None:
                lot, size = LetterLot(topic, [], [], []), 0
            lot.bodies.append(letter.body)
            lot.reasons.append(letter.reason)
            lot.lines.append(line)
            size += len(letter.body)
        if lot:
            yield lot

    def lines_at(self, offsets: Collection[int]) -> dict[int, LineRange]:
        """Return the lines that begin at these offsets, by offset."""
        return {
            start: LineRange(start, start + len(line), zlib.crc32(line))
            for start, line in self._lines()
            if start in offsets
        }

    def _topic_of(self, letter: DeadLetter) -> str:
        """Return where to publish a dead letter, or an empty text if it stays."""
        error = letter.error
        if not error and not letter.body:
            error = "the body is empty, and nsqd refuses empty messages"
        topic = self._topic or letter.topic
        if not self._topic and not letter.reason:  # an archive of a dead-letter topic
            topic = topic.removesuffix(DEAD)
            if not error and topic == letter.topic:
                error = "not a dead letter, as it has no reason: give --topic"
        if not error and not is_valid_name(topic):
            error = "no usable topic: give --topic"
        if error:
            self.unusable += 1
            self.fault = self.fault or f"{self.name}: byte {letter.offset}: {error}"
            return ""
        if not self._choice.has(letter.body, letter.reason):
            self.passed += 1
            return ""
        return topic

    def _letters(self, published: Sequence[LineRange]) -> Iterator[tuple[DeadLetter, LineRange]]:
        """Yield the dead letters outside the published lines, whose last ones are compared."""
        left = list(reversed(published))
        first, is_inside = 0, False
        if left and not left[-1].start and self._compression == "none":
            first = self._end_of(left.pop())
        for start, line in self._lines(first):
            end, crc = start + len(line), zlib.crc32(line)
            if left and left[-1].start <= start:
                begin, stop, last = left[-1]
                if (not is_inside and begin < start) or end > stop or (end == stop and crc != last):
                    raise self._changed(left[-1])
                is_inside = end < stop
                if not is_inside:
                    left.pop()
            elif line.strip():
                yield dead_letter(start, line), LineRange(start, end, crc)
        if left and not self.damage:
            raise self._changed(left[-1])

    def _end_of(self, published: LineRange) -> int:
        """Return the end of published lines after comparing the last one, the only one read."""
        size = _BLOCK
        while True:
            start = max(0, published.end - size)
            data = os.pread(self._file.fileno(), published.end - start, start)
            before = data.rfind(b"\n", 0, -1)
            if before >= 0 or not start:
                break
            size *= 4
        if zlib.crc32(data[before + 1 :]) != published.crc:
            raise self._changed(published)
        return published.end

    def _changed(self, published: LineRange) -> RecordError:
        return RecordError(
            f"{self.name}: changed before byte {published.end}, the end of published messages: "
            "unknown which ones are left; move the file to another directory to publish all of it"
        )

    def _lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield each complete line with its offset in the plain bytes.

        ``start`` is the offset of the first one, 0 for a compressed file.
        """
        reader = Delimited(max_size=self._max_line)
        left = self._size - start
        if left <= 0:
            return
        self._file.seek(start)
        try:
            for chunk in plain_chunks(self._file, self._compression):
                for line in reader.feed(chunk[:left]):
                    yield start, line + b"\n"
                    start += len(line) + 1
                left -= len(chunk)
                if left <= 0:
                    break
            last = reader.finish()
        except TooBigError:
            self._damaged(f"byte {start}: a line over {self._max_line} bytes: the rest is not read")
            return
        if last and not is_torn_letter(last[0]):
            self._damaged(f"byte {start}: the last line has no line end: add one if it is complete")

    def _whole(self) -> int:
        """Return the size of the plain bytes, and note the damage after them.

        A writer of dead letters holds a lock until its lines are synced, or removed after an error.
        """
        if self._compression == "none":
            fcntl.flock(self._file, fcntl.LOCK_SH)
            size = os.fstat(self._file.fileno()).st_size
            fcntl.flock(self._file, fcntl.LOCK_UN)
            return size
        size, damage = whole_members(self._file, self._compression)
        if damage:
            self._damaged(damage)
        return size

    def _damaged(self, damage: str) -> None:
        self.damage = self.damage or f"{self.name}: {damage}"
