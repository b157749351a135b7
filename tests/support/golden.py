"""Transcripts: files of commands with what they say, which are run, compared and rewritten.

A line that begins with ``$ `` is run, in a folder of the file's own. What it does comes after it:
lines of stdout as they are, those of stderr after ``! ``, and the exit status, if it is not 0,
after ``? ``. A line of stdout that is empty, or begins like another kind, stands after ``| ``. What
differs from run to run is written as a name: see ``Transcript``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.process import Cli

UPDATE = "pytest tests/golden --update-golden"

_OTHER = re.compile(r"$|#|[$!?|] ")
_MASKED = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "ID"),
    (re.compile(r"\bprocess \d+\b"), "process PID"),
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Runs the commands of a file.

    ``names`` are variables of the commands, as NSQD for an address, and stand for their values in
    what is said. A line that begins with nsqtools, or variables before it, may end with ``< FILE``;
    any other is the shell's.
    """

    cli: Cli
    folder: Path
    names: Mapping[str, str]

    def run(self, text: str) -> str:
        """The same file, with what its commands say now."""
        return "".join(self._lines(text))

    def _lines(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("$ "):
                yield f"{line}\n{self._said(line[2:])}"
            elif not line or line.startswith("#"):
                yield f"{line}\n"

    def _said(self, line: str) -> str:
        code, stdout, stderr = self._run(line)
        told = [self._normal(each) for each in stdout.decode().splitlines()]
        told = [f"| {each}".rstrip() if _OTHER.match(each) else each for each in told]
        told += [f"! {self._normal(each)}".rstrip() for each in stderr.decode().splitlines()]
        told += [f"? {code}"] if code else []
        return "".join(f"{each}\n" for each in told)

    def _run(self, line: str) -> tuple[int, bytes, bytes]:
        command, _, file = line.partition(" < ")
        words = [self._filled(word) for word in shlex.split(command)]
        own: dict[str, str] = {}
        while words and re.match(r"[A-Z_\d]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            own[name] = value
        if words[:1] != ["nsqtools"]:
            environment = {**os.environ, **self.names}
            done = subprocess.run(
                ["sh", "-ec", line],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                check=False,
            )
            return done.returncode, done.stdout, done.stderr
        stdin = (self.folder / file).read_bytes() if file else b""
        result = self.cli(*words[1:], stdin=stdin, env={"COLUMNS": "100", **own})
        return result.code, result.stdout, result.stderr.encode()

    def _filled(self, word: str) -> str:
        return re.sub(r"\$([A-Z_]+)", lambda found: self.names[found[1]], word)

    def _normal(self, said: str) -> str:
        for name, value in self.names.items():
            said = re.sub(rf"(?<!\d){re.escape(value)}(?!\d)", f"${name}", said)
        for pattern, name in _MASKED:
            said = pattern.sub(name, said)
        return said


def difference(file: Path, expected: str, found: str) -> str:
    """What is said now that the file does not say, for whoever reads the failure."""
    lines = unified_diff(
        expected.splitlines(), found.splitlines(), str(file), "what is said now", lineterm=""
    )
    return "\n".join([*lines, "", f"if that is right: {UPDATE}"])


def replace(file: Path, text: str) -> None:
    """Write a file whole: another process that reads or writes it sees one text or the other."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
        new.write(text)
    Path(new.name).chmod(0o644)
    Path(new.name).replace(file)


def nobody() -> Mapping[str, str]:
    """NOBODY and NOBODY_HTTP, two ports in a row where nobody listens."""
    port = free_port(1)
    return {"NOBODY": f"127.0.0.1:{port}", "NOBODY_HTTP": f"127.0.0.1:{port + 1}"}
