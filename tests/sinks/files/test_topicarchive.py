"""The archive of a topic on a disk that works: what is written, and when a file is over."""

import gzip
import hashlib
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsqtools.engine.handler import Message
from nsqtools.sinks.files.topicarchive import Arrival
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    HOUR,
    SECOND,
    START,
    Archiving,
    batch,
    message,
    plain,
)
from tests.support.binaries import needs
from tests.support.faults import file_limit

NAME = "events.host-000000.2026-11-20_19.log"
AT_20 = NAME.replace("_19", "_20")


class TestWriting:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_records_are_safe_after_their_step_and_completed_at_the_end(
        self, compression: str, form: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, format=form)
        archiving.step(batch(b"one", b"two"), batch(b"three"))
        assert archiving.safe == [b"one", b"two", b"three"]
        (work,) = archiving.work()
        under_way = plain(Path(archiving.rules.work_dir, work))
        archiving.write(b"four")
        archiving.close()
        (name, data), *others = archiving.completed().items()
        assert (name, others) == (work.removesuffix(".part"), [])
        assert data.startswith(under_way)
        assert data.count(b"four") == 1
        assert archiving.names() == [name]

    def test_a_body_with_the_delimiter_is_warned_of_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one", b"two")
        assert caplog.records == []
        archiving.write(b"a\nb", b"c\n", b"d")
        archiving.write(b"e\nf")
        (warning,) = caplog.messages
        assert "topic events" in warning

    def test_a_completed_file_is_described(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compress="gzip", manifest="manifest")
        archiving.write(message(b"one", timestamp=5, number=7), message(b"two", timestamp=3))
        archiving.write(message(b"three", timestamp=9, number=8))
        archiving.close()
        (told,) = archiving.notes.recorded
        assert archiving.notes.followed == [told]
        name = f"{NAME}.gz"
        data = (tmp_path / "out" / name).read_bytes()
        assert (told.name, told.path) == (name, str(tmp_path / "out" / name))
        assert (told.topic, told.records, told.size) == ("events", 3, len(data))
        assert told.sha256 == hashlib.sha256(data).hexdigest()
        assert (told.first_timestamp, told.last_timestamp) == (5, 9)
        assert (told.first_id, told.last_id) == ("0000000000000007", "0000000000000008")
        assert (told.format, told.delimiter, told.compression) == ("raw", "\\n", "gzip")

    def test_a_file_is_split_where_a_record_ends(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=10)
        archiving.write(b"1234", b"1234", b"5", b"abcdefghijkl", b"6")
        assert len(archiving.completed()) == 2  # in the step that filled them
        archiving.write(b"7")
        archiving.close()
        assert list(archiving.completed().values()) == [
            b"1234\n1234\n5\n",  # at 10 bytes the next record may still begin
            b"abcdefghijkl\n",
            b"6\n7\n",
        ]
        assert archiving.safe == [b"1234", b"1234", b"5", b"abcdefghijkl", b"6", b"7"]


def pass_until_due(archiving: Archiving, seconds: float) -> None:
    """The next look is so far away; then it is taken."""
    assert archiving.next_due() == pytest.approx(seconds)
    archiving.elapse(archiving.next_due())
    archiving.step()


class TestTimes:
    @pytest.mark.parametrize(
        ("rule", "names"),
        [
            ({"wall": START + 3540 * SECOND}, [NAME, AT_20]),
            ({"rotate_interval": 60.0}, [NAME, NAME.replace("000000", "000001")]),
            (
                {"rotate_boundary": 900.0, "wall": START + 840 * SECOND},
                [NAME, NAME.replace("000000", "000001")],
            ),
        ],
    )
    def test_a_file_is_over_with_its_hour_its_interval_or_at_a_time_of_the_clock(
        self, rule: dict[str, Any], names: list[str], tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, **rule)
        archiving.write(b"one")
        archiving.elapse(50)
        archiving.write(b"two")
        pass_until_due(archiving, 10)
        assert archiving.completed() == {names[0]: b"one\ntwo\n"}
        assert archiving.work() == []
        archiving.write(b"three")
        archiving.close()
        assert archiving.completed() == dict(zip(names, (b"one\ntwo\n", b"three\n"), strict=True))

    def test_a_batch_belongs_to_the_time_it_came_not_to_that_of_its_sync(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, wall=START + HOUR - SECOND)
        early, late = batch(b"early"), batch(b"late")
        arrivals = [Arrival(archiving.wall, early), Arrival(archiving.wall + SECOND, late)]
        archiving.elapse(5)
        archiving.archive.step(arrivals, now=archiving.now, wall=archiving.wall)
        archiving.close()
        assert archiving.completed() == {NAME: b"early\n", AT_20: b"late\n"}


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
        (name,) = archiving.completed()
        assert archiving.completed() == {name: b""}
        path = tmp_path / "out" / name
        (told,) = archiving.notes.recorded
        assert (told.records, told.size) == (0, path.stat().st_size)
        archiving.elapse(60)
        archiving.step()
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
        assert archiving.work() == []
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
        assert archiving.completed() == {name(16): b"d\n", name(19): b"a\nc\n", name(20): b"b\ne\n"}

    def test_no_more_files_than_allowed_are_open_and_the_least_used_is_closed(
        self, tmp_path: Path
    ) -> None:
        archiving = partitioned(tmp_path, max_open_files=2)
        for hour in (0, 1, 0):
            archiving.write(at(hour, b"%d" % hour))
            archiving.elapse(1)
        archiving.write(at(2, b"2"))
        assert archiving.completed() == {name(20): b"1\n"}
        assert len(archiving.work()) == 2
        archiving.write(at(1, b"1 again"))
        archiving.close()
        assert archiving.completed() == {
            name(19): b"0\n0\n",
            name(20): b"1\n",
            name(20, 1): b"1 again\n",
            name(21): b"2\n",
        }

    def test_a_partition_is_completed_when_it_is_idle_full_or_its_interval_over(
        self, tmp_path: Path
    ) -> None:
        archiving = partitioned(tmp_path, close_idle=60.1, rotate_interval=90.0, rotate_size=6)
        assert archiving.next_due() == math.inf
        archiving.write(at(0, b"a"))
        archiving.elapse(40)
        archiving.write(at(1, b"b"))
        pass_until_due(archiving, 20.1)
        assert archiving.completed() == {name(19): b"a\n"}
        archiving.write(at(1, b"c" * 9), at(2, b"x"))
        assert set(archiving.completed()) == {name(19), name(20)}
        archiving.elapse(50)
        archiving.write(at(2, b"y"))
        pass_until_due(archiving, 40)
        assert archiving.completed()[name(21)] == b"x\ny\n"
        assert archiving.next_due() == math.inf
