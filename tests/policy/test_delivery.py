"""Requeue delays and messages that are given up."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.delivery import requeue_delay, split_given_up


@dataclass(frozen=True)
class Delivery:
    attempts: int


def test_the_requeue_delay_grows_with_the_attempts_up_to_the_limit() -> None:
    delays = [requeue_delay(n, default_delay=90.0, max_delay=900.0) for n in (1, 2, 10, 11)]
    assert delays == [90.0, 180.0, 900.0, 900.0]
    assert requeue_delay(1, default_delay=90.0, max_delay=10.0) == 10.0


@given(st.lists(st.builds(Delivery, st.integers(1, 9))), st.integers(0, 9))
def test_every_message_is_in_one_part_and_order_is_kept(
    messages: list[Delivery], limit: int
) -> None:
    handled, given_up = split_given_up(messages, limit)
    over = [bool(limit) and message.attempts > limit for message in messages]
    assert handled == [m for m, is_over in zip(messages, over, strict=True) if not is_over]
    assert given_up == [m for m, is_over in zip(messages, over, strict=True) if is_over]
    assert handled is messages or any(over)
