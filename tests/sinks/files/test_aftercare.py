"""What follows when a file is completed: its line in the manifest, the deletion of old files."""

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nsqtools.clock import wall
from nsqtools.errors import ConfigError, OutputError
from nsqtools.policy.filenames import NamePattern
from nsqtools.policy.matcher import NameMatcher
from nsqtools.sinks.files import ages, uploads
from nsqtools.sinks.files.aftercare import Aftercare, Manifest, find
from nsqtools.sinks.files.journal import HOOK, MANIFEST, Entry, Journal
from tests.support.archiving import (
    SECOND,
    START,
    Archiving,
    Clocks,
    Notes,
    completed,
    entry_of,
    make_rules,
)
from tests.support.faults import broken
from tests.support.sinking import started

FLAT = NameMatcher(NamePattern(filename_format="<TOPIC><REV>.log"), hostname="h", topics=("a", "b"))
DEEP = NameMatcher(
    NamePattern(filename_format="<DATETIME>/<TOPIC><REV>.log", datetime_format="dt=%d/h=%H"),
    hostname="h",
    topics=re.compile("^[ab]$"),
)
ANYTHING = NameMatcher(NamePattern(filename_format="<TOPIC>"), hostname="h", topics=re.compile("."))


class Matcher(NameMatcher):
    def match(self, path: str) -> str | None:
        return path.partition(".")[0] if path.endswith(".log") else None


