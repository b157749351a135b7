"""Names of files on disk: given once, durable, and never another file's."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsqtools.sinks.files import disk
from nsqtools.stores.pinned import pinned, sync_directory
from tests.support.archiving import below
from tests.support.faults import broken, file_limit, other_disk

WAYS = ["link", "rename", "copy"]
EIO = "Input/output"


@pytest.fixture
def work(tmp_path: Path) -> str:
    path = tmp_path / "work" / "a.log.part"
    path.parent.mkdir()
    path.write_bytes(b"records\n")
    return str(path)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, work: str, tmp_path: Path) -> Iterator[str]:
    """A work file, and a file system on which it is completed in this way."""
    match request.param:
        case "link":
            yield work
        case "rename":
            with broken("link", errno.EPERM):
                yield work
        case _:
            with other_disk(tmp_path) as other:
                yield shutil.copy(work, str(other))


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "out" / "day" / "a.log")


def copy_beside(target: str) -> str:
    return os.path.join(os.path.dirname(target), ".0.copy")


def named(work: str, target: str, mark: Any = bool) -> None:
    """Give the file its name, so that it lasts."""
    with pinned(work) as file, pinned(target, make=True) as there:
        disk.give_name(file, there, there.beside(".0.copy"), mark)
        there.sync()


class TestPublishing:
    def test_a_file_is_told_gets_its_name_and_loses_its_work_name_when_it_is_retired(
        self, way: str, target: str, synced: list[str]
    ) -> None:
        told: list[os.stat_result] = []

        def mark(status: os.stat_result) -> None:
            assert not os.path.lexists(target)
            told.append(status)

        named(way, target, mark)
        has_both = os.path.exists(way)
        for _ in range(2):
            disk.retire(way)
        assert (synced[-1] == os.path.dirname(way)) == has_both
        assert Path(target).read_bytes() == b"records\n"
        assert os.path.samestat(told[-1], os.stat(target))
        assert told[-1].st_mtime_ns == os.stat(target).st_mtime_ns
        assert os.listdir(os.path.dirname(target)) == ["a.log"]
        assert not os.path.exists(way)

    def test_a_copy_is_synced_before_it_has_the_name(
        self, target: str, synced: list[str], tmp_path: Path
    ) -> None:
        with other_disk(tmp_path) as other:
            work = other / "a.log.part"
            work.write_bytes(b"records\n" * 1_000_000)
            named(str(work), target)
            assert Path(target).read_bytes() == work.read_bytes()
        assert synced[-2:] == [copy_beside(target), os.path.dirname(target)]
        assert os.listdir(os.path.dirname(target)) == ["a.log"]

    @pytest.mark.parametrize("there", ["file", "directory", "link to nothing"])
    def test_what_has_the_name_is_never_overwritten(
        self, way: str, there: str, tmp_path: Path
    ) -> None:
        target = tmp_path / "taken"
        match there:
            case "file":
                target.write_bytes(b"other\n")
            case "directory":
                target.mkdir()
            case _:
                target.symlink_to("nothing")
        before = target.lstat()
        with pytest.raises(FileExistsError):
            named(way, str(target))
        assert target.lstat() == before
        assert Path(way).read_bytes() == b"records\n"
        assert sorted(os.listdir(tmp_path)) == ["taken", "work"]

    def test_a_link_that_is_made_but_refused_is_one(
        self, work: str, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NFS repeats a request whose response was lost."""
        link = os.link

        def repeated(*names: Any, **folders: Any) -> None:
            link(*names, **folders)
            link(*names, **folders)

        monkeypatch.setattr(os, "link", repeated)
        named(work, target)
        assert os.path.samefile(work, target)

    def test_a_rename_that_fails_or_a_copy_without_room_leaves_no_name(
        self, work: str, target: str, tmp_path: Path
    ) -> None:
        with broken("link", errno.EPERM), broken("rename"), pytest.raises(OSError, match=EIO):
            named(work, target)
        assert os.path.exists(work)
        with other_disk(tmp_path) as other:
            (other / "a.log.part").write_bytes(bytes(9000))
            with file_limit(4096), pytest.raises(OSError, match="too large"):
                named(str(other / "a.log.part"), target)
        assert os.listdir(os.path.dirname(target)) == []

    def test_a_copy_that_a_crash_left_is_made_anew(
        self, work: str, target: str, tmp_path: Path
    ) -> None:
        copy, precious = Path(copy_beside(target)), tmp_path / "precious"
        precious.write_bytes(b"precious")
        copy.parent.mkdir(parents=True)
        for name, leave in (("a", copy.touch), ("b", partial(copy.symlink_to, precious))):
            leave()
            with other_disk(tmp_path) as other:
                named(shutil.copy(work, str(other)), str(copy.with_name(name)))
            assert copy.with_name(name).read_bytes() == b"records\n"
        assert sorted(os.listdir(copy.parent)) == ["a", "b"]
        assert precious.read_bytes() == b"precious"


