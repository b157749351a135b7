"""The output directory of ``compact`` through crashes at every step, without Spark."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError
from nsqtools.spark import compacted
from nsqtools.spark.compacted import Known, Output, Part
from nsqtools.spark.inputs import find
from tests.support.lakes import NINE, RAW, at, sent, to_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nsqtools.spark.inputs import Input

NINE_O_CLOCK, TEN_O_CLOCK = "date=2026-11-21/hour=09", "date=2026-11-21/hour=10"


class KilledError(BaseException):
    """Stands for kill -9."""


class Mortal:
    """Kills whoever makes the n-th change to the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        for module, name in (
            (os, "rename"),
            (os, "replace"),
            (os, "unlink"),
            (os, "fsync"),
            (shutil, "rmtree"),
            (compacted, "make_directory"),
        ):
            monkeypatch.setattr(module, name, self._deadly(getattr(module, name)))

    def _deadly(self, change: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KilledError
            return change(*args, **options)

        return changed


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Mortal:
    return Mortal(monkeypatch)


def make(output: Output, hours: Mapping[str, str]) -> tuple[str, dict[str, dict[str, Part]]]:
    """Hours of one file each, which holds this text."""
    made = output.begin()
    parts = {}
    for hour, text in hours.items():
        os.makedirs(f"{made}/{hour}")
        with open(f"{made}/{hour}/part-{text}.parquet", "w") as file:
            file.write(text)
        parts[hour] = {f"part-{text}.parquet": Part(len(text), 1)}
    return made, parts


def known(each: Input, rows: int, *hours: str, keyed: bool = False) -> Known:
    digest = "" if keyed else each.digest()
    return Known(each.size, each.mtime_ns, each.inode, each.skip + rows, hours, digest)


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
    output = Output(str(root))
    output.commit(
        *make(output, {NINE_O_CLOCK: "a", TEN_O_CLOCK: "x"}), {first.path: known(first, 1)}
    )
    output = Output(str(root))
    assert output.divide([first, second]) == ([second], [first])
    output.commit(*make(output, {NINE_O_CLOCK: "ab"}), {second.path: known(second, 1)})
    assert contents(root) == {NINE_O_CLOCK: "ab", TEN_O_CLOCK: "x"}
    output = Output(str(root))
    assert output.divide([first, second]) == ([], [first, second])
    assert output.files([NINE_O_CLOCK, "date=1/hour=1"]) == [
        f"{root}/{NINE_O_CLOCK}/part-ab.parquet"
    ]
    assert [path.name for path in (root / "_nsqtools").iterdir()] == ["compact.json"]


def test_a_run_killed_at_any_step_has_happened_or_not(tmp_path: Path, mortal: Mortal) -> None:
    """And the next run knows which: inputs are in if, and only if, the hours have them."""
    each = raw(tmp_path / "a.log", b"a")
    before, after = {NINE_O_CLOCK: "old"}, {NINE_O_CLOCK: "new", TEN_O_CLOCK: "new"}
    outcomes = []
    for step in range(1000):
        root = tmp_path / f"out-{step}"
        output = Output(str(root))
        output.commit(*make(output, before), {})
        output = Output(str(root))
        run = make(output, after)
        mortal.left = step
        try:
            output.commit(*run, {each.path: known(each, 1)})
            survived = True
        except KilledError:
            survived = False
        mortal.left = 10**9
        again = Output(str(root))
        is_in = again.divide([each]) == ([], [each])
        assert contents(root) == (after if is_in else before)
        assert not list((root / "_nsqtools").glob("compact-*"))
        outcomes.append(is_in)
        if survived:
            break
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert len(outcomes) > 8, "hours were swapped and swept, step by step"


def test_a_recovery_killed_at_any_step_is_done_by_the_next(tmp_path: Path, mortal: Mortal) -> None:
    each = raw(tmp_path / "a.log", b"a")
    after = {NINE_O_CLOCK: "new", TEN_O_CLOCK: "new"}
    for step in range(1000):
        root = tmp_path / f"out-{step}"
        output = Output(str(root))
        output.commit(*make(output, {NINE_O_CLOCK: "old", TEN_O_CLOCK: "old"}), {})
        run = make(output, after)
        mortal.left = 2  # the state is replaced, and the first hour moved aside
        with pytest.raises(KilledError):
            output.commit(*run, {each.path: known(each, 1)})
        mortal.left = step
        try:
            Output(str(root))
            survived = True
        except KilledError:
            survived = False
        mortal.left = 10**9
        assert Output(str(root)).divide([each]) == ([], [each])
        assert contents(root) == after
        if survived:
            break
    assert step > 4


def test_deleting_killed_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, mortal: Mortal
) -> None:
    """A file that comes to have the name of one that was deleted is read, and no other is."""
    for step in range(1000):
        folder = tmp_path / f"logs-{step}"
        inputs = [raw(folder / name, b"tick") for name in ("a.log", "b.log")]
        output = Output(str(tmp_path / f"out-{step}"))
        output.commit(
            *make(output, {NINE_O_CLOCK: "x"}), {e.path: known(e, 1, NINE_O_CLOCK) for e in inputs}
        )
        mortal.left = step
        held = [open(each.path) for each in inputs]  # noqa: SIM115 - so no inode comes free
        try:
            assert output.delete(inputs) == (2, 0)
            survived = True
        except KilledError:
            survived = False
        mortal.left = 10**9
        left = find([str(folder)], RAW)
        gone = [each for each in inputs if not os.path.exists(each.path)]
        new = [raw(folder / os.path.basename(each.path), b"tick") for each in gone]
        output = Output(str(tmp_path / f"out-{step}"))
        assert output.divide([*left, *new]) == (new, left)
        assert output.delete(left) == (len(left), 0)
        for file in held:
            file.close()
        if survived:
            break
    assert step > 2


