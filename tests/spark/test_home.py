"""The home of Spark whose Python processes import pyspark compiled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyspark
import pytest

from nsqtools.spark.home import compiled_home

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, where nothing is yet."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_pyspark_as_installed_but_for_its_zip(cache: Path) -> None:
    home = Path(compiled_home() or "")
    assert home.is_relative_to(cache)
    assert sorted(os.listdir(home)) == ["bin", "conf", "jars"]
    for part in ("bin", "jars"):
        assert (home / part).samefile(INSTALLED / part)


def test_it_is_the_same_each_time(cache: Path) -> None:
    assert compiled_home() == compiled_home()
    assert len(list((cache / "nsqtools").iterdir())) == 1


def test_it_is_made_whole_again(cache: Path) -> None:
    home = Path(compiled_home() or "")
    (home / "jars").unlink()
    assert compiled_home() == str(home)
    assert (home / "jars").samefile(INSTALLED / "jars")


def test_a_home_that_was_set_is_used_instead(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert compiled_home() is None


def test_links_to_other_places_are_not_followed(cache: Path, tmp_path: Path) -> None:
    home = Path(compiled_home() or "")
    shutil.copytree(INSTALLED / "bin", tmp_path / "bin")
    (home / "bin").unlink()
    (home / "bin").symlink_to(tmp_path / "bin")
    assert compiled_home() is None


def test_a_home_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled_home()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert compiled_home() is None


@pytest.mark.parametrize("place", ["not-a-directory/c", "../cache", "a:b/cache", "jürgen/c"])
def test_without_a_cache_there_is_none(
    place: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not-a-directory").touch()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    absolute = str(tmp_path / place) if not place.startswith(".") else place
    monkeypatch.setenv("XDG_CACHE_HOME", absolute)
    assert compiled_home() is None
    assert not (tmp_path / "cache").exists()
