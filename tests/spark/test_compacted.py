"""The output directory of ``compact`` through crashes at every step, without Spark."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from opendal import Operator

from nsqtools.errors import ConfigError, LockedError
from nsqtools.spark.jobs import compacted
from nsqtools.spark.jobs.compacted import CompactOutput, HourFile, Known, prefix
from nsqtools.spark.lake.inputs import find
from nsqtools.stores import open_store
from nsqtools.stores.objectstore import ObjectStore
from tests.support.faults import Mortal
from tests.support.lakes import RAW, sent, to_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nsqtools.spark.lake.inputs import Input

NINE_O_CLOCK, TEN_O_CLOCK = "date=2026-11-21/hour=09", "date=2026-11-21/hour=10"
OLD, NEW = ({NINE_O_CLOCK: text, TEN_O_CLOCK: text} for text in ("old", "new"))


def quiet(*_: int) -> None: ...


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Mortal:
    """Whose changes are those to the disk."""
    made = Mortal()
    changes = [(os, name) for name in ("rename", "link", "unlink", "fsync", "makedirs")]
    for module, name in (*changes, (shutil, "rmtree")):
        monkeypatch.setattr(module, name, made.deadly(getattr(module, name)))
    return made


Made = tuple[str, dict[str, HourFile]]


def make(output: CompactOutput, hours: Mapping[str, str]) -> Made:
    """A file with this text in each hour."""
    run = output.begin()
    parts = {}
    for hour, text in hours.items():
        path = f"{hour}/{prefix(run)}00000-000.parquet"
        store = open_store(output.work(run))
        store.put(path, text.encode())
        parts[path] = HourFile(len(text), 1, len(text), 0, 0)
    return run, parts


def opened(root: Path | str) -> CompactOutput:
    """An output as a run finds it."""
    output = CompactOutput(str(root))
    output.recover()
    return output


def commit(
    output: CompactOutput, made: Made, inputs: Mapping[str, Known] | None = None
) -> CompactOutput:
    """Put what was made in place of what is in the same hours."""
    hours = {os.path.dirname(path) for path in made[1]}
    replaced = [path for path in output.files if os.path.dirname(path) in hours]
    output.commit(*made, replaced, inputs or {})
    return output


def made(
    root: Path, hours: Mapping[str, str], inputs: Mapping[str, Known] | None = None
) -> CompactOutput:
    """An output that was made of these inputs, as the next run finds it."""
    output = opened(root)
    commit(output, make(output, hours), inputs)
    return opened(root)


def known(each: Input) -> dict[str, Known]:
    return {each.path: Known(each.size, each.mtime_ns, 1, "1")}


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.parent.relative_to(root)): path.read_text()
        for path in root.glob("date=*/hour=*/*")
    }


def raw(path: Path, *records: bytes) -> Input:
    to_file(path, sent(*records), RAW)
    [found] = find([str(path)], RAW)
    return found


def test_a_new_state_replaces_hours_and_remembers_inputs(tmp_path: Path) -> None:
    first, second = raw(tmp_path / "a.log", b"a"), raw(tmp_path / "b.log", b"b")
    root = tmp_path / "out"
    output = made(root, {NINE_O_CLOCK: "a", TEN_O_CLOCK: "x"}, known(first))
    assert output.divide([first, second]) == ([second], [first])
    output = made(root, {NINE_O_CLOCK: "ab"}, known(second))
    assert contents(root) == {NINE_O_CLOCK: "ab", TEN_O_CLOCK: "x"}
    assert output.divide([first, second]) == ([], [first, second])
    assert sorted(part.size for part in output.files.values()) == [1, 2]
    assert [path.name for path in (root / "_nsqtools").iterdir()] == ["compact"]
    assert len(list((root / "_nsqtools/compact").iterdir())) == 1


def test_a_run_killed_at_any_step_has_happened_or_not(tmp_path: Path, mortal: Mortal) -> None:
    """And the next run knows which: inputs are in if, and only if, the hours have them."""
    each = raw(tmp_path / "a.log", b"a")
    before = {NINE_O_CLOCK: "old"}
    outcomes: list[bool] = []
    survived = False
    while not survived:
        root = tmp_path / f"out-{len(outcomes)}"
        output = made(root, before)
        run = make(output, NEW)
        survived = mortal.survived(
            len(outcomes),
            lambda: commit(output, run, known(each)),  # noqa: B023
        )
        mortal.rest()
        is_in = opened(root).divide([each]) == ([], [each])
        assert contents(root) == (NEW if is_in else before)
        assert not list((root / "_nsqtools").glob("compact-*"))
        outcomes.append(is_in)
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert len(outcomes) > 8, "hours were swapped and swept, step by step"


def test_a_recovery_killed_at_any_step_is_done_by_the_next(tmp_path: Path, mortal: Mortal) -> None:
    each = raw(tmp_path / "a.log", b"a")
    step, survived = 0, False
    while not survived:
        root = tmp_path / f"out-{step}"
        output = made(root, OLD)
        run = make(output, NEW)
        # The state is replaced, and the first file is in place.
        assert not mortal.survived(5, lambda: commit(output, run, known(each)))  # noqa: B023
        survived = mortal.survived(step, lambda: opened(root))  # noqa: B023
        mortal.rest()
        assert opened(root).divide([each]) == ([], [each])
        assert contents(root) == NEW
        step += 1
    assert step > 5


def test_deleting_killed_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, mortal: Mortal
) -> None:
    """A file that comes to have the name of one that was deleted is read, and no other is."""
    step, survived = 0, False
    while not survived:
        folder, root = tmp_path / f"logs-{step}", tmp_path / f"out-{step}"
        inputs = [raw(folder / name, b"tick") for name in ("a.log", "b.log")]
        facts = known(inputs[0]) | known(inputs[1])
        output = made(root, {NINE_O_CLOCK: "x"}, facts)
        held = [open(each.path) for each in inputs]  # noqa: SIM115 - so no inode comes free
        survived = mortal.survived(step, lambda: output.delete(inputs, quiet))  # noqa: B023
        mortal.rest()
        left = find([str(folder)], RAW) if folder.exists() else []
        assert not (survived and left)
        gone = [each for each in inputs if not os.path.exists(each.path)]
        new = [raw(folder / os.path.basename(each.path), b"tick") for each in gone]
        output = opened(root)
        assert output.divide([*left, *new]) == (new, left)
        assert output.delete(left, quiet) == (len(left), 0)
        for file in held:
            file.close()
        step += 1
    assert step > 3


def test_a_file_is_kept_that_changed_is_written_or_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("changed.log", "held.log", "replaced.log", "stuck.log", "good.log")
    inputs = {name: raw(tmp_path / "logs" / name, b"a") for name in names}
    facts: dict[str, Known] = {}
    for each in inputs.values():
        facts |= known(each)
    output = made(tmp_path / "out", {NINE_O_CLOCK: "x"}, facts)
    with open(inputs["changed.log"].path, "ab") as file:
        file.write(b"b\n")
    os.unlink(inputs["replaced.log"].path)
    os.mkfifo(inputs["replaced.log"].path)
    unlink = os.unlink

    def refused(path: str) -> None:
        if path == inputs["stuck.log"].path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refused)
    with open(inputs["held.log"].path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert output.delete([*inputs.values()], quiet) == (1, 4)
    assert sorted(os.listdir(tmp_path / "logs")) == sorted(names[:-1])


def test_inputs_are_kept_that_were_read_before_an_hour_was_removed(tmp_path: Path) -> None:
    before, after = raw(tmp_path / "before.log", b"a"), raw(tmp_path / "after.log", b"b")
    root = tmp_path / "out"
    made(root, OLD, known(before))
    shutil.rmtree(root / NINE_O_CLOCK)
    output = made(root, {NINE_O_CLOCK: "late"}, known(after))
    assert output.divide([before, after]) == ([], [before, after])
    assert output.delete([before, after], quiet) == (1, 1)
    assert os.path.exists(before.path)


def test_an_output_that_is_not_as_compact_left_it_is_refused(tmp_path: Path) -> None:
    """It has files of others, or has lost a file, or its state, or has another file."""
    made(tmp_path, {NINE_O_CLOCK: "a"})
    (tmp_path / NINE_O_CLOCK / "_SUCCESS").touch()
    opened(tmp_path)
    for name in (
        "date=2026-11-21/hour=10/batch=0a-1/part-1.parquet",
        "date=2026-11-21/hour=10/part-1.parquet",
        "date=2026-11-21/hour=09/part-2.parquet",
        "date=2026-11-21/part-1.parquet",
    ):
        other = tmp_path / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("x")
        with pytest.raises(ConfigError, match="date=2026-11-21"):
            opened(tmp_path)
        other.unlink()
        with suppress(OSError):
            other.parent.rmdir()
            other.parent.parent.rmdir()
    opened(tmp_path)
    [state] = (tmp_path / "_nsqtools/compact").iterdir()
    [part] = (tmp_path / NINE_O_CLOCK).glob("*.parquet")
    state.rename(tmp_path / "state")
    with pytest.raises(ConfigError, match="hour=09"):
        opened(tmp_path)
    (tmp_path / "state").rename(state)
    part.write_text("longer")
    with pytest.raises(ConfigError, match="hour=09"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "nsqtools compact 3"}', "\xff"])
def test_a_state_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "_nsqtools/compact").mkdir(parents=True)
    (tmp_path / "_nsqtools/compact/0000000001").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"compact/0000000001"):
        CompactOutput(str(tmp_path))


def test_the_state_forgets_keyed_files_that_are_gone(tmp_path: Path) -> None:
    keyed, bare = raw(tmp_path / "keyed.log", b"a"), raw(tmp_path / "bare.log", b"b")
    facts = {keyed.path: Known(keyed.size, keyed.mtime_ns, 1)}
    made(tmp_path / "out", {}, facts | known(bare))
    os.unlink(keyed.path)
    os.unlink(bare.path)
    made(tmp_path / "out", {})
    [path] = (tmp_path / "out/_nsqtools/compact").iterdir()
    state = json.loads(path.read_text())
    assert list(state["inputs"]) == [bare.path]


class StoredLake(Mortal):
    """An output in an object store, in which each change may be the last of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        memory = Operator("memory")
        self.store = ObjectStore("s3a://bucket/out", memory, memory)
        for name in ("put_if_absent", "delete"):
            monkeypatch.setattr(self.store, name, self.deadly(getattr(self.store, name)))
        for module in (compacted, sys.modules[__name__]):
            monkeypatch.setattr(module, "open_store", lambda *_: self.store)

    def output(self) -> CompactOutput:
        return opened("s3a://bucket/out")

    def contents(self) -> list[tuple[str, str]]:
        found = [each.path for each in self.store.files() if each.path.startswith("date=")]
        return sorted((path[:23], self.store.get(path).decode()) for path in found)


