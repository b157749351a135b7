"""A place to run the examples of the commands' help in, as a shell does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING

from nsqtools.cli import cli
from nsqtools.cli.settings import variables
from nsqtools.cli.tree import walk
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.servers import Nsqd, Nsqlookupd

TIMEOUT = 250.0
LINES = [line for node in walk(cli) for _, line in node.examples]
BODIES = [b'{"user": 1}', b'{"user": 2}', b'{"user": 3}', b'{"user": 4}', b'{"user": 5}']


@dataclass(slots=True)
class Stage:
    """A folder to run in, with servers whose addresses stand in variables."""

    folder: Path
    nsqd: Nsqd
    lookupd: Nsqlookupd
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """``nsqtools`` on PATH is a script that notes its process id and command."""
        shim = self.folder / "bin/nsqtools"
        shim.parent.mkdir()
        shim.write_text(
            f"#!/bin/sh\necho $$ $1 >> {quote(str(self.noted))}\n"
            f'exec {quote(sys.executable)} -m nsqtools "$@"\n'
        )
        shim.chmod(0o755)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NSQTOOLS_", "XDG_"))}
        self.environment = {
            **clean,
            **self._addresses(),
            "HOME": str(self.folder),
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "NSQTOOLS_SANDBOX_PORT": "0",
        }

    @property
    def noted(self) -> Path:
        """Lines of a process id and the command that it runs."""
        return self.folder / "noted"

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

    def start(self, line: str, shell: Sequence[str] = ("sh",)) -> Running:
        process = subprocess.Popen(
            [*shell, "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return Running(self, process)

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
    """A line at work."""

    stage: Stage
    process: subprocess.Popen[bytes]

    def end(self, *, stop: str = "", said: str = "", code: int = 0) -> bytes:
        """What the line printed; ``stop`` names the command that SIGTERM ends."""
        if stop:
            self._terminate(stop)
        try:
            stdout, stderr = self.process.communicate(timeout=TIMEOUT)
        finally:
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.communicate()
        assert (self.process.returncode, stderr.decode()) == (code, said)
        return stdout

    def _terminate(self, command: str) -> None:
        for noted in self.stage.noted.read_text().splitlines():
            pid, name = noted.split()
            if name == command:
                os.kill(int(pid), signal.SIGTERM)
