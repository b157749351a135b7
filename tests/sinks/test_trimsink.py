"""What ``channel trim`` holds, defers and gives back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from nsqtools.engine.handler import Batch, Handler
from nsqtools.errors import OutputError
from nsqtools.policy.trim import Marks, Trim
from nsqtools.sinks.holding import HoldingHandler
from nsqtools.sinks.trimsink import TrimSink
from tests.support.archiving import HOUR, START, Settled, batch, message


@contextlib.asynccontextmanager
async def opened(
    expected: int, room: int, archive: Handler | None = None
) -> AsyncIterator[TrimSink]:
    now = asyncio.get_running_loop().time()
    marks = {batch(b"").source: Marks(START, START + HOUR, START + HOUR)}
    trim = Trim(marks, expected=expected, patience=60.0, max_younger=100, now=now)
    sink = TrimSink(trim, archive, room=room)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


async def test_younger_messages_are_held_without_bodies_and_others_are_deferred() -> None:
    settled = Settled()
    ages = [("old", -1), ("kept", 0), ("kept", 0), ("away", 0), ("older", -HOUR)]
    async with opened(expected=5, room=2) as sink:
        parts = [
            message(body.encode(), timestamp=START + age, number=number)
            for number, (body, age) in enumerate(ages, 1)
        ]
        await sink.handle(batch(*parts[:3], settled=settled))
        await sink.gave_up(batch(*parts[3:], settled=settled))
        assert settled.finished == [b"old", b"older"]
        assert settled.requeued == [(b"away", 30.0, False)]
        assert [each.body for each in parts[1:3]] == [b"", b""]
        await sink.ended  # all five were seen
        late = batch(message(b"late", timestamp=0, number=9), settled=settled)
        await sink.handle(late)
        await sink.drain("events")
    assert settled.finished == [b"old", b"older"]
    assert settled.requeued[1:] == [(b"late", 0, False)] + [(b"", 0, False)] * 2
    assert (sum(sink.finished.values()), sink.deferred) == (2, 1)


class Archive(HoldingHandler):
    """Takes everything and finishes nothing."""

    async def handle(self, batch: Batch) -> None:
        pass


async def test_a_failure_of_the_archive_is_that_of_the_trim_and_its_end_is_not() -> None:
    settled, archive = Settled(), Archive()
    async with opened(expected=5, room=2, archive=archive) as sink:
        archive.ended.cancel()
        await asyncio.sleep(0)
        assert not sink.ended.done()
    async with opened(expected=5, room=2, archive=archive) as sink:
        archive.fail(OutputError("the disk is full"))
        with pytest.raises(OutputError, match="the disk is full"):
            await sink.ended
        await sink.handle(batch(message(b"old", timestamp=0), settled=settled))
    assert settled.requeued == [(b"old", 0, False)]
