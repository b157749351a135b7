from __future__ import annotations

import logging
import os
import shlex
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sinks.files.hooks import RETRIES, Hook, Schedule
from nsqtools.sinks.files.manifest import Published
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT = 60.0
NEVER = (3600.0,)
"""A second attempt that no test lives to see."""


def made(path: object, **facts: Any) -> Published:
    known: dict[str, Any] = {"topic": "orders", "records": 3} | facts
    return Published(
        path=str(path),
        name=os.path.basename(str(path)),
        size=42,
        sha256="",
        format="raw",
        delimiter="\\n",
        compression="none",
        **known,
    )


@pytest.fixture(autouse=True)
def files_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: True)


def fail() -> None:
    raise AssertionError("the command has not succeeded")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "nsqtools")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def to(out: Path, command: str) -> str:
    """The shell command, with its output appended to a file."""
    return f"{{ {command}; }} >> {shlex.quote(str(out))}"


def gate(tmp_path: Path, name: str = "gate") -> tuple[str, Callable[[], None]]:
    """A command that waits to be let go on, and what lets it as soon as it waits."""
    fifo = tmp_path / name
    os.mkfifo(fifo)

    def let_go() -> None:
        os.close(eventually(lambda: os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)))

    return f"cat {shlex.quote(str(fifo))}", let_go


def test_the_path_is_quoted_where_braces_stand(out: Path) -> None:
    hook = Hook(to(out, "printf '<%s>' {} -- {}"))
    hook.submit(made("/data/it's; $(touch x) a.log"))
    hook.close()
    path = "/data/it's; $(touch x) a.log"
    assert out.read_text() == f"<{path}><--><{path}>"


def test_without_braces_the_path_is_appended(out: Path) -> None:
    hook = Hook(f"exec >> {shlex.quote(str(out))}; printf '<%s>' first")
    hook.submit(made("/data/a b"))
    hook.close()
    assert out.read_text() == "<first></data/a b>"


