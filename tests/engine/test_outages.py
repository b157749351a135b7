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
    failures.failed(NSQError("a"), 5, 62.0)
    failures.close()
    failures = FailureLog("u")
    for number in range(100):
        failures.failed(NSQError(str(number)), 1, 0.0)
    failures.close()
    topic = "topic t: handler failed, "
    assert caplog.messages[:4] == [
        f"{topic}10 messages requeued: a",
        f"{topic}10 messages requeued: b",
        f"{topic}61 messages requeued: a",
        f"{topic}5 more messages requeued",
    ]
    assert len(caplog.messages) == 4 + 10 + 1
    failures.failed(KeyError("x"), 1, 100.0)
    assert [bool(record.exc_info) for record in caplog.records] == [False] * 15 + [True]
    assert caplog.messages[14] == "topic u: handler failed, 90 more messages requeued"
