"""Which of several endpoints gets the next request, and when one that failed is tried again.

The modes are those of nsq_to_http and nsq_to_nsq (bitly/go-hostpool). In all of them a circuit
breaker stands before each endpoint, so a single one that is down costs a request now and then.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

FAILURES = 5
"""So many in a row open the breaker."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""How long it stays open, in seconds: twice as long after every probe that fails."""
PROBE_LIMIT = 60.0
"""A probe of which nothing was heard for so long, in seconds, is taken for lost."""
FIRST_DELAY, LONGEST_DELAY = 30.0, 900.0
"""How long a dead endpoint of a host pool is left alone, in seconds, doubling (go-hostpool)."""
FIRST_EPSILON, LEAST_EPSILON, EPSILON_DECAY = 0.3, 0.01, 0.9
"""Share of the choices that explore; each exploration lowers it (go-hostpool)."""
HALF_LIFE = 30.0
"""After so many seconds a latency counts half in the mean."""

_SCORES_LAST = 0.1
_SHORTEST = 1e-6


@dataclass(slots=True, eq=False)
class _Entry:
    """An endpoint. ``pause`` is 0 while its breaker is closed, ``delay`` unless its pool calls it
    dead; either is only over 0 after a failure that no success followed."""

    name: str
    failures: int = 0
    pause: float = 0.0
    until: float = -math.inf
    """The end of the pause."""
    since: float = -math.inf
    """When the breaker last opened or closed."""
    delay: float = 0.0
    retry: float = -math.inf
    """The end of the delay."""
    probe: float | None = None
    """When the request was chosen that is to tell whether it is back."""
    gone: bool = False

    @property
    def down(self) -> bool:
        return self.pause > 0 or self.delay > 0


class Endpoints:
    """Where the next request goes: each choice begins with the next endpoint.

    Five failures in a row open the breaker of an endpoint for 1 s, doubling to 30 s. After that
    one request is its probe: a success closes the breaker, a failure opens it for longer.

    Times are in seconds, of any one clock that never goes back. Whoever sends to an endpoint
    reports the result. The first of a choice is the one to send to; the others are for a caller who
    can do so at once when the first one failed. An endpoint that is probed is first and in one
    choice only, until it is reported. Repeated endpoints count once. Raises ConfigError when there
    is none.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._entries = {name: _Entry(name) for name in endpoints}
        if not self._entries:
            raise ConfigError("no endpoint is given: at least one is needed")
        self._used: list[str] = []
        self._turn = -1
        self._any_up = True
        self._suspect: _Entry | None = None
        self._alarm = math.inf  # when the suspect is to be probed
        self._arrange()

    def choose(self, *, now: float, rng: Random) -> Sequence[str]:
        """Endpoints that may be tried, the preferred one first; none before ``due`` when empty."""
        if self._suspect and now >= self._alarm:
            probed = self._suspect
            probed.probe = now
            self._arrange()
            return (probed.name, *self._used)
        return self._prefer(now, rng)

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """Count a result; ``ok`` is false when the endpoint was at fault.

        ``took`` is the time since the request was sent: of one sent before the endpoint's breaker
        last opened or closed, a failure is old news. Raises KeyError for an unknown endpoint.
        """
        entry = self._entries[endpoint]
        if not ok:
            self._failed(entry, now - took, now)
        elif entry.failures:
            self._succeeded(entry, now - took, now)

    def due(self, now: float) -> float:
        """When ``choose`` has an endpoint: ``now``, or later; infinity when all are removed."""
        return now if self._used else max(now, self._alarm)

    def remove(self, endpoint: str) -> None:
        """Never choose it again. Raises KeyError for an unknown endpoint."""
        self._entries[endpoint].gone = True
        self._arrange()

    def states(self, now: float) -> Mapping[str, str]:
        """Of each endpoint: up, down, trying (down, but in use to see whether it is), or gone."""
        return {name: self._state(entry, now) for name, entry in self._entries.items()}

    def _state(self, entry: _Entry, now: float) -> str:
        if entry.gone:
            return "gone"
        if not entry.down:
            return "up"
        probed = entry.probe is not None and now < entry.probe + PROBE_LIMIT
        return "trying" if probed or entry.name in self._used else "down"

    def _prefer(self, now: float, rng: Random) -> Sequence[str]:
        """Those in use, as the mode prefers them."""
        if len(self._used) > 1:
            self._turn = (self._turn + 1) % len(self._used)
            return (*self._used[self._turn :], *self._used[: self._turn])
        return tuple(self._used)

    def _succeeded(self, entry: _Entry, began: float, now: float) -> None:
        if entry.pause and began < entry.since:
            return
        if entry.pause:
            entry.since = now
        was_down = entry.down
        entry.failures = 0
        entry.pause = entry.delay = 0.0
        entry.until = entry.retry = -math.inf
        entry.probe = None
        if was_down:
            self._arrange()

    def _failed(self, entry: _Entry, began: float, now: float) -> None:
        probed = entry.probe is not None
        if began < entry.since or (entry.pause and not probed):
            return
        entry.failures += 1
        entry.probe = None
        if entry.pause:
            entry.pause = min(2 * entry.pause, LONGEST_PAUSE)
        elif entry.failures >= FAILURES:
            entry.pause = FIRST_PAUSE
        if entry.pause:
            entry.until, entry.since = now + entry.pause, now
        self._leave_alone(entry, probed, now)
        if entry.down:
            self._arrange()

    def _leave_alone(self, entry: _Entry, probed: bool, now: float) -> None:
        """The mode's own rule for an endpoint that failed."""

    def _arrange(self) -> None:
        """Find who is in use and who is to be probed next, after a change of anyone's state."""
        present = [entry for entry in self._entries.values() if not entry.gone]
        used = [entry for entry in present if not entry.down]
        self._any_up = bool(used)
        if not used:
            used = [entry for entry in present if not entry.pause and entry.probe is None]
        self._used = [entry.name for entry in used]
        waiting = [entry for entry in present if entry not in used]
        self._suspect = min(waiting, key=self._ready, default=None)
        self._alarm = self._ready(self._suspect) if self._suspect else math.inf

    def _ready(self, entry: _Entry) -> float:
        if entry.probe is not None:
            return entry.probe + PROBE_LIMIT
        return max(entry.until, entry.retry) if self._any_up else entry.until


