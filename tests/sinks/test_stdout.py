"""The stdout sink on every kind of descriptor, which makes many lines."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import select
import signal
import socket
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from nsqtools.engine.handler import Batch, Message
from nsqtools.errors import OutputClosedError, OutputError
from nsqtools.names import Address
from nsqtools.sinks.formats import make_format
from nsqtools.sinks.stdout import StreamSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

GUARD = 10.0
LARGE = 4 << 20


class Settled:
    """What became of the messages."""

    def __init__(self) -> None:
        self.finished: list[bytes] = []
        self.requeued: list[tuple[bytes, float | None, bool]] = []

    def finish(self, messages: Sequence[Message]) -> None:
        self.finished += [message.body for message in messages]

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        self.requeued += [(message.body, delay, backoff) for message in messages]

    def touch(self, messages: Sequence[Message]) -> None:
        raise AssertionError("not expected")

    def forget(self, messages: Sequence[Message]) -> None:
        raise AssertionError("not expected")


def messages(*bodies: bytes) -> list[Message]:
    return [Message(b"%016x" % n, body, 0, 1) for n, body in enumerate(bodies, 1)]


def batch(settled: Settled, *bodies: bytes) -> Batch:
    source = Address("127.0.0.1", 4150)
    return Batch(messages(*bodies), settled, topic="events", channel="tail", source=source)


@contextlib.asynccontextmanager
async def opened(fd: int) -> AsyncIterator[StreamSink]:
    sink = StreamSink(fd, make_format())
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


@contextlib.contextmanager
def device(path: str, flags: int = os.O_WRONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.reader, pipe.writer):
        if fd >= 0:
            os.close(fd)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal as (its user's side, the side a program has as stdout)."""
    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    yield master, slave
    os.close(slave)
    with contextlib.suppress(OSError):
        os.close(master)


async def turns(count: int = 50) -> None:
    """Let the event loop turn: it does only while nothing blocks it."""
    for _ in range(count):
        await asyncio.sleep(0)


async def drain(fd: int, size: int) -> bytes:
    """Read so much without blocking the event loop."""
    os.set_blocking(fd, False)
    data = bytearray()
    async with asyncio.timeout(GUARD):
        while len(data) < size:
            try:
                data += os.read(fd, 1 << 16)
            except BlockingIOError:
                await asyncio.sleep(0)
    return bytes(data)


async def failure(sink: StreamSink) -> OutputError:
    async with asyncio.timeout(GUARD):
        with pytest.raises(OutputError) as caught:
            await sink.failed
    return caught.value


