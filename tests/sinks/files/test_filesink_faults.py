"""A sink whose files cannot be written: what is not safe goes back to nsqd, with backoff."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.topicarchive import Archive
from nsqtools.sinks.threads import Threads
from tests.support.archiving import Settled, batch
from tests.support.clock import elapse, virtual
from tests.support.faults import broken, file_limit
from tests.support.gathering import errors
from tests.support.sinking import SOON, Sinking, blocked, counted, sinking, slow

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "events-000000.log"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


async def write(running: Sinking, *bodies: bytes, **more: Any) -> None:
    """Hand them over, to be written at once."""
    await running.handle(*bodies, starved=True, **more)
    await elapse(SOON)


async def cancelled_drain(running: Sinking) -> None:
    """Drain, but for too short a time, as a consumer whose time is over."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await running.sink.drain("events")


@virtual
class TestGoingOn:
    async def test_what_is_not_written_goes_back_and_the_error_is_logged_once(
        self, tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path) as running:
            with blocked(out):
                for body in (b"one", b"two"):
                    await write(running, body)
                assert running.finished == []
                assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, True)]
                assert not running.sink.failed.done()
                assert counted(running.sink) == [0, 0, 0, 2]
            (told,) = errors(caplog)
            assert told.startswith("topic events: ")
            assert told.endswith(": Not a directory")
            running.sink.reopen()
            await elapse(100)
            assert len(caplog.messages) == 1  # nothing was written yet
            await write(running, b"one", b"two")
            assert running.finished == [b"one", b"two"]
            await write(running, b"three")
        assert len(caplog.messages) == 2
        assert b"".join(running.published().values()) == b"one\ntwo\nthree\n"

    async def test_failing_and_succeeding_in_turn_is_logged_once_a_minute(
        self, tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path) as running:
            for _ in range(3):
                with blocked(out):
                    await write(running, b"one")
                await write(running, b"two")
            assert running.finished == [b"two"] * 3
            assert (len(errors(caplog)), len(caplog.messages)) == (1, 2)
            with blocked(out):
                await write(running, b"one")
                await elapse(60)
                await write(running, b"one")
            assert len(errors(caplog)) == 2

    async def test_of_a_batch_written_in_part_that_part_is_finished(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, rotate_size=3) as running:
            with file_limit(4096):
                await write(running, b"one", b"x" * 8000, b"two")
            assert running.finished == [b"one"]
            assert running.settled.requeued == [(b"x" * 8000, 0, True), (b"two", 0, True)]
        assert running.published() == {FIRST: b"one\n"}


