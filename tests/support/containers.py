"""Images, built and run by podman or docker."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from tests.support.binaries import give_up
from tests.support.environments import run

_IMAGES = "the image of .github/Containerfile"
_ENGINES = ("podman", "docker")
_TIMEOUT = 300.0  # seconds


class Image(NamedTuple):
    """An image, by its engine's path and its own id."""

    engine: str
    name: str

    def run(self, *command: str, entry: str = "") -> str:
        """The output of a container, with a program in place of the image's own if given."""
        options = ("--rm", *(("--entrypoint", entry) if entry else ()))
        return run(_IMAGES, self.engine, "run", *options, self.name, *command)


@contextmanager
def built(source: Path, scratch: Path) -> Iterator[Image]:
    """The image of a checkout, or the test ends here."""
    engine = _engine()
    file, name = source / ".github" / "Containerfile", scratch / "image"
    for base in sorted(set(re.findall(r"^FROM (\S+/\S+)", file.read_text(), re.MULTILINE))):
        if failure := _failure(engine, "pull", base):
            _give_up(f"{base} cannot be pulled: {failure}")
    run(_IMAGES, engine, "build", "--iidfile", name, "--file", file, source)
    image = Image(engine, name.read_text())
    try:
        yield image
    finally:
        run(_IMAGES, engine, "rmi", "--force", image.name)


def _engine() -> str:
    """Path of an engine that works."""
    reasons = []
    for name in _ENGINES:
        if not (path := shutil.which(name)):
            reasons.append(f"no {name} on PATH")
        elif failure := _failure(path, "info"):
            reasons.append(f"{name} does not work: {failure}")
        else:
            return path
    return _give_up(", ".join(reasons))


def _failure(*command: str) -> str:
    """The last line of standard error if a program fails, else an empty text."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _give_up(reason: str) -> NoReturn:
    give_up(" or ".join(_ENGINES), _IMAGES, reason, "CONTAINERS")
