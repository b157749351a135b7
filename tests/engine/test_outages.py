"""What is logged of failures that come again and again."""

import logging

import pytest

from nsqtools.engine.outages import FailureLog
from nsqtools.errors import NSQError


def test_each_failure_is_logged_once_a_minute_and_no_message_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    failures = FailureLog("t")
    for second in range(4):
        for text in "ab":
            failures.failed(NSQError(text), 10, float(second))
    failures.failed(NSQError("a"), 1, 61.0)
    failures.failed(KeyError("x"), 1, 62.0)
    failures.failed(KeyError("x"), 5, 63.0)
    failures.close()
    topic = "topic t: handler failed, "
    assert caplog.messages == [
        f"{topic}10 messages requeued: a",
        f"{topic}10 messages requeued: b",
        f"{topic}30 more messages requeued: a",
        f"{topic}30 more messages requeued: b",
        f"{topic}1 message requeued: a",
        f"{topic}1 message requeued",
        f"{topic}5 more messages requeued: KeyError: 'x'",
    ]
    assert [bool(each.exc_info) for each in caplog.records] == [False] * 5 + [True, False]


def test_of_many_different_failures_the_rest_is_counted_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    failures = FailureLog("t")
    for number in range(100):
        failures.failed(NSQError(str(number)), 1, 0.0)
    failures.close()
    assert len(caplog.messages) == 11
    assert caplog.messages[-1].endswith("90 more messages requeued because of other failures")
