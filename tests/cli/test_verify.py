"""``verify`` where it is not said by its golden file: what the options do, and good manifests."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from typing import TYPE_CHECKING

from nsqtools.records.manifest import Published
from nsqtools.sinks.files.aftercare import Manifest
from tests.support.archiving import Archiving, Notes

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.process import Called


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


def test_a_name_forges_no_line(nsqtools: Called, tmp_path: Path) -> None:
    (tmp_path / "a\nb: ok").write_bytes(b"one")
    (line,) = nsqtools("verify", "a\nb: ok")[1].splitlines()
    assert line.startswith("a\\nb: ok: ")


def test_of_a_directory_the_state_of_each_file_is_told(nsqtools: Called, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    work = str(tmp_path / "work")
    owing = Archiving(tmp_path, work_dir=work, notes=Notes(owes=("--upload",)))
    owing.write(b"one")
    owing.close()
    owing.crash()
    left = Archiving(tmp_path, work_dir=work)
    left.write(b"two")
    left.crash()
    under_way = Archiving(tmp_path, filename_format="now.<REV>", work_dir=work)
    under_way.write(b"three")
    publish(folder, "listed", b"four\n")
    (folder / "listed").with_name("bad").write_bytes(b"torn")
    (folder / ".hidden").write_bytes(b"torn")
    (folder / "x.torn").write_bytes(b"torn")
    (folder / "lost.gz.part").write_bytes(gzip.compress(b"five\n"))
    (folder / ".nsqtools" / "0123abcd.7.json").write_bytes(b"[" * 50_000)
    code, told, errors = nsqtools("verify", "out")
    states = {line.split(": ")[0]: line.split(": ")[1] for line in told.splitlines()[:-1]}
    assert (code, errors) == (4, "")
    assert {name.rpartition("/")[2]: state for name, state in states.items()} == {
        "0123abcd.7.json": "damaged",
        "bad": "record 1 at byte 0",
        "events.host-000000.2026-11-20_19.log": "ok, 1 record, 4 bytes, waiting for --upload or "
        "--on-rotate",
        "events.host-000001.2026-11-20_19.log.part": "under way",
        "lost.gz.part": "orphaned",
        "manifest": "ok, 1 record, 5 bytes, 1 file",
        "now.-000000.part": "under way",
        "x.torn": "torn",
    }
    assert told.splitlines()[-1] == (
        "out: 1 damaged, 3 published, 1 owing, 1 orphaned, 1 torn, 2 under way"
    )
    shown = [json.loads(line) for line in nsqtools("verify", "--json", "-q", "out")[1].splitlines()]
    assert [each["ok"] for each in shown] == [False] * 3
    assert nsqtools("verify", "out/lost.gz.part")[:2] == (
        0,
        f"out/lost.gz.part: ok, 1 record, {(folder / 'lost.gz.part').stat().st_size} bytes\n",
    )
    under_way.crash()


def test_files_that_go_while_a_directory_is_read_are_no_fault(
    nsqtools: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(6)]
    for path in paths:
        path.write_bytes(b"one\n")
    gone = iter(paths[::2])
    status = os.lstat

    def going(path: str) -> os.stat_result:
        if path.endswith(".log") and (each := next(gone, None)):
            each.unlink()
        return status(path)

    monkeypatch.setattr(os, "lstat", going)
    code, told, errors = nsqtools("verify", ".")
    assert (code, errors) == (0, "")
    assert {line.partition(":")[0] for line in told.splitlines()[:-1]} == {
        f"./{number}.log" for number in (1, 3, 5)
    }


def test_what_might_never_end_is_not_read(nsqtools: Called, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "/dev/zero"):
        assert nsqtools("verify", name) == (1, "", f"nsqtools: {name}: not a regular file\n")
    publish(tmp_path, "a.log", b"one\n")
    (tmp_path / "a.log").unlink()
    os.mkfifo(tmp_path / "a.log")
    told = "manifest: line 1: a.log: not a regular file\n"
    assert nsqtools("verify", "manifest") == (4, told, "")


def test_a_good_manifest_gets_the_sums_of_its_files(nsqtools: Called, tmp_path: Path) -> None:
    for number in range(3):
        publish(tmp_path, f"{number}.log", b"one\ntwo\n")
    told = "manifest: ok, 6 records, 24 bytes, 3 files"
    assert nsqtools("verify", "manifest") == (0, f"{told}\n", "")
    (tmp_path / "0.log").unlink()
    told = "manifest: ok, 4 records, 16 bytes, 2 files, 1 older file deleted"
    assert nsqtools("verify", "manifest") == (0, f"{told}\n", "")
    shown = json.loads(nsqtools("verify", "--json", "manifest")[1])
    assert (shown["files"], shown["deleted"]) == (2, 1)
