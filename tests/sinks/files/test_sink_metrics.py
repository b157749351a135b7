"""What a FileSink counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.metrics import Measured
from nsqtools.sinks.files.sink import FileSink
from tests.support.archiving import leave, make_rules
from tests.support.clock import elapse, virtual
from tests.support.eventually import eventually_async
from tests.support.sinking import SOON, blocked, sinking

if TYPE_CHECKING:
    from pathlib import Path

FILES, RECORDS, BYTES, FAILURES = (
    f"nsqtools_archive_{what}_total" for what in ("files", "records", "bytes", "write_failures")
)


def counted(sink: FileSink) -> dict[tuple[str, str], float]:
    found = {}
    for metric in sink.metrics():
        assert metric.kind == "counter"
        for labels, value in metric.samples:
            found[metric.name, labels["topic"]] = value
    return found


def of(sink: FileSink, topic: str = "events") -> list[float]:
    found = counted(sink)
    return [found[name, topic] for name in (FILES, RECORDS, BYTES, FAILURES)]


@virtual
async def test_published_files_count_with_their_records_and_bytes(tmp_path: Path) -> None:
    async with sinking(tmp_path, topics=("events", "others")) as running:
        assert isinstance(running.sink, Measured)
        assert of(running.sink) == of(running.sink, "others") == [0, 0, 0, 0]
        await running.handle(b"one", b"three", starved=True)
        await elapse(SOON)
        assert of(running.sink) == [0, 0, 0, 0]
        running.sink.reopen()
        await elapse(SOON)
        assert of(running.sink) == [1, 2, 10, 0]
        await running.handle(b"two", starved=True)
        await elapse(SOON)
        await running.close()
        assert of(running.sink) == [2, 3, 14, 0]
        assert of(running.sink, "others") == [0, 0, 0, 0]


@virtual
async def test_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    async with sinking(tmp_path, compression="gzip") as running:
        await running.handle(b"x" * 10_000)
        await running.close()
        (file,) = (tmp_path / "out").glob("*.gz")
        assert of(running.sink) == [1, 1, file.stat().st_size, 0]


@virtual
async def test_a_topic_that_was_left_keeps_its_counts(tmp_path: Path) -> None:
    async with sinking(tmp_path) as running:
        await running.handle(b"one")
        await running.sink.drain("events")
        assert of(running.sink) == [1, 1, 4, 0]
        await running.sink.join("events")
        await running.handle(b"two")
        await running.sink.drain("events")
        assert of(running.sink) == [2, 2, 8, 0]


@virtual
async def test_each_attempt_that_could_not_write_is_counted(tmp_path: Path) -> None:
    async with sinking(tmp_path) as running:
        with blocked(tmp_path / "out"):
            for count in (1, 2):
                await running.handle(b"one", starved=True)
                await elapse(SOON)
                assert of(running.sink) == [0, 0, 0, count]
        await running.handle(b"one", starved=True)
        await running.close()
        assert of(running.sink) == [1, 1, 4, 2]


@virtual
async def test_what_a_crash_left_behind_is_counted_when_it_is_published(tmp_path: Path) -> None:
    leave(make_rules(tmp_path), b"one\ntorn", "events-000000.log")
    async with sinking(tmp_path) as running:
        assert of(running.sink) == [1, 1, 4, 0]


async def test_threads_that_publish_at_once_lose_no_count(tmp_path: Path) -> None:
    topics = tuple(f"t{number}" for number in range(20))
    async with sinking(tmp_path, kind=FileSink, topics=topics) as running:
        for topic in topics:
            await running.handle(b"one", topic=topic, starved=True)
        await eventually_async(lambda: len(running.finished) == len(topics))
        await running.close()
        assert all(of(running.sink, topic) == [1, 1, 4, 0] for topic in topics)
