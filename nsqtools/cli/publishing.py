"""The work of ``nsqtools pub``: reads records and has them published, a window at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from typing import TYPE_CHECKING

from nsqtools.cli.exits import Exit
from nsqtools.cli.peers import addresses, with_secret
from nsqtools.cli.signals import Signals
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, PublishError, RecordError
from nsqtools.policy.pace import Pace
from nsqtools.sinks.formats import delimiter_bytes
from nsqtools.sinks.records import Splitter, drop_empty, make_splitter
from nsqtools.sinks.stdout import Output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsqtools.config import ProducerConfig, PubOptions, TargetOptions

log = logging.getLogger(__name__)

_STDIN = 0
_STDOUT = 1

# One read is one batch: what a slow producer wrote goes out at once, and a fast one fills reads.
_READ_SIZE = 256 << 10

# Batches on their way. More only queue in nsqd's socket.
_WINDOW = 8

_PROGRESS_INTERVAL = 0.25


class Publishing:
    """One run of ``pub``."""

    def __init__(self, target: TargetOptions, form: PubOptions, config: ProducerConfig) -> None:
        self._topic = target.topic
        self._nsqds = addresses(target.nsqd_tcp_address)
        self._form = form
        self._config = with_secret(config)
        self._pace = Pace(form.rate)
        self._defer = form.defer or None
        self._show_progress = sys.stderr.isatty() and log.isEnabledFor(logging.WARNING)
        self._published = 0
        self._refused = 0
        self._read = 0
        self._reason = ""
        self._under_way: set[asyncio.Task[None]] = set()
        self._cut_off = False
        self._tee = Output(_STDOUT, "standard output")
        self._reading: asyncio.Task[None] | None = None
        self._new_splitter()

    async def run(self, messages: Sequence[bytes]) -> int:
        """Publish the messages, or the input if there are none; an exit code.

        The first signal ends reading, and what was read is published; the second ends that too.
        """
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._work(messages))
        signals = Signals(
            lambda: (self._reading or work).cancel(),
            work.cancel,
            "what was on its way may be published or not",
        )
        try:
            await work
        except asyncio.CancelledError:
            if not signals.seen:
                raise
        except RecordError as error:
            raise RecordError(f"{error}; {self._published} published before it") from error
        log.info("%d messages published", self._published)
        if self._refused:
            log.error(
                "%d of %d messages were not published%s: %s",
                self._refused,
                self._refused + self._published,
                ", and the rest of the input was not read" if self._cut_off else "",
                self._reason,
            )
        if signals.seen:
            log.error("stopped before the end of the input, %d published", self._published)
            return signals.exit_code(Exit.FAILURE)
        if self._cut_off:
            return Exit.FAILURE
        return Exit.PARTIAL if self._refused else Exit.DONE

    async def _work(self, messages: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        if self._form.tee:
            await self._tee.open()
        async with Producer(self._nsqds, self._config) as self._producer:
            progress = self._show_progress and loop.create_task(self._report(loop.time()))
            self._reading = loop.create_task(
                self._send(messages) if messages else self._send_input(self._form.file or ("-",))
            )
            try:
                await asyncio.wait([self._reading])
                await self._settle(0)
            finally:
                for task in (self._reading, *self._under_way):
                    task.cancel()
                if progress:
                    progress.cancel()
                    sys.stderr.write("\r\x1b[K")
        self._reading.result()

    async def _send_input(self, files: Sequence[str]) -> None:
        for file in files:
            async for chunk in _read(file):
                if self._form.tee:
                    await self._tee.write(chunk)
                await self._send(self._splitter.feed(chunk))
                if self._cut_off:
                    return
            await self._send(self._splitter.finish())
            self._new_splitter()

    async def _send(self, records: Sequence[bytes]) -> None:
        """Publish records at the wanted rate, a window of batches at a time."""
        kept = drop_empty(records)
        empty = self._form.keep_empty and len(kept) < len(records)
        if empty:
            kept = records[: records.index(b"")]
        loop = asyncio.get_running_loop()
        start = 0
        while start < len(kept) and not self._cut_off:
            stop = start + self._pace.burst(len(kept) - start)
            if delay := self._pace.delay(stop - start, now=loop.time()):
                await asyncio.sleep(delay)
            await self._settle(_WINDOW - 1)
            self._under_way.add(loop.create_task(self._publish(kept[start:stop])))
            start = stop
        self._read += len(kept)
        if empty:
            raise RecordError(f"message {self._read + 1} is empty: nsqd takes no empty messages")

    async def _publish(self, bodies: Sequence[bytes]) -> None:
        refused = 0
        try:
            await self._producer.publish(self._topic, bodies, defer=self._defer)
        except PublishError as error:
            refused = len(error.refused)
            self._reason = self._reason or str(error)
            self._cut_off = self._cut_off or not error.permanent
        self._refused += refused
        self._published += len(bodies) - refused

    async def _settle(self, most: int) -> None:
        """Wait until at most so many batches are under way."""
        while len(self._under_way) > most:
            done, self._under_way = await asyncio.wait(
                self._under_way, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()

    def _new_splitter(self) -> None:
        form = self._form
        self._splitter: Splitter = make_splitter(
            json=form.json,
            length_prefix=form.length_prefix,
            whole=form.whole,
            delimiter=delimiter_bytes(form.delimiter, null=form.null),
            # What is over max_msg_size is refused alone; only what is far over ends the reading.
            max_size=max(self._config.max_msg_size, self._config.max_body_size),
        )

    async def _report(self, started: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL)
            rate = self._published / (loop.time() - started)
            sys.stderr.write(f"\r\x1b[K{self._published:,} published, {rate:,.0f}/s")
            sys.stderr.flush()


async def _read(file: str) -> AsyncIterator[bytes]:
    """Chunks of a file, or of standard input for ``-``, as they come; raises ConfigError."""
    try:
        fd = _STDIN if file == "-" else os.open(file, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"--file {file}: {error.strerror}") from error
    try:
        mode = os.fstat(fd).st_mode
        if file == "-" and os.isatty(fd):
            log.warning("reading messages from the terminal, one a line; Ctrl-D ends")
        if stat.S_ISDIR(mode):
            raise ConfigError(f"--file {file}: is a directory")
        if stat.S_ISREG(mode):
            while chunk := os.read(fd, _READ_SIZE):
                yield chunk
                await asyncio.sleep(0)
            return
        while True:
            await _readable(fd)
            if not (chunk := os.read(fd, _READ_SIZE)):
                return
            yield chunk
    finally:
        if fd != _STDIN:
            os.close(fd)


async def _readable(fd: int) -> None:
    """Wait until a read does not block, leaving the flags of a shared stdin alone."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def found() -> None:
        # At once: called again after the read, it would announce what is no longer there.
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
