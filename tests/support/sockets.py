"""Which processes have a connection to a server, as the kernel knows them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqtools.names import Address

_ESTABLISHED = "01"


def connected(pids: Iterable[int], address: Address) -> list[int]:
    """Those of the processes that are connected to a port, over IPv4."""
    port = f"{address.port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == _ESTABLISHED and row[2].rpartition(":")[2] == port
    }
    return [pid for pid in pids if sockets and not sockets.isdisjoint(_open_files(pid))]


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
