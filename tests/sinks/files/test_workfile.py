from __future__ import annotations

import gzip
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from nsqtools.policy.rotation import OpenFile
from nsqtools.sinks.compression import METHODS, make_encoder
from nsqtools.sinks.files import publish
from nsqtools.sinks.files.workfile import CutError, MovedError, WorkFile
from tests.support.archiving import COMPRESSIONS, START, batch, entry_of, make_rules, message, plain
from tests.support.faults import broken, file_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOO_LARGE, EIO = "File too large", "Input/output"


class Writing:
    """A work file, and what became safe of it."""

    def __init__(self, folder: Path, compression: str = "none") -> None:
        self.path = folder / f"a.log{METHODS[compression].suffix}.part"
        self.file = WorkFile(
            publish.create(str(self.path)),
            str(self.path),
            OpenFile(name="a.log", opened=0.0, opened_wall=START),
            make_encoder(compression),
            entry=entry_of(make_rules(folder), "a.log"),
            digest=hashlib.sha256(),
        )
        self.facts = self.file.facts

    def add(self, *bodies: bytes) -> None:
        messages = batch(*bodies)
        self.file.add(b"".join(body + b"\n" for body in bodies), messages, messages[:], 1.0)

    def sync(self) -> list[bytes]:
        return [message.body for _, part in self.file.sync() for message in part]

    def write(self, *bodies: bytes) -> None:
        self.add(*bodies)
        assert self.sync() == list(bodies)

    def fail(self, text: str) -> None:
        with pytest.raises(OSError, match=text) as caught:
            self.sync()
        assert caught.value.filename == str(self.path)

    def move(self) -> None:
        path = self.path.with_name("moved.part")
        self.file.move_to(publish.create(str(path)), str(path), self.file.entry)
        self.path = path

    def has_digest_of_its_file(self) -> bool:
        assert self.file.digest is not None
        return self.file.digest.digest() == hashlib.sha256(self.path.read_bytes()).digest()


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    writing = Writing(tmp_path)
    yield writing
    writing.file.close()


@pytest.fixture(params=COMPRESSIONS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writing]:
    writing = Writing(tmp_path / "work", request.param)
    yield writing
    writing.file.close()


def test_what_was_added_is_safe_counted_and_on_disk_after_a_sync(packed: Writing) -> None:
    packed.add(b"one", b"two")
    packed.add(b"three")
    assert packed.file.is_dirty
    assert packed.path.read_bytes() == b""
    assert (packed.facts.size, packed.facts.records, packed.facts.compressed) == (14, 3, 0)
    assert packed.sync() == [b"one", b"two", b"three"]
    assert not packed.file.is_dirty
    assert plain(packed.path) == b"one\ntwo\nthree\n"
    assert packed.facts.compressed == packed.path.stat().st_size
    assert packed.has_digest_of_its_file()
    assert packed.sync() == []


def test_each_sync_makes_one_member(tmp_path: Path) -> None:
    writing = Writing(tmp_path, "gzip")
    for body in (b"one", b"two"):
        writing.write(body, body)
    data = writing.path.read_bytes()
    assert data.count(b"\x1f\x8b\x08") == 2
    assert gzip.decompress(data) == b"one\none\ntwo\ntwo\n"
    writing.file.close()


def test_an_empty_file_is_sealed_so_that_its_reader_takes_it(packed: Writing) -> None:
    packed.file.seal()
    assert plain(packed.path) == b""
    assert packed.facts.compressed == packed.path.stat().st_size
    assert packed.path.stat().st_size or packed.path.name == "a.log.part"
    assert packed.has_digest_of_its_file()


def test_a_file_with_records_is_complete_already(packed: Writing) -> None:
    packed.write(b"one")
    before = packed.path.read_bytes()
    packed.file.seal()
    assert packed.path.read_bytes() == before


