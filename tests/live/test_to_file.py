"""``to-file`` as a process on real servers: nsq_to_file's flags, exit codes, care for its files."""

import gzip
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqtools.stores import open_store
from tests.support import archives
from tests.support.archives import Archiver
from tests.support.binaries import Nsq, needs
from tests.support.consuming import run_beside
from tests.support.eventually import eventually
from tests.support.faults import filled, small_disk
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


@pytest.mark.nsqd_only("compares with nsq_to_file, for which there is the real nsqd")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-skip-empty-files=true", "-datetime-format", "%Y", "-host-identifier=h.<SHORT_HOST>"),
        ("-gzip", "--gzip-level=9", "-work-dir={work}", "-skip-empty-files"),
        ("-filename-format=<TOPIC>/<DATETIME>/<HOST><REV>.txt", "-rotate-size=2000"),
        ("-gzip", "-filename-format=<TOPIC><REV>.gz", "-rotate-size=2000", "-rotate-interval=1h"),
    ],
    ids=lambda flags: " ".join(flags) or "defaults",
)
def test_nsq_to_files_flags_make_the_same_files(
    nsqtools_cli: Cli, nsqd: Nsqd, nsq: Nsq, topic: str, tmp_path: Path, flags: Sequence[str]
) -> None:
    """Both get the very same words, in the spelling of either."""
    program = nsq.path("nsq_to_file", "that to-file is like nsq_to_file")

    def words(name: str) -> tuple[str, ...]:
        return (
            *(f"-topic={topic}", "-channel", name, f"--output-dir={tmp_path / name}"),
            *("-max-in-flight=200", "--sync-interval", "200ms", "-topic-refresh=1m"),
            *("-http-client-connect-timeout=2s", "--http-client-request-timeout=5s"),
            *("-consumer-opt=max_backoff_duration,2m", "-log-level=warn", "-log-prefix=[x] "),
            *(flag.format(work=tmp_path / f"{name}-work") for flag in flags),
            f"-nsqd-tcp-address={nsqd.tcp}",
        )

    for name in ("go", "py"):
        nsqd.create(topic, name)
    nsqd.publish(topic, archives.bodies(range(500)))
    run_beside(nsqtools_cli, ("to-file", *words("py")), (program, *words("go")), nsqd, topic)
    made = {name: contents(tmp_path / name) for name in ("go", "py")}
    assert made["py"] == made["go"]
    assert sum(text.count(b"\n") for text in made["py"].values()) == 500


def contents(folder: Path) -> dict[str, bytes]:
    found = archives.published(folder)
    return {str(path.relative_to(folder)): archives.plain(path) for path in found}


@pytest.mark.parametrize("how", ["--lock", "by the names of files"])
def test_a_second_instance_is_status_75(archiver: Archiver, how: str) -> None:
    archiver.numbers(100)
    lock = ("--lock", str(archiver.folder / "lock")) if how == "--lock" else ()
    first = archiver.start(*lock)
    first.drain()
    eventually(lambda: archives.leftovers(archiver.output))
    second = archiver.take(1, *lock, "-q")
    assert (second.code, second.stdout) == (75, b"")
    assert f"process {first.process.pid}" in second.stderr
    assert second.stderr.count("\n") == 1
    assert first.process.poll() is None
    assert first.end() == 0
    assert archiver.found == Counter(range(100))
    assert archives.leftovers(archiver.folder) == []
    assert (archiver.folder / "lock").exists() == (how == "--lock")


