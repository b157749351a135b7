"""Cancels a piece of work at each of its await points in turn."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.clock import elapse, run_virtual
from tests.support.scripted import Network, undisturbed

Work = Coroutine[Any, Any, object]


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that calls ``tick`` whenever it has suspended."""

    def __init__(self, inner: Any, tick: Callable[[], object]) -> None:
        self._inner = inner
        self._tick = tick

    def send(self, value: Any) -> Any:
        awaited = self._inner.send(value)
        self._tick()
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._inner.throw(*error)
        self._tick()
        return awaited

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self


async def cancelled_at(point: int, work: Work) -> bool:
    """Whether the work, with all tasks that it makes, is suspended so many times.

    It is cancelled when that happens. Then CancelledError has come out, and no task is left.
    """
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    points, asked = 0, False

    def tick() -> None:
        nonlocal points, asked
        points += 1
        if points == point:
            asked = top.cancel()

    def counted(loop: asyncio.AbstractEventLoop, inner: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Counted(inner, tick), loop=loop, **options)

    loop.set_task_factory(counted)
    top = loop.create_task(work)
    await asyncio.wait([top])
    loop.set_task_factory(None)
    assert asyncio.all_tasks() == before
    assert top.cancelled() == asked, top
    if not top.cancelled():
        top.result()
    return points >= point


def cancel_everywhere(
    make: Callable[[Network], Work], check: Callable[[Network], object] = lambda _: None
) -> int:
    """The number of points of this work, which is cancelled at each in virtual time.

    ``check`` looks at the nsqds each time, to which no connection is left.
    """

    async def cancel_once() -> bool:
        network = Network()
        async with undisturbed():
            found = await cancelled_at(point, make(network))
            await elapse(0.1)  # what was aborted is gone
            assert not [nsqd.address for nsqd in network.nsqds.values() if nsqd.clients]
        check(network)
        return found

    point = 1
    while run_virtual(cancel_once()):
        point += 1
    return point - 1
