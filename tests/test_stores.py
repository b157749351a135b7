"""What every kind of store promises, and what it says where it cannot."""

# size: each promise is tested with every kind of store

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import socket
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any
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
from tests.support.eventually import eventually
from tests.support.faults import broken, misreported
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.stores.interface import Data, Store
    from tests.support.minio import Minio

pytestmark = pytest.mark.timeout(900)  # MinIO may have to be built


def local_call(name: str) -> Any:
    return lambda self, path, *_: getattr(self.local, name)(path)  # the rest is metadata


class HdfsLike(fs.FileSystemHandler):  # type: ignore[misc]
    """With the manners of HDFS: makes the directories of a new file, and moves replace none."""

    def __init__(self) -> None:
        self.local = fs.LocalFileSystem()
        self.loses_responses = False

    def get_type_name(self) -> str:
        return "hdfs-like"

    def normalize_path(self, path: str) -> str:
        return path

    def create_dir(self, path: str, recursive: bool) -> None:
        self.local.create_dir(path, recursive=recursive)

    def move(self, src: str, dest: str) -> None:
        if os.path.isdir(dest):
            dest = os.path.join(dest, os.path.basename(src))
        try:
            os.link(src, dest)  # unlike a rename, it never replaces a file
            os.unlink(src)
        except OSError:
            raise OSError("HDFS rename failed, errno: 5 (Input/output error)") from None
        if self.loses_responses:
            raise OSError("HDFS rename failed, errno: 110 (Connection timed out)")

    def open_output_stream(self, path: str, _: Any) -> Any:
        self.local.create_dir(os.path.dirname(path), recursive=True)
        return self.local.open_output_stream(path)

    get_file_info = get_file_info_selector = local_call("get_file_info")
    delete_dir, delete_file = local_call("delete_dir"), local_call("delete_file")
    open_input_stream, open_input_file = (
        local_call("open_input_stream"),
        local_call("open_input_file"),
    )
    delete_dir_contents = delete_root_dir_contents = copy_file = open_append_stream = None


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
    tmp_path: Path, bucket: str
) -> None:
    handler = HdfsLike()
    handler.loses_responses = True
    hdfs = HadoopStore("hdfs://name/x", fs.PyFileSystem(handler), str(tmp_path / "hdfs"))
    assert hdfs.put_if_absent("a", b"one")
    assert not hdfs.put_if_absent("a", b"two")

    cloud = open_store(bucket)
    cloud.put("a", b"one")
    assert cloud.put_if_absent("a", b"one")


def test_a_call_that_is_done_but_reports_an_error_is_no_refusal_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    for at in itertools.count():
        path = f"{at}/a"
        with misreported(at) as told, suppress(OSError):
            assert store.put_if_absent(path, b"one")
        assert store.list(str(at)) in ([], ["a"])
        if not told:
            break
        store.put_if_absent(path, b"one")
        assert store.get(path) == b"one"
        assert not store.put_if_absent(path, b"two")

    def link(*names: Any, **folders: Any) -> None:  # as NFS repeats a request
        linked(*names, **folders)
        linked(*names, **folders)

    linked = os.link
    monkeypatch.setattr(os, "link", link)
    assert store.put_if_absent("a", b"one")


def test_a_file_is_replaced_as_a_whole_and_read_in_parts(store: Store) -> None:
    probe(store)  # which leaves nothing
    store.put("file", b"one" * 1000)
    store.put("file", memoryview(bytes(range(200))))
    assert store.get("file", 10, 20) == bytes(range(10, 30))
    assert store.get("file", 0, 5) == bytes(range(5))
    assert store.get("file", 190) == store.get("file", 190, 20) == bytes(range(190, 200))
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert names(store) == ["empty", "file"]
    with pytest.raises(FileNotFoundError) as missing:
        store.get("none/file")
    assert missing.value.filename
    assert (store.list("none"), list(store.files("none"))) == ([], [])


def test_folders_come_and_go_with_their_files(store: Store) -> None:
    for path in ("a/x", "a/b/y", "ab", "c"):
        store.put(path, b"12345")
    assert sorted(store.list("")) == ["a", "ab", "c"]
    assert sorted(store.list("a")) == ["b", "x"]
    assert list(store.list_below("a")["b"]) == ["y"]
    assert not store.list_below("none")
    assert names(store) == ["a/b/y", "a/x", "ab", "c"]
    assert sorted((file.path, file.size) for file in store.files("a")) == [("a/b/y", 5), ("a/x", 5)]
    assert all(file.mtime_ns > 1e18 for file in store.files())
    for _ in range(2):
        store.delete("a")
        store.delete("c")
        assert names(store) == ["ab"]


@pytest.mark.parametrize("size", [0, 10, 9 << 20])
def test_a_file_that_is_written_appears_at_the_end_unless_its_writer_fails_or_there_is_one(
    store: Store, size: int
) -> None:
    def write(path: str, content: bytes, *, fails: bool = False, replace: bool = True) -> None:
        with suppress(ZeroDivisionError), store.create(path, replace=replace) as file:
            before = names(store)
            file.write(content)
            assert names(store) == before
            if fails:
                raise ZeroDivisionError

    write("new", b"x" * size, fails=True)
    assert names(store) == []
    write("a/file", b"x" * size, replace=False)
    with pytest.raises(FileExistsError):
        write("a/file", b"y" * (size + 1), replace=False)
    write("a/file", b"z", fails=True)
    assert [(each.path, each.size) for each in store.files()] == [("a/file", size)]
    assert store.get("a/file") == b"x" * size
    write("a/file", b"new")
    assert store.get("a/file") == b"new"


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


