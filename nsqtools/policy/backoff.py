"""Slowing down while handling fails (building_client_libraries, Backoff; go-nsq consumer.go)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.policy.rdy import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random


def exponential(counter: int, multiplier: float, rng: Random) -> float:
    """``multiplier * 2**counter``: 2, 4, 8 ... s when the multiplier is 1 s."""
    return float(multiplier * 2.0**counter)


def full_jitter(counter: int, multiplier: float, rng: Random) -> float:
    """Anything from 0 up to the exponential duration, so that consumers do not move together."""
    return exponential(counter, multiplier, rng) * rng.random()


STRATEGIES: Mapping[str, Callable[[int, float, Random], float]] = {
    "exponential": exponential,
    "full_jitter": full_jitter,
}


@dataclass(frozen=True, slots=True)
class BackoffChange:
    """A new mode; ``wait`` in seconds, 0 unless stopped. ``str()`` is for the log."""

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
    """Seconds until a requeued message comes again: longer each time (go-nsq conn.go)."""
    return min(default_delay * attempts, max_delay)


class Backoff:
    """Counts failures up and successes down, and waits while the count is above 0.

    running -- a failure --> stopped -- time --> probing -- any result --> stopped, or running at 0

    Only one result counts per wait: results during the wait are ignored, the first one after it
    starts the next. A failure raises the counter if the strategy's duration for the higher one
    is within ``max_duration``; so nothing happens at all when ``2 * multiplier`` is over it, as
    in go-nsq. A ``max_duration`` or a ``multiplier`` of 0 means no backoff. Connections play no
    part, so losing one changes nothing here.

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
        """Failures not yet outweighed by successes."""
        return self._counter

    @property
    def until(self) -> float | None:
        """When the wait ends and ``due`` has to be called; None unless waiting."""
        return self._until

    @property
    def mode(self) -> Mode:
        """What RDY is planned by: stopped while waiting."""
        if self._until is not None:
            return Mode.STOPPED
        return Mode.PROBING if self._counter else Mode.RUNNING

    def record(
        self, *, succeeded: int, failed: int, neutral: int = 0, now: float, rng: Random
    ) -> BackoffChange | None:
        """Count the results of a batch, failures first; None when that changes no state.

        ``neutral`` are messages requeued without backoff: they leave the counter alone, but
        while it is above 0 they start another wait as any result does.
        """
        if self._until is not None or not self._multiplier:
            return None
        before = self._counter
        if failed:
            # At 0 a failure that does not count starts no wait, so the next one has its turn.
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

    def due(self, now: float) -> BackoffChange | None:
        """End the wait if it is over: from now on one connection probes."""
        if self._until is None or now < self._until:
            return None
        self._until = None
        return BackoffChange(Mode.PROBING, 0.0, self._counter)

    def _may_grow(self, rng: Random) -> bool:
        return self._strategy(self._counter + 1, self._multiplier, rng) <= self._max_duration
