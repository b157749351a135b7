"""Which messages a trim finishes, and when it ends."""

import pytest

from nsqtools.policy.trim import Marks, Trim
from nsqtools.proto.messages import Message

CUTOFF, EARLIEST, LATEST = 1000, 2000, 2010
MARKS = Marks(CUTOFF, EARLIEST, LATEST)


def old(number: int) -> Message:
    return younger(number, CUTOFF - 1)


def younger(number: int, timestamp: int = CUTOFF) -> Message:
    return Message(b"%016x" % number, b"", timestamp, 1)


def trim(expected: int, max_younger: int = 100) -> Trim:
    return Trim(
        {"a": MARKS, "b": MARKS, "later": Marks(*(time + 500 for time in MARKS))},
        expected=expected,
        patience=3.0,
        max_younger=max_younger,
        now=0.0,
    )


def test_messages_are_sorted_by_age_and_the_trim_ends_when_it_has_seen_all() -> None:
    made = trim(expected=3)
    messages = [old(1), younger(2), old(3)]
    assert made.sort("a", messages[:2], now=0.0) == ([messages[0]], [messages[1]])
    assert (made.unseen, made.is_done(0.0)) == (1, False)
    assert made.sort("a", messages[2:], now=0.0) == ([messages[2]], ())
    assert (made.unseen, made.is_done(0.0), made.younger) == (0, True, {"a": 1})


def test_a_younger_message_counts_once_however_often_it_comes() -> None:
    made = trim(expected=3)
    for _ in range(5):
        made.sort("a", [younger(1)], now=0.0)
    made.sort("b", [younger(1)], now=0.0)  # another message: each nsqd has its own ids
    assert (made.unseen, made.younger) == (1, {"a": 1, "b": 1})


def test_what_is_published_meanwhile_is_not_what_was_in_the_channel() -> None:
    made = trim(expected=2)
    made.sort("a", [younger(1, LATEST + 1), younger(2, EARLIEST)], now=0.0)
    assert (made.unseen, made.is_done(0.0)) == (1, False)


def test_what_was_published_as_it_began_does_not_end_it_and_is_not_missed() -> None:
    made = trim(expected=2)
    made.sort("a", [younger(1, LATEST), younger(2, EARLIEST)], now=0.0)
    assert (made.unseen, made.is_done(2.9), made.is_done(3.0)) == (0, False, True)


def test_each_nsqd_has_its_own_clock() -> None:
    made = trim(expected=9)
    messages = [younger(1), younger(2, CUTOFF + 500)]
    assert made.sort("later", messages, now=0.0) == ([messages[0]], [messages[1]])


def test_an_old_message_that_was_returned_is_seen_when_it_comes_again() -> None:
    made = trim(expected=1)
    made.sort("a", [old(1)], now=0.0)
    made.settled(1, now=0.0)
    assert (made.unseen, made.is_done(0.0)) == (1, False)
    made.sort("a", [old(1)], now=0.0)
    made.settled(0, now=0.0)
    assert made.is_done(0.0)


def test_it_waits_no_longer_than_its_patience_for_what_others_took() -> None:
    made = trim(expected=9)
    made.sort("a", [younger(1)], now=2.0)
    for now in (2.5, 4.9):
        made.sort("a", [younger(1), younger(2, LATEST + 1)], now=now)  # nothing that counts
        assert not made.is_done(now)
    assert made.is_done(5.0)
    made.settled(0, now=5.0)
    assert not made.is_done(7.9)


@pytest.mark.parametrize("number", [4, 5])
def test_it_gives_up_after_too_many_younger_messages_in_a_row(number: int) -> None:
    made = trim(expected=99, max_younger=5)
    made.sort("a", [younger(n) for n in range(4)], now=0.0)
    assert not made.is_flooded
    made.sort("a", [old(99)], now=0.0)
    made.sort("a", [younger(n) for n in range(10, 10 + number)], now=0.0)
    made.sort("a", [younger(10)], now=0.0)
    assert (made.is_flooded, made.is_done(0.0)) == (number == 5, number == 5)
