"""One time limit for many tasks."""

from __future__ import annotations

import asyncio

import pytest

from nsqtools.sinks.http.limits import TimeLimit
from tests.support.clock import elapse, virtual


async def within(limit: TimeLimit, seconds: float) -> str:
    try:
        with limit:
            await elapse(seconds)
    except TimeoutError:
        return "late"
    return "done"


@virtual
async def test_each_task_has_as_long() -> None:
    limit = TimeLimit(3.0)
    early = asyncio.ensure_future(within(limit, 2.9))
    late = asyncio.ensure_future(within(limit, 3.1))
    await elapse(2)
    again = asyncio.ensure_future(within(limit, 2.9))
    later = asyncio.ensure_future(within(limit, 100))
    await elapse(1.05)
    assert (early.done(), late.done(), again.done(), later.done()) == (True, True, False, False)
    await elapse(2)
    assert [await task for task in (early, late, again, later)] == ["done", "late", "done", "late"]


@virtual
async def test_a_task_may_have_it_again_and_again() -> None:
    limit = TimeLimit(3.0)
    assert [await within(limit, seconds) for seconds in (2, 4, 2, 4, 2)] == [
        "done",
        "late",
        "done",
        "late",
        "done",
    ]
    assert asyncio.get_running_loop().time() == pytest.approx(12)


@virtual
async def test_what_is_cancelled_by_others_stays_cancelled() -> None:
    limit = TimeLimit(3.0)
    task = asyncio.ensure_future(within(limit, 10))
    await elapse(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await within(limit, 10) == "late"


@virtual
async def test_what_is_cancelled_by_others_as_its_time_ends_stays_cancelled() -> None:
    limit = TimeLimit(3.0)
    task = asyncio.ensure_future(within(limit, 10))
    asyncio.get_running_loop().call_later(3.0, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@virtual
async def test_errors_pass_through() -> None:
    limit = TimeLimit(3.0)
    with pytest.raises(ZeroDivisionError), limit:
        raise ZeroDivisionError
    assert await within(limit, 10) == "late"


@virtual
async def test_one_that_is_done_as_its_time_ends_was_in_time_or_late_but_no_other_is_hit() -> None:
    limit = TimeLimit(3.0)
    assert await within(limit, 3.0) in ("done", "late")
    task = asyncio.current_task()
    assert task
    assert not task.cancelling()
    await elapse(10)
