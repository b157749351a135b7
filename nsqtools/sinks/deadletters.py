"""Where messages end that are given up or refused for good; they are safe there before their FIN.

A dead letter as an object is what ``tail --json`` writes, with a ``reason`` before it:
``pub --json`` publishes it again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nsqtools.engine.handler import loss_of
from nsqtools.errors import NSQError, OutputError
from nsqtools.records.layout import Layout
from nsqtools.records.manifest import object_of
from nsqtools.records.writers import make_writer
from nsqtools.sinks.files.disk import append_lines, make_directory
from nsqtools.sinks.threads import Threads, as_output_error

if TYPE_CHECKING:
    from nsqtools.config import DeadLetterOptions
    from nsqtools.engine.handler import Batch, Message

__all__ = ["DeadLetters", "Nowhere", "ToDirectory", "ToTopic", "ToURL", "make_dead_letters"]

log = logging.getLogger(__name__)

Publish = Callable[[str, Sequence[bytes]], Awaitable[None]]
"""Topic and bodies, as ``Producer.publish``: returns once nsqd has said OK, raises NSQError."""
Post = Callable[[str, Mapping[str, str], bytes], Awaitable[int]]
"""URL, headers and body of a POST: returns the status, raises NSQError without an answer."""

SUFFIX = ".dead.jsonl"
_POSTS = 8
"""Requests at once, of one ``write``."""
_WRITER = make_writer(Layout("json"))
_START = b'{"reason":'
"""Of the line of every dead letter."""
_LINK = "is a symbolic link, which is not followed: move it away"


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


def make_dead_letters(
    options: DeadLetterOptions, *, publish: Publish | None = None, post: Post | None = None
) -> DeadLetters:
    """What the options choose; ``publish`` is needed for a topic, ``post`` for a URL.

    Raises ConfigError for a URL that nothing can be posted to.
    """
    if options.dead_letter_topic:
        assert publish
        return ToTopic(options.dead_letter_topic, publish)
    if options.dead_letter_dir:
        return ToDirectory(options.dead_letter_dir)
    if options.dead_letter_url:
        assert post
        from nsqtools.sinks.http.arguments import parse_url  # loads httpx

        url, access = parse_url("--dead-letter-url", options.dead_letter_url)
        return ToURL(str(url), post, {name.decode(): value.decode() for name, value in access})
    return Nowhere()


class Nowhere(DeadLetters):
    """Logs the loss."""

    is_lossy = True

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Log the ids, at ERROR."""
        log.error("topic %s: %s", batch.topic, loss_of(messages, reason))


class ToTopic(DeadLetters):
    """Publishes the bodies, as they are, to a topic; the owner of the publisher closes it."""

    def __init__(self, topic: str, publish: Publish) -> None:
        self._topic = topic
        self._publish = publish

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Publish the bodies; the reason is not told."""
        try:
            await self._publish(self._topic, [message.body for message in messages])
        except NSQError as error:
            raise OutputError(f"dead-letter topic {self._topic}: {error}") from error


class ToURL(DeadLetters):
    """POSTs each message as a JSON object of its own; any 2xx is success.

    ``headers`` go out with each.
    """

    def __init__(self, url: str, post: Post, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._name = _public(url)
        self._post = post
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    async def write(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Post the messages, a few at once."""
        todo = iter(_envelopes(batch, messages, reason))

        async def work() -> None:
            for envelope in todo:
                await self._post_one(envelope)

        workers = [work() for _ in messages[:_POSTS]]
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _post_one(self, envelope: bytes) -> None:
        try:
            status = await self._post(self._url, self._headers, envelope)
        except NSQError as error:
            raise OutputError(f"dead-letter URL {self._name}: {error}") from error
        if not 200 <= status < 300:
            raise OutputError(f"dead-letter URL {self._name}: answered {status}")


class ToDirectory(DeadLetters):
    """Appends JSON lines to one file a topic, TOPIC.dead.jsonl; processes may share the directory.

    The disk is worked on in a thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._threads = Threads(1, "dead-letters")

    async def open(self) -> None:
        """Make the directory; raises OutputError if it cannot be written to."""
        await self._run(self._prepare)

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

    def _prepare(self) -> None:
        make_directory(self._folder)
        if not os.path.isdir(self._folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._folder)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "cannot be written to", self._folder)

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


def _public(url: str) -> str:
    """The URL without what may be secret in it: user, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