class TestPipe:
    async def test_a_batch_is_written_and_then_finished(self, pipe: Pipe) -> None:
        settled = Settled()
        async with opened(pipe.writer) as sink:
            await sink.handle(batch(settled, b"one", b"two"))
            assert os.read(pipe.reader, 100) == b"one\ntwo\n"
            assert settled.finished == [b"one", b"two"]
            assert (sink.messages, sink.bytes) == (2, 8)
            assert not sink.failed.done()

    async def test_a_batch_is_in_the_pipe_before_it_is_finished(self, pipe: Pipe) -> None:
        seen: list[bytes] = []

        class Reading(Settled):
            def finish(self, messages: Sequence[Message]) -> None:
                seen.append(os.read(pipe.reader, 100))

        os.set_blocking(pipe.reader, False)
        async with opened(pipe.writer) as sink:
            await sink.handle(batch(Reading(), b"one"))
        assert seen == [b"one\n"]

    async def test_a_slow_reader_holds_back_the_finish_but_not_the_loop(self, pipe: Pipe) -> None:
        settled = Settled()
        body = b"x" * LARGE
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(settled, body, b"end")))
            await turns()
            assert not task.done()
            assert settled.finished == []
            assert await drain(pipe.reader, LARGE + 5) == body + b"\nend\n"
            await task
        assert settled.finished == [body, b"end"]
        assert settled.requeued == []

    async def test_batches_of_several_consumers_are_written_whole_one_after_the_other(
        self, pipe: Pipe
    ) -> None:
        settled = Settled()
        first, second = b"1" * LARGE, b"2" * LARGE
        async with opened(pipe.writer) as sink:
            tasks = [asyncio.create_task(sink.handle(batch(settled, b))) for b in (first, second)]
            assert await drain(pipe.reader, 2 * LARGE + 2) == first + b"\n" + second + b"\n"
            await asyncio.gather(*tasks)
        assert settled.finished == [first, second]

    async def test_it_holds_nothing_that_could_be_asked_for(self, pipe: Pipe) -> None:
        settled = Settled()
        async with opened(pipe.writer) as sink:
            given = batch(settled, b"one")
            await sink.handle(given)
            assert given.is_settled
            sink.flush()
            await sink.drain("events")
            await sink.handle(batch(settled, b"two"))
        assert settled.finished == [b"one", b"two"]

    async def test_a_reader_that_leaves_is_noticed_without_a_message(self, pipe: Pipe) -> None:
        async with opened(pipe.writer) as sink:
            await turns()
            assert not sink.failed.done()
            pipe.close_reader()
            error = await failure(sink)
        assert isinstance(error, OutputClosedError)
        assert str(error) == "standard output: the reader is gone"

    async def test_a_reader_that_leaves_in_a_batch_has_nothing_of_it_finished(
        self, pipe: Pipe
    ) -> None:
        settled = Settled()
        body = b"x" * LARGE
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(settled, b"first", body)))
            await turns()
            assert os.read(pipe.reader, 6) == b"first\n"
            pipe.close_reader()
            async with asyncio.timeout(GUARD):
                await task
            assert isinstance(await failure(sink), OutputClosedError)
            assert (sink.messages, sink.bytes) == (0, 0)
        assert settled.finished == []
        assert settled.requeued == [(b"first", 0, False), (body, 0, False)]

    async def test_after_a_failure_every_batch_goes_back_at_once(self, pipe: Pipe) -> None:
        settled = Settled()
        async with opened(pipe.writer) as sink:
            pipe.close_reader()
            await sink.handle(batch(settled, b"one"))
            await sink.handle(batch(settled, b"two"))
        assert settled.finished == []
        assert settled.requeued == [(b"one", 0, False), (b"two", 0, False)]

    async def test_a_reader_that_was_already_gone_is_noticed(self, pipe: Pipe) -> None:
        pipe.close_reader()
        async with opened(pipe.writer) as sink:
            assert isinstance(await failure(sink), OutputClosedError)

    async def test_a_named_pipe_that_nobody_reads_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "fifo"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY)
        os.close(reader)
        sink = StreamSink(writer, make_format())
        with pytest.raises(OutputClosedError, match="standard output: the reader is gone"):
            await sink.open()
        await sink.close()
        os.close(writer)

    async def test_a_cancelled_write_finishes_nothing_and_leaves_the_sink_closable(
        self, pipe: Pipe
    ) -> None:
        settled = Settled()
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(settled, b"x" * LARGE)))
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert settled.finished == []

    async def test_the_given_descriptor_stays_blocking_and_open(self, pipe: Pipe) -> None:
        async with opened(pipe.writer):
            assert os.get_blocking(pipe.writer)
        os.write(pipe.writer, b"after")
        assert os.read(pipe.reader, 10) == b"after"

    async def test_closing_lets_the_reader_see_the_end(self, pipe: Pipe) -> None:
        async with opened(pipe.writer) as sink:
            await sink.handle(batch(Settled(), b"one"))
        os.close(pipe.writer)
        pipe.writer = -1
        assert os.read(pipe.reader, 10) == b"one\n"
        assert os.read(pipe.reader, 10) == b""

    async def test_closing_twice_is_closing_once(self, pipe: Pipe) -> None:
        async with opened(pipe.writer) as sink:
            await sink.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux has settable pipe sizes")
    async def test_the_pipe_takes_a_large_batch_at_once(self, pipe: Pipe) -> None:
        settled = Settled()
        async with opened(pipe.writer) as sink:
            await sink.handle(batch(settled, b"x" * 500_000))
        assert len(settled.finished) == 1

    async def test_one_that_cannot_be_opened_again_stays_blocking(
        self, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsqtools.sinks.stdout._DESCRIPTORS", "/nowhere")
        settled = Settled()
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(settled, b"x" * LARGE)))
            await turns()
            assert not task.done()
            assert os.get_blocking(pipe.writer)
            await drain(pipe.reader, LARGE + 1)
            await task
        assert len(settled.finished) == 1


