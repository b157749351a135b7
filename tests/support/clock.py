"""Virtual time: an event loop whose clock jumps to the next timer when nothing is ready.

For tests in which all transports are in memory: hours pass in milliseconds, and the same run gives
the same times. Threads and real sockets are not waited for.
"""

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar, overload

import pytest

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")

DAY = 86400.0


class StuckError(AssertionError):
    """Nothing is ready and no timer is set, or virtual time ran past its limit."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that begins at ``start`` seconds and refuses to pass ``start + limit``.

    While it runs, the name of a host is its address.
    """

    def __init__(self, start: float = 0.0, limit: float = DAY) -> None:
        self._now = start
        self._end = start + limit
        super().__init__(_JumpingSelector(self.advance))

    def time(self) -> float:
        return self._now

    def run_forever(self) -> None:
        async def look_up(name: str) -> list[str]:
            return [name]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nsqtools.net.hosts._look_up", look_up)
            super().run_forever()

    def advance(self, seconds: float | None) -> None:
        """Move the clock to the next timer, which is ``seconds`` away; None if there is none."""
        if seconds is None:
            raise StuckError(f"nothing is ready and no timer is set: {self._waiting()}")
        if self._now + seconds > self._end:
            raise StuckError(f"virtual time ran past {self._end:g} s: {self._waiting()}")
        self._now += seconds

    def _waiting(self) -> str:
        return ", ".join(sorted(_chain(task) for task in asyncio.all_tasks(self))) + " wait"


def _chain(task: asyncio.Task[Any]) -> str:
    """``main > receive > Event.wait``: who awaits whom."""
    names = []
    coroutine: Any = task.get_coro()
    while hasattr(coroutine, "cr_await"):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return " > ".join(names)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._advance(timeout)
        return ready


def run_virtual(coroutine: Coroutine[Any, Any, T], *, limit: float = DAY) -> T:
    """Run to the end in virtual time; raises StuckError if that can never come."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(0.0, limit)) as runner:
        return runner.run(coroutine)


@overload
def virtual(test: type[C]) -> type[C]: ...
@overload
def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]: ...
def virtual(test: Any) -> Any:
    """Decorator: this async test, or each of this class, runs in virtual time, from 0 s."""
    if isinstance(test, type):
        for name, each in list(vars(test).items()):
            if inspect.iscoroutinefunction(each):
                setattr(test, name, virtual(each))
        return test

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_virtual(test(*args, **kwargs))

    return run


def real_loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of asyncio, and that of uvloop where it is installed."""
    found: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    if find_spec("uvloop"):
        import uvloop

        found.append(uvloop.new_event_loop)
    return found


async def elapse(seconds: float) -> None:
    """Let virtual time pass. AssertionError in real time, where a sleep would be a guess."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "wait for a condition instead"
    await asyncio.sleep(seconds)


async def turns(count: int = 50) -> None:
    """Let the event loop turn: it does only while nothing blocks it."""
    for _ in range(count):
        await asyncio.sleep(0)
