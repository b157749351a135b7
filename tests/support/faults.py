"""Disks that are small, full or broken, for root and for anybody."""

import errno
import itertools
import os
import resource
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import give_up, needs

CHANGES = (
    *("open", "write", "writev", "fsync", "ftruncate", "link", "rename", "unlink", "mkdir"),
    *("rmdir", "close"),
)
"""The functions of ``os`` that change files."""
CLOSE = os.close


@contextmanager
def filled(folder: Path, leave: int = 0) -> Iterator[None]:
    """Another program takes the space of a file system but for so many bytes, and gives it back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while shutil.disk_usage(folder).free > leave:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """RLIMIT_FSIZE: a write past ``size`` fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def broken(call: str, code: int = errno.EIO, *, of: Any = os) -> Iterator[None]:
    """A call to the system fails meanwhile."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, call, fail)
        yield


@contextmanager
def misreported(at: int, calls: Sequence[str] = CHANGES) -> Iterator[list[str]]:
    """One of these calls is done but reports an error, as after a lost response of a server.

    It is in the list that is yielded; the list is empty if there were not as many calls.
    """
    number, told = itertools.count(), list[str]()

    def unsure(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            if (name != "open" or args[1] & os.O_CREAT) and next(number) == at:
                if name == "open":
                    CLOSE(result)
                told.append(name)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, unsure(name, getattr(os, name)))
        yield told


class KilledError(BaseException):
    """Stands for kill -9."""


def killed(*_: object) -> None:
    """What calls this is killed."""
    raise KilledError


class Mortal:
    """Kills whoever makes one more change than are ``left``."""

    def __init__(self) -> None:
        self.left = 10**9

    def deadly(self, change: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KilledError
            return change(*args, **options)

        return changed

    def survived(self, step: int, work: Callable[[], object]) -> bool:
        """Whether it ended before that step, at which it is killed."""
        self.left = step
        with suppress(KilledError):
            work()
            return True
        return False

    def rest(self) -> None:
        self.left = 10**9


@contextmanager
def other_disk(folder: Path) -> Iterator[Path]:
    """A directory on another file system than the folder; skipped where there is none."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == folder.stat().st_dev:
        reason = "/dev/shm is no other file system"
        give_up("/dev/shm", "files that go to another file system", reason, "TOOLS")
    other = Path(tempfile.mkdtemp(dir=shm))
    try:
        yield other
    finally:
        shutil.rmtree(other)


@contextmanager
def small_disk(folder: Path, size: int = 1 << 20) -> Iterator[Path]:
    """A file system of so many bytes in a new directory; the test is skipped without the right.

    Who may not mount it here does so in a namespace, and gets at it through /proc.
    """
    mount, umount, unshare = (
        needs(name, "files on a full disk") for name in ("mount", "umount", "unshare")
    )
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "nsqtools-test", str(folder)]
    if os.getuid() == 0 and not subprocess.run(command, check=False).returncode:
        try:
            yield folder
        finally:
            subprocess.run([umount, "--lazy", str(folder)], check=True)
        return
    pipe = subprocess.PIPE
    script = f"{shlex.join(command)} && echo mounted && read _"
    holder = [unshare, "--map-root-user", "--mount", "sh", "-c", script]
    with subprocess.Popen(holder, stdin=pipe, stdout=pipe, stderr=pipe) as held:
        assert held.stdout
        assert held.stderr
        if not held.stdout.readline():
            reason = f"no right to mount a small disk: {held.stderr.read().decode().strip()}"
            give_up("mount", "files on a full disk", reason, "TOOLS")
        yield Path(f"/proc/{held.pid}/root{folder}")
