"""Dead letters of a topic: what is published and finished, what stays, and when the run ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.clock import ServerClock
from nsqtools.engine.handler import Message
from nsqtools.errors import NSQError, OutputError, PublishError
from nsqtools.names import Address
from nsqtools.policy.stopping import Left
from nsqtools.redrive.redriver import Choice, Redriver
from nsqtools.redrive.redrivesink import AWAY, RedriveSink, RunStart, SearchSink
from tests.support.archiving import SECOND, START, Settled, batch, message
from tests.support.clock import elapse, virtual
from tests.support.sinking import InLoop


class Channel:
    """The nsqd: its messages, and what it got; ``errors`` are raised by the next publishes."""

    def __init__(self) -> None:
        self.settled = Settled()
        self.got: list[list[bytes]] = []
        self.errors: list[NSQError] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.now = Left()
        self.clocks = {batch(b"").source: ServerClock(START, START)}
        self.holding: dict[Address, int] = {}

    async def left(self) -> Left:
        return self.now

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        self.got.append([topic.encode(), *bodies])
        await self.answers.wait()
        if self.errors:
            raise self.errors.pop(0)

    async def close(self) -> None:
        pass


YEAR = 366 * 86_400


@given(
    st.lists(st.tuples(st.integers(-YEAR, YEAR), st.floats(0, 7), st.floats(0, 1)), min_size=1),
    st.floats(0, 7),
    st.floats(0, 60),
    st.floats(0, 60),
)
def test_however_wrong_all_clocks_are_the_messages_of_a_run_are_newer_and_what_was_there_is_older(
    nsqds: list[tuple[int, float, float]], late: float, before: float, after: float
) -> None:
    """Each nsqd's clock leads by any time, and is known more or less exactly."""
    at = 100.0
    start = RunStart(at)
    leads = [START + lead * SECOND for lead, _, _ in nsqds]
    clocks = [
        ServerClock(lead - round(width * part * SECOND), lead + round(width * (1 - part) * SECOND))
        for lead, (_, width, part) in zip(leads, nsqds, strict=True)
    ]
    now = at + late
    first = now + start.delay(clocks, now)
    assert first <= max(now, at + max(width for _, width, _ in nsqds) + 1e-6)
    for is_published in (False, True):
        for lead, clock in zip(leads, clocks, strict=True):
            assert start.is_older(lead + round((at - before - 1e-6) * SECOND), clock)
            newer = lead + round((first + after + 1e-6) * SECOND)
            assert not start.is_older(newer, clock)
        start.publishes(first)
        assert start.delay(clocks, now) == 0 or not is_published
    wider = ServerClock(leads[0] - 60 * SECOND, leads[0] + 60 * SECOND)  # met after the first one
    assert not start.is_older(leads[0] + round((first + after + 1e-6) * SECOND), wider)


@contextlib.asynccontextmanager
async def redriving(channel: Channel, **more: Any) -> AsyncIterator[RedriveSink]:
    choice = Choice('type == "number"')
    sink = RedriveSink(Redriver(channel, **more), choice, "t", channel, start=RunStart(0.0))
    sink._threads = InLoop()
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


@virtual
async def test_the_chosen_are_finished_after_the_answer_and_others_stay() -> None:
    channel = Channel()
    channel.answers.clear()
    channel.now = Left(in_flight=4)
    async with redriving(channel) as sink:
        new = message(b"3", timestamp=START + 1, number=3)
        given = batch(b"1", b'"x"', new, message(b"no json", number=4), settled=channel.settled)
        await sink.handle(given)
        await elapse(5)
        assert (channel.got, channel.settled.finished) == ([[b"t", b"1"]], [])
        channel.answers.set()
        await elapse(0.1)
        assert (channel.settled.finished, sink.staying) == ([b"1"], 3)
        await elapse(1)
        assert not sink.ended.done()
        channel.now = Left(in_flight=3)
        await sink.ended
        assert channel.settled.requeued == []
        await sink.drain("events")
        back = [(body, 0, False) for body in (b'"x"', b"3", b"no json")]
        assert channel.settled.requeued == back


@virtual
async def test_messages_that_stay_are_deferred_if_nsqd_could_send_no_others() -> None:
    channel = Channel()
    channel.now = Left(waiting=9)
    async with redriving(channel) as sink:
        await sink.handle(batch(b"a", settled=channel.settled))
        parts = (message(b"1", number=2), message(b"b", number=3))
        last = batch(*parts, settled=channel.settled, starved=True)
        await sink.handle(last)
        await elapse(1)
        assert channel.settled.requeued == [(b"a", AWAY, False), (b"b", AWAY, False)]
        assert channel.settled.finished == [b"1"]
        await sink.handle(batch(message(b"c", number=4), settled=channel.settled))
        await elapse(5)  # with no further message
        assert channel.settled.requeued[2:] == [(b"c", AWAY, False)]


