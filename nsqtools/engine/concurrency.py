"""Tasks that begin together and end together: whoever returns from here leaves none behind.

It loads nothing of HTTP, as consumers of fixed nsqds need none of that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 100
"""Servers that are asked at a time: each takes a descriptor, and memory while it is asked."""


async def call_each(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in the order of the items; at most ``AT_ONCE`` calls run at a time.

    After a call has raised, no other begins and those under way are cancelled.
    """
    todo = list(items)
    if len(todo) == 1:
        return [await call(todo[0])]
    results: dict[int, R] = {}
    numbers = iter(range(len(todo)))

    async def work() -> None:
        for number in numbers:
            results[number] = await call(todo[number])

    await together(*(work() for _ in todo[:AT_ONCE]))
    return [results[number] for number in range(len(todo))]


@overload
async def together(a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def together(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
@overload
async def together(*work: Awaitable[T]) -> Sequence[T]: ...
async def together(*work: Awaitable[Any]) -> Sequence[Any]:
    """The results of all; once one raises, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(tasks)


async def end(tasks: Iterable[asyncio.Future[Any]], *, within: float | None = None) -> None:
    """Cancel tasks and wait until they have ended, for at most ``within`` seconds."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=within)


class Tasks:
    """Tasks that one owner begins now and then; ``on_error`` hears of what any of them raises."""

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it run; after ``close`` it is not even begun."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel all, without waiting for them."""
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Begin no more of them; cancel those there are and wait until they have ended."""
        self._closed = True
        await end(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._on_error(error)


async def interruptible(work: Coroutine[Any, Any, object], event: asyncio.Event) -> bool:
    """Whether the work came to its end; once the event is set it is cancelled and waited for."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    interrupted = loop.create_task(event.wait())
    try:
        await asyncio.wait((working, interrupted), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end((working, interrupted))
    if working.cancelled():
        return False
    working.result()
    return True
