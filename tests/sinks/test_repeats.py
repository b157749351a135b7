"""What repeats in the log is a count."""

from __future__ import annotations

import logging

import pytest

from nsqtools.sinks import repeats
from nsqtools.sinks.repeats import Repeats

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


def test_the_same_is_logged_once_a_minute_with_all_that_came_meanwhile(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Repeats(logging.getLogger("nsqtools.test"))
    for _ in range(600):
        told.tell(ERROR, "t", 2, "go back")
        clock.now += 0.2
    told.tell(ERROR, "t", 1, "go back")
    told.close()
    counts = [int(message.split()[2]) for message in caplog.messages]
    assert len(counts) in (3, 4)
    assert counts[0] == 2
    assert sum(counts) == 1201


def test_other_topics_levels_and_fates_are_other_lines(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Repeats(logging.getLogger("nsqtools.test"))
    for level, topic, fate in (
        (ERROR, "a", "x"),
        (ERROR, "b", "x"),
        (ERROR, "a", "y"),
        (30, "a", "x"),
    ):
        told.tell(level, topic, 1, fate)
    assert len(caplog.messages) == 4
    told.close()
    assert len(caplog.messages) == 4


def test_reasons_without_end_take_no_memory_without_end_and_lose_no_count(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Repeats(logging.getLogger("nsqtools.test"))
    for number in range(5000):
        told.tell(ERROR, "t", 1, f"go back: {number}")
        told.tell(ERROR, "t", 1, f"go back: {number}")
        assert len(told._known) <= 1000
    told.close()
    assert sum(int(message.split()[2]) for message in caplog.messages) == 10_000
