"""Which programs the tests run: NSQ's servers and Go tools, MinIO, and whatever else a test needs.

NSQ is taken from PATH, from the directory ``$NSQTOOLS_NSQD_BIN``, or from a cache outside the
repository that the Go toolchain fills once from ``tests/nsqd/go.mod``; the first place with an
nsqd and an nsqlookupd of version 1 is used. Where there is none, what talks to an nsqd is tested
with the sandbox alone. MinIO is taken from PATH, or built from ``tests/minio/go.mod`` likewise,
which takes minutes, and so is done with ``--full`` or ``NSQTOOLS_REQUIRE_TOOLS=1`` only;
``python -m tests.support.binaries`` builds all that is missing. Any other program that is missing
skips the test and says what it would have tested; with ``NSQTOOLS_REQUIRE_NSQD=1`` or
``NSQTOOLS_REQUIRE_TOOLS=1`` it fails it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

LIVE = "everything that talks to a real nsqd or nsqlookupd"

left_out: dict[str, int] = {}
"""Why this run leaves tests out, and how many; 0 if nobody knows."""

takes_time = os.environ.get("NSQTOOLS_REQUIRE_TOOLS") == "1"
"""Whether a run may take minutes to build what it lacks; it may with ``--full`` too."""


@dataclass(frozen=True, slots=True)
class Nsq:
    """A set of NSQ programs; ``search`` is written as PATH is."""

    search: str
    origin: str
    version: str

    def __str__(self) -> str:
        return f"{self.version} from {self.origin}"

    def path(self, program: str, tests: str = LIVE) -> str:
        """Path of nsqd, nsqlookupd or a Go tool, or else the test ends here."""
        found = shutil.which(program, path=self.search)
        if not found:
            give_up(program, tests, f"no {program} beside the nsqd of {self.origin}", "NSQD")
        return found


@dataclass(frozen=True, slots=True)
class GoModule:
    """A directory with a go.mod whose tools are built once, into a directory of the cache."""

    path: Path
    name: str

    @property
    def target(self) -> Path:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        sums = b"".join((self.path / name).read_bytes() for name in ("go.mod", "go.sum"))
        digest = hashlib.sha256(sums).hexdigest()[:12]
        return Path(root, "nsqtools-tests", f"{self.name}-{digest}")


_TESTS = Path(__file__).parents[1]
NSQ = GoModule(_TESTS / "nsqd", "nsq-1.3.0")
MINIO = GoModule(_TESTS / "minio", "minio")


def needs_minio(tests: str) -> str:
    """Path of MinIO, built if that is the only way and may take time, or the test ends here."""
    if found := shutil.which("minio"):
        return found
    may = takes_time or MINIO.target.exists()
    if failure := _build(MINIO) if may else "it takes minutes to build, which --full does":
        give_up("minio", tests, f"no minio on PATH, and {failure}", "TOOLS")
    return str(MINIO.target / "minio")


def needs(program: str, tests: str) -> str:
    """Path of a program on PATH, or else the test ends here; ``tests`` says what is lost."""
    return shutil.which(program) or give_up(program, tests, f"no {program} on PATH", "TOOLS")


def require_nsq() -> Nsq:
    """The NSQ programs, built if that is the only way, or else the test ends here."""
    failure = "" if installed_nsq() else _build(NSQ)
    return installed_nsq() or give_up(
        "nsqd", LIVE, f"no nsqd 1.x on PATH or in $NSQTOOLS_NSQD_BIN, and {failure}", "NSQD"
    )


def installed_nsq() -> Nsq | None:
    """The NSQ programs that are there without building any."""
    places = {
        "PATH": os.environ.get("PATH", ""),
        "$NSQTOOLS_NSQD_BIN": os.environ.get("NSQTOOLS_NSQD_BIN", ""),
        str(NSQ.target): str(NSQ.target),
    }
    for origin, search in places.items():
        nsqd = shutil.which("nsqd", path=search)
        if nsqd and shutil.which("nsqlookupd", path=search) and (version := _version(nsqd)):
            return Nsq(search, origin, version)
    return None


def expect_nsq(*, build: bool) -> bool:
    """Whether tests are to be run with the real servers too.

    They are where nsqd is required, that they may fail, and where it is or can be built: that is
    tried here unless ``build`` is false, and then only the go to try it with is wanted.
    """
    if installed_nsq() or os.environ.get("NSQTOOLS_REQUIRE_NSQD") == "1":
        return True
    if not build:
        return shutil.which("go") is not None
    failure = _build(NSQ)
    if failure and shutil.which("go"):
        left_out[f"nsqd is missing ({failure}); it would have tested: {LIVE}"] = 0
    return installed_nsq() is not None


def describe_nsq() -> str:
    """One line on what the live tests will use, without building anything."""
    if found := installed_nsq():
        return f"{found}, and the sandbox"
    if shutil.which("go"):
        return f"to be built once by go into {NSQ.target}, and the sandbox"
    return "the sandbox alone (for nsqd too: install it, set $NSQTOOLS_NSQD_BIN, or install go)"


def give_up(program: str, tests: str, reason: str, kind: str) -> NoReturn:
    """Skip a test that wants this program, or fail it with ``NSQTOOLS_REQUIRE_<kind>=1``."""
    left_out[f"{program} is missing; it would have tested: {tests}"] = 0
    text = f"{reason}; it would have tested {tests}"
    if os.environ.get(f"NSQTOOLS_REQUIRE_{kind}") == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@cache
def _version(nsqd: str) -> str:
    shown = subprocess.run([nsqd, "-version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"nsqd (v1\.\d\S*)", shown)
    return match[1] if match else ""


@cache
def _build(module: GoModule) -> str:
    """Build all programs of a module; the answer says why that failed, or is empty."""
    target = module.target
    if target.exists():
        return ""
    go = shutil.which("go")
    if not go:
        return "no go to build it with"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return ""
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            built = Path(scratch, "bin")
            done = subprocess.run(
                [go, "install", "tool"],
                cwd=module.path,
                env={**os.environ, "GOWORK": "off", "CGO_ENABLED": "0", "GOBIN": str(built)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:  # of a go before 1.24 it is an unknown package
                return f"`go install tool` failed: {done.stderr.strip().splitlines()[-1:]}"
            built.rename(target)
    return ""


if __name__ == "__main__":
    for each in (NSQ, MINIO):
        print(_build(each) or each.target)
