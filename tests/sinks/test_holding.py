"""Batches that a sink holds, and when they are let go."""

import asyncio

from nsqtools.sinks.holding import Held
from tests.support.archiving import LOST, Settled, batch
from tests.support.clock import elapse, virtual


async def test_what_nsqd_took_back_is_forgotten_in_place_of_requeued() -> None:
    held, settled = Held(), Settled()
    held.add(each := batch(b"one", b"two", settled=settled))
    assert not held.forget_lost(each)
    each.deadline = LOST
    held.requeue(each, each[:1])
    held.give_back(each)
    assert settled.requeued == []
    assert settled.forgotten == [b"one", b"two"]
    await held.settled()


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
