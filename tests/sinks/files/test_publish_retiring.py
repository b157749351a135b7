"""Directories of work files, which come and go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sinks.files import publish
from tests.support.archiving import below

if TYPE_CHECKING:
    from pathlib import Path


def test_directories_that_it_leaves_empty_go_up_to_the_root(tmp_path: Path) -> None:
    root = tmp_path / "work"
    path = root / "dt=20" / "hour=19" / "a.log.part"
    os.close(publish.create(str(path)))
    publish.retire(str(path), root=str(root))
    assert os.listdir(root) == []


def test_one_that_is_not_empty_stays_with_those_above_it(tmp_path: Path) -> None:
    root = tmp_path / "work"
    for hour in ("hour=19", "hour=20"):
        os.close(publish.create(str(root / "dt=20" / hour / "a.log.part")))
    publish.retire(str(root / "dt=20" / "hour=19" / "a.log.part"), root=str(root))
    assert below(str(root)) == ["dt=20/hour=20/a.log.part"]
    assert os.listdir(root / "dt=20") == ["hour=20"]


def test_without_a_root_or_above_it_none_goes(tmp_path: Path) -> None:
    for root in ("", str(tmp_path / "da"), str(tmp_path / "day"), f"{tmp_path}/day/"):
        path = tmp_path / "day" / "a.part"
        os.close(publish.create(str(path)))
        publish.retire(str(path), root=root)
        assert os.listdir(tmp_path) == ["day"]


def test_one_that_another_topic_removes_first_hides_none_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work" / "dt=20" / "hour=19" / "a.log.part"
    os.close(publish.create(str(path)))
    rmdir = os.rmdir

    def twice(folder: str) -> None:
        rmdir(folder)
        rmdir(folder)

    monkeypatch.setattr(os, "rmdir", twice)
    publish.retire(str(path), root=str(tmp_path / "work"))
    assert os.listdir(tmp_path / "work") == []


@pytest.mark.parametrize("when", ["before it is opened", "while it is made"])
def test_a_file_is_made_though_its_directory_goes_meanwhile(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work" / "dt=20" / "hour=19" / "a.log.part"
    path.parent.parent.mkdir(parents=True)
    gone: list[str] = []

    def gone_first(call: Any) -> Any:
        def interfere(name: str, *rest: int) -> Any:
            folder = os.path.dirname(name)
            if not gone and name == str(path if call is real_open else path.parent):
                os.rmdir(folder)
                gone.append(folder)
            return call(name, *rest)

        return interfere

    real_open, real_mkdir = os.open, os.mkdir
    if when == "while it is made":
        monkeypatch.setattr(os, "mkdir", gone_first(real_mkdir))
    else:
        monkeypatch.setattr(os, "open", gone_first(real_open))
    os.close(publish.create(str(path)))
    assert gone
    assert path.exists()


def test_a_directory_that_cannot_be_made_is_an_error_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "dt=20").symlink_to("nothing")
    with pytest.raises(FileNotFoundError):
        publish.create(str(tmp_path / "dt=20" / "a.log.part"))
