"""Structured concurrency: when a call returns, all tasks it started have ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

MAX_CONCURRENT = 100
"""Maximum number of concurrent requests; each needs a file descriptor and memory."""


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine as ``asyncio.run`` does, in an event loop of uvloop if it is installed."""
    results: list[R] = []

    async def work() -> None:
        # As the task's result, it would be part of a text that asyncio.Runner's use of
        # signal.getsignal makes: all of a list of nsqds.
        results.append(await main)

    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(work())
    else:
        log.debug("the event loop is uvloop's")
        with _signals_restored(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(work())
    return results.pop()


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers, which a loop of uvloop leaves in place when it is closed.

    Otherwise Ctrl-C would not end a question that comes after the loop.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


async def call_each(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call ``call`` for all items, a bounded number at a time; returns results in item order.

    If a call raises, no other call starts and the running calls are cancelled.
    """
    todo = list(items)
    if len(todo) == 1:
        return [await call(todo[0])]
    results: dict[int, R] = {}
    numbers = iter(range(len(todo)))

    async def work() -> None:
        for number in numbers:
            results[number] = await call(todo[number])

    await together(*(work() for _ in todo[:MAX_CONCURRENT]))
    return [results[number] for number in range(len(todo))]


@overload
async def together(a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def together(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
@overload
async def together(*work: Awaitable[T]) -> Sequence[T]: ...
async def together(*work: Awaitable[Any]) -> Sequence[Any]:
    """Await all and return their results; if one raises, the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(tasks)


async def end(tasks: Iterable[asyncio.Future[Any]], *, within: float | None = None) -> None:
    """Cancel tasks and wait for their end, for at most ``within`` seconds."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=within)


class Tasks:
    """The background tasks of one owner; ``on_error`` is called with the exception of a task."""

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; after ``close`` do nothing."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._tasks)

    async def wait(self, *, within: float | None = None) -> None:
        """Wait until all tasks have ended, for at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Start no more tasks; cancel the running tasks and wait for their end."""
        self._closed = True
        await end(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if error := _failure(task):
            self._on_error(error)


class SharedCall(Generic[T]):
    """A call whose result is shared by everybody who asks for it while it is under way."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._running: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Begin the call, or join it; cancelling one waiter does not affect the others."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._call())
            self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    @property
    def is_running(self) -> bool:
        """Whether the call is under way."""
        return self._running is not None

    async def close(self) -> None:
        """Cancel the call under way."""
        if self._running:
            await end([self._running])

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # retrieved: the waiters report it


async def interruptible(work: Coroutine[Any, Any, object], event: asyncio.Event) -> bool:
    """Run ``work``, and cancel and await it once ``event`` is set; returns whether it completed.

    Raises the work's error, even if the caller was cancelled once meanwhile.
    """
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    interrupted = loop.create_task(event.wait())
    try:
        await asyncio.wait((working, interrupted), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end((working, interrupted))
        if error := _failure(working):
            raise error
    return not working.cancelled()


@asynccontextmanager
async def beside(
    work: Coroutine[Any, Any, object], stop: Callable[[], object]
) -> AsyncIterator[None]:
    """Run ``work`` beside the block, and at its end call ``stop`` and wait for the work.

    If the work fails, the block is cancelled and the error raised; cancelling the block cancels
    the work.
    """
    owner, is_over, has_failed = asyncio.current_task(), False, False
    assert owner

    def ended(task: asyncio.Task[object]) -> None:
        nonlocal has_failed
        if not is_over and _failure(task):
            has_failed = owner.cancel()

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    try:
        yield
    finally:
        is_over = True
        if owner.cancelling() > has_failed:
            await end([task])
        else:
            stop()
        if has_failed:
            owner.uncancel()
        await task


def is_cancelled() -> bool:
    """Whether somebody has cancelled the current task.

    Otherwise a CancelledError comes from the work itself and counts as a failure.
    """
    task = asyncio.current_task()
    return bool(task and task.cancelling())


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the error of an ended task; None after success or a cancellation from outside."""
    try:
        task.result()
    except asyncio.CancelledError as error:
        if task.cancelling():
            return None
        failure = RuntimeError("something that the task awaited was cancelled")
        failure.__cause__ = error
        return failure
    except BaseException as error:
        return error
    return None