def test_the_environment_tells_of_the_file(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQ_OURS", "kept")
    hook = Hook(
        to(
            out,
            'echo "$NSQ_FILE|$NSQ_TOPIC|$NSQ_COUNT|$NSQ_FIRST_TIMESTAMP|$NSQ_LAST_TIMESTAMP'
            '|$NSQ_OURS"; : {}',
        )
    )
    hook.submit(made("/data/a", first_timestamp=1_763_665_200_000_000_001, last_timestamp=2))
    hook.submit(made("/data/b", records=None))
    hook.close()
    assert out.read_text().splitlines() == [
        "/data/a|orders|3|1763665200000000001|2|kept",
        "/data/b|orders||||kept",
    ]


def test_standard_input_is_empty_and_output_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    hook = Hook("cat; echo said; echo complained >&2; : {}")
    hook.submit(made("/data/a"))
    hook.close()
    captured = capfd.readouterr()
    assert (captured.out, captured.err.splitlines()) == ("", ["said", "complained"])


def test_a_command_has_a_process_group_of_its_own(out: Path) -> None:
    hook = Hook(to(out, "echo $$; ps -o pgid= -p $$; : {}"))
    hook.submit(made("/data/a"))
    hook.close()
    pid, group = out.read_text().split()
    assert pid == group


def test_files_have_their_turn_one_after_another(out: Path) -> None:
    hook = Hook(to(out, "echo begin {}; echo end {}"))
    for name in "abc":
        hook.submit(made(name))
    hook.close()
    assert out.read_text().split() == [
        word for name in "abc" for word in ("begin", name, "end", name)
    ]


def test_submit_does_not_wait_and_a_file_is_done_when_the_command_is(tmp_path: Path) -> None:
    wait, let_go = gate(tmp_path)
    hook = Hook(f"{wait}; : {{}}")
    done: list[str] = []
    for name in ("a", "b", "a"):
        hook.submit(made(f"/data/{name}"), partial(done.append, name))
    for count in range(3):
        assert done == ["a", "b", "a"][:count]
        let_go()
        eventually(partial(done.__getitem__, slice(count, None)))
    hook.close()


def test_a_file_that_is_gone_when_the_command_fails_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    monkeypatch.undo()
    path = tmp_path / "a"
    path.write_bytes(b"")
    hook = Hook("rm {}; exit 3", retries=NEVER)
    done: list[str] = []
    hook.submit(made(path), partial(done.append, "a"))
    hook.close()
    assert done == ["a"]
    assert said() == [f"WARNING --on-rotate exited with status 3 for {path}, which is gone"]


def test_a_failure_is_logged_and_the_command_run_again_until_it_succeeds(
    out: Path, said: Callable[[], list[str]]
) -> None:
    command = to(out, "echo {}") + f"; test $(wc -l < {shlex.quote(str(out))}) -ge 3 || exit 7"
    hook = Hook(command, retries=(0.0,) * 5)
    done: list[str] = []
    hook.submit(made("/data/a"), partial(done.append, "a"))
    eventually(lambda: done == ["a"])
    hook.close()
    assert out.read_text() == "/data/a\n" * 3
    line = "WARNING --on-rotate exited with status 7 for /data/a, again in 0 s"
    assert said() == [line] * 2


def test_after_the_last_attempt_of_the_run_a_file_is_given_up(
    out: Path, said: Callable[[], list[str]]
) -> None:
    hook = Hook(to(out, "echo {}") + "; false", retries=(0.0, 0.0))
    hook.submit(made("/data/a"), fail)
    eventually(lambda: "again in 600 s" in "".join(said()))
    hook.close()
    assert out.read_text() == "/data/a\n" * 4
    assert said()[-1] == (
        "ERROR --on-rotate exited with status 1 for /data/a, given up after 4 attempts"
    )


def test_others_go_on_while_a_file_waits_for_its_next_attempt(out: Path) -> None:
    command = to(out, "echo {}") + '; test "$NSQ_FILE" != bad'
    hook = Hook(command, retries=NEVER)
    done: list[str] = []
    hook.submit(made("bad"), fail)
    hook.submit(made("good"), partial(done.append, "good"))
    eventually(lambda: done == ["good"])
    assert out.read_text().split() == ["bad", "good"]


def test_close_makes_one_last_attempt_at_once(out: Path, said: Callable[[], list[str]]) -> None:
    command = to(out, "echo {}") + '; test "$NSQ_FILE" = good'
    hook = Hook(command, retries=NEVER)
    hook.submit(made("bad"), fail)
    eventually(lambda: "again in 3600 s" in said()[-1])
    hook.submit(made("good"))
    hook.close()
    assert sorted(out.read_text().split()) == ["bad", "bad", "good"]
    last = "ERROR --on-rotate exited with status 1 for bad, given up after 2 attempts"
    assert last in said()


def test_a_command_that_takes_too_long_is_killed_and_has_failed(
    out: Path, said: Callable[[], list[str]]
) -> None:
    hook = Hook(to(out, "echo {}") + "; read never < /dev/zero", timeout=0.1, retries=())
    hook.submit(made("a"), fail)
    hook.close()
    assert said()[-1].startswith("ERROR --on-rotate was killed after 0.1 s for a, given up")


def test_a_failure_that_began_before_close_has_its_last_attempt(tmp_path: Path, out: Path) -> None:
    wait, let_go = gate(tmp_path)
    twice = f"test $(wc -l < {shlex.quote(str(out))}) -ge 2"
    hook = Hook(to(out, f"echo {{}}; {wait}; {twice}"), retries=NEVER)
    done: list[str] = []
    hook.submit(made("a"), partial(done.append, "a"))
    eventually(out.read_text)
    closing = threading.Thread(target=hook.close)
    closing.start()
    let_go()
    eventually(lambda: out.read_text() == "a\n" * 2)
    let_go()
    closing.join(WAIT)
    assert done == ["a"]
    assert out.read_text() == "a\n" * 2


def test_close_may_be_called_without_any_file_and_again() -> None:
    Hook("true").close()
    hook = Hook("false", retries=NEVER)
    hook.submit(made("a"), fail)
    hook.close()
    hook.close()


def test_close_waits_for_a_command_that_runs_and_for_those_after_it(
    tmp_path: Path, out: Path
) -> None:
    wait, let_go = gate(tmp_path)
    hook = Hook(to(out, f"{wait}; echo {{}}"))
    hook.submit(made("a"))
    hook.submit(made("b"))
    closing = threading.Thread(target=hook.close, daemon=True)
    closing.start()
    let_go()
    eventually(lambda: out.read_text() == "a\n")
    assert closing.is_alive()
    let_go()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert out.read_text() == "a\nb\n"


def test_a_command_killed_by_a_signal_says_so(said: Callable[[], list[str]]) -> None:
    hook = Hook("kill -KILL $$; : {}", retries=NEVER)
    hook.submit(made("a"), fail)
    hook.close()
    assert f"--on-rotate was killed by signal {int(signal.SIGKILL)} for a" in said()[0]


@pytest.mark.parametrize("command", ["echo " + "x" * 4_000_000, "echo \0"])
def test_a_command_that_cannot_be_started_is_a_failure(
    command: str, said: Callable[[], list[str]]
) -> None:
    hook = Hook(command, retries=(0.0,))
    hook.submit(made("a"))
    eventually(lambda: "again in 600 s" in "".join(said()))
    assert said()[0].startswith("WARNING --on-rotate cannot be started (")


def test_a_command_that_runs_for_long_is_mentioned_when_more_is_to_do(
    tmp_path: Path, out: Path, said: Callable[[], list[str]]
) -> None:
    now = 0.0
    wait, let_go = gate(tmp_path)
    only_a = f"test $NSQ_FILE != a || {wait}"
    hook = Hook(to(out, f"echo {{}}; {only_a}"), clock=lambda: now)
    hook.submit(made("a"))
    eventually(lambda: out.exists() and out.read_text() == "a\n")
    now = 299.0
    hook.submit(made("b"))
    assert said() == []
    now = 300.0
    hook.submit(made("c"))
    hook.submit(made("d"))
    assert said() == ["WARNING --on-rotate has been running for 300 s for a, 2 files wait"]
    let_go()
    hook.close()


def test_the_schedule_waits_1_2_4_15_60_seconds_and_then_10_minutes_each_time() -> None:
    schedule = Schedule()
    schedule.add(made("a"), 0.0)
    now = 0.0
    waits: list[float | None] = []
    while len(waits) < 8:
        wait = schedule.wait(now)
        assert wait is not None
        now += wait
        waits.append(schedule.retry(schedule.pop(), now))
    assert waits == [*RETRIES, 600, 600, 600]
    assert schedule.retry(schedule.pop(), now, longest=5) is None


def test_the_schedule_keeps_the_order_of_due_times_then_of_coming() -> None:
    schedule = Schedule((5.0,))
    for name in "abc":
        schedule.add(made(name), 0.0)
    schedule.retry(schedule.pop(), 0.0)
    schedule.add(made("d"), 6.0)
    assert [schedule.pop().published.path for _ in range(len(schedule))] == ["b", "c", "a", "d"]
    assert schedule.wait(7.0) is None


def test_the_schedule_waits_for_the_first_job_only() -> None:
    schedule = Schedule((5.0,))
    assert schedule.wait(0.0) is None
    schedule.add(made("a"), 1.0)
    assert schedule.wait(1.0) == 0
    schedule.retry(schedule.pop(), 2.0)
    assert schedule.wait(3.0) == 4.0
    assert schedule.wait(100.0) == 0
