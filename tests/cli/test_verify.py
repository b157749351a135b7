"""``verify`` as its users and their scripts see it: lines, JSON and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from nsqtools.cli import Entry, LazyGroup
from nsqtools.cli.exits import run
from nsqtools.sinks.files.manifest import Manifest, Published

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Verify = Callable[..., "Outcome"]

CLI = LazyGroup(
    name="nsqtools",
    table={"verify": Entry("nsqtools.cli.verify:verify", "Check archives and manifests.", "Look")},
)


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verify:
    """Runs ``nsqtools verify`` in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NSQTOOLS_CONFIG", "none")

    def verify(*args: str) -> Outcome:
        return Outcome(run(CLI, ["verify", *args]), *capsys.readouterr())

    return verify


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
    def test_a_good_file_gets_a_line_and_status_0(self, verify: Verify, tmp_path: Path) -> None:
        size = (tmp_path / "good.log.gz").stat().st_size
        told = f"good.log.gz: ok, 2 records, {size} bytes\n"
        assert verify("good.log.gz") == Outcome(0, told, "")

    def test_a_bad_file_gets_the_place_of_its_first_fault_and_status_4(
        self, verify: Verify
    ) -> None:
        done = verify("torn.log", "good.log.gz")
        bad, good = done.stdout.splitlines()
        assert bad == "torn.log: record 3 at byte 8: it is torn"
        assert good.startswith("good.log.gz: ok, ")
        assert (done.code, done.stderr) == (4, "")

    def test_a_file_that_cannot_be_read_is_told_on_stderr_with_status_1(
        self, verify: Verify
    ) -> None:
        done = verify("missing.log", "good.log.gz")
        assert (done.code, done.stdout.count("\n")) == (1, 1)
        assert done.stderr == "nsqtools: missing.log: No such file or directory\n"
        assert verify("missing.log", "torn.log").code == 4

    def test_quiet_tells_of_bad_files_alone(self, verify: Verify) -> None:
        assert verify("-q", "good.log.gz") == Outcome(0, "", "")
        told = "torn.log: record 3 at byte 8: it is torn\n"
        assert verify("-q", "good.log.gz", "torn.log") == Outcome(4, told, "")

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

    def test_a_compressed_file_of_nothing_is_bad(self, verify: Verify, tmp_path: Path) -> None:
        (tmp_path / "a.log.zst").touch()
        (tmp_path / "a.log").touch()
        told = "a.log.zst: empty: not even one zstd frame\na.log: ok, 0 records, 0 bytes\n"
        assert verify("a.log.zst", "a.log") == Outcome(4, told, "")

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
        assert verify("a\nb: ok").stdout == "a\\nb: ok: record 1 at byte 0: it is torn\n"

    @pytest.mark.parametrize(
        "args",
        [
            (),
            ("--format", "csv", "good.log.gz"),
            ("--delimiter", "", "good.log.gz"),
            ("--delimiter", r"\q", "good.log.gz"),
            ("--format", "json", "--delimiter", "x", "good.log.gz"),
        ],
    )
    def test_a_wrong_command_line_is_status_2_and_nothing_is_read(
        self, verify: Verify, args: tuple[str, ...]
    ) -> None:
        done = verify(*args)
        assert (done.code, done.stdout) == (2, "")
        assert done.stderr


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
        assert done.stdout.splitlines() == [
            "manifest: line 1: 0.log: record 2 at byte 4: it is torn",
            "manifest: line 3: 2.log: gone, though an older file of its topic is there",
        ]