class HostPool(Endpoints):
    """Round robin among the living: one failure makes an endpoint dead (go-hostpool).

    While another one lives, a dead one is probed after 30 s, doubling to 900 s; a success revives
    it. When all are dead only their breakers count: those that are closed are used as if alive.
    """

    def _leave_alone(self, entry: _Entry, probed: bool, now: float) -> None:
        if not entry.delay:
            entry.delay = FIRST_DELAY
        elif probed and self._any_up:
            entry.delay = min(2 * entry.delay, LONGEST_DELAY)
        else:
            return
        entry.retry = now + entry.delay


@dataclass(slots=True)
class _MeanLatency:
    """Mean latency in seconds, recent results weighing more; 0 when nothing is known.

    The sum is divided by its weights, unlike in go-hostpool, so that an endpoint does not seem
    fast because little is known of it.
    """

    total: float = 0.0
    weights: float = 0.0
    at: float = -math.inf

    def add(self, took: float, now: float) -> None:
        left = 0.5 ** ((now - self.at) / HALF_LIFE)
        self.total = self.total * left + max(took, _SHORTEST)
        self.weights = self.weights * left + 1
        self.at = now

    @property
    def mean(self) -> float:
        return self.total / self.weights if self.weights else 0.0


class EpsilonGreedy(HostPool):
    """A host pool that prefers fast endpoints (go-hostpool).

    One choice in a hundred, at first three in ten, explores: it is the next one's turn. The others
    fall by chance, in proportion to 1 / mean latency of successes. Means are looked at ten times a
    second.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._epsilon = FIRST_EPSILON
        self._latencies = {name: _MeanLatency() for name in endpoints}
        self._orders: list[tuple[str, ...]] = []  # a choice for each endpoint with a score
        self._sums: list[float] = []  # of the scores up to each
        self._scored = -math.inf
        super().__init__(endpoints)

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """Count a result, and how long a success took."""
        if ok:
            self._latencies[endpoint].add(took, now)
        super().report(endpoint, ok=ok, took=took, now=now)

    def _prefer(self, now: float, rng: Random) -> Sequence[str]:
        if rng.random() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, LEAST_EPSILON)
            return super()._prefer(now, rng)
        if now >= self._scored + _SCORES_LAST:
            self._score(now)
        sums = self._sums
        if not sums:
            return super()._prefer(now, rng)
        # The last one's sum is never looked at, so rounding cannot lead past it.
        return self._orders[bisect_right(sums, rng.random() * sums[-1], 0, len(sums) - 1)]

    def _arrange(self) -> None:
        super()._arrange()
        self._scored = -math.inf

    def _score(self, now: float) -> None:
        means = {name: self._latencies[name].mean for name in self._used}
        ranked = sorted(filter(means.get, means), key=means.__getitem__)
        unknown = [name for name in means if not means[name]]
        self._orders = [
            (name, *ranked[:rank], *ranked[rank + 1 :], *unknown)
            for rank, name in enumerate(ranked)
        ]
        self._sums = list(accumulate(1 / means[name] for name in ranked))
        self._scored = now


MODES: Mapping[str, type[Endpoints]] = {
    "hostpool": HostPool,
    "round-robin": Endpoints,
    "epsilon-greedy": EpsilonGreedy,
}
"""Names of the modes, as in nsq_to_http."""


def make_endpoints(mode: str, endpoints: Sequence[str]) -> Endpoints:
    """The policy of a mode; raises ConfigError for an unknown mode, and for no endpoint."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    return MODES[mode](endpoints)
