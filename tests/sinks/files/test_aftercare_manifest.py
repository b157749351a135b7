"""The manifest of published files."""

from __future__ import annotations

import fcntl
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError
from nsqtools.sinks.files.aftercare import Manifest
from tests.support.archiving import published

if TYPE_CHECKING:
    from pathlib import Path

SUM = "ab" * 32


KNOWN = {
    "topic": "orders",
    "records": 3,
    "sha256": SUM,
    "format": "raw",
    "delimiter": "\\n",
    "first_timestamp": 1_763_665_200_000_000_001,
    "last_timestamp": 1_763_665_200_000_000_009,
    "first_id": "0a" * 8,
    "last_id": "0b" * 8,
    "compression": "gzip",
}


class Lines:
    """A manifest in a folder, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "manifest.jsonl"

    def append(self, name: str, **facts: Any) -> None:
        Manifest(str(self.path)).append(published(self.folder / name, **{**KNOWN, **facts}))

    def has(self, name: str, sha256: str = SUM) -> bool:
        return Manifest(str(self.path)).has(str(self.folder / name), sha256=sha256)

    def all(self) -> list[dict[str, Any]]:
        text = self.path.read_text()
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    def names(self) -> list[str]:
        return [line["name"] for line in self.all()]


@pytest.fixture
def manifest(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


class TestLines:
    def test_a_line_has_all_that_is_known_of_the_file(self, manifest: Lines) -> None:
        before = datetime.now(UTC)
        manifest.append("out/a.log.gz", size=42)
        (line,) = manifest.all()
        at = line.pop("published")
        assert at.endswith("Z")
        assert before <= datetime.fromisoformat(at) <= before + timedelta(minutes=5)
        assert line == {"name": "out/a.log.gz", "bytes": 42, **KNOWN}

    @pytest.mark.parametrize("first", [b"text\n", b"[1]\n", b'{"name":"a"}\n', b"[" * 60_000])
    def test_another_file_is_no_manifest(self, manifest: Lines, first: bytes) -> None:
        manifest.path.write_bytes(first)
        with pytest.raises(ConfigError):
            Manifest(str(manifest.path)).check()
        assert manifest.path.read_bytes() == first

    def test_a_name_leads_to_the_file_whatever_links_lie_between(self, tmp_path: Path) -> None:
        (tmp_path / "deep" / "logs").mkdir(parents=True)
        (tmp_path / "data" / "out").mkdir(parents=True)
        (tmp_path / "logs").symlink_to("deep/logs")
        (tmp_path / "data" / "out" / "a").write_text("found")
        Manifest(str(tmp_path / "logs" / "m")).append(published(tmp_path / "data" / "out" / "a"))
        name = json.loads((tmp_path / "logs" / "m").read_text())["name"]
        assert (tmp_path / "logs" / name).read_text() == "found"


class TestFaults:
    @pytest.mark.parametrize("torn", ['{"name": "b", "to', "x" * 200_000, '{"name": "b"', "\0" * 9])
    @pytest.mark.parametrize("whole", ["", '{"name": "a"}\n'])
    def test_a_torn_last_line_is_cut(self, manifest: Lines, whole: str, torn: str) -> None:
        manifest.path.write_text(whole + torn)
        manifest.append("c")
        assert manifest.names() == (["a", "c"] if whole else ["c"])

    def test_one_that_was_moved_away_while_it_was_locked_gets_no_line(
        self, manifest: Lines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest.append("a")
        flock = fcntl.flock
        moved = manifest.folder / "moved"

        def moved_meanwhile(fd: int, how: int) -> None:
            if not moved.exists():
                manifest.path.rename(moved)
            flock(fd, how)

        monkeypatch.setattr(fcntl, "flock", moved_meanwhile)
        manifest.append("b")
        assert manifest.names() == ["b"]
        assert moved.read_bytes().count(b"\n") == 1


class TestHas:
    def test_it_knows_what_was_appended_and_nothing_else(self, manifest: Lines) -> None:
        assert not manifest.has("out/a")
        manifest.append("out/a")
        assert manifest.has("out/a")
        assert not manifest.has("a")
        assert not manifest.has("orders")

    def test_it_tells_a_file_that_took_a_name_from_those_that_had_it_before(
        self, manifest: Lines
    ) -> None:
        for sha256 in ("01" * 32, "02" * 32):
            assert not manifest.has("a", sha256)
            manifest.append("a", sha256=sha256)
            manifest.append("b", sha256="03" * 32)
            assert manifest.has("a", sha256)
        assert not manifest.has("a", "01" * 32)
        assert not manifest.has("a", "03" * 32)

    def test_a_last_line_that_lacks_only_its_end_counts_and_is_kept(self, manifest: Lines) -> None:
        manifest.path.write_text('{"name": "a"}\n{"name": "b", "sha256": "00"}')
        assert manifest.has("b", "00")
        manifest.append("c")
        assert manifest.names() == ["a", "b", "c"]

    def test_it_looks_past_lines_that_are_none(self, manifest: Lines) -> None:
        ours, torn = '{"name": "a", "sha256": "00"}', '{"name": "b", "sha256": "00", "topic": "a"'
        manifest.path.write_text(f'"a"\n["a"]\n{torn}\n{ours}\n"a"\n{{"topic": "a"}}\n')
        assert manifest.has("a", "00")
        assert not manifest.has("b", "00")

    def test_it_finds_the_files_of_a_thousand_lines_ago(self, manifest: Lines) -> None:
        manifest.append("a")
        with manifest.path.open("ab") as file:
            file.write(b'{"name": "b", "rest": "%s"}\n' % (b"x" * 400) * 1000)
        assert manifest.has("a")

    def test_it_reads_no_more_than_the_end(self, manifest: Lines) -> None:
        with manifest.path.open("wb") as file:
            file.write(b'{"name": "a", "sha256": "00"}\n')
            file.truncate(1 << 40)
        assert not manifest.has("a", "00")
