"""Programs that install packages from PyPI."""

import os
import subprocess
from pathlib import Path

from tests.support.binaries import give_up

_TIMEOUT = 600.0  # seconds
_UNREACHABLE = ("HTTPSConnection", "error sending request")
"""How pip and uv say that there was no connection."""


def run(tests: str, *command: str | Path) -> str:
    """The output of a program in the root directory, which sees nothing of this checkout.

    The test ends here if the program needs PyPI and cannot reach it; ``tests`` says what is lost.
    """
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode and any(text in done.stderr for text in _UNREACHABLE):
        give_up("PyPI", tests, "PyPI cannot be reached", "TOOLS")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
