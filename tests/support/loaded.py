"""What a run of nsqtools loads: a TAB press is a process, and imports are its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]

# Each run is a fork of a process that has loaded what all of them do.
_RUN_EACH = """
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


def loaded(runs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[set[str]]:
    """The modules of each run of these arguments and variables, but for those of a bare Python."""
    given = repr([(list(args), dict(env)) for args, env in runs])
    return [set(line.split()) for line in run_python(_RUN_EACH, given).splitlines()]


def run_python(script: str, *args: str) -> str:
    """What a script prints in a process of its own; it ends with success and says no more."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