@virtual
async def test_a_message_that_comes_again_is_not_judged_again() -> None:
    channel = Channel()
    channel.now = Left(waiting=9)
    async with redriving(channel, dry=True) as sink:
        for _ in range(3):
            await sink.handle(batch(b"1", b'"x"', settled=channel.settled))
            await elapse(1)
        assert (sink.staying, sink._redriver.count, channel.got) == (2, 1, [])
        assert channel.settled.finished == []


@virtual
async def test_new_messages_that_keep_coming_do_not_keep_the_run_from_ending() -> None:
    channel = Channel()
    channel.now = Left(waiting=10**6)
    async with redriving(channel) as sink:
        await sink.handle(batch(b"1", settled=channel.settled))
        began = asyncio.get_running_loop().time()
        for number in range(2, 200):
            new = message(b"1", timestamp=START + 1, number=number)
            await sink.handle(batch(new, settled=channel.settled))
            await elapse(1)
            if sink.ended.done():
                break
        assert 75 <= asyncio.get_running_loop().time() - began < 80
    assert channel.settled.finished == [b"1"]


@virtual
async def test_what_is_refused_stays_and_the_limit_ends_the_run() -> None:
    channel = Channel()
    channel.now = Left(waiting=9)
    channel.errors = [PublishError("E_BAD_MESSAGE", [0], permanent=True)]
    async with redriving(channel, limit=2) as sink:
        await sink.handle(batch(b"1", b"2", b"3", b"4", settled=channel.settled))
        await sink.ended
        await sink.drain("events")
    assert channel.got == [[b"t", b"1", b"2"], [b"t", b"3"]]
    assert channel.settled.finished == [b"2", b"3"]
    assert channel.settled.requeued == [(b"1", 0, False), (b"4", 0, False)]
    assert sink.left_behind == 1


@virtual
async def test_at_a_stop_what_waits_for_the_rate_is_given_back() -> None:
    channel = Channel()
    channel.now = Left(waiting=9)
    async with redriving(channel, rate=1.0) as sink:
        await sink.handle(batch(b"1", b"2", b"3", settled=channel.settled))
        await elapse(1.5)
        await sink.drain("events")
    assert channel.settled.finished == [b"1", b"2"]
    assert channel.settled.requeued == [(b"3", 0, False)]


@virtual
async def test_no_answer_fails_the_run_and_so_does_an_unknown_depth() -> None:
    channel = Channel()
    channel.errors = [PublishError("no nsqd is connected", [0], permanent=False)]
    channel.now = Left(waiting=9)
    async with redriving(channel) as sink:
        await sink.handle(batch(b"1", b"2", settled=channel.settled))
        with pytest.raises(OutputError, match="no nsqd is connected"):
            await sink.ended
        await sink.drain("events")
    assert channel.settled.finished == [b"2"]
    assert channel.settled.requeued == [(b"1", 0, False)]
    channel.now = Left(unknown=("nsqd a: no answer",))
    async with redriving(channel) as sink:
        with pytest.raises(NSQError, match="unknown whether all messages have come: nsqd a"):
            await sink.ended


@virtual
async def test_messages_that_nsqd_has_taken_back_are_published_once() -> None:
    channel = Channel()
    channel.answers.clear()
    channel.now = Left(waiting=9)
    async with redriving(channel, rate=1.0) as sink:
        first = batch(b"1", b"2", b"3", settled=channel.settled)
        await sink.handle(first)
        await elapse(0.1)
        first.forget()  # after a refused TOUCH: 1 is being published, 2 and 3 wait for the rate
        await sink.handle(batch(b"1", b"2", b"3", settled=channel.settled))
        channel.answers.set()
        await elapse(5)
        await sink.handle(batch(b"1", settled=channel.settled))  # its FIN was lost
    assert channel.got == [[b"t", b"1"], [b"t", b"2"], [b"t", b"3"]]
    assert sorted(channel.settled.finished) == [b"1", b"1", b"2", b"3"]


class Sought:
    """Seeks messages with certain bodies."""

    def __init__(self, *bodies: bytes) -> None:
        self.missing = set(bodies)

    @property
    def sought(self) -> int:
        return len(self.missing)

    def bodies(self, source: Address, messages: Sequence[Message]) -> list[bytes | None]:
        return [each.body if each.body in self.missing else None for each in messages]

    def settled(self, source: Address, message: Message, refusal: str) -> None:
        self.missing.discard(message.body)


@contextlib.asynccontextmanager
async def searching(
    channel: Channel, *bodies: bytes, expected: int
) -> AsyncIterator[tuple[SearchSink, list[int]]]:
    """A search, and the number of messages given back whenever it lets no more come."""
    seeker, redriver = Sought(*bodies), Redriver(channel, rate=1.0, limit=len(bodies))
    sink = SearchSink(redriver, seeker, "t", channel, expected=expected)
    given_back: list[int] = []
    sink.receive_none = lambda: given_back.append(len(channel.settled.requeued))
    sink._threads = InLoop()
    await sink.open()
    try:
        yield sink, given_back
    finally:
        await sink.close()


