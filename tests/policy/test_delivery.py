"""Requeue delays and messages that are given up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.policy.delivery import requeue_delay, split_given_up


@dataclass(frozen=True)
class Delivery:
    attempts: int


@pytest.mark.parametrize(
    ("attempts", "delay"), [(1, 90.0), (2, 180.0), (5, 450.0), (10, 900.0), (11, 900.0)]
)
def test_the_requeue_delay_grows_with_the_attempts_up_to_the_limit(
    attempts: int, delay: float
) -> None:
    assert requeue_delay(attempts, default_delay=90.0, max_delay=900.0) == delay


def test_a_limit_below_the_first_delay_holds_too() -> None:
    assert requeue_delay(1, default_delay=90.0, max_delay=10.0) == 10.0
    assert requeue_delay(3, default_delay=0.0, max_delay=10.0) == 0.0


def test_the_handler_sees_exactly_max_attempts_deliveries_of_a_message() -> None:
    deliveries = [Delivery(attempts) for attempts in range(1, 8)]
    handled, given_up = split_given_up(deliveries, 5)
    assert [message.attempts for message in handled] == [1, 2, 3, 4, 5]
    assert [message.attempts for message in given_up] == [6, 7]


@settings(deadline=None)
@given(st.lists(st.builds(Delivery, st.integers(1, 9))), st.integers(0, 9))
def test_every_message_is_in_one_part_and_order_is_kept(
    messages: list[Delivery], limit: int
) -> None:
    handled, given_up = split_given_up(messages, limit)
    over = [bool(limit) and message.attempts > limit for message in messages]
    assert handled == [m for m, is_over in zip(messages, over, strict=True) if not is_over]
    assert given_up == [m for m, is_over in zip(messages, over, strict=True) if is_over]
    assert handled is messages or any(over)
