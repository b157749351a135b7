"""Threads for blocking work, so that the event loop keeps reading and answering heartbeats."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nsqtools.errors import NSQError, OutputError, with_fix

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads:
    """Runs blocking functions."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)

    def start(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Start the function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a thread and return its result, or wait for its end if cancelled."""
        call = self.start(work, *args)
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            while not call.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([call])
            call.exception()  # marks the error as retrieved
            raise
        try:
            return call.result()
        finally:
            del call  # the traceback of its error refers to this frame: a cycle

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False)


def as_output_error(error: Exception) -> Exception:
    """Convert an OSError into an OutputError with file and reason; return others unchanged."""
    if not isinstance(error, OSError):
        return error
    reason = with_fix(error.errno, error.strerror or str(error))
    return OutputError(f"{error.filename}: {reason}" if error.filename else reason)


def without_frames(error: Exception) -> Exception:
    """Return an OSError or NSQError without its traceback, whose frames hold the unwritten data.

    Other errors are bugs and keep their traceback.
    """
    if isinstance(error, OSError | NSQError):
        error = as_output_error(error).with_traceback(None)
        error.__cause__ = error.__context__ = None
    return error
