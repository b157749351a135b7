"""``to-file`` when much happens at once: signals, rotations, topics, and files taken from it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.archiving import file_sink
from nsqtools.cli.run import consume
from nsqtools.config import ArchiveOptions, ArchiveSourceOptions, ConsumerConfig, StopOptions
from nsqtools.policy import topics as policy
from tests.support import archives
from tests.support.eventually import eventually, eventually_async
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


def command(topic: str, folder: Path, nsqd: Nsqd, *options: str) -> tuple[str, ...]:
    return (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder)),
        *("--sync-interval", "50ms", *options, *at(nsqd)),
    )


def start(cli: Cli, topic: str, folder: Path, nsqd: Nsqd, *options: str) -> subprocess.Popen[bytes]:
    nsqd.create(topic, "c")
    with (folder.parent / "stderr").open("wb") as log:
        return cli.start(*command(topic, folder, nsqd, *options), stderr=log)


def connected(nsqd: Nsqd, topic: str) -> bool:
    return bool(nsqd.channel(topic, "c")["client_count"])


def ends_well(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate()
    assert process.wait(30) == 0, (folder.parent / "stderr").read_text()


@pytest.mark.parametrize("options", [(), ("--gzip", "--work-dir", "work"), ("--skip-empty-files",)])
def test_a_storm_of_hups(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, options: Sequence[str]
) -> None:
    folder = tmp_path / "a"
    name = ("--filename-format", "<TOPIC><REV>.log")
    process = start(nsqtools_cli, topic, folder, nsqd, *name, *options)
    eventually(lambda: connected(nsqd, topic))
    for storm in range(0, 200, 50):
        before = len(archives.published(folder))
        for number in range(storm, storm + 50):
            nsqd.publish(topic, archives.bodies(range(10 * number, 10 * number + 10)))
            process.send_signal(signal.SIGHUP)

        def are_more(before: int = before) -> bool:  # the last one may have come before messages
            process.send_signal(signal.SIGHUP)
            return len(archives.published(folder)) > before

        eventually(are_more)
    eventually(lambda: drained(nsqd, topic, "c"))
    ends_well(process, folder)
    files = archives.published(folder)
    assert archives.numbers(files) == Counter(range(2000))
    assert archives.verified(nsqtools_cli, files) == 2000
    archives.checked_by_programs(files)
    assert archives.leftovers(tmp_path) == []
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.parametrize("stuck", ["imports", "configuration"])
def test_a_hup_while_it_is_being_loaded_changes_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, stuck: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, archives.bodies(range(10)))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code = f"import sys\nopen({str(gate)!r}).read()\nsys.path.remove({str(tmp_path)!r})\n"
    more = "del sys.modules['click']\nimport click\n"
    (tmp_path / "click.py").write_text(code + more)
    process = nsqtools_cli.start(
        *command(topic, tmp_path / "a", nsqd),
        *(("--config", str(gate)) if stuck == "configuration" else ()),
        env={"PYTHONPATH": str(tmp_path)} if stuck == "imports" else {},
        cwd="/",
    )
    with gate.open("w"):  # returns when it is opened to be read
        process.send_signal(signal.SIGHUP)
    eventually(lambda: drained(nsqd, topic, "c") or process.poll() is not None)
    process.terminate()
    assert process.wait(30) == 0
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(10))


@pytest.mark.parametrize(
    ("options", "fewest"),
    [
        (("--rotate-size", "500"), 500),
        (("--rotate-compressed-size", "500", "--compress", "zstd", "--max-in-flight", "20"), 20),
        (("--rotate-interval", "1ms", "--gzip"), 5),
    ],
    ids=["size", "compressed size", "interval"],
)
def test_a_storm_of_rotations(
    nsqtools_cli: Cli,
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    options: Sequence[str],
    fewest: int,
) -> None:
    folder = tmp_path / "a"
    process = start(nsqtools_cli, topic, folder, nsqd, "--manifest", "../manifest", *options)
    for begin in range(0, 3000, 300):
        nsqd.publish(topic, archives.bodies(range(begin, begin + 300)))
        eventually(lambda: drained(nsqd, topic, "c"), timeout=30)
    ends_well(process, folder)
    files = archives.published(folder)
    assert len(files) > fewest
    assert archives.numbers(files) == Counter(range(3000))
    assert archives.verified(nsqtools_cli, [tmp_path / "manifest"]) == 3000
    archives.checked_by_programs(files)
    assert archives.leftovers(tmp_path) == []


def delete(folder: Path) -> None:
    (part,) = folder.glob("*.part")
    part.unlink()


def replace(folder: Path) -> None:
    (part,) = folder.glob("*.part")
    part.rename(folder.parent / "moved")
    part.write_bytes(b"an editor's")


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [delete, replace, remove])
@pytest.mark.parametrize("method", ["none", "gzip"])
def test_a_file_taken_away_is_written_anew(
    nsqtools_cli: Cli,
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    damage: Callable[[Path], None],
    method: str,
) -> None:
    """Also what was finished before is there in the end."""
    folder = tmp_path / "a"
    process = start(nsqtools_cli, topic, folder, nsqd, "--compress", method)
    nsqd.publish(topic, archives.bodies(range(100)))
    eventually(lambda: connected(nsqd, topic) and drained(nsqd, topic, "c"))
    damage(folder)
    nsqd.publish(topic, archives.bodies(range(100, 200)))
    eventually(lambda: drained(nsqd, topic, "c"))
    ends_well(process, folder)
    assert archives.numbers(archives.published(folder)) == Counter(range(200))
    archives.checked_by_programs(archives.published(folder))
    left = [path.read_bytes() for path in archives.leftovers(folder)]
    assert left == ([b"an editor's"] if damage is replace else [])


def test_a_published_name_that_is_taken_is_not_replaced(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    name = ("--filename-format", "<TOPIC><REV>.log", "--rotate-size", "1MB")
    process = start(nsqtools_cli, topic, folder, nsqd, *name)
    nsqd.publish(topic, archives.bodies(range(100)))
    eventually(lambda: connected(nsqd, topic) and drained(nsqd, topic, "c"))
    theirs = folder / f"{topic}-000000.log"
    theirs.write_bytes(b"theirs\n")
    ends_well(process, folder)
    assert theirs.read_bytes() == b"theirs\n"
    assert archives.numbers([folder / f"{topic}-000001.log"]) == Counter(range(100))
    assert archives.published(folder) == [theirs, folder / f"{topic}-000001.log"]


async def test_200_topics_at_once_of_which_2_vanish_and_3_appear(
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "MIN_GRACE", 1.0)
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    topics = [f"{topic}.{number:03d}" for number in range(203)]
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
        topic_refresh=0.5,
        channel="c",
        lookupd_http_address=(str(lookupd.http),),
    )
    files = ArchiveOptions(
        output_dir=str(folder), filename_format="<TOPIC><REV>.log", gzip=True, sync_interval=0.2
    )
    config = ConsumerConfig(max_in_flight=2500)
    await asyncio.to_thread(publish, topics[:200], range(20))
    sink = file_sink(source, files, config)
    run = asyncio.create_task(consume(source, "c", config, StopOptions(), sink, hangup=sink.reopen))
    await asyncio.to_thread(eventually, lambda: empty_now(topics[:200]), 60)
    for name in topics[:2]:
        nsqd.delete(name)
        lookupd.request("POST", "/topic/delete", topic=name)
    await asyncio.to_thread(publish, topics[200:], range(20))
    await asyncio.to_thread(eventually, lambda: empty_now(topics[200:]), 30)
    gone = [folder / f"{name}-000000.log.gz" for name in topics[:2]]
    await eventually_async(lambda: all(path.exists() for path in gone))
    await asyncio.to_thread(publish, topics[2:], range(20, 30))
    await asyncio.to_thread(eventually, lambda: empty_now(topics[2:]), 60)
    assert not run.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 0
    for name in topics[:2]:
        assert archives.numbers(folder.glob(f"{name}*")) == Counter(range(20))
    for name in topics[2:]:
        assert archives.numbers(folder.glob(f"{name}*")) == Counter(range(30))
    assert archives.leftovers(tmp_path) == []


def test_200_named_topics_until_they_are_empty(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    names = [f"{topic}.{number}" for number in range(200)]
    for name in names:
        nsqd.create(name, "c")
        nsqd.publish(name, archives.bodies(range(20)))
    words = [word for name in names for word in ("--topic", name)]
    ended = nsqtools_cli(
        *("to-file", *words, "--channel", "c", "--output-dir", str(tmp_path / "a"), "-q"),
        *("--compress", "zstd", *empty(nsqd)),
    )
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    files = archives.published(tmp_path / "a")
    assert len(files) == 200
    assert all(archives.numbers([path]) == Counter(range(20)) for path in files)
    assert archives.leftovers(tmp_path) == []


def test_a_leftover_of_another_compression_is_published(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    folder = tmp_path / "a"
    for number, method in enumerate(("none", "zstd", "gzip")):
        nsqd.publish(topic, archives.bodies(range(number * 100, number * 100 + 100)))
        process = start(nsqtools_cli, topic, folder, nsqd, "--compress", method)
        eventually(lambda: drained(nsqd, topic, "c") and archives.leftovers(folder))
        process.kill()
        process.wait()
    ended = nsqtools_cli(*command(topic, folder, nsqd, "--compress", "zstd"), *empty(nsqd)[:3])
    assert ended.code == 0, ended.stderr
    assert not [each for each in archives.leftovers(folder) if each.suffix == ".part"]
    assert archives.numbers(archives.published(folder)) == Counter(range(300))


def test_the_lock_is_taken_again_in_a_directory_that_was_made_anew(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    process = start(nsqtools_cli, topic, folder, nsqd)
    eventually(lambda: connected(nsqd, topic))
    shutil.rmtree(folder)
    nsqd.publish(topic, archives.bodies(range(10)))
    eventually(lambda: drained(nsqd, topic, "c") and archives.leftovers(folder))
    second = nsqtools_cli(*command(topic, folder, nsqd), "--max-duration", "1ms")
    assert second.code == 75
    ends_well(process, folder)
    assert archives.numbers(archives.published(folder)) == Counter(range(10))
