"""``verify`` as its users and their scripts see it: lines, JSON and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from nsqtools.sinks.files.manifest import Manifest, Published

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Called

    Verify = Callable[..., "Outcome"]


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def verify(nsqtools: Called) -> Verify:
    """Runs ``nsqtools verify`` in ``tmp_path``."""
    return lambda *args: Outcome(*nsqtools("verify", *args))


@pytest.fixture
def archives(tmp_path: Path) -> None:
    """One whole, one torn."""
    tmp_path.joinpath("good.log.gz").write_bytes(gzip.compress(b"one\ntwo\n", mtime=0))
    tmp_path.joinpath("torn.log").write_bytes(b"one\ntwo\nthr")


def publish(folder: Path, name: str, data: bytes) -> None:
    folder.joinpath(name).write_bytes(data)
    Manifest(str(folder / "manifest")).append(
        Published(
            path=str(folder / name),
            name=name,
            topic="events",
            records=data.count(b"\n"),
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            format="raw",
            delimiter="\\n",
            compression="none",
        )
    )


@pytest.mark.usefixtures("archives")
class TestArchives:
    def test_the_worst_file_gives_the_status(self, verify: Verify) -> None:
        assert verify("good.log.gz").code == 0
        assert verify("missing.log", "good.log.gz").code == 1
        assert verify("torn.log", "good.log.gz").code == 4
        assert verify("missing.log", "torn.log").code == 4

    def test_good_files_and_bad_ones_are_told_on_stdout_what_cannot_be_read_on_stderr(
        self, verify: Verify
    ) -> None:
        done = verify("torn.log", "missing.log", "good.log.gz")
        assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
            "torn.log",
            "good.log.gz",
        ]
        assert "missing.log" in done.stderr

    def test_quiet_tells_of_bad_files_alone(self, verify: Verify) -> None:
        assert verify("-q", "good.log.gz") == Outcome(0, "", "")
        (told,) = verify("-q", "good.log.gz", "torn.log").stdout.splitlines()
        assert told.startswith("torn.log: ")

    def test_json_has_an_object_a_line(self, verify: Verify, tmp_path: Path) -> None:
        done = verify("--json", "good.log.gz", "torn.log")
        size = (tmp_path / "good.log.gz").stat().st_size
        assert list(map(json.loads, done.stdout.splitlines())) == [
            {"file": "good.log.gz", "ok": True, "records": 2, "bytes": size},
            {
                "file": "torn.log",
                "ok": False,
                "records": 2,
                "bytes": 8,
                "problem": "record 3 at byte 8: it is torn",
            },
        ]

    def test_the_options_say_how_records_stand_in_the_file(
        self, verify: Verify, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"one\0")
        assert verify("--delimiter", r"\0", "a") == Outcome(0, "a: ok, 1 record, 4 bytes\n", "")
        (tmp_path / "a").write_bytes(b"\0\0\0\1x")
        done = verify("--format", "length-prefixed", "a")
        assert done.stdout == "a: ok, 1 record, 5 bytes\n"

    def test_a_name_forges_no_line(self, verify: Verify, tmp_path: Path) -> None:
        (tmp_path / "a\nb: ok").write_bytes(b"one")
        (line,) = verify("a\nb: ok").stdout.splitlines()
        assert line.startswith("a\\nb: ok: ")


class TestManifests:
    def test_a_good_one_gets_the_sums_of_its_files(self, verify: Verify, tmp_path: Path) -> None:
        for number in range(3):
            publish(tmp_path, f"{number}.log", b"one\ntwo\n")
        told = "manifest: ok, 6 records, 24 bytes, 3 files"
        assert verify("manifest") == Outcome(0, f"{told}\n", "")
        (tmp_path / "0.log").unlink()
        told = "manifest: ok, 4 records, 16 bytes, 2 files, 1 older file deleted"
        assert verify("manifest") == Outcome(0, f"{told}\n", "")
        shown = json.loads(verify("--json", "manifest").stdout)
        assert (shown["files"], shown["deleted"]) == (2, 1)

    def test_a_file_that_was_continued_is_what_its_last_line_says(
        self, verify: Verify, tmp_path: Path
    ) -> None:
        publish(tmp_path, "m.log", b"one\n")
        publish(tmp_path, "m.log", b"one\ntwo\n")
        assert verify("manifest") == Outcome(0, "manifest: ok, 2 records, 8 bytes, 1 file\n", "")

    def test_each_bad_line_of_one_is_told(self, verify: Verify, tmp_path: Path) -> None:
        for number in range(3):
            publish(tmp_path, f"{number}.log", b"one\ntwo\n")
        (tmp_path / "0.log").write_bytes(b"one\ntw")
        (tmp_path / "2.log").unlink()
        done = verify("-q", "manifest")
        assert done.code == 4
        assert [line.split(": ")[1:3] for line in done.stdout.splitlines()] == [
            ["line 1", "0.log"],
            ["line 3", "2.log"],
        ]
