"""A place to run the examples of the commands' help in, as a shell does."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from subprocess import PIPE, STDOUT
from typing import TYPE_CHECKING

from nsqtools.cli import cli
from nsqtools.cli.resolver import variables
from nsqtools.cli.tree import walk
from tests.support.eventually import eventually
from tests.support.process import Cli, neutral

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Nsqd, Nsqlookupd

TIMEOUT = 250.0
LINES = [line for node in walk(cli) for _, line in node.examples]
BODIES = [b'{"user": 1}', b'{"user": 2}', b'{"user": 3}', b'{"user": 4}', b'{"user": 5}']

_SHOWN = re.compile(r"(?:^    .*\n|^\n(?=\n*    ))+", re.MULTILINE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def shown(text: str) -> list[str]:
    """What a guide shows as it is typed or printed, without its indentation."""
    found = _SHOWN.findall(f"{text}\n")
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip("\n") for block in found]


@dataclass(slots=True)
class Stage:
    """A folder to run in, with servers whose addresses stand in variables."""

    folder: Path
    nsqd: Nsqd
    lookupd: Nsqlookupd
    environment: dict[str, str] = field(init=False)
    cli: Cli = field(init=False)
    _noted: Path = field(init=False)

    def __post_init__(self) -> None:
        self.cli = Cli(self.folder)
        self._noted = self.folder / "noted"
        self.environment = {
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

    def program(self, name: str, script: str) -> None:
        """Put a program on PATH."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def start(self, line: str) -> Running:
        """By a shell, if it takes one to read the line."""
        if line.startswith("nsqtools ") and not set(_QUOTED.sub("", line)) & set("|<>*;&$"):
            words = shlex.split(line)[1:]
            return Running(self.cli.start(*words, env=self.environment, stdout=PIPE, stderr=PIPE))
        process = self._shell(line, stderr=PIPE)
        return Running(process, self._noted)

    def shell(self, line: str) -> str:
        """What a line that ends by itself prints, on stdout and stderr together."""
        process = self._shell(line, stderr=STDOUT)
        return Running(process).end(said=None, code=None).decode()

    def _shell(self, line: str, *, stderr: int) -> subprocess.Popen[bytes]:
        python = shlex.quote(sys.executable)
        self.program("nsqtools", f'echo $$ $1 >> {self._noted}\nexec {python} -m nsqtools "$@"')
        return subprocess.Popen(
            ["sh", "-c", line],
            cwd=self.folder,
            env={**neutral(), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=stderr,
            start_new_session=True,
        )

    def run(self, line: str, *, said: str = "") -> bytes:
        """What the line prints; it ends by itself, with success, and says no more on stderr."""
        return self.start(line).end(said=said)

    def subscribed(self, topic: str) -> None:
        """Wait until somebody consumes the topic."""
        eventually(lambda: any(c["client_count"] for c in self.nsqd.topic(topic)["channels"]))

    def published(self, topic: str, count: int) -> None:
        """Wait until the topic has got so many messages."""
        eventually(lambda: self.nsqd.topic(topic)["message_count"] == count)


@dataclass(slots=True)
class Running:
    """A line at work; a shell's commands are in ``noted``, each after its process id."""

    process: subprocess.Popen[bytes]
    noted: Path | None = None

    def end(self, *, stop: str = "", said: str | None = "", code: int | None = 0) -> bytes:
        """What the line printed; ``stop`` names the command that SIGTERM ends."""
        if stop:
            os.kill(self._find(stop), signal.SIGTERM)
        try:
            stdout, stderr = self.process.communicate(timeout=TIMEOUT)
        finally:
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.communicate()
        assert code in (None, self.process.returncode), stderr
        assert said is None or stderr.decode() == said
        return stdout

    def _find(self, command: str) -> int:
        if not self.noted:
            return self.process.pid
        noted = (line.split() for line in self.noted.read_text().splitlines())
        return next(int(pid) for pid, name in noted if name == command)