@virtual
async def test_a_search_ends_with_the_last_message_sought_and_gives_others_back_at_once() -> None:
    channel = Channel()
    channel.now = Left(waiting=10**6)
    async with searching(channel, b"1", b"2", expected=10**6) as (sink, given_back):
        await sink.handle(batch(b"a", b"1", settled=channel.settled, starved=True))
        await elapse(2)
        assert (channel.settled.finished, channel.settled.requeued) == ([b"1"], [])
        parts = message(b"2", number=3), message(b"b", number=4)
        await sink.handle(batch(*parts, settled=channel.settled))
        await sink.handle(batch(message(b"c", number=5), settled=channel.settled))
        assert given_back == [0]  # no more come before others are given back
        assert channel.settled.requeued == [(each, 0, False) for each in (b"a", b"b", b"c")]
        await sink.ended
        await sink.drain("events")
    assert channel.settled.finished == [b"1", b"2"]
    assert len(channel.settled.requeued) == 3


@pytest.mark.parametrize("more", [0, 1])
@virtual
async def test_a_search_in_vain_passes_the_channel_once_and_defers_nothing(more: int) -> None:
    channel = Channel()
    channel.now = Left(waiting=10**6)
    async with searching(channel, b"gone", expected=3 + more) as (sink, given_back):
        began = asyncio.get_running_loop().time()
        parts = [message(body, number=n) for n, body in enumerate((b"a", b"b", b"c"))]
        await sink.handle(batch(parts[0], settled=channel.settled, starved=True))
        await sink.handle(batch(*parts, settled=channel.settled, starved=True))
        await sink.ended
        assert (sink.is_complete, sink.searched) == (not more, 3)
        assert asyncio.get_running_loop().time() - began < 5
        await sink.drain("events")
    assert (given_back, channel.got) == ([0], [])
    assert [each for _, *each in channel.settled.requeued] == [[0, False]] * 4  # one came twice


@virtual
@pytest.mark.parametrize("lead", [-YEAR, -120, 120, YEAR])
async def test_a_message_is_as_old_as_the_clock_of_its_nsqd_says(lead: int) -> None:
    channel = Channel()
    channel.now = Left(in_flight=1)
    theirs = START + lead * SECOND
    channel.clocks = dict.fromkeys(channel.clocks, ServerClock(theirs, theirs + SECOND))
    async with redriving(channel) as sink:
        old, back = message(b"1", timestamp=theirs), message(b"2", timestamp=theirs, number=2)
        await sink.handle(batch(old, settled=channel.settled))
        await elapse(0.9)
        assert channel.got == []  # the start may be up to a second later
        await elapse(0.2)
        assert channel.got == [[b"t", b"1"]]
        back.timestamp += round(1.05 * SECOND)
        await sink.handle(batch(back, settled=channel.settled))
        await sink.ended
    assert (channel.settled.finished, sink.staying, sink.misdated) == ([b"1"], 1, set())


@virtual
async def test_without_the_clock_of_its_nsqd_no_message_is_published() -> None:
    channel = Channel()
    channel.now = Left(waiting=1)
    clocks, channel.clocks = channel.clocks, {}
    for _ in range(2):
        async with redriving(channel) as sink:
            await sink.handle(batch(b"1", settled=channel.settled))
            with pytest.raises(NSQError, match="4150: its clock is unknown"):
                await sink.ended
    async with redriving(channel) as sink:
        await sink.handle(batch(b"1", settled=channel.settled))
        channel.clocks = clocks
        await sink.handle(batch(b"1", settled=channel.settled))
        await elapse(1)
    assert channel.settled.requeued == [(b"1", 1.0, False)] * 3
    assert channel.settled.finished == [b"1"]


@virtual
async def test_a_message_from_the_future_stays_and_is_told() -> None:
    """The clock of its nsqd was set back since."""
    channel = Channel()
    channel.now = Left(in_flight=2)
    async with redriving(channel) as sink:
        await elapse(10)
        future = message(b"1", timestamp=START + 60 * SECOND)
        newer = message(b"2", timestamp=START + 5 * SECOND, number=2)
        await sink.handle(batch(future, newer, settled=channel.settled))
        await sink.ended
    assert {identity for _, identity in sink.misdated} == {future.id}
    assert channel.got == []


@virtual
async def test_a_silent_nsqd_is_waited_for_while_others_send_newer_messages() -> None:
    channel = Channel()
    channel.now = Left(waiting=2, in_flight=1)
    away = Address("127.0.0.2", 4150)
    channel.holding = {away: 1}
    async with redriving(channel) as sink:
        newer = message(b"2", timestamp=START + 5 * SECOND)
        for _ in range(200):
            await sink.handle(batch(newer, settled=channel.settled))
            await elapse(1)
        assert not sink.ended.done()
        channel.holding[away] = 0
        await sink.handle(batch(newer, settled=channel.settled))
        await sink.ended
