"""``to-file`` when much happens at once: signals, rotations, topics, and files taken from it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from nsqtools.cli.commands.to_file import choose_topics
from nsqtools.cli.service import consume
from nsqtools.config import ArchiveOptions, ArchiveSourceOptions, ConsumerConfig, StopOptions
from nsqtools.policy import topics as policy
from nsqtools.sinks.files.filesink import file_sink
from tests.support import archives
from tests.support.eventually import eventually, eventually_async

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from tests.support.archives import Archiver
    from tests.support.servers import MakeNsqd, MakeNsqlookupd


async def test_many_topics_at_once_of_which_2_vanish_and_3_appear(
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full: bool,
) -> None:
    monkeypatch.setattr(policy, "MIN_GRACE", 1.0)
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    count = 200 if full else 30
    topics = [f"{topic}.{number:03d}" for number in range(count + 3)]
    folder = tmp_path / "a"

    def publish(names: Sequence[str], numbers: range) -> None:
        for name in names:
            nsqd.create(name, "c")
            nsqd.publish(name, archives.bodies(numbers))

    def empty_now(names: Sequence[str]) -> bool:
        channels = {each["topic_name"]: each["channels"][0] for each in nsqd.stats()["topics"]}
        return not any(
            channels[name]["depth"] + channels[name]["in_flight_count"] for name in names
        )

    source = ArchiveSourceOptions(
        topic_pattern=f"^{topic}",
        topic_refresh=0.2,
        channel="c",
        lookupd_http_address=(str(lookupd.http),),
    )
    files = ArchiveOptions(
        output_dir=str(folder), filename_format="<TOPIC><REV>.log", gzip=True, sync_interval=0.2
    )
    config = ConsumerConfig(max_in_flight=2500)
    await asyncio.to_thread(publish, topics[:count], range(20))
    sink = file_sink(source, files, config)
    found_by: dict[str, Any] = {"topics": choose_topics(source), "refresh": source.topic_refresh}
    consuming = consume(source, "c", config, StopOptions(), sink, hangup=sink.reopen, **found_by)
    run = asyncio.create_task(consuming)
    await asyncio.to_thread(eventually, lambda: empty_now(topics[:count]))
    for name in topics[:2]:
        nsqd.delete(name)
        lookupd.request("POST", "/topic/delete", topic=name)
    await asyncio.to_thread(publish, topics[count:], range(20))
    await asyncio.to_thread(eventually, lambda: empty_now(topics[count:]))
    gone = [folder / f"{name}-000000.log.gz" for name in topics[:2]]
    await eventually_async(lambda: all(path.exists() for path in gone))
    await asyncio.to_thread(publish, topics[2:], range(20, 30))
    await asyncio.to_thread(eventually, lambda: empty_now(topics[2:]))
    assert not run.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await run
    for number, name in enumerate(topics):
        found = archives.numbers(folder.glob(f"{name}*"))
        assert found == Counter(range(20 if number < 2 else 30))
    assert archives.leftovers(tmp_path) == []


def test_a_leftover_of_another_compression_is_published(archiver: Archiver) -> None:
    for number, method in enumerate(("none", "zstd", "gzip")):
        archiver.numbers(number * 100, number * 100 + 100)
        running = archiver.start("--compress", method)
        running.drain()
        running.kill()
    ended = archiver.run("--compress", "zstd")
    assert ended.code == 0, ended.stderr
    assert not [each for each in archives.leftovers(archiver.output) if each.suffix == ".part"]
    assert archiver.found == Counter(range(300))
