"""When messages are written and finished, and when what is not safe goes back to nsqd."""

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files import filesink
from nsqtools.sinks.files.completion import Completion
from nsqtools.sinks.files.topicarchive import Archive, OwedError
from nsqtools.sinks.threads import Threads
from tests.support.archiving import Settled, batch
from tests.support.clock import elapse, virtual
from tests.support.eventually import eventually_async
from tests.support.faults import file_limit
from tests.support.gathering import errors
from tests.support.sinking import SOON, Sinking, blocked, sinking, slow

FIRST, SECOND = "events-000000.log", "events-000001.log"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


async def write(running: Sinking, *bodies: bytes, **more: Any) -> None:
    """Hand them over, to be written at once."""
    await running.handle(*bodies, starved=True, **more)
    await elapse(SOON)


@virtual
class TestGathering:
    async def test_batches_wait_for_one_sync_and_are_finished_after_it(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path, compress="gzip") as running:
            waiting = batch(b"one", b"two", settled=running.settled)
            await running.sink.handle(waiting)
            assert waiting.held
            await elapse(20)
            await running.handle(b"three")
            await elapse(9.9)
            assert running.finished == []
            await elapse(0.2)
            assert running.finished == [b"one", b"two", b"three"]
            (work,) = running.names()
            data = (tmp_path / "out" / work).read_bytes()
            assert data.count(b"\x1f\x8b\x08") == 1
        assert running.settled.requeued == []
        assert running.completed() == {f"{FIRST}.gz": b"one\ntwo\nthree\n"}

    async def test_a_quarter_of_the_window_or_much_memory_is_synced_at_once(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path, max_in_flight=17) as running:
            await running.handle(*[b"x"] * 3)
            await running.handle(b"x")
            await elapse(SOON)
            assert running.finished == []
            await running.handle(b"x")
            await elapse(SOON)
            assert len(running.finished) == 5
            for _ in range(4):
                await running.handle(b"x" * (1 << 20))
            await elapse(SOON)
            assert len(running.finished) == 9

    async def test_a_long_interval_is_cut_to_half_the_timeout(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, sync_interval=30.0) as running:
            for number in range(2):
                await running.handle(b"%d" % number, msg_timeout=10.0)
                await elapse(4.9)
                assert len(running.finished) == number
                await elapse(0.2)
                assert len(running.finished) == number + 1


async def test_a_sync_that_blocks_holds_back_the_finish_but_not_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = threading.Event(), threading.Event()
    fsync = os.fsync

    def block(fd: int) -> None:
        entered.set()
        assert gate.wait(60)
        fsync(fd)

    async with sinking(tmp_path, threads=Threads(2, "archive")) as running:
        monkeypatch.setattr(os, "fsync", block)
        await running.handle(b"one", starved=True)
        await eventually_async(entered.is_set)
        assert running.finished == []
        gate.set()
        await eventually_async(lambda: running.finished == [b"one"])
        running.sink.reopen()
        await eventually_async(lambda: running.completed() == {FIRST: b"one\n"})