@pytest.mark.parametrize(
    ("then", "now", "new"),
    [
        ((b"a", b"b"), (b"a", b"b"), None),
        ((b"a", b"b"), (b"a", b"b", b"c"), 2),
        ((), (b"a",), 0),
        ((b"a", b"b"), (b"x", b"b", b"c"), 0),
        ((b"a", b"b"), (b"a",), 0),
        ((b"a", b"b"), (b"x", b"y"), 0),
    ],
    ids=["touched", "grown", "begun", "replaced by more", "cut", "replaced by as much"],
)
def test_of_a_file_with_bare_records_only_what_is_new_is_read(
    tmp_path: Path, then: tuple[bytes, ...], now: tuple[bytes, ...], new: int | None
) -> None:
    each = raw(tmp_path / "a.log", *then)
    output = Output(str(tmp_path / "out"))
    output.commit(output.begin(), {}, {each.path: known(each, len(then))})
    each = raw(tmp_path / "a.log", *now)
    at(tmp_path / "a.log", NINE)
    [each] = find([each.path], RAW)
    fresh, old = Output(str(tmp_path / "out")).divide([each])
    assert [found.skip for found in fresh] == ([] if new is None else [new])
    assert len(old) == (new is None)


def test_of_a_file_whose_rows_have_keys_all_is_read_again_when_it_has_changed(
    tmp_path: Path,
) -> None:
    each = raw(tmp_path / "a.log", b"a")
    output = Output(str(tmp_path / "out"))
    output.commit(output.begin(), {}, {each.path: known(each, 1, keyed=True)})
    each = raw(tmp_path / "a.log", b"a", b"b")
    assert Output(str(tmp_path / "out")).divide([each]) == ([each], [])


def test_a_file_that_was_moved_is_known_by_its_content(tmp_path: Path) -> None:
    each = raw(tmp_path / "a.log", b"a")
    output = Output(str(tmp_path / "out"))
    output.commit(output.begin(), {}, {each.path: known(each, 1)})
    (tmp_path / "moved").mkdir()
    os.rename(each.path, tmp_path / "moved" / "a.log")
    other = raw(tmp_path / "other" / "a.log", b"b")
    at(tmp_path / "other" / "a.log", each.mtime_ns)
    moved, other = find([str(tmp_path / "moved"), str(tmp_path / "other")], RAW)
    assert Output(str(tmp_path / "out")).divide([moved, other]) == ([other], [moved])


