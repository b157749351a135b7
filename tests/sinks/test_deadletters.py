"""Dead letters in every place they can go, safe when ``write`` returns."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqtools.config import DeadLetterOptions
from nsqtools.errors import ConfigError, HTTPError, OutputError, PublishError
from nsqtools.names import Address
from nsqtools.sinks.deadletters import Nowhere, ToDirectory, ToTopic, ToURL, make_dead_letters
from nsqtools.sinks.records import JsonLines
from tests.support.archiving import START, batch
from tests.support.faults import broken, file_limit
from tests.support.neighbour import neighbour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from nsqtools.engine.handler import Batch
    from nsqtools.sinks.deadletters import DeadLetters

REASON = "too many attempts"


@contextlib.asynccontextmanager
async def opened(letters: DeadLetters) -> AsyncIterator[DeadLetters]:
    await letters.open()
    try:
        yield letters
    finally:
        await letters.close()


async def append(folder: Path, given: Batch, reason: str = REASON) -> None:
    """A process of its own, as far as the file can tell."""
    async with opened(ToDirectory(str(folder))) as letters:
        await letters.write(given, given, reason)


def write(folder: Path, *given: bytes, reason: str = REASON) -> None:
    """As ``append``, outside an event loop."""
    asyncio.run(append(folder, batch(*given), reason))


def bodies(path: Path) -> list[bytes]:
    """As ``pub --json`` reads them from a file; nothing in it may be torn."""
    lines = JsonLines(max_size=1 << 20, complete=True)
    return [*lines.feed(path.read_bytes()), *lines.finish()]


def reasons(path: Path) -> list[str]:
    return [json.loads(line)["reason"] for line in path.read_bytes().splitlines()]


def written_by_others(path: Path) -> list[str]:
    return [body.partition(b" ")[0].decode() for body in bodies(path)]


@contextlib.contextmanager
def locked(file: Path) -> Iterator[BinaryIO]:
    """Another process is writing to the file meanwhile."""
    file.parent.mkdir()
    with file.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield other


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
        async with opened(ToDirectory(str(folder))) as letters:
            assert not letters.is_lossy
            for given in (batch(b"1", b"2"), batch(b"a", topic="t#ephemeral"), batch(b"3")):
                await letters.write(given, given[:1], REASON)
        await append(folder, batch(b"4"))
        assert bodies(file) == [b"1", b"3", b"4"]
        assert bodies(folder / "t#ephemeral.dead.jsonl") == [b"a"]

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(written=st.lists(st.binary(min_size=1), max_size=4), reason=st.text())
    def test_any_body_survives_with_any_reason(
        self, folder: Path, file: Path, written: list[bytes], reason: str
    ) -> None:
        file.unlink(missing_ok=True)
        write(folder, *written, b"last", reason=reason)
        assert bodies(file) == [*written, b"last"]
        assert reasons(file)[0] == reason

    async def test_the_directory_is_made_and_must_be_one_that_can_be_written_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await append(tmp_path / "a" / "b", batch(b"1"))
        (tmp_path / "c").write_bytes(b"")
        with pytest.raises(OutputError, match=f"^{tmp_path}/c: Not a directory$"):
            await ToDirectory(str(tmp_path / "c")).open()
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do all
        with pytest.raises(OutputError, match=f"^{tmp_path}/a: "):
            await ToDirectory(str(tmp_path / "a")).open()

    def test_file_and_directory_are_on_disk_when_write_returns(
        self, tmp_path: Path, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[tuple[str, int]] = []
        fsync = os.fsync

        def note(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            synced.append((path, os.fstat(fd).st_size if path == str(file) else 0))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", note)
        write(folder, b"1")
        one = file.stat().st_size
        write(folder, b"2")
        made = [(str(tmp_path), 0), (str(folder), 0)]
        assert synced == [*made, (str(file), one), (str(file), 2 * one)]


class TestFaults:
    def test_what_is_left_of_a_torn_line_is_cut_wherever_it_was_torn(
        self, folder: Path, file: Path, full: bool
    ) -> None:
        write(folder, b"1", b"\xff" * 20)
        whole = file.read_bytes()
        ends = [whole.index(b"\n"), len(whole) - 1]  # a line that lacks nothing but this is whole
        for length in range(len(whole)) if full else {*range(0, len(whole), 9), *ends}:
            file.write_bytes(whole[:length])
            write(folder, b"3")
            both = zip((b"1", b"\xff" * 20), ends, strict=True)
            kept = [body for body, end in both if length >= end]
            assert bodies(file) == [*kept, b"3"]

    @pytest.mark.parametrize("torn", ["\0" * 300, '{"rea', '{"reason":' + "x" * 200_000])
    def test_what_a_crash_may_have_left_of_a_letter_is_cut(
        self, folder: Path, file: Path, torn: str
    ) -> None:
        write(folder, b"1")
        with file.open("a") as stream:
            stream.write(torn)
        write(folder, b"2")
        assert bodies(file) == [b"1", b"2"]

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
        with pytest.raises(OutputError, match=f"^{file}: "):
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

    def test_what_cannot_be_cut_back_now_is_cut_by_the_next(
        self, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(folder, b"1")
        whole = file.stat().st_size

        def truncate(fd: int, size: int) -> None:
            if os.fstat(fd).st_size > whole:
                raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch, file_limit(whole + 50):
            patch.setattr(os, "ftruncate", truncate)
            with pytest.raises(OutputError, match=os.strerror(errno.EFBIG)):
                write(folder, b"2")
        assert file.stat().st_size == whole + 50
        write(folder, b"2")
        assert bodies(file) == [b"1", b"2"]


class TestSharing:
    async def test_a_write_that_is_cancelled_ends_before_the_cancelling_does(
        self, folder: Path, file: Path
    ) -> None:
        given = batch(b"1")
        with locked(file):
            letters = ToDirectory(str(folder))
            task = asyncio.create_task(letters.write(given, given, REASON))
            await asyncio.sleep(0)
            task.cancel()
            assert not (await asyncio.wait([task], timeout=0.05))[0]
        await asyncio.wait([task])
        assert task.cancelled()
        assert bodies(file) == [b"1"]
        await letters.close()

    def test_several_processes_lose_and_tear_nothing(
        self, folder: Path, file: Path, full: bool
    ) -> None:
        count = 40 if full else 10
        with contextlib.ExitStack() as stack:
            others = [neighbour("letters", folder, name, count) for name in "abcd"]
            for writer in [stack.enter_context(other) for other in others]:
                writer.communicate()
                assert writer.returncode == 0
        expected = [f"{w}-{n}-{part}" for w in "abcd" for n in range(count) for part in range(3)]
        assert sorted(written_by_others(file)) == sorted(expected)

    def test_a_writer_that_is_killed_loses_nothing_of_what_it_was_told_is_safe(
        self, folder: Path, file: Path, full: bool
    ) -> None:
        safe = []
        for count in range(1, 9 if full else 4):
            with neighbour("letters", folder, count, 10_000) as writer:
                assert writer.stdout
                for number in range(count):
                    assert writer.stdout.readline() == b"%d\n" % number
                    safe += [f"{count}-{number}-{part}" for part in range(3)]
                writer.kill()
        write(folder, b"last ")
        found = written_by_others(file)
        assert set(safe) <= set(found)
        assert len(set(found)) == len(found)


class TestTopic:
    async def test_a_refusal_is_an_error_that_names_the_topic(self) -> None:
        async def refuse(topic: str, given: Sequence[bytes]) -> None:
            raise PublishError("nobody took it", [0], permanent=False)

        with pytest.raises(OutputError, match="graveyard: nobody took it"):
            await ToTopic("graveyard", refuse).write(batch(b"1"), batch(b"1"), REASON)


class Endpoint:
    """Takes POSTs; ``answer`` gives the status for a body."""

    url = "https://user:pw@example.org/dead?token=1"

    def __init__(self, answer: Mapping[bytes, int | Exception] | None = None) -> None:
        self.taken: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self._answer = answer or {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        assert url == self.url
        assert headers == {"Content-Type": "application/json"}
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        taken = json.loads(body)
        answer = self._answer.get(taken["body"].encode(), 204)
        if isinstance(answer, Exception):
            raise answer
        self.taken.append(taken)
        return answer


class TestURL:
    async def test_each_message_is_posted_as_an_object_and_a_few_at_once(self) -> None:
        endpoint = Endpoint()
        given = batch(*(b"%d" % number for number in range(50)))
        async with opened(ToURL(endpoint.url, endpoint.post)) as letters:
            assert not letters.is_lossy
            await letters.write(given, [], REASON)
            assert endpoint.taken == []
            await letters.write(given, given, REASON)
        assert sorted(int(each["body"]) for each in endpoint.taken) == list(range(50))
        assert {each["reason"] for each in endpoint.taken} == {REASON}
        assert 1 < endpoint.most_at_once <= 8

    @pytest.mark.parametrize(
        ("answer", "text"),
        [(199, "199"), (302, "302"), (HTTPError("refused", Address("a", 80)), "a:80: refused")],
    )
    async def test_all_but_2xx_is_an_error_without_secrets_after_which_no_post_is_under_way(
        self, answer: int | Exception, text: str
    ) -> None:
        endpoint = Endpoint({b"2": answer})
        given = batch(b"1", b"2", b"3")
        with pytest.raises(OutputError, match=f" https://example.org/dead: .*{text}$"):
            await ToURL(endpoint.url, endpoint.post).write(given, given, REASON)
        assert endpoint.at_once == 0
        assert {"1", "3"} <= {each["body"] for each in endpoint.taken}


class TestOptions:
    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ({}, Nowhere),
            ({"dead_letter_topic": "graveyard"}, ToTopic),
            ({"dead_letter_dir": "dead"}, ToDirectory),
            ({"dead_letter_url": "http://[::1]:8080/dead?a=b"}, ToURL),
        ],
    )
    def test_they_choose_the_place(self, values: dict[str, str], kind: type[DeadLetters]) -> None:
        async def publish(topic: str, given: Sequence[bytes]) -> None:
            raise AssertionError

        options = DeadLetterOptions(**values)
        assert type(make_dead_letters(options, publish=publish, post=Endpoint().post)) is kind

    def test_a_topic_is_named_as_nsqd_takes_it_and_the_places_exclude_each_other(self) -> None:
        with pytest.raises(ConfigError, match="--dead-letter-topic: topic 'a b'"):
            DeadLetterOptions(dead_letter_topic="a b")
        for name in DeadLetterOptions.declared():
            others = {*DeadLetterOptions.declared()} - {name}
            assert DeadLetterOptions.excluded_by(name) == others
