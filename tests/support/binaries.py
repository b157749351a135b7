"""Which programs the tests run: NSQ's servers, MinIO, Iceberg's catalog, and what else they need.

NSQ is taken from PATH, from the directory ``$NSQTOOLS_NSQD_BIN``, or from a cache outside the
repository that the Go toolchain fills once from ``tests/nsqd/go.mod``; the first place with an
nsqd and an nsqlookupd of version 1 is used. Where there is none, what talks to an nsqd is tested
with the sandbox alone. MinIO is taken from PATH, or built from ``tests/minio/go.mod`` likewise,
which takes minutes, and so is done with ``--full`` or ``NSQTOOLS_REQUIRE_TOOLS=1`` only. Then
Spark's Ivy also downloads Iceberg's REST catalog, whose jars ``tests/iceberg/ivy.xml`` names.
``python -m tests.support.binaries`` gets all that is missing. Any other program that is missing
skips the test and says what it would have tested; with ``NSQTOOLS_REQUIRE_NSQD=1`` or
``NSQTOOLS_REQUIRE_TOOLS=1`` it fails it, and with ``NSQTOOLS_REQUIRE_CONTAINERS=1`` if it is what
runs containers.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest

LIVE = "everything that talks to a real nsqd or nsqlookupd"

left_out: dict[str, int] = {}
"""Why this run leaves tests out, and how many; 0 if nobody knows."""

takes_time = os.environ.get("NSQTOOLS_REQUIRE_TOOLS") == "1"
"""Whether a run may take minutes to get what it lacks; it may with ``--full`` too."""


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
class Module(ABC):
    """A directory with files that say what to get, once, into a directory of the cache."""

    path: Path
    name: str
    sources: ClassVar[Sequence[str]]
    tool: ClassVar[str]

    @property
    def target(self) -> Path:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        sums = b"".join((self.path / name).read_bytes() for name in self.sources)
        digest = hashlib.sha256(sums).hexdigest()[:12]
        return Path(root, "nsqtools-tests", f"{self.name}-{digest}")

    @abstractmethod
    def arguments(self, into: Path) -> Sequence[str | Path]:
        """Arguments of the tool, with which it gets all ``into`` a directory."""


class GoModule(Module):
    """Tools that are built; go checks them with go.sum, and wants to know where by $GOBIN."""

    sources = ("go.mod", "go.sum")
    tool = "go"

    def arguments(self, into: Path) -> Sequence[str | Path]:
        return ("install", "tool")


class JavaModule(Module):
    """Jars from Maven Central; Ivy checks them with the checksums that it finds there."""

    sources = ("ivy.xml",)
    tool = "java"

    def arguments(self, into: Path) -> Sequence[str | Path]:
        return (
            *("-cp", spark_jars(), "org.apache.ivy.Main", "-warn", "-ivy", "ivy.xml"),
            *("-cache", into.with_name("ivy"), "-types", "jar", "bundle"),
            *("-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"),
        )


_TESTS = Path(__file__).parents[1]
NSQ = GoModule(_TESTS / "nsqd", "nsq-1.3.0")
MINIO = GoModule(_TESTS / "minio", "minio")
ICEBERG = JavaModule(_TESTS / "iceberg", "iceberg")


def spark_jars() -> str:
    """The jars of Spark, among which are Ivy and Hadoop, as a class path."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return f"{Path(spec.origin).parent}/jars/*"


def needs_minio(tests: str) -> str:
    """Path of MinIO, built if that is the only way and may take time, or the test ends here."""
    if found := shutil.which("minio"):
        return found
    return str(_needs_module(MINIO, "no minio on PATH, and ", tests) / "minio")


def needs_iceberg(tests: str) -> str:
    """The class path of Iceberg's REST catalog, got if that may take time, or the test ends here.

    Spark has to be there.
    """
    return f"{_needs_module(ICEBERG, '', tests)}/*:{spark_jars()}"


def _needs_module(module: Module, reason: str, tests: str) -> Path:
    may = takes_time or module.target.exists()
    if failure := _get(module) if may else f"{module.name} takes time to get, which --full does":
        give_up(module.name, tests, f"{reason}{failure}", "TOOLS")
    return module.target


def needs(program: str, tests: str) -> str:
    """Path of a program, or else the test ends here; ``tests`` says what is lost.

    It is on PATH, or beside this Python, where pip installs programs of packages.
    """
    beside = os.path.dirname(sys.executable)
    found = shutil.which(program) or shutil.which(program, path=beside)
    return found or give_up(program, tests, f"no {program} on PATH", "TOOLS")


def require_nsq() -> Nsq:
    """The NSQ programs, built if that is the only way, or else the test ends here."""
    failure = "" if installed_nsq() else _get(NSQ)
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
    failure = _get(NSQ)
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
def _get(module: Module) -> str:
    """Build or download all of a module; the answer says why that failed, or is empty."""
    target = module.target
    if target.exists():
        return ""
    tool = shutil.which(module.tool)
    if not tool:
        return f"no {module.tool} to get it with"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return ""
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            into = Path(scratch, "bin")
            done = subprocess.run(
                [tool, *module.arguments(into)],
                cwd=module.path,
                env={**os.environ, "GOWORK": "off", "CGO_ENABLED": "0", "GOBIN": str(into)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:  # of a go before 1.24, `tool` is an unknown package
                said = (done.stdout + done.stderr).splitlines()
                reason = [line.strip() for line in said if line.strip(" \t:")][-1:]
                return f"`{module.tool}` failed: {reason}"
            into.rename(target)
    return ""


if __name__ == "__main__":
    for each in (NSQ, MINIO, ICEBERG):
        print(_get(each) or each.target)
