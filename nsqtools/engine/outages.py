"""Logs repeated failures of servers and handlers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.errors import NSQError

if TYPE_CHECKING:
    from typing import Any

    from nsqtools.errors import UnreachableError
    from nsqtools.names import Address
    from nsqtools.net.http.daemons import Answers

log = logging.getLogger(__name__)

# Seconds between two log lines on the same failure of a handler.
_INTERVAL = 60.0
# Maximum failures with different texts logged in one interval.
_MAX_FAILURES = 10


class OutageLog:
    """Logs one failure per server until the server answers; the consumers of a run share it."""

    def __init__(self) -> None:
        self._failed_lookupds: set[Address | None] = set()
        self._all_lookupds_failed = False
        self._waiting = False
        self._nsqd_errors: dict[Address, set[str]] = {}

    def lookupds_answered(self, answers: Answers[Any]) -> None:
        """Note the answers of nsqlookupds, and warn of their failures."""
        self._all_lookupds_failed = False
        self._failed_lookupds.difference_update(address for address, _ in answers.answers)
        for _, error in answers.silent:
            self.lookupd_failed(error)

    def lookupd_failed(self, error: UnreachableError) -> None:
        """Warn of a silent nsqlookupd, once until it answers."""
        is_repeated = error.address in self._failed_lookupds
        log.log(logging.DEBUG if is_repeated else logging.WARNING, "nsqlookupd %s", error)
        self._failed_lookupds.add(error.address)

    def all_lookupds_failed(self, error: UnreachableError) -> None:
        """Warn that no nsqlookupd answers, once until one does."""
        is_repeated = self._all_lookupds_failed
        log.log(logging.DEBUG if is_repeated else logging.WARNING, "%s", error)
        self._all_lookupds_failed = True

    def nsqd_failed(self, address: Address, error: NSQError) -> None:
        """Warn of a failed connection to an nsqd."""
        errors = self._nsqd_errors.setdefault(address, set())
        is_repeated = str(error) in errors
        log.log(logging.INFO if is_repeated else logging.WARNING, "cannot connect: %s", error)
        errors.add(str(error))

    def nsqd_connected(self, address: Address) -> None:
        """Note a new connection to an nsqd, so the next failure is a warning again."""
        self._nsqd_errors.pop(address, None)

    def waiting(self) -> None:
        """Warn once: the consumers wait because no server can be reached."""
        if not self._waiting:
            log.warning("waiting until a server can be reached")
        self._waiting = True


class FailureLog:
    """Logs failures of a topic's handler: each once a minute, with its messages since then."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._unlogged: dict[str, int] = {}
        """The number of messages requeued since a failure was logged, by the failure's text."""
        self._next_log = 0.0

    def failed(self, error: BaseException, count: int, now: float) -> None:
        """Log ``count`` requeued messages, with a traceback unless ``error`` is an NSQError."""
        if now >= self._next_log:
            self.close()
            self._next_log = now + _INTERVAL
        is_ours = isinstance(error, NSQError)
        text = f": {error}" if is_ours else f": {type(error).__name__}: {error}"
        if text not in self._unlogged and len(self._unlogged) >= _MAX_FAILURES:
            text = " because of other failures"
            self._unlogged.setdefault(text, 0)
        if text in self._unlogged:
            self._unlogged[text] += count
            return
        self._unlogged[text] = 0
        log.error(
            "topic %s: handler failed, %s requeued%s",
            self._topic,
            counted(count, "message"),
            f": {error}" if is_ours else "",
            exc_info=None if is_ours else error,
        )

    def close(self) -> None:
        """Log the messages not yet counted by a log line, by failure."""
        for text, count in self._unlogged.items():
            if count:
                requeued = counted(count, "more message")
                log.error("topic %s: handler failed, %s requeued%s", self._topic, requeued, text)
        self._unlogged.clear()
