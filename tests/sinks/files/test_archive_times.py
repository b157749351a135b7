from __future__ import annotations

import gzip
import subprocess
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from nsqtools.sinks.files.rules import Arrival
from tests.support.archiving import (
    COMPRESSIONS,
    HOUR,
    SECOND,
    START,
    Archiving,
    batch,
    file_limit,
    ns,
)

if TYPE_CHECKING:
    from pathlib import Path

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"


class TestTimes:
    def test_another_hour_is_another_file(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, wall=START + 1800 * SECOND)
        archiving.write(b"one")
        assert archiving.next_due() == pytest.approx(1800)
        archiving.elapse(1800)
        archiving.write(b"two")
        archiving.close()
        other = NAME.replace("_19", "_20")
        assert archiving.published() == {NAME: b"one\n", other: b"two\n"}

    def test_a_file_is_published_when_its_time_is_over_without_a_message(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        archiving.elapse(archiving.next_due())
        archiving.step()
        assert archiving.published() == {NAME: b"one\n"}
        assert archiving.work() == []

    def test_a_batch_belongs_to_the_time_it_came_not_to_that_of_its_sync(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, wall=START + HOUR - SECOND)
        early, late = batch(b"early"), batch(b"late")
        arrivals = [Arrival(archiving.wall, early), Arrival(archiving.wall + SECOND, late)]
        archiving.elapse(5)
        archiving.archive.step(arrivals, [], now=archiving.now, wall=archiving.wall)
        archiving.close()
        other = NAME.replace("_19", "_20")
        assert archiving.published() == {NAME: b"early\n", other: b"late\n"}

    def test_an_interval_counts_from_the_opening(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_interval=60.0)
        archiving.write(b"one")
        archiving.elapse(50)
        archiving.write(b"two")
        assert archiving.next_due() == pytest.approx(10)
        archiving.elapse(archiving.next_due())
        archiving.step()
        archiving.write(b"three")
        archiving.close()
        assert list(archiving.published().values()) == [b"one\ntwo\n", b"three\n"]

    def test_a_boundary_is_a_time_of_the_clock(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_boundary=900.0, wall=START + 600 * SECOND)
        archiving.write(b"one")
        assert archiving.next_due() == pytest.approx(300)
        archiving.elapse(301)
        archiving.write(b"two")
        archiving.close()
        assert list(archiving.published().values()) == [b"one\n", b"two\n"]

    def test_a_clock_that_goes_back_an_hour_uses_no_name_again(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        for number, hours in enumerate((0, 1, -1, 1, -1)):
            archiving.wall += hours * HOUR
            archiving.write(b"%d" % number)
            archiving.elapse(1)
        archiving.close()
        at19, at20 = "events.host-%06d.2026-11-20_19.log", "events.host-%06d.2026-11-20_20.log"
        assert archiving.published() == {
            at19 % 0: b"0\n",
            at20 % 0: b"1\n",
            at19 % 1: b"2\n",
            at20 % 1: b"3\n",
            at19 % 2: b"4\n",
        }

    def test_a_clock_put_back_in_autumn_shows_an_hour_twice_and_loses_none_of_it(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(
            tmp_path,
            zone=ZoneInfo("Europe/Berlin"),
            rotate_boundary=3600.0,
            wall=ns("2026-10-24T23:30:00"),
        )
        for number in range(4):  # 1:30, 2:30, 2:30 and 3:30
            archiving.write(b"%d" % number)
            archiving.elapse(3600)
        archiving.close()
        name = "events.host-%06d.2026-10-25_%02d.log"
        assert archiving.published() == {
            name % (0, 1): b"0\n",
            name % (0, 2): b"1\n",
            name % (1, 2): b"2\n",
            name % (0, 3): b"3\n",
        }

    def test_without_a_boundary_both_hours_share_the_file_of_their_name(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(
            tmp_path, zone=ZoneInfo("Europe/Berlin"), wall=ns("2026-10-25T00:30:00")
        )
        archiving.write(b"summer")
        archiving.elapse(3600)
        archiving.write(b"winter")
        archiving.close()
        assert archiving.published() == {
            "events.host-000000.2026-10-25_02.log": b"summer\nwinter\n"
        }


class TestEmptyFiles:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_a_time_without_messages_has_an_empty_file_that_readers_take(
        self, compression: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compression=compression, skip_empty=False)
        assert archiving.next_due() == 30
        archiving.step()
        assert archiving.names() == []
        archiving.elapse(30)
        archiving.step()
        assert archiving.next_due() == pytest.approx(3570)
        archiving.elapse(archiving.next_due())
        archiving.step()
        (name,) = archiving.published()
        assert archiving.published() == {name: b""}
        assert archiving.notes.recorded[0].records == 0
        assert archiving.notes.recorded[0].size == (tmp_path / "out" / name).stat().st_size
        assert len(archiving.work()) == 1

    def test_an_empty_gzip_file_is_one_for_zcat_and_python(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compression="gzip", skip_empty=False)
        archiving.elapse(30)
        archiving.step()
        archiving.close()
        (name,) = archiving.names()
        path = tmp_path / "out" / name
        with gzip.open(path) as file:
            assert file.read() == b""
        try:
            done = subprocess.run(["zcat", path], capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no zcat")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def test_the_next_file_is_begun_at_once_when_one_is_over(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, skip_empty=False)
        archiving.write(b"one")
        archiving.elapse(3600)
        archiving.step()
        assert archiving.names() == [NAME, NAME.replace("_19", "_20") + ".part"]

    def test_after_a_reopening_an_empty_file_is_begun_as_late_as_at_the_start(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, skip_empty=False)
        archiving.write(b"one")
        archiving.elapse(100)
        archiving.step(fate="reopen")
        assert archiving.next_due() == 30
        archiving.step()
        assert archiving.names() == [NAME]

    def test_an_end_or_a_reopening_begins_no_file(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, skip_empty=False, rotate_size=2)
        archiving.elapse(100)
        archiving.step(fate="reopen")
        assert archiving.names() == []
        archiving.step(batch(b"one"), fate="close")
        assert archiving.names() == [NAME]

    def test_no_empty_file_is_made_where_none_is_wanted(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        assert archiving.next_due() == float("inf")
        archiving.elapse(10_000)
        archiving.step()
        archiving.close()
        assert archiving.names() == []

    def test_a_file_that_was_begun_in_vain_is_removed(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        with file_limit(2000), pytest.raises(OSError, match="File too large"):
            archiving.write(b"x" * 3000)
        assert archiving.names() == [f"{NAME}.part"]
        archiving.close()
        assert archiving.names() == []
