"""A place to run the examples of the commands' help and of the guides in, as a shell does."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nsqtools.cli import cli
from nsqtools.cli.resolver import variables
from nsqtools.cli.tree import walk
from tests.support.eventually import eventually
from tests.support.process import neutral
from tests.support.servers import Nsqd, Nsqlookupd

TIMEOUT = 250.0
LINES = [line for node in walk(cli) for _, line in node.examples]
BODIES = [b'{"user": 1}', b'{"user": 2}', b'{"user": 3}', b'{"user": 4}', b'{"user": 5}']

_SHOWN = re.compile(r"(?:^    .*\n|^\n(?=\n*    ))+", re.MULTILINE)


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

    def shell(self, line: str) -> str:
        """What a line that ends by itself prints, on stdout and stderr together."""
        program = self.folder / "bin" / "nsqtools"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nsqtools "$@"\n')
        program.chmod(0o755)
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

    def published(self, topic: str, count: int) -> None:
        """Wait until the topic has got so many messages."""
        eventually(lambda: self.nsqd.topic(topic)["message_count"] == count)
