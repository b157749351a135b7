"""Where messages end that are given up or refused for good; they are safe there before their FIN.

A dead letter as an object is what ``tail --json`` writes, with a ``reason`` before it:
``pub --json`` publishes it again.
"""

from __future__ import annotations

import errno
import logging
import os
from abc import ABC, abstractmethod
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Protocol

from nsqtools.engine.handler import loss_of
from nsqtools.errors import NSQError, OutputError
from nsqtools.records.layout import Layout
from nsqtools.records.manifest import object_of
from nsqtools.records.writers import make_writer
from nsqtools.sinks.files.disk import append_lines, make_writable_directory
from nsqtools.sinks.threads import Threads, as_output_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config import DeadLetterOptions
    from nsqtools.engine.handler import Batch, Message

__all__ = ["DeadLetters", "Nowhere", "ToDirectory", "ToTopic", "make_dead_letters"]

log = logging.getLogger(__name__)

SUFFIX = ".dead.jsonl"
_WRITER = make_writer(Layout("json"))
_START = b'{"reason":'
"""Of the line of every dead letter."""
_LINK = "is a symbolic link, which is not followed: move it away"


class Publisher(Protocol):
    """Reaches the cluster that is consumed from, once there is a dead letter for it."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Return once nsqd has said OK; raises NSQError."""

    async def close(self) -> None:
        """Hang up."""


class DeadLetters(ABC):
    """Takes messages that will not be delivered again."""

    is_lossy = False
    """Whether they are lost, and the loss only logged."""

    async def open(self) -> None:
        """Find out what can be known before there is a dead letter; raises OutputError."""

    @abstractmethod
    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Return once these messages of the batch are safe; ``reason`` is one line.

        Raises OutputError. Some may be safe then, and will be there twice when they are written
        again. Settling them is the caller's.
        """

    async def close(self) -> None:
        """There will be no more."""


def make_dead_letters(options: DeadLetterOptions, publisher: Publisher) -> DeadLetters:
    """What the options choose; those for a topic go to the publisher."""
    if options.dead_letter_topic:
        return ToTopic(options.dead_letter_topic, publisher)
    if options.dead_letter_dir:
        return ToDirectory(options.dead_letter_dir)
    return Nowhere()


class Nowhere(DeadLetters):
    """Logs the loss."""

    is_lossy = True

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Log the ids, at ERROR."""
        log.error("topic %s: %s", batch.topic, loss_of(messages, reason))


class ToTopic(DeadLetters):
    """Publishes the bodies, as they are, to a topic."""

    def __init__(self, topic: str, publisher: Publisher) -> None:
        self._topic = topic
        self._publisher = publisher

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Publish the bodies; the reason is not told."""
        try:
            await self._publisher.publish(self._topic, [message.body for message in messages])
        except NSQError as error:
            raise OutputError(f"dead-letter topic {self._topic}: {error}") from error

    async def close(self) -> None:
        """Close the publisher."""
        await self._publisher.close()


class ToDirectory(DeadLetters):
    """Appends JSON lines to one file a topic, TOPIC.dead.jsonl; processes may share the directory.

    The disk is worked on in a thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._threads = Threads(1, "dead-letters")

    async def open(self) -> None:
        """Make the directory; raises OutputError if it cannot be written to."""
        await self._run(make_writable_directory, self._folder)

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Append the messages and sync the file; it is as it was after an error."""
        await self._run(self._append, batch, messages, reason)

    async def close(self) -> None:
        """Let the thread end."""
        self._threads.close()

    async def _run(self, work: Callable[..., None], *args: object) -> None:
        try:
            await self._threads.run(work, *args)
        except OSError as error:
            raise as_output_error(error) from error

    def _append(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        path = os.path.join(self._folder, batch.topic + SUFFIX)
        lines = [*_envelopes(batch, messages, reason), b""]  # makes the join end in a newline
        try:
            append_lines(path, b"\n".join(lines), is_torn=_is_torn, flags=os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(path):
                raise OSError(error.errno, _LINK, path) from None
            raise


def _envelopes(batch: Batch, messages: Sequence[Message], reason: str) -> list[bytes]:
    """One JSON object per message, without a newline, in which there is none either."""
    # Half of a surrogate pair, of a byte that was not UTF-8, becomes an escape that JSON has too.
    text = f"{encode_basestring(reason)},".encode(errors="backslashreplace")
    lines = b"".join(_WRITER.render(batch, messages)).split(b"\n")[:-1]
    return [_START + text + line.removeprefix(b"{") for line in lines]


def _is_torn(line: bytes) -> bool:
    """Whether a crash has left this of a dead letter; there may be zeros for what was written.

    Its message was never finished. What does not begin as ours do is somebody else's.
    """
    is_ours = line.startswith(_START) or _START.startswith(line.rstrip(b"\0"))
    return is_ours and not object_of(line)
