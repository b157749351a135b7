"""What a run of nsqtools loads: a TAB press is a process, and imports are its time."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from nsqtools.cli import cli
from nsqtools.cli.complete import LINE
from nsqtools.cli.exits import COMPLETE
from nsqtools.cli.tree import walk

Run = tuple[Sequence[str], Mapping[str, str]]
"""Arguments and variables."""

ROOT = Path(__file__).parents[2]

# Each run is a fork of a process that has loaded what all of them do.
RUN_EACH = """
import sys
bare = set(sys.modules)
import os
from nsqtools.__main__ import main
for args, env in eval(sys.argv[1]):
    reading, writing = os.pipe()
    if not os.fork():
        end = os._exit
        def tell(_=0):
            os.write(writing, " ".join(set(sys.modules) - bare).encode())
            end(0)
        os._exit = tell
        os.environ.update(env)
        sys.argv[1:] = args
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            main()
        except SystemExit:
            pass
        tell()
    os.close(writing)
    print(os.read(reading, 1 << 16).decode(), flush=True)
    os.wait()
"""


def loaded(runs: Sequence[Run]) -> list[set[str]]:
    """The modules of each run, but for those of a bare Python."""
    script = [sys.executable, "-c", RUN_EACH, repr(runs)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_help_version_and_mistakes_load_no_command() -> None:
    heavy = {"asyncio", "httpx", "logging", "pyspark", "rich", "snappy", "ssl"}
    heavy |= {"nsqtools.config", "nsqtools.cli.commands"}
    runs: list[Run] = [([], {}), (["--help"], {}), (["--version"], {}), (["tial"], {})]
    for modules in loaded([*runs, ([], {COMPLETE: "bash_complete", LINE: "nsqtools t"})]):
        assert "nsqtools.cli" in modules
        assert not modules & heavy


HEAVY = {
    *("asyncio", "concurrent.futures", "difflib", "email", "http", "httpx", "logging"),
    *("multiprocessing", "pathlib", "pyarrow", "pyspark", "rich", "snappy", "socket", "ssl"),
    *("subprocess", "tempfile", "tomllib", "urllib"),
}
LEAVES = [node.command_path for node in walk(cli) if not isinstance(node.command, click.Group)]


def test_completing_an_option_loads_the_options_of_the_command_and_no_more() -> None:
    runs: list[Run] = [([], {COMPLETE: "bash_complete", LINE: f"{line} --help"}) for line in LEAVES]
    for words, modules in zip(LEAVES, loaded(runs), strict=True):
        assert "nsqtools.cli.complete" in modules
        if words == "nsqtools tail":
            others = ("admin", "bench", "files", "http", "lake", "publishing", "relay", "stats")
            assert not {f"nsqtools.config.{each}" for each in others} & modules
        # Nobody types options of the demo every day.
        spared = {"pathlib", "subprocess", "urllib"} if words == "nsqtools demo" else set()
        assert modules & HEAVY <= spared, words
        assert not [name for name in modules if name.startswith("nsqtools.engine")], words