class TestTerminal:
    async def test_a_batch_is_shown_and_finished(self, terminal: tuple[int, int]) -> None:
        master, slave = terminal
        settled = Settled()
        async with opened(slave) as sink:
            await sink.handle(batch(settled, b"one", b"two"))
            assert await drain(master, 8) == b"one\ntwo\n"
        assert settled.finished == [b"one", b"two"]

    async def test_the_terminal_that_others_share_stays_blocking(
        self, terminal: tuple[int, int]
    ) -> None:
        _, slave = terminal
        shared = os.dup(slave)
        try:
            async with opened(slave) as sink:
                await sink.handle(batch(Settled(), b"one"))
                assert os.get_blocking(slave)
                assert os.get_blocking(shared)
        finally:
            os.close(shared)

    async def test_a_stopped_terminal_holds_back_the_finish_but_not_the_loop(
        self, terminal: tuple[int, int]
    ) -> None:
        master, slave = terminal
        settled = Settled()
        async with opened(slave) as sink:
            termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
            task = asyncio.create_task(sink.handle(batch(settled, b"one")))
            await turns()
            assert not task.done()
            assert settled.finished == []
            termios.tcflow(slave, termios.TCOON)  # Ctrl-Q
            assert await drain(master, 4) == b"one\n"
            async with asyncio.timeout(GUARD):
                await task
        assert settled.finished == [b"one"]

    async def test_typing_does_not_end_the_output(self, terminal: tuple[int, int]) -> None:
        master, slave = terminal
        async with opened(slave) as sink:
            os.write(master, b"hello\n")
            assert select.select([slave], [], [], GUARD)[0]
            await turns()
            assert not sink.failed.done()

    async def test_a_terminal_that_is_gone_is_an_error(self, terminal: tuple[int, int]) -> None:
        master, slave = terminal
        settled = Settled()
        async with opened(slave) as sink:
            os.close(master)
            await sink.handle(batch(settled, b"one"))
            assert "standard output: " in str(await failure(sink))
        assert settled.requeued == [(b"one", 0, False)]


class TestSocket:
    """A socket cannot be opened again, and its flags belong to all who share it."""

    @pytest.fixture
    def ends(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield ours, theirs

    async def test_a_slow_reader_does_not_block_and_the_flag_is_never_set(
        self, ends: tuple[socket.socket, socket.socket]
    ) -> None:
        ours, theirs = ends
        settled = Settled()
        async with opened(ours.fileno()) as sink:
            task = asyncio.create_task(sink.handle(batch(settled, b"x" * LARGE)))
            await turns()
            assert not task.done()
            assert os.get_blocking(ours.fileno())
            await drain(theirs.fileno(), LARGE + 1)
            await task
        assert os.get_blocking(ours.fileno())
        assert len(settled.finished) == 1

    async def test_others_fill_the_socket_meanwhile_and_neither_fails(
        self, ends: tuple[socket.socket, socket.socket]
    ) -> None:
        ours, theirs = ends
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)

        def received() -> bytearray:
            theirs.settimeout(GUARD)
            data = bytearray()
            while len(data) < 2 * LARGE + 1:
                data += theirs.recv(1 << 16)
            return data

        async with opened(ours.fileno()) as sink:
            shown, *_ = await asyncio.gather(
                asyncio.to_thread(received),
                asyncio.to_thread(ours.sendall, b"y" * LARGE),
                sink.handle(batch(Settled(), b"x" * LARGE)),
            )
        assert (shown.count(b"x"), shown.count(b"y")) == (LARGE, LARGE)

    async def test_a_flag_that_was_set_before_stays_set(
        self, ends: tuple[socket.socket, socket.socket]
    ) -> None:
        ours, _ = ends
        ours.setblocking(False)
        async with opened(ours.fileno()):
            pass
        assert not os.get_blocking(ours.fileno())

    async def test_a_peer_that_leaves_is_noticed_without_a_message(
        self, ends: tuple[socket.socket, socket.socket]
    ) -> None:
        ours, theirs = ends
        async with opened(ours.fileno()) as sink:
            theirs.close()
            assert isinstance(await failure(sink), OutputClosedError)

    async def test_a_peer_that_sends_something_or_ends_its_sending_still_reads(
        self, ends: tuple[socket.socket, socket.socket]
    ) -> None:
        ours, theirs = ends
        settled = Settled()
        async with opened(ours.fileno()) as sink:
            theirs.sendall(b"noise")
            theirs.shutdown(socket.SHUT_WR)
            await turns()
            assert not sink.failed.done()
            await sink.handle(batch(settled, b"one"))
            assert theirs.recv(10) == b"one\n"
        assert settled.finished == [b"one"]


