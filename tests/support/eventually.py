"""The only polling in the tests: wait for what another process or task will bring about."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.01
_TIMEOUT = 60.0
_NOT_YET = (AssertionError, LookupError, OSError)


def eventually(predicate: Callable[[], T], timeout: float = _TIMEOUT) -> T:
    """Call until the answer is truthy, and return it; AssertionError after ``timeout`` seconds.

    AssertionError, LookupError and OSError of the predicate mean "not yet".
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        answer: object
        try:
            if answer := predicate():
                return answer
        except _NOT_YET as error:
            answer = error
        if late:
            raise AssertionError(f"not within {timeout:g} s: {_text(predicate)}; last: {answer!r}")
        time.sleep(_PAUSE)


async def eventually_async(predicate: Callable[[], T | Awaitable[T]]) -> T:
    """As ``eventually`` for tests in an event loop; the predicate may return an awaitable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _TIMEOUT
    while True:
        late = loop.time() >= deadline
        answer: object
        try:
            value = predicate()
            settled = await value if inspect.isawaitable(value) else value
            if settled:
                return settled
            answer = settled
        except _NOT_YET as error:
            answer = error
        if late:
            raise AssertionError(f"not within {_TIMEOUT:g} s: {_text(predicate)}; last: {answer!r}")
        await asyncio.sleep(_PAUSE)


def _text(predicate: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(predicate).split())
    except (OSError, TypeError):
        return repr(predicate)
