"""Endpoints that fail, hang and come back, on a clock of the test's own."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.endpoints import MODES, Endpoints, make_endpoints

NAMES = ["http://a/", "http://b/", "http://c/", "http://d/"]
A, B, C, _ = NAMES
POOLS = ["hostpool", "epsilon-greedy"]

any_mode = pytest.mark.parametrize("mode", list(MODES))
pool_mode = pytest.mark.parametrize("mode", POOLS)


@dataclass
class World:
    endpoints: Endpoints
    now: float = 1000.0
    rng: Random = field(default_factory=lambda: Random(7))

    def choose(self) -> Sequence[str]:
        return self.endpoints.choose(now=self.now, rng=self.rng)

    def report(self, endpoint: str, *, ok: bool, took: float = 0.0) -> None:
        self.endpoints.report(endpoint, ok=ok, took=took, now=self.now)

    def fail(self, endpoint: str, times: int = 1, took: float = 0.0) -> None:
        for _ in range(times):
            self.report(endpoint, ok=False, took=took)

    def state(self, endpoint: str) -> str:
        return self.endpoints.states(self.now)[endpoint]

    @property
    def due(self) -> float:
        """In how many seconds there is an endpoint to choose."""
        return self.endpoints.due(self.now) - self.now


def world(mode: str, names: Sequence[str] = NAMES) -> World:
    return World(make_endpoints(mode, names))


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
def test_one_request_is_the_probe_until_it_is_reported_or_for_a_minute(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    assert (w.choose(), w.due) == ((), 1)
    w.now += 1.5
    assert (w.due, w.state(A)) == (0, "down")
    assert (w.choose(), w.due, w.state(A)) == ((A,), 60, "trying")
    w.now += 59.9
    assert (w.choose(), w.state(A)) == ((), "trying")
    w.now += 0.1
    assert w.state(A) == "down"
    assert (w.choose(), w.choose()) == ((A,), ())
    w.report(A, ok=True, took=5.0)
    assert (w.state(A), w.choose()) == ("up", (A,))


@any_mode
def test_the_pauses_of_a_single_endpoint_double_from_one_second_to_thirty(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 5)
    pauses = []
    for _ in range(8):
        pauses.append(w.due)
        w.now += w.due
        assert w.choose() == (A,)
        w.fail(A)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    w.now += w.due
    w.report(w.choose()[0], ok=True)
    assert w.state(A) == "up"
    w.fail(A, 5)
    assert w.due == 1


@any_mode
def test_results_of_requests_sent_before_the_breaker_turned_change_nothing(mode: str) -> None:
    w = world(mode, [A])
    w.fail(A, 100)
    assert w.due == 1
    w.now += 0.5
    w.report(A, ok=True, took=3.0)
    assert w.choose() == ()
    w.now += 0.5
    w.choose()
    w.fail(A, 100, took=20.0)
    assert w.state(A) == "trying"
    w.now += 1
    w.report(A, ok=True, took=1.0)
    w.now += 1
    w.fail(A, 5, took=1.5)
    assert w.state(A) == "up"
    w.fail(A, 5)
    assert w.choose() == ()
    w.now += 0.25
    w.report(A, ok=True, took=0.25)  # sent when it was already open: it answers again
    assert w.choose() == (A,)


# Dead and alive in a host pool.


@pool_mode
def test_the_delays_of_a_dead_one_double_from_30_to_900_seconds_while_another_lives(
    mode: str,
) -> None:
    w = world(mode, [A, B])
    w.fail(A, 4)  # of requests that were under way together
    delays = []
    for _ in range(8):
        began = w.now
        while w.choose() == (B,):
            w.now += 1
        delays.append(w.now - began)
        w.fail(A)
    assert delays == [30, 60, 120, 240, 480, 900, 900, 900]
    w.report(A, ok=True)
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
    assert (w.choose(), w.due) == ((), 1)


# Fast and slow ones.


def test_requests_are_shared_in_proportion_to_speed_and_follow_when_it_changes() -> None:
    w = world("epsilon-greedy", [A, B, C])
    for took in ({A: 0.01, B: 0.02, C: 0.04}, {A: 0.04, B: 0.02, C: 0.01}):
        asked: Counter[str] = Counter()
        for number in range(16_000):
            w.now += 0.05 if number < 6_000 else 0.01
            name = w.choose()[0]
            w.report(name, ok=True, took=took[name])
            asked[name] += number >= 6_000
        shares = [asked[name] / asked.total() for name in sorted(took, key=took.__getitem__)]
        assert shares == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.02)


# Whatever happens.

# What to do, to which endpoint or request in flight, and how much time passes before.
events = st.tuples(
    st.sampled_from(["begin", "begin", "begin", "ok", "fail", "fail", "fail", "remove"]),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0, 5.0, 31.0, 61.0, 901.0]),
)


class Flight(NamedTuple):
    """A request that was sent and not yet reported."""

    endpoint: str
    began: float
    probe: bool


BEGIN = ("begin", 0, 0.0)
FAILS = [("fail", which, 0.0) for which in (0, 13, 1)]
ALL_DEAD = [*[BEGIN] * 4, FAILS[0], *[BEGIN] * 3, *FAILS]


@example("hostpool", 4, [*ALL_DEAD, ("begin", 0, 31.0), ("ok", 0, 0.0), BEGIN], 0)
@given(
    mode=st.sampled_from(list(MODES)),
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
            assert bool(chosen) == (due <= w.now)
            assert len(set(chosen)) == len(chosen)
            assert "gone" not in {before[name] for name in chosen}
            ups = {name for name, state in before.items() if state == "up"}
            assert ups <= set(chosen)
            if ups or mode == "round-robin":
                assert ups >= set(chosen[1:])
                probes = {f.endpoint for f in flights if f.probe and w.now < f.began + 60}
                assert not probes & ({*chosen[:1]} - ups)
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
