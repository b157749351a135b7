"""Which of several endpoints gets the next request, and when one that failed is tried again.

The modes are those of nsq_to_http and nsq_to_nsq (bitly/go-hostpool). In all of them a circuit
breaker stands before each endpoint, so a single one that is down costs a request now and then.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

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
BUCKETS, BUCKET = 120, 2.5
"""Latency is remembered for 5 minutes, in so many buckets of so many seconds (go-hostpool)."""

_SCORES_LAST = 0.1
_SHORTEST = 1e-6


class Endpoints(Protocol):
    """Where the next request goes. Times are in seconds, of any one clock that never goes back.

    Whoever sends to an endpoint reports the result. The first of a choice is the one to send to;
    the others are for a caller who can do so at once when the first one failed. An endpoint that
    is probed is first and in one choice only, until it is reported.
    """

    def choose(self, *, now: float, rng: Random) -> Sequence[str]:
        """Endpoints that may be tried, the preferred one first; none before ``due`` when empty."""

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """Count a result; ``ok`` is false when the endpoint was at fault.

        ``took`` is the time since the request was sent: of one sent before the endpoint's breaker
        last opened or closed, a failure is old news. Raises KeyError for an unknown endpoint.
        """

    def due(self, now: float) -> float:
        """When ``choose`` has an endpoint: ``now``, or later; infinity when all are removed."""

    def remove(self, endpoint: str) -> None:
        """Never choose it again. Raises KeyError for an unknown endpoint."""

    def states(self, now: float) -> Mapping[str, str]:
        """Of each endpoint: up, down, trying (down, but in use to see whether it is), or gone."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An endpoint. ``pause`` is 0 while its breaker is closed, ``delay`` unless its pool calls it
    dead; either is only over 0 after a failure that no success followed."""

    name: str
    position: int
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


class RoundRobin:
    """Each choice begins with the next endpoint.

    Five failures in a row open the breaker of an endpoint for 1 s, doubling to 30 s. After that
    one request is its probe: a success closes the breaker, a failure opens it for longer.

    Repeated endpoints count once. Raises ConfigError when there is none.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        names = dict.fromkeys(endpoints)
        if not names:
            raise ConfigError("no endpoint is given: at least one is needed")
        self._entries = {name: _Entry(name, position) for position, name in enumerate(names)}
        self._ring: tuple[str, ...] = ()  # those in use, twice, beginning with the next one
        self._width = 0
        self._turn = 0  # how far choices have come in the ring
        self._last = -1  # position of the last endpoint chosen from an earlier ring
        self._any_up = True
        self._suspect: _Entry | None = None
        self._alarm = math.inf  # when the suspect is to be probed
        self._arrange()

    def choose(self, *, now: float, rng: Random) -> Sequence[str]:
        """See Endpoints."""
        if now >= self._alarm:
            return self._probe(now)
        return self._next()

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """See Endpoints."""
        entry = self._entries[endpoint]
        if not ok:
            self._failed(entry, now - took, now)
        elif entry.failures:
            self._succeeded(entry, now - took, now)

    def due(self, now: float) -> float:
        """See Endpoints."""
        return now if self._width else max(now, self._alarm)

    def remove(self, endpoint: str) -> None:
        """See Endpoints."""
        self._entries[endpoint].gone = True
        self._arrange()

    def states(self, now: float) -> Mapping[str, str]:
        """See Endpoints."""
        return {name: self._state(entry, now) for name, entry in self._entries.items()}

    def _state(self, entry: _Entry, now: float) -> str:
        if entry.gone:
            return "gone"
        if not entry.down:
            return "up"
        probed = entry.probe is not None and now < entry.probe + PROBE_LIMIT
        return "trying" if probed or entry.name in self._ring else "down"

    def _next(self) -> Sequence[str]:
        width = self._width
        turn = self._turn
        if turn >= width:
            turn = 0
        self._turn = turn + 1
        return self._ring[turn : turn + width]

    def _probe(self, now: float) -> Sequence[str]:
        entry = self._suspect
        assert entry is not None
        entry.probe = now
        self._arrange()
        return (entry.name, *self._ring[: self._width])

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
        if self._turn and self._ring:
            self._last = self._entries[self._ring[self._turn - 1]].position
        present = [entry for entry in self._entries.values() if not entry.gone]
        used = [entry for entry in present if not entry.down]
        self._any_up = bool(used)
        if not used:
            used = [entry for entry in present if not entry.pause and entry.probe is None]
        names = [entry.name for entry in used if entry.position > self._last]
        names += [entry.name for entry in used if entry.position <= self._last]
        self._ring, self._width, self._turn = (*names, *names), len(names), 0
        waiting = [entry for entry in present if entry.name not in self._ring]
        self._suspect = min(waiting, key=self._ready, default=None)
        self._alarm = self._ready(self._suspect) if self._suspect else math.inf

    def _ready(self, entry: _Entry) -> float:
        if entry.probe is not None:
            return entry.probe + PROBE_LIMIT
        return max(entry.until, entry.retry) if self._any_up else entry.until