def test_a_file_is_kept_that_changed_is_written_or_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("changed.log", "held.log", "replaced.log", "stuck.log", "good.log")
    inputs = {name: raw(tmp_path / "logs" / name, b"a") for name in names}
    output = Output(str(tmp_path / "out"))
    output.commit(
        *make(output, {NINE_O_CLOCK: "x"}),
        {each.path: known(each, 1, NINE_O_CLOCK) for each in inputs.values()},
    )
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
        assert output.delete(inputs.values()) == (1, 4)
    left = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert left == ["changed.log", "held.log", "replaced.log", "stuck.log"]


def test_inputs_are_kept_of_which_an_hour_was_removed(tmp_path: Path) -> None:
    both, ten = raw(tmp_path / "both.log", b"a"), raw(tmp_path / "ten.log", b"b")
    root = tmp_path / "out"
    output = Output(str(root))
    facts = {
        both.path: known(both, 1, NINE_O_CLOCK, TEN_O_CLOCK),
        ten.path: known(ten, 1, TEN_O_CLOCK),
    }
    output.commit(*make(output, {NINE_O_CLOCK: "a", TEN_O_CLOCK: "b"}), facts)
    shutil.rmtree(root / NINE_O_CLOCK)
    output = Output(str(root))
    output.commit(*make(output, {NINE_O_CLOCK: "late"}), {})
    output = Output(str(root))
    assert output.divide([both, ten]) == ([], [both, ten])
    assert output.delete([both, ten]) == (1, 1)
    assert os.path.exists(both.path)


@pytest.mark.parametrize(
    "path",
    [
        "date=2026-11-21/hour=10/batch=0a-1/part-1.parquet",
        "date=2026-11-21/hour=10/part-1.parquet",
        "date=2026-11-21/hour=09/part-2.parquet",
        "date=2026-11-21/part-1.parquet",
    ],
)
def test_an_output_with_files_of_others_is_refused(tmp_path: Path, path: str) -> None:
    output = Output(str(tmp_path))
    output.commit(*make(output, {NINE_O_CLOCK: "a"}), {})
    other = tmp_path / path
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("x")
    with pytest.raises(ConfigError, match=r"date=2026-11-21.*: is not as compact left it"):
        Output(str(tmp_path))


def test_an_output_that_lost_a_file_or_its_state_or_has_another_file_is_refused(
    tmp_path: Path,
) -> None:
    output = Output(str(tmp_path))
    output.commit(*make(output, {NINE_O_CLOCK: "a"}), {})
    (tmp_path / NINE_O_CLOCK / "_SUCCESS").touch()
    Output(str(tmp_path))
    (tmp_path / "_nsqtools" / "compact.json").rename(tmp_path / "state")
    with pytest.raises(ConfigError, match="is not as compact left it"):
        Output(str(tmp_path))
    (tmp_path / "state").rename(tmp_path / "_nsqtools" / "compact.json")
    part = tmp_path / NINE_O_CLOCK / "part-a.parquet"
    part.write_text("longer")
    with pytest.raises(ConfigError, match="is not as compact left it"):
        Output(str(tmp_path))
    part.unlink()
    with pytest.raises(ConfigError, match="is not as compact left it"):
        Output(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "nsqtools compact 2"}', "\xff"])
def test_a_state_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    Output(str(tmp_path))
    (tmp_path / "_nsqtools" / "compact.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"compact.json: is not a state of compact"):
        Output(str(tmp_path))


def test_the_state_forgets_keyed_files_that_are_gone(tmp_path: Path) -> None:
    keyed, bare = raw(tmp_path / "keyed.log", b"a"), raw(tmp_path / "bare.log", b"b")
    output = Output(str(tmp_path / "out"))
    facts = {keyed.path: known(keyed, 1, keyed=True), bare.path: known(bare, 1)}
    output.commit(output.begin(), {}, facts)
    os.unlink(keyed.path)
    os.unlink(bare.path)
    output.commit(output.begin(), {}, {})
    state = json.loads((tmp_path / "out" / "_nsqtools" / "compact.json").read_text())
    assert list(state["inputs"]) == [bare.path]
