"""Dead letters: given-up and rejected messages are written here before they are finished.

In files a dead letter is an object as ``tail --json`` writes it, preceded by a ``reason``.
``redrive`` publishes it again.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from abc import ABC, abstractmethod
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqtools.checksum import is_torn
from nsqtools.engine.handler import loss_of
from nsqtools.errors import NSQError, OutputError, RecordError
from nsqtools.records.envelope import body_of, envelope_of
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.sinks.files.disk import append_lines, make_writable_directory, named_option
from nsqtools.sinks.threads import Threads, as_output_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config.consuming import DeadLetterOptions
    from nsqtools.engine.handler import Batch, Message

log = logging.getLogger(__name__)

SUFFIX = ".dead.jsonl"
MAX_SCAN = 16 << 20
"""Maximum number of bytes in which ``read_dead_letters`` looks for a text: a second's work."""
_WRITER = make_writer(Layout("json"))
_START = b'{"reason":'
"""The start of each dead letter's line."""
_LINK = "is a symbolic link, which is not followed: move it away"


class DeadLetter(NamedTuple):
    """A line of a file, with its CRC-32; ``error`` says why it has no usable body."""

    offset: int
    crc: int
    body: bytes = b""
    reason: str = ""
    topic: str = ""
    timestamp: int = 0
    attempts: int = 0
    error: str = ""


def dead_letter_files(folder: str) -> dict[str, os.stat_result]:
    """Return the files of dead letters in a directory by name; raises OSError."""
    with os.scandir(folder) as entries:
        found = [each for each in entries if each.name.endswith(SUFFIX)]
        files = [each for each in found if each.is_file(follow_symlinks=False)]
        return {each.name: each.stat(follow_symlinks=False) for each in files}


def read_dead_letters(
    path: str, start: int, count: int, max_size: int, text: str = ""
) -> tuple[list[DeadLetter], int]:
    """Return at most ``count`` dead letters from an offset on, and the offset after them.

    Those without ``text`` in the body or the reason, in any case, are left out. Several lines
    returned have ``max_size`` bytes at most, and about ``MAX_SCAN`` bytes are read. A line longer
    than these is an error, and the file cannot be read beyond it. Raises OSError.
    """
    found: list[DeadLetter] = []
    wanted, size = text.encode().lower(), 0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        file.seek(start)
        while len(found) < count and file.tell() - start < MAX_SCAN:
            offset = file.tell()
            line = file.readline(MAX_SCAN)
            if not line.endswith(b"\n"):  # the end, a line being written, or a line too long
                if len(line) == MAX_SCAN:
                    found.append(DeadLetter(offset, 0, error=f"a line over {MAX_SCAN} bytes"))
                return found, offset
            each = dead_letter(offset, line)
            if each.error or wanted in each.body.lower() + each.reason.lower().encode():
                size += len(line)
                if found and size > max_size:
                    return found, offset
                found.append(each)
        return found, file.tell()


def dead_letter(offset: int, line: bytes) -> DeadLetter:
    """Return the dead letter in a line at this offset of its file."""
    crc = zlib.crc32(line)
    try:
        envelope = envelope_of(line)
        body = body_of(envelope)
    except RecordError as error:
        return DeadLetter(offset, crc, error=str(error))
    numbers = [envelope.get(name) for name in ("timestamp", "attempts")]
    timestamp, attempts = (
        each if type(each) is int and 0 <= each < 1 << 63 else 0 for each in numbers
    )
    topic = envelope.get("topic")
    topic = topic if isinstance(topic, str) else ""
    reason = str(envelope.get("reason", "")).encode(errors="backslashreplace").decode()
    return DeadLetter(offset, crc, body, reason, topic, timestamp, attempts)


class Publisher(Protocol):
    """Publishes dead letters to the source's cluster; connects for the first one."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Return once nsqd has answered OK; raises NSQError."""

    async def close(self) -> None:
        """Close the connections."""


class DeadLetters(ABC):
    """Takes messages without further delivery."""

    is_lossy = False
    """Whether messages are lost, and only the loss is logged."""

    async def open(self) -> None:
        """Check in advance whether dead letters can be written; raises OutputError."""

    @abstractmethod
    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Write messages of a batch and return once they are safe; ``reason`` is one line.

        Raises OutputError. Some messages may be written nevertheless, and a retry then duplicates
        them. The caller settles the messages.
        """

    async def close(self) -> None:
        """Release the resources; no more dead letters follow."""


def make_dead_letters(options: DeadLetterOptions, publisher: Publisher) -> DeadLetters:
    """Return the destination chosen by the options; ``publisher`` serves a topic."""
    if options.dead_letter_topic:
        return ToTopic(options.dead_letter_topic, publisher)
    if options.dead_letter_dir:
        return ToDirectory(options.dead_letter_dir)
    return Nowhere()


class Nowhere(DeadLetters):
    """Discards messages and logs the loss."""

    is_lossy = True

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Log the ids at ERROR."""
        text = loss_of(messages, reason)
        log.error("topic %s: %s: --dead-letter-dir keeps such messages", batch.topic, text)


class ToTopic(DeadLetters):
    """Publishes the bodies unchanged to a topic."""

    def __init__(self, topic: str, publisher: Publisher) -> None:
        self._topic = topic
        self._publisher = publisher

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Publish the bodies, without the reason."""
        try:
            await self._publisher.publish(self._topic, [message.body for message in messages])
        except NSQError as error:
            raise OutputError(f"dead-letter topic {self._topic}: {error}") from error

    async def close(self) -> None:
        """Close the publisher."""
        await self._publisher.close()


class ToDirectory(DeadLetters):
    """Appends JSON lines to TOPIC.dead.jsonl; several processes may share the directory.

    Files are written in a thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._threads = Threads(1, "dead-letters")

    async def open(self) -> None:
        """Create the directory; raises ConfigError if it is not writable."""
        with named_option("--dead-letter-dir", self._folder):
            await self._threads.run(make_writable_directory, self._folder)

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Append the messages and sync the file. After an error the file is unchanged."""
        await self._run(self._append, batch, messages, reason)

    async def close(self) -> None:
        """Release the thread."""
        self._threads.close()

    async def _run(self, work: Callable[..., None], *args: object) -> None:
        try:
            await self._threads.run(work, *args)
        except OSError as error:
            raise as_output_error(error) from error

    def _append(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        path = os.path.join(self._folder, batch.topic + SUFFIX)
        # so that the joined lines end in a newline
        lines = [*_envelopes(batch, messages, reason), b""]
        try:
            append_lines(path, b"\n".join(lines), is_torn=is_torn_letter)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(path):
                raise OSError(error.errno, _LINK, path) from None
            raise


def _envelopes(batch: Batch, messages: Sequence[Message], reason: str) -> list[bytes]:
    """Return one line of JSON per message, without line ends."""
    # A byte outside UTF-8 has become half of a surrogate pair, escaped here as in JSON.
    text = f"{encode_basestring(reason)},".encode(errors="backslashreplace")
    lines = b"".join(_WRITER.render(batch, messages)).split(b"\n")[:-1]
    return [_START + text + line.removeprefix(b"{") for line in lines]


def is_torn_letter(line: bytes) -> bool:
    """Whether a line is the rest of a dead letter after a crash; it may contain zeros.

    The message of an incomplete line was never finished, so the line may be removed. A line with
    any other start does not come from nsqtools.
    """
    is_ours = line.startswith(_START) or _START.startswith(line.rstrip(b"\0"))
    return is_ours and is_torn(line)
