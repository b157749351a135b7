"""What commands say to their users, file by file: ``pytest --update-golden`` writes it anew.

A better wording is a change of one line here, and no other test asks for a sentence.

A line that begins with ``$ `` is run, in a folder of the file's own. What it does comes after it:
lines of stdout as they are, those of stderr after ``! ``, and the exit status, if it is not 0,
after ``? ``. A line of stdout that is empty, or begins like another kind, stands after ``| ``. What
differs from run to run is written as a name, such as ``$NSQD``, and may stand so in commands too.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest

from nsqtools.cli import COMMANDS
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, Nsqlookupd, free_port
from tests.support.spark import needs_spark

FILES = sorted(Path(__file__).parent.glob("*.txt"))
OTHER = re.compile(r"$|#|[$!?|] ")
MASKED = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "ID"),
    (re.compile(r"\bprocess \d+\b"), "process PID"),
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Runs the commands of a file; ``names`` are variables that stand for their values.

    A line that begins with nsqtools, or variables before it, may end with ``< FILE``; any other is
    the shell's.
    """

    cli: Cli
    folder: Path
    names: Mapping[str, str]

    def lines(self, text: str) -> Iterator[str]:
        """The lines of the same file, with what its commands say now."""
        for line in text.splitlines():
            if line.startswith("$ "):
                yield line
                yield from self._said(line[2:])
            elif not line or line.startswith("#"):
                yield line

    def _said(self, line: str) -> Iterator[str]:
        code, stdout, stderr = self._run(line)
        for each in map(self._normal, stdout.splitlines()):
            yield f"| {each}".rstrip() if OTHER.match(each) else each
        for each in map(self._normal, stderr.splitlines()):
            yield f"! {each}".rstrip()
        if code:
            yield f"? {code}"

    def _run(self, line: str) -> tuple[int, str, str]:
        command, _, file = line.partition(" < ")
        words = [re.sub(r"\$([A-Z_]+)", self._value, word) for word in shlex.split(command)]
        own = {"COLUMNS": "100"}
        while words and re.match(r"[A-Z_\d]+=", words[0]):
            name, _, own[name] = words.pop(0).partition("=")
        if words[:1] == ["nsqtools"]:
            stdin = (self.folder / file).read_bytes() if file else b""
            result = self.cli(*words[1:], stdin=stdin, env=own)
            return result.code, result.stdout.decode(), result.stderr
        run, env = ["sh", "-ec", line], {**os.environ, **self.names}
        done = subprocess.run(
            run, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def _value(self, found: re.Match[str]) -> str:
        return self.names[found[1]]

    def _normal(self, said: str) -> str:
        for name, value in self.names.items():
            said = re.sub(rf"(?<!\d){re.escape(value)}(?!\d)", f"${name}", said)
        for pattern, name in MASKED:
            said = pattern.sub(name, said)
        return said


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_command_says(
    file: Path,
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    nsqlookupd: Nsqlookupd,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    if file.stem == "pipeline":
        needs_spark("what commands of the pipeline say")
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    nobody = free_port(1)
    names = {
        "NSQD": str(nsqd.tcp),
        "NSQD_HTTP": str(nsqd.http),
        "LOOKUPD": str(nsqlookupd.tcp),
        "LOOKUPD_HTTP": str(nsqlookupd.http),
        "NOBODY": f"127.0.0.1:{nobody}",
        "NOBODY_HTTP": f"127.0.0.1:{nobody + 1}",
        "PWD": str(tmp_path),
    }
    expected = file.read_text().splitlines()
    found = list(Transcript(nsqtools_cli, tmp_path, names).lines(file.read_text()))
    if found != expected and pytestconfig.option.update_golden:
        file.write_text("".join(f"{line}\n" for line in found))
    elif found != expected:
        lines = unified_diff(expected, found, str(file), "what is said now", lineterm="")
        update = "if that is right: pytest tests/golden --update-golden"
        pytest.fail("\n".join([*lines, "", update]), pytrace=False)


def test_the_program_and_each_command_have_their_file() -> None:
    assert {file.stem for file in FILES} == {"nsqtools", *COMMANDS}
