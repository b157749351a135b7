"""``to-file`` and nsqd killed at random moments, while numbered messages flow.

A moment is a number of messages that were published or taken, drawn by chance: it does not depend
on how fast the machine is, and its phase against syncs and rotations is anyone's guess.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nsqtools.stores import open_store
from tests.support import archives
from tests.support.archives import Archiver
from tests.support.eventually import eventually

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.consuming import Running
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

PIECE = 60
WINDOW = 2500  # --max-in-flight

MSG_TIMEOUT = "-msg-timeout=1s"
"""What was in flight with a killed process comes again after that."""


@dataclass(frozen=True, slots=True)
class Victim(Archiver):
    """Rotates all the time; runs one at a time."""

    def usual(self) -> tuple[str, ...]:
        return (
            *super(Victim, self).usual(),
            *("--filename-format", "<TOPIC>/<DATETIME><REV>.log", "--manifest", "manifest"),
            *("--rotate-interval", "200ms", "--lock", "lock"),
        )

    @property
    def manifest(self) -> Path:
        return self.output / "manifest"

    @property
    def files(self) -> list[Path]:
        return archives.published(self.output / self.topic)

    def begin(self, *options: str) -> Running:
        """Start; recovery has not begun on return, or just has."""
        running = self.start(*options)
        pid = b"%d\n" % running.process.pid
        eventually(lambda: (self.folder / "lock").read_bytes() == pid)
        return running

    def strike(self, numbers: range, rng: random.Random, blow: Callable[[], object]) -> None:
        """Publish, and give the blow while these are written: in a stream or in a backlog."""
        if rng.random() < 0.5:
            self.strike_in_a_stream(numbers, rng, blow)
            return
        self.publish(archives.bodies(numbers))
        left = rng.randrange(len(numbers))
        eventually(lambda: self.depth() <= left)
        blow()

    def strike_in_a_stream(
        self, numbers: range, rng: random.Random, blow: Callable[[], object]
    ) -> None:
        """Publish in small pieces, and give the blow before one of them."""
        chosen = rng.randrange(len(numbers))
        for begin in range(0, len(numbers), PIECE):
            if begin <= chosen < begin + PIECE:
                blow()
            self.publish(archives.bodies(numbers[begin : begin + PIECE]))

    def tear(self) -> None:
        """Leave half a record, or half a member, at the end of a work file, as a crash may."""
        folder = self.work if self.work.exists() else self.output
        for path in folder.rglob("*.part"):
            if path.stat().st_nlink == 1 and (data := path.read_bytes()):  # else it is published
                half = data[: len(data) // 2][:20]  # torn twice it must not make a whole record
                path.write_bytes(data + half.partition(b"\n")[0])
                return

    def check_files(self, records: int) -> None:
        """Every published file is whole, in the eyes of whoever reads such files."""
        assert archives.verified(self.cli, self.files) == records
        assert archives.verified(self.cli, [self.manifest]) == records
        archives.checked_by_programs(self.files)
        assert {each.suffix for each in archives.leftovers(self.output, self.work)} <= {".torn"}


@pytest.fixture
def victim(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Victim:
    made = Victim(nsqtools_cli, make_nsqd(MSG_TIMEOUT), topic, tmp_path)
    made.make_known()
    return made


def options_of(method: str, work: bool, victim: Victim) -> tuple[str, ...]:
    return ("--compress", method, *(("--work-dir", str(victim.work)) if work else ()))


@pytest.mark.parametrize("work", [False, True], ids=["", "work"])
@pytest.mark.parametrize("method", ["none", "gzip", "zstd"])
def test_kill_9_loses_nothing_and_doubles_no_more_than_was_in_flight(
    victim: Victim, rng: random.Random, method: str, work: bool, full: bool
) -> None:
    messages, rounds = (84_000, 9) if full else (12_000, 2)
    options = options_of(method, work, victim)
    for numbers in archives.shares(messages, rounds):
        running = victim.begin(*options)
        victim.strike(numbers, rng, running.kill)
        if rng.random() < 0.3:
            victim.tear()
    ended = victim.run(*options, "-q", timeout=120)
    assert (ended.code, ended.stdout) == (0, b""), ended
    found = victim.found
    assert found.keys() == set(range(messages))
    assert found.total() - messages <= rounds * WINDOW
    victim.check_files(found.total())


@pytest.mark.nsqd_only("the sandbox keeps nothing on disk")
@pytest.mark.parametrize(("method", "work"), [("none", False), ("zstd", True)])
def test_what_nsqd_has_on_disk_outlives_its_kill_9(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    tmp_path: Path,
    rng: random.Random,
    on_disk: tuple[str, ...],
    method: str,
    work: bool,
    full: bool,
) -> None:
    messages, rounds, window = (5000, 5, 100) if full else (1000, 2, 100)
    nsqd = make_nsqd(MSG_TIMEOUT, *on_disk)
    victim = Victim(nsqtools_cli, nsqd, topic, tmp_path)
    victim.make_known()
    running = victim.begin("--max-in-flight", str(window), *options_of(method, work, victim))

    def blow() -> None:
        nsqd.kill()
        nsqd.start()

    for numbers in archives.shares(messages, rounds):
        running.connect()
        victim.strike_in_a_stream(numbers, rng, blow)
    running.finish()
    # What was on its way to a client is in nsqd's memory alone; so is what comes next.
    found = victim.found
    lost = set(range(messages)) - found.keys()
    assert len(lost) <= rounds * (window + 2)
    assert found.total() - len(found) <= rounds * window
    victim.check_files(found.total())


@pytest.mark.parametrize(("method", "work"), [("none", False), ("gzip", True)])
def test_sigterm_loses_nothing_and_doubles_nothing(
    victim: Victim, rng: random.Random, method: str, work: bool, full: bool
) -> None:
    messages, rounds = (20_000, 5) if full else (6000, 2)
    options = options_of(method, work, victim)
    for numbers in archives.shares(messages, rounds):
        running = victim.begin(*options, "--msg-timeout", "1m")
        running.connect()
        victim.strike(numbers, rng, running.process.terminate)
        assert running.process.wait(100) == 0, running.said
        assert archives.leftovers(victim.output, victim.work) == []
        assert not victim.channel()["in_flight_count"]
    assert victim.run(*options).code == 0
    assert victim.found == Counter(range(messages))
    victim.check_files(messages)


def test_kill_9_forgets_no_command_and_prunes_no_file_before_it(
    victim: Victim, rng: random.Random, full: bool
) -> None:
    messages, rounds = (10_000, 10) if full else (2000, 3)
    safe = victim.folder / "safe"
    safe.mkdir()
    # A slow command, so that files wait for it; how slow it is decides nothing.
    hook = f"sleep 0.2; cp {{}} $(mktemp {safe}/XXXXXXXX.log)"
    options = ("--keep", "1", "--on-rotate", hook)
    for numbers in archives.shares(messages, rounds):
        running = victim.begin(*options)
        victim.strike_in_a_stream(numbers, rng, running.kill)
    ended = victim.run(*options, timeout=120)
    assert ended.code == 0, ended
    assert archives.numbers(archives.published(safe)).keys() == set(range(messages))
    assert len(victim.files) == 1
    assert archives.leftovers(victim.output) == []


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_kill_9_uploads_every_file_once_and_deletes_none_before(
    victim: Victim,
    rng: random.Random,
    kind: str,
    full: bool,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    messages, rounds = (40_000, 20) if full else (4000, 2)
    place = request.getfixturevalue("bucket") if kind == "s3" else f"file://{tmp_path}/remote"
    options = ("--gzip", "--upload", place)
    for numbers in archives.shares(messages, rounds):
        running = victim.begin(*options, "--delete-uploaded")
        victim.strike_in_a_stream(numbers, rng, running.kill)
    ended = victim.run(*options, "--delete-uploaded", timeout=120)
    assert ended.code == 0, ended
    assert victim.files == []
    assert archives.leftovers(victim.output) == []

    store, copies = open_store(place), tmp_path / "copies"
    for each in store.files():
        (copies / each.path).parent.mkdir(parents=True, exist_ok=True)
        (copies / each.path).write_bytes(store.get(each.path))
    found = archives.numbers(archives.published(copies))
    assert found.keys() == set(range(messages))
    assert found.total() - messages <= rounds * WINDOW
    assert archives.verified(victim.cli, [victim.manifest], "--uploaded", place) == found.total()


def test_kill_9_of_a_pair_that_takes_turns_loses_no_record_that_equals_another(
    archiver: Archiver, full: bool
) -> None:
    turns = 10 if full else 4
    for turn in range(turns):
        running = archiver.start("--work-dir", str(archiver.folder / f"work-{turn % 2}"))
        archiver.publish([b"beat"] * 10)
        running.drain()
        running.kill()
    for turn in range(2):
        work = ("--work-dir", str(archiver.folder / f"work-{turn}"))
        assert archiver.run(*work).code == 0
    assert list(archives.lines(archiver.files)) == [b"beat"] * 10 * turns
    assert archives.leftovers(archiver.folder) == []
