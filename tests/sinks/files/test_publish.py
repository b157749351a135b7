from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from nsqtools.sinks.files import publish
from tests.support.archiving import (
    below,
    file_limit,
    fill,
    held_by_another_process,
    other_disk,
)
from tests.support.disks import small_disk


@pytest.fixture
def work(tmp_path: Path) -> str:
    path = tmp_path / "work" / "a.log.part"
    path.parent.mkdir()
    path.write_bytes(b"records\n")
    return str(path)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "out" / "day" / "a.log")


def copy_beside(target: str) -> str:
    return os.path.join(os.path.dirname(target), ".0.copy")


def named(work: str, target: str) -> None:
    """Give the file its name, so that it lasts."""
    publish.give_name(work, target, copy_beside(target), mark=bool)
    publish.sync_directory(os.path.dirname(target))


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, _: str) -> None:
        os.stat(source)
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    monkeypatch.setattr(os, "link", link)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths, at that time, of what is synced."""
    paths: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return paths


class TestPublishing:
    def test_a_file_gets_its_name_and_directories_and_keeps_its_work_name(
        self, work: str, target: str
    ) -> None:
        named(work, target)
        assert Path(target).read_bytes() == b"records\n"
        assert os.path.samefile(work, target)

    def test_a_retired_work_name_is_gone_and_again_is_fine(self, work: str, target: str) -> None:
        named(work, target)
        publish.retire(work)
        publish.retire(work)
        assert os.path.exists(target)
        assert not os.path.exists(work)

    def test_the_name_and_the_directories_made_for_it_last(
        self, work: str, target: str, synced: list[str], tmp_path: Path
    ) -> None:
        named(work, target)
        assert synced == [str(tmp_path), str(tmp_path / "out"), str(tmp_path / "out" / "day")]

    @pytest.mark.parametrize("way", ["link", "rename", "copy"])
    @pytest.mark.parametrize("there", ["file", "directory", "link to nothing"])
    def test_what_has_the_name_is_never_overwritten(
        self, way: str, there: str, tmp_path: Path, request: pytest.FixtureRequest
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
        work = request.getfixturevalue("work")
        if way == "rename":
            request.getfixturevalue("no_links")
        if way == "copy":
            with other_disk(tmp_path) as other:
                (other / "a.log.part").write_bytes(b"records\n")
                with pytest.raises(FileExistsError):
                    named(str(other / "a.log.part"), str(target))
                assert below(str(other)) == ["a.log.part"]
        else:
            with pytest.raises(FileExistsError):
                named(work, str(target))
        assert target.lstat() == before
        assert Path(work).read_bytes() == b"records\n"
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".copy")]

    def test_a_directory_that_is_a_file_is_an_error(self, work: str, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"")
        with pytest.raises(OSError, match="Not a directory"):
            named(work, str(tmp_path / "out" / "day" / "a.log"))
        assert os.path.exists(work)


@pytest.mark.usefixtures("no_links")
class TestWithoutHardLinks:
    def test_the_file_is_renamed(self, work: str, target: str) -> None:
        inode = os.stat(work).st_ino
        named(work, target)
        publish.retire(work)
        assert os.stat(target).st_ino == inode
        assert not os.path.exists(work)

    def test_a_rename_that_fails_leaves_no_name(
        self, work: str, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def rename(_: str, to: str) -> None:
            raise OSError(errno.EIO, "Input/output error", to)

        monkeypatch.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="Input/output"):
            named(work, target)
        assert os.path.exists(work)
        assert not os.path.exists(target)

    def test_the_copy_on_another_file_system_is_renamed(self, target: str, tmp_path: Path) -> None:
        with other_disk(tmp_path) as other:
            work = other / "a.log.part"
            work.write_bytes(b"records\n")
            os.mkdir(tmp_path / "out")
            # The first link says EXDEV, as it does where the target's file system has none.
            with pytest.MonkeyPatch.context() as patch:
                real = os.stat(work).st_dev

                def link(source: str, _: str) -> None:
                    crossing = os.stat(source).st_dev == real
                    raise OSError(errno.EXDEV if crossing else errno.EPERM, "no", source)

                patch.setattr(os, "link", link)
                named(str(work), target)
            assert work.exists()
        assert Path(target).read_bytes() == b"records\n"
        assert os.listdir(os.path.dirname(target)) == ["a.log"]


class TestAcrossFileSystems:
    def test_the_file_is_copied_synced_and_named(
        self, target: str, synced: list[str], tmp_path: Path
    ) -> None:
        with other_disk(tmp_path) as other:
            work = other / "a.log.part"
            work.write_bytes(b"records\n" * 1_000_000)
            named(str(work), target)
            assert Path(target).read_bytes() == work.read_bytes()
        copy, folder = synced[-2:]
        assert folder == os.path.dirname(copy) == os.path.dirname(target)
        assert copy == copy_beside(target)
        assert os.listdir(folder) == ["a.log"]

    def test_a_full_disk_keeps_no_part_of_the_copy(self, tmp_path: Path) -> None:
        work = tmp_path / "a.log.part"
        work.write_bytes(bytes(3 << 20))
        with small_disk(tmp_path / "small") as disk:
            with pytest.raises(OSError, match="No space left"):
                named(str(work), str(disk / "a.log"))
            assert os.listdir(disk) == []


class TestMark:
    @pytest.mark.parametrize("way", ["link", "copy", "rename"])
    def test_the_file_is_told_before_the_file_has_the_name(
        self, way: str, work: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        if way == "rename":
            request.getfixturevalue("no_links")
        told: list[os.stat_result] = []

        def mark(status: os.stat_result) -> None:
            assert not os.path.lexists(target)
            told.append(status)

        with other_disk(tmp_path) as other:
            if way == "copy":
                work = shutil.copy(work, str(other))
            publish.give_name(work, target, copy_beside(target), mark)
        assert os.path.samestat(told[-1], os.stat(target))
        assert told[-1].st_mtime_ns == os.stat(target).st_mtime_ns

    @pytest.mark.parametrize("there", ["file", "link"])
    def test_a_copy_that_a_crash_left_is_made_anew(
        self, there: str, work: str, target: str, tmp_path: Path
    ) -> None:
        (tmp_path / "precious").write_bytes(b"precious")
        copy = Path(copy_beside(target))
        copy.parent.mkdir(parents=True)
        if there == "link":
            copy.symlink_to(tmp_path / "precious")
        else:
            copy.write_bytes(b"half")
        with other_disk(tmp_path) as other:
            named(shutil.copy(work, str(other)), target)
        assert Path(target).read_bytes() == b"records\n"
        assert os.listdir(copy.parent) == ["a.log"]
        assert (tmp_path / "precious").read_bytes() == b"precious"


class TestHolding:
    def test_a_new_file_is_held_and_its_name_lasts(self, tmp_path: Path, synced: list[str]) -> None:
        path = tmp_path / "day" / "a.part"
        fd = publish.create(str(path))
        assert synced == [str(tmp_path), str(tmp_path / "day")]
        assert publish.hold(str(path)) is None
        os.close(fd)
        again = publish.hold(str(path))
        assert again is not None
        os.close(again)

    def test_a_name_that_is_taken_is_an_error(self, work: str) -> None:
        with pytest.raises(FileExistsError):
            publish.create(work)
        assert Path(work).read_bytes() == b"records\n"

    def test_a_file_that_cannot_be_made_to_last_is_not_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fsync(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Input/output"):
            publish.create(str(tmp_path / "a.part"))
        assert os.listdir(tmp_path) == []

    def test_a_file_that_cannot_be_locked_is_not_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def flock(_: int, __: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(OSError, match="No locks available"):
            publish.create(str(tmp_path / "a.part"))
        assert os.listdir(tmp_path) == []

    def test_a_file_that_cannot_be_locked_and_was_replaced_keeps_the_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.part"

        def flock(_: int, __: int) -> None:
            path.unlink()
            path.write_bytes(b"another")
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(OSError, match="No locks available"):
            publish.create(str(path))
        assert path.read_bytes() == b"another"

    def test_a_file_of_a_living_process_is_not_held_and_that_of_a_dead_one_is(
        self, work: str
    ) -> None:
        with held_by_another_process(Path(work)) as process:
            assert publish.hold(work) is None
            process.kill()
            process.wait()
            fd = publish.hold(work)
        assert fd is not None
        os.close(fd)

    def test_a_file_that_loses_its_name_as_it_is_locked_is_not_held(
        self, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def flock(fd: int, _: int) -> None:
            os.unlink(os.readlink(f"/proc/self/fd/{fd}"))

        monkeypatch.setattr(fcntl, "flock", flock)
        assert publish.hold(work) is None
        with pytest.raises(FileExistsError):
            publish.create(str(tmp_path / "new.part"))

    def test_nothing_is_held_where_nothing_is(self, tmp_path: Path) -> None:
        assert publish.hold(str(tmp_path / "a.part")) is None

    def test_a_symbolic_link_is_not_followed(self, work: str, tmp_path: Path) -> None:
        link = tmp_path / "b.part"
        link.symlink_to(work)
        with pytest.raises(OSError, match="symbolic"):
            publish.hold(str(link))

    def test_a_file_knows_whether_the_name_is_still_its_own(self, tmp_path: Path) -> None:
        path, moved = tmp_path / "day" / "a.part", tmp_path / "moved"
        fd = publish.create(str(path))
        assert publish.is_at(fd, str(path))
        path.rename(moved)
        assert not publish.is_at(fd, str(path))
        assert publish.is_at(fd, str(moved))
        path.write_bytes(b"another")
        assert not publish.is_at(fd, str(path))
        path.unlink()
        path.parent.rmdir()
        path.parent.write_bytes(b"a file")
        assert not publish.is_at(fd, str(path))
        os.close(fd)


class TestSetAside:
    def test_the_end_goes_to_a_file_beside_that_has_its_own_name(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log.part"
        for number, name in enumerate(("a.log.torn", "a.log.1.torn")):
            path.write_bytes(b"good\ntorn%d" % number)
            fd = os.open(path, os.O_RDWR)
            assert publish.set_aside(fd, str(path), 5, 10) == str(tmp_path / name)
            os.close(fd)
            assert path.read_bytes() == b"good\n"
        assert (tmp_path / "a.log.torn").read_bytes() == b"torn0"
        assert (tmp_path / "a.log.1.torn").read_bytes() == b"torn1"

    def test_where_it_cannot_be_kept_nothing_is_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log.part"
        path.write_bytes(b"good\n" + bytes(5000))
        fd = os.open(path, os.O_RDWR)
        with file_limit(4096), pytest.raises(OSError, match="File too large"):
            publish.set_aside(fd, str(path), 5, 5005)
        os.close(fd)
        assert path.stat().st_size == 5005
        assert os.listdir(tmp_path) == ["a.log.part"]

    def test_a_full_disk_cuts_nothing_off_either(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "small") as disk:
            path = disk / "a.log.part"
            path.write_bytes(b"good\n" + bytes(5000))
            fd = os.open(path, os.O_RDWR)
            with fill(disk), pytest.raises(OSError, match="No space left"):
                publish.set_aside(fd, str(path), 5, 5005)
            os.close(fd)
            assert path.stat().st_size == 5005
            assert os.listdir(disk) == ["a.log.part"]


def test_a_file_system_that_refuses_to_sync_directories_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    publish.sync_directory(str(tmp_path))


def test_short_writes_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with (tmp_path / "a").open("wb") as file:
        publish.write_all(file.fileno(), b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
