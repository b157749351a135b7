"""What every sink does with messages, whatever its destination.

A new sink is a ``Destination`` of ``tests.support.accepting``.
"""

import asyncio
import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.errors import NSQError, OutputError
from tests.support.accepting import DESTINATIONS, SLOW, Destination, opened
from tests.support.archiving import LOST, Settled
from tests.support.cancelling import cancelled_at
from tests.support.clock import elapse, run_virtual, virtual
from tests.support.scripted import undisturbed

SETTLED_BY = 1.5
"""Seconds after which a batch is settled without ``starved``: the longest wait of these sinks."""

Kind = type[Destination]

BODIES = (b"", b"one", b"two\n", b"\xff\xfe", b"\x01\x02", b'{"a": 1}', b"x" * 70_000)


@pytest.fixture(params=DESTINATIONS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def only(kinds: Callable[[Kind], object]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "kind", [each for each in DESTINATIONS if kinds(each)], ids=lambda kind: kind.__name__
    )


recovering = only(lambda kind: kind.recovers)
ending = only(lambda kind: not kind.recovers)
rejecting = only(lambda kind: kind.rejects)
burying = only(lambda kind: kind.buries)
ordering = only(lambda kind: kind.is_ordered)
of_topics = only(lambda kind: kind.topics[1:])


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


async def nap(to: Destination) -> None:
    """Let a sink do what it does by itself."""
    await elapse(SETTLED_BY)


def give_slowly(to: Destination) -> asyncio.Future[Batch]:
    """Hand over a message to a destination that is slow from now on."""
    to.slow(SLOW)
    return asyncio.ensure_future(to.give(b"one", starved=True))


async def drained(to: Destination) -> None:
    with contextlib.suppress(NSQError):
        await to.sink.drain("events")


@virtual
class TestFinishing:
    """``Checked`` raises for a finished message that has not arrived, and for one settled twice."""

    async def test_messages_arrive_and_are_finished(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", b"two", starved=True)
            await elapse(0.01)
            assert sorted(to.settled.finished) == sorted(to.arrived()) == [b"one", b"two"]
            assert (to.unsettled, to.settled.requeued, to.settled.touched) == ([], [], [])

    async def test_any_bytes_arrive_as_they_are(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(*BODIES)
            await nap(to)
            await drained(to)
            assert sorted(to.arrived()) == sorted(BODIES)
            assert sorted(to.settled.finished) == sorted(BODIES)

    async def test_without_more_messages_a_batch_is_settled_soon(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one")
            await nap(to)
            assert to.settled.finished == [b"one"]

    async def test_flush_settles_what_is_held(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one")
            to.sink.flush()
            await elapse(0.01)
            assert to.settled.finished == [b"one"]

    async def test_many_batches_of_several_connections(self, kind: Kind, tmp_path: Path) -> None:
        sent = [b"%d" % number for number in range(120)]
        async with opened(kind, tmp_path) as to:
            await asyncio.gather(*(to.give(*sent[n : n + 3]) for n in range(0, len(sent), 3)))
            await nap(to)
            await drained(to)
            assert sorted(to.settled.finished) == sorted(to.arrived()) == sorted(sent)

    async def test_a_slow_destination_delays_the_finish(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            giving = give_slowly(to)
            await elapse(SLOW - 1)
            assert to.settled.finished == []
            to.slow(0)
            await elapse(SLOW + 1)
            await giving
            assert to.settled.finished == [b"one"]

    async def test_a_batch_that_is_not_settled_yet_is_held(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        """Else it would be finished when ``handle`` returns."""
        async with opened(kind, tmp_path) as to:
            giving = give_slowly(to)
            await elapse(1)
            (made,) = to.given
            waiting = [part for part in made.parts if part.unsettled()]
            assert waiting
            assert all(part.held for part in waiting) or not giving.done()
            to.slow(0)
            await elapse(2 * SLOW)
            await giving

    async def test_a_topic_is_joined_again_after_its_drain(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", starved=True)
            await elapse(0.01)
            await to.sink.drain("events")
            await to.sink.join("events")
            made = await to.give(b"two", starved=True)
            await nap(to)
            await drained(to)
            assert made.is_settled

    @ordering
    async def test_messages_of_a_connection_arrive_in_order(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        sent = [b"%d" % number for number in range(100)]
        async with opened(kind, tmp_path) as to:
            for number in range(0, len(sent), 10):
                await to.give(*sent[number : number + 10])
            await nap(to)
            await drained(to)
            assert list(to.arrived()) == sent

    async def test_a_large_batch(self, kind: Kind, tmp_path: Path) -> None:
        sent = [b"%d" % number for number in range(5000)]
        async with opened(kind, tmp_path) as to:
            await to.give(*sent, starved=True)
            await nap(to)
            await drained(to)
            assert len(to.settled.finished) == len(to.arrived()) == len(sent)

    @of_topics
    async def test_the_drain_of_a_topic_leaves_the_others(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.sink.join("other")
            await to.give(b"one")
            await to.give(b"two", topic="other")
            await to.sink.drain("events")
            await to.give(b"three", topic="other", starved=True)
            await nap(to)
            await to.sink.drain("other")
            back = [body for body, *_ in to.settled.requeued]
            assert sorted([*to.settled.finished, *back]) == [b"one", b"three", b"two"]
            assert {b"two", b"three"} <= {*to.settled.finished}

    async def test_a_settled_batch_is_not_kept(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            fates = Settled()
            await to.give(b"one", starved=True, settled=fates)
            await nap(to)
            await to.give(b"two", starved=True)
            await nap(to)
            known = weakref.ref(fates)
            del fates
            to.given.clear()
            await elapse(1)
            gc.collect()
            assert known() is None


@virtual
class TestFailing:
    async def test_what_cannot_be_written_is_not_finished(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", b"two", starved=True)
            await nap(to)
            assert to.settled.finished == []
            assert sorted([*to.unsettled, *(each[0] for each in to.settled.requeued)]) == [
                b"one",
                b"two",
            ]

    @recovering
    async def test_it_is_requeued_with_backoff(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True)
            await nap(to)
            assert [(body, backoff) for body, _, backoff in to.settled.requeued] == [(b"one", True)]
            assert not to.sink.ended or not to.sink.ended.done()

    @recovering
    async def test_delivered_again_it_arrives_once_the_destination_works(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True)
            await nap(to)
            to.refuse(False)
            await elapse(60)
            await to.give(b"one", starved=True)
            await elapse(SLOW)
            assert to.settled.finished == [b"one"]

    @ending
    async def test_or_the_run_ends_with_an_error(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True)
            await nap(to)
            assert to.sink.ended
            assert isinstance(to.sink.ended.exception(), NSQError)

    @ending
    async def test_after_which_nothing_is_finished(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True)
            await nap(to)
            await to.give(b"two", starved=True)
            await nap(to)
            await drained(to)
            assert to.settled.finished == []

    async def test_after_a_failure_a_drain_leaves_nothing_with_the_sink(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        """What a sink still holds then is put back by its consumer."""
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True)
            await nap(to)
            await drained(to)
            await to.close()
            assert to.settled.finished == []

    async def test_messages_that_came_before_the_failure_stay_finished(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", starved=True)
            await elapse(0.01)
            to.refuse(True)
            await to.give(b"two", starved=True)
            await nap(to)
            assert to.settled.finished == [b"one"]

    async def test_a_failure_takes_a_few_lines_of_the_log(
        self, kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            for _ in range(20):
                await asyncio.gather(*(to.give(b"%d" % n, starved=True) for n in range(5)))
                await elapse(0.1)
            await nap(to)
        assert len(caplog.messages) < 10

    @rejecting
    async def test_one_rejected_message_stops_no_other(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", b"bad", b"two", starved=True)
            await elapse(SLOW)
            finished = {*to.settled.finished} - {b"bad"}
            assert finished == {b"one", b"two"} == {*to.arrived()}
            assert b"bad" in [*to.letters.bodies, *(each[0] for each in to.settled.requeued)]


@virtual
class TestGivingUp:
    @burying
    async def test_a_dead_letter_is_there_before_the_finish(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give_up(b"dead")
            await elapse(0.01)
            assert to.settled.finished == to.letters.bodies == [b"dead"]
            assert to.sink.lost == 0

    @burying
    async def test_one_that_cannot_be_written_is_requeued(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.letters.error = OutputError("the disk is full")
            await to.give_up(b"dead")
            await elapse(0.01)
            assert to.settled.finished == []
            assert [each[0] for each in to.settled.requeued] == [b"dead"]

    @burying
    async def test_without_a_place_for_it_the_loss_is_counted(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            to.letters.is_lossy = True
            await to.give_up(b"dead")
            await elapse(0.01)
            assert to.settled.finished == [b"dead"]
            assert to.sink.lost == 1


@virtual
class TestLostBatches:
    """nsqd delivers a batch again: its connection has ended, or it was held for too long."""

    async def test_nothing_is_sent_for_one_lost_before_it_was_written(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", starved=True, is_lost=True)
            await nap(to)
            await drained(to)
            assert (to.settled.finished, to.settled.requeued) == ([], [])

    async def test_nor_for_one_lost_meanwhile(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            giving = give_slowly(to)
            await elapse(1)
            for part in to.given[0].parts:
                part.deadline = LOST
            to.slow(0)
            await elapse(2 * SLOW)
            await giving
            assert (to.settled.finished, to.settled.requeued) == ([], [])

    async def test_nor_for_one_that_cannot_be_written(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            to.refuse(True)
            await to.give(b"one", starved=True, is_lost=True)
            await nap(to)
            await drained(to)
            assert (to.settled.finished, to.settled.requeued) == ([], [])

    async def test_other_batches_are_as_usual(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await asyncio.gather(
                to.give(b"gone", is_lost=True), to.give(b"one"), to.give(b"two", starved=True)
            )
            await nap(to)
            await drained(to)
            assert sorted(to.settled.finished) == [b"one", b"two"]


@virtual
class TestEnding:
    async def test_a_drain_settles_all(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.give(b"one")
            await to.give(b"two")
            await to.sink.drain("events")
            assert to.unsettled == []
            back = [body for body, *_ in to.settled.requeued]
            assert sorted([*to.settled.finished, *back]) == [b"one", b"two"]

    async def test_a_drain_waits_for_what_is_under_way(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            giving = give_slowly(to)
            await elapse(0.1)
            await asyncio.gather(to.sink.drain("events"), giving)
            if to.unsettled:
                await nap(to)
            assert to.settled.finished == [b"one"]

    async def test_what_a_drain_gives_back_comes_at_once_and_is_no_failure(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        async with opened(kind, tmp_path) as to:
            to.slow(SLOW)
            giving = [asyncio.ensure_future(to.give(b"%d" % n)) for n in range(30)]
            await elapse(0.1)
            await asyncio.gather(to.sink.drain("events"), *giving)
            await elapse(2 * SLOW)
            assert {(delay, backoff) for _, delay, backoff in to.settled.requeued} <= {(0, False)}

    async def test_a_drain_without_messages(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            await to.sink.drain("events")
            await to.sink.drain("never joined")

    async def test_closed_at_once_finishes_nothing_more(self, kind: Kind, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as to:
            giving = give_slowly(to)
            await elapse(0.1)
            giving.cancel()
            await asyncio.wait([giving])
            await to.close(at_once=True)
            before = list(to.settled.finished)
            await elapse(3 * SLOW)
            assert to.settled.finished == before

    async def test_nothing_is_left_after_the_close(self, kind: Kind, tmp_path: Path) -> None:
        tasks, before = asyncio.all_tasks(), descriptors()
        async with opened(kind, tmp_path) as to:
            await to.give(b"one", starved=True)
            await nap(to)
            await drained(to)
            await to.close()
            gc.collect()
        assert asyncio.all_tasks() == tasks
        assert descriptors() == before

    async def test_opened_and_closed(self, kind: Kind, tmp_path: Path) -> None:
        tasks, before = asyncio.all_tasks(), descriptors()
        async with opened(kind, tmp_path) as to:
            await to.close()
            assert list(to.arrived()) == []
        assert asyncio.all_tasks() == tasks
        assert descriptors() == before

    async def test_closed_without_an_open(self, kind: Kind, tmp_path: Path) -> None:
        tasks = asyncio.all_tasks()
        to = kind(tmp_path)
        await to.close(at_once=True)
        to.release()
        assert asyncio.all_tasks() == tasks


async def ended(to: Destination, work: Coroutine[Any, Any, Any]) -> None:
    """Close the sink after the work, as a Runner does."""
    is_over = False
    try:
        await work
        is_over = True
    finally:
        await to.close(at_once=not is_over)


def cancel_each(
    kind: Kind, folder: Path, work: Callable[[Destination], Coroutine[Any, Any, Any]]
) -> int:
    """Cancel the work at each of its awaits; what follows is as usual. Returns their number."""

    async def once(point: int) -> bool:
        async with undisturbed():
            to = kind(folder / str(point))
            (folder / str(point)).mkdir()
            found = await cancelled_at(point, ended(to, work(to)))
            await elapse(3 * SLOW)
            to.release()
        return found

    point = 1
    while run_virtual(once(point)):
        point += 1
    return point - 1


class TestCancelled:
    def test_anywhere_in_its_life(self, kind: Kind, tmp_path: Path) -> None:
        async def live(to: Destination) -> None:
            await to.sink.open()
            await to.sink.join("events")
            await to.give(b"one", starved=True)
            await to.give(b"two")
            await elapse(0.1)
            await to.sink.drain("events")

        assert cancel_each(kind, tmp_path, live) > 0

    def test_anywhere_with_a_slow_destination(self, kind: Kind, tmp_path: Path) -> None:
        async def live(to: Destination) -> None:
            await to.sink.open()
            await to.sink.join("events")
            to.slow(SLOW)
            async with asyncio.TaskGroup() as group:
                group.create_task(to.give(b"one", starved=True))
                await elapse(0.1)
                await to.sink.drain("events")

        assert cancel_each(kind, tmp_path, live) > 0
