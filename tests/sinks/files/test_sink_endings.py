"""How a sink of archives ends where time is short, and what comes after."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import ConfigError, OutputError
from tests.support.clock import elapse, virtual
from tests.support.sinking import Sinking, SlowSink, blocked, sinking

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "events-000000.log"


def slow(running: Sinking) -> None:
    assert isinstance(running.sink, SlowSink)
    running.sink.slow = 5.0


async def cancelled_drain(running: Sinking) -> None:
    """Drain, but for too short a time, as a consumer whose time is over."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await running.sink.drain("events")


class TestADrainThatIsCutOff:
    @virtual
    async def test_it_is_waited_for_at_the_end(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            slow(running)
            await running.handle(b"one")
            await cancelled_drain(running)
            assert running.published() == {}
            assert len(running.locks()) == 1
        assert running.published() == {FIRST: b"one\n"}
        assert running.locks() == []

    @virtual
    async def test_its_error_is_that_of_the_end(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            slow(running)
            await running.handle(b"one")
            with blocked(tmp_path / "out"):
                await cancelled_drain(running)
                with pytest.raises(OutputError):
                    await running.close()

    @virtual
    async def test_a_topic_that_comes_back_waits_for_it(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            slow(running)
            await running.handle(b"one")
            await cancelled_drain(running)
            await running.sink.join("events")
            await running.handle(b"two")
        assert running.finished == [b"one", b"two"]
        assert running.published() == {FIRST: b"one\n", "events-000001.log": b"two\n"}


class TestLeavingAtOnce:
    @virtual
    async def test_what_waits_is_not_written(self, tmp_path: Path) -> None:
        async with sinking(tmp_path) as running:
            await running.handle(b"one", starved=True)
            await elapse(1)
            await running.handle(b"two")
            running.is_closed = True
            await running.sink.close(at_once=True)
            assert running.finished == [b"one"]
            assert running.names() == [f"{FIRST}.part"]
            assert (tmp_path / "out" / f"{FIRST}.part").read_bytes() == b"one\n"
            assert running.locks() == []


class TestJoining:
    @virtual
    async def test_a_topic_that_has_no_file_name_gives_its_lock_back(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, filename_format="<TOPIC>/a<REV>.log") as running:
            before = running.locks()
            with pytest.raises(ConfigError):
                await running.sink.join("..")
            assert running.locks() == before


class TestTheNews:
    @virtual
    async def test_it_is_told_only_of_what_was_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caplog.set_level(logging.WARNING)
        async with sinking(tmp_path, skip_empty=True) as running:
            with monkeypatch.context() as patch:
                patch.setattr("os.fsync", _full)
                await running.handle(b"one", starved=True)
                await elapse(1)
            running.sink.reopen()
            await elapse(100)
            assert "written again" not in caplog.text
            await running.handle(b"two", starved=True)
            await elapse(1)
            assert caplog.text.count("written again") == 1


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
