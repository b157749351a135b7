"""Backoff after the handler fails (building_client_libraries, Backoff; go-nsq consumer.go)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.policy.rdy import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random


def exponential(counter: int, multiplier: float, rng: Random) -> float:
    """Return ``multiplier * 2**counter``: 2, 4, 8 ... s for a multiplier of 1 s."""
    return float(multiplier * 2.0**counter)


def full_jitter(counter: int, multiplier: float, rng: Random) -> float:
    """Return a random part of the exponential duration, to spread the consumers' attempts."""
    return exponential(counter, multiplier, rng) * rng.random()


STRATEGIES: Mapping[str, Callable[[int, float, Random], float]] = {
    "exponential": exponential,
    "full_jitter": full_jitter,
}


@dataclass(frozen=True, slots=True)
class BackoffChange:
    """A new mode; ``wait`` is in seconds, 0 unless stopped. ``str()`` is the text for the log."""

    mode: Mode
    wait: float
    counter: int

    def __str__(self) -> str:
        match self.mode:
            case Mode.STOPPED:
                return f"waiting {self.wait:.3g} s, level {self.counter}"
            case Mode.PROBING:
                return f"probing one connection, level {self.counter}"
        return "over"


def requeue_delay(attempts: int, *, default_delay: float, max_delay: float) -> float:
    """Return the delay of a REQ in seconds; it grows with the attempts (go-nsq conn.go)."""
    return min(default_delay * attempts, max_delay)


class Backoff:
    """Counts failures minus successes, and waits while the count is above 0.

    running -- a failure --> stopped -- time --> probing -- any result --> stopped, or running at 0

    One result counts per wait: results during the wait are ignored, and the first result after it
    starts the next wait. A failure raises the counter if the strategy's duration for the higher
    counter is within ``max_duration``: ``exponential`` backoff never starts if ``2 * multiplier``
    exceeds ``max_duration``, as in go-nsq. A ``max_duration`` or ``multiplier`` of 0 disables
    backoff. The state is independent of connections: losing a connection does not affect it.

    Raises ConfigError for an unknown strategy.
    """

    def __init__(self, strategy: str, multiplier: float, max_duration: float) -> None:
        if strategy not in STRATEGIES:
            raise ConfigError(
                f"backoff strategy {strategy!r} is not one of {', '.join(STRATEGIES)}"
            )
        self._strategy = STRATEGIES[strategy]
        self._multiplier = multiplier
        self._max_duration = max_duration
        self._counter = 0
        self._until: float | None = None

    @property
    def counter(self) -> int:
        """The backoff level: failures minus successes, at least 0."""
        return self._counter

    @property
    def until(self) -> float | None:
        """When the wait ends and ``due`` must be called; None unless waiting."""
        return self._until

    @property
    def mode(self) -> Mode:
        """The mode for planning RDY: stopped during a wait."""
        if self._until is not None:
            return Mode.STOPPED
        return Mode.PROBING if self._counter else Mode.RUNNING

    def record(
        self, *, succeeded: int, failed: int, neutral: int, now: float, rng: Random
    ) -> BackoffChange | None:
        """Count the results of a batch, failures first; returns None if the state does not change.

        ``neutral`` messages were requeued without backoff: they do not change the counter, but
        while it is above 0 they start another wait, like any result.
        """
        if self._until is not None or not self._multiplier:
            return None
        before = self._counter
        if failed:
            # At counter 0 an ignored failure starts no wait, so try to count the next failure.
            if any(self._may_grow(rng) for _ in range(1 if before else failed)):
                self._counter += 1
        elif succeeded and before and not neutral:
            self._counter -= 1
        elif not neutral:
            return None
        if self._counter:
            wait = min(self._strategy(self._counter, self._multiplier, rng), self._max_duration)
            self._until = now + wait
            return BackoffChange(Mode.STOPPED, wait, self._counter)
        return BackoffChange(Mode.RUNNING, 0.0, 0) if before else None

    def end_wait(self, now: float) -> BackoffChange | None:
        """End the wait if it is over; then one connection probes."""
        if self._until is None or now < self._until:
            return None
        self._until = None
        return BackoffChange(Mode.PROBING, 0.0, self._counter)

    def _may_grow(self, rng: Random) -> bool:
        return self._strategy(self._counter + 1, self._multiplier, rng) <= self._max_duration