class HostPool(RoundRobin):
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


class _History:
    """Mean latency, recent buckets weighing more; one without results repeats its predecessor.

    Unlike in go-hostpool the sum is divided by its weights, so that an endpoint does not seem
    fast because little is known of it.
    """

    __slots__ = ("_count", "_last", "_older", "_sum", "_total", "_weight")

    def __init__(self) -> None:
        self._older = deque([0.0] * (BUCKETS - 1), maxlen=BUCKETS - 1)  # means, 0 without results
        self._sum, self._count = 0.0, 0  # of the present bucket
        self._last = self._total = 0.0
        self._weight = 0

    def add(self, took: float) -> None:
        self._sum += took if took > _SHORTEST else _SHORTEST
        self._count += 1

    def advance(self, buckets: int) -> None:
        """Begin a new bucket, so many after the present one."""
        self._older.append(self._sum / self._count if self._count else 0.0)
        self._older.extend([0.0] * (min(buckets, BUCKETS) - 1))
        self._sum, self._count = 0.0, 0
        self._last = self._total = 0.0
        self._weight = 0
        for weight, mean in enumerate(self._older, 1):
            self._last = mean or self._last
            if self._last:
                self._total += self._last * weight
                self._weight += weight

    def mean(self) -> float:
        """In seconds; 0 when nothing is known."""
        latest = self._sum / self._count if self._count else self._last
        if not latest:
            return 0.0
        return (self._total + latest * BUCKETS) / (self._weight + BUCKETS)


class EpsilonGreedy(HostPool):
    """A host pool that prefers fast endpoints (go-hostpool).

    One choice in a hundred, at first three in ten, explores: it is the next one's turn. The others
    fall by chance, in proportion to 1 / mean latency of the last 5 minutes' successes. Means are
    looked at ten times a second.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._epsilon = FIRST_EPSILON
        self._histories = {name: _History() for name in endpoints}
        self._bucket_began: float | None = None
        self._orders: list[tuple[str, ...]] = []  # a choice for each endpoint with a score
        self._sums: list[float] = []  # of the scores up to each
        self._scored = -math.inf
        super().__init__(endpoints)

    def choose(self, *, now: float, rng: Random) -> Sequence[str]:
        """See Endpoints."""
        if now >= self._alarm:
            return self._probe(now)
        if rng.random() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, LEAST_EPSILON)
            return self._next()
        if now >= self._scored + _SCORES_LAST:
            self._score(now)
        sums = self._sums
        if not sums:
            return self._next()
        # The last one's sum is never looked at, so rounding cannot lead past it.
        return self._orders[bisect_right(sums, rng.random() * sums[-1], 0, len(sums) - 1)]

    def report(self, endpoint: str, *, ok: bool, took: float, now: float) -> None:
        """See Endpoints."""
        if ok:
            self._histories[endpoint].add(took)
        super().report(endpoint, ok=ok, took=took, now=now)

    def _arrange(self) -> None:
        super()._arrange()
        self._scored = -math.inf

    def _score(self, now: float) -> None:
        self._turn_over(now)
        used = self._ring[: self._width]
        means = {name: self._histories[name].mean() for name in used}
        ranked = sorted((name for name in used if means[name]), key=means.__getitem__)
        unknown = [name for name in used if not means[name]]
        self._orders = [
            (name, *ranked[:rank], *ranked[rank + 1 :], *unknown)
            for rank, name in enumerate(ranked)
        ]
        self._sums = list(accumulate(1 / means[name] for name in ranked))
        self._scored = now

    def _turn_over(self, now: float) -> None:
        if self._bucket_began is None:
            self._bucket_began = now
        buckets = int((now - self._bucket_began) / BUCKET)
        if buckets:
            self._bucket_began += buckets * BUCKET
            for history in self._histories.values():
                history.advance(buckets)


MODES: Mapping[str, type[RoundRobin]] = {
    "hostpool": HostPool,
    "round-robin": RoundRobin,
    "epsilon-greedy": EpsilonGreedy,
}
"""Names of the modes, as in nsq_to_http."""


def make_endpoints(mode: str, endpoints: Sequence[str]) -> Endpoints:
    """The policy of a mode; raises ConfigError for an unknown mode, and for no endpoint."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    return MODES[mode](endpoints)
