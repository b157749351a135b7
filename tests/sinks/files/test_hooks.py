"""The command of --on-rotate: what it gets, when it is run again, and how a run ends with it."""

import logging
import os
import shlex
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsqtools.sinks.files.hooks import Hook
from tests.support.archiving import completed
from tests.support.eventually import eventually

WAIT = 60.0
NEVER = (3600.0,)
"""A second attempt that no test lives to see."""


@pytest.fixture(autouse=True)
def files_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: True)


def begin(command: str, *paths: object, **options: Any) -> tuple[Hook, list[str]]:
    """A hook to which these files are submitted, and the paths of those that are done."""
    hook, done = Hook(command, **options), list[str]()
    for path in map(str, paths):
        hook.submit(completed(path), partial(done.append, path))
    return hook, done


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Level and text of each line."""
    caplog.set_level(logging.DEBUG, "nsqtools")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def to(out: Path, command: str) -> str:
    """The shell command, with its output appended to a file."""
    return f"{{ {command}; }} >> {shlex.quote(str(out))}"


def gate(tmp_path: Path) -> tuple[str, Callable[[], None]]:
    """A command that waits to be let go on, and what lets it as soon as it waits."""
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)

    def let_go() -> None:
        os.close(eventually(lambda: os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)))

    return f"cat {shlex.quote(str(fifo))}", let_go


class TestTheCommand:
    @pytest.mark.parametrize(
        ("command", "shown"),
        [("printf '<%s>' {} -- {}", "<{0}><--><{0}>"), ("printf '<%s>' first", "<first><{0}>")],
    )
    def test_the_path_is_quoted_where_braces_stand_or_appended(
        self, command: str, shown: str, out: Path
    ) -> None:
        path = "/data/it's; $(touch x) a.log"
        hook, _ = begin(f"exec >> {shlex.quote(str(out))}; {command}", path)
        hook.close()
        assert out.read_text() == shown.format(path)

    def test_the_environment_tells_of_the_file(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NSQ_OURS", "kept")
        names = "$NSQ_FILE|$NSQ_TOPIC|$NSQ_COUNT|$NSQ_FIRST_TIMESTAMP|$NSQ_LAST_TIMESTAMP|$NSQ_OURS"
        hook = Hook(to(out, f'echo "{names}"; : {{}}'))
        hook.submit(
            completed("/data/a", first_timestamp=1_763_665_200_000_000_001, last_timestamp=2)
        )
        hook.submit(completed("/data/b", records=None))
        hook.close()
        assert out.read_text().splitlines() == [
            "/data/a|events|1|1763665200000000001|2|kept",
            "/data/b|events||||kept",
        ]

    def test_standard_input_is_empty_and_output_goes_to_standard_error(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        hook, _ = begin("cat; echo said; echo complained >&2; : {}", "/data/a")
        hook.close()
        captured = capfd.readouterr()
        assert (captured.out, captured.err.splitlines()) == ("", ["said", "complained"])


class TestTurns:
    def test_submit_does_not_wait_and_files_have_theirs_one_after_another(
        self, tmp_path: Path, out: Path
    ) -> None:
        wait, let_go = gate(tmp_path)
        command = to(out, f"echo begin {{}}; {wait}; echo end {{}}")
        hook, done = begin(command, "a", "b", "a")
        for count in range(3):
            assert done == ["a", "b", "a"][:count]
            let_go()
            eventually(partial(done.__getitem__, slice(count, None)))
        hook.close()
        assert out.read_text() == "".join(f"begin {name}\nend {name}\n" for name in "aba")

    def test_others_go_on_while_a_file_waits_for_its_next_attempt(self, out: Path) -> None:
        command = to(out, "echo {}") + '; test "$NSQ_FILE" != bad'
        _, done = begin(command, "bad", "good", retries=NEVER)
        eventually(lambda: done == ["good"])
        assert out.read_text().split() == ["bad", "good"]


class TestFailures:
    def test_the_command_is_run_again_until_it_succeeds(
        self, out: Path, said: Callable[[], list[str]]
    ) -> None:
        command = to(out, "echo {}") + f"; test $(wc -l < {shlex.quote(str(out))}) -ge 3 || exit 7"
        hook, done = begin(command, "/data/a", retries=(0.0,))
        eventually(lambda: done == ["/data/a"])
        hook.close()
        assert out.read_text() == "/data/a\n" * 3
        assert ["WARNING" in text and "status 7" in text for text in said()] == [True] * 2

    @pytest.mark.parametrize(
        ("command", "said_first"),
        [
            ("false", "status 1"),
            ("kill -KILL $$; : {}", f"signal {int(signal.SIGKILL)}"),
            ("echo " + "x" * 4_000_000, "cannot be started"),
            ("echo \0", "cannot be started"),
        ],
    )
    def test_after_the_last_attempt_of_the_run_a_file_is_given_up(
        self, command: str, said_first: str, said: Callable[[], list[str]]
    ) -> None:
        hook, done = begin(command, "/data/a", retries=(0.0, 0.0, 600.0))
        eventually(lambda: "again in 600 s" in "".join(said()))
        hook.close()
        hook.close()
        assert said_first in said()[0]
        assert [text.split()[0] for text in said()] == ["WARNING"] * 3 + ["ERROR"]
        assert "/data/a" in said()[-1]
        assert done == []

    def test_one_that_takes_too_long_is_killed_and_has_failed(
        self, said: Callable[[], list[str]]
    ) -> None:
        hook, done = begin("read never < /dev/zero; : {}", "a", timeout=0.1, retries=NEVER)
        hook.close()
        assert done == []
        assert said()[-1].startswith("ERROR --on-rotate was killed after 0.1 s")

    def test_a_file_that_is_gone_then_is_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
    ) -> None:
        monkeypatch.undo()
        path = tmp_path / "a"
        path.write_bytes(b"")
        hook, done = begin("rm {}; exit 3", path, retries=NEVER)
        hook.close()
        assert done == [str(path)]
        assert [text.split()[0] for text in said()] == ["WARNING"]


class TestClosing:
    def test_it_makes_one_last_attempt_at_once(
        self, out: Path, said: Callable[[], list[str]]
    ) -> None:
        command = to(out, "echo {}") + '; test "$NSQ_FILE" = good'
        hook, done = begin(command, "bad", retries=NEVER)
        eventually(lambda: "again in 3600 s" in said()[-1])
        hook.submit(completed("good"))
        hook.close()
        assert sorted(out.read_text().split()) == ["bad", "bad", "good"]
        assert done == []
        assert [text for text in said() if "ERROR" in text and " bad" in text]

    def test_a_failure_that_began_before_it_has_its_last_attempt(
        self, tmp_path: Path, out: Path
    ) -> None:
        wait, let_go = gate(tmp_path)
        twice = f"test $(wc -l < {shlex.quote(str(out))}) -ge 2"
        hook, done = begin(to(out, f"echo {{}}; {wait}; {twice}"), "a", retries=NEVER)
        eventually(out.read_text)
        closing = threading.Thread(target=hook.close)
        closing.start()
        let_go()
        eventually(lambda: out.read_text() == "a\n" * 2)
        let_go()
        closing.join(WAIT)
        assert done == ["a"]
        assert out.read_text() == "a\n" * 2
