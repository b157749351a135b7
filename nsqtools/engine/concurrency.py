"""Many calls, some at a time. Apart, because consumers load it and nothing of HTTP with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 100
"""Servers that are asked at a time: each takes a descriptor, and memory while it is asked."""


async def call_each(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in the order of the items; at most ``AT_ONCE`` calls run at a time.

    After a call has raised, no other begins.
    """
    todo = list(items)
    results: dict[int, R] = {}
    numbers = iter(range(len(todo)))

    async def work() -> None:
        try:
            for number in numbers:
                results[number] = await call(todo[number])
        except BaseException:
            list(numbers)  # nobody begins another call
            raise

    await asyncio.gather(*(work() for _ in todo[:AT_ONCE]))
    return [results[number] for number in range(len(todo))]
