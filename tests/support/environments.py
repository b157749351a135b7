"""Virtual environments with packages from PyPI."""

import subprocess
import sys
from pathlib import Path

from tests.support.binaries import give_up

_TIMEOUT = 600.0  # seconds


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program in the root directory."""
    return subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )


def environment(tests: str, folder: Path, *packages: str | Path) -> Path:
    """Where the programs of a fresh environment with these packages are, or the test ends here.

    ``tests`` says what is lost then.
    """
    made = run(sys.executable, "-m", "venv", folder)
    assert made.returncode == 0, made.stdout
    installed = run(folder / "bin" / "pip", "install", "--quiet", *packages)
    if installed.returncode and "HTTPSConnection" in installed.stderr:
        give_up("PyPI", tests, "PyPI cannot be reached", "TOOLS")
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"
