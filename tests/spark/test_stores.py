"""The file systems of the staging, and which locations have none that will do."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.stores import ArrowStore, LocalStore, Store, make_store, probe
from tests.support.hdfs import HdfsLike

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STORES: dict[str, Callable[[], Store]] = {
    "local": LocalStore,
    "arrow": lambda: ArrowStore(fs.LocalFileSystem()),
    "hdfs": lambda: ArrowStore(fs.PyFileSystem(HdfsLike())),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param]()


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_directory_is_made_with_its_parents_and_again(store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        store.make_dir(f"{tmp_path}/a/b")
        store.sync_dir(f"{tmp_path}/a")
    assert store.list(str(tmp_path)) == ["a"]
    assert store.list(f"{tmp_path}/a/b") == []


def test_a_directory_is_renamed_with_what_is_in_it(store: Store, tmp_path: Path) -> None:
    store.make_dir(f"{tmp_path}/a/x")
    store.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert tree(tmp_path) == ["b", "b/x"]


@pytest.mark.parametrize(
    "use",
    [
        lambda store, path: store.list(f"{path}/none"),
        lambda store, path: store.read(f"{path}/none"),
        lambda store, path: store.rename(f"{path}/a", f"{path}/b"),
        lambda store, path: store.rename(f"{path}/none/a", f"{path}/none/b"),
        # A file must not bring a directory back that is gone.
        lambda store, path: store.write(f"{path}/p/a/file", b"data"),
    ],
    ids=["list", "read", "rename", "rename in what is gone", "write"],
)
def test_what_is_not_there_is_file_not_found(
    store: Store, tmp_path: Path, use: Callable[[Store, Path], object]
) -> None:
    store.make_dir(f"{tmp_path}/p/b")
    with pytest.raises(FileNotFoundError):
        use(store, tmp_path)
    assert tree(tmp_path) == ["p", "p/b"]


def test_a_directory_with_something_in_it_is_not_replaced(store: Store, tmp_path: Path) -> None:
    store.make_dir(f"{tmp_path}/a/x")
    store.make_dir(f"{tmp_path}/b/y")
    with pytest.raises(FileExistsError):
        store.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert tree(tmp_path) == ["a", "a/x", "b", "b/y"]


def test_a_file_is_read_as_it_was_written(store: Store, tmp_path: Path) -> None:
    store.make_dir(f"{tmp_path}/p/a")
    for name, data in {"full": b"data" * 1000, "empty": b""}.items():
        store.write(f"{tmp_path}/p/a/{name}", data)
        assert store.read(f"{tmp_path}/p/a/{name}").to_pybytes() == data
    assert tree(tmp_path) == ["p", "p/a", "p/a/empty", "p/a/full"]


def test_what_was_read_outlives_the_file(store: Store, tmp_path: Path) -> None:
    path = f"{tmp_path}/p/a/file"
    store.make_dir(f"{tmp_path}/p/a")
    store.write(path, b"data" * 10000)
    data = store.read(path)
    store.remove(path)
    assert data.to_pybytes() == b"data" * 10000


def test_files_and_directories_are_removed_once_and_again(store: Store, tmp_path: Path) -> None:
    store.make_dir(f"{tmp_path}/a/b")
    store.write(f"{tmp_path}/a/file", b"data")
    store.write(f"{tmp_path}/a/b/file", b"data")
    for _ in range(2):
        store.remove(f"{tmp_path}/a/file")
    assert tree(tmp_path) == ["a", "a/b", "a/b/file"]
    for _ in range(2):
        store.remove(f"{tmp_path}/a")
    assert tree(tmp_path) == []


def test_an_error_of_a_write_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as failed:
        LocalStore().write(f"{tmp_path}/file", b"data")
    assert failed.value.filename == f"{tmp_path}/file"
    assert tree(tmp_path) == []


def test_a_probe_leaves_nothing_but_the_directory(store: Store, tmp_path: Path) -> None:
    probe(store, f"{tmp_path}/staging")
    assert tree(tmp_path) == ["staging"]


def test_a_probe_of_what_is_no_directory_is_a_matter_of_configuration(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/staging") as bad:
        probe(store, f"{tmp_path}/file/staging")
    assert "\n" not in str(bad.value)


class Unfit(LocalStore):
    """Whose renames fail."""

    def __init__(self, reason: int) -> None:
        self._reason = reason

    def rename(self, source: str, target: str) -> None:
        raise OSError(self._reason, os.strerror(self._reason), source)


def test_a_probe_tells_a_full_disk_from_a_wrong_one(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No space left on device"):
        probe(Unfit(errno.ENOSPC), str(tmp_path))
    with pytest.raises(ConfigError, match="Read-only file system"):
        probe(Unfit(errno.EROFS), str(tmp_path))
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/staging", "/data/staging"),
        ("/data//x/../staging/", "/data/staging"),
        ("file:/data/staging", "/data/staging"),
        ("file:///data/staging", "/data/staging"),
        ("FILE://localhost/data/staging", "/data/staging"),
        ("/data/a:b", "/data/a:b"),
        ("/data/a%20b", "/data/a%20b"),
    ],
)
def test_a_local_path_may_be_a_url(location: str, path: str) -> None:
    store, found = make_store(location)
    assert isinstance(store, LocalStore)
    assert found == path


@pytest.mark.parametrize(
    "location",
    [
        *("", "staging", "./staging", "file:staging", "file://host/x"),
        *("s3a://bucket/x", "gs://b/x", "abfs://b/x", "https://h/x", "C:/x"),
    ],
)
def test_a_place_that_depends_on_the_process_or_cannot_rename_at_once_is_refused(
    location: str,
) -> None:
    with pytest.raises(ConfigError, match=f"staging .?{location}.?: "):
        make_store(location)


def test_hdfs_without_its_library_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"staging hdfs://name/x: .+libhdfs"):
        make_store("hdfs://name/x")