class Completing:
    """Completes files, and cares for each; all before the point of a name is the topic."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.rules = make_rules(folder, output_dir=str(folder), work_dir=str(folder), **options)
        self.journal = Journal(str(folder), self.rules.host)
        pattern = NamePattern(filename_format="<TOPIC>.log")
        self.aftercare = Aftercare(
            self.rules, self.journal, Matcher(pattern, hostname="h", topics=())
        )

    def complete(self, name: str, data: bytes = b"one\n", age: float = 0.0) -> Entry:
        """A file that has its final name, and its line in the manifest."""
        path = self.folder / name
        path.write_bytes(data)
        then = path.stat().st_mtime_ns - int(age * 1e9)
        os.utime(path, ns=(then, then))
        sha256 = hashlib.sha256(data).hexdigest()
        entry = entry_of(self.rules, name)
        entry.completed = completed(
            path, topic=name.partition(".")[0], size=len(data), sha256=sha256
        )
        entry.inode, entry.owes = path.stat().st_ino, self.aftercare.owes
        self.journal.write(entry)
        self.aftercare.record(entry)
        return entry

    def complete_all(self, *names: str, age: float = 0.0) -> None:
        for name in names:
            entry = self.complete(name, age=age)
            if not entry.owes:
                self.journal.remove(entry)
            self.aftercare.follow(entry)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.log"))


class TestRetention:
    def test_the_oldest_files_go_when_there_are_too_many_of_a_topic(self, tmp_path: Path) -> None:
        for number in range(4):
            names = [f"{topic}.{number}.log" for topic in "ab"]
            Completing(tmp_path).complete_all(*names, age=100 - number)
        files = Completing(tmp_path, keep=2)
        files.complete_all("a.9.log")
        assert files.names() == ["a.3.log", "a.9.log", *(f"b.{n}.log" for n in range(4))]

    @pytest.mark.parametrize("is_gone", [True, False])
    def test_a_file_that_is_gone_or_cannot_be_deleted_keeps_no_other(
        self, is_gone: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = Completing(tmp_path, keep=1)
        files.complete_all("a.1.log")
        path = tmp_path / "a.1.log"
        path.unlink()
        if not is_gone:
            path.mkdir()  # which unlink refuses, whoever asks
        files.complete_all("a.2.log", "a.3.log")
        assert files.names() == [*([] if is_gone else [path.name]), "a.3.log"]
        assert [str(path) in text for text in caplog.messages] == [True] * (0 if is_gone else 2)


YEAR = 365 * 86_400


class TestClocks:
    """What was completed last is newest, and old is what has been there for long."""

    @pytest.mark.parametrize("jump", [-YEAR, -3600, 3 * 3600, YEAR])
    @pytest.mark.parametrize("runs", [1, 3, 6])
    @pytest.mark.parametrize("limit", [{"keep": 3}, {"max_total": 12}, {"max_age": 35.0}])
    def test_after_a_jump_the_newest_files_stay_in_one_run_and_in_many(
        self, limit: dict[str, Any], runs: int, jump: int, tmp_path: Path, clocks: Clocks
    ) -> None:
        for number in range(6):
            if number % (6 // runs) == 0:
                files = Completing(tmp_path, **limit)
                files.aftercare.prune()
            clocks.elapse(10)
            if number == 3:
                clocks.jump(jump)
            files.complete_all(f"a.{number}.log")
            at = clocks.wall
            os.utime(tmp_path / f"a.{number}.log", ns=(at, at))
        stay = 4 if "max_age" in limit else 3
        assert files.names() == [f"a.{number}.log" for number in range(6)][-stay:]
        clocks.elapse(25)
        files.aftercare.prune()
        assert len(files.names()) == (2 if "max_age" in limit else 3)

    def test_what_the_wall_clock_says_of_the_time_between_boots_does_not_count(
        self, tmp_path: Path, clocks: Clocks
    ) -> None:
        names = [f"a.{number:02}.log" for number in range(12)]
        for name in names:
            files = Completing(tmp_path, max_age=100.0)
            files.complete_all(name)
            clocks.boot = name
            clocks.jump(YEAR)
        files.aftercare.prune()
        assert files.names() == names
        clocks.elapse(101)
        files.aftercare.prune()
        assert files.names() == names[-1:]

    def test_a_file_that_is_continued_is_not_old_when_its_name_is_back(
        self, tmp_path: Path, clocks: Clocks
    ) -> None:
        files = Completing(tmp_path, max_age=100.0)
        files.complete_all("a.0.log", "a.1.log")
        entry = files.complete("a.0.log", b"one\ntwo\n")
        clocks.elapse(101)
        files.aftercare.prune()  # by the thread of another topic
        files.journal.remove(entry)
        files.aftercare.follow(entry)
        assert files.names() == ["a.0.log"]
        assert (tmp_path / "a.0.log").read_bytes() == b"one\ntwo\n"

    def test_files_that_nobody_has_seen_completed_are_new_in_the_order_of_their_times(
        self, tmp_path: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name, age in (("a.1.log", 2 * YEAR), ("a.2.log", YEAR), ("a.0.log", -YEAR)):
            touch(tmp_path / name, START - age * SECOND, "one\n")
        for number in range(2):
            files = Completing(tmp_path, max_age=3600.0)
            files.complete_all(f"a.{3 + number}.log")
            assert len(files.names()) == 4 + number
        assert len(caplog.records) == 1
        Completing(tmp_path, keep=4).aftercare.prune()
        assert "a.1.log" not in files.names()
        clocks.elapse(3601)
        Completing(tmp_path, max_age=3600.0).aftercare.prune()
        assert files.names() == ["a.4.log"]

    @pytest.mark.parametrize("fault", ["torn", "flipped", "removed", "full"])
    def test_a_file_whose_note_is_damaged_or_missing_counts_as_new(
        self, fault: str, tmp_path: Path, clocks: Clocks
    ) -> None:
        notes = tmp_path / ".nsqtools" / "ages"
        Completing(tmp_path, max_age=100.0).complete_all("a.0.log")
        clocks.elapse(60)
        with broken("append_lines", of=ages) if fault == "full" else nullcontext():
            Completing(tmp_path, max_age=100.0).complete_all("a.1.log")
        data = notes.read_bytes()
        match fault:
            case "torn":
                notes.write_bytes(data[:-9])
            case "flipped":
                notes.write_bytes(data.replace(b"a.1", b"a.9"))
            case "removed":
                notes.unlink()
        files = Completing(tmp_path, max_age=100.0)
        files.complete_all("a.2.log")
        clocks.elapse(60)
        files.aftercare.prune()
        files = Completing(tmp_path, max_age=100.0)
        files.aftercare.prune()
        old = ["a.0.log"] if fault == "removed" else []
        assert files.names() == [*old, "a.1.log", "a.2.log"]

    def test_notes_of_files_that_are_gone_are_dropped_but_the_time_is_not(
        self, tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notes = tmp_path / ".nsqtools" / "ages"
        for number in range(9):
            Completing(tmp_path, keep=1, max_age=100.0).complete_all(f"a.{number}.log")
        long = notes.stat().st_size
        monkeypatch.setattr(ages, "_SMALL", 0)
        Completing(tmp_path, max_age=100.0).aftercare.prune()
        assert notes.stat().st_size < long / 2
        clocks.elapse(101)
        files = Completing(tmp_path, max_age=100.0)
        files.complete_all("a.9.log")
        assert files.names() == ["a.9.log"]


class TestUploads:
    def upload(self, folder: Path, *names: str, **options: Any) -> Completing:
        files = Completing(folder, upload=str(folder / "remote"), **options)
        files.complete_all(*names)
        return files

    def test_a_file_is_deleted_once_it_is_uploaded_and_the_command_has_had_it(
        self, tmp_path: Path
    ) -> None:
        command = f"test -e {tmp_path}/remote/$(basename {{}}) && cp {{}} {{}}.had"
        files = self.upload(tmp_path, "a.0.log", delete_uploaded=True, on_rotate=command, keep=1)
        files.aftercare.close()
        assert files.names() == list(files.journal.owed()) == []
        for copy in ("remote/a.0.log", "a.0.log.had"):
            assert (tmp_path / copy).read_bytes() == b"one\n"

    def test_nothing_is_deleted_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "_LAST_ATTEMPTS", 1)
        (tmp_path / "remote").write_bytes(b"no directory")
        for delete in (False, True):
            name = f"a.{delete:d}.log"
            files = self.upload(tmp_path, name, delete_uploaded=delete, on_rotate="rm", keep=1)
            files.complete_all("a.9.log")
            files.aftercare.close()
            assert list(files.journal.owed()) == ["--upload"]
        assert files.names() == ["a.0.log", "a.1.log", "a.9.log"]

    def test_what_was_uploaded_is_deleted_by_the_next_run_if_it_may(self, tmp_path: Path) -> None:
        for may in (False, True):
            files = self.upload(tmp_path, delete_uploaded=may)
            entry = files.complete("a.0.log")
            entry.owes = ("--delete-uploaded",)
            files.aftercare.pay(entry)
            assert list(files.journal.owed()) == []
            assert files.names() == ([] if may else ["a.0.log"])


# Which files a walk below the output directory finds.


def touch(path: Path, mtime: int = 0, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(mtime, mtime))


def names(root: Path, matcher: NameMatcher) -> list[str]:
    return sorted(os.path.relpath(path, root) for _, path, _ in find(str(root), matcher))


def test_completed_files_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("a.log.part", "a.log.torn", "b.log.copy", "c.log", "a.log.part.part"):
        touch(tmp_path / name)
    touch(tmp_path / "a-000002.log", 1000, "four")
    ((topic, path, status),) = find(str(tmp_path), FLAT)
    assert (topic, path) == ("a", str(tmp_path / "a-000002.log"))
    assert (status.st_size, status.st_mtime_ns) == (4, 1000)
    assert names(tmp_path, ANYTHING) == ["a-000002.log", "c.log"]


def test_directories_of_partitions_are_searched_and_no_others_nor_links(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    found = ["dt=20/h=23/a.log", "dt=21/h=00/b-000001.log"]
    for name in (*found, "dt=21/a.log", "dt=2x/h=00/a.log", "other/h=00/a.log"):
        touch(root / name)
    (root / "dt=20/h=23/b.log").mkdir()
    os.mkfifo(root / "dt=21/h=00/b.log")
    touch(tmp_path / "outside/h=00/a.log")
    (root / "dt=22").symlink_to(tmp_path / "outside")
    (root / "dt=21/h=00/a.log").symlink_to(tmp_path / "outside/h=00/a.log")
    (tmp_path / "link").symlink_to(root)
    assert names(root, DEEP) == names(tmp_path / "link", DEEP) == found
    assert names(tmp_path / "later", FLAT) == []
    assert not caplog.records


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_directory_that_cannot_be_read_is_logged_unless_it_is_gone_and_the_rest_is_found(
    error: type[OSError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log")
    touch(tmp_path / "dt=21/h=00/a.log")
    scandir = os.scandir

    def scan(path: str) -> object:
        if os.path.normpath(path) == str(tmp_path / "dt=20"):
            raise error(errno.EACCES, "not readable", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert names(tmp_path, DEEP) == ["dt=21/h=00/a.log"]
    logged = [str(tmp_path / "dt=20") in text for text in caplog.messages]
    assert logged == ([True] if error is PermissionError else [])


# The manifest of completed files.

KNOWN = {
    "topic": "orders",
    "records": 3,
    "sha256": "ab" * 32,
    "format": "raw",
    "delimiter": "\\n",
    "first_timestamp": 1_763_665_200_000_000_001,
    "last_timestamp": 1_763_665_200_000_000_009,
    "first_id": "0a" * 8,
    "last_id": "0b" * 8,
    "compression": "gzip",
}
OURS, OTHER = '{"name": "a", "sha256": "00"}\n', '{"name": "b", "sha256": "00"}\n'
TORN = '{"name": "a", "sha256": "00", "topic": "a"'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "manifest"


@pytest.fixture
def append(path: Path) -> Callable[..., None]:
    """Appends the line of a file beside the manifest."""

    def append(name: str, **facts: Any) -> None:
        Manifest(str(path)).append(completed(path.parent / name, **{**KNOWN, **facts}))

    return append


def lines(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return list(map(json.loads, data.splitlines()))


def test_a_line_has_all_that_is_known_of_the_file(path: Path, append: Callable[..., None]) -> None:
    before = datetime.fromtimestamp(wall(), UTC)
    append("out/a.log.gz", size=42)
    (line,) = lines(path)
    at = line.pop("published")
    assert len(line.pop("crc32")) == 8
    assert at.endswith("Z")
    assert before <= datetime.fromisoformat(at) <= before + timedelta(minutes=5)
    assert line == {"name": "out/a.log.gz", "bytes": 42, **KNOWN}


@pytest.mark.parametrize("first", [b"text\n", b"[1]\n", b'{"name":"a"}\n', b"[" * 60_000])
def test_another_file_is_no_manifest(path: Path, first: bytes) -> None:
    path.write_bytes(first)
    with pytest.raises(ConfigError):
        Manifest(str(path)).check()
    assert path.read_bytes() == first


@pytest.mark.parametrize("first", [b"", b"\0" * 300, b'{"na', b'{"name": "b", "to'])
def test_one_whose_only_line_a_crash_has_torn_is_one(path: Path, first: bytes) -> None:
    path.write_bytes(first)
    Manifest(str(path)).check()


def test_a_name_leads_to_the_file_whatever_links_lie_between(tmp_path: Path) -> None:
    (tmp_path / "deep" / "logs").mkdir(parents=True)
    (tmp_path / "data" / "out").mkdir(parents=True)
    (tmp_path / "logs").symlink_to("deep/logs")
    (tmp_path / "data" / "out" / "a").write_text("found")
    Manifest(str(tmp_path / "logs" / "m")).append(completed(tmp_path / "data" / "out" / "a"))
    (line,) = lines(tmp_path / "logs" / "m")
    assert (tmp_path / "logs" / line["name"]).read_text() == "found"


@pytest.mark.parametrize("torn", ['{"name": "b", "to', "x" * 200_000, '{"name": "b"', "\0" * 9])
def test_a_torn_last_line_is_cut(path: Path, append: Callable[..., None], torn: str) -> None:
    for whole in ("", OURS):
        path.write_text(whole + torn)
        append("c")
        assert [line["name"] for line in lines(path)] == (["a", "c"] if whole else ["c"])


@pytest.mark.parametrize("last", [OTHER, OTHER.replace("00", "0" * 100_000)])
def test_a_last_line_that_lacks_only_its_end_is_kept(
    path: Path, append: Callable[..., None], last: str
) -> None:
    path.write_text(OURS + last.rstrip())
    append("c")
    assert [line["name"] for line in lines(path)] == ["a", "b", "c"]


def test_one_that_was_moved_away_while_it_was_locked_gets_no_line(
    path: Path, append: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    append("a")
    flock = fcntl.flock
    moved = path.with_name("moved")

    def moved_meanwhile(fd: int, how: int) -> None:
        if not moved.exists():
            path.rename(moved)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", moved_meanwhile)
    append("b")
    assert [line["name"] for line in lines(path) + lines(moved)] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("", False),
        (OURS, True),
        (OURS.rstrip(), True),
        (OURS.replace("a", "out/a", 1), False),
        (OURS.replace("00", "01"), False),
        ('{"name": "b", "sha256": "00", "topic": "a"}\n', False),
        (f"{TORN}\n", False),
        (f'"a"\n["a"]\n{TORN}\n{OURS}"a"\n{{"topic": "a"}}\n', True),
        (OURS + '{"name": "b", "rest": "%s"}\n' % ("x" * 400) * 1000, True),
    ],
)
def test_it_knows_which_files_it_has(path: Path, text: str, is_there: bool) -> None:
    path.write_text(text)
    assert Manifest(str(path)).has(str(path.with_name("a")), sha256="00") == is_there


def test_no_more_than_its_end_is_read(path: Path) -> None:
    path.write_text(OURS)
    os.truncate(path, 1 << 40)
    assert not Manifest(str(path)).has(str(path.with_name("a")), sha256="00")


def test_a_file_is_recorded_once_as_often_as_it_changes(tmp_path: Path, path: Path) -> None:
    files = Completing(tmp_path, manifest="manifest")
    for name, data in (
        ("a", b"1"),
        ("a", b"1"),
        ("b", b""),
        ("a", b"1"),
        ("a", b"12"),
        ("a", b"1"),
    ):
        files.complete(name, data)
    told = [(line["name"], line["bytes"]) for line in lines(path)]
    assert told == [("a", 1), ("b", 0), ("a", 2), ("a", 1)]


def test_a_file_of_a_run_without_manifest_is_in_none_and_one_that_owes_its_line_gets_it(
    tmp_path: Path,
) -> None:
    """A line without a checksum would make a good file bad for good."""
    manifest = tmp_path / "out" / "manifest"

    def leave(body: bytes, debt: str, **options: Any) -> Archiving:
        archiving = Archiving(tmp_path, notes=Notes(owes=(debt,)), **options)
        archiving.write(body)
        archiving.close()
        archiving.crash()
        return archiving

    plain = leave(b"one", HOOK)
    with started(plain.rules) as archives, pytest.raises(OutputError, match="on-rotate true to"):
        archives.close()
    with started(plain.rules, manifest="manifest", on_rotate="true") as archives:
        archives.close()
    assert not manifest.exists()
    kept = leave(b"two", MANIFEST, manifest="manifest")
    with started(plain.rules) as archives, pytest.raises(OutputError, match="again with --manif"):
        archives.close()
    with started(kept.rules) as archives:
        archives.close()
    (line,) = lines(manifest)
    assert line["sha256"] == hashlib.sha256(b"two\n").hexdigest()
