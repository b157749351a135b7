"""What a run of ``compact`` makes of facts about its inputs, without Spark."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.spark.jobs.compact import CompactSettings, _Compaction, slices
from nsqtools.spark.jobs.compacted import ALL, CompactOutput, FileFacts, HourFile, Known
from nsqtools.spark.lake.inputs import Input

MINUTES = st.dictionaries(st.integers(0, 300), st.integers(1, 10**6), min_size=1)


@given(MINUTES, st.integers(1, 10**6))
def test_tasks_are_of_equal_size_and_hours_of_few_files(minutes: dict[int, int], size: int) -> None:
    table, tasks, files = slices(minutes, size)
    assert [row[0] for row in table] == sorted(minutes)
    filled = [0.0] * (tasks + 1)
    hours: dict[int, set[int]] = {}
    for minute, start, span in table:
        share = minutes[minute] / span
        while span > 1e-9:
            task = int(start + 1e-9)
            part = min(span, task + 1 - start)
            filled[task] += part * share
            hours.setdefault(minute // 60, set()).add(task)
            start, span = start + part, span - part
    assert max(filled) <= size * 1.001 + 1
    assert filled[tasks] < 1
    assert sum(map(len, hours.values())) <= files
    assert files <= sum(minutes.values()) / size + len(hours)
    assert tasks <= 2 * (sum(minutes.values()) / size + 1)


def stamp(folder: Path) -> int:
    """The time that the folder's file system gives a new file, whose clock is the real one."""
    file = folder / "stamp"
    file.touch()
    found = file.stat().st_mtime_ns
    file.unlink()
    return found


@pytest.mark.parametrize("ahead", [0, 366 * 86_400 * 10**9])
def test_a_file_is_old_only_by_the_clock_of_its_store_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    now = time.time_ns()
    monkeypatch.setattr("nsqtools.spark.jobs.compact.wall_ns", lambda: now + ahead)
    settings = CompactSettings(inputs=(), output=str(tmp_path), older_than=60.0)
    output: Any = CompactOutput(str(tmp_path))
    nothing: Any = None
    run = _Compaction(nothing, settings, nothing, nothing, output)
    before, limit, after = stamp(tmp_path), run.limit() + 60 * 10**9, stamp(tmp_path)
    assert min(now + ahead, before) <= limit <= min(now + ahead, after)
    assert list(tmp_path.iterdir()) == []
    for years in (-1, 1):
        theirs = now + years * 366 * 86_400 * 10**9
        monkeypatch.setattr(output, "now", lambda theirs=theirs: theirs)
        assert run.limit() == min(now + ahead, theirs) - 60 * 10**9


@pytest.mark.parametrize(
    ("now", "read"),
    [
        (FileFacts(2, 2, 55, 55, 5, 6), ALL),
        (FileFacts(3, 3, 66, 55, 5, 6), 2),
        (FileFacts(3, 3, 77, 44, 5, 6), 0),
        (FileFacts(1, 1, 33, 33, 5, 6), 0),
        (FileFacts(2, 2, 44, 44, 5, 6), 0),
        (FileFacts(3, 0, 0, 0, 5, 6), 0),
    ],
    ids=["touched", "grown", "replaced by more", "cut", "replaced by as much", "keyed now"],
)
def test_of_a_file_with_bare_records_only_what_is_new_is_read(
    tmp_path: Path, now: FileFacts, read: int
) -> None:
    output = CompactOutput(str(tmp_path))
    new = Input("/logs/a.log", 9, 7, "records", "/logs")
    output.inputs[new.path] = Known(5, 5, 2, "55", at=-1, first=7, last=8)
    assert output.starts([new]) == {new.path: 2}
    known, starts = output.recognised([new], {new.path: now})
    assert starts.get(new.path, 0) == read
    facts = {"at": -1, "first": 5, "last": 8} if read else {"at": 1, "first": 5, "last": 6}
    expected = Known(9, 7, now.rows, str(now.checksum or ""), **facts)
    assert known == {new.path: expected}


def test_a_file_that_was_moved_or_copied_is_known_by_its_content(tmp_path: Path) -> None:
    output = CompactOutput(str(tmp_path))
    output.inputs["/old/a.log"] = Known(9, 7, 2, "55")
    places = ("/new/a.log", "/other/a.log", "/copy/a.log", "/new/b.log")
    new = [Input(path, 9, 7, "records", "/") for path in places]
    sums = (55, 66, 66, 55)
    facts = {each.path: FileFacts(2, 2, sum_) for each, sum_ in zip(new, sums, strict=True)}
    known, starts = output.recognised(new, facts)
    assert starts == {"/new/a.log": ALL, "/copy/a.log": ALL}
    assert known.keys() == set(places)


def test_merged_are_small_files_of_the_hour_and_files_of_the_same_minutes(tmp_path: Path) -> None:
    output = CompactOutput(str(tmp_path))
    big = {"size": 1, "rows": 1, "raw": 900}
    small = {"size": 1, "rows": 1, "raw": 400}
    output.files = {
        "date=1970-01-01/hour=01/part-before": HourFile(**big, first=60, last=69),
        "date=1970-01-01/hour=01/part-same": HourFile(**big, first=69, last=75),
        "date=1970-01-01/hour=01/part-small": HourFile(**small, first=90, last=119),
        "date=1970-01-01/hour=02/part-other": HourFile(**small, first=120, last=121),
    }
    for path in output.files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
    found = output.meeting({70: 1}, file_size=1000)
    assert [path.rpartition("-")[2] for path in found] == ["same", "small"]
