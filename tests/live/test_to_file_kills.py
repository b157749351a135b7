"""``to-file`` killed at random moments: what it leaves is whole, also for other programs.

A moment is a number of messages that were taken, drawn by chance: it does not depend on how fast
the machine is, and its phase against syncs and rotations is anyone's guess.
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
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

WINDOW = 2500  # --max-in-flight


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
    def files(self) -> list[Path]:
        return archives.published(self.output / self.topic)

    def tear(self) -> None:
        """Leave half a record, or half a member, at the end of a work file, as a crash may."""
        folder = self.work if self.work.exists() else self.output
        for path in folder.rglob("*.part"):
            if path.stat().st_nlink == 1 and (data := path.read_bytes()):  # else it is published
                half = data[: len(data) // 2][:20]  # torn twice it must not make a whole record
                path.write_bytes(data + half.partition(b"\n")[0])
                return


@pytest.fixture
def victim(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Victim:
    made = Victim(nsqtools_cli, make_nsqd("-msg-timeout=1s"), topic, tmp_path)
    made.make_known()
    return made


def test_kill_9_loses_nothing_and_doubles_no_more_than_was_in_flight(
    victim: Victim, rng: random.Random, full: bool
) -> None:
    piece, rounds = (9000, 9) if full else (6000, 2)
    options = ("--compress", "zstd", "--work-dir", str(victim.work))
    for number in range(rounds):
        victim.numbers(number * piece, (number + 1) * piece)
        running = victim.start(*options)
        left = rng.randrange(piece)
        eventually(lambda left=left: victim.depth() <= left)  # type: ignore[misc]
        running.kill()
        if rng.random() < 0.3:
            victim.tear()
    ended = victim.run(*options, "-q", timeout=120)
    assert (ended.code, ended.stdout) == (0, b""), ended
    found = victim.found
    assert found.keys() == set(range(rounds * piece))
    assert found.total() - rounds * piece <= rounds * WINDOW
    assert archives.verified(victim.cli, victim.files) == found.total()
    assert archives.verified(victim.cli, [victim.output / "manifest"]) == found.total()
    archives.checked_by_programs(victim.files)
    assert {each.suffix for each in archives.leftovers(victim.output, victim.work)} <= {".torn"}
