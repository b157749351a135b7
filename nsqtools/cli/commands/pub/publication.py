"""The work of ``nsqtools pub``: reads records and publishes them, in windows of batches."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import report_end
from nsqtools.cli.output import layout_of
from nsqtools.cli.remotes import targets, with_secret
from nsqtools.cli.service import Signals, progress
from nsqtools.config.units import counted, format_duration
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, PublishError, RecordError
from nsqtools.policy.pace import Pace, Replay, parse_speed
from nsqtools.records.compression import METHODS, method_of, plain_chunks, require, whole_members
from nsqtools.records.envelope import timestamp_of
from nsqtools.records.forms import make_reader
from nsqtools.records.readers import Reader, Whole
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from nsqtools.config.connection import ProducerConfig
    from nsqtools.config.publishing import PubOptions, TargetOptions

log = logging.getLogger(__name__)

_STDIN = 0

# One read is one batch: lines of a slow program are published at once; a fast program fills
# batches.
_READ_SIZE = 256 << 10

# Maximum batches without an answer. More would only wait in nsqd's socket.
_MAX_UNANSWERED = 8


class PubRun:
    """One run of ``pub``; raises ConfigError for contradictory options."""

    def __init__(self, target: TargetOptions, form: PubOptions, config: ProducerConfig) -> None:
        self._topic = target.topic
        self._target = target
        self._form = form
        self._config = with_secret(config)
        self._pace = Pace(form.rate)
        speed = parse_speed(form.pace)
        self._replay = Replay(speed) if speed else None
        self._timestamps: list[int] = []  # of the reader's records, with --pace
        self._defer = form.defer or None
        self._show_progress = True
        self._accepted = 0  # records read, or given as arguments
        self._published = 0
        self._published_bytes = 0
        self._refused = 0
        self._reason = ""
        self._torn = 0  # bytes of a record that a signal cut off
        self._under_way: set[asyncio.Task[None]] = set()
        self._cut_off = False
        self._stopping = False
        self._at_end = False
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[bytes | None] | None = None
        self._new_reader()

    async def run(self, messages: Sequence[bytes] = (), archives: Sequence[str] = ()) -> None:
        """Publish the messages of the command line, or the records of the archives or of the input.

        Raises Ended if messages were refused or not read. Before publishing anything, raises
        ConfigError for an unreadable file or, with --json, for a message not in JSON.
        After the first signal, only the records already read are published. A second signal ends
        the run at once.
        """
        files = () if messages else archives or self._form.file or ("-",)
        _check(files, archived=bool(archives))
        if "-" in files and os.isatty(_STDIN):  # the progress line would overwrite typed text
            self._show_progress = False
        if self._form.json:
            messages = self._bodies(messages)
        loop = asyncio.get_running_loop()
        started = loop.time()
        work = loop.create_task(self._work(messages, files))
        signals = Signals(
            lambda: self._stop(work),
            work.cancel,
            "messages that nsqd has not confirmed may or may not be published",
        )
        try:
            await work
        except asyncio.CancelledError:
            if not signals.seen:
                raise
        except RecordError as error:
            raise RecordError(f"{error}; {self._published} published before it") from error
        report_end(
            f"{counted(self._published, 'message')} published, "
            f"{counted(self._published_bytes, 'byte')}, "
            f"in {format_duration(round(loop.time() - started, 2))}"
        )
        if self._refused:
            log.error(
                "messages not published: %d of %d%s: %s",
                self._refused,
                self._refused + self._published,
                ", and the rest of the input was not read" if self._cut_off else "",
                self._reason,
            )
        left = self._left if self._sending else len(messages)
        code = int(Exit.PARTIAL if self._refused else Exit.DONE)
        if signals.seen:
            code = signals.exit_code(Exit.PARTIAL if left else code)
            self._tell_of_stop(left, logging.ERROR if code else logging.WARNING)
        elif self._cut_off or left or not self._at_end:
            code = Exit.FAILURE
        if code:
            raise Ended(code)

    def _tell_of_stop(self, left: int, level: int) -> None:
        torn = self._torn and f", {counted(self._torn, 'byte')} of an incomplete record dropped"
        log.log(
            level,
            "stopped by a signal: %d published, %d read and not published%s%s",
            self._published,
            left,
            torn or "",
            "" if self._at_end else ", and the rest of the input was not read",
        )

    @property
    def _left(self) -> int:
        """The number of messages read, but neither published nor refused."""
        return self._accepted - self._published - self._refused

    def _stop(self, work: asyncio.Task[None]) -> None:
        """Stop reading. End the work if it has no connection yet: then nothing was read."""
        if self._sending is None:
            work.cancel()
            return
        self._stopping = True
        if self._reading:
            self._reading.cancel()
        if self._left:
            log.warning(
                "publishing what was read: %s; a second signal ends at once",
                counted(self._left, "message"),
            )

    def _bodies(self, messages: Sequence[bytes]) -> list[bytes]:
        """The bodies of messages in JSON. Raises ConfigError for other messages."""
        try:
            return [*self._reader.feed(b"\n".join(messages)), *self._reader.finish()]
        except RecordError as error:
            raise ConfigError(f"messages of the command line, {error}") from error

    async def _work(self, messages: Sequence[bytes], files: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        nsqds = await targets(self._target, self._config)
        async with Producer(nsqds, self._config) as self._producer:
            self._at_end = not files
            self._sending = loop.create_task(
                self._send_input(files) if files else self._send(messages)
            )
            try:
                async with self._progress(loop.time()):
                    await asyncio.wait([self._sending])
                    await self._wait_for_answers(0)
            finally:
                await end((self._sending, *self._under_way))
        self._sending.result()

    async def _send_input(self, files: Sequence[str]) -> None:
        for file in files:
            try:
                await self._send_file(file)
            except RecordError as error:
                if file == "-":
                    raise
                raise RecordError(f"{file}: {error}") from error
            if self._cut_off or self._stopping:
                return
            self._new_reader()
        self._at_end = True

    async def _send_file(self, file: str) -> None:
        read = _read_archive if self._form.from_archive else _read
        size = 0
        async with aclosing(read(file)) as chunks:
            while (chunk := await self._next(chunks)) is not None:
                size += len(chunk)
                await self._send(self._reader.feed(chunk))
                if self._cut_off or self._stopping:
                    break
        if self._stopping:  # a partly read record is not published
            self._torn = size - self._reader.end
        elif not self._cut_off:
            await self._send(self._reader.finish())

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """The next chunk of the input; None at its end, or if a signal ends the wait.

        The signal ends only the wait, never a read: data from a pipe cannot be read again.
        """
        self._reading = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait([self._reading])
        finally:
            await end([self._reading])
        return None if self._reading.cancelled() else self._reading.result()

    async def _send(self, records: Sequence[bytes]) -> None:
        """Publish records at the pace of the options, in windows of batches."""
        timestamps, self._timestamps = self._timestamps, []
        if b"" in records:  # nsqd accepts no empty message (nsqd/protocol_v2.go)
            timestamps = [at for at, record in zip(timestamps, records, strict=False) if record]
            records = [record for record in records if record]
        self._accepted += len(records)
        loop = asyncio.get_running_loop()
        start = 0
        while start < len(records) and not self._cut_off:
            stop = len(records)
            if self._replay:
                await self._rest(self._replay.delay(timestamps[start], now=loop.time()))
                stop = min(stop, start + self._replay.burst(timestamps, start, now=loop.time()))
            stop = start + self._pace.burst(stop - start)
            await self._rest(self._pace.delay(stop - start, now=loop.time()))
            await self._wait_for_answers(_MAX_UNANSWERED - 1)
            self._under_way.add(loop.create_task(self._publish(records[start:stop])))
            start = stop

    async def _rest(self, seconds: float) -> None:
        """Sleep, or return early if nothing can be published any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and self._under_way and not self._cut_off:
            await self._one_done(within=left)
        if left > 0 and not self._cut_off:
            await asyncio.sleep(left)

    async def _publish(self, bodies: Sequence[bytes]) -> None:
        refused: Sequence[int] = ()
        try:
            await self._producer.publish(self._topic, bodies, defer=self._defer)
        except PublishError as error:
            refused = error.refused
            self._reason = self._reason or str(error)
            self._cut_off = self._cut_off or not error.permanent
        self._refused += len(refused)
        self._published += len(bodies) - len(refused)
        self._published_bytes += sum(map(len, bodies)) - sum(len(bodies[n]) for n in refused)

    async def _wait_for_answers(self, limit: int) -> None:
        """Wait until at most this many batches are under way."""
        while len(self._under_way) > limit:
            await self._one_done()

    async def _one_done(self, within: float | None = None) -> None:
        done, self._under_way = await asyncio.wait(
            self._under_way, timeout=within, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    def _new_reader(self) -> None:
        form = self._form
        # A record over max_msg_size is only refused; over max_body_size, too, it ends the reading.
        max_size = max(self._config.max_msg_size, self._config.max_body_size)
        self._reader: Reader = Whole(max_size=max_size)
        if not form.whole:
            self._reader = make_reader(
                layout_of(form),
                max_size=max_size,
                complete=form.from_archive,
                observe=self._note_timestamp if self._replay else None,
            )

    def _note_timestamp(self, envelope: dict[str, Any]) -> None:
        self._timestamps.append(timestamp_of(envelope))

    def _progress(self, started: float) -> AbstractAsyncContextManager[None]:
        def line() -> str:
            elapsed = asyncio.get_running_loop().time() - started
            rate = self._published / elapsed if elapsed else 0.0
            return f"{self._published:,} published, {rate:,.0f}/s"

        return progress(line, enabled=self._show_progress)


def _check(files: Sequence[str], *, archived: bool) -> None:
    """Raise ConfigError if a file cannot be read or decompressed."""
    for file in files:
        name = f"{'--from-archive' if archived else '--file'} {file}"
        try:
            if file == "-" and not archived:
                if fcntl.fcntl(_STDIN, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                    raise ConfigError("standard input: closed, or not open for reading")
                continue
            status = os.stat(file)
            if not stat.S_ISFIFO(status.st_mode):  # the writer to a pipe would notice
                os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{name}: is a directory")
        if not archived:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{name}: is not a regular file, so it cannot be read twice")
        compression = method_of(file)
        if compression != "none" and not status.st_size:
            raise ConfigError(f"{name}: empty: not even one {METHODS[compression].noun}")
        require(compression)


async def _read(file: str) -> AsyncGenerator[bytes]:
    """Chunks of a file, or of standard input for ``-``, as they arrive. Raises RecordError."""
    fd = _STDIN
    try:
        if file != "-":
            fd = os.open(file, os.O_RDONLY)
        elif os.isatty(fd):
            log.warning("reading messages from the terminal, one per line; Ctrl-D ends")
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        while True:
            await (asyncio.sleep(0) if is_file else _readable(fd))
            if not (chunk := os.read(fd, _READ_SIZE)):
                return
            yield chunk
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"standard input: {reason}" if file == "-" else reason) from error
    finally:
        if fd != _STDIN:
            os.close(fd)


async def _readable(fd: int) -> None:
    """Wait until a read does not block, without changing the flags of a shared stdin."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def found() -> None:
        # Remove it at once: a second call, after the read, would report data already taken.
        loop.remove_reader(fd)
        ready.set_result(None)

    try:
        loop.add_reader(fd, found)
    except PermissionError:  # /dev/null and its like never block
        return
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def _read_archive(file: str) -> AsyncGenerator[bytes]:
    """The plain bytes of a file. Raises RecordError at a damaged member.

    Compressed files are read twice, because a checksum follows its data, and the data of a damaged
    member must not be published.
    """
    compression = method_of(file)
    left, damage = sys.maxsize, ""
    try:
        with open(file, "rb") as source:  # noqa: ASYNC230
            if compression != "none":
                # If this is cancelled, closing the file ends the thread.
                left, damage = await asyncio.to_thread(whole_members, source, compression)
                source.seek(0)
            for chunk in plain_chunks(source, compression) if left else ():
                piece = chunk[:left]
                for start in range(0, len(piece), _READ_SIZE):
                    yield piece[start : start + _READ_SIZE]
                    await asyncio.sleep(0)
                left -= len(piece)
                if not left:
                    break
    except OSError as error:
        raise RecordError(error.strerror or str(error)) from error
    if damage:
        yield b""  # so the reader can report an earlier fault first
        raise RecordError(damage)
