"""Dead letters of a directory, and what people do to its files.

Runs that choose, stop or are killed are lives in tests/simulation.
"""

import asyncio
import gzip
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsqtools.errors import LockedError, OutputError, PublishError, RecordError
from nsqtools.redrive.directory import DirectoryRun
from nsqtools.redrive.publishedlines import LineRange, PublishedLines, joined
from nsqtools.redrive.redriver import LARGEST_LOT, Choice, Redriver
from nsqtools.sinks.deadletters import ToDirectory
from tests.support.archiving import batch
from tests.support.damage import cut, flipped


class Nsqd:
    """Gets messages; ``answer`` is called after each publish."""

    def __init__(self) -> None:
        self.got: Counter[tuple[str, bytes]] = Counter()
        self.answer: Callable[[], None] = lambda: None

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        refused = [n for n, body in enumerate(bodies) if body == b"refused"]
        self.got.update((topic, body) for body in bodies if body != b"refused")
        self.answer()
        if refused:
            raise PublishError("E_BAD_MESSAGE", refused, permanent=True)

    async def close(self) -> None:
        pass


def append(folder: Path, topic: str, *bodies: bytes) -> None:
    async def write() -> None:
        letters = ToDirectory(str(folder))
        await letters.open()
        await letters.write(given := batch(*bodies, topic=topic), given, "r")
        await letters.close()

    asyncio.run(write())


def run(
    folder: Path,
    nsqd: Nsqd,
    where: str = "",
    *,
    topic: str = "",
    **more: Any,
) -> DirectoryRun:
    """A whole run."""

    async def work() -> DirectoryRun:
        redriver = Redriver(nsqd, **more)
        choice = Choice(where)
        made = DirectoryRun(str(folder), redriver, choice, topic=topic, max_msg_size=1 << 20)
        await made.run()
        return made

    return asyncio.run(work())


def test_a_stopped_run_begins_no_further_publish(tmp_path: Path) -> None:
    append(tmp_path, "t", *(b"%d" % n for n in range(3 * LARGEST_LOT)))
    nsqd = Nsqd()
    redriver = Redriver(nsqd)
    nsqd.answer = redriver.stopping.set
    made = DirectoryRun(str(tmp_path), redriver, Choice(), topic="", max_msg_size=1 << 20)
    asyncio.run(made.run())
    assert (nsqd.got.total(), made.is_complete) == (LARGEST_LOT, False)


def test_one_run_at_a_time_and_a_dry_run_beside_it_touches_nothing(tmp_path: Path) -> None:
    append(tmp_path, "t", b"1", b"2")
    nsqd = Nsqd()
    with PublishedLines(str(tmp_path)), pytest.raises(LockedError):
        run(tmp_path, nsqd)
    with PublishedLines(str(tmp_path)):
        names = set(tmp_path.iterdir())
        run(tmp_path, nsqd, dry=True)
        assert set(tmp_path.iterdir()) == names
    assert not nsqd.got