class TestHolding:
    def test_a_new_file_is_held(self, tmp_path: Path) -> None:
        path = tmp_path / "day" / "a.part"
        fd = disk.create(str(path))
        assert disk.hold(str(path)) is None
        with pytest.raises(FileExistsError):
            disk.create(str(path))
        os.close(fd)
        again = disk.hold(str(path))
        assert again is not None
        os.close(again)

    @pytest.mark.parametrize(
        ("call", "of", "code"),
        [
            ("fsync", os, errno.EIO),
            ("flock", fcntl, errno.EIO),
            ("flock", fcntl, errno.EAGAIN),  # another process looks whether a crash has left it
        ],
    )
    def test_a_file_that_cannot_be_made_to_last_or_locked_is_not_left(
        self, call: str, of: Any, code: int, tmp_path: Path
    ) -> None:
        error = FileExistsError if code == errno.EAGAIN else OSError
        with broken(call, code, of=of), pytest.raises(error):
            disk.create(str(tmp_path / "a.part"))
        assert os.listdir(tmp_path) == []

    def test_a_file_that_loses_its_name_as_it_is_locked_is_not_held(
        self, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def flock(fd: int, _: int) -> None:
            os.unlink(os.readlink(f"/proc/self/fd/{fd}"))

        monkeypatch.setattr(fcntl, "flock", flock)
        assert disk.hold(work) is None
        with pytest.raises(FileExistsError):
            disk.create(str(tmp_path / "new.part"))

    def test_no_file_and_a_symbolic_link_are_not_held(self, work: str, tmp_path: Path) -> None:
        assert disk.hold(str(tmp_path / "a.part")) is None
        link = tmp_path / "b.part"
        link.symlink_to(work)
        with pytest.raises(OSError, match="symbolic"):
            disk.hold(str(link))


class TestDirectoriesOfWorkFiles:
    def test_those_left_empty_go_up_to_the_root_and_others_stay(self, tmp_path: Path) -> None:
        root = tmp_path / "work"
        for part in ("dt=20/hour=19", "dt=20/hour=20"):
            os.close(disk.create(str(root / part / "a.part")))
        disk.retire(str(root / "dt=20/hour=19/a.part"), str(root), tidies=True)
        assert below(str(root)) == ["dt=20/hour=20/a.part"]
        assert os.listdir(root / "dt=20") == ["hour=20"]
        disk.retire(str(root / "dt=20/hour=20/a.part"), str(root), tidies=True)
        assert os.listdir(root) == []

    @pytest.mark.parametrize("call", ["open", "mkdir"])
    def test_a_file_is_made_though_its_directory_goes_just_before_that_call(
        self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "work" / "dt=20" / "hour=19" / "a.part"
        path.parent.parent.mkdir(parents=True)
        real, gone = getattr(os, call), list[str]()

        def gone_first(name: str, *rest: int, **folder: int) -> Any:
            if not gone and name == (path.name if call == "open" else path.parent.name):
                gone.append(str((path if call == "open" else path.parent).parent))
                os.rmdir(gone[0])
            return real(name, *rest, **folder)

        monkeypatch.setattr(os, call, gone_first)
        os.close(disk.create(str(path), str(tmp_path)))
        assert gone
        assert path.exists()


class TestSetAside:
    def test_the_end_goes_to_a_file_beside_that_has_its_own_name(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log.part"
        for number, name in enumerate(("a.log.torn", "a.log.1.torn")):
            path.write_bytes(b"good\ntorn%d" % number)
            with path.open("rb+") as file:
                aside = disk.set_aside(file.fileno(), str(path), [(5, 7), (8, 10)], ".torn")
            assert aside == str(tmp_path / name)
            assert path.read_bytes() == b"good\ntorn%d" % number
        assert (tmp_path / "a.log.torn").read_bytes() == b"ton0"
        assert (tmp_path / "a.log.1.torn").read_bytes() == b"ton1"

    @pytest.mark.parametrize("limit", [4096, None])
    def test_where_it_cannot_be_kept_nothing_is_cut_off(
        self, limit: int | None, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.log.part"
        path.write_bytes(b"good\n" + bytes(5000))
        fault = file_limit(limit) if limit else broken("fsync")
        with path.open("rb+") as file, fault, pytest.raises(OSError, match=rf"large|{EIO}"):
            disk.set_aside(file.fileno(), str(path), [(5, 5005)], ".torn")
        assert path.stat().st_size == 5005
        assert os.listdir(tmp_path) == ["a.log.part"]


@pytest.mark.parametrize(("code", "fine"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_may_refuse_to_sync_directories_but_not_fail(
    code: int, fine: bool, tmp_path: Path
) -> None:
    with broken("fsync", code), nullcontext() if fine else pytest.raises(OSError, match=EIO):
        sync_directory(str(tmp_path))


@pytest.mark.parametrize("most", [1, 3, 1 << 20])
def test_pieces_are_written_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    sizes = []

    def writev(fd: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        sizes.append(len(data))
        assert len(parts) <= os.sysconf("SC_IOV_MAX")
        return write(fd, data[:most])

    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: max(most, 1000)]))
    monkeypatch.setattr(os, "writev", writev)
    pieces = [b"", *(b"%d" % number for number in range(3000)), b"x" * 1_000_000, b"", b"end"]
    with (tmp_path / "a").open("wb") as file:
        disk.write_pieces(file.fileno(), pieces)
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)
    assert max(sizes) < 1 << 19
