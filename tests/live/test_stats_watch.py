"""``stats --watch`` on a terminal, read through tmux."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.forkserver import ROOT
from tests.support.process import COMMAND, neutral
from tests.support.servers import MakeNsqd, Nsqd, http

PATIENCE = 120.0
HELP = "q quit"
PROMPT = "here> "
WATCHING, AT_REST = ["1", "0"], ["0", "1"]
"""Whether the terminal shows its alternate screen, and whether it has a cursor."""


class Window:
    """A shell in a window of tmux, on a server of its own."""

    def __init__(self, folder: Path) -> None:
        tmux = needs("tmux", "the live view of stats on a terminal")
        self._command = [tmux, "-f", os.devnull, "-S", str(folder / "tmux")]
        self._folder = folder
        env = {**neutral(), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)}
        for name in ("TMUX", "ENV"):
            env.pop(name, None)
        # Not by a shell, which would unset the prompt for the one that it starts.
        shell = ("env", f"PS1={PROMPT}", "sh")
        self.tmux("-u", "new-session", "-d", "-x", "100", "-y", "16", *shell, env=env)

    def tmux(self, *args: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run(
            [*self._command, *args], capture_output=True, text=True, env=env, check=True
        ).stdout

    def type(self, line: str) -> None:
        """Type a line for the shell, with Enter."""
        self.tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by the names of tmux."""
        self.tmux("send-keys", *keys)

    def lines(self) -> list[str]:
        """What stands in the window."""
        return self.tmux("capture-pane", "-p").splitlines()

    def rows(self) -> list[str]:
        """Topic and channel of each row of the view that is shown."""
        found = [line.split() for line in self.lines()[2:-1]]
        return ["/".join(words[:2]) for words in found if len(words) > 2]

    def until(self, *texts: str) -> str:
        """The window, once all the texts are shown."""

        def shown() -> str:
            window = "\n".join(self.lines())
            return window if all(text in window for text in texts) else ""

        return eventually(shown, PATIENCE)

    def state(self) -> list[str]:
        return self.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split()

    def back(self) -> None:
        """Wait until the shell has the usual screen again, with a cursor."""
        eventually(lambda: self.state() == AT_REST)
        eventually(lambda: self.lines()[-1].strip() in ("", PROMPT.strip()))
        assert HELP not in "\n".join(self.lines())

    def settings(self) -> str:
        """The terminal's modes as ``stty`` writes them, of a shell that waits."""
        path = self._folder / "stty"
        path.unlink(missing_ok=True)
        self.type(f"stty -g > {shlex.quote(str(path))}")
        return eventually(path.read_text, PATIENCE)

    def child(self) -> int:
        """Process id of what the shell runs."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children")
        return int(eventually(lambda: children.read_text().split(), PATIENCE)[0])


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Window]:
    made = Window(tmp_path)
    try:
        made.until(PROMPT.strip())
        yield made
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # a test may close the window
            made.tmux("kill-server")


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


def line(nsqds: list[Nsqd], *args: str, program: tuple[str, ...] = COMMAND) -> str:
    watch = ("stats", "--watch", "--interval", "100ms", *args, *http(nsqds))
    return shlex.join([*program, *watch])


def test_the_view_is_sorted_by_keys_and_drawn_over(window: Window, nsqds: list[Nsqd]) -> None:
    window.type(line(nsqds))
    window.until(HELP, "topic-07")
    assert window.rows()[:3] == ["topic-07/c", "topic-03/c", "topic-00/-"]
    assert window.lines()[2].split()[2] == "42"
    nsqds[0].publish("topic-05", [b"x"] * 900)
    window.until("900")
    assert window.rows()[0] == "topic-05/c"
    nsqds[1].pause("topic-05", "c")
    eventually(lambda: window.lines()[2].endswith("paused"))
    nsqds[1].kill()
    window.until("(1 silent)", f"no answer: {nsqds[1].http}: ", "missing=1")
    nsqds[1].start()
    eventually(lambda: "silent" not in window.lines()[0])
    window.press("s")
    eventually(lambda: "inflt▼" in window.lines()[1])
    window.press("Up", "F5", "x")  # keys without a meaning
    window.press("q")
    window.back()


def test_another_size_of_the_window_is_filled_at_once(window: Window, nsqds: list[Nsqd]) -> None:
    window.type(line(nsqds, "--interval", "1h"))  # no report comes meanwhile
    window.until(HELP, "topic-07")
    for width, height in ((60, 8), (160, 30), (30, 5), (100, 16)):
        window.tmux("resize-window", "-x", str(width), "-y", str(height))

        def filled(height: int = height) -> bool:
            lines = window.lines()
            fits = [lines[1].startswith("topic "), lines[-1].startswith(HELP)]
            return (len(lines), len(window.rows())) == (height, min(24, height - 3)) and all(fits)

        eventually(filled)
        assert window.rows()[0] == "topic-07/c"


def test_the_view_never_flickers(window: Window, nsqds: list[Nsqd], tmp_path: Path) -> None:
    """Every look finds a whole view, and nothing is cleared before it is drawn."""
    sent = tmp_path / "sent"
    window.tmux("pipe-pane", f"cat > {shlex.quote(str(sent))}")
    eventually(sent.exists, PATIENCE)
    window.type(line(nsqds))
    window.until(HELP, "topic-07")

    def drawn() -> bytes:
        return sent.read_bytes().partition(b"\x1b[?1049h")[2]

    def often() -> bool:
        lines = window.lines()
        whole = (lines[1][:6], len(window.rows()), lines[-1][: len(HELP)])
        if whole != ("topic ", 13, HELP):
            pytest.fail(f"{lines}")
        return drawn().count(HELP.encode()) > 10

    eventually(often)
    assert re.findall(rb"\x1b\[\d*[JKX]", drawn()) == []


FAILING = """import sys
from nsqtools.cli import main
from nsqtools.cli.commands.stats.view import ViewState
from tests.support.servers import http
usual = getattr(ViewState, sys.argv[1])
def fail(self, *args):
    if self._report:
        raise RuntimeError("for a test")
    return usual(self, *args)
