"""Threads for what would keep the event loop from reading and from answering heartbeats."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from nsqtools.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Threads", "as_output_error"]


class Threads:
    """Calls what blocks."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)

    def start(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Begin to call it in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call it in a thread, and return what it returns; cancelled, wait for its end first."""
        call = self.start(work, *args)
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            await asyncio.wait([call])
            call.exception()  # nobody asks for it any more
            raise
        return call.result()

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False)


def as_output_error(error: Exception) -> Exception:
    """The error for users: of an OSError the file, if it is known, and the reason."""
    if not isinstance(error, OSError):
        return error
    reason = error.strerror or str(error)
    return OutputError(f"{error.filename}: {reason}" if error.filename else reason)