def test_what_is_cut_back_is_as_if_it_had_never_been_added(packed: Writing) -> None:
    first, last = message(b"first"), message(b"last")
    packed.add(b"never synced")
    packed.file.cut_back()
    assert packed.file.first is packed.file.last is None
    assert (packed.facts.size, packed.facts.records) == (0, 0)
    packed.file.add(b"first\n", batch(first), [first], 1.0)
    packed.sync()
    packed.file.add(b"last\n", batch(last), [last], 2.0)
    packed.file.cut_back()
    assert (packed.facts.size, packed.facts.records) == (6, 1)
    assert packed.file.first is packed.file.last is first
    assert packed.sync() == []
    packed.write(b"again")
    assert plain(packed.path) == b"first\nagain\n"


class TestADiskThatFails:
    def test_a_torn_end_is_cut_off_and_that_is_synced(
        self, writing: Writing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writing.write(b"one")
        writing.add(b"x" * 8000)
        with file_limit(4096):
            writing.fail(TOO_LARGE)
        assert writing.path.stat().st_size == 4096
        writing.file.cut_back()
        assert writing.path.read_bytes() == b"one\n"
        sizes: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
        assert writing.sync() == writing.sync() == []
        assert sizes == [4]
        writing.write(b"two")
        assert writing.path.read_bytes() == b"one\ntwo\n"
        assert writing.has_digest_of_its_file()

    def test_a_torn_end_that_cannot_be_cut_off_yet_is_before_the_next_record(
        self, writing: Writing
    ) -> None:
        writing.add(b"x" * 8000)
        with broken("ftruncate"):
            with file_limit(4096):
                writing.fail(TOO_LARGE)
            writing.file.cut_back()
            assert writing.path.stat().st_size == 4096
            writing.add(b"one")
            writing.fail(EIO)
            writing.file.cut_back()
        writing.write(b"two")
        assert writing.path.read_bytes() == b"two\n"

    def test_what_is_written_and_not_synced_is_not_safe(self, writing: Writing) -> None:
        writing.add(b"one")
        with broken("fsync"):
            writing.fail(EIO)
        writing.file.cut_back()
        assert writing.path.read_bytes() == b""


class TestOtherProgramsUnderneath:
    def test_what_they_append_is_cut_off(
        self, packed: Writing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        packed.write(b"one")
        with packed.path.open("ab") as file:
            file.write(b"not ours" * 100)
        packed.write(b"two")
        assert plain(packed.path) == b"one\ntwo\n"
        size = packed.path.stat().st_size
        with packed.path.open("ab") as file:
            file.write(b"not ours")
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
        packed.sync()
        assert synced == [size]
        assert plain(packed.path) == b"one\ntwo\n"

    @pytest.mark.parametrize("how", ["removed", "renamed", "replaced", "directory is gone"])
    def test_a_file_without_its_name_goes_on_in_another_one(
        self, how: str, packed: Writing, tmp_path: Path
    ) -> None:
        packed.write(b"one")
        old = packed.path
        match how:
            case "removed":
                old.unlink()
            case "renamed":
                old.rename(tmp_path / "elsewhere")
            case "replaced":
                old.unlink()
                old.write_bytes(b"theirs")
            case _:
                old.parent.rename(tmp_path / "gone")
                old.parent.write_bytes(b"")
        packed.add(b"two")
        with pytest.raises(MovedError, match=str(old)):
            packed.sync()
        if how == "directory is gone":
            old.parent.unlink()
        packed.move()
        assert packed.file.path == str(packed.path)
        assert packed.sync() == [b"two"]
        assert plain(packed.path.rename(old.with_name("b" + old.name))) == b"one\ntwo\n"
        if how == "replaced":
            assert old.read_bytes() == b"theirs"

    def test_a_move_to_a_full_disk_leaves_the_file_where_it_was(self, writing: Writing) -> None:
        writing.write(b"x" * 8000)
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            writing.move()
        assert writing.file.path == str(writing.path)
        writing.path.with_name("moved.part").unlink()
        writing.write(b"two")
        assert writing.path.read_bytes() == b"x" * 8000 + b"\ntwo\n"

    def test_a_file_that_was_cut_is_an_error_and_written_to_no_more(self, writing: Writing) -> None:
        writing.write(b"one", b"two")
        os.truncate(writing.path, 5)
        writing.add(b"three")
        with pytest.raises(CutError, match=str(writing.path)):
            writing.sync()
        assert writing.path.read_bytes() == b"one\nt"
