"""Disks that fail and other programs in the directories: nothing is finished that is not safe."""

import errno
import hashlib
import itertools
import logging
import os
import random
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqtools.errors import OutputError
from nsqtools.sinks.files.journal import entries
from nsqtools.stores import pinned
from tests.support.archiving import (
    COMPRESSIONS,
    Archiving,
    Notes,
    below,
    journal_of,
    message,
    recover,
    whole,
)
from tests.support.faults import broken, file_limit, misreported, other_disk
from tests.support.sinking import blocked

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
TOO_LARGE, EIO = "File too large", "Input/output"


@pytest.fixture
def archiving(tmp_path: Path) -> Archiving:
    """One record is safe, and nothing completed."""
    archiving = Archiving(tmp_path, work_dir=str(tmp_path / "work"))
    archiving.write(b"one")
    return archiving


@pytest.fixture
def work(archiving: Archiving, tmp_path: Path) -> Path:
    """The file under way."""
    return tmp_path / "work" / f"{NAME}.part"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """From its call on, those of files as they are synced."""

    def begin() -> list[int]:
        sizes: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
        return sizes

    return begin


def body(number: int, size: int) -> bytes:
    """One of its own, which cannot be compressed."""
    return b"%d-%s" % (number, random.Random(number).randbytes(size // 2).hex().encode())


class Beside:
    """Another program in the directories of an archive, whose files must stay."""

    def __init__(self, folder: Path) -> None:
        self.out, self.away = folder / "out", folder / "away"
        self.theirs: set[bytes] = set()
        self.away.mkdir()

    def write(self, path: Path) -> None:
        if not os.path.lexists(path):
            data = b"theirs, number %d\n" % len(self.theirs)
            self.theirs.add(data)
            path.write_bytes(data)

    def files(self) -> list[Path]:
        """All but those of this program."""
        paths = (self.out / name for name in below(str(self.out)))
        return [path for path in paths if path.read_bytes() not in self.theirs]

    def meddle(self, how: str) -> None:
        for path in self.files():
            if path.suffix != ".part" or path.stat().st_nlink > 1:  # else it is completed
                continue
            if how == "append":
                with path.open("ab") as file:
                    file.write(b"not ours" * 100)
            elif how == "take the name":
                self.write(path.with_suffix(""))
            else:
                path.rename(self.away / f"{len(os.listdir(self.away))}")
                if how == "replace":
                    self.write(path)

    def free_names(self) -> None:
        for path in self.out.glob("*"):
            if path.is_file() and path.read_bytes() in self.theirs:
                path.rename(self.away / f"{len(os.listdir(self.away))}")


FAULTS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "": lambda out: nullcontext(),
    "full": lambda out: file_limit(4096),
    "fsync": lambda out: broken("fsync"),
    "ftruncate": lambda out: broken("ftruncate"),
    "no links": lambda out: broken("link", errno.EPERM),
    "link": lambda out: broken("link", errno.ENOSPC),
    "directory": lambda out: broken("sync_directory", of=pinned),
    "blocked": blocked,
    "record": lambda out: nullcontext(),  # which Notes refuse
}
MEDDLING = ("append", "take the name", "rename", "replace")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(list(FAULTS)), st.sampled_from([4, 5000])),
        st.tuples(st.just("reopen"), st.sampled_from(list(FAULTS))),
        st.tuples(st.just("meddle"), st.sampled_from(MEDDLING)),
    ),
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    name=st.sampled_from(["<TOPIC><REV>.log", "<TOPIC>.log"]),
    compression=st.sampled_from(COMPRESSIONS),
    limit=st.sampled_from([0, 6000]),
)
def test_whatever_fails_or_meddles_what_is_safe_is_completed_once_and_nothing_else(
    steps: list[tuple[Any, ...]], name: str, compression: str, limit: int, tmp_path: Path
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    if "<REV>" not in name:
        compression, limit = "none", 0
    archiving = Archiving(
        folder, filename_format=name, manifest="m", compress=compression, rotate_size=limit
    )
    beside, notes, numbers = Beside(folder), archiving.notes, itertools.count()
    for what, how, *sizes in steps:
        if what == "meddle":
            beside.meddle(how)
            continue
        notes.error = OSError(28, "No space left") if how == "record" else None
        with suppress(OSError, OutputError), FAULTS[how](beside.out):
            if what == "write":
                archiving.write(*(body(next(numbers), size) for size in sizes * 2))
            else:
                archiving.step(ending="reopen")
    notes.error = None
    beside.free_names()
    archiving.close()

    told = {each.name: each for each in notes.recorded}
    assert len(told) == len(notes.recorded) or "<REV>" not in name
    found: list[bytes] = []
    for path in beside.files():
        completed, data = told.pop(path.name), path.read_bytes()
        records = whole(path, archiving.rules).split()
        found += records
        facts = completed.size, completed.sha256, completed.records
        assert facts == (len(data), hashlib.sha256(data).hexdigest(), len(records))
    assert not told
    assert sorted(found) == sorted(archiving.safe)
    left = {path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert beside.theirs <= left


@pytest.mark.parametrize("way", ["link", "rename", "copy"])
@pytest.mark.parametrize("ends", ["goes on", "ends"])
def test_a_call_that_is_done_but_reports_an_error_costs_no_record(
    way: str, ends: str, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    """Whether the process then goes on or ends, so that the next start completes its files."""
    step = 1 if full else 3
    with other_disk(tmp_path) as other:
        for at in itertools.count(rng.randrange(step), step):
            folder = tmp_path / str(at)
            folder.mkdir()
            work = (other / str(at)) if way == "copy" else folder / "work"
            archiving = Archiving(folder, work_dir=str(work), filename_format="<TOPIC><REV>.log")
            with broken("link", errno.EPERM) if way == "rename" else nullcontext():
                with misreported(at) as told:
                    for number in range(4):
                        for _ in range(2):
                            if b"%d" % number not in archiving.safe:
                                with suppress(OSError, OutputError):
                                    archiving.write(b"%d" % number)
                        with suppress(OSError, OutputError):
                            archiving.step(ending="reopen" if number % 2 else "")
                        if told and ends == "ends":
                            break
                if ends == "goes on":
                    archiving.close()
                archiving.crash()
                assert recover(archiving.rules) == 0
            found = b"".join(archiving.completed().values()).split()
            assert sorted(found) == sorted(archiving.safe), (at, told)
            if not told:
                break


class TestOneFile:
    def test_a_torn_end_is_cut_off_at_once_or_by_the_next_sync(
        self, archiving: Archiving, work: Path, sizes: Callable[[], list[int]]
    ) -> None:
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            archiving.write(b"x" * 8000)
        assert work.read_bytes() == b"one\n"
        with broken("ftruncate"):
            with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
                archiving.write(message(b"x" * 8000, number=2))
            assert work.stat().st_size == 4096
            with pytest.raises(OSError, match=EIO):
                archiving.write(message(b"two", number=3))
        synced = sizes()
        archiving.close()
        assert synced[0] == 4
        (told,) = archiving.notes.recorded
        assert (told.records, told.last_id) == (1, f"{1:016x}")

    def test_what_others_append_is_cut_off_and_that_is_synced(
        self, archiving: Archiving, work: Path, sizes: Callable[[], list[int]]
    ) -> None:
        with work.open("ab") as file:
            file.write(b"not ours")
        synced = sizes()
        archiving.close()
        assert synced[0] == 4
        assert archiving.completed() == {NAME: b"one\n"}

    def test_one_that_loses_its_name_is_named(
        self, archiving: Archiving, work: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        work.unlink()
        archiving.write(b"two")
        assert str(work) in caplog.text
        archiving.close()
        assert archiving.completed() == {NEXT: b"one\ntwo\n"}

    def test_a_file_that_was_cut_is_left_and_another_one_begun(
        self, archiving: Archiving, work: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.truncate(work, 3)
        with pytest.raises(OutputError, match="another program has cut it"):
            archiving.write(b"two")
        assert archiving.safe == [b"one"]
        archiving.write(b"two")
        archiving.close()
        assert archiving.completed() == {NEXT: b"two\n"}
        assert work.read_bytes() == b"one"
        assert caplog.records[0].levelno == logging.ERROR


def test_a_directory_that_could_not_be_synced_is_before_anything_is_told(
    archiving: Archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken("sync_directory", of=pinned), pytest.raises(OSError, match=EIO):
        archiving.close()
    assert archiving.notes.recorded == []
    synced: list[str] = []
    monkeypatch.setattr(pinned, "sync_directory", lambda path, _: synced.append(path))
    archiving.step()
    assert archiving.rules.output_dir in synced
    assert [told.name for told in archiving.notes.recorded] == [NAME]


class TestOneNameForAll:
    """Without <REV> a completed file is continued."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        (tmp_path / "out").mkdir(exist_ok=True)
        return tmp_path / "out" / "events.log"

    @pytest.fixture
    def alone(self, tmp_path: Path) -> Archiving:
        return Archiving(tmp_path, filename_format="<TOPIC>.log", manifest="manifest")

    @pytest.fixture
    def begun(self, alone: Archiving) -> Archiving:
        alone.write(b"one")
        return alone

    def test_a_file_goes_on_where_it_was_completed(
        self, begun: Archiving, monkeypatch: pytest.MonkeyPatch, target: Path
    ) -> None:
        begun.step(ending="reopen")
        assert begun.completed() == {"events.log": b"one\n"}
        steps: list[str] = []
        for name in ("rename", "fsync", "writev"):

            def note(*args: Any, call: str, real: Any, **more: Any) -> Any:
                folder = call == "fsync" and Path(f"/proc/self/fd/{args[0]}").readlink()
                if folder == target.parent or call == "writev" or args[0] == target.name:
                    steps.append(call)
                return real(*args, **more)

            monkeypatch.setattr(os, name, partial(note, call=name, real=getattr(os, name)))
        begun.write(b"two")
        # else the completed name would have what is not complete after a power failure
        assert steps == ["rename", "fsync", "writev"]
        assert begun.names() == ["events.log.part"]
        begun.close()
        assert begun.completed() == {"events.log": b"one\ntwo\n"}

    def test_a_file_to_go_on_with_is_cut_back_to_its_last_whole_record(
        self, target: Path, alone: Archiving, caplog: pytest.LogCaptureFixture
    ) -> None:
        target.write_bytes(b"one\n" + b"t" * 8000)
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            alone.write(b"two")
        alone.write(b"two")
        alone.close()
        assert alone.completed() == {"events.log": b"one\ntwo\n"}
        assert target.with_suffix(".log.torn").read_bytes() == b"t" * 8000
        assert "8000 bytes" in caplog.text

    def test_one_that_could_not_be_completed_goes_on_with_one_entry(
        self, tmp_path: Path, begun: Archiving
    ) -> None:
        with broken("link", errno.ENOSPC), pytest.raises(OSError, match="No space"):
            begun.close()
        begun.crash()
        out = begun.rules.output_dir
        notes, journal = Notes(), journal_of(begun.rules)
        with broken("link", errno.ENOSPC):
            recover(begun.rules, notes, journal)
        assert (notes.recorded, begun.names()) == ([], ["events.log.part"])
        again = Archiving(tmp_path, rules=begun.rules)
        again.journal.adopt(bool)
        again.write(b"two")
        assert len(list(entries(out, print))) == 1
        again.close()
        assert list(entries(out, print)) == []
        assert again.completed() == {"events.log": b"one\ntwo\n"}

    def test_a_leftover_and_a_completed_file_are_both_kept(
        self, target: Path, alone: Archiving
    ) -> None:
        part = target.with_suffix(".log.part")
        target.write_bytes(b"one\n")
        part.write_bytes(b"leftover\n")
        with pytest.raises(FileExistsError):
            alone.write(b"two")
        assert (target.read_bytes(), part.read_bytes()) == (b"one\n", b"leftover\n")
