"""Tasks that one owner begins and ends, and what becomes of their errors."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from nsqtools.tasks import Tasks, call_each, interruptible, is_cancelled, run_loop, together
from tests.support.clock import elapse, virtual


async def fail() -> None:
    raise ValueError("a bug")


async def cancel_itself() -> None:
    """Await something that somebody has cancelled."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def last() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("work", "kind"), [(fail, ValueError), (cancel_itself, RuntimeError)])
@virtual
async def test_a_task_that_fails_is_reported_and_neither_taken_for_cancelled_nor_interrupted(
    work: Callable[[], Coroutine[Any, Any, None]], kind: type[Exception]
) -> None:
    errors: list[BaseException] = []
    tasks = Tasks(errors.append)
    for each in (work, last):
        tasks.begin(each())
    await asyncio.sleep(0)
    await tasks.close()
    assert [type(error) for error in errors] == [kind]
    assert errors[0].__traceback__ or errors[0].__cause__
    with pytest.raises(kind):
        await interruptible(work(), asyncio.Event())


@virtual
async def test_what_is_awaited_together_ends_with_the_first_error() -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await elapse(9 if name == "slow" else 1)
            raise ValueError(name)
        finally:
            ended.append(name)

    for awaited in (together(wait("slow"), wait("x")), call_each(["slow", "x"], wait)):
        with pytest.raises(ValueError, match="x"):
            await awaited
        assert ended == ["x", "slow"]
        ended.clear()


@virtual
async def test_work_is_interrupted_by_the_event_alone() -> None:
    event = asyncio.Event()
    assert await interruptible(asyncio.sleep(0), event)
    event.set()
    assert not await interruptible(last(), event)


@virtual
async def test_a_task_knows_whether_it_was_cancelled_by_somebody() -> None:
    found: list[bool] = []

    async def work(awaited: Callable[[], Awaitable[None]]) -> None:
        try:
            await awaited()
        except asyncio.CancelledError:
            found.append(is_cancelled())

    await work(cancel_itself)
    task = asyncio.create_task(work(last))
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert found == [False, True]


@virtual
async def test_an_error_of_interrupted_work_is_raised_even_if_the_caller_is_cancelled() -> None:
    async def work() -> None:
        try:
            await last()
        finally:
            raise ValueError("a bug")

    task = asyncio.create_task(interruptible(work(), asyncio.Event()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="a bug"):
        await task


@pytest.mark.parametrize("is_installed", [True, False])
def test_commands_run_on_uvloop_if_it_is_installed_and_leave_signals_as_they_were(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loop() -> str:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, print)
        return type(asyncio.get_running_loop()).__module__

    if is_installed:
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has one of its own
    assert run_loop(loop()).startswith("uvloop" if is_installed else "asyncio")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
