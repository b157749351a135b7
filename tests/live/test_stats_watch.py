"""``stats --watch`` on a terminal, read through tmux."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.process import COMMAND
from tests.support.reporting import http
from tests.support.tmux import PROMPT, Tmux

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

HELP = "q quit"


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Tmux]:
    with Tmux(tmp_path, "the live view of stats on a terminal") as made:
        yield made


@pytest.fixture
def nsqds(make_nsqd: MakeNsqd) -> list[Nsqd]:
    """Twelve topics on two nsqds; more rows than the window has lines."""
    made = [make_nsqd(), make_nsqd()]
    for nsqd in made:
        for number in range(12):
            nsqd.create(f"topic-{number:02}", "c")
    made[0].publish("topic-07", [b"x"] * 30)
    made[1].publish("topic-07", [b"x"] * 12)
    made[1].publish("topic-03", [b"x"] * 5)
    return made


def watch(window: Tmux, nsqds: list[Nsqd], *args: str) -> None:
    window.run("stats", "--watch", "--interval", "100ms", *args, *http(nsqds))
    window.until(HELP, "topic-07")


def rows(window: Tmux) -> list[str]:
    """Topic and channel of each row that is shown."""
    found = [line.split() for line in window.lines()[2:-1]]
    return ["/".join(words[:2]) for words in found if len(words) > 2]


def back(window: Tmux) -> None:
    """Wait until the shell has the usual screen again, with a cursor."""
    eventually(lambda: window.state("alternate_on", "cursor_flag") == ["0", "1"])
    eventually(lambda: window.lines()[-1].strip() in ("", PROMPT.strip()))
    assert HELP not in "\n".join(window.lines())


def test_the_view_is_sorted_by_keys(window: Tmux, nsqds: list[Nsqd]) -> None:
    watch(window, nsqds)
    assert rows(window)[:3] == ["topic-07/c", "topic-03/c", "topic-00/-"]
    assert window.lines()[2].split()[2] == "42"
    window.press("s", "r")
    eventually(lambda: "inflt▲" in window.lines()[1])
    window.press("Up", "F5", "x")  # keys without a meaning
    window.press("q")
    back(window)


def test_what_changes_is_drawn_over_what_was_with_its_past(window: Tmux, nsqds: list[Nsqd]) -> None:
    watch(window, nsqds)
    nsqds[0].publish("topic-05", [b"x"] * 900)
    window.until("900")
    assert rows(window)[0] == "topic-05/c"
    eventually(lambda: "▁█" in window.lines()[2])
    nsqds[1].pause("topic-05", "c")
    eventually(lambda: window.lines()[2].endswith("paused"))
    nsqds[1].kill()
    window.until("(1 silent)", f"no answer: {nsqds[1].http}: ", "missing=1")
    nsqds[1].start()
    eventually(lambda: "silent" not in window.lines()[0])
    assert window.state("alternate_on", "cursor_flag") == ["1", "0"]


def test_another_size_of_the_window_is_filled_at_once(window: Tmux, nsqds: list[Nsqd]) -> None:
    watch(window, nsqds, "--interval", "1h")  # no report comes meanwhile
    for width, height in ((60, 8), (160, 30), (30, 5), (100, 16)):
        window.resize(width, height)

        def filled(height: int = height) -> bool:
            lines = window.lines()
            fits = [lines[1].startswith("topic "), lines[-1].startswith(HELP)]
            return len(lines) == height and all(fits) and len(rows(window)) == min(24, height - 3)

        eventually(filled)
        assert rows(window)[0] == "topic-07/c"


def test_the_view_never_flickers(window: Tmux, nsqds: list[Nsqd], tmp_path: Path) -> None:
    """Every look finds a whole view, and nothing is cleared before it is drawn."""
    sent = tmp_path / "sent"
    window.record(sent)
    watch(window, nsqds)

    def drawn() -> bytes:
        return sent.read_bytes().partition(b"\x1b[?1049h")[2]

    def often() -> bool:
        lines = window.lines()
        whole = (lines[1][:6], len(rows(window)), lines[-1][: len(HELP)])
        if whole != ("topic ", 13, HELP):
            pytest.fail(f"{lines}")
        return drawn().count(HELP.encode()) > 10

    eventually(often, 60.0)
    assert re.findall(rb"\x1b\[\d*[JKX]", drawn()) == []


def press_q(window: Tmux) -> None:
    window.press("q")


def press_ctrl_c(window: Tmux) -> None:
    window.press("C-c")


def send_sigterm(window: Tmux) -> None:
    os.kill(window.child(), signal.SIGTERM)


@pytest.mark.parametrize(("end", "code"), [(press_q, 0), (press_ctrl_c, 130), (send_sigterm, 0)])
def test_however_it_ends_the_terminal_is_as_it_was(
    window: Tmux, nsqds: list[Nsqd], end: Callable[[Tmux], None], code: int
) -> None:
    window.type("echo before")
    before = window.settings()
    watch(window, nsqds)
    assert window.state("alternate_on", "cursor_flag") == ["1", "0"]
    end(window)
    back(window)
    window.type("echo code=$?")
    assert "before" in window.until(f"code={code}")
    assert window.settings() == before


def test_a_terminal_that_is_closed_ends_it_without_a_word(
    window: Tmux, nsqds: list[Nsqd], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    line = shlex.join([*COMMAND, "stats", "--watch", "--interval", "100ms", *http(nsqds)])
    window.type(f"{line} 2> {log}")
    window.until(HELP, "topic-07")
    pid = window.child()
    window.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert log.read_text() == ""


FAILING = """import sys
from nsqtools.cli import main
from nsqtools.cli.commands.stats.view import ViewState
usual = getattr(ViewState, sys.argv[1])
def fail(self, *args):
    if self._history:
        raise RuntimeError("for a test")
    return usual(self, *args)
setattr(ViewState, sys.argv[1], fail)
main(sys.argv[2:])
"""


@pytest.mark.parametrize("method", ["update", "press"])
def test_an_error_leaves_the_terminal_as_it_was_and_is_told_there(
    window: Tmux, nsqds: list[Nsqd], tmp_path: Path, method: str
) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    before = window.settings()
    where = f"--nsqd-http-address {nsqds[0].http}"
    options = f"stats --watch --interval 100ms {where}"
    window.type(f"{shlex.quote(sys.executable)} {script} {method} {options}; echo code=$?")
    if method == "press":
        window.until(HELP)
        window.press("r")
    window.until("internal error: RuntimeError: for a test", "code=1")
    back(window)
    assert window.settings() == before


def test_ctrl_z_gives_the_terminal_back_until_fg(window: Tmux, nsqds: list[Nsqd]) -> None:
    before = window.settings()
    watch(window, nsqds)
    window.press("C-z")
    back(window)
    assert window.settings() == before
    window.type("fg")
    window.until(HELP)
    assert window.state("alternate_on", "cursor_flag") == ["1", "0"]
    window.press("q")
    back(window)
    assert window.settings() == before


def test_a_terminal_that_cannot_be_drawn_on_is_refused(
    window: Tmux, nsqtools_cli: Cli, nsqd: Nsqd
) -> None:
    where = ("--nsqd-http-address", str(nsqd.http))
    window.run("stats", "--watch", *where, env="TERM=dumb")
    window.until("nsqtools: --watch needs")
    done = nsqtools_cli("stats", "--watch", *where)
    assert (done.code, done.stdout) == (2, b"")
    assert "--watch" in done.stderr
