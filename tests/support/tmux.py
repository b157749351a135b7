"""A terminal that a test can read: a window of tmux, on a server of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Self

from tests.support.binaries import needs
from tests.support.eventually import eventually
from tests.support.forkserver import ROOT
from tests.support.process import COMMAND, neutral

PROMPT = "here> "


class Tmux:
    """A shell in a window; a context manager. ``tests`` is what is lost where tmux is missing."""

    def __init__(self, folder: Path, tests: str) -> None:
        self._command = [needs("tmux", tests), "-f", os.devnull, "-S", str(folder / "tmux")]
        self._folder = folder
        self._closed = False

    def __enter__(self) -> Self:
        env = {**neutral(), "XDG_CONFIG_HOME": str(self._folder), "PYTHONPATH": str(ROOT)}
        for name in ("TMUX", "ENV"):
            env.pop(name, None)
        # Not by a shell, which would unset the prompt for the one that it starts.
        shell = ("env", f"PS1={PROMPT}", "sh")
        self._tmux("-u", "new-session", "-d", "-x", "100", "-y", "16", *shell, env=env)
        try:
            self.until(PROMPT.strip())
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the window, and the terminal with it."""
        if not self._closed:
            self._closed = True
            self._tmux("kill-server")

    def run(self, *args: str, env: str = "") -> None:
        """Type a command line of nsqtools; ``env`` is put before it."""
        self.type(f"{env} {shlex.join([*COMMAND, *args])}".strip())

    def type(self, line: str) -> None:
        """Type a line for the shell, with Enter."""
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by the names of tmux."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        """What stands in the window."""
        return self._tmux("capture-pane", "-p").splitlines()

    def until(self, *texts: str) -> str:
        """The window, once all the texts are shown."""

        def shown() -> str:
            window = "\n".join(self.lines())
            return window if all(text in window for text in texts) else ""

        return eventually(shown, 120.0)

    def state(self, *names: str) -> list[str]:
        """Variables of tmux, such as ``alternate_on`` and ``cursor_flag``."""
        shown = self._tmux("display-message", "-p", " ".join(f"#{{{name}}}" for name in names))
        return shown.split()

    def settings(self) -> str:
        """The terminal's modes as ``stty`` writes them, of a shell that waits."""
        path = self._folder / "stty"
        path.unlink(missing_ok=True)
        self.type(f"stty -g > {shlex.quote(str(path))}")
        return eventually(path.read_text, 120.0)

    def record(self, path: Path) -> None:
        """Write all that programs send to the terminal from now on to a file too."""
        self._tmux("pipe-pane", f"cat > {shlex.quote(str(path))}")
        eventually(path.exists, 120.0)

    def child(self) -> int:
        """Process id of what the shell runs."""
        (shell,) = self.state("pane_pid")
        children = Path(f"/proc/{shell}/task/{shell}/children")
        return int(eventually(lambda: children.read_text().split(), 120.0)[0])

    def _tmux(self, *args: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [*self._command, *args], capture_output=True, text=True, env=env, check=True
        )
        return done.stdout
