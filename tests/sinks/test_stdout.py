"""The stdout sink on every kind of descriptor."""

import asyncio
import contextlib
import errno
import os
import socket
import tempfile
import tty
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from nsqtools.errors import NSQError, OutputClosedError, OutputError
from nsqtools.records.bodies.selection import Selection
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.sinks.peek import WORN, Glimpse, PeekSink
from nsqtools.sinks.stdout import StreamSink
from tests.support.archiving import Settled, batch, message
from tests.support.clock import turns
from tests.support.faults import file_limit

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


class Sides:
    """What a program has as stdout, and the descriptor of who reads that."""

    def __init__(self, kind: str) -> None:
        match kind:
            case "terminal":
                self.reader, self.writer = os.openpty()
                tty.setraw(self.writer)
            case "socket":  # cannot be opened again, and its flags belong to all who share it
                self.reader, self.writer = (each.detach() for each in socket.socketpair())
            case _:
                self.reader, self.writer = os.pipe()

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def close_writer(self) -> int:
        """Returns what was its number."""
        os.close(self.writer)
        closed, self.writer = self.writer, -1
        return closed


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> Iterator[Sides]:
    sides = Sides(getattr(request, "param", "pipe"))
    yield sides
    for fd in (sides.reader, sides.writer):
        if fd >= 0:
            os.close(fd)


