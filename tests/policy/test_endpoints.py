"""Endpoints that fail, hang and come back, on a clock of the test's own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.endpoints import MODES, make_endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsqtools.policy.endpoints import Endpoints

NAMES = ["http://a/", "http://b/", "http://c/", "http://d/"]
A, B, C, _ = NAMES
POOLS = ["hostpool", "epsilon-greedy"]

modes = st.sampled_from(list(MODES))
any_mode = pytest.mark.parametrize("mode", list(MODES))
pool_mode = pytest.mark.parametrize("mode", POOLS)


@dataclass
class World:
    """Requests one after the other, or as many at once as a test begins."""

    endpoints: Endpoints
    now: float = 1000.0
    rng: Random = field(default_factory=lambda: Random(7))
    tried: list[tuple[float, str]] = field(default_factory=list)

    def choose(self) -> Sequence[str]:
        return self.endpoints.choose(now=self.now, rng=self.rng)

    def report(self, endpoint: str, *, ok: bool, took: float = 0.0) -> None:
        self.endpoints.report(endpoint, ok=ok, took=took, now=self.now)

    def fail(self, endpoint: str, times: int = 1) -> None:
        for _ in range(times):
            self.report(endpoint, ok=False)

    def ask(
        self, answers: Callable[[str], bool], took: Mapping[str, float] | None = None
    ) -> str | None:
        """One request to the preferred endpoint, if any, reported at once."""
        chosen = self.choose()
        if not chosen:
            return None
        self.tried.append((self.now, chosen[0]))
        self.report(chosen[0], ok=answers(chosen[0]), took=took[chosen[0]] if took else 0.0)
        return chosen[0]

    def run(
        self,
        seconds: float,
        answers: Callable[[str], bool],
        *,
        took: Mapping[str, float] | None = None,
        step: float = 0.1,
    ) -> Counter[str | None]:
        """Requests in a steady stream; how many went where."""
        asked: Counter[str | None] = Counter()
        for _ in range(round(seconds / step)):
            self.now += step
            asked[self.ask(answers, took)] += 1
        return asked

    def state(self, endpoint: str) -> str:
        return self.endpoints.states(self.now)[endpoint]

    def times(self, endpoint: str) -> list[float]:
        return [when for when, name in self.tried if name == endpoint]


def world(mode: str, names: Sequence[str] = NAMES) -> World:
    return World(make_endpoints(mode, names))


def all_answer(_: str) -> bool:
    return True


def all_but(*names: str) -> Callable[[str], bool]:
    return lambda name: name not in names


@pytest.mark.parametrize(("mode", "names"), [("roundrobin", [A]), *[(mode, []) for mode in MODES]])
def test_an_unknown_mode_and_no_endpoint_are_refused(mode: str, names: list[str]) -> None:
    with pytest.raises(ConfigError, match="roundrobin" if names else "endpoint"):
        make_endpoints(mode, names)


# The breaker, the only rule of round-robin.


def test_four_failures_change_nothing_and_the_fifth_opens_the_breaker_for_a_second() -> None:
    w = world("round-robin", [A, B])
    w.fail(A, 4)
    w.report(A, ok=True)
    w.fail(A, 4)
    assert w.state(A) == "up"
    w.fail(A)
    assert w.state(A) == "down"
    assert [w.choose() for _ in range(3)] == [(B,)] * 3
    w.now += 0.99
    assert w.choose() == (B,)
    w.now += 0.01
    assert w.choose() == (A, B)


@any_mode
def test_one_request_is_the_probe_until_it_is_reported(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    assert (w.choose(), w.endpoints.due(w.now)) == ((), w.now + 1)
    w.now += 1.5
    assert w.endpoints.due(w.now) == w.now
    assert w.choose() == (A,)
    assert w.state(A) == "trying"
    w.now += 5
    assert w.choose() == ()
    w.report(A, ok=True, took=5.0)
    assert w.state(A) == "up"
    assert w.choose() == (A,)


@any_mode
def test_the_pauses_of_a_single_endpoint_double_from_one_second_to_thirty(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    pauses = []
    for _ in range(8):
        pauses.append(w.endpoints.due(w.now) - w.now)
        w.now = w.endpoints.due(w.now)
        assert w.choose() == (A,)
        w.fail(A)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    w.run(31, all_answer)
    assert w.state(A) == "up"
    w.fail(A, 5)
    assert w.endpoints.due(w.now) == w.now + 1


@any_mode
def test_a_probe_of_which_nothing_is_heard_is_given_to_another_after_a_minute(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    w.now += 1
    assert w.choose() == (A,)
    assert w.endpoints.due(w.now) == w.now + 60
    w.now += 59.9
    assert (w.choose(), w.state(A)) == ((), "trying")
    w.now += 0.1
    assert w.state(A) == "down"
    assert (w.choose(), w.choose()) == ((A,), ())


@any_mode
def test_failures_of_requests_sent_before_the_breaker_turned_change_nothing(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 100)
    assert w.endpoints.due(w.now) == w.now + 1
    w.now += 1
    w.choose()
    for _ in range(100):
        w.report(A, ok=False, took=20.0)
    assert w.state(A) == "trying"
    w.now += 1
    w.report(A, ok=True, took=1.0)
    w.now += 1
    for _ in range(5):
        w.report(A, ok=False, took=1.5)
    assert w.state(A) == "up"


@any_mode
def test_a_success_of_a_request_sent_before_the_breaker_opened_does_not_close_it(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    w.now += 0.5
    w.report(A, ok=True, took=3.0)
    assert w.choose() == ()
    w.report(A, ok=True, took=0.25)
    assert w.choose() == (A,)


# Dead and alive in a host pool.


@pool_mode
def test_the_delays_of_a_dead_one_double_from_30_to_900_seconds_while_another_lives(
    mode: str,
) -> None:
    w = world(mode, [A, B])
    w.fail(A, 4)  # of requests that were under way together
    assert w.state(A) == "down"
    began = w.now
    w.run(4000, all_but(A), step=1.0)
    tried = [began, *w.times(A)]
    delays = [later - earlier for earlier, later in pairwise(tried)]
    assert delays == [30, 60, 120, 240, 480, 900, 900, 900]
    w.report(A, ok=True, took=3.0)
    assert w.state(A) == "up"
    w.fail(A)
    w.now += 30
    assert w.choose() == (A, B)


@pool_mode
def test_when_all_are_dead_they_are_used_until_their_breakers_open(mode: str) -> None:
    w = world(mode, [A, B])
    w.fail(A)
    w.fail(B)
    assert set(w.endpoints.states(w.now).values()) == {"trying"}
    assert sorted(w.choose()) == [A, B]
    w.fail(A, 4)
    assert w.choose() == (B,)
    w.fail(B, 4)
    assert (w.choose(), w.endpoints.due(w.now)) == ((), w.now + 1)


# Fast and slow ones.


def test_requests_are_shared_in_proportion_to_speed_and_follow_when_it_changes() -> None:
    took = {A: 0.01, B: 0.02, C: 0.04}
    w = world("epsilon-greedy", list(took))
    w.run(200, all_answer, took=took, step=0.05)
    for _ in range(2):
        asked = w.run(100, all_answer, took=took, step=0.01)
        shares = [asked[name] / asked.total() for name in sorted(took, key=took.__getitem__)]
        assert shares == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.02)
        took = {A: 0.04, B: 0.02, C: 0.01}
        w.run(300, all_answer, took=took, step=0.05)


# Whatever happens.

# What to do, to which endpoint or request in flight, and how much time passes before.
events = st.tuples(
    st.sampled_from(["begin", "begin", "begin", "ok", "fail", "fail", "fail", "remove"]),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0, 5.0, 31.0, 61.0, 901.0]),
)


@dataclass
class Flight:
    """A request that was sent and not yet reported."""

    endpoint: str
    began: float
    probe: bool


def was_out(flights: Sequence[Flight], endpoint: str, now: float) -> bool:
    """Whether a probe of the endpoint is out that need not be given up yet."""
    return any(f.endpoint == endpoint and f.probe and now < f.began + 60 for f in flights)


def check(
    mode: str,
    before: Mapping[str, str],
    chosen: Sequence[str],
    flights: Sequence[Flight],
    now: float,
) -> None:
    """What holds of a choice, given the states before it and the requests in flight."""
    assert len(set(chosen)) == len(chosen)
    assert "gone" not in {before[name] for name in chosen}
    ups = {name for name, state in before.items() if state == "up"}
    assert ups <= set(chosen)
    if ups or mode == "round-robin":
        assert ups >= set(chosen[1:])
        if chosen and chosen[0] not in ups:
            assert not was_out(flights, chosen[0], now)


BEGIN = ("begin", 0, 0.0)
FAILS = [("fail", which, 0.0) for which in (0, 13, 1)]
ALL_DEAD = [*[BEGIN] * 4, FAILS[0], *[BEGIN] * 3, *FAILS]


@example("hostpool", 4, [*ALL_DEAD, ("begin", 0, 31.0), ("ok", 0, 0.0), BEGIN], 0)
@given(
    mode=modes,
    count=st.integers(1, 4),
    happenings=st.lists(events, max_size=150),
    seed=st.integers(0, 9),
)
def test_none_that_is_gone_or_down_is_chosen_but_for_one_probe_at_a_time(
    mode: str, count: int, happenings: list[tuple[str, int, float]], seed: int
) -> None:
    w = world(mode, NAMES[:count])
    w.rng = Random(seed)
    flights: list[Flight] = []
    for what, which, pause in happenings:
        w.now += pause
        if what == "begin":
            before, due = w.endpoints.states(w.now), w.endpoints.due(w.now)
            chosen = w.choose()
            check(mode, before, chosen, flights, w.now)
            assert bool(chosen) == (due <= w.now)
            if chosen:
                flights.append(Flight(chosen[0], w.now, before[chosen[0]] == "down"))
        elif what == "remove":
            if which < 4:
                w.endpoints.remove(NAMES[which % count])
        elif flights:
            flight = flights.pop(which % len(flights))
            w.report(flight.endpoint, ok=what == "ok", took=w.now - flight.began)
    due = w.endpoints.due(w.now)
    if due < math.inf:
        w.now = due
        assert w.choose()
    else:
        assert set(w.endpoints.states(w.now).values()) == {"gone"}
