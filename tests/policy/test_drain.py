"""When an nsqd has drained, from looks at its counters."""

from typing import Any

import pytest

from nsqtools.policy.drain import Drain
from nsqtools.policy.rates import Counters, CounterSample

TOPIC, CHANNEL = ("t", ""), ("t", "c")
EMPTY = {TOPIC: Counters(5), CHANNEL: Counters(5)}


def sample(at: float, start: int = 1, **held: Any) -> CounterSample:
    return CounterSample(at, start, {**EMPTY, CHANNEL: Counters(5, clients=1, **held)})


@pytest.mark.parametrize("held", ["depth", "in_flight", "deferred"])
def test_it_has_drained_when_it_is_empty_and_quiet(held: str) -> None:
    drain = Drain(2.0)
    drain.record(sample(0.0, **{held: 3}))
    drain.record(sample(9.0, **{held: 3}))
    assert (drain.is_done, drain.messages) == (False, 3)
    drain.record(sample(9.5))
    assert (drain.is_done, drain.messages) == (True, 0)


@pytest.mark.parametrize(
    "disturbance",
    [
        CounterSample(8.0, 1, {**EMPTY, TOPIC: Counters(6)}),
        CounterSample(8.0, 1, {**EMPTY, ("u", ""): Counters(1)}),
        CounterSample(8.0, 2, EMPTY),
        None,
    ],
    ids=["published", "topic", "restarted", "silent"],
)
def test_what_happens_meanwhile_begins_the_quiet_anew(disturbance: CounterSample | None) -> None:
    drain = Drain(2.0)
    for look in (sample(0.0), sample(1.9), disturbance, sample(9.0), sample(10.9)):
        drain.record(look)
        assert not drain.is_done
    drain.record(sample(11.0))
    assert drain.is_done


def test_what_never_drains_is_named() -> None:
    held = Counters(5, depth=1)
    stuck = {
        ("bare", ""): held,
        ("paused", ""): held._replace(paused=True),
        ("t", "left"): held,
        ("t", "deferred"): Counters(5, deferred=1),
        ("t", "paused"): held._replace(clients=2, paused=True),
    }
    others = {
        ("paused", "c"): Counters(),
        ("t", ""): held,
        ("t", "served"): held._replace(clients=1),
        ("t", "empty"): Counters(5),
    }
    drain = Drain(2.0)
    drain.record(CounterSample(0.0, 1, {**stuck, **others}))
    assert drain.stuck().keys() == stuck.keys()
