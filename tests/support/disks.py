"""File systems that are small enough to be filled."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.binaries import give_up, needs

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def fill(disk: Path, *, leave: int) -> Path:
    """Take the room of a disk but for so many bytes; the file to delete for it."""
    free = os.statvfs(disk)
    ballast = disk / "ballast.torn"  # archives.published does not take it for one of ours
    ballast.write_bytes(b"\0" * max(0, free.f_bavail * free.f_bsize - leave))
    return ballast
