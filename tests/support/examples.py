"""A place to run the examples of the commands' help and of the guides in, as a shell does."""

import os
import pty
import re
import subprocess
import termios
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsqtools.cli import cli
from nsqtools.cli.resolver import variables
from nsqtools.cli.tree import walk
from tests.support.eventually import eventually
from tests.support.forkserver import words
from tests.support.process import neutral
from tests.support.servers import Nsqd, Nsqlookupd

TIMEOUT = 250.0
LINES = [line for node in walk(cli) for _, line in node.examples]
BODIES = [b'{"user": 1}', b'{"user": 2}', b'{"user": 3}', b'{"user": 4}', b'{"user": 5}']

_CONTROL = re.compile(r"(\r|\n|\x1b\[[\d;?]*[A-Za-z])")
_SHOWN = re.compile(r"(?:^    .*\n|^\n(?=\n*    ))+", re.MULTILINE)


def shown(text: str) -> list[str]:
    """What a guide shows as it is typed or printed, without its indentation."""
    found = _SHOWN.findall(f"{text}\n")
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip("\n") for block in found]


def _left_standing(drawn: str) -> str:
    """What is left on a terminal of what was drawn: plain lines, in the end."""
    lines = [""]
    for part in _CONTROL.split(drawn.replace("\r\n", "\n")):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[1A" and len(lines) > 1:
            lines.pop()
        elif part in ("\x1b[K", "\x1b[2K"):
            lines[-1] = ""
        elif not _CONTROL.fullmatch(part):
            lines[-1] += part
    return "\n".join(lines)


@dataclass(slots=True)
class Stage:
    """A folder to run in, with servers whose addresses stand in variables."""

    folder: Path
    nsqd: Nsqd
    lookupd: Nsqlookupd

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self._addresses(),
            "HOME": str(self.folder),
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "NSQTOOLS_SANDBOX_PORT": "0",
        }

    def _addresses(self) -> dict[str, str]:
        """The servers of this stage instead of those on the default ports."""
        known = {
            "nsqd_tcp_address": str(self.nsqd.tcp),
            "nsqd_http_address": str(self.nsqd.http),
            "lookupd_http_address": str(self.lookupd.http),
        }
        found = {}
        for node in walk(cli):
            names = {option.name for option in node.options} & set(known)
            if "nsqd_tcp_address" in names:
                names.discard("lookupd_http_address")
            for name in names:
                found[variables(node.ctx, name, shared=False)[0]] = known[name]
        return found

    def _put_program(self) -> None:
        path = self.folder / "bin" / "nsqtools"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {words()} "$@"\n')
        path.chmod(0o755)

    def shell(self, line: str) -> str:
        """What a line that ends by itself prints, on stdout and stderr together."""
        self._put_program()
        done = subprocess.run(
            ["timeout", f"{TIMEOUT}", "sh", "-c", line],
            cwd=self.folder,
            env={**neutral(), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def terminal(self, line: str) -> str:
        """What the line shows on a terminal, without styles and what was drawn over."""
        self._put_program()
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 100))
        with subprocess.Popen(
            ["timeout", f"{TIMEOUT}", "bash", "-c", line],
            cwd=self.folder,
            env={**neutral(), **self.environment, "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ):
            os.close(theirs)
            shown = bytearray()
            with suppress(OSError):  # the end of a terminal is EIO
                while data := os.read(ours, 65536):
                    shown += data
            os.close(ours)
        return _left_standing(shown.decode())

    def published(self, topic: str, count: int) -> None:
        """Wait until the topic has got so many messages."""
        eventually(lambda: self.nsqd.topic(topic)["message_count"] == count)
