"""``to-file`` and nsqd killed at random moments, while numbered messages flow.

A moment is a number of messages that were published or taken, drawn by chance: it does not depend
on how fast the machine is, and its phase against syncs and rotations is anyone's guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

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