def test_in_a_store_a_run_killed_at_any_step_has_happened_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost at any time; the next run removes what is there twice."""
    each = raw(tmp_path / "a.log", b"a")
    outcomes: list[bool] = []
    survived = False
    while not survived:
        lake = StoredLake(monkeypatch)
        output = lake.output()
        commit(output, make(output, OLD))

        def work() -> None:
            output = lake.output()  # noqa: B023 - called here
            commit(output, make(output, NEW), known(each))

        survived = lake.survived(len(outcomes), work)
        lake.rest()
        seen = set(lake.contents())
        assert seen >= set(OLD.items()) or seen >= set(NEW.items())
        is_in = lake.output().divide([each]) == ([], [each])
        assert lake.contents() == sorted((NEW if is_in else OLD).items())
        outcomes.append(is_in)
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert len(outcomes) > 5


def test_in_a_store_a_run_that_was_taken_over_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = StoredLake(monkeypatch)
    obsolete = lake.output()
    run = make(obsolete, OLD)
    output = lake.output()
    commit(output, make(output, NEW))
    with pytest.raises(LockedError):
        commit(obsolete, run)
    lake.store.put(f"{NINE_O_CLOCK}/{prefix(run[0])}00001-000.parquet", b"late")
    lake.output()
    assert lake.contents() == sorted(NEW.items())