class TestFile:
    async def test_batches_are_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.write_bytes(b"before\n")
        settled = Settled()
        with path.open("ab") as file:
            async with opened(file.fileno()) as sink:
                await sink.handle(batch(settled, b"one"))
                await sink.handle(batch(settled, b"two"))
        assert path.read_bytes() == b"before\none\ntwo\n"
        assert settled.finished == [b"one", b"two"]

    async def test_a_device_that_is_full_fails_the_sink(self) -> None:
        settled = Settled()
        with device("/dev/full") as fd:
            async with opened(fd) as sink:
                await sink.handle(batch(settled, b"one", b"two"))
                error = await failure(sink)
        assert not isinstance(error, OutputClosedError)
        assert str(error) == f"standard output: {os.strerror(errno.ENOSPC)}"
        assert settled.finished == []
        assert settled.requeued == [(b"one", 0, False), (b"two", 0, False)]

    async def test_of_a_batch_written_in_part_nothing_is_finished(self, tmp_path: Path) -> None:
        settled = Settled()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with (tmp_path / "out").open("wb") as file:
            async with opened(file.fileno()) as sink:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
                try:
                    await sink.handle(batch(settled, b"a" * 60, b"b" * 60))
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                    signal.signal(signal.SIGXFSZ, previous)
                assert os.strerror(errno.EFBIG) in str(await failure(sink))
        assert (tmp_path / "out").stat().st_size == 100
        assert settled.finished == []
        assert len(settled.requeued) == 2

    async def test_the_null_device_takes_everything(self) -> None:
        settled = Settled()
        with device(os.devnull) as fd:
            async with opened(fd) as sink:
                await sink.handle(batch(settled, b"x" * LARGE))
        assert len(settled.finished) == 1

    async def test_a_descriptor_that_is_read_only_is_refused_before_any_message(self) -> None:
        with device(os.devnull, os.O_RDONLY) as fd:
            sink = StreamSink(fd, make_format(), name="output")
            with pytest.raises(OutputError, match="output: not open for writing"):
                await sink.open()

    async def test_a_descriptor_that_is_closed_is_refused(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.close(writer)
        with pytest.raises(OutputError, match=os.strerror(errno.EBADF)):
            await StreamSink(writer, make_format()).open()


async def test_messages_given_up_are_logged_in_one_line_and_counted(
    caplog: pytest.LogCaptureFixture, pipe: Pipe
) -> None:
    sink = StreamSink(pipe.writer, make_format())
    await sink.gave_up(batch(Settled(), b"one", b"two"))
    assert sink.lost == 2
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.ERROR,
            "gave up 2 messages after too many attempts, they are lost: "
            "0000000000000001 0000000000000002",
        )
    ]