@virtual
class TestResting:
    async def test_publishing_is_tried_again_at_growing_distances_until_it_can_be(
        self,
        tmp_path: Path,
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        loop = asyncio.get_running_loop()
        tried: list[float] = []
        give_name = disk.give_name

        def note(work: str, *more: Any) -> None:
            tried.append(round(loop.time() - begin, 1))
            give_name(work, *more)

        async with sinking(tmp_path, work_dir=str(tmp_path / "work")) as running:
            await write(running, b"one")
            monkeypatch.setattr(disk, "give_name", note)
            begin = loop.time()
            with blocked(out):
                running.sink.reopen()
                await elapse(130)
            assert tried == [0, 1, 3, 7, 15, 31, 63, 95, 127]
            assert len(errors(caplog)) == 1
            assert running.finished == [b"one"]
            await elapse(30)
            assert running.published() == {FIRST: b"one\n"}
            assert len(caplog.messages) == 2

    async def test_new_messages_do_not_wait_for_that_nor_past_their_timeout(
        self, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path, sync_interval=8.0) as running:
            for more, longest in (({}, 8.1), ({"msg_timeout": 10.0}, 5.1)):
                with blocked(out):
                    for _ in range(8):
                        await write(running, b"bad")
                await running.handle(b"one", **more)
                await elapse(longest)
                assert running.finished.pop() == b"one"


@virtual
class TestReturning:
    async def test_what_goes_back_is_in_memory_no_more(self, tmp_path: Path, out: Path) -> None:
        async with sinking(tmp_path) as running:
            with blocked(out):
                await write(running, b"one")
                gc.collect()
                gc.disable()
                fates = Settled()
                await running.sink.handle(batch(b"two", settled=fates, starved=True))
                await elapse(SOON)
                assert fates.requeued == [(b"two", 0, True)]
                left = weakref.ref(fates)
                del fates
                gc.enable()
                assert left() is None

    async def test_it_is_accepted_again_after_a_second_even_if_nothing_else_slows_it_down(
        self, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            loop = asyncio.get_running_loop()
            with blocked(out):
                while loop.time() < 10:
                    await write(running, b"one")
            assert 9 <= len(running.settled.requeued) <= 11
            await write(running, b"one")
            await write(running, b"two")
            assert running.finished == [b"one", b"two"]
            assert loop.time() < 12

    async def test_what_waits_for_that_goes_back_when_the_topic_is_drained(
        self, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            with blocked(out):
                await write(running, b"one")
                waiting = asyncio.ensure_future(running.handle(b"two"))
                await elapse(SOON)
                with contextlib.suppress(OutputError):
                    await running.close()
                await waiting
            assert asyncio.get_running_loop().time() < 0.5
            assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, False)]


@virtual
class TestFailing:
    async def test_to_fail_fast_is_to_end_with_the_error(
        self, tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path, fail_fast=True) as running:
            slow(running, 1.0)
            with blocked(out):
                await running.handle(b"one", starved=True)
                await elapse(0.5)
                await running.handle(b"two", starved=True)
                await elapse(1)
            slow(running, 0)
            await running.handle(b"three")
            back = [(b"one", 0, True), (b"two", 0, False), (b"three", 0, False)]
            assert running.settled.requeued == back
            for end in (running.sink.failed, running.sink.drain("events")):
                with pytest.raises(OutputError, match=f"{out}/.*: Not a directory$"):
                    await end
        assert errors(caplog) == []

    async def test_an_error_that_waiting_does_not_mend_ends_it_in_any_case(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def step(*_: object, **__: object) -> None:
            raise ConfigError("a name that cannot be made")

        async with sinking(tmp_path) as running:
            monkeypatch.setattr(Archive, "step", step)
            await write(running, b"one")
            assert isinstance(running.sink.failed.exception(), ConfigError)
            assert running.settled.requeued == [(b"one", 0, True)]
            with pytest.raises(ConfigError):
                await running.close()

    async def test_so_does_a_bug_between_two_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with sinking(tmp_path) as running:
            monkeypatch.setattr(Archive, "next_due", lambda *_, **__: 1 / 0)
            await running.handle(b"one")
            await elapse(SOON)
            assert running.settled.requeued == [(b"one", 0, False)]
            assert isinstance(running.sink.failed.exception(), ZeroDivisionError)
            with pytest.raises(ZeroDivisionError):
                await running.close()

    async def test_so_does_a_topic_that_cannot_be_left(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            await running.handle(b"one")
            with broken("release", of=Archive), pytest.raises(OutputError):
                await running.sink.drain("events")
            assert running.finished == [b"one"]
            assert isinstance(running.sink.failed.exception(), OutputError)


@virtual
class TestEnding:
    @pytest.mark.parametrize("end", ["drain", "close"])
    async def test_what_cannot_be_written_then_goes_back_without_backoff(
        self, end: str, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            await running.handle(b"one")
            with blocked(out), pytest.raises(OutputError, match="Not a directory"):
                await (running.close() if end == "close" else running.sink.drain("events"))
            assert running.finished == []
            assert running.settled.requeued == [(b"one", 0, False)]

    async def test_a_drain_that_is_cut_off_is_waited_for(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            slow(running, 5.0)
            await running.handle(b"one")
            await cancelled_drain(running)
            assert running.published() == {}
            assert len(running.locks()) == 1
        assert running.published() == {FIRST: b"one\n"}
        assert running.locks() == []

    async def test_a_topic_that_comes_back_waits_for_such_a_drain(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            slow(running, 5.0)
            await running.handle(b"one")
            await cancelled_drain(running)
            await running.sink.join("events")
            await running.handle(b"two")
        assert running.finished == [b"one", b"two"]
        assert running.published() == {FIRST: b"one\n", "events-000001.log": b"two\n"}

    async def test_who_leaves_at_once_does_not_write_what_waits(
        self, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            await write(running, b"one")
            await running.handle(b"two")
            running.is_closed = True
            await running.sink.close(at_once=True)
            assert running.finished == [b"one"]
            assert running.names() == [f"{FIRST}.part"]
            assert (out / f"{FIRST}.part").read_bytes() == b"one\n"
            assert running.locks() == []

    @pytest.mark.parametrize("how", ["leaves", "fails"])
    async def test_the_next_sink_of_the_process_publishes_what_was_left(
        self, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with sinking(tmp_path) as running:
            await write(running, b"one")
            running.is_closed = True
            if how == "leaves":
                await running.sink.close(at_once=True)
            else:
                with monkeypatch.context() as patch:
                    patch.setattr(Archive, "next_due", dict.fromkeys)  # which raises TypeError
                    await write(running, b"two")
                with pytest.raises(TypeError):
                    await running.close()
        async with sinking(tmp_path) as running:
            assert running.published()[FIRST].startswith(b"one\n")


async def test_a_thread_is_waited_for_however_often_that_is_cancelled() -> None:
    gate = threading.Event()
    threads = Threads(1, "test")
    waiting = asyncio.ensure_future(threads.run(gate.wait))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    is_over = waiting.done()
    gate.set()
    assert not is_over
    with pytest.raises(asyncio.CancelledError):
        await waiting
    threads.close()
