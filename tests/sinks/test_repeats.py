"""What repeats in the log is a count."""

import logging
from collections.abc import Callable

import pytest

from nsqtools.sinks import repeats
from nsqtools.sinks.repeats import Repeats

ERROR = logging.ERROR


@pytest.fixture
def told() -> Repeats:
    return Repeats(logging.getLogger("nsqtools.test"))


@pytest.fixture
def counts(caplog: pytest.LogCaptureFixture) -> Callable[[], list[int]]:
    """Of messages, by line."""
    return lambda: [int(text.split()[2]) for text in caplog.messages]


def test_the_same_is_logged_once_a_minute_with_all_that_came_meanwhile(
    told: Repeats, counts: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tick in range(601):
        monkeypatch.setattr(repeats, "monotonic", lambda tick=tick: 1000.0 + tick / 5)
        told.tell(ERROR, "t", 2, "go back")
    told.close()
    assert len(counts()) in (3, 4)
    assert counts()[0] == 2
    assert sum(counts()) == 1202


def test_reasons_without_end_take_no_memory_without_end_and_lose_no_count(
    told: Repeats, counts: Callable[[], list[int]]
) -> None:
    for number in range(2000):
        for _ in range(2):
            told.tell(ERROR, "t", 1, f"go back: {number}")
        assert len(told._known) <= 1000
    told.close()
    assert sum(counts()) == 4000
