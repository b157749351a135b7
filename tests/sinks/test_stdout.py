"""The stdout sink on every kind of descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import termios
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputClosedError, OutputError
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.sinks.stdout import StreamSink
from tests.support.archiving import Settled, batch
from tests.support.clock import turns
from tests.support.faults import file_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

GUARD = 60.0
LARGE = b"x" * (4 << 20)


@pytest.fixture
def settled() -> Iterator[Settled]:
    """What became of the messages; none of them is ever held."""
    settled = Settled()
    yield settled
    assert settled.touched == settled.forgotten == []


@contextlib.asynccontextmanager
async def opened(fd: int) -> AsyncIterator[StreamSink]:
    sink = StreamSink(fd, make_writer(Layout()))
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


Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A socket cannot be opened again, and its flags belong to all who share it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


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
    async def test_a_batch_is_in_the_pipe_before_it_is_finished(self, pipe: Pipe) -> None:
        seen: list[bytes] = []

        class Reading(Settled):
            def finish(self, messages: object) -> None:
                seen.append(os.read(pipe.reader, 100))

        os.set_blocking(pipe.reader, False)
        async with opened(pipe.writer) as sink:
            given = batch(b"one", b"two", settled=Reading())
            await sink.handle(given)
            assert seen == [b"one\ntwo\n"]
            assert given.is_settled
            assert (sink.messages, sink.bytes) == (2, 8)
            sink.flush()
            await sink.drain("events")
            assert not sink.failed.done()
            assert os.get_blocking(pipe.writer)
            await sink.close()
        os.write(pipe.writer, b"after")
        assert os.read(pipe.reader, 10) == b"after"
        os.close(pipe.writer)
        pipe.writer = -1
        assert os.read(pipe.reader, 10) == b""

    @pytest.mark.parametrize("can_reopen", [True, False])
    async def test_a_slow_reader_holds_back_the_finish_but_not_the_loop(
        self, can_reopen: bool, pipe: Pipe, settled: Settled, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not can_reopen:
            monkeypatch.setattr("nsqtools.sinks.pipes._DESCRIPTORS", "/nowhere")
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(LARGE, b"end", settled=settled)))
            await turns()
            assert not task.done()
            assert settled.finished == []
            assert os.get_blocking(pipe.writer)
            assert await drain(pipe.reader, len(LARGE) + 5) == LARGE + b"\nend\n"
            await task
        assert settled.finished == [LARGE, b"end"]
        assert settled.requeued == []

    async def test_batches_of_several_consumers_are_written_whole_one_after_the_other(
        self, pipe: Pipe, settled: Settled
    ) -> None:
        both = [bytes([digit]) * len(LARGE) for digit in b"12"]
        async with opened(pipe.writer) as sink:
            tasks = [asyncio.create_task(sink.handle(batch(b, settled=settled))) for b in both]
            assert await drain(pipe.reader, 2 * len(LARGE) + 2) == b"%b\n%b\n" % tuple(both)
            await asyncio.gather(*tasks)
        assert settled.finished == both

    async def test_a_reader_that_leaves_is_noticed_without_a_message(self, pipe: Pipe) -> None:
        async with opened(pipe.writer) as sink:
            await turns()
            assert not sink.failed.done()
            pipe.close_reader()
            assert isinstance(await failure(sink), OutputClosedError)

    async def test_a_reader_that_leaves_in_a_batch_has_nothing_of_it_finished(
        self, pipe: Pipe, settled: Settled
    ) -> None:
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(b"first", LARGE, settled=settled)))
            await turns()
            assert os.read(pipe.reader, 6) == b"first\n"
            pipe.close_reader()
            async with asyncio.timeout(GUARD):
                await task
            assert isinstance(await failure(sink), OutputClosedError)
            assert (sink.messages, sink.bytes) == (0, 0)
        assert settled.finished == []
        assert settled.requeued == [(b"first", 0, False), (LARGE, 0, False)]

    async def test_a_cancelled_write_finishes_nothing_and_leaves_the_sink_closable(
        self, pipe: Pipe, settled: Settled
    ) -> None:
        async with opened(pipe.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(LARGE, settled=settled)))
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert settled.finished == []


class TestTerminal:
    async def test_a_stopped_one_holds_back_the_finish_but_not_the_loop(
        self, terminal: tuple[int, int], settled: Settled
    ) -> None:
        master, slave = terminal
        async with opened(slave) as sink:
            termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
            task = asyncio.create_task(sink.handle(batch(b"one", settled=settled)))
            await turns()
            assert not task.done()
            assert settled.finished == []
            termios.tcflow(slave, termios.TCOON)  # Ctrl-Q
            assert await drain(master, 4) == b"one\n"
            async with asyncio.timeout(GUARD):
                await task
        assert settled.finished == [b"one"]

    async def test_one_that_is_gone_is_an_error(
        self, terminal: tuple[int, int], settled: Settled
    ) -> None:
        master, slave = terminal
        async with opened(slave) as sink:
            os.close(master)
            await sink.handle(batch(b"one", settled=settled))
            assert "standard output: " in str(await failure(sink))
        assert settled.requeued == [(b"one", 0, False)]


class TestSocket:
    async def test_others_fill_the_socket_meanwhile_and_neither_fails(self, ends: Ends) -> None:
        ours, theirs = ends
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)

        def received() -> bytearray:
            theirs.settimeout(GUARD)
            data = bytearray()
            while len(data) < 2 * len(LARGE) + 1:
                data += theirs.recv(1 << 16)
            return data

        async with opened(ours.fileno()) as sink:
            shown, *_ = await asyncio.gather(
                asyncio.to_thread(received),
                asyncio.to_thread(ours.sendall, b"y" * len(LARGE)),
                sink.handle(batch(LARGE)),
            )
        assert (shown.count(b"x"), shown.count(b"y")) == (len(LARGE), len(LARGE))


class TestFile:
    async def test_the_null_device_takes_everything_and_a_full_one_fails_the_sink(
        self, settled: Settled
    ) -> None:
        for path in (os.devnull, "/dev/full"):
            with device(path) as fd:
                async with opened(fd) as sink:
                    await sink.handle(batch(b"one", b"two", settled=settled))
                    if path == "/dev/full":
                        error = await failure(sink)
        assert not isinstance(error, OutputClosedError)
        assert str(error) == f"standard output: {os.strerror(errno.ENOSPC)}"
        assert settled.finished == [b"one", b"two"]
        assert settled.requeued == [(b"one", 0, False), (b"two", 0, False)]

    async def test_of_a_batch_written_in_part_nothing_is_finished(
        self, tmp_path: Path, settled: Settled
    ) -> None:
        with (tmp_path / "out").open("wb") as file:
            async with opened(file.fileno()) as sink:
                with file_limit(100):
                    await sink.handle(batch(b"a" * 60, b"b" * 60, settled=settled))
                assert os.strerror(errno.EFBIG) in str(await failure(sink))
        assert (tmp_path / "out").stat().st_size == 100
        assert settled.finished == []
        assert len(settled.requeued) == 2

    async def test_a_descriptor_that_cannot_be_written_to_is_refused_before_any_message(
        self, pipe: Pipe
    ) -> None:
        with device(os.devnull, os.O_RDONLY) as fd, pytest.raises(OutputError, match=r"^output: "):
            await StreamSink(fd, make_writer(Layout()), name="output").open()
        os.close(pipe.writer)
        closed, pipe.writer = pipe.writer, -1
        with pytest.raises(OutputError, match=os.strerror(errno.EBADF)):
            await StreamSink(closed, make_writer(Layout())).open()
