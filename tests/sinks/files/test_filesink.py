"""When messages are written and finished, on a disk that works."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from nsqtools.sinks.threads import Threads
from tests.support.archiving import batch
from tests.support.clock import elapse, virtual
from tests.support.eventually import eventually_async
from tests.support.sinking import SOON, sinking, slow

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


FIRST = "events-000000.log"


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
        assert running.published() == {f"{FIRST}.gz": b"one\ntwo\nthree\n"}

    async def test_a_quarter_of_the_window_or_much_memory_is_synced_at_once(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path, window=17) as running:
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

    async def test_a_starved_connection_and_a_flush_do_not_wait(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            running.sink.flush()
            await elapse(SOON)
            assert running.names() == []
            await running.handle(b"one")
            running.sink.flush()
            await elapse(SOON)
            assert running.finished == [b"one"]
            await running.handle(b"two")
            await running.handle(b"three", starved=True)
            await elapse(SOON)
            assert running.finished == [b"one", b"two", b"three"]

    async def test_a_long_interval_is_cut_to_half_the_timeout_with_one_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path, sync_interval=30.0) as running:
            for number in range(2):
                await running.handle(b"%d" % number, msg_timeout=10.0)
                await elapse(4.9)
                assert len(running.finished) == number
                await elapse(0.2)
                assert len(running.finished) == number + 1
        (warning,) = caplog.messages
        assert "--sync-interval 30 s" in warning

    async def test_messages_given_up_are_logged_as_lost_and_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path) as running:
            await running.sink.gave_up(batch(b"one", b"two"))
            assert running.sink.lost == 2
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "0000000000000001 0000000000000002" in record.message


class TestAInLoop:
    async def test_one_that_blocks_holds_back_the_finish_but_not_the_loop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            await eventually_async(lambda: running.published() == {FIRST: b"one\n"})


class TestTopics:
    @virtual
    async def test_one_that_is_drained_publishes_what_waits_and_gives_its_lock_back(
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
            assert running.published() == {"a-000000.log": b"one\nthree\n"}
            assert [name[:3] for name in running.locks()] == [".b."]
            await running.sink.join("a")
            await running.handle(b"four", topic="a")
        assert running.published() == {
            "a-000000.log": b"one\nthree\n",
            "a-000001.log": b"four\n",
            "b-000000.log": b"two\n",
        }
        assert running.locks() == []
