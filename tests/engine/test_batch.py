"""What a batch sends for what a sink decides."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.engine.handler import Batch, Message
from nsqtools.errors import ConfigError
from nsqtools.names import Address


class Ledger:
    """Records what a batch settles, as (command, numbers, details)."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.is_over = False

    def is_lost(self, deadline: float) -> bool:
        return self.is_over

    def finish(self, messages: Sequence[Message]) -> None:
        self.calls.append(("FIN", numbers(messages)))

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        self.calls.append(("REQ", numbers(messages), delay, backoff))

    def touch(self, messages: Sequence[Message]) -> None:
        self.calls.append(("TOUCH", numbers(messages)))

    def forget(self, messages: Sequence[Message]) -> None:
        self.calls.append(("forget", numbers(messages)))


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.id, 16) for message in messages]


def make(count: int, ledger: Ledger | None = None) -> tuple[Batch, list[tuple[Any, ...]]]:
    ledger = ledger or Ledger()
    messages = [Message(b"%016x" % n, b"body", 1, 1) for n in range(count)]
    return Batch(messages, ledger, topic="t", channel="c", source=Address("a", 1)), ledger.calls


def settled(calls: list[tuple[Any, ...]]) -> list[int]:
    return [n for call in calls if call[0] != "TOUCH" for n in call[1]]


def test_a_watcher_hears_how_many_are_safe_and_how_many_come_again() -> None:
    batch, _ = make(6, ledger := Ledger())
    heard: list[tuple[int, int]] = []
    batch.watch(lambda *counts: heard.append(counts))
    batch.touch()
    batch.finish(batch[:1])
    batch.requeue(batch[:3])
    ledger.is_over = True
    batch.forget(batch[3:4])
    batch.finish()
    batch.finish()
    assert heard == [(1, 0), (0, 2), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    "settle",
    [
        lambda batch: batch.finish(batch[0]),
        lambda batch: batch.touch(batch[0]),
        lambda batch: batch.requeue(delay=-1),
        lambda batch: batch.requeue(delay="x"),
    ],
)
def test_a_wrong_argument_settles_nothing(settle: Callable[[Batch], None]) -> None:
    batch, calls = make(2)
    with pytest.raises(ConfigError):
        settle(batch)
    assert not calls
    assert len(batch.unsettled()) == 2


def test_the_rest_is_what_was_not_settled_before() -> None:
    batch, calls = make(5)
    batch.finish([batch[1], batch[3]])
    batch.touch()
    batch.requeue([batch[0], batch[1]], delay=3.0, backoff=False)
    batch.requeue()
    assert calls == [
        ("FIN", [1, 3]),
        ("TOUCH", [0, 2, 4]),
        ("REQ", [0], 3.0, False),
        ("REQ", [2, 4], None, True),
    ]
    assert batch.is_settled
    for settle in (batch.finish, batch.requeue, batch.touch, batch.forget):
        settle()
    assert len(calls) == 4


def test_any_iterable_of_messages_will_do_and_what_is_named_twice_is_settled_once() -> None:
    batch, calls = make(4)
    batch.finish(message for message in batch if message.id.endswith(b"2"))
    batch.requeue({batch[1]})
    batch.forget([batch[0], batch[0]])
    batch.finish([])
    assert calls == [("FIN", [2]), ("REQ", [1], None, True), ("forget", [0])]
    assert numbers(batch.unsettled()) == [3]


def test_keeping_the_first_gives_the_others_back_at_once_and_without_backoff() -> None:
    batch, calls = make(5)
    batch.keep(5)
    assert calls == []
    batch.keep(2)
    assert calls == [("REQ", [2, 3, 4], 0, False)]
    assert repr(batch).endswith(": 2 messages, 2 unsettled>")
    assert numbers(batch) == [0, 1]
    batch.finish()
    assert calls[1:] == [("FIN", [0, 1])]


@given(st.integers(1, 8), st.data())
def test_every_delivery_is_settled_exactly_once_whatever_the_sink_does(
    count: int, data: st.DataObject
) -> None:
    batch, calls = make(count)
    some = st.none() | st.lists(st.sampled_from(list(batch)))
    for _ in range(data.draw(st.integers(0, 6))):
        chosen = data.draw(some)
        match data.draw(st.sampled_from(["finish", "requeue", "forget", "touch", "keep"])):
            case "keep":
                batch.keep(data.draw(st.integers(0, count)))
            case name:
                getattr(batch, name)(chosen)
        open_now = set(numbers(batch.unsettled()))
        assert open_now == set(range(count)) - set(settled(calls))
        assert batch.is_settled == (not open_now)
    batch.finish()
    assert sorted(settled(calls)) == list(range(count))


def test_two_deliveries_of_one_message_are_settled_each() -> None:
    ledger = Ledger()
    twice = [Message(b"%016x" % 7, b"body", 1, attempts) for attempts in (1, 2)]
    batch = Batch(twice, ledger, topic="t", channel="c", source=Address("a", 1))
    batch.finish([batch[0]])
    assert not batch.is_settled
    batch.finish([batch[1]])
    assert ledger.calls == [("FIN", [7]), ("FIN", [7])]


def test_a_part_is_settled_by_itself_and_what_was_settled_before_is_not_in_it() -> None:
    batch, calls = make(4)
    told: list[tuple[int, int]] = []
    batch.watch(lambda *counts: told.append(counts))
    batch.finish([batch[0]])
    part = batch.part(batch[:3])
    assert (numbers(part), numbers(batch.unsettled())) == ([1, 2], [3])
    batch.finish()
    assert (batch.is_settled, part.is_settled) == (True, False)
    batch.finish(part)
    assert sorted(settled(calls)) == [0, 3]
    part.requeue([part[0]], delay=0)
    part.finish()
    assert sorted(settled(calls)) == [0, 1, 2, 3]
    assert told == [(1, 0), (1, 0), (0, 1), (1, 0)]
