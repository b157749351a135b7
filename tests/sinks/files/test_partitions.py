"""Files named by the time of messages: event-time partitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.archiving import COMPRESSIONS, HOUR, SECOND, START, Archiving, message

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.engine.handler import Message


def partitioned(folder: Path, **more: Any) -> Archiving:
    return Archiving(
        folder,
        by_message=True,
        filename_format="<TOPIC>/<DATETIME>/part<REV>.log",
        datetime_format="dt=%Y-%m-%d/hour=%H",
        work_dir=str(folder / "work"),
        **more,
    )


def name(hour: int, revision: int = 0) -> str:
    return f"events/dt=2026-11-20/hour={hour}/part-{revision:06d}.log"


def at(hours: float, body: bytes) -> Message:
    return message(body, timestamp=START + int(hours * HOUR))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_record_goes_where_its_time_belongs(compression: str, tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, compression=compression)
    archiving.write(at(0, b"a"), at(1, b"b"), at(0.5, b"c"), at(-3, b"d"))
    archiving.write(at(1.2, b"e"))
    assert archiving.safe == [b"a", b"c", b"b", b"d", b"e"]
    archiving.close()
    assert {
        path.partition(".log")[0] + ".log": data for path, data in archiving.published().items()
    } == {
        name(16): b"d\n",
        name(19): b"a\nc\n",
        name(20): b"b\ne\n",
    }


def test_the_clock_closes_no_partition(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, close_idle=1e6)
    archiving.write(at(0, b"a"))
    archiving.elapse(7200)
    archiving.write(at(0, b"b"))
    archiving.close()
    assert archiving.published() == {name(19): b"a\nb\n"}


def test_no_more_files_than_allowed_are_open_and_the_least_used_is_closed(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, max_open_files=2)
    for hour in (0, 1, 0):
        archiving.write(at(hour, b"%d" % hour))
        archiving.elapse(1)
    archiving.write(at(2, b"2"))
    assert archiving.published() == {name(20): b"1\n"}
    assert len(archiving.work()) == 2
    archiving.write(at(1, b"1 again"))
    archiving.close()
    assert archiving.published() == {
        name(19): b"0\n0\n",
        name(20): b"1\n",
        name(20, 1): b"1 again\n",
        name(21): b"2\n",
    }


def test_a_batch_of_more_partitions_than_allowed_is_safe_all_the_same(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, max_open_files=3)
    bodies = [b"%02d" % number for number in range(20)]
    archiving.write(*(at(-number, body) for number, body in enumerate(bodies)))
    assert len(archiving.work()) == 3
    assert sorted(archiving.safe) == bodies
    archiving.close()
    assert sorted(b"".join(archiving.published().values()).split()) == bodies


def test_a_partition_without_a_record_for_a_while_is_published(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, close_idle=60.1)
    archiving.now = 0.2
    assert archiving.next_due() == math.inf
    archiving.write(at(0, b"a"))
    archiving.elapse(40)
    archiving.write(at(1, b"b"))
    assert archiving.next_due() == pytest.approx(20.1)
    archiving.elapse(archiving.next_due())
    archiving.step()
    assert archiving.published() == {name(19): b"a\n"}
    assert archiving.next_due() == pytest.approx(40)
    archiving.elapse(archiving.next_due())
    archiving.step()
    assert archiving.published() == {name(19): b"a\n", name(20): b"b\n"}
    assert archiving.next_due() == math.inf


def test_rounding_makes_no_look_too_early(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, close_idle=0.1)
    archiving.now = 0.1 * 3
    archiving.write(at(0, b"a"))
    archiving.now = archiving.archive.next_due(now=archiving.now, wall=archiving.wall)
    assert archiving.now - 0.1 * 3 < 0.1
    archiving.step()
    assert archiving.published() == {name(19): b"a\n"}


def test_an_interval_counts_for_each_partition(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, rotate_interval=60.0, close_idle=1000.0)
    archiving.write(at(0, b"a"))
    archiving.elapse(40)
    archiving.write(at(1, b"b"), at(0, b"c"))
    assert archiving.next_due() == pytest.approx(20)
    archiving.elapse(archiving.next_due())
    archiving.step()
    assert archiving.published() == {name(19): b"a\nc\n"}
    assert len(archiving.work()) == 1


def test_a_partition_is_split_by_size(tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, rotate_size=3)
    archiving.write(at(0, b"a"), at(1, b"x"), at(0, b"b"), at(0, b"c"), at(1, b"y"))
    archiving.close()
    assert archiving.published() == {
        name(19): b"a\nb\n",
        name(19, 1): b"c\n",
        name(20): b"x\ny\n",
    }


@pytest.mark.parametrize("skip_empty", [True, False])
def test_there_are_no_empty_partitions(skip_empty: bool, tmp_path: Path) -> None:
    archiving = partitioned(tmp_path, skip_empty=skip_empty)
    assert archiving.next_due() == math.inf
    archiving.elapse(3600)
    archiving.step()
    archiving.write(at(0, b"a"))
    archiving.elapse(3600)
    archiving.step()
    archiving.close()
    assert archiving.published() == {name(19): b"a\n"}


def test_the_end_of_a_second_is_its_own_partition_where_names_have_seconds(tmp_path: Path) -> None:
    archiving = Archiving(tmp_path, by_message=True, datetime_format="%H%M%S")
    archiving.write(
        message(b"a", timestamp=START + SECOND - 1), message(b"b", timestamp=START + SECOND)
    )
    archiving.close()
    assert list(archiving.published().values()) == [b"a\n", b"b\n"]
