"""Batches that a sink holds: when they are TOUCHed, and when they are let go."""

from __future__ import annotations

import asyncio

from nsqtools.sinks.holding import Held
from tests.support.archiving import Settled, batch
from tests.support.clock import elapse, virtual


@virtual
class TestTouching:
    async def test_what_is_settled_within_half_of_its_timeout_is_not_touched(self) -> None:
        held, settled = Held(), Settled()
        for body in (b"finished", b"requeued"):
            held.add(each := batch(body, settled=settled, msg_timeout=60.0))
            await elapse(30)
            held.finish(each) if body == b"finished" else held.requeue(each)
        await elapse(600)
        assert settled.touched == []

    async def test_the_rest_is_touched_again_and_again_each_by_its_own_timeout(self) -> None:
        held, slow, quick = Held(), Settled(), Settled()
        held.add(late := batch(b"one", b"two", settled=slow, msg_timeout=60.0))
        held.add(batch(b"three", settled=quick, msg_timeout=2.0))
        held.finish(late, late[:1])
        await elapse(12)
        assert quick.touched == [b"three"] * 10
        await elapse(60)
        assert slow.touched == [b"two"] * 2

    async def test_what_nsqd_took_back_is_not_touched_and_forgotten_in_place_of_requeued(
        self,
    ) -> None:
        held, settled = Held(), Settled()
        is_lost = False
        held.add(each := batch(b"one", b"two", settled=settled, is_lost=lambda: is_lost))
        assert not held.forget_lost(each)
        is_lost = True
        await elapse(60)
        held.requeue(each, each[:1])
        held.give_back(each)
        assert (settled.touched, settled.requeued) == ([], [])
        assert settled.forgotten == [b"one", b"two"]
        await held.settled()

    async def test_after_the_end_nothing_is_touched(self) -> None:
        held, settled = Held(), Settled()
        held.add(batch(b"one", settled=settled))
        held.close()
        await elapse(60)
        assert settled.touched == []


@virtual
async def test_who_waits_for_the_end_waits_for_the_last_message() -> None:
    held, settled = Held(), Settled()
    await held.settled()
    held.add(each := batch(b"one", b"two", settled=settled))
    waiting = asyncio.create_task(held.settled())
    held.finish(each, each[:1])
    await elapse(1)
    assert not waiting.done()
    held.give_back(each)
    await waiting
    assert (settled.finished, settled.requeued) == ([b"one"], [(b"two", 0, False)])
