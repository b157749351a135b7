"""A sink whose files cannot be written: what is not safe goes back to nsqd, with backoff."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files import publish
from nsqtools.sinks.files.archive import Archive
from tests.support.archiving import file_limit, fill
from tests.support.clock import elapse, virtual
from tests.support.disks import small_disk
from tests.support.sinking import SOON, SlowSink, blocked, sinking

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "events-000000.log"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


class TestGoingOn:
    @virtual
    async def test_what_is_not_written_goes_back_and_the_error_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        out = tmp_path / "out"
        async with sinking(tmp_path) as running:
            with blocked(out):
                for body in (b"one", b"two"):
                    await running.handle(body, starved=True)
                    await elapse(SOON)
                assert running.finished == []
                assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, True)]
                assert not running.sink.failed.done()
            (told,) = errors(caplog)
            assert told.startswith("topic events cannot be written, its messages wait in nsqd: ")
            assert told.endswith(": Not a directory")
            await running.handle(b"one", b"two", starved=True)
            await elapse(SOON)
            assert running.finished == [b"one", b"two"]
            assert caplog.messages[-1] == "topic events: written again"
            await running.handle(b"three", starved=True)
            await elapse(SOON)
        assert len(caplog.messages) == 2
        assert b"".join(running.published().values()) == b"one\ntwo\nthree\n"

    @virtual
    async def test_a_full_disk_is_waited_for(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "small") as disk:
            async with sinking(disk, compression="gzip") as running:
                await running.handle(b"one", starved=True)
                await elapse(SOON)
                noise = os.urandom(8000)
                with fill(disk):
                    await running.handle(noise, starved=True)
                    await elapse(SOON)
                    assert running.settled.requeued == [(noise, 0, True)]
                await running.handle(b"two", starved=True)
                await elapse(SOON)
                assert running.finished == [b"one", b"two"]
            assert running.published() == {f"{FIRST}.gz": b"one\ntwo\n"}

    @virtual
    async def test_of_a_batch_written_in_part_that_part_is_finished(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, rotate_size=3) as running:
            with file_limit(4096):
                await running.handle(b"one", b"x" * 8000, b"two", starved=True)
                await elapse(SOON)
            assert running.finished == [b"one"]
            assert running.settled.requeued == [(b"x" * 8000, 0, True), (b"two", 0, True)]
        assert running.published() == {FIRST: b"one\n"}

    @virtual
    async def test_one_topic_that_fails_stops_no_other(self, tmp_path: Path) -> None:
        async with sinking(
            tmp_path, topics=("a", "b"), filename_format="<TOPIC>/<REV>.log"
        ) as running:
            with blocked(tmp_path / "out" / "a"):
                for topic in ("a", "b"):
                    await running.handle(topic.encode(), topic=topic, starved=True)
                    await elapse(SOON)
            assert running.finished == [b"b"]
            assert running.settled.requeued == [(b"a", 0, True)]


class TestResting:
    @virtual
    async def test_publishing_is_tried_again_at_growing_distances_until_it_can_be(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = asyncio.get_running_loop()
        tried: list[float] = []
        give_name = publish.give_name

        def note(work: str, *more: Any) -> None:
            tried.append(round(loop.time() - begin, 1))
            give_name(work, *more)

        async with sinking(tmp_path, work_dir=str(tmp_path / "work")) as running:
            await running.handle(b"one", starved=True)
            await elapse(SOON)
            monkeypatch.setattr(publish, "give_name", note)
            begin = loop.time()
            with blocked(tmp_path / "out"):
                running.sink.reopen()
                await elapse(130)
            assert tried == [0, 1, 3, 7, 15, 31, 63, 95, 127]
            assert len(errors(caplog)) == 1
            assert running.finished == [b"one"]
            await elapse(30)
            assert running.published() == {FIRST: b"one\n"}
            assert caplog.messages[-1] == "topic events: written again"

    @virtual
    async def test_new_messages_do_not_wait_for_the_rest(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, sync_interval=2.0) as running:
            with blocked(tmp_path / "out"):
                for _ in range(6):
                    await running.handle(b"bad", starved=True)
                    await elapse(SOON)
            await running.handle(b"one")
            await elapse(2.1)
            assert running.finished == [b"one"]

    @virtual
    async def test_a_failure_does_not_let_messages_wait_past_their_timeout(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            with blocked(tmp_path / "out"):
                for _ in range(8):
                    await running.handle(b"bad", starved=True)
                    await elapse(SOON)
            await running.handle(b"one", msg_timeout=10.0)
            await elapse(5.1)
            assert running.finished == [b"one"]


class TestFailing:
    @virtual
    async def test_to_fail_fast_is_to_end_with_the_error(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with sinking(tmp_path, fail_fast=True) as running:
            with blocked(tmp_path / "out"):
                await running.handle(b"one", starved=True)
                await elapse(SOON)
            assert isinstance(running.sink.failed.exception(), OutputError)
            assert re.match(
                rf"{tmp_path}/out/.*: Not a directory$", str(running.sink.failed.exception())
            )
            await running.handle(b"two")
            assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, False)]
            with pytest.raises(OutputError, match="Not a directory"):
                await running.sink.drain("events")
        assert errors(caplog) == []

    @virtual
    async def test_what_came_while_it_failed_goes_back_as_well(self, tmp_path: Path) -> None:
        async with sinking(tmp_path, fail_fast=True) as running:
            assert isinstance(running.sink, SlowSink)
            running.sink.slow = 1.0
            with blocked(tmp_path / "out"):
                await running.handle(b"one", starved=True)
                await elapse(0.5)
                await running.handle(b"two", starved=True)
                await elapse(1)
            assert running.settled.requeued == [(b"one", 0, True), (b"two", 0, False)]
            with pytest.raises(OutputError):
                await running.close()

    @virtual
    async def test_an_error_that_waiting_does_not_mend_ends_it_in_any_case(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def step(*_: object, **__: object) -> None:
            raise ConfigError("a name that cannot be made")

        async with sinking(tmp_path) as running:
            monkeypatch.setattr(Archive, "step", step)
            await running.handle(b"one", starved=True)
            await elapse(SOON)
            assert isinstance(running.sink.failed.exception(), ConfigError)
            assert running.settled.requeued == [(b"one", 0, True)]
            with pytest.raises(ConfigError):
                await running.close()

    @pytest.mark.parametrize(
        ("method", "error", "told"),
        [
            ("next_due", ZeroDivisionError("a bug"), ZeroDivisionError),
            ("release", OSError(5, "Input/output error"), OutputError),
        ],
    )
    @virtual
    async def test_an_error_outside_a_step_ends_it_in_any_case(
        self,
        method: str,
        error: Exception,
        told: type[Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        async with sinking(tmp_path) as running:
            monkeypatch.setattr(Archive, method, fail)
            await running.handle(b"one")
            if method == "release":  # only the end calls it
                with pytest.raises(told):
                    await running.sink.drain("events")
                assert running.finished == [b"one"]
            else:
                await elapse(SOON)
                assert running.settled.requeued == [(b"one", 0, False)]
            assert isinstance(running.sink.failed.exception(), told)
            if method == "next_due":
                with pytest.raises(told):
                    await running.close()


class TestEnding:
    @virtual
    async def test_what_cannot_be_written_at_the_end_goes_back_without_backoff(
        self, tmp_path: Path
    ) -> None:
        async with sinking(tmp_path) as running:
            await running.handle(b"one")
            with (
                blocked(tmp_path / "out"),
                pytest.raises(OutputError, match="Not a directory"),
            ):
                await running.sink.drain("events")
            assert running.finished == []
            assert running.settled.requeued == [(b"one", 0, False)]

    @virtual
    async def test_a_file_that_cannot_be_published_at_the_end_is_by_the_next_run(
        self, tmp_path: Path
    ) -> None:
        work = str(tmp_path / "work")
        async with sinking(tmp_path, work_dir=work) as running:
            await running.handle(b"one", starved=True)
            await elapse(SOON)
            with blocked(tmp_path / "out"), pytest.raises(OutputError, match="Not a directory"):
                await running.close()
            assert running.finished == [b"one"]
        assert os.listdir(work) == [f"{FIRST}.part"]
        async with sinking(tmp_path, work_dir=work) as running:
            assert running.published() == {FIRST: b"one\n"}

    @virtual
    async def test_a_topic_that_cannot_be_drained_does_not_keep_others_from_it(
        self, tmp_path: Path
    ) -> None:
        async with sinking(
            tmp_path, topics=("a", "b"), filename_format="<TOPIC>/<REV>.log"
        ) as running:
            await running.handle(b"one", topic="a")
            await running.handle(b"two", topic="b")
            with (
                blocked(tmp_path / "out" / "a"),
                pytest.raises(OutputError, match="Not a directory"),
            ):
                await running.close()
        assert running.published() == {"b/-000000.log": b"two\n"}
        assert running.finished == [b"two"]
        assert running.locks() == []