def test_a_file_may_be_renamed_and_compressed_and_grow(tmp_path: Path) -> None:
    nsqd, file = Nsqd(), tmp_path / "t.dead.jsonl"
    append(tmp_path, "t", b"1", b"2", b"3")
    run(tmp_path, nsqd, limit=2)
    (tmp_path / "old.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    append(tmp_path, "t", b"4")
    with file.open("ab") as torn:
        torn.write(b'{"reason":"torn')
    assert run(tmp_path, nsqd).faults == []
    assert nsqd.got == Counter(("t", b"%d" % n) for n in range(1, 5))
    append(tmp_path, "t", b"5" * 300_000, b"6")
    assert run(tmp_path, nsqd, ". != 6").faults == []
    append(tmp_path, "t", b"7")
    assert run(tmp_path, nsqd).faults == []
    assert nsqd.got.pop(("t", b"5" * 300_000)) == 1
    assert nsqd.got == Counter(("t", b"%d" % n) for n in (1, 2, 3, 4, 6, 7))


def test_a_file_that_gets_a_new_one_in_its_place_is_read_to_its_end(tmp_path: Path) -> None:
    nsqd, file = Nsqd(), tmp_path / "t.dead.jsonl"
    append(tmp_path, "t", *(b"%d" % n for n in range(LARGEST_LOT + 1)))

    def rotate() -> None:
        nsqd.answer = lambda: None
        file.rename(tmp_path / "u.jsonl")
        file.write_bytes(b'{"reason":"r","topic":"t","body":"new"}\n')

    nsqd.answer = rotate
    for _ in range(2):
        assert run(tmp_path, nsqd).faults == []
    assert set(nsqd.got.values()) == {1}
    assert len(nsqd.got) == LARGEST_LOT + 2


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_not_read_of_a_file_is_a_fault(tmp_path: Path, suffix: str) -> None:
    line, pack = b'{"topic":"t.dead","body":"%d"}', gzip.compress if suffix else bytes
    open_end, too_long = line % 1 + b"\n" + line % 2, line % 3 + b"\n" + b"x" * (7 << 20)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(pack(open_end))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(too_long))
    nsqd = Nsqd()
    end, size = run(tmp_path, nsqd).faults
    assert end.startswith(f"a.jsonl{suffix}: byte 30: the last line has no line end")
    assert size.startswith(f"b.jsonl{suffix}: byte 30: a line over 6356992 bytes")
    assert nsqd.got == Counter({("t", b"1"): 1, ("t", b"3"): 1})


@pytest.mark.parametrize("cut", ["first", "last", "middle", "inside"])
def test_published_lines_that_have_changed_stop_their_file_only(tmp_path: Path, cut: str) -> None:
    nsqd, file = Nsqd(), tmp_path / "t.dead.jsonl"
    append(tmp_path, "t", b"1", b"2", b"3")
    append(tmp_path, "u", b"1")
    run(tmp_path, nsqd, ". != 2" if cut == "middle" else "")
    lines = file.read_bytes().splitlines(keepends=True)
    left = {
        "first": lines[1:],
        "last": lines[:2],
        "middle": [lines[0], lines[2]],
        "inside": [lines[0], lines[1][:-2], lines[2]],
    }[cut]
    file.write_bytes(b"".join(left))
    append(tmp_path, "u", b"4")
    done = run(tmp_path, nsqd)
    assert nsqd.got["u", b"4"] == 1
    if cut == "first":  # another file
        assert (done.faults, nsqd.got["t", b"3"]) == ([], 2)
    else:
        assert ["changed" in each for each in done.faults] == [True]


def test_a_damaged_member_is_not_published_and_those_before_it_are(tmp_path: Path) -> None:
    line = b'{"topic":"t.dead","body":"%d"}\n'
    bad = bytearray(gzip.compress(line % 2))
    bad[-8] ^= 1  # its checksum
    (tmp_path / "archive.log.gz").write_bytes(gzip.compress(line % 1) + bad)
    nsqd = Nsqd()
    (fault,) = run(tmp_path, nsqd).faults
    assert fault.startswith("archive.log.gz: gzip member 2 ")
    assert nsqd.got == Counter({("t", b"1"): 1})


def test_a_file_that_is_not_compressed_as_its_name_says_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(b"no frame at all")
    assert [each.split(": ")[0] for each in run(tmp_path, Nsqd()).faults] == ["a.jsonl.zst"]


@pytest.mark.parametrize("topic", [b"null", b"5", b'["t"]'])
def test_a_topic_is_a_text(tmp_path: Path, topic: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"topic":%s,"body":"1","reason":"r"}\n' % topic)
    nsqd = Nsqd()
    done = run(tmp_path, nsqd)
    assert (nsqd.got, done.unusable) == (Counter(), 1)