def of_kinds(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sides", kinds, indirect=True)


async def read(fd: int, size: int) -> bytes:
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
            await sink.ended
    return caught.value


class TestWriting:
    async def test_a_batch_is_there_before_it_is_finished_and_the_descriptor_left_as_it_was(
        self, sides: Sides
    ) -> None:
        seen: list[bytes] = []

        class Reading(Settled):
            def finish(self, messages: object) -> None:
                seen.append(os.read(sides.reader, 100))

        os.set_blocking(sides.reader, False)
        async with opened(sides.writer) as sink:
            given = batch(b"one", b"two", settled=Reading())
            await sink.handle(given)
            assert seen == [b"one\ntwo\n"]
            assert given.is_settled
            assert (sink.messages, sink.bytes) == (2, 8)
            sink.flush()
            await sink.drain("events")
            assert not sink.ended.done()
            await sink.close()
        os.write(sides.writer, b"after")
        assert os.read(sides.reader, 10) == b"after"
        sides.close_writer()
        assert os.read(sides.reader, 10) == b""

    @pytest.mark.parametrize("can_reopen", [True, False])
    @of_kinds("pipe", "terminal", "socket")
    async def test_a_slow_reader_holds_back_the_finish_but_not_the_loop(
        self, can_reopen: bool, sides: Sides, settled: Settled, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not can_reopen:
            monkeypatch.setattr("nsqtools.sinks.pipes._DESCRIPTORS", "/nowhere")
        async with opened(sides.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(LARGE, b"end", settled=settled)))
            await turns()
            assert not task.done()
            assert settled.finished == []
            assert os.get_blocking(sides.writer)
            assert await read(sides.reader, len(LARGE) + 5) == LARGE + b"\nend\n"
            await task
        assert settled.finished == [LARGE, b"end"]
        assert settled.requeued == []

    async def test_more_pieces_than_one_call_takes_are_written(self, sides: Sides) -> None:
        async with opened(sides.writer) as sink:
            await sink._output.write([b"x"] * 3000)
            assert await read(sides.reader, 3000) == b"x" * 3000

    async def test_batches_of_several_consumers_are_written_whole_one_after_the_other(
        self, sides: Sides, settled: Settled
    ) -> None:
        both = [bytes([digit]) * len(LARGE) for digit in b"12"]
        async with opened(sides.writer) as sink:
            tasks = [asyncio.create_task(sink.handle(batch(b, settled=settled))) for b in both]
            assert await read(sides.reader, 2 * len(LARGE) + 2) == b"%b\n%b\n" % tuple(both)
            await asyncio.gather(*tasks)
        assert settled.finished == both

    @of_kinds("socket")
    async def test_others_fill_a_socket_meanwhile_and_neither_fails(self, sides: Sides) -> None:
        def received() -> bytearray:
            data = bytearray()
            while len(data) < 2 * len(LARGE) + 1:
                data += os.read(sides.reader, 1 << 16)
            return data

        def fill() -> None:
            data = memoryview(b"y" * len(LARGE))
            while data:
                data = data[os.write(sides.writer, data) :]

        async with opened(sides.writer) as sink:
            shown, *_ = await asyncio.gather(
                asyncio.to_thread(received), asyncio.to_thread(fill), sink.handle(batch(LARGE))
            )
        assert (shown.count(b"x"), shown.count(b"y")) == (len(LARGE), len(LARGE))

    async def test_a_cancelled_write_finishes_nothing_and_leaves_the_sink_closable(
        self, sides: Sides, settled: Settled
    ) -> None:
        async with opened(sides.writer) as sink:
            task = asyncio.create_task(sink.handle(batch(LARGE, settled=settled)))
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert settled.finished == []


class TestFailures:
    async def test_a_reader_that_leaves_is_noticed_without_a_message(self, sides: Sides) -> None:
        async with opened(sides.writer) as sink:
            await turns()
            assert not sink.ended.done()
            sides.close_reader()
            assert isinstance(await failure(sink), OutputClosedError)

    @of_kinds("socket")
    async def test_a_peer_that_has_sent_bytes_is_noticed_when_it_leaves(self, sides: Sides) -> None:
        async with opened(sides.writer) as sink:
            os.write(sides.reader, b"ignored")
            await turns()
            assert not sink.ended.done()
            sides.close_reader()
            assert isinstance(await failure(sink), OutputClosedError)

    @of_kinds("pipe", "terminal", "socket")
    async def test_a_reader_that_leaves_in_a_batch_has_nothing_of_it_finished(
        self, sides: Sides, settled: Settled
    ) -> None:
        async with opened(sides.writer) as sink:
            given = batch(b"first", LARGE, settled=settled)
            task = asyncio.create_task(sink.handle(given))
            await turns()
            assert os.read(sides.reader, 6) == b"first\n"
            sides.close_reader()
            async with asyncio.timeout(GUARD):
                await task
            assert str(await failure(sink)).startswith("standard output: ")
            assert (sink.messages, sink.bytes) == (0, 0)
        assert settled.finished == []
        assert (given.held, settled.requeued) == (True, [])

    async def test_the_null_device_takes_everything_and_a_full_one_fails_the_sink(
        self, settled: Settled
    ) -> None:
        for path in (os.devnull, "/dev/full"):
            with device(path) as fd:
                async with opened(fd) as sink:
                    given = batch(b"one", b"two", settled=settled)
                    await sink.handle(given)
                    if path == "/dev/full":
                        error = await failure(sink)
        assert not isinstance(error, OutputClosedError)
        assert str(error) == f"standard output: {os.strerror(errno.ENOSPC)}"
        assert settled.finished == [b"one", b"two"]
        assert (given.held, settled.requeued) == (True, [])

    async def test_of_a_batch_written_to_a_file_in_part_nothing_is_finished(
        self, tmp_path: Path, settled: Settled
    ) -> None:
        with (tmp_path / "out").open("wb") as file:
            async with opened(file.fileno()) as sink:
                with file_limit(100):
                    given = batch(b"a" * 60, b"b" * 60, settled=settled)
                    await sink.handle(given)
                assert os.strerror(errno.EFBIG) in str(await failure(sink))
        assert (tmp_path / "out").stat().st_size == 100
        assert settled.finished == []
        assert (given.held, settled.requeued) == (True, [])

    async def test_a_descriptor_that_cannot_be_written_to_is_refused_before_any_message(
        self, sides: Sides
    ) -> None:
        with device(os.devnull, os.O_RDONLY) as fd, pytest.raises(OutputError, match=r"^output: "):
            await StreamSink(fd, make_writer(Layout()), name="output").open()
        with pytest.raises(OutputError, match=os.strerror(errno.EBADF)):
            await StreamSink(sides.close_writer(), make_writer(Layout())).open()


async def test_what_the_reader_of_a_socket_sends_is_ignored(settled: Settled) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with opened(ours.fileno()) as sink:
            theirs.send(b"typed")
            await turns()
            assert not sink.ended.done()
            await sink.handle(batch(b"1", settled=settled))
            assert theirs.recv(100) == b"1\n"


async def test_a_selection_writes_what_it_chooses_and_stops_behind_the_last_one(
    settled: Settled,
) -> None:
    bodies = [b"no json", b"\x81\xa1n\x01", b'{"n":2}', b'{"n":0}', b'{"n":3}', b"\xc0", b"more"]
    with tempfile.TemporaryFile() as file:
        writer = make_writer(Layout())
        selection = Selection("msgpack", ".n > 0")
        sink = StreamSink(file.fileno(), writer, selection=selection, count=3)
        await sink.open()
        await sink.handle(batch(*bodies[:3], settled=settled))
        assert not sink.ended.done()
        await sink.handle(batch(*bodies[3:], settled=settled))
        await sink.ended
        late = batch(b"late", settled=settled)
        await sink.handle(late)
        await sink.close()
        file.seek(0)
        assert file.read() == b'{"n":1}\n{"n":2}\n{"n":3}\n'
    assert settled.finished == bodies[:5]
    assert settled.requeued == [(b"\xc0", 0, False), (b"more", 0, False)]
    assert (late.held, sink.messages) == (True, 3)
    assert (selection.undecoded, selection.failed) == (4, 1)
    assert [metric.samples[0].value for metric in sink.metrics()] == [4, 1]


async def test_a_decoder_that_fails_ends_the_run_and_finishes_nothing(settled: Settled) -> None:
    with device(os.devnull) as fd:
        sink = StreamSink(fd, make_writer(Layout()), selection=Selection("cmd:false", ""))
        await sink.open()
        given = batch(b"1", b"2", b"3", b"4", settled=settled)
        await sink.handle(given)
        with pytest.raises(NSQError, match="--decode cmd:false: "):
            await sink.ended
        await sink.close()
    assert (given.held, settled.finished) == (True, [])


async def test_a_peek_writes_its_count_and_gives_back_what_it_writes_and_what_it_does_not() -> None:
    settled = Settled()
    with tempfile.TemporaryFile() as file:
        sink = PeekSink(file.fileno(), make_writer(Layout()), 3)
        await sink.open()
        await sink.handle(batch(b"1", b"2", settled=settled))
        assert not sink.ended.done()
        await sink.gave_up(batch(b"3", b"4", b"5", settled=settled))
        assert settled.requeued == [(b"4", 0, False), (b"5", 0, False)]
        await sink.handle(batch(b"6", settled=settled))
        await sink.ended
        await sink.drain("t")
        await sink.close()
        file.seek(0)
        assert file.read() == b"1\n2\n3\n"
    assert sorted(body for body, *_ in settled.requeued) == [b"%d" % n for n in range(1, 7)]
    assert settled.finished == []


@pytest.mark.parametrize("attempts", [WORN - 1, WORN])
async def test_a_peek_warns_of_messages_near_the_limit_of_attempts(
    attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nsqtools.status")
    with tempfile.TemporaryFile() as file:
        sink = PeekSink(file.fileno(), make_writer(Layout()), 1)
        await sink.open()
        await sink.handle(batch(message(b"1", attempts=attempts), settled=Settled()))
        await sink.drain("t")
        await sink.close()
    (record,) = caplog.records
    assert (record.levelname == "WARNING") == (attempts == WORN)


async def test_a_careful_glimpse_lets_more_come_until_a_message_is_worn() -> None:
    for attempts, careful, ends in (
        (WORN - 1, True, False),
        (WORN, True, True),
        (WORN, False, False),
    ):
        settled, raised = Settled(), list[int]()
        glimpse = Glimpse(3, careful=careful)
        glimpse.go_on = partial(raised.append, 1)
        await glimpse.open()
        await glimpse.handle(batch(message(b"1", attempts=attempts), settled=settled))
        assert (glimpse.ended.done(), sum(raised)) == (ends, careful and not ends)
        await glimpse.handle(batch(message(b"2", number=2), settled=settled))
        assert len(glimpse.found) == 2 - ends
        await glimpse.drain("t")
        assert (len(settled.requeued), settled.finished) == (2, [])


async def test_a_peek_does_not_end_while_its_reader_is_slow(sides: Sides) -> None:
    sink = PeekSink(sides.writer, make_writer(Layout()), 3)
    await sink.open()
    writing = asyncio.create_task(sink.handle(batch(LARGE, settled=Settled())))
    await asyncio.sleep(0)
    sink.flush()
    assert not sink.ended.done()
    assert await read(sides.reader, len(LARGE) + 1) == LARGE + b"\n"
    await writing
    sink.flush()
    await sink.ended
    await sink.close()
