"""When a file is over, by the clock or by the times of messages, and files without a message."""

from __future__ import annotations

import gzip
import math
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sinks.files.topicarchive import Arrival
from tests.support.archiving import COMPRESSIONS, HOUR, SECOND, START, Archiving, batch, message
from tests.support.binaries import needs
from tests.support.faults import file_limit

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.engine.handler import Message

AT_19, AT_20 = "events.host-%06d.2026-11-20_19.log", "events.host-%06d.2026-11-20_20.log"
NAME = AT_19 % 0


def pass_until_due(archiving: Archiving, seconds: float) -> None:
    """The next look is so far away; then it is taken."""
    assert archiving.next_due() == pytest.approx(seconds)
    archiving.elapse(archiving.next_due())
    archiving.step()


class TestTimes:
    def test_a_file_is_published_when_its_hour_is_over_and_the_next_is_another(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, wall=START + 1800 * SECOND)
        archiving.write(b"one")
        pass_until_due(archiving, 1800)
        assert archiving.published() == {NAME: b"one\n"}
        assert archiving.work() == []
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {NAME: b"one\n", AT_20 % 0: b"two\n"}

    def test_a_batch_belongs_to_the_time_it_came_not_to_that_of_its_sync(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, wall=START + HOUR - SECOND)
        early, late = batch(b"early"), batch(b"late")
        arrivals = [Arrival(archiving.wall, early), Arrival(archiving.wall + SECOND, late)]
        archiving.elapse(5)
        archiving.archive.step(arrivals, now=archiving.now, wall=archiving.wall)
        archiving.close()
        assert archiving.published() == {NAME: b"early\n", AT_20 % 0: b"late\n"}

    @pytest.mark.parametrize(
        "rule",
        [{"rotate_interval": 60.0}, {"rotate_boundary": 900.0, "wall": START + 840 * SECOND}],
    )
    def test_an_interval_counts_from_the_opening_and_a_boundary_is_a_time_of_the_clock(
        self, rule: dict[str, Any], tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, **rule)
        archiving.write(b"one")
        archiving.elapse(50)
        archiving.write(b"two")
        pass_until_due(archiving, 10)
        archiving.write(b"three")
        archiving.close()
        assert list(archiving.published().values()) == [b"one\ntwo\n", b"three\n"]


class TestEmptyFiles:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_a_time_without_messages_has_an_empty_file_that_readers_take(
        self, compression: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, skip_empty_files=False)
        archiving.step()
        assert archiving.names() == []
        pass_until_due(archiving, 30)
        pass_until_due(archiving, 3570)
        (name,) = archiving.published()
        assert archiving.published() == {name: b""}
        path = tmp_path / "out" / name
        (told,) = archiving.notes.recorded
        assert (told.records, told.size) == (0, path.stat().st_size)
        assert len(archiving.work()) == 1
        if compression == "gzip":
            assert gzip.decompress(path.read_bytes()) == b""
            zcat = needs("zcat", "that others read an empty archive")
            assert subprocess.check_output([zcat, path]) == b""

    def test_no_empty_file_is_made_where_none_is_wanted(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        assert archiving.next_due() == math.inf
        archiving.elapse(10_000)
        archiving.step()
        with file_limit(2000), pytest.raises(OSError, match="File too large"):
            archiving.write(b"x" * 3000)
        assert len(archiving.work()) == 1
        archiving.close()
        assert archiving.names() == []


def partitioned(folder: Path, **more: Any) -> Archiving:
    return Archiving(
        folder,
        name_by="message",
        filename_format="<TOPIC>/<DATETIME>/part<REV>.log",
        datetime_format="dt=%Y-%m-%d/hour=%H",
        work_dir=str(folder / "work"),
        **more,
    )


def name(hour: int, revision: int = 0) -> str:
    return f"events/dt=2026-11-20/hour={hour}/part-{revision:06d}.log"


def at(hours: float, body: bytes) -> Message:
    return message(body, timestamp=START + int(hours * HOUR))


class TestEventTimePartitions:
    def test_a_record_goes_where_its_time_belongs_whatever_the_clock_says(
        self, tmp_path: Path
    ) -> None:
        archiving = partitioned(tmp_path, close_idle=1e6)
        archiving.write(at(0, b"a"), at(1, b"b"), at(0.5, b"c"), at(-3, b"d"))
        archiving.elapse(7200)
        archiving.write(at(1.2, b"e"))
        assert archiving.safe == [b"a", b"c", b"b", b"d", b"e"]
        archiving.close()
        assert archiving.published() == {name(16): b"d\n", name(19): b"a\nc\n", name(20): b"b\ne\n"}

    def test_no_more_files_than_allowed_are_open_and_the_least_used_is_closed(
        self, tmp_path: Path
    ) -> None:
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

    def test_a_partition_without_a_record_for_a_while_is_published(self, tmp_path: Path) -> None:
        archiving = partitioned(tmp_path, close_idle=60.1)
        archiving.now = 0.2
        assert archiving.next_due() == math.inf
        archiving.write(at(0, b"a"))
        archiving.elapse(40)
        archiving.write(at(1, b"b"))
        pass_until_due(archiving, 20.1)
        assert archiving.published() == {name(19): b"a\n"}
        pass_until_due(archiving, 40)
        assert archiving.published() == {name(19): b"a\n", name(20): b"b\n"}
        assert archiving.next_due() == math.inf

    def test_an_interval_and_a_size_count_for_each_partition(self, tmp_path: Path) -> None:
        archiving = partitioned(tmp_path, rotate_interval=60.0, close_idle=1e3, rotate_size=3)
        archiving.write(at(0, b"a"), at(1, b"x"), at(0, b"b"), at(0, b"c"))
        assert archiving.published() == {name(19): b"a\nb\n"}
        archiving.elapse(40)
        archiving.write(at(2, b"y"))
        pass_until_due(archiving, 20)
        assert set(archiving.published()) == {name(19), name(19, 1), name(20)}
        assert len(archiving.work()) == 1