def test_a_full_disk_and_a_kill_lose_nothing_and_double_no_more_than_was_in_flight(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, rng: random.Random
) -> None:
    """A kill -9 after a number of messages drawn by chance, whatever that means for files."""
    count, window = 10_000, 2500
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        archiver = Archiver(nsqtools_cli, make_nsqd("-msg-timeout=1s"), topic, disk)
        archiver.make_known()
        archiver.numbers(count)
        how = ("--compress", "zstd", "--rotate-size", "50KB", "--manifest", "manifest")
        with filled(disk, leave=20_000):
            running = archiver.start(*how, "--fail-fast", log=tmp_path / "log")
            assert running.process.wait(100) == 1
        line = running.said.splitlines()[-1]
        assert line.startswith(f"nsqtools: {disk}/")
        assert line.endswith("No space left on device")
        running = archiver.start(*how, "--max-in-flight", str(window), log=tmp_path / "log")
        left = rng.randrange(archiver.depth())
        eventually(lambda: archiver.depth() <= left)
        running.kill()
        ended = archiver.run(*how, "-q")
        assert (ended.code, ended.stdout) == (0, b""), ended
        manifest, files = archiver.output / "manifest", archiver.files
        files.remove(manifest)
        found = archives.numbers(files)
        assert found.keys() == set(range(count))
        assert found.total() <= count + window
        assert archives.verified(nsqtools_cli, files) == found.total()
        assert archives.verified(nsqtools_cli, [manifest]) == found.total()
        assert manifest.read_bytes().count(b"\n") == len(files)
        subprocess.run([needs("zstd", "that others read archives"), "-tq", *files], check=True)
        assert {path.suffix for path in archives.leftovers(disk)} <= {".torn"}


def test_topics_by_pattern_though_one_nsqlookupd_is_dead(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: Path,
) -> None:
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    topics = [f"{topic}.{number:03}" for number in range(20)]
    for each in (*topics, "other"):
        nsqd.create(each, "c")
        nsqd.publish(each, archives.bodies(range(20)))
    eventually(lambda: all(lookupd.lookup(each) for each in (*topics, "other")))
    ended = nsqtools_cli(
        *("to-file", "--topic-pattern", f"^{topic}", "--output-dir", str(tmp_path / "a")),
        *("--filename-format", "<TOPIC>.log", "--channel", "c", "-n", str(20 * len(topics))),
        *("--lookupd-http-address", "127.0.0.1:1", "--lookupd-http-address", str(lookupd.http)),
    )
    assert (ended.code, ended.stdout) == (0, b"")
    assert ended.stderr.count("127.0.0.1:1") == ended.stderr.count("\n") == 1
    files = archives.published(tmp_path / "a")
    assert [path.name for path in files] == [f"{each}.log" for each in topics]
    assert all(archives.numbers([path]) == Counter(range(20)) for path in files)
    assert nsqd.channel("other", "c")["depth"] == 20


# What --on-rotate runs with every file.


def test_a_file_whose_command_failed_is_kept_and_the_next_run_begins_with_it(
    archiver: Archiver,
) -> None:
    safe = archiver.folder / "safe"
    safe.mkdir()
    keep = ("--gzip", "--keep", "1")
    archiver.numbers(5)
    running = archiver.start(*keep, "--on-rotate", "exit 3")
    running.drain()
    running.process.send_signal(signal.SIGHUP)
    running.says("status 3")
    running.kill()
    (first,) = archiver.files
    assert b"waiting for" in archiver.cli("verify", str(first)).stdout
    archiver.numbers(5, 10)
    without = archiver.take(5, *keep)
    assert (without.code, str(first) in without.stderr) == (1, True)
    assert first.exists()
    archiver.numbers(10, 15)
    assert archiver.take(5, *keep, "--on-rotate", f"cp {{}} {safe}/").code == 0
    assert archives.numbers(archives.published(safe)) == Counter([*range(5), *range(10, 15)])
    assert not first.exists()
    (last,) = archiver.files
    assert archives.numbers([last]) == Counter(range(10, 15))
    assert b"waiting" not in archiver.cli("verify", str(last)).stdout


def test_what_a_store_refuses_waits_for_the_next_run(
    archiver: Archiver, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    options = ("--gzip", "--keep", "1", "--upload", f"{bucket}/events", "--delete-uploaded")
    for end, key, code in ((5, "wrong", 1), (10, secret, 0)):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
        archiver.numbers(end - 5, end)
        ended = archiver.take(5, *options)
        assert (ended.code, ended.stderr.count("AWS_SECRET_ACCESS_KEY")) == (code, code)
        assert len(archiver.files) == code
    store = open_store(bucket)
    assert [each.path.partition("/")[0] for each in store.files()] == ["events"] * 2
    texts = [gzip.decompress(store.get(each.path)) for each in store.files()]
    assert sorted(b"".join(texts).splitlines()) == sorted(archives.bodies(range(10)))
