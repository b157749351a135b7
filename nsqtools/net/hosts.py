"""Addresses of hosts by name: one lookup per name at a time, for which no exit waits.

A lookup cannot be ended, and name servers that do not answer hold it for half a minute or longer.
In the thread pools of asyncio and uvloop it would delay the lookups of other names, and the end of
the process.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import socket
import threading
from collections import defaultdict
from contextlib import suppress
from ipaddress import ip_address
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Waiter = asyncio.Future[Sequence[str]]

T = TypeVar("T")

_lock = threading.Lock()
_under_way: dict[str, set[Waiter]] = {}
"""Who waits for the lookup of a name, in all event loops of the process."""


async def addresses_of(name: str) -> Sequence[str]:
    """Return the addresses of a host, IPv6 and IPv4 in turn; those of an IP address are itself.

    A lookup outlives callers that are cancelled, and the next caller joins it. Raises OSError, or
    UnicodeError for a name invalid in DNS.
    """
    with suppress(ValueError):
        ip_address(name)
        return [name]
    return await _look_up(name)


async def first_dialled(name: str, dial: Callable[[str], Awaitable[T]]) -> T:
    """Return what ``dial`` returns for the first address of a host for which it raises no OSError.

    Raises the error of the last address, or as ``addresses_of``.
    """
    *others, last = await addresses_of(name)
    for host in others:
        with suppress(OSError):
            return await dial(host)
    return await dial(last)


async def _look_up(name: str) -> Sequence[str]:
    """Wait for the lookup of a name, which begins unless it is under way."""
    waiter: Waiter = asyncio.get_running_loop().create_future()
    with _lock:
        if name not in _under_way:
            thread = threading.Thread(target=_ask, args=(name,), name="lookup", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, "no thread can be started for a lookup") from error
            _under_way[name] = set()
        waiters = _under_way[name]
        waiters.add(waiter)
    try:
        return await waiter
    finally:
        with _lock:
            waiters.discard(waiter)


def _ask(name: str) -> None:
    """Ask the name servers, and tell all who wait."""
    found: Sequence[str] | Exception
    try:
        found = _in_turn(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except Exception as error:
        found = error
    with _lock:
        waiters = list(_under_way.pop(name, ()))
    for waiter in waiters:
        with suppress(RuntimeError):  # the event loop has been closed
            waiter.get_loop().call_soon_threadsafe(_tell, waiter, found)


def _tell(waiter: Waiter, found: Sequence[str] | Exception) -> None:
    if waiter.done():
        return
    if isinstance(found, Exception):
        waiter.set_exception(copy.copy(found))  # each has its own traceback
    else:
        waiter.set_result(found)


def _in_turn(found: Sequence[tuple[Any, ...]]) -> Sequence[str]:
    families: defaultdict[int, list[str]] = defaultdict(list)
    for family, _, _, _, address in found:
        families[family].append(str(address[0]))
    turns = zip_longest(*families.values())
    return [host for turn in turns for host in turn if host is not None]


def _forget() -> None:
    """Forget the lookups of the parent of this process, and whose thread held the lock."""
    global _lock
    _lock = threading.Lock()
    _under_way.clear()


os.register_at_fork(after_in_child=_forget)
