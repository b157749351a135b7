import asyncio

import pytest

from tests.support.clock import StuckError, elapse, run_virtual, virtual


@virtual
async def test_sleeping_for_hours_takes_exactly_that_virtual_time() -> None:
    loop = asyncio.get_running_loop()
    await elapse(7200)
    assert loop.time() == 7200


@virtual
async def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[float] = []

    async def wait(seconds: float) -> None:
        await elapse(seconds)
        fired.append(asyncio.get_running_loop().time())

    await asyncio.gather(*(wait(seconds) for seconds in (30, 0.5, 8, 0)))
    assert fired == [0, 0.5, 8, 30]


@virtual
async def test_time_stands_still_while_anything_is_ready() -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.001, lambda: None)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert loop.time() == 0


@virtual
async def test_a_timeout_ends_a_wait_for_something_that_never_comes() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() == 60


def test_the_clock_begins_where_it_is_told() -> None:
    async def now() -> float:
        await elapse(1.5)
        return asyncio.get_running_loop().time()

    assert run_virtual(now(), start=1000) == 1001.5


async def waits_for_nothing() -> None:
    await asyncio.Event().wait()


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    with pytest.raises(StuckError, match=r"nothing is ready.*waits_for_nothing > Event.wait wait"):
        run_virtual(waits_for_nothing())


def test_a_timer_that_goes_on_for_ever_is_an_error_too() -> None:
    async def main() -> None:
        def tick() -> None:
            asyncio.get_running_loop().call_later(5, tick)

        tick()
        await waits_for_nothing()

    with pytest.raises(StuckError, match=r"ran past 3600 s: .*main > waits_for_nothing"):
        run_virtual(main(), limit=3600)


def test_an_error_of_the_test_comes_out_unchanged() -> None:
    async def fails() -> None:
        await elapse(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        run_virtual(fails())
