"""``to-file`` as a process on real servers: nsq_to_file's flags, exit codes, care for its files."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.eventually import eventually
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.binaries import Nsq
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


def to_file(topic: str, folder: Path, *options: str) -> tuple[str, ...]:
    """A command line without a source; files are called ``TOPIC-000000.log`` and so on."""
    return (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(folder)),
        *("--filename-format", "<TOPIC><REV>.log", *options),
    )


def published(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    nsqd.create(topic, "c")
    bodies = archives.bodies(range(count))
    nsqd.publish(topic, bodies)
    return bodies


def waiting(nsqd: Nsqd, topic: str) -> int:
    depth: int = nsqd.channel(topic, "c")["depth"]
    return depth


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
    ours = nsqtools_cli.start("to-file", *words("py"))
    with subprocess.Popen([program, *words("go")], stderr=subprocess.DEVNULL) as theirs:
        try:
            eventually(lambda: drained(nsqd, topic, "go") and drained(nsqd, topic, "py"))
            for process in (ours, theirs):
                process.terminate()
                assert process.wait(20) == 0
        finally:
            theirs.kill()
    made = {name: contents(tmp_path / name) for name in ("go", "py")}
    assert made["py"] == made["go"]
    assert sum(text.count(b"\n") for text in made["py"].values()) == 500


def contents(folder: Path) -> dict[str, bytes]:
    found = archives.published(folder)
    return {str(path.relative_to(folder)): archives.plain(path) for path in found}


def test_until_empty_quietly_says_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    command = to_file(topic, tmp_path / "a", "--lock", str(tmp_path / "lock"), *empty(nsqd), "-q")
    for count in (0, 300):
        published(nsqd, topic, count)
        ended = nsqtools_cli(*command, "--max-duration", "1m")
        assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(300))
    assert drained(nsqd, topic, "c")


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ((), "--topic"),
        (("--topic-pattern", "x("), "--topic-pattern"),
        (("--topic-pattern", "."), "--lookupd-http-address"),
        (("--topic", "t", "--sync-interval", "0"), "--sync-interval"),
        (("--topic", "t", "--consumer-opt", "nosuch,1"), "nosuch"),
        (("--topic", "t", "--gzip", "--filename-format", "<TOPIC>.log"), "<REV>"),
        (("--topic", "t", "--gzip", "--compress", "zstd"), "--gzip"),
        (("--topic", "t", "--topic", "u", "--filename-format", "x.log"), "<TOPIC>"),
        (("--topic", "t", "--gzip-level", "10"), "--gzip-level"),
        (("--topic", "t", "--datetime-format", "%Q"), "--datetime-format"),
        (("--topic", "t", "--delimiter", r"\q"), "--delimiter"),
        (("--topic", "t", "--lock", "x", "--manifest", "x"), "--manifest"),
        (("--topic", "t", "--filename-format", "<TOPIC>.part"), ".part"),
        (("--topic", "t", "--filename-format", "x" * 300), "250 bytes"),
        (("--topic", "t", "--latest-link", "<HOST>"), "<HOST>"),
        (
            ("--topic", "t", "--topic", "u", "--keep", "1", "--filename-format", "x<REV>"),
            "<TOPIC>",
        ),
    ],
)
def test_usage_errors_are_status_2_and_touch_nothing(
    nsqtools_cli: Cli, tmp_path: Path, options: Sequence[str], culprit: str
) -> None:
    ended = nsqtools_cli("to-file", "--output-dir", str(tmp_path / "a"), *options)
    assert (ended.code, ended.stdout) == (2, b""), ended.stderr
    assert culprit in ended.stderr
    assert not (tmp_path / "a").exists()


def test_a_manifest_that_is_none_is_status_2_and_stays(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "archive.log").write_bytes(b"a record\n")
    named = ("--manifest", str(tmp_path / "archive.log"))
    ended = nsqtools_cli(*to_file(topic, tmp_path, *named), *empty(nsqd))
    assert (ended.code, "is no manifest" in ended.stderr) == (2, True)
    assert (tmp_path / "archive.log").read_bytes() == b"a record\n"


def test_a_dead_nsqd_is_status_3(nsqtools_cli: Cli, tmp_path: Path) -> None:
    ended = nsqtools_cli(*to_file("t", tmp_path, "--nsqd-tcp-address", "127.0.0.1:1"))
    assert (ended.code, ended.stdout) == (3, b"")
    assert ended.stderr == "nsqtools: 127.0.0.1:1: connection refused\n"
    assert archives.leftovers(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_status_1(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ended = nsqtools_cli(*to_file(topic, tmp_path / "file" / "a"), *at(nsqd))
    assert (ended.code, ended.stdout) == (1, b"")
    assert ended.stderr == f"nsqtools: {tmp_path}/file/a: Not a directory\n"


def test_what_is_left_behind_is_status_4(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 10)
    nsqtools_cli("pub", "--topic", topic, "--defer", "10m", *at(nsqd), "late")
    command = to_file(topic, tmp_path / "a", "--max-duration", "1s", "-q", *empty(nsqd))
    ended = nsqtools_cli(*command)
    assert (ended.code, ended.stdout) == (4, b"")
    assert ended.stderr.endswith("before --until-empty: 1 messages are left\n")
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(10))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_publishes_what_came(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    published(nsqd, topic, 100)
    process = nsqtools_cli.start(*to_file(topic, tmp_path / "a"), *at(nsqd), stderr=subprocess.PIPE)
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] and not waiting(nsqd, topic))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (code, b"")
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(100))
    assert drained(nsqd, topic, "c")
    assert archives.leftovers(tmp_path) == []


@pytest.mark.parametrize("how", ["--lock", "by the names of files"])
def test_a_second_instance_is_status_75_or_waits(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, how: str
) -> None:
    published(nsqd, topic, 100)
    lock = ("--lock", str(tmp_path / "lock")) if how == "--lock" else ()
    command = to_file(topic, tmp_path / "a", "--sync-interval", "50ms", *lock)
    first = nsqtools_cli.start(*command, *at(nsqd))
    eventually(lambda: drained(nsqd, topic, "c") and archives.leftovers(tmp_path / "a"))
    second = nsqtools_cli(*command, *empty(nsqd), "-q")
    assert (second.code, second.stdout) == (75, b"")
    assert f" is locked by process {first.pid}: " in second.stderr
    assert second.stderr.count("\n") == 1
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        waiting = (*command, *empty(nsqd), "--wait-lock", "-v")
        third = nsqtools_cli.start(*waiting, stderr=stderr)
    eventually(lambda: f"locked by process {first.pid}" in log.read_text())
    assert first.poll() is third.poll() is None
    nsqd.publish(topic, archives.bodies(range(100, 200)))
    first.terminate()
    assert first.wait(20) == 0
    assert third.wait(20) == 0, log.read_text()
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(200))
    assert archives.leftovers(tmp_path) == []


def test_instances_with_names_of_their_own_share_a_channel_and_leave_each_other_alone(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    own = ("--filename-format", "<TOPIC>.<PID><REV>.log", "--sync-interval", "50ms", "--gzip")
    command = (*to_file(topic, tmp_path / "a", *own, "--work-dir", str(tmp_path / "w")), *at(nsqd))
    running = [nsqtools_cli.start(*command) for _ in range(2)]
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 2)
    for begin in range(0, 5000, 50):
        nsqd.publish(topic, archives.bodies(range(begin, begin + 50)))
    eventually(lambda: drained(nsqd, topic, "c"))
    held = sorted((tmp_path / "w").glob("*.part"))
    assert len(held) == 2
    ended = nsqtools_cli(*command, *empty(nsqd)[:-2])  # looks for leftovers, too
    assert (ended.code, ended.stderr) == (0, "")
    assert sorted((tmp_path / "w").glob("*.part")) == held
    for process in running:
        process.terminate()
        assert process.wait(20) == 0
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(5000))


def test_no_message_is_written_twice_because_a_sync_came_late(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd("-msg-timeout=1s")
    published(nsqd, topic, 10)
    with (tmp_path / "stderr").open("wb") as log:
        command = to_file(topic, tmp_path / "a", "--sync-interval", "1h")
        process = nsqtools_cli.start(*command, *at(nsqd), stderr=log)
    eventually(lambda: drained(nsqd, topic, "c"))
    channel = nsqd.channel(topic, "c")
    assert (channel["timeout_count"], channel["requeue_count"]) == (0, 0)
    process.terminate()
    assert process.wait(20) == 0
    assert archives.numbers(archives.published(tmp_path / "a")) == Counter(range(10))
    (line,) = (tmp_path / "stderr").read_text().splitlines()
    assert line.startswith("nsqtools: warning: --sync-interval 3600 s is too long")


def test_a_latest_link_a_limit_and_a_manifest(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 500)
    folder = tmp_path / "a"
    care = ("--latest-link", "latest.<TOPIC>", "--keep", "3", "--manifest", "../manifest")
    command = to_file(topic, folder, "--rotate-size", "5KB", "--gzip", *care, *empty(nsqd))
    assert nsqtools_cli(*command).code == 0
    files = [path for path in archives.published(folder) if not path.is_symlink()]
    assert len(files) == 3
    link = folder / f"latest.{topic}"
    assert link.is_symlink()
    assert link.resolve() == files[-1]
    rows = [json.loads(line) for line in (tmp_path / "manifest").read_text().splitlines()]
    assert sum(row["records"] for row in rows) == 500
    assert [row["name"] for row in rows[-3:]] == [f"a/{path.name}" for path in files]
    checked = nsqtools_cli("verify", "manifest")
    assert (checked.code, checked.stderr) == (0, "")
    assert checked.stdout.endswith(b", 3 files, %d older files deleted\n" % (len(rows) - 3))
    files[1].write_bytes(files[0].read_bytes())
    checked = nsqtools_cli("verify", "manifest")
    assert checked.code == 4
    assert files[1].name in checked.stdout.decode()


def test_topics_by_pattern_though_one_nsqlookupd_is_dead(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: Path,
) -> None:
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    topics = [f"{topic}.{number}" for number in range(5)]
    for each in (*topics, "other"):
        published(nsqd, each, 20)
    eventually(lambda: all(lookupd.lookup(each) for each in (*topics, "other")))
    ended = nsqtools_cli(
        *("to-file", "--topic-pattern", f"^{topic}", "--output-dir", str(tmp_path / "a")),
        *("--filename-format", "<TOPIC>.log", "--channel", "c", "--until-empty"),
        *("--lookupd-http-address", "127.0.0.1:1", "--lookupd-http-address", str(lookupd.http)),
    )
    assert (ended.code, ended.stdout) == (0, b"")
    assert ended.stderr == "nsqtools: warning: nsqlookupd 127.0.0.1:1: connection refused\n"
    files = archives.published(tmp_path / "a")
    assert [path.name for path in files] == [f"{each}.log" for each in topics]
    assert all(archives.numbers([path]) == Counter(range(20)) for path in files)
    assert nsqd.channel("other", "c")["depth"] == 20


def test_a_topic_that_cannot_be_written_keeps_no_other_waiting(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    bad, good = f"{topic}.bad", f"{topic}.good"
    for each in (bad, good):
        published(nsqd, each, 100)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / bad).touch()
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        process = nsqtools_cli.start(
            *("to-file", "--topic", bad, "--topic", good, "--channel", "c", *at(nsqd)),
            *("--output-dir", str(tmp_path / "a"), "--filename-format", "<TOPIC>/x.log"),
            *("--sync-interval", "50ms", "--consumer-opt", "max_backoff_duration,500ms"),
            stderr=stderr,
        )
    eventually(lambda: drained(nsqd, good, "c") and "cannot be written" in log.read_text())
    nsqd.publish(good, archives.bodies(range(100, 200)))
    eventually(lambda: drained(nsqd, good, "c"))
    assert not drained(nsqd, bad, "c")
    (tmp_path / "a" / bad).unlink()
    eventually(lambda: drained(nsqd, bad, "c"))
    process.terminate()
    assert process.wait(20) == 0, log.read_text()
    assert archives.numbers([tmp_path / "a" / bad / "x.log"]) == Counter(range(100))
    assert archives.numbers([tmp_path / "a" / good / "x.log"]) == Counter(range(200))
    said = log.read_text()
    assert said.count(f"topic {bad} cannot be written") == said.count(f"topic {bad}: written") == 1