def test_what_a_killed_writer_has_left_can_be_removed_and_no_other_is(store: Store) -> None:
    if not isinstance(store, ObjectStore):  # it has no files without a name
        store.put(f"a/{UNNAMED}left", b"")
    with store.create("a/file") as file:
        for folder in ("a", "none") if isinstance(store, LocalStore) else ():
            store.sweep(folder)
        file.write(b"one")
    store.sweep("a")
    assert store.get("a/file") == b"one"
    assert store.list("a") == ["file"]
    with pytest.raises(FileNotFoundError):
        store.get(f"a/{UNNAMED}left")


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


def test_a_probe_tells_a_full_disk_from_a_wrong_one_which_it_names(tmp_path: Path) -> None:
    class Careless(LocalStore):
        def put_if_absent(self, path: str, data: Data) -> bool:
            self.put(path, data)
            return True

    store = LocalStore(str(tmp_path))
    for code, kind in ((errno.ENOSPC, OutputError), (errno.EROFS, ConfigError)):
        with broken("link", code), pytest.raises(kind, match=os.strerror(code)):
            probe(store)
    assert list(tmp_path.iterdir()) == []
    store.put("file", b"")
    with broken("mkdir", errno.ENOSPC):
        assert store.list("") == ["file"]
    with pytest.raises(ConfigError, match=f"{tmp_path}/file[^\n]*$"):
        probe(open_store(f"{tmp_path}/file/staging"))
    with pytest.raises(ConfigError, match="twice"):
        probe(Careless(str(tmp_path)))


def test_a_store_that_is_slow_says_so_and_when_it_responds_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(objectstore, "_SLOW", 0.001)
    responds = threading.Event()

    class Slow:
        def read(self, path: str, **_: Any) -> bytes:
            assert responds.wait(60)
            return b"x"

    store = ObjectStore("s3://bucket/", Slow(), None)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(store.get, "a")
        eventually(lambda: caplog.messages)
        responds.set()
        assert found.result() == b"x"
    assert caplog.messages == [
        "s3://bucket: no response for 0.001 s: still trying",
        "s3://bucket: responds again",
    ]


def test_files_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        LocalStore(str(tmp_path)).put("a/file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a/file").stat().st_mode) == 0o644


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

    def test_a_wrong_key_or_none_names_the_variables_and_a_wrong_bucket_itself(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "")  # is as if it were not set
        assert open_store(bucket).put_if_absent("file", b"1")
        with pytest.raises(FileNotFoundError, match=os.strerror(errno.ENOENT)):
            open_store(bucket).stat("none")
        error = self.refusal("s3a://not-there")
        assert (error.errno, "NoSuchBucket" in str(error)) == (errno.EIO, True)
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        for wrong in (*keys, ""):
            with monkeypatch.context() as patch:
                if wrong:
                    patch.setenv(wrong, "wrong")
                else:
                    patch.delenv(keys[0])
                    patch.delenv(keys[1])
                error = self.refusal(bucket)
            assert error.errno == errno.EACCES
            assert " and ".join(keys) in str(error)

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
        ("/data//x/../staging/", "/data/staging"),
        ("file:/data/staging", "/data/staging"),
        ("file:///data/staging", "/data/staging"),
        ("/data/a:b", "/data/a:b"),
        ("/data/a%20b", "/data/a%20b"),
        *((f"{wrong}/x", "") for wrong in ("file://host", "FILE://localhost", "https://h")),
        *((wrong, "") for wrong in ("ftp://h/x", "abfs://b/x", "s3a:/b")),
    ],
)
def test_a_local_path_may_be_a_url_and_other_places_are_refused(location: str, path: str) -> None:
    refusal = pytest.raises(ConfigError, match=f"--staging .?{location}.?: ")
    with nullcontext() if path else refusal:
        store = open_store(location, "--staging")
        assert isinstance(store, LocalStore)
        assert store.place == path


def azblob(account: str) -> dict[str, str]:
    endpoint = f"https://{account}.blob.core.windows.net"
    named = {"container": "c", "endpoint": endpoint, "account_name": account}
    return {"scheme": "azblob", **named, "account_key": "a2V5"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("gs://b/p/q", {"scheme": "gcs", "bucket": "b"}),
        ("abfss://c@account.dfs.core.windows.net/p/q", azblob("account")),
        ("az://c/p/q", azblob("acc")),
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


@pytest.mark.parametrize(
    ("place", "needed"),
    [
        ("az://c/x", r"az://c/x: .*AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3a://b/x", r"s3a://b/x: .*nsqtools\[cloud\]"),
        ("hdfs://name/x", r"staging hdfs://name/x: .+libhdfs"),
    ],
)
def test_a_place_without_what_it_needs_says_what_that_is(
    monkeypatch: pytest.MonkeyPatch, place: str, needed: str
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    if place.startswith("s3a:"):
        monkeypatch.setitem(sys.modules, "opendal", None)
    with pytest.raises(ConfigError, match=needed):
        open_store(place)
