"""``verify`` of directories, where its golden file does not say it."""

import gzip
import hashlib
import json
import os
from errno import EACCES
from pathlib import Path

import pytest

from tests.support.archiving import Archiving, Notes, give_away
from tests.support.process import Called


def test_of_a_directory_the_state_of_each_file_is_told_and_a_name_forges_no_line(
    nsqtools: Called, tmp_path: Path
) -> None:
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
    (folder / "listed").write_bytes(b"four\n")
    listed = {"name": "listed", "topic": "events", "records": 1, "bytes": 5, "format": "raw"}
    listed |= {"sha256": hashlib.sha256(b"four\n").hexdigest(), "delimiter": "\\n"}
    (folder / "manifest").write_text(f"{json.dumps(listed | {'compression': 'none'})}\n")
    for name in ("bad", "a\nb", ".hidden", "x.torn"):
        (folder / name).write_bytes(b"torn")
    (folder / "lost.gz.part").write_bytes(gzip.compress(b"five\n"))
    (folder / ".nsqtools" / "0123abcd.7.json").write_bytes(b"[" * 50_000)
    code, told, errors = nsqtools("verify", "out")
    states = {line.split(": ")[0]: line.split(": ")[1] for line in told.splitlines()[:-1]}
    assert (code, errors) == (4, "")
    assert {name.rpartition("/")[2]: state for name, state in states.items()} == {
        "0123abcd.7.json": "damaged",
        "a\\nb": "record 1 at byte 0",
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
        "out: 1 damaged, 3 completed, 1 owing, 1 orphaned, 1 torn, 2 under way"
    )
    shown = [json.loads(line) for line in nsqtools("verify", "--json", "-q", "out")[1].splitlines()]
    assert [each["ok"] for each in shown] == [False] * 4
    assert nsqtools("verify", "out/lost.gz.part")[:2] == (
        0,
        f"out/lost.gz.part: ok, 1 record, {(folder / 'lost.gz.part').stat().st_size} bytes\n",
    )
    under_way.crash()


@pytest.mark.parametrize("name", ["file", "folder/secret"])
def test_a_link_in_a_manifest_is_followed_unless_another_user_made_it(
    nsqtools: Called, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"four\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "out" / "folder").symlink_to(tmp_path)
    listed = {"name": name, "topic": "events", "records": 1, "bytes": 5, "format": "raw"}
    listed |= {"sha256": hashlib.sha256(b"four\n").hexdigest(), "delimiter": "\\n"}
    (tmp_path / "out" / "m").write_text(f"{json.dumps(listed | {'compression': 'none'})}\n")
    monkeypatch.chdir(tmp_path / "out")
    assert nsqtools("verify", "m")[::2] == (0, "")
    give_away(tmp_path / "out" / name.partition("/")[0], monkeypatch)
    code, told, errors = nsqtools("verify", "m")
    assert (code, told) == (1, "")
    assert "another user" in errors


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


def test_a_directory_that_cannot_be_read_is_no_good_one(
    nsqtools: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / "shut").mkdir(parents=True)
    scan = os.scandir

    def refuse(path: str) -> object:  # as for anybody but root
        if path.endswith("shut"):
            raise PermissionError(EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, told, errors = nsqtools("verify", "out")
    assert (code, told) == (1, "")
    assert errors.endswith("/out/shut: Permission denied\n")
