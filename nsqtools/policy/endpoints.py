"""Chooses the endpoint of the next request, and the time to retry a failed endpoint.

The modes are those of nsq_to_http and nsq_to_nsq (bitly/go-hostpool). In every mode each endpoint
has a circuit breaker: a dead endpoint costs only an occasional request.
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
"""Consecutive failures that open the breaker."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Time in seconds until an open breaker lets a probe through; each failed probe doubles it."""
PROBE_LIMIT = 60.0
"""Seconds after which a probe without a result counts as lost."""
FIRST_DELAY, LONGEST_DELAY = 30.0, 900.0
"""Time in seconds until a host pool probes a dead endpoint; it doubles (go-hostpool)."""
FIRST_EPSILON, LEAST_EPSILON, EPSILON_DECAY = 0.3, 0.01, 0.9
"""Share of exploring choices; each exploration lowers it (go-hostpool)."""
HALF_LIFE = 30.0
"""Seconds until the weight of a latency in the mean has halved."""

_SCORES_LAST = 0.1
_SHORTEST = 1e-6


@dataclass(slots=True, eq=False)
class _HostState:
    """An endpoint. ``pause`` is 0 while its breaker is closed, ``delay`` is 0 unless its pool
    considers it dead. Each is above 0 only from a failure until the next success."""

    name: str
    failures: int = 0
    pause: float = 0.0
    until: float = -math.inf
    """When the pause ends."""
    since: float = -math.inf
    """When the breaker last opened or closed."""
    delay: float = 0.0
    retry: float = -math.inf
    """When the delay ends."""
    probe: float | None = None
    """When the endpoint was chosen for the probing request."""
    removed: bool = False

    @property
    def down(self) -> bool:
        return self.pause > 0 or self.delay > 0


class Endpoints:
    """Chooses endpoints by round robin.

    Five consecutive failures open the breaker of an endpoint for 1 s, doubling to 30 s. Then one
    request probes the endpoint: success closes the breaker, failure opens it for longer.

    Times are in seconds of any monotonic clock. Report the result of every request. A choice is a
    list: use its first endpoint; if this endpoint fails, you can retry at once with the others. A
    probed endpoint comes first in one choice, and in no other until its result is reported.
    Repeated endpoints count once. Raises ConfigError for an empty list.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._entries = {name: _HostState(name) for name in endpoints}
        if not self._entries:
            raise ConfigError("expected at least one endpoint")
        self._used: list[str] = []
        self._turn = -1
        self._any_up = True
        self._suspect: _HostState | None = None
        self._alarm = math.inf  # when the suspect is to be probed
        self._arrange()

    def choose(self, *, now: float, rng: Random) -> Sequence[str]:
        """Return the endpoints to try, in order of preference; empty if all wait for ``due``."""
        if self._suspect and now >= self._alarm:
            probed = self._suspect
            probed.probe = now
            self._arrange()
            return (probed.name, *self._used)
        return self._prefer(now, rng)

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """Count a result; ``ok`` is false if the endpoint was at fault.

        ``took`` is the time since the request was sent. A failure is ignored if the request is
        older than the breaker's last opening or closing. Raises KeyError for an unknown endpoint.
        """
        entry = self._entries[endpoint]
        if not ok:
            self._failed(entry, now - took, now)
        elif entry.failures:
            self._succeeded(entry, now - took, now)

    def due(self, now: float) -> float:
        """Return when ``choose`` has an endpoint: ``now`` or later; infinity if all are removed."""
        return now if self._used else max(now, self._alarm)

    def remove(self, endpoint: str) -> None:
        """Never choose this endpoint again. Raises KeyError for an unknown endpoint."""
        self._entries[endpoint].removed = True
        self._arrange()

    def states(self, now: float) -> Mapping[str, str]:
        """Return the state of each endpoint: up, down, trying (down and being probed) or gone."""
        return {name: self._state(entry, now) for name, entry in self._entries.items()}

    def _state(self, entry: _HostState, now: float) -> str:
        if entry.removed:
            return "gone"
        if not entry.down:
            return "up"
        probed = entry.probe is not None and now < entry.probe + PROBE_LIMIT
        return "trying" if probed or entry.name in self._used else "down"

    def _prefer(self, now: float, rng: Random) -> Sequence[str]:
        """Return the endpoints in use, in the mode's order of preference."""
        if len(self._used) > 1:
            self._turn = (self._turn + 1) % len(self._used)
            return (*self._used[self._turn :], *self._used[: self._turn])
        return tuple(self._used)

    def _succeeded(self, entry: _HostState, began: float, now: float) -> None:
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

    def _failed(self, entry: _HostState, began: float, now: float) -> None:
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

    def _leave_alone(self, entry: _HostState, probed: bool, now: float) -> None:
        """Apply the mode's own rule to a failed endpoint."""

    def _arrange(self) -> None:
        """Update the endpoints in use, and the endpoint to probe next."""
        present = [entry for entry in self._entries.values() if not entry.removed]
        used = [entry for entry in present if not entry.down]
        self._any_up = bool(used)
        if not used:
            used = [entry for entry in present if not entry.pause and entry.probe is None]
        self._used = [entry.name for entry in used]
        waiting = [entry for entry in present if entry not in used]
        self._suspect = min(waiting, key=self._ready, default=None)
        self._alarm = self._ready(self._suspect) if self._suspect else math.inf

    def _ready(self, entry: _HostState) -> float:
        if entry.probe is not None:
            return entry.probe + PROBE_LIMIT
        return max(entry.until, entry.retry) if self._any_up else entry.until


class HostPool(Endpoints):
    """Round robin among live endpoints: one failure makes an endpoint dead (go-hostpool).

    While other endpoints are alive, a dead endpoint is probed after 30 s, doubling to 900 s; a
    success revives it. If all are dead, only their breakers count: the pool uses endpoints with a
    closed breaker.
    """

    def _leave_alone(self, entry: _HostState, probed: bool, now: float) -> None:
        if not entry.delay:
            entry.delay = FIRST_DELAY
        elif probed and self._any_up:
            entry.delay = min(2 * entry.delay, LONGEST_DELAY)
        else:
            return
        entry.retry = now + entry.delay


@dataclass(slots=True)
class _MeanLatency:
    """Mean latency in seconds, weighted towards recent results; 0 without results.

    Unlike in go-hostpool the sum is divided by its weights: otherwise an endpoint with few results
    would seem fast.
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

    At first three choices in ten explore, later one in a hundred: they take the next endpoint in
    turn. The other choices are random, weighted by 1 / mean latency of successes. The weights are
    updated at most ten times a second.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._epsilon = FIRST_EPSILON
        self._latencies = {name: _MeanLatency() for name in endpoints}
        self._orders: list[tuple[str, ...]] = []  # a choice for each endpoint with a score
        self._sums: list[float] = []  # cumulative scores
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
        # bisect never looks at the last sum, so rounding cannot lead past the end.
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
"""The modes by name, as in nsq_to_http."""


def make_endpoints(mode: str, endpoints: Sequence[str]) -> Endpoints:
    """Return the policy of a mode; raises ConfigError for an unknown mode or no endpoint."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    return MODES[mode](endpoints)
