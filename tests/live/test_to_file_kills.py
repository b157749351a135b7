"""``to-file`` and nsqd killed at random moments, while numbered messages flow.

A moment is a number of messages that were published, drawn by a seeded generator: it does not
depend on how fast the machine is, and its phase against syncs and rotations is anyone's guess.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.chance import seeded, shares
from tests.support.eventually import eventually
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    import random
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd

KINDS = [(method, work) for method in ("none", "gzip", "zstd") for work in (False, True)]
ROUNDS = 9  # for each of the six kinds: 54 kills
MESSAGES = 84_000  # for each: 504,000
PIECE = 60
WINDOW = 2500  # --max-in-flight

MSG_TIMEOUT = "-msg-timeout=2s"
"""What was in flight with a killed process comes again after that."""


class Archiver:
    """``to-file`` on one topic, rotating all the time; runs one at a time."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path, *options: str) -> None:
        self.cli = cli
        self.nsqd = nsqd
        self.topic = topic
        self.output, self.work, self._lock = folder / "output", folder / "work", folder / "lock"
        self._log = folder / "log"
        self._command = (
            *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(self.output)),
            *("--filename-format", "<TOPIC>/<DATETIME><REV>.log", "--manifest", "manifest"),
            *("--rotate-interval", "200ms", "--sync-interval", "50ms", "--lock", str(self._lock)),
            *("--consumer-opt", "reconnect_delay,100ms", *options),
        )
        nsqd.create(topic, "c")

    def start(self) -> subprocess.Popen[bytes]:
        """Start; recovery has not begun on return, or just has."""
        with self._log.open("ab") as log:
            process = self.cli.start(*self._command, *at(self.nsqd), stderr=log)
        eventually(lambda: self._lock.read_bytes() == b"%d\n" % process.pid)
        return process

    def finish(self) -> Result:
        """A last run, until the channel is empty."""
        return self.cli(*self._command, *empty(self.nsqd), "-q", timeout=120)

    def connected(self) -> bool:
        return bool(self.nsqd.channel(self.topic, "c")["client_count"])

    def publish(self, numbers: range) -> None:
        self.nsqd.publish(self.topic, archives.bodies(numbers))

    def strike_in_a_stream(
        self, numbers: range, rng: random.Random, strike: Callable[[], object]
    ) -> None:
        """Publish in small pieces, and ``strike`` before one of them."""
        chosen = rng.randrange(len(numbers))
        for begin in range(0, len(numbers), PIECE):
            if begin <= chosen < begin + PIECE:
                strike()
            self.publish(numbers[begin : begin + PIECE])

    def strike_in_a_backlog(
        self, numbers: range, rng: random.Random, strike: Callable[[], object]
    ) -> None:
        """Publish all at once, and ``strike`` when no more than some of that waits."""
        self.publish(numbers)
        left = rng.randrange(len(numbers))
        eventually(lambda: self.depth() <= left)
        strike()

    def tear(self) -> None:
        """Leave half a record, or half a member, at the end of a work file, as a crash may."""
        folder = self.work if self.work.exists() else self.output
        for path in folder.rglob("*.part"):
            if path.stat().st_nlink == 1 and (data := path.read_bytes()):  # else it is published
                path.write_bytes(data + data[: len(data) // 2][:20])
                return

    def depth(self) -> int:
        depth: int = self.nsqd.channel(self.topic, "c")["depth"]
        return depth

    @property
    def said(self) -> str:
        return self._log.read_text()


def duplicates(found: Counter[int]) -> int:
    return found.total() - len(found)


def check_files(archiver: Archiver, records: int) -> None:
    """Every published file is whole, in the eyes of whoever reads such files."""
    files = [each for each in archives.published(archiver.output) if each.name != "manifest"]
    assert archives.verified(archiver.cli, files) == records
    assert archives.verified(archiver.cli, [archiver.output / "manifest"]) == records
    archives.checked_by_programs(files)
    assert {each.suffix for each in archives.leftovers(archiver.output, archiver.work)} <= {".torn"}


def options_of(method: str, work: bool, folder: Path) -> tuple[str, ...]:
    return ("--compress", method, *(("--work-dir", str(folder / "work")) if work else ()))


@pytest.mark.nsqd_only("a minute of kills; the sandbox would tell nothing else")
@pytest.mark.parametrize(("method", "work"), KINDS)
def test_kill_9_loses_nothing_and_doubles_no_more_than_was_in_flight(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, method: str, work: bool
) -> None:
    rng = seeded()
    options = options_of(method, work, tmp_path)
    archiver = Archiver(nsqtools_cli, make_nsqd(MSG_TIMEOUT), topic, tmp_path, *options)
    for numbers in shares(MESSAGES, ROUNDS):
        process = archiver.start()
        way = rng.choice([archiver.strike_in_a_stream, archiver.strike_in_a_backlog])
        way(numbers, rng, process.kill)
        assert process.wait() == -signal.SIGKILL, archiver.said
        if rng.random() < 0.3:
            archiver.tear()
    ended = archiver.finish()
    assert (ended.code, ended.stdout) == (0, b""), ended
    found = archives.numbers(archives.published(archiver.output / topic))
    assert found.keys() == set(range(MESSAGES))
    assert duplicates(found) <= ROUNDS * WINDOW
    check_files(archiver, found.total())


@pytest.mark.nsqd_only("the sandbox keeps nothing on disk")
@pytest.mark.parametrize(("method", "work"), [("none", False), ("zstd", True)])
def test_what_nsqd_has_on_disk_outlives_its_kill_9(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, method: str, work: bool
) -> None:
    rng = seeded()
    window, rounds, messages = 100, 5, 5000
    nsqd = make_nsqd(MSG_TIMEOUT, "-mem-queue-size=0", "-sync-every=1")
    options = ("--max-in-flight", str(window), *options_of(method, work, tmp_path))
    archiver = Archiver(nsqtools_cli, nsqd, topic, tmp_path, *options)
    process = archiver.start()

    def strike() -> None:
        nsqd.kill()
        nsqd.start()

    for numbers in shares(messages, rounds):
        eventually(archiver.connected)
        archiver.strike_in_a_stream(numbers, rng, strike)
    eventually(archiver.connected)
    eventually(lambda: drained(nsqd, topic, "c"), timeout=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, archiver.said
    found = archives.numbers(archives.published(archiver.output / topic))
    # What was on its way to a client is in nsqd's memory alone; so is what comes next.
    lost = set(range(messages)) - found.keys()
    assert len(lost) <= rounds * (window + 2)
    assert duplicates(found) <= rounds * window
    check_files(archiver, found.total())


@pytest.mark.parametrize(("method", "work"), [("none", False), ("gzip", True)])
def test_sigterm_loses_nothing_and_doubles_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, method: str, work: bool
) -> None:
    rng = seeded()
    archiver = Archiver(nsqtools_cli, nsqd, topic, tmp_path, *options_of(method, work, tmp_path))
    for numbers in shares(20_000, 5):
        process = archiver.start()
        eventually(archiver.connected)
        way = rng.choice([archiver.strike_in_a_stream, archiver.strike_in_a_backlog])
        way(numbers, rng, process.terminate)
        assert process.wait(30) == 0, archiver.said
        assert archives.leftovers(archiver.output, archiver.work) == []
        assert not nsqd.channel(topic, "c")["in_flight_count"]
    assert archiver.finish().code == 0
    found = archives.numbers(archives.published(archiver.output / topic))
    assert found == Counter(range(20_000))
    check_files(archiver, 20_000)


def test_kill_9_forgets_no_command_and_prunes_no_file_before_it(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    rng = seeded()
    safe = tmp_path / "safe"
    safe.mkdir()
    hook = f"sleep 0.2; cp {{}} $(mktemp {safe}/XXXXXXXX.log)"  # so that files wait for it
    archiver = Archiver(
        nsqtools_cli, make_nsqd(MSG_TIMEOUT), topic, tmp_path, "--keep", "1", "--on-rotate", hook
    )
    for numbers in shares(10_000, 10):
        process = archiver.start()
        archiver.strike_in_a_stream(numbers, rng, process.kill)
        assert process.wait() == -signal.SIGKILL, archiver.said
    ended = archiver.finish()
    assert ended.code == 0, ended
    assert archives.numbers(archives.published(safe)).keys() == set(range(10_000))
    assert len(archives.published(archiver.output / topic)) == 1
    assert archives.leftovers(archiver.output) == []


def test_kill_9_of_a_pair_that_takes_turns_loses_no_record_that_equals_another(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd(MSG_TIMEOUT)
    nsqd.create(topic, "c")
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(tmp_path / "out")),
        *("--filename-format", "<TOPIC><REV>.log", "--sync-interval", "50ms", "-q"),
    )
    for turn in range(10):
        work = ("--work-dir", str(tmp_path / f"work-{turn % 2}"))
        process = nsqtools_cli.start(*command, *work, *at(nsqd))
        nsqd.publish(topic, [b"beat"] * 10)
        eventually(lambda: drained(nsqd, topic, "c"))
        process.kill()
        process.wait()
    for turn in range(2):
        work = ("--work-dir", str(tmp_path / f"work-{turn}"))
        assert nsqtools_cli(*command, *work, *empty(nsqd)).code == 0
    records = list(archives.lines(archives.published(tmp_path / "out")))
    assert records == [b"beat"] * 100
    assert archives.leftovers(tmp_path) == []
