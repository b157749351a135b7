"""Copies on their way to another file system, which a kill may leave."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.sinks.files import publish
from tests.sinks.files.archiving import below, other_disk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def work(tmp_path: Path) -> Iterator[str]:
    """On another file system than ``target``."""
    with other_disk(tmp_path) as other:
        path = other / "a.log.part"
        path.write_bytes(b"records\n")
        yield str(path)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "out" / "a.log")


@pytest.mark.parametrize("there", ["file", "link"])
def test_files_that_others_call_copies_are_left_alone(
    work: str, there: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(target).parent
    folder.mkdir(parents=True)
    theirs = [folder / "a.log.copy", folder / ".a.log.00000000.copy"]
    (tmp_path / "precious").write_bytes(b"precious")
    for path in theirs:
        path.symlink_to(tmp_path / "precious") if there == "link" else path.write_bytes(b"1")
    tokens = ["00000000", "11111111"]
    monkeypatch.setattr(secrets, "token_hex", lambda _: tokens.pop(0))
    before = [(path.lstat(), path.read_bytes()) for path in theirs]
    publish.publish(work, target)
    assert Path(target).read_bytes() == b"records\n"
    assert [(path.lstat(), path.read_bytes()) for path in theirs] == before
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert below(str(folder)) == [".a.log.00000000.copy", "a.log", "a.log.copy"]


def test_a_copy_is_held_until_it_has_its_name(
    work: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    link = os.link

    def look_and_link(source: str, to: str) -> None:
        if source.endswith(".copy"):
            seen.append(publish.remove_copy(source))
        link(source, to)

    monkeypatch.setattr(os, "link", look_and_link)
    publish.publish(work, target)
    assert seen == [False]
    assert Path(target).read_bytes() == b"records\n"


def test_a_copy_that_is_removed_as_it_is_made_is_made_anew(
    work: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    lost: list[str] = []

    def removed_first(fd: int, how: int) -> None:
        if not lost:
            lost.append(os.readlink(f"/proc/self/fd/{fd}"))
            assert publish.copied_name(os.path.basename(lost[0])) == "a.log"
            os.unlink(lost[0])
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    publish.publish(work, target)
    assert Path(target).read_bytes() == b"records\n"
    assert os.listdir(os.path.dirname(target)) == ["a.log"]


def test_a_copy_that_cannot_be_removed_does_not_undo_what_is_published(
    work: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        publish.publish(work, target)
    folder = Path(target).parent
    (copy,) = (name for name in os.listdir(folder) if name != "a.log")
    assert publish.remove_copy(str(folder / copy))
    assert not publish.remove_copy(str(folder / copy))
    assert Path(target).read_bytes() == b"records\n"


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        (".a.log.0123abcd.copy", "a.log"),
        (".a\nb.0123abcd.copy", "a\nb"),
        ("a.log.copy", None),
        ("a.log.0123abcd.copy", None),
        (".a.log.copy", None),
        ("..0123abcd.copy", None),
        (".a.log.0123ABCD.copy", None),
        (".a.log.0123abcd.copy.part", None),
    ],
)
def test_a_copy_is_known_by_its_name(name: str, copied: str | None) -> None:
    assert publish.copied_name(name) == copied
