from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError
from nsqtools.sinks.files.locks import open_locked
from nsqtools.sinks.files.manifest import LatestLink, Manifest, Published

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [
    *("name", "topic", "records", "bytes", "sha256"),
    *("first_timestamp", "last_timestamp", "first_id", "last_id"),
    *("format", "delimiter", "compression", "published"),
]

SUM = "ab" * 32

APPEND = """
import sys
from nsqtools.sinks.files.manifest import Manifest, Published
manifest, folder = Manifest(sys.argv[1]), sys.argv[2]
for number in range(50):
    name = f"{sys.argv[3]}-{number}"
    manifest.append(Published(
        path=f"{folder}/{name}", name=name, topic="t" * 5000, records=1, size=1, sha256="",
        format="raw", delimiter="", compression="none",
    ))
"""


def made(path: Path, **facts: Any) -> Published:
    published = Published(
        path=str(path),
        name=path.name,
        topic="orders",
        records=3,
        size=42,
        sha256=SUM,
        first_timestamp=1_763_665_200_000_000_001,
        last_timestamp=1_763_665_200_000_000_009,
        first_id="0a" * 8,
        last_id="0b" * 8,
        format="raw",
        delimiter="\\n",
        compression="gzip",
    )
    return replace(published, **facts)


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifest.jsonl"


def test_a_line_has_all_that_is_known_of_the_file(tmp_path: Path, manifest: Path) -> None:
    before = datetime.now(UTC)
    Manifest(str(manifest)).append(made(tmp_path / "out" / "a.log.gz"))
    (line,) = lines(manifest)
    assert list(line) == KEYS
    published = line.pop("published")
    assert published.endswith("Z")
    assert before <= datetime.fromisoformat(published) <= before + timedelta(minutes=5)
    assert list(line.values()) == [
        "out/a.log.gz",
        "orders",
        3,
        42,
        "ab" * 32,
        1_763_665_200_000_000_001,
        1_763_665_200_000_000_009,
        "0a" * 8,
        "0b" * 8,
        "raw",
        "\\n",
        "gzip",
    ]


def test_what_is_unknown_is_null(tmp_path: Path, manifest: Path) -> None:
    unknown = made(tmp_path / "a", records=None, first_timestamp=None, first_id=None)
    Manifest(str(manifest)).append(unknown)
    (line,) = lines(manifest)
    assert (line["records"], line["first_timestamp"], line["first_id"]) == (None, None, None)


def test_lines_follow_one_another(tmp_path: Path, manifest: Path) -> None:
    for name in "abc":
        Manifest(str(manifest)).append(made(tmp_path / name))
    assert [line["name"] for line in lines(manifest)] == ["a", "b", "c"]


@pytest.mark.parametrize("first", [b"text\n", b"[1]\n", b'{"name":"a"}\n', b"[" * 60_000])
def test_another_file_is_no_manifest(manifest: Path, first: bytes) -> None:
    manifest.write_bytes(first)
    with pytest.raises(ConfigError, match="is no manifest"):
        Manifest(str(manifest)).check()
    assert manifest.read_bytes() == first


