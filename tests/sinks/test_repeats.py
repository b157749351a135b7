"""What repeats in the log is a count."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from nsqtools.sinks import repeats
from nsqtools.sinks.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR = logging.ERROR


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(repeats, "monotonic", made)
    return made


@pytest.fixture
def told(clock: Clock) -> Repeats:
    return Repeats(logging.getLogger("nsqtools.test"))


@pytest.fixture
def counts(caplog: pytest.LogCaptureFixture) -> Callable[[], list[int]]:
    """Of messages, by line."""
    return lambda: [int(text.split()[2]) for text in caplog.messages]


def test_the_same_is_logged_once_a_minute_with_all_that_came_meanwhile(
    clock: Clock, told: Repeats, counts: Callable[[], list[int]]
) -> None:
    for _ in range(600):
        told.tell(ERROR, "t", 2, "go back")
        clock.now += 0.2
    told.tell(ERROR, "t", 1, "go back")
    told.close()
    assert len(counts()) in (3, 4)
    assert counts()[0] == 2
    assert sum(counts()) == 1201


def test_reasons_without_end_take_no_memory_without_end_and_lose_no_count(
    told: Repeats, counts: Callable[[], list[int]]
) -> None:
    for number in range(2000):
        for _ in range(2):
            told.tell(ERROR, "t", 1, f"go back: {number}")
        assert len(told._known) <= 1000
    told.close()
    assert sum(counts()) == 4000
