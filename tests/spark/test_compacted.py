"""The output directory of ``compact`` through crashes at every step, without Spark."""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date, timedelta
from itertools import count
from pathlib import Path

import pytest
from opendal import Operator

from nsqtools.errors import ConfigError, LockedError
from nsqtools.spark.jobs import compacted
from nsqtools.spark.jobs.compacted import ALL, CompactOutput, FileFacts, HourFile, Known, prefix
from nsqtools.spark.lake.inputs import Input, find
from nsqtools.stores import open_store
from nsqtools.stores.objectstore import ObjectStore
from tests.support.faults import Mortal
from tests.support.lakes import NINE, RAW, at, sent, to_file

NINE_O_CLOCK, TEN_O_CLOCK = "date=2026-11-21/hour=09", "date=2026-11-21/hour=10"
NINE_MINUTE = NINE // 60_000_000_000
OLD, NEW = ({NINE_O_CLOCK: text, TEN_O_CLOCK: text} for text in ("old", "new"))


def quiet(*_: int) -> None: ...


class Lake(Mortal):
    """Outputs of a kind, one at a time, in which each change may be the last of a run."""

    def __init__(self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder, self._kind, self._monkeypatch = folder, kind, monkeypatch
        if kind == "local":
            for module, name in ((os, "rename"), (os, "link"), (os, "unlink"), (shutil, "rmtree")):
                monkeypatch.setattr(module, name, self.deadly(getattr(module, name)))
            monkeypatch.setattr(os, "fsync", self.deadly(quiet))
        self._number = 0
        self.anew()

    def anew(self) -> None:
        self._number += 1
        self.place = str(self._folder / f"out-{self._number}")
        if self._kind == "s3a":
            self.place = "s3a://bucket/out"
            memory = Operator("memory")
            store = ObjectStore(self.place, memory, memory)
            for name in ("put_if_absent", "put", "delete"):
                self._monkeypatch.setattr(store, name, self.deadly(getattr(store, name)))
            for module in (compacted, sys.modules[__name__]):
                self._monkeypatch.setattr(module, "open_store", lambda *_: store)

    def contents(self) -> list[tuple[str, str]]:
        store = open_store(self.place)
        found = [each.path for each in store.files() if each.path.startswith("date=")]
        return sorted((path[:23], store.get(path).decode()) for path in found)


@pytest.fixture(params=["local", "s3a"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(tmp_path, request.param, monkeypatch)


Made = tuple[str, dict[str, HourFile]]


def make(output: CompactOutput, hours: Mapping[str, str]) -> Made:
    """A file with this text in each hour."""
    run = output.begin({"2026-11-21"})
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
    output.meeting([NINE_MINUTE], 0)
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
    root: Path | str, hours: Mapping[str, str], inputs: Mapping[str, Known] | None = None
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
    at(to_file(path, sent(*records), RAW), NINE)
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
    assert len(list((root / "_nsqtools/compact").glob("0*"))) == 1
    assert len(list((root / "_nsqtools/compact").glob("files/*/*"))) == 1
    assert len(list((root / "_nsqtools/compact").glob("inputs/*/*"))) == 2


def test_a_run_killed_at_any_step_has_happened_or_not(lake: Lake, tmp_path: Path) -> None:
    """And the next run knows which, and does the rest, or is killed as well.

    Inputs are in if, and only if, the hours have them; nothing is lost at any time.
    """
    each = raw(tmp_path / "a.log", b"a")
    before = {NINE_O_CLOCK: "old"}
    outcomes: list[bool] = []

    def work() -> None:
        output = opened(lake.place)
        commit(output, make(output, NEW), known(each))

    for step in count():
        for then in count(step % 5, 5):
            lake.anew()
            made(lake.place, before)
            survived = lake.survived(step, work)
            recovered = lake.survived(then, lambda: opened(lake.place))
            lake.rest()
            seen = set(lake.contents())
            assert seen >= set(before.items()) or seen >= set(NEW.items())
            is_in = opened(lake.place).divide([each]) == ([], [each])
            assert lake.contents() == sorted((NEW if is_in else before).items())
            assert not list(Path(lake.place).glob("_nsqtools/compact-*"))
            if recovered:
                break
        outcomes.append(is_in)
        if survived:
            break
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert outcomes.count(True) > 2, "hours were swapped and swept, step by step"


def test_deleting_killed_at_any_step_loses_and_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    """A file that comes to have the name of one that was deleted is read, and no other is."""
    for step in count():
        lake.anew()
        folder = tmp_path / f"logs/batch=0a-{step}"
        inputs = [raw(folder / name, b"tick") for name in ("a.log", "b.log")]
        output = made(lake.place, {NINE_O_CLOCK: "x"}, known(inputs[0]) | known(inputs[1]))
        held = [open(each.path) for each in inputs]  # noqa: SIM115 - so no inode comes free
        survived = lake.survived(step, lambda: output.delete(inputs, quiet))  # noqa: B023
        lake.rest()
        assert not (survived and folder.exists()), "the directory of a batch goes, too"
        left = find([str(folder)], RAW) if folder.exists() else []
        gone = [each for each in inputs if not os.path.exists(each.path)]
        opened(lake.place)
        new = [raw(folder / os.path.basename(each.path), b"tick") for each in gone]
        output = opened(lake.place)
        assert output.divide([*left, *new]) == (new, left)
        assert output.delete(left, quiet) == (len(left), 0)
        for file in held:
            file.close()
        if survived:
            assert not left
            assert step > 1
            return


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

    def refused(path: str, **options: int) -> None:
        if path == inputs["stuck.log"].path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **options)

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
    output = opened(root)
    facts, _ = output.recognised([after], {after.path: FileFacts(1, 1, 1, 1)})
    commit(output, make(output, {NINE_O_CLOCK: "late"}), facts)
    output = opened(root)
    assert output.divide([before, after]) == ([], [before, after])
    assert output.delete([before, after], quiet) == (1, 1)
    assert os.path.exists(before.path)


def test_an_hour_that_was_removed_and_came_again_is_known_although_runs_are_killed(
    lake: Lake,
) -> None:
    def work() -> None:
        output = opened(lake.place)
        commit(output, make(output, {NINE_O_CLOCK: "late"}))

    for step in count():
        lake.anew()
        made(lake.place, OLD)
        open_store(lake.place).delete(NINE_O_CLOCK)
        survived = lake.survived(step, work)
        lake.rest()
        opened(lake.place)
        if survived:
            assert lake.contents() == [(NINE_O_CLOCK, "late"), (TEN_O_CLOCK, "old")]
            return


def test_an_hour_is_missed_before_inputs_of_an_earlier_run_are_deleted(tmp_path: Path) -> None:
    """Only if inputs have rows of its day."""
    names = ("day.log", "other.log", "empty.log", "old.log")
    inputs = [raw(tmp_path / "logs" / name, b"a") for name in names]
    spans = ((NINE_MINUTE, NINE_MINUTE), (0, NINE_MINUTE - 1440), (0, -1), (0, sys.maxsize))
    facts = {
        each.path: Known(each.size, each.mtime_ns, 1, "1", 1, *span)
        for each, span in zip(inputs, spans, strict=True)
    }
    made(tmp_path / "out", OLD, facts)
    shutil.rmtree(tmp_path / "out" / NINE_O_CLOCK)
    for number, deletes in ((1, True), (2, True), (0, False), (3, False)):
        output = CompactOutput(str(tmp_path / "out"))
        output.recover()
        assert output.delete([inputs[number]], quiet) == ((1, 0) if deletes else (0, 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [("logs/a.log", "archive/old/a.log"), ("2026-11-21/x.log", "2026-12-01/x.log")],
)
def test_a_bare_file_that_was_moved_is_found_in_the_state_by_its_name(
    tmp_path: Path, before: str, after: str
) -> None:
    first, moved = raw(tmp_path / before, b"a"), raw(tmp_path / after, b"a")
    made(tmp_path / "out", NEW, known(first))
    output = opened(tmp_path / "out")
    assert output.divide([moved]) == ([moved], [])
    _, read = output.recognised([moved], {moved.path: FileFacts(1, 1, 1)})
    assert read == {moved.path: ALL}


def test_an_output_that_is_not_as_compact_left_it_is_refused(tmp_path: Path) -> None:
    """It has files of others, or has another file, or has lost its state."""
    made(tmp_path, {NINE_O_CLOCK: "a"})
    (tmp_path / NINE_O_CLOCK / "_SUCCESS").touch()
    opened(tmp_path)
    for name in ("hour=10/batch=0a-1/part-1.parquet", "hour=09/part-2.parquet", "part-1.parquet"):
        other = tmp_path / "date=2026-11-21" / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("x")
        with pytest.raises(ConfigError, match="date=2026-11-21"):
            opened(tmp_path)
        other.unlink()
    [part] = (tmp_path / NINE_O_CLOCK).glob("*.parquet")
    part.write_text("longer")
    with pytest.raises(ConfigError, match="hour=09"):
        opened(tmp_path)
    shutil.rmtree(tmp_path / "_nsqtools")
    with pytest.raises(ConfigError, match="hour=09"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "nsqtools compact 4"}', "\xff"])
def test_a_state_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "_nsqtools/compact").mkdir(parents=True)
    (tmp_path / "_nsqtools/compact/0000000001").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"compact/0000000001"):
        CompactOutput(str(tmp_path))


def test_the_state_forgets_keyed_files_that_are_gone(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    inputs = [raw(logs / name, b"a") for name in ("keyed.log", "bare.log", "left.log")]
    elsewhere = raw(tmp_path / "other/keyed.log", b"a")
    facts = known(inputs[1])
    for each in (inputs[0], inputs[2], elsewhere):
        facts[each.path] = Known(each.size, each.mtime_ns, 1)
    output = made(tmp_path / "out", {NINE_O_CLOCK: "x"}, facts)
    for each in (*inputs[:2], elsewhere):
        os.unlink(each.path)
    found = find([str(logs)], RAW)
    assert output.gone(found) == []
    output.divide([*inputs, raw(logs / "new.log", b"b")])
    assert output.gone(found) == [inputs[0].path]
    output.commit(*make(output, {TEN_O_CLOCK: "y"}), [], {}, output.gone(found))
    output = opened(tmp_path / "out")
    again = [raw(Path(each.path), b"a") for each in (*inputs, elsewhere)]
    assert output.divide(again) == (again[:1], again[1:])


def test_a_state_in_one_file_of_an_earlier_version_is_divided_once(
    lake: Lake, tmp_path: Path
) -> None:
    """Whenever the run that does so is killed; and what that version had to do is done."""
    inputs = [raw(tmp_path / "logs" / name, b"a") for name in ("a.log", "b.log", "c.log")]
    paths = [each.path for each in inputs]
    old, new = (f"{hour}/part-{hour[-1] * 32}-00000-000.parquet" for hour in NEW)
    ingested = {"size": 2, "mtime_ns": NINE, "rows": 1, "checksum": "1", "whole": True}
    state = {
        "format": "nsqtools compact 2",
        "remove": [old],
        "deleting": paths[2:],
        "unfinished": ["f" * 32],
        "files": {new: asdict(HourFile(3, 1, 3, 0, 0))},
        "inputs": {path: ingested | {"whole": path != paths[1]} for path in paths},
    }
    os.unlink(paths[2])
    for step in count():
        lake.anew()
        store = open_store(lake.place)
        for path, text in {
            old: "old",
            new: "new",
            f"{NINE_O_CLOCK}/{prefix('f' * 32)}0.parquet": "torn",
            "_nsqtools/compact/0000000041": json.dumps(state),
        }.items():
            store.put(path, text.encode())
        survived = lake.survived(step, lambda: opened(lake.place))
        lake.rest()
        output = opened(lake.place)
        assert lake.contents() == [(TEN_O_CLOCK, "new")]
        assert output.divide(inputs) == (inputs[2:], inputs[:2])
        assert output.delete(inputs[1:2], quiet) == (0, 1)
        assert [name for name in store.list("_nsqtools/compact") if name.isdecimal()] > [
            "0000000041"
        ]
        if survived:
            assert step > 5
            return


@pytest.mark.parametrize("kind", ["lake", "logs"])
def test_a_run_loads_no_part_of_the_state_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of 500 inputs of 50 days that were ingested before, 2 of the last day are new or changed."""
    lake = Lake(tmp_path, "s3a", monkeypatch)
    names = {"lake": "date={}/batch=0a-{}/part-0.parquet", "logs": "events.{}-{}.log"}
    days = [(date(2026, 1, 1) + timedelta(n)).isoformat() for n in range(50)]
    inputs = [
        Input(f"s3a://b/{names[kind].format(day, number)}", 5, 5, "records", "s3a://b")
        for day in days
        for number in range(10)
    ]
    made(lake.place, NEW, {each.path: Known(5, 5, 1) for each in inputs})
    store = open_store(lake.place)
    requests: list[str] = []

    def counted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def request(*args: object) -> object:
            requests.append(name)
            return call(*args)

        return request

    for name in ("get", "put", "put_if_absent", "stat", "list", "files", "delete"):
        monkeypatch.setattr(store, name, counted(name, getattr(store, name)))
    changed = [replace(inputs[-1], size=6), replace(inputs[-1], path=f"{inputs[-1].path}.parquet")]
    output = opened(lake.place)
    assert output.divide([*inputs[:-1], *changed]) == (changed, inputs[:-1])
    facts = {each.path: Known(each.size, 5, 1) for each in changed}
    output.commit(*make(output, NEW), [*output.files], facts)
    assert Counter(requests)["get"] == 3, "the step, the files of a day, and the inputs of a day"
    assert len(requests) < 30


def test_in_a_store_a_run_that_was_taken_over_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "s3a", monkeypatch)
    obsolete = opened(lake.place)
    run = make(obsolete, OLD)
    output = opened(lake.place)
    commit(output, make(output, NEW))
    with pytest.raises(LockedError):
        commit(obsolete, run)
    open_store(lake.place).put(f"{NINE_O_CLOCK}/{prefix(run[0])}00001-000.parquet", b"late")
    opened(lake.place)
    assert lake.contents() == sorted(NEW.items())
    output = opened(lake.place)
    for _ in range(40):
        commit(output, make(output, {}))
    assert opened(lake.place)._unfinished == {}
