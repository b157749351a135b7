"""Dead letters in every place they can go, safe when ``write`` returns."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqtools.errors import OutputError, PublishError
from nsqtools.records.readers import JsonLines
from nsqtools.sinks import deadletters
from nsqtools.sinks.deadletters import DeadLetters, ToDirectory, ToTopic, read_dead_letters
from tests.support.archiving import START, batch
from tests.support.damage import flipped
from tests.support.faults import broken, file_limit

REASON = "too many attempts"


@contextlib.asynccontextmanager
async def opened(letters: DeadLetters) -> AsyncIterator[DeadLetters]:
    await letters.open()
    try:
        yield letters
    finally:
        await letters.close()


def write(folder: Path, *given: bytes, reason: str = REASON) -> None:
    """Append them in a process of its own, as far as the file can tell."""

    async def append() -> None:
        async with opened(ToDirectory(str(folder))) as letters:
            await letters.write(each := batch(*given), each, reason)

    asyncio.run(append())


def bodies(path: Path) -> list[bytes]:
    """As ``pub --json`` reads them from a file; nothing in it may be torn."""
    lines = JsonLines(max_size=1 << 20, complete=True)
    return [*lines.feed(path.read_bytes()), *lines.finish()]


def reasons(path: Path) -> list[str]:
    return [json.loads(line)["reason"] for line in path.read_bytes().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dead"


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "events.dead.jsonl"


class TestDirectory:
    def test_a_line_tells_all_that_is_known(self, folder: Path, file: Path) -> None:
        write(folder, b'{"a": "\xc3\xa4"}', reason='answered 500 "no"\n')
        (line,) = file.read_bytes().splitlines()
        assert json.loads(line) == {
            "reason": 'answered 500 "no"\n',
            "topic": "events",
            "channel": "archive",
            "id": "0000000000000001",
            "timestamp": START,
            "attempts": 1,
            "nsqd": "127.0.0.1:4150",
            "body": '{"a": "ä"}',
        }

    async def test_each_topic_has_a_file_to_which_what_is_chosen_is_appended(
        self, folder: Path, file: Path
    ) -> None:
        for _ in range(2):
            async with opened(ToDirectory(str(folder))) as letters:
                assert not letters.is_lossy
                for given in (batch(b"1", b"2"), batch(b"a", topic="t#ephemeral")):
                    await letters.write(given, given[:1], REASON)
        assert bodies(file) == [b"1"] * 2
        assert bodies(folder / "t#ephemeral.dead.jsonl") == [b"a"] * 2

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(written=st.lists(st.binary(min_size=1), max_size=4), reason=st.text())
    def test_any_body_survives_with_any_reason(
        self, folder: Path, file: Path, written: list[bytes], reason: str
    ) -> None:
        file.unlink(missing_ok=True)
        write(folder, *written, b"last", reason=reason)
        assert bodies(file) == [*written, b"last"]
        assert reasons(file)[0] == reason


class TestFaults:
    def test_what_is_left_of_a_torn_line_is_cut_wherever_it_was_torn(
        self, folder: Path, file: Path, full: bool
    ) -> None:
        write(folder, b"1", b"\xff" * 20)
        whole = file.read_bytes()
        ends = [whole.index(b"\n"), len(whole) - 1]  # a line that lacks nothing but this is whole
        for length in range(len(whole)) if full else {*range(0, len(whole), 9), *ends}:
            lost = bytes(300) if length in (0, ends[0] + 1) else b""  # as after a power failure
            file.write_bytes(whole[:length] + lost)
            write(folder, b"3")
            both = zip((b"1", b"\xff" * 20), ends, strict=True)
            kept = [body for body, end in both if length >= end]
            assert bodies(file) == [*kept, b"3"]

    def test_a_flipped_bit_costs_no_other_letter_and_is_never_cut_off(
        self, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", bool)  # hundreds of them
        write(folder, b"1", b"2")
        whole = file.read_bytes()
        second = whole.index(b"\n") + 1
        for at, data in flipped(whole):
            file.write_bytes(data)
            if at == len(whole) - 1 or not at % 9:
                write(folder, b"3")
                assert file.read_bytes().startswith(data), at
            found = [each.body for each in read_dead_letters(str(file), 0, 9, 99_999)[0]]
            if at not in (second - 1, len(whole) - 1):  # else two lines have become one
                assert (b"2" if at < second else b"1") in found, at

    @pytest.mark.parametrize("line", ["notes of mine", "x" * 200_000, "[" * 100_000, "1", "{}"])
    def test_a_last_line_of_another_program_stays_and_gets_its_end(
        self, folder: Path, file: Path, line: str
    ) -> None:
        write(folder, b"1")
        first = file.read_bytes()
        file.write_bytes(first + line.encode())
        write(folder, b"1")
        assert file.read_bytes() == b"%b%b\n%b" % (first, line.encode(), first)

    @pytest.mark.parametrize("there", [True, False])
    def test_a_symbolic_link_is_refused_and_what_it_leads_to_stays_as_it_is(
        self, tmp_path: Path, folder: Path, file: Path, there: bool
    ) -> None:
        goal = tmp_path / "mine"
        if there:
            goal.write_bytes(b"precious")
        folder.mkdir()
        file.symlink_to(goal)
        with pytest.raises(OutputError, match=f"^{file}: is a symbolic link"):
            write(folder, b"1")
        assert goal.read_bytes() == b"precious" if there else not goal.exists()

    def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_no_torn_line(
        self, folder: Path, file: Path
    ) -> None:
        write(folder, b"1")
        before = file.read_bytes()
        for fault in (file_limit(len(before) + 50), broken("fsync", errno.EFBIG)):
            with fault, pytest.raises(OutputError, match=f"^{file}: File too large$"):
                write(folder, b"2", b"3")
            assert file.read_bytes() == before
        write(folder, b"2", b"3")
        assert bodies(file) == [b"1", b"2", b"3"]

    def test_a_file_that_is_removed_meanwhile_is_an_error(
        self, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(folder, b"1")
        monkeypatch.setattr(os, "fsync", lambda fd: file.unlink())
        with pytest.raises(OutputError, match=f"^{file}: "):
            write(folder, b"2")

    async def test_a_write_waits_for_other_writers_and_ends_before_its_cancelling_does(
        self, tmp_path: Path
    ) -> None:
        given, file = batch(b"1"), tmp_path / "events.dead.jsonl"
        async with opened(ToDirectory(str(tmp_path))) as letters:
            with file.open("ab") as other:
                fcntl.flock(other, fcntl.LOCK_SH)  # which only a lock of one waits for
                task = asyncio.create_task(letters.write(given, given, REASON))
                await asyncio.sleep(0)
                task.cancel()
                assert not (await asyncio.wait([task], timeout=0.05))[0]
            await asyncio.wait([task])
            assert task.cancelled()
        assert bodies(file) == [b"1"]


async def test_a_refusal_of_a_topic_is_an_error_that_names_it_and_its_publisher_is_closed() -> None:
    class Refusing:
        is_closed = False

        async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
            raise PublishError("nobody took it", [0], permanent=False)

        async def close(self) -> None:
            self.is_closed = True

    publisher = Refusing()
    async with opened(ToTopic("graveyard", publisher)) as letters:
        with pytest.raises(OutputError, match="graveyard: nobody took it"):
            await letters.write(batch(b"1"), batch(b"1"), REASON)
    assert publisher.is_closed


def test_a_text_is_looked_for_in_one_part_of_a_file_after_the_other(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, *(b"body %d" % n for n in range(9)))
    write(folder, b"last", reason="Body 10")
    length = len(file.read_bytes().split(b"\n")[0]) + 1
    letters, end = read_dead_letters(str(file), length, 2, 1 << 20, "BODY")
    assert [each.body for each in letters] == [b"body 1", b"body 2"]
    assert end == 3 * length
    letters, end = read_dead_letters(str(file), end, 2, 1 << 20, "body 10")
    assert [each.body for each in letters] == [b"last"]
    monkeypatch.setattr(deadletters, "MAX_SCAN", 2 * length)
    assert read_dead_letters(str(file), 0, 2, 1 << 20, "10") == ([], 2 * length)
    assert read_dead_letters(str(file), 0, 2, 1, "body")[1] == length  # at least one
    assert read_dead_letters(str(file), 0, 9, 2 * length - 1)[1] == length
    monkeypatch.setattr(deadletters, "MAX_SCAN", length - 1)
    letters, end = read_dead_letters(str(file), length, 9, 1 << 20)
    assert [(each.offset, bool(each.error)) for each in letters] == [(length, True)]
    assert end == length
