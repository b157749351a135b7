"""What every kind of store promises, and what it says where it cannot."""

# size: each promise is tested with every kind of store

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from nsqtools import stores
from nsqtools.errors import ConfigError, OutputError
from nsqtools.stores import objectstore, open_store, probe
from nsqtools.stores.hadoop import HadoopStore
from nsqtools.stores.interface import UNNAMED
from nsqtools.stores.mounted import LocalStore
from nsqtools.stores.objectstore import ObjectStore
from tests.support.faults import broken
from tests.support.hdfs import HdfsLike
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.stores.interface import Data, Store
    from tests.support.minio import Minio

pytestmark = pytest.mark.timeout(900)  # MinIO may have to be built


@pytest.fixture(params=["local", "hdfs", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return open_store(f"{tmp_path}/place")
        case "hdfs":
            return HadoopStore("hdfs://name/place", fs.PyFileSystem(HdfsLike()), f"{tmp_path}/x")
        case _:
            return open_store(f"{request.getfixturevalue('bucket')}/place")


def names(store: Store) -> list[str]:
    return sorted(file.path for file in store.files())


@pytest.mark.parametrize("size", [100, 300_000])
def test_of_eight_who_create_a_file_one_does(store: Store, size: int) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return store.put_if_absent("a/file", bytes([number]) * size)

    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(create, range(8)))
    assert done.count(True) == 1
    assert store.get("a/file") == bytes([done.index(True)]) * size
    assert names(store) == ["a/file"]


def test_a_repeated_request_whose_response_was_lost_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    handler = HdfsLike()
    handler.loses_responses = True
    hdfs = HadoopStore("hdfs://name/x", fs.PyFileSystem(handler), str(tmp_path / "hdfs"))
    assert hdfs.put_if_absent("a", b"one")
    assert not hdfs.put_if_absent("a", b"two")

    cloud = open_store(bucket)
    cloud.put("a", b"one")
    assert cloud.put_if_absent("a", b"one")

    def link(source: str, target: str) -> None:
        linked(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", target)

    linked = os.link
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert LocalStore(str(tmp_path)).put_if_absent("a", b"one")


def test_a_file_is_replaced_as_a_whole(store: Store) -> None:
    probe(store)  # which leaves nothing
    store.put("file", b"one" * 1000)
    store.put("file", b"two")
    assert store.get("file") == b"two"
    assert names(store) == ["file"]


def test_a_part_of_a_file_can_be_read(store: Store) -> None:
    store.put("file", memoryview(bytes(range(200))))
    store.put("empty", b"")
    assert store.get("file", 10, 20) == bytes(range(10, 30))
    assert store.get("file", 0, 5) == bytes(range(5))
    assert store.get("file", 190) == bytes(range(190, 200))
    assert store.get("empty") == b""


def test_folders_come_and_go_with_their_files(store: Store) -> None:
    for path in ("a/x", "a/b/y", "ab", "c"):
        store.put(path, b"12345")
    assert sorted(store.list("")) == ["a", "ab", "c"]
    assert sorted(store.list("a")) == ["b", "x"]
    assert names(store) == ["a/b/y", "a/x", "ab", "c"]
    assert sorted((file.path, file.size) for file in store.files("a")) == [("a/b/y", 5), ("a/x", 5)]
    assert all(file.mtime_ns > 1e18 for file in store.files())
    for _ in range(2):
        store.delete("a")
        store.delete("c")
        assert names(store) == ["ab"]


def test_what_does_not_exist_is_file_not_found_or_empty(store: Store) -> None:
    store.put("a", b"")
    with pytest.raises(FileNotFoundError) as missing:
        store.get("none/file")
    assert missing.value.filename
    assert store.list("none") == []
    assert list(store.files("none")) == []


@pytest.mark.parametrize("size", [0, 10, 20 << 20])
def test_a_file_that_is_written_appears_at_the_end(store: Store, size: int) -> None:
    with store.create("a/file") as file:
        file.write(b"x" * size)
        assert names(store) == []
    assert [(each.path, each.size) for each in store.files()] == [("a/file", size)]


@pytest.mark.parametrize("size", [0, 10, 20 << 20])
def test_of_a_file_whose_writer_fails_nothing_is_left(store: Store, size: int) -> None:
    store.put("file", b"before")
    for path in ("file", "new"):
        with suppress(ZeroDivisionError), store.create(path) as file:
            file.write(b"x" * size)
            raise ZeroDivisionError
    assert names(store) == ["file"]
    assert store.get("file") == b"before"


def test_what_a_killed_writer_has_left_can_be_removed(store: Store) -> None:
    if not isinstance(store, ObjectStore):  # it has no files without a name
        store.put(f"a/{UNNAMED}left", b"")
    store.put("a/file", b"")
    store.sweep("a")
    store.sweep("none")
    assert store.list("a") == ["file"]
    with pytest.raises(FileNotFoundError):
        store.get(f"a/{UNNAMED}left")


def test_sweeping_spares_what_is_being_written(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with store.create("a/file") as file:
        store.sweep("a")
        file.write(b"one")
    assert store.get("a/file") == b"one"


def test_what_is_swept_away_before_its_writer_has_locked_it_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lock = LocalStore(str(tmp_path)), fcntl.flock

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and len(os.listdir(tmp_path)) == 1:
            monkeypatch.undo()
            store.sweep("")
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    store.put("file", b"one")
    assert os.listdir(tmp_path) == ["file"]
    assert store.get("file") == b"one"


def test_arrow_writes_to_it_and_does_not_complete_it_after_an_error(store: Store) -> None:
    table = pa.table({"n": list(range(1000))})
    with store.create("whole") as file:
        pq.write_table(table, file)
    assert pq.read_table(pa.BufferReader(store.get("whole"))).equals(table)
    with suppress(ZeroDivisionError), store.create("half") as file:
        writer = pq.ParquetWriter(file, table.schema)
        writer.write_table(table)
        writer.close()
        raise ZeroDivisionError
    assert names(store) == ["whole"]


@pytest.mark.parametrize("size", [0, 10, 9 << 20])
def test_a_file_is_created_by_its_writer_unless_there_is_one(store: Store, size: int) -> None:
    with store.create("a/file", replace=False) as file:
        file.write(b"x" * size)
    with pytest.raises(FileExistsError), store.create("a/file", replace=False) as file:
        file.write(b"y" * (size + 1))
    assert [(each.path, each.size) for each in store.files()] == [("a/file", size)]


@pytest.mark.parametrize("size", [0, 10, 9 << 20])
def test_a_file_is_uploaded_once_and_replaces_no_other(
    store: Store, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    moves: list[None] = []
    for _ in range(2):
        with path.open("rb") as file:
            store.upload(file, "a/file", moved=lambda: moves.append(None))
        assert bool(moves) == bool(size)
    for other in (b"x" * (size + 1), b"x" * (size - 1) + b"y"):
        path.write_bytes(other)
        with path.open("rb") as file, pytest.raises(FileExistsError, match="another file"):
            store.upload(file, "a/file")
    with store.open("a/file") as copy:
        assert copy.read() == b"x" * size
    assert names(store) == ["a/file"]


def test_a_store_that_creates_a_file_twice_is_refused(tmp_path: Path) -> None:
    class Careless(LocalStore):
        def put_if_absent(self, path: str, data: Data) -> bool:
            self.put(path, data)
            return True

    with pytest.raises(ConfigError, match="twice"):
        probe(Careless(str(tmp_path)))


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, OutputError), (errno.EROFS, ConfigError)]
)
def test_a_probe_tells_a_full_disk_from_a_wrong_one(
    tmp_path: Path, code: int, kind: type[Exception]
) -> None:
    with broken("link", code), pytest.raises(kind, match=os.strerror(code)):
        probe(LocalStore(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_what_is_no_directory_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=str(tmp_path / "file")) as bad:
        probe(open_store(f"{tmp_path}/file/staging"))
    assert "\n" not in str(bad.value)


def test_files_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        LocalStore(str(tmp_path)).put("a/file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a/file").stat().st_mode) == 0o644


def test_a_full_disk_can_be_listed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("file", b"")
    with broken("mkdir", errno.ENOSPC):
        assert store.list("") == ["file"]


def interrupt_once_called(server: socket.socket) -> None:
    with server.accept()[0]:
        os.kill(os.getpid(), signal.SIGINT)


class TestS3:
    """Errors are a line that names the URL; most need no retry."""

    def refusal(self, place: str) -> OSError:
        with pytest.raises(OSError, match="file") as failed:
            open_store(place).put_if_absent("file", uuid4().bytes)
        assert failed.value.filename == f"{place}/file"
        assert "\n" not in str(failed.value)
        return failed.value

    @pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", ""])
    def test_a_wrong_key_or_none_names_the_variables(
        self, bucket: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        if wrong:
            monkeypatch.setenv(wrong, "wrong")
        else:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            monkeypatch.setenv("HOME", str(tmp_path))
        error = self.refusal(bucket)
        assert error.errno == errno.EACCES
        assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(error)

    def test_an_empty_variable_is_none(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "")
        assert open_store(bucket).put_if_absent("file", b"1")
        with pytest.raises(FileNotFoundError, match=os.strerror(errno.ENOENT)):
            open_store(bucket).stat("none")

    def test_a_bucket_that_does_not_exist(self, bucket: str) -> None:
        error = self.refusal("s3a://not-there")
        assert error.errno == errno.EIO
        assert "NoSuchBucket" in str(error)

    def test_a_server_that_cannot_be_reached_or_does_not_respond(
        self, minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses = (min(0.1 * 2**n, objectstore._LONGEST_PAUSE) for n in range(objectstore._RETRIES))
        assert sum(pauses) < 15
        monkeypatch.setattr(objectstore, "_RETRIES", 1)
        monkeypatch.setattr(objectstore, "_IO_TIMEOUT", 0.1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        assert "refused" in str(self.refusal(bucket))
        with pytest.raises(ConfigError, match=f"{bucket}.*refused"):
            probe(open_store(bucket))

    def test_a_server_that_never_responds_has_a_deadline_and_a_signal_is_heard(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setenv(name, "x")
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            threading.Thread(target=interrupt_once_called, args=[silent], daemon=True).start()
            with pytest.raises(KeyboardInterrupt):
                open_store("s3a://b/x").get("file")
            monkeypatch.setattr(stores, "_PATIENCE", 0.1)
            with pytest.raises(ConfigError, match="s3a://b/x: no response"):
                probe(open_store("s3a://b/x"))


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/staging", "/data/staging"),
        ("/data//x/../staging/", "/data/staging"),
        ("file:/data/staging", "/data/staging"),
        ("file:///data/staging", "/data/staging"),
        ("/data/a:b", "/data/a:b"),
        ("/data/a%20b", "/data/a%20b"),
    ],
)
def test_a_local_path_may_be_a_url(location: str, path: str) -> None:
    store = open_store(location)
    assert isinstance(store, LocalStore)
    assert store.place == path


@pytest.mark.parametrize(
    "location",
    ["file://host/x", "FILE://localhost/x", "https://h/x", "ftp://h/x", "abfs://b/x", "s3a:/b"],
)
def test_other_places_are_refused(location: str) -> None:
    with pytest.raises(ConfigError, match=f"--staging .?{location}.?: "):
        open_store(location, "--staging")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("gs://b/p/q", {"scheme": "gcs", "bucket": "b"}),
        (
            "abfss://c@account.dfs.core.windows.net/p/q",
            {
                "scheme": "azblob",
                "container": "c",
                "endpoint": "https://account.blob.core.windows.net",
                "account_name": "account",
                "account_key": "a2V5",
            },
        ),
        (
            "az://c/p/q",
            {
                "scheme": "azblob",
                "container": "c",
                "endpoint": "https://acc.blob.core.windows.net",
                "account_name": "acc",
                "account_key": "a2V5",
            },
        ),
        ("s3://b/p/q", {"scheme": "s3", "bucket": "b", "region": "eu-north-1"}),
    ],
)
def test_other_clouds_are_opened_with_what_the_url_and_the_environment_say(
    place: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import opendal

    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    given: list[dict[str, str]] = []

    def operator(**options: str) -> opendal.Operator:
        given.append(options)
        return made(**options)

    made = opendal.Operator
    with monkeypatch.context() as patch:
        patch.setattr(opendal, "Operator", operator)
        store = open_store(place)
    assert given == [expected | {"root": "/p/q"}]
    assert store.url("x") == f"{place}/x"


def test_a_container_without_an_account_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"az://c/x: .*AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://c/x")


def test_without_opendal_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opendal", None)
    with pytest.raises(ConfigError, match=r"s3a://b/x: .*nsqtools\[cloud\]"):
        open_store("s3a://b/x")


def test_hdfs_without_its_library_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"staging hdfs://name/x: .+libhdfs"):
        open_store("hdfs://name/x")