setattr(ViewState, sys.argv[1], fail)
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("C-c", 130), ("C-z", 0), ("SIGTERM", 0), ("update fails", 1), ("press fails", 1)],
)
def test_however_it_ends_the_terminal_is_as_it_was(
    window: Window, nsqds: list[Nsqd], tmp_path: Path, end: str, code: int
) -> None:
    (script := tmp_path / "failing.py").write_text(FAILING)
    method = end.removesuffix(" fails")
    program = (sys.executable, str(script), method) if code == 1 else COMMAND
    window.type("echo before")
    before = window.settings()
    stdin = " < /dev/null" if end == "SIGTERM" else ""
    window.type(line(nsqds, program=program) + stdin)
    if end != "update fails":
        window.until(HELP, "topic-07")
        assert window.state() == WATCHING
    if end == "SIGTERM":
        os.kill(window.child(), signal.SIGTERM)
    elif end == "press fails":
        window.press("s")
    elif end != "update fails":
        window.press(end)
    if end == "C-z":
        window.back()
        assert window.settings() == before
        window.type("fg")
        window.until(HELP)
        assert window.state() == WATCHING
        window.press("q")
    if code == 1:
        window.until("internal error: RuntimeError: for a test")
    window.back()
    window.type("echo code=$?")
    assert "before" in window.until(f"code={code}")
    assert window.settings() == before


def test_a_terminal_that_cannot_be_drawn_on_is_refused_and_one_that_is_closed_ends_it_quietly(
    window: Window, nsqds: list[Nsqd], tmp_path: Path
) -> None:
    window.type(f"TERM=dumb {line(nsqds)}")
    window.until("nsqtools: --watch needs")
    window.type(f"{line(nsqds)} 2> {tmp_path / 'log'}")
    window.until(HELP, "topic-07")
    pid = window.child()
    window.tmux("kill-server")
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert (tmp_path / "log").read_text() == ""
