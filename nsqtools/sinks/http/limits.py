"""One time limit for many tasks."""

from __future__ import annotations

import asyncio
from typing import Any


class TimeLimit:
    """Like ``asyncio.timeout``, with the same seconds for all tasks and a single timer.

    A timer for each request took a twentieth of the request's time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        # Ordered by end, since all tasks have the same limit.
        self._ends: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task(self._loop)
        assert task
        self._ends[task] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._look)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Raise TimeoutError instead of the cancellation."""
        task = asyncio.current_task(self._loop)
        assert task
        self._ends.pop(task, None)
        if task in self._expired:
            self._expired.discard(task)
            if not task.uncancel() and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def close(self) -> None:
        """Stop the timer; tasks have no time limit any more."""
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._ends:
            task, end = next(iter(self._ends.items()))
            if end > now:
                self._timer = self._loop.call_at(end, self._look)
                break
            del self._ends[task]
            self._expired.add(task)
            task.cancel()
