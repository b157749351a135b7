"""Processes, all that they have started, and who is connected, as the kernel knows them."""

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from nsqtools.names import Address


def descendants(pid: int) -> list[int]:
    """Those of a process, whatever groups and sessions they are in."""
    children: dict[int, list[int]] = defaultdict(list)
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                children[int(fields[1])].append(int(each.name))
    found: list[int] = []
    left = [pid]
    while left:
        below = children[left.pop()]
        found += below
        left += below
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all its descendants at once: nobody sees another one die."""
    tree = [pid]
    while new := set(descendants(pid)) - set(tree):  # what is stopped starts nothing any more
        for each in new:
            signal_process(each, signal.SIGSTOP)
        tree += new
    for each in tree:
        signal_process(each, signal.SIGKILL)


def signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def connected(pids: Iterable[int], address: Address) -> list[int]:
    """Those of the processes that are connected to a port, over IPv4."""
    port = f"{address.port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    here = (row for row in rows if (row[3], row[2][-4:]) == ("01", port))  # established
    sockets = {f"socket:[{row[9]}]" for row in here}
    return [pid for pid in pids if sockets & _open_files(pid)]


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