def test_directories_of_a_manifest_are_made(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "m"
    Manifest(str(path)).append(made(tmp_path / "out" / "a"))
    assert lines(path)[0]["name"] == "../../out/a"


def test_a_relative_manifest_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = Manifest("m")
    monkeypatch.chdir("/")
    manifest.append(made(tmp_path / "a"))
    assert lines(tmp_path / "m")[0]["name"] == "a"


def test_a_name_leads_to_the_file_whatever_links_lie_between(tmp_path: Path) -> None:
    (tmp_path / "deep" / "logs").mkdir(parents=True)
    (tmp_path / "data" / "out").mkdir(parents=True)
    (tmp_path / "logs").symlink_to("deep/logs")
    (tmp_path / "data" / "out" / "a").write_text("found")
    Manifest(str(tmp_path / "logs" / "m")).append(made(tmp_path / "data" / "out" / "a"))
    name = lines(tmp_path / "logs" / "m")[0]["name"]
    assert (tmp_path / "logs" / name).read_text() == "found"


def test_below_the_manifest_a_name_is_as_it_was_given(tmp_path: Path, manifest: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to("elsewhere")
    Manifest(str(manifest)).append(made(tmp_path / "out" / "a"))
    assert lines(manifest)[0]["name"] == "out/a"


@pytest.mark.parametrize("torn", ['{"name": "b", "to', "x" * 200_000, '{"name": "b"', "\0" * 300])
@pytest.mark.parametrize("whole", ["", '{"name": "a"}\n'])
def test_a_torn_last_line_is_cut(tmp_path: Path, manifest: Path, whole: str, torn: str) -> None:
    manifest.write_text(whole + torn)
    Manifest(str(manifest)).append(made(tmp_path / "c"))
    expected = ["a", "c"] if whole else ["c"]
    assert [line["name"] for line in lines(manifest)] == expected


def test_a_full_disk_leaves_the_manifest_as_it_was(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Manifest(str(manifest)).append(made(tmp_path / "a"))
    before = manifest.read_bytes()
    write = os.write
    written: list[bytes] = []

    def fills_up(fd: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(data)
        return write(fd, data[:10])

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(OSError, match="No space") as caught:
        Manifest(str(manifest)).append(made(tmp_path / "b"))
    assert caught.value.filename == str(manifest)
    assert manifest.read_bytes() == before


def test_a_line_that_did_not_reach_the_disk_is_taken_back(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            Manifest(str(manifest)).append(made(tmp_path / "a"))
    assert lines(manifest) == []
    Manifest(str(manifest)).append(made(tmp_path / "a"))
    assert len(lines(manifest)) == 1


def test_several_processes_share_a_manifest(tmp_path: Path, manifest: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(manifest), str(tmp_path), str(number)])
        for number in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    expected = {f"{process}-{number}" for process in range(4) for number in range(50)}
    names = [line["name"] for line in lines(manifest)]
    assert (len(names), set(names)) == (200, expected)


def test_a_manifest_that_was_moved_away_while_it_was_locked_gets_no_line(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Manifest(str(manifest)).append(made(tmp_path / "a"))
    flock = fcntl.flock
    moved = tmp_path / "moved"

    def moved_meanwhile(fd: int, how: int) -> None:
        if not moved.exists():
            manifest.rename(moved)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", moved_meanwhile)
    Manifest(str(manifest)).append(made(tmp_path / "b"))
    assert [line["name"] for line in lines(moved)] == ["a"]
    assert [line["name"] for line in lines(manifest)] == ["b"]


def test_append_gives_the_manifest_back(tmp_path: Path, manifest: Path) -> None:
    Manifest(str(manifest)).append(made(tmp_path / "a"))
    fd = open_locked(str(manifest), wait=False)
    assert fd is not None
    os.close(fd)


def test_has_knows_what_was_appended_and_nothing_else(tmp_path: Path, manifest: Path) -> None:
    both = Manifest(str(manifest))
    assert not both.has(str(tmp_path / "out" / "a"), sha256=SUM)
    both.append(made(tmp_path / "out" / "a"))
    assert both.has(str(tmp_path / "out" / "a"), sha256=SUM)
    assert not both.has(str(tmp_path / "a"), sha256=SUM)
    assert not both.has(str(tmp_path / "orders"), sha256=SUM)


def test_has_tells_a_file_that_took_a_name_from_those_that_had_it_before(
    tmp_path: Path, manifest: Path
) -> None:
    path = str(tmp_path / "a")
    of = Manifest(str(manifest))
    for sha256 in ("01" * 32, "02" * 32):
        assert not of.has(path, sha256=sha256)
        of.append(made(tmp_path / "a", size=42, sha256=sha256))
        of.append(made(tmp_path / "b", sha256="03" * 32))
        assert of.has(path, sha256=sha256)
    assert not of.has(path, sha256="01" * 32)
    assert not of.has(path, sha256="03" * 32)


def test_has_finds_names_of_any_text(tmp_path: Path, manifest: Path) -> None:
    path = tmp_path / 'ü "quoted" \\ \udcff'
    Manifest(str(manifest)).append(made(path))
    assert Manifest(str(manifest)).has(str(path), sha256=SUM)


def test_a_last_line_that_lacks_only_its_end_counts_and_is_kept(
    tmp_path: Path, manifest: Path
) -> None:
    manifest.write_text('{"name": "a"}\n{"name": "b", "sha256": "00"}')
    assert Manifest(str(manifest)).has(str(tmp_path / "b"), sha256="00")
    Manifest(str(manifest)).append(made(tmp_path / "c"))
    assert [line["name"] for line in lines(manifest)] == ["a", "b", "c"]


def test_has_looks_past_lines_that_are_none(tmp_path: Path, manifest: Path) -> None:
    ours, torn = '{"name": "a", "sha256": "00"}', '{"name": "b", "sha256": "00", "topic": "a"'
    manifest.write_text(f'"a"\n["a"]\n{torn}\n{ours}\n"a"\n{{"topic": "a"}}\n')
    assert Manifest(str(manifest)).has(str(tmp_path / "a"), sha256="00")
    assert not Manifest(str(manifest)).has(str(tmp_path / "b"), sha256="00")


def test_has_finds_the_files_of_a_thousand_lines_ago(tmp_path: Path, manifest: Path) -> None:
    Manifest(str(manifest)).append(made(tmp_path / "a"))
    with manifest.open("ab") as file:
        file.write(b'{"name": "b", "rest": "%s"}\n' % (b"x" * 400) * 1000)
    assert Manifest(str(manifest)).has(str(tmp_path / "a"), sha256=SUM)


def test_has_reads_no_more_than_the_end(tmp_path: Path, manifest: Path) -> None:
    with manifest.open("wb") as file:
        file.write(b'{"name": "a", "sha256": "00"}\n')
        file.truncate(1 << 40)
    assert not Manifest(str(manifest)).has(str(tmp_path / "a"), sha256="00")


def test_a_link_is_made_and_moved_and_is_relative(tmp_path: Path) -> None:
    link = tmp_path / "links" / "latest"
    for name in "ab":
        (tmp_path / name).write_text(name)
        LatestLink(str(link)).point(str(tmp_path / name))
        assert os.readlink(link) == f"../{name}"
        assert link.read_text() == name
    assert os.listdir(link.parent) == ["latest"]


def test_a_link_is_there_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = LatestLink(str(tmp_path / "latest"))
    link.point(str(tmp_path / "a"))
    replacing = os.replace

    def look_and_replace(source: str, target: str) -> None:
        assert os.readlink(target) == "a"
        replacing(source, target)
        assert os.readlink(target) == "b"

    monkeypatch.setattr(os, "replace", look_and_replace)
    link.point(str(tmp_path / "b"))
    assert os.readlink(tmp_path / "latest") == "b"


def test_a_dangling_link_is_moved(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("deleted")
    LatestLink(str(tmp_path / "latest")).point(str(tmp_path / "a"))
    assert os.readlink(tmp_path / "latest") == "a"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_link_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "latest"
    path.mkdir() if kind == "directory" else path.write_text("data")
    with pytest.raises(FileExistsError) as caught:
        LatestLink(str(path)).point(str(tmp_path / "a"))
    assert caught.value.filename == str(path)
    assert not path.is_symlink()
    assert os.listdir(tmp_path) == ["latest"]


def test_a_link_that_cannot_be_moved_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        LatestLink(str(tmp_path / "latest")).point(str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []
