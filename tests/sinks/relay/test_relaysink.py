"""The sink of relay: what it publishes, when it settles, and what it never does."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from nsqtools.config.relay import RelayOptions
from nsqtools.engine.handler import Batch
from nsqtools.errors import AuthError, NSQError, OutputError, PublishError, ServerError
from nsqtools.policy.pace import Pace
from nsqtools.sinks.relay.filter import Filter, make_filter
from nsqtools.sinks.relay.relaysink import RelaySink
from nsqtools.sinks.threads import Threads
from tests.support.archiving import Settled, batch
from tests.support.clock import elapse, turns, virtual
from tests.support.delivering import Letters
from tests.support.eventually import eventually_async
from tests.support.scripted import undisturbed
from tests.support.sinking import InLoop

TOO_BIG = ServerError("E_BAD_MESSAGE MPUB message too big")


class Destination:
    """In place of a Producer: ``publish`` returns once ``answers`` is set, or raises ``errors``."""

    def __init__(self) -> None:
        self.published: list[tuple[str, list[bytes]]] = []
        self.defers: list[float | None] = []
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.cancelled = 0
        self.is_connected = True

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def publish(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None
    ) -> None:
        self.published.append((topic, list(bodies)))
        self.defers.append(defer)
        self.times.append(asyncio.get_running_loop().time())
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.errors:
            raise self.errors.pop(0)

    @property
    def bodies(self) -> list[list[bytes]]:
        return [bodies for _, bodies in self.published]


class Relaying:
    """An open sink for topics ``t`` and ``u``, which go to ``T`` and ``U``."""

    def __init__(self, *, rules: Filter | None = None, lossy: bool = False, **more: Any) -> None:
        self.destination = Destination()
        self.letters = Letters()
        self.letters.is_lossy = lossy
        self.fates = Settled()
        self.sink = RelaySink(
            self.destination,  # type: ignore[arg-type]
            {"t": "T", "u": "U"},
            rules or Filter(),
            self.letters,
            **{"threads": InLoop(), **more},
        )

    async def handle(self, *bodies: bytes, topic: str = "t", **more: Any) -> Batch:
        made = batch(*bodies, settled=self.fates, topic=topic, **more)
        await self.sink.handle(made)
        return made

    async def gave_up(self, *bodies: bytes) -> Batch:
        made = batch(*bodies, settled=self.fates, topic="t")
        await self.sink.gave_up(made)
        return made

    async def drain(self) -> None:
        for topic in ("t", "u"):
            await self.sink.drain(topic)
            await self.sink.join(topic)


@contextlib.asynccontextmanager
async def relaying(**more: Any) -> AsyncIterator[Relaying]:
    """``more`` is that of Relaying."""
    async with undisturbed():
        made = Relaying(**more)
        await made.sink.open()
        for topic in ("t", "u"):
            await made.sink.join(topic)
        try:
            yield made
        finally:
            await made.sink.close()


def numbers(*span: int) -> list[bytes]:
    return [b"%d" % number for number in range(*span)]


def refused(*positions: int, permanent: bool = False, cause: Exception | None = None) -> NSQError:
    error = PublishError("refused", positions, permanent=permanent)
    error.__cause__ = cause
    return error


async def test_a_rule_that_takes_long_holds_up_its_topic_but_not_the_loop() -> None:
    entered, gate = threading.Event(), threading.Event()

    def where(_: str) -> bool:
        entered.set()
        return gate.wait(60)

    async with relaying(rules=Filter(where=where), threads=Threads(1, "rules")) as run:
        await run.handle(b"1")
        await eventually_async(entered.is_set)
        assert run.fates.finished == []
        gate.set()
        await eventually_async(lambda: run.fates.finished == [b"1"])


@virtual
class TestPublishing:
    async def test_a_batch_is_one_publish_to_its_destination_and_finished_after_its_answer(
        self,
    ) -> None:
        async with relaying(defer=1.5) as run:
            run.destination.answers.clear()
            batch = await run.handle(b"1", b"2", b"3")
            await run.handle(b"lost", is_lost=True)
            await run.handle(b"4", topic="u")
            await turns()
            assert run.destination.published == [("T", [b"1", b"2", b"3"]), ("U", [b"4"])]
            assert run.destination.defers == [1.5, 1.5]
            assert batch.held
            assert run.fates.finished == []
            run.destination.answers.set()
            await turns()
            assert run.fates.finished == [b"1", b"2", b"3", b"4"]

    async def test_what_comes_while_publishes_are_under_way_shares_the_next_one(self) -> None:
        async with relaying() as run:
            run.destination.answers.clear()
            for body in numbers(20):
                await run.handle(body)
            await turns()
            assert len(run.destination.bodies) == 4
            run.destination.answers.set()
            await run.drain()
            assert run.destination.bodies[4:] == [numbers(4, 20)]
            assert sorted(run.fates.finished) == sorted(numbers(20))

    async def test_a_shared_publish_is_settled_message_by_message(self) -> None:
        async with relaying() as run:
            run.destination.answers.clear()
            for body in numbers(4):
                await run.handle(b"first " + body)
            await run.handle(b"1", b"2")
            await run.handle(b"3", b"4", b"5")
            await turns()
            # The first task that is done publishes what waits, ahead of the other tasks.
            run.destination.errors += [refused(), refused(1, 2), *[refused()] * 3]
            run.destination.answers.set()
            await run.drain()
            shared = [body for body in run.fates.finished if not body.startswith(b"first")]
            assert shared == [b"1", b"4", b"5"]
            assert run.fates.requeued == [(b"2", None, True), (b"3", None, True)]
            counts = run.sink.counts["t"]
            assert (counts.received, counts.relayed, counts.requeued) == (9, 7, 2)

    async def test_filtered_messages_are_finished_and_the_others_edited(self) -> None:
        async with relaying(
            rules=make_filter(RelayOptions(require_json_field="a", whitelist_json_field=("a",)))
        ) as run:
            await run.handle(b'{"a":1,"b":2}', b'{"b":2}', b'{"a":3}')
            await run.handle(b'{"c":1}')
            await run.drain()
            assert run.destination.bodies == [[b'{"a":1}', b'{"a":3}']]
            finished = [b'{"a":1,"b":2}', b'{"a":3}', b'{"b":2}', b'{"c":1}']
            assert sorted(run.fates.finished) == finished
            counts = run.sink.counts["t"]
            assert (counts.received, counts.relayed, counts.filtered) == (4, 2, 2)
            told = {each.name: each.samples[0] for each in run.sink.metrics()}
            assert told["nsqtools_relay_filtered_total"] == ({"topic": "t", "destination": "T"}, 2)

    async def test_the_rate_is_kept_in_bursts_of_a_tenth_of_a_second(self) -> None:
        async with relaying(pace=Pace(100)) as run:
            await run.handle(*numbers(25))
            for first in range(25, 49, 4):  # of which some wait, and are published together
                await run.handle(*numbers(first, first + 4))
            await elapse(10)
            sizes = [len(bodies) for bodies in run.destination.bodies]
            assert sizes == [10, 10, 4, 4, 4, 5, 10, 2]
            starts = [0, *itertools.accumulate(sizes[:-1])]
            assert run.destination.times == pytest.approx([each / 100 for each in starts])
            assert len(run.fates.finished) == 49

    async def test_after_a_failure_the_rest_goes_back_and_is_not_published(self) -> None:
        async with relaying(pace=Pace(100)) as run:
            run.destination.errors = [NSQError("no nsqd left")]
            await run.handle(*numbers(25))
            await elapse(10)
            assert run.destination.bodies == [numbers(10)]
            assert [body for body, _, _ in run.fates.requeued] == numbers(25)


@virtual
class TestDeadLetters:
    async def test_what_is_not_json_is_one_and_told_of_as_a_count(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with relaying(rules=make_filter(RelayOptions(whitelist_json_field=("a",)))) as run:
            run.letters.takes = 5.0
            await run.handle(b"not json", b'{"a":1}', b"[1]")
            await elapse(4)
            assert run.fates.finished == []
            await run.drain()
            assert run.letters.written == [(b"not json", "not JSON"), (b"[1]", "not a JSON object")]
            assert run.destination.bodies == [[b'{"a":1}']]
            assert sorted(run.fates.finished) == [b"[1]", b"not json", b'{"a":1}']
            assert run.sink.counts["t"].dead_lettered == 2
            assert run.sink.left_behind == 0
            run.letters.takes = 0.0
            for _ in range(3):
                await run.handle(b"x", b"y")
                await turns()
        # Once for each reason at once, and the others together, which is at the end here.
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert [text.split()[2] for text in warnings] == ["1", "1", "6"]

    async def test_without_a_place_for_them_what_is_not_json_goes_back(self) -> None:
        async with relaying(
            rules=make_filter(RelayOptions(whitelist_json_field=("a",))), lossy=True
        ) as run:
            await run.handle(b"not json", b'{"a":1}')
            await run.drain()
            assert run.letters.written == []
            assert run.fates.finished == [b'{"a":1}']
            assert run.fates.requeued == [(b"not json", None, False)]
            assert run.sink.left_behind == 1

    @pytest.mark.parametrize(
        ("error", "letters"),
        [
            (refused(1, permanent=True), [b"huge"]),
            (refused(1, permanent=True, cause=TOO_BIG), [b"huge"]),
            (refused(1, permanent=True, cause=AuthError("E_UNAUTHORIZED")), []),
            (refused(1), []),
        ],
    )
    async def test_a_body_that_no_nsqd_takes_is_one_alone_and_what_is_no_fault_of_it_goes_back(
        self, error: NSQError, letters: list[bytes], caplog: pytest.LogCaptureFixture
    ) -> None:
        async with relaying() as run:
            run.destination.errors.append(error)
            await run.handle(b"1", b"huge", b"3")
            await run.drain()
            assert run.letters.written == [(body, "refused") for body in letters]
            assert sorted(run.fates.finished) == [b"1", b"3", *letters]
            assert run.fates.requeued == ([] if letters else [(b"huge", None, True)])
            assert run.sink.left_behind == 0
        assert ("requeued, not published" in caplog.text) is not bool(letters)

    @pytest.mark.parametrize(
        ("error", "backoff"), [(OSError(), True), (refused(0, permanent=True), False)]
    )
    async def test_one_that_cannot_be_written_goes_back(
        self, error: Exception, backoff: bool
    ) -> None:
        async with relaying(rules=make_filter(RelayOptions(whitelist_json_field=("a",)))) as run:
            run.letters.error = OutputError("no room")
            run.letters.error.__cause__ = error
            await run.handle(b"not json")
            await run.gave_up(b"{}")
            await run.drain()
            assert run.fates.finished == []
            back = [(b"not json", None, backoff), (b"{}", None, backoff)]
            assert sorted(run.fates.requeued) == back


@virtual
class TestEnding:
    @pytest.mark.parametrize("cut_off", [False, True])
    async def test_draining_waits_for_everything_unless_it_is_cut_off(self, cut_off: bool) -> None:
        async with relaying() as run:
            run.destination.answers.clear()
            for body in numbers(10):
                await run.handle(body)
            draining = asyncio.create_task(run.sink.drain("t"))
            await elapse(1)
            if cut_off:
                draining.cancel()
                await asyncio.wait([draining])
                assert run.destination.cancelled == 4
            else:
                await elapse(100)
            assert draining.done() == cut_off
            run.fates.touched.clear()
            run.destination.answers.set()
            await elapse(100)
            assert len(run.destination.published) == (4 if cut_off else 5)
            assert sorted(run.fates.finished) == ([] if cut_off else numbers(10))
            assert (run.fates.requeued, run.fates.touched) == ([], [])

    @pytest.mark.parametrize("bug", [RuntimeError("a bug"), asyncio.CancelledError("its own")])
    async def test_an_error_that_nobody_expects_stops_the_command_and_loses_nothing(
        self, bug: BaseException
    ) -> None:
        async with relaying() as run:
            run.destination.errors.append(bug)
            await run.handle(b"1", b"2")
            await turns()
            with pytest.raises(RuntimeError):
                run.sink.ended.result()
            assert run.fates.requeued == [(b"1", 0, False), (b"2", 0, False)]