@virtual
class TestGoingOn:
    async def test_what_is_not_written_goes_back_and_each_change_is_logged_once_a_minute(
        self, tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path) as running:
            with blocked(out):
                for body in (b"one", b"two"):
                    await write(running, body)
                assert running.finished == []
                assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, True)]
                assert not running.sink.ended.done()
            (told,) = errors(caplog)
            assert told.startswith("topic events: ")
            assert told.endswith(": Not a directory")
            running.sink.reopen()
            await elapse(100)
            assert len(caplog.messages) == 1  # nothing was written yet
            await write(running, b"one", b"two")
            assert running.finished == [b"one", b"two"]
            with blocked(out):
                await write(running, b"three")
            await write(running, b"three")
            assert len(caplog.messages) == 2
            with blocked(out):
                await elapse(60)
                await write(running, b"four")
            assert len(errors(caplog)) == 2
        assert running.completed() == {FIRST: b"one\ntwo\nthree\n"}
        counted = {metric.name: metric.samples[0].value for metric in running.sink.metrics()}
        assert counted == {
            "nsqtools_archive_files_total": 1,
            "nsqtools_archive_records_total": 3,
            "nsqtools_archive_bytes_total": 14,
            "nsqtools_archive_write_failures_total": 4,
            "nsqtools_archive_waiting_files": 0,
        }

    async def test_of_a_batch_written_in_part_that_part_is_finished(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path, rotate_size=3) as running:
            with file_limit(4096):
                await write(running, b"one", b"x" * 8000, b"two")
            assert running.finished == [b"one"]
            assert running.settled.requeued == [(b"x" * 8000, 0, True), (b"two", 0, True)]
        assert running.completed() == {FIRST: b"one\n"}
        (told,) = caplog.messages  # and not that writing succeeds again: nothing was written
        assert "cannot write" in told

    async def test_completing_is_tried_again_at_growing_distances_until_it_can_be(
        self, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop = asyncio.get_running_loop()
        tried: list[float] = []
        give_name = Completion.give_name

        def note(*of: Any) -> None:
            tried.append(round(loop.time() - begin, 1))
            give_name(*of)

        async with sinking(tmp_path, work_dir=str(tmp_path / "work")) as running:
            await write(running, b"one")
            monkeypatch.setattr(Completion, "give_name", note)
            begin = loop.time()
            with blocked(out):
                running.sink.reopen()
                await elapse(130)
            assert tried == [0, 1, 3, 7, 15, 31, 63, 95, 127]
            await elapse(30)
            assert running.completed() == {FIRST: b"one\n"}

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

    async def test_what_went_back_is_accepted_again_after_a_second_and_not_kept(
        self, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            loop = asyncio.get_running_loop()
            with blocked(out):
                while loop.time() < 10:
                    await write(running, b"one")
                assert 9 <= len(running.settled.requeued) <= 11
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
            await write(running, b"one")
            assert running.finished == [b"one"]
            assert loop.time() < 13

    async def test_what_waits_for_that_goes_back_at_the_end(
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
            for end in (running.sink.ended, running.sink.drain("events")):
                with pytest.raises(OutputError, match=f"{out}(/.*)?: Not a directory$"):
                    await end
        assert errors(caplog) == []

    @pytest.mark.parametrize(
        ("call", "error", "seen"),
        [
            ("step", ConfigError("a name that cannot be made"), ConfigError),
            ("next_due", ZeroDivisionError(), ZeroDivisionError),
            ("release", OSError(5, "Input/output"), OutputError),
        ],
    )
    async def test_what_waiting_does_not_mend_ends_it_and_the_next_sink_goes_on(
        self,
        call: str,
        error: Exception,
        seen: type[Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        async with sinking(tmp_path) as running:
            await write(running, b"one")
            with monkeypatch.context() as patch:
                patch.setattr(Archive, call, fail)
                await running.handle(b"two", starved=call != "next_due")
                with pytest.raises(seen):
                    await running.close()
            assert isinstance(running.sink.ended.exception(), seen)
            back = [(b"two", 0, call == "step")] if call != "release" else []
            assert running.settled.requeued == back
        async with sinking(tmp_path) as running:
            assert running.completed()[FIRST].startswith(b"one\n")


@virtual
async def test_topics_beyond_the_limit_of_open_files_wait_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = [32 + 2 * 4]
    monkeypatch.setattr(filesink, "getrlimit", lambda _: (limit[0], limit[0]))
    topics = ("a", "b")
    async with sinking(tmp_path, topics=topics, filename_format="<TOPIC><REV>.log") as running:
        with pytest.raises(OutputError, match="ulimit -n"):
            await running.sink.join("c")
        assert len(running.locks()) == len(topics)
        for topic in topics:
            await running.handle(b"one", topic=topic)
        await running.sink.drain("a")
        await running.sink.join("c")
        for limit[0] in (-1, 8):  # none, and room for one at least
            with pytest.raises(OutputError) if limit[0] > 0 else contextlib.nullcontext():
                await running.sink.join(f"d{limit[0]}")


@virtual
class TestEnding:
    async def test_a_drained_topic_completes_what_waits_and_gives_its_lock_back(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path, topics=("a", "b")) as running:
            await running.sink.drain("unknown")
            slow(running, 5.0)
            await running.handle(b"one", topic="a", starved=True)
            await running.handle(b"two", topic="b")
            await elapse(1)
            await running.handle(b"three", topic="a")
            await running.sink.drain("a")
            assert running.finished == [b"one", b"three"]
            assert running.completed() == {"a-000000.log": b"one\nthree\n"}
            assert [name[:3] for name in running.locks()] == [".b."]
            await running.sink.join("a")
            await running.handle(b"four", topic="a")
        assert running.completed() == {
            "a-000000.log": b"one\nthree\n",
            "a-000001.log": b"four\n",
            "b-000000.log": b"two\n",
        }
        assert running.locks() == []

    @pytest.mark.parametrize("is_back", [False, True])
    async def test_a_drain_that_is_cut_off_is_waited_for_also_by_who_comes_back(
        self, is_back: bool, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            slow(running, 5.0)
            await running.handle(b"one")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await running.sink.drain("events")
            assert running.completed() == {}
            assert len(running.locks()) == 1
            if is_back:
                await running.sink.join("events")
                assert running.completed() == {FIRST: b"one\n"}
                await running.handle(b"two")
        assert running.completed() == {FIRST: b"one\n"} | ({SECOND: b"two\n"} if is_back else {})
        assert running.locks() == []

    @pytest.mark.parametrize("end", ["drain", "close"])
    async def test_what_cannot_be_written_then_goes_back_without_backoff(
        self, end: str, tmp_path: Path, out: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            for body in (b"one", b"two"):
                await running.handle(body)
            with blocked(out), pytest.raises(OutputError, match="Not a directory"):
                await (running.close() if end == "close" else running.sink.drain("events"))
            assert running.finished == []
            assert running.settled.requeued == [(b"one", 0, False), (b"two", 0, False)]

    async def test_what_a_later_run_writes_goes_back_and_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Archive, "step", Mock(side_effect=OwedError("waits for --upload")))
        async with sinking(tmp_path) as running:
            await running.handle(b"one")
            await running.sink.drain("events")
            assert running.settled.requeued == [(b"one", 0, False)]

    async def test_who_leaves_at_once_does_not_write_what_waits_and_the_next_completes(
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
        async with sinking(tmp_path) as running:
            assert running.completed() == {FIRST: b"one\n"}


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
