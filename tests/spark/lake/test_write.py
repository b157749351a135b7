"""Files as tasks write them: their names, their bounds, and what an error leaves."""

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqtools.errors import OutputError
from nsqtools.spark.lake import write
from nsqtools.spark.lake.write import PartFile, WriteTask, escaped

MIB = 1 << 20


def batch(bodies: Sequence[bytes], hours: Sequence[int] = (9,), topic: str = "a#b") -> Any:
    """Rows of one topic, in hours that repeat."""
    count = len(bodies)
    numbers = range(count)
    return pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "hour": pa.array([hours[each % len(hours)] for each in numbers], pa.int32()),
            "topic": [topic] * count,
            "at": pa.array([1000 + each for each in numbers], pa.timestamp("us", "UTC")),
        }
    )


def task(output: Path, **more: Any) -> WriteTask:
    settings = {"form": "parquet", "name": "q-7", "partitions": ("hour", "topic"), "times": "at"}
    return WriteTask(str(output), **{**settings, "size": write.FILE_SIZE, **more})


def run(work: WriteTask, *batches: Any) -> list[PartFile]:
    (found,) = work(iter(batches))
    return [PartFile(**each) for each in found.to_pylist()]


def there(output: Path) -> dict[str, list[bytes]]:
    """The bodies by file, hidden files included."""
    return {
        str(path.relative_to(output)): pq.read_table(path, partitioning=None)["body"].to_pylist()
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }


def first_page(path: Path) -> int:
    """Bytes of the first page of bodies, uncompressed, from its header in Thrift."""
    column = pq.read_metadata(path).row_group(0).column(0)
    with path.open("rb") as file:
        file.seek(column.data_page_offset)
        header = file.read(20)
    assert header[0] == header[2] == 0x15  # two fields of 32 bits
    size = shift = 0
    for byte in header[3:]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size >> 1
    raise AssertionError


def test_a_file_is_named_by_partition_batch_and_task_and_lacks_the_columns(tmp_path: Path) -> None:
    (found,) = run(task(tmp_path), batch([b"1", b"2"]), batch([b"3"]))
    assert found.path == "hour=09/topic=a%23b/batch=q-7/part-00000-000.parquet"
    assert (found.rows, found.oldest, found.newest) == (3, 1000, 1001)
    assert there(tmp_path) == {found.path: [b"1", b"2", b"3"]}
    schema = pq.read_schema(tmp_path / found.path)
    assert schema.names == ["body"]
    assert schema.metadata is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a#b", "a%23b"),
        ("a/b=c%", "a%2Fb%3Dc%25"),
        (7, "07"),
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_values_of_partitions_are_escaped_as_in_hive(value: object, text: str) -> None:
    assert escaped(value) == text


def test_a_retry_overwrites_the_same_files_and_rows_of_no_partition_are_not_lost(
    tmp_path: Path,
) -> None:
    rows = batch([b"1", b"2", b"3"])
    hours = pa.array([9, None, None], pa.int32())
    rows = rows.set_column(rows.schema.get_field_index("hour"), "hour", hours)
    for _ in range(2):
        run(task(tmp_path, partitions=("hour",)), rows.drop_columns(["topic"]))
        found = there(tmp_path)
        assert len(found) == 2
        assert sorted(body for bodies in found.values() for body in bodies) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("size", [5, 40], ids=["several batches", "one batch"])
def test_bodies_of_one_megabyte_are_in_pages_and_row_groups_that_readers_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(write, "ROW_GROUP", 16 * MIB)
    bodies = [bytes([each]) * 1_000_000 for each in range(40)]
    starts = range(0, len(bodies), size)
    (found,) = run(task(tmp_path), *(batch(bodies[each : each + size]) for each in starts))
    path = tmp_path / found.path
    parquet = pq.read_metadata(path)
    groups = [parquet.row_group(number) for number in range(parquet.num_row_groups)]
    assert max(each.total_byte_size for each in groups) <= 17 * MIB
    assert first_page(path) <= 2 * MIB
    assert there(tmp_path) == {found.path: bodies}


def test_a_file_ends_at_its_size(tmp_path: Path) -> None:
    bodies = [bytes([each]) * 100_000 for each in range(50)]
    found = run(task(tmp_path, size=2 * MIB), *(batch([each]) for each in bodies))
    assert [each.path[-11:] for each in found] == [f"{n:03d}.parquet" for n in range(3)]
    assert max(each.size for each in found) < 2 * MIB + 200_000
    assert [body for each in there(tmp_path).values() for body in each] == bodies


def test_messages_of_many_hours_are_held_only_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_MEMORY", MIB)
    most = 0

    def batches() -> Iterator[Any]:
        for number in range(20):
            yield batch([bytes([number]) * 20_000] * 24, range(24))
            held = pa.total_allocated_bytes()
            nonlocal most
            most = max(most, held)

    before = pa.total_allocated_bytes()
    (found,) = task(tmp_path)(batches())
    rows = [PartFile(**each) for each in found.to_pylist()]
    assert sum(each.rows for each in rows) == 480
    assert most - before < 4 * MIB
    assert len(there(tmp_path)) == len(rows) > 24
    bodies = [body for each in there(tmp_path).values() for body in each]
    assert {len(body) for body in bodies} == {20_000}
    assert len(bodies) == 480


def test_after_an_error_which_names_the_file_that_has_it_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> Iterator[Any]:
        yield from [batch([b"x", b"y"], (9, 10))] * 3
        raise RuntimeError("as told")

    def full(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write, "ROW_GROUP", 1)  # so that both files are there
    with pytest.raises(RuntimeError, match="as told"):
        list(task(tmp_path)(batches()))
    assert there(tmp_path) == {}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="hour=09"):
        run(task(tmp_path), *[batch([b"x", b"y"], (9, 10))] * 2)
    monkeypatch.undo()
    assert there(tmp_path) == {}


def test_json_is_lines_of_text(tmp_path: Path) -> None:
    lines = [json.dumps({"body": text}, ensure_ascii=False) for text in ("a", "\u00fc\n")]
    rows = pa.record_batch({"hour": pa.array([9, 9]), "line": lines})
    (found,) = run(task(tmp_path, form="json", partitions=("hour",), times=""), rows)
    assert found.path == "hour=09/batch=q-7/part-00000-000.json"
    assert (tmp_path / found.path).read_text("utf-8").splitlines() == lines