def test_an_ordinary_archive_is_published_only_to_a_given_topic(tmp_path: Path) -> None:
    nsqd = Nsqd()
    (tmp_path / "t.log").write_bytes(b'{"topic":"t","body":"1"}\n')
    done = run(tmp_path, nsqd)
    assert (done.unusable, nsqd.got) == (1, Counter())
    assert done.faults == ["t.log: byte 0: not a dead letter, as it has no reason: give --topic"]
    assert run(tmp_path, nsqd, topic="u").faults == []
    assert nsqd.got == Counter({("u", b"1"): 1})


def test_without_an_answer_only_accepted_messages_are_noted(tmp_path: Path) -> None:
    nsqd = Nsqd()
    append(tmp_path, "t", b"1", b"2")

    def fail() -> None:
        raise PublishError("no nsqd is connected", [0], permanent=False)

    nsqd.answer = fail
    with pytest.raises(OutputError, match="topic t: no nsqd is connected"):
        run(tmp_path, nsqd)
    nsqd.answer = lambda: None
    run(tmp_path, nsqd)
    assert nsqd.got == Counter({("t", b"1"): 2, ("t", b"2"): 1})


@pytest.mark.parametrize(
    "line",
    [
        *(b"{broken\n", b"[]\n", b'{"file":"x"}\n'),
        *(b'{"file":"x","published":%s}\n' % lines for lines in (b"[[1]]", b'[[1,2,"3"]]')),
    ],
)
def test_a_damaged_journal_stops_the_run_but_not_the_rest_of_a_crash(
    tmp_path: Path, line: bytes
) -> None:
    nsqd, journal = Nsqd(), tmp_path / "redrive.progress"
    append(tmp_path, "t", b"1", b"2")
    run(tmp_path, nsqd, limit=1)
    noted = journal.read_bytes()
    journal.write_bytes(noted + line + noted)
    with pytest.raises(RecordError, match=r"redrive.progress: line 2: .* remove the file"):
        run(tmp_path, nsqd)
    journal.write_bytes(noted + line[:-2])
    for _ in range(2):
        run(tmp_path, nsqd)
    assert nsqd.got == Counter({("t", b"1"): 1, ("t", b"2"): 1})


def test_a_journal_with_damage_anywhere_is_named_and_tells_no_other_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut may be that of a crash: then the messages of the last line count as left."""
    monkeypatch.setattr(os, "fsync", bool)
    journal, first, second = tmp_path / "redrive.progress", LineRange(0, 9, 5), LineRange(9, 12, 7)
    with PublishedLines(str(tmp_path)) as noted:
        noted.add("a", "letters", [first])
        noted.add("a", "letters", [second])
    whole = journal.read_bytes()
    for at, data in flipped(whole):
        journal.write_bytes(data)
        line = whole.count(b"\n", 0, at) + 1
        with pytest.raises(RecordError, match=f"line {line}: "), PublishedLines(str(tmp_path)):
            pass
        assert journal.read_bytes() == data
    for _, data in [*cut(whole)][len(whole) // 2 :]:
        journal.write_bytes(data)
        with PublishedLines(str(tmp_path)) as left:
            told = [[first, second][n] for n in range((data + b"\n").count(b"}\n"))]
            assert left.published("a") == joined(told)
            left.add("a", "letters", [second])
        with PublishedLines(str(tmp_path)) as left:
            assert left.published("a") == joined([*told, second])


def test_a_journal_of_version_0_3_is_read(tmp_path: Path) -> None:
    """Without checksums."""
    (tmp_path / "redrive.progress").write_bytes(
        b'{"file": "a", "name": "b", "published": [[0, 9, 5]]}\n' * 2
    )
    with PublishedLines(str(tmp_path)) as noted:
        assert noted.published("a") == [LineRange(0, 9, 5)]


def test_a_journal_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    append(tmp_path, "t", b"1")
    os.mkfifo(tmp_path / "redrive.progress")
    with pytest.raises(RecordError, match="is not a file"):
        run(tmp_path, Nsqd())
