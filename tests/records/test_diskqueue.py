"""Disk queues: every message that damage has left is found, in files that nsqd may be changing."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import RecordError
from nsqtools.proto.messages import Message
from nsqtools.records.diskqueue.decoder import QueueDecoder, encode
from nsqtools.records.diskqueue.queuefiles import (
    DiskQueue,
    FilePosition,
    QueueMeta,
    QueueReader,
    disk_queues,
)
from tests.support.diskqueues import LIMIT, QueueFiles, messages, numbers
from tests.support.sessions import cut

RECORD = len(encode(messages([0])))
GARBAGE = st.one_of(
    st.binary(max_size=150),
    st.integers(0, 150).map(bytes),
    st.integers(0, 9).map(b"text, ".__mul__),
)


def decoded(*pieces: bytes, limit: int = LIMIT) -> tuple[list[Message], int]:
    """The messages of a file that is read in these pieces, and the bytes skipped."""
    decoder = QueueDecoder(limit)
    found = [each for piece in pieces for each in decoder.feed(piece)]
    return found + decoder.finish(), decoder.skipped


MESSAGES = st.lists(
    st.builds(
        Message,
        st.integers(0, 2**64 - 1).map("{:016x}".format).map(str.encode),
        st.text("0123456789abcdef", max_size=40).map(str.encode),  # which could be part of an id
        st.integers(978_307_200 * 10**9, 4_102_444_800 * 10**9),  # 2001 to 2100
        st.integers(0, 2**16 - 1),
    ),
    max_size=6,
)


@given(st.data())
def test_the_pieces_of_a_file_make_no_difference(data: st.DataObject) -> None:
    file = encode(data.draw(MESSAGES) + messages(range(3)))
    at = data.draw(st.integers(0, len(file)))
    until = data.draw(st.sampled_from([at, at + 10, len(file)]))
    file = file[:at] + data.draw(GARBAGE) + file[until:]
    whole, skipped = decoded(file)
    offsets = data.draw(st.lists(st.integers(0, len(file)), max_size=60))
    found, as_well = decoded(*cut(file, offsets))
    assert as_well == skipped
    assert [(each.id, each.body) for each in found] == [(each.id, each.body) for each in whole]


@given(MESSAGES, GARBAGE, MESSAGES, st.integers(0, RECORD - 1))
def test_garbage_and_a_torn_message_are_skipped_and_counted(
    before: list[Message], garbage: bytes, behind: list[Message], torn: int
) -> None:
    rest = encode(behind) + encode(messages([0]))[:torn]
    found, skipped = decoded(encode(before) + garbage + rest)
    assert (encode(found), skipped) == (encode(before + behind), len(garbage) + torn)


@pytest.mark.parametrize("shift", [1, 2])
def test_the_time_of_a_message_is_no_size_although_a_message_begins_there(shift: int) -> None:
    first = Message(b"0123456789abcdef", b"00", 0x182525 << 40, 1)
    record = encode([first])
    size = int.from_bytes(record[shift : shift + 4], "big")
    file = record + bytes(20) + encode(messages([0], size + shift - 78))
    assert len(file) == shift + 4 + size  # where the next one begins
    file += encode(messages([1, 2]))
    found, skipped = decoded(file, limit=4 << 20)
    assert (found[0].body, numbers(found[1:]), skipped) == (b"00", [0, 1, 2], 20)


@pytest.mark.parametrize(("size", "attempts"), [(0x2525, 0x35), (0x252525, 0x3535)])
def test_attempts_of_a_message_after_zeros_are_no_part_of_its_id(size: int, attempts: int) -> None:
    first, *behind = messages([1, 2], size - 26)
    first.attempts = attempts
    first.timestamp -= 1
    found, skipped = decoded(bytes(20) + encode([first, *behind]), limit=4 << 20)
    assert (encode(found), skipped) == (encode([first, *behind]), 20)


@pytest.mark.parametrize("size", [26, RECORD - 1, RECORD + 9, 3 * RECORD, 40 * RECORD])
def test_a_wrong_size_costs_no_other_message(size: int) -> None:
    file = bytearray(encode(messages(range(6))))
    file[2 * RECORD : 2 * RECORD + 4] = size.to_bytes(4, "big")
    found, skipped = decoded(bytes(file))
    if size < RECORD - 4:  # a shorter message, and then what it lacks
        assert (found.pop(2).body, skipped) == (b"", RECORD - 30)
    else:
        assert skipped == RECORD
    assert numbers(found) == [0, 1, 3, 4, 5]


def test_a_message_may_have_a_message_in_its_body() -> None:
    (outer,) = messages([0])
    outer.body += encode(messages([1])) + b" "
    torn = encode(messages([2]))[:35]
    wrong = LIMIT.to_bytes(4, "big") + encode(messages([3]))[4:]
    for before, behind in ((b"", b""), (b"", torn), (wrong, torn)):
        found, skipped = decoded(before + encode([outer]) + behind)
        assert ([each.body for each in found], skipped) == ([outer.body], len(before + behind))


def test_what_looks_like_a_message_but_for_its_size_is_none() -> None:
    (outer,) = messages([0])
    outer.body += (LIMIT + 27).to_bytes(4, "big") + encode(messages([1]))[4:]
    found, skipped = decoded(encode([outer]) + bytes(40))
    assert ([each.body for each in found], skipped) == ([outer.body], 40)


def test_what_is_no_message_is_not_kept_in_memory() -> None:
    decoder = QueueDecoder(LIMIT)
    tracemalloc.start()
    for _ in range(8):
        assert not decoder.feed(bytes(1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20
    assert not decoder.finish()
    assert decoder.skipped == 8 << 20


def test_a_message_over_the_limit_is_damage() -> None:
    large = messages([1], size=LIMIT + 1)
    found, skipped = decoded(encode([*messages([0]), *large, *messages([2])]))
    assert (numbers(found), skipped) == ([0, 2], len(encode(large)))


PLACES = st.builds(FilePosition, st.integers(0, 10**9), st.integers(0, 10**15))


@given(st.builds(QueueMeta, st.integers(-9, 10**9), PLACES, PLACES))
def test_meta_is_read_as_it_is_written(meta: QueueMeta) -> None:
    assert QueueMeta.parse(meta.encode()) == meta


@pytest.mark.parametrize(
    "text", [b"", b"1\n0,0\n", b"1\n0,-5\n0,0\n", b"\0" * 14, b"1\n0,0\n0,0\n1"]
)
def test_what_is_no_meta_is_refused(text: bytes) -> None:
    with pytest.raises(RecordError):
        QueueMeta.parse(text)


def reading(folder: Path, *, bad: bool = False) -> QueueReader:
    ((queue,), _) = disk_queues(str(folder))
    return QueueReader(queue, queue.meta(), LIMIT, bad=bad)


def read(reader: QueueReader, **chosen: int) -> list[int]:
    return numbers(each for batch in reader.batches(**chosen) for each in batch)


def test_files_are_read_in_order_from_where_nsqd_stands(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path)
    for number in (8, 9, 10, 11):
        files.write(number, messages([2 * number, 2 * number + 1]))
    files.point(5, (9, RECORD), (10, 0))
    assert read(reading(tmp_path)) == [19, 20, 21, 22, 23]
    files.path("meta").unlink()
    assert read(reading(tmp_path)) == [*range(16, 24)]
    assert read(reading(tmp_path), count=3) == [16, 17, 18]
    times = {number: messages([number])[0].timestamp for number in (17, 20)}
    assert read(reading(tmp_path), since=times[17]) == [*range(17, 24)]
    assert read(reading(tmp_path), until=times[20]) == [*range(16, 20)]
    assert read(reading(tmp_path), since=times[17], until=times[20]) == [17, 18, 19]


def test_files_that_nsqd_gave_up_are_read_when_asked_for(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path)
    files.write("000003", encode(messages([1])) + b"rubbish" + encode(messages([2])))
    os.rename(files.path(3), f"{files.path(3)}.bad")
    files.write(4, messages([3]))
    files.point(1, (4, 0), (4, RECORD))
    assert read(reading(tmp_path)) == [3]
    bad = reading(tmp_path, bad=True)
    assert read(bad) == [1, 2, 3]
    assert bad.skipped == {f"{files.path(3)}.bad": 7}


def test_only_regular_files_with_possible_names_are_queues(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(encode(messages([1])))
    good = QueueFiles(tmp_path, "a.b-c:d#ephemeral")
    good.write(0, messages([1]))
    QueueFiles(tmp_path, "linked").path(0).symlink_to(elsewhere)
    os.mkfifo(QueueFiles(tmp_path, "fifo").path(0))
    for name in ("", "a b", ":c", "t:", "t:c:d", "x" * 65, "a\nb", "t:\udcff"):
        QueueFiles(tmp_path, name).write(0, b"")
    for name in ("t.diskqueue.0.dat", "t.diskqueue.0000000.dat", "t.diskqueue.meta.dat.1.tmp"):
        (tmp_path / name).write_bytes(b"")
    found, strange = disk_queues(str(tmp_path))
    assert found == [DiskQueue(str(tmp_path), "a.b-c", "d#ephemeral", [0])]
    assert len(strange) == 9


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path)
    files.write(0, messages([1]))
    reader = reading(tmp_path)
    (tmp_path / "elsewhere").write_bytes(QueueMeta().encode())
    for part in (0, "meta"):
        files.path(part).unlink(missing_ok=True)
        files.path(part).symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read(reader)
    with pytest.raises(OSError, match="symbolic links"):
        DiskQueue(str(tmp_path), "t", "c").meta()
    files.path("meta").unlink()
    os.mkfifo(files.path("meta"))
    with pytest.raises(OSError, match="not a regular file"):
        DiskQueue(str(tmp_path), "t", "c").meta()


def test_nsqd_may_go_on_while_its_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes one, appends to the last, is about to complete a record, and begins another."""
    files = QueueFiles(tmp_path)
    for number in range(3):
        files.write(number, messages([number]))
    reader = reading(tmp_path)
    batches = reader.batches()
    assert numbers(next(batches)) == [0]
    files.path(1).unlink()
    files.write(2, encode(messages([2, 3]))[:-5])

    def complete(_: float) -> None:
        files.write(2, messages([2, 3]))
        files.write(4, messages([4]))

    monkeypatch.setattr("nsqtools.records.diskqueue.queuefiles.time.sleep", complete)
    assert numbers(each for batch in batches for each in batch) == [2, 3, 4]
    assert not reader.skipped
