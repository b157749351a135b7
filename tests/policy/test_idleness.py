"""Which topics and channels are idle, from samples of the counters of their nsqds."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.policy.idleness import ClusterSample, Idleness
from nsqtools.policy.rates import Counters, CounterSample

T, C = ("t", ""), ("t", "c")
EMPTY = {T: Counters(5), C: Counters(5)}
HELD = {T: Counters(5), C: Counters(5, depth=3, in_flight=1, deferred=1)}


def nsqd(counters: Mapping[tuple[str, str], Counters] = EMPTY, start: int = 1) -> CounterSample:
    return CounterSample(0.0, start, counters)


def sample(
    silent: Mapping[str, Collection[str] | None] | None = None, **nsqds: CounterSample
) -> ClusterSample:
    return ClusterSample(0.0, nsqds, silent or {})


def states(*samples: ClusterSample, channels: bool = False) -> dict[tuple[str, str], str]:
    idleness = Idleness(channels=channels)
    for each in samples:
        idleness.record(each)
    return {key: verdict.state for key, verdict in idleness.verdicts.items()}


QUIET = sample(a=nsqd(), b=nsqd())


@pytest.mark.parametrize(
    ("between", "state"),
    [
        (QUIET, "idle"),
        (sample(a=nsqd({**EMPTY, T: Counters(6)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, C: Counters(5, requeues=1)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, C: Counters(5, timeouts=1)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, C: Counters(5, clients=1)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, C: Counters(5, paused=True)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, T: Counters(5, paused=True)}), b=nsqd()), "used"),
        (sample(a=nsqd({**EMPTY, C: Counters(4)}), b=nsqd()), "used"),
        (sample(a=nsqd(start=2), b=nsqd()), "unknown"),
        (sample(a=nsqd({}), b=nsqd()), "unknown"),
        (sample(a=nsqd()), "unknown"),
        (sample({"b": ()}, a=nsqd()), "silent"),
        (sample(a=nsqd(), b=nsqd(), c=nsqd()), "unknown"),
        (sample({"c": ()}, a=nsqd(), b=nsqd()), "idle"),
        (sample({"c": ("t",)}, a=nsqd(), b=nsqd()), "silent"),
        (sample({"c": None}, a=nsqd(), b=nsqd()), "silent"),
        (replace(QUIET, silent_lookupds=["l"]), "silent"),
        (replace(QUIET, shared={"c": ("t",)}), "unknown"),
        (replace(QUIET, shared={"b": ()}), "unknown"),
        (replace(QUIET, shared={"c": ("u",)}), "idle"),
    ],
)
@pytest.mark.parametrize("channels", [False, True])
def test_one_sample_in_between_that_differs_is_enough(
    between: ClusterSample, state: str, channels: bool
) -> None:
    key = C if channels else T
    assert states(QUIET, between, QUIET, channels=channels)[key] == state
    assert states(QUIET, between, channels=channels)[key] == state


def test_an_nsqd_that_does_not_say_when_it_was_started_may_have_been_restarted() -> None:
    assert states(*[sample(a=nsqd(start=0))] * 2) == {T: "unknown"}


def test_messages_are_held_until_some_are_consumed() -> None:
    held, fewer = sample(a=nsqd(HELD)), sample(a=nsqd({**HELD, C: Counters(5, depth=4)}))
    moved = sample(a=nsqd({**HELD, C: Counters(5, depth=5)}))
    assert states(held, moved) == {T: "holding"}
    assert states(held, moved, channels=True) == {C: "holding"}
    assert states(held, fewer) == {T: "used"}
    waiting = sample(a=nsqd({**EMPTY, T: Counters(5, depth=2)}))
    assert states(waiting, waiting, channels=True) == {C: "holding"}


def test_a_topic_is_used_by_any_of_its_channels_and_a_channel_by_its_topic() -> None:
    more = {**EMPTY, ("t", "d"): Counters(5, requeues=7)}
    busy = {**more, ("t", "d"): Counters(5, requeues=8)}
    assert states(sample(a=nsqd(more)), sample(a=nsqd(busy))) == {T: "used"}
    found = states(sample(a=nsqd(more)), sample(a=nsqd(busy)), channels=True)
    assert found == {C: "idle", ("t", "d"): "used"}
    assert states(sample(a=nsqd()), sample(a=nsqd(more))) == {T: "used"}
    paused = {**EMPTY, T: Counters(6, depth=1)}
    assert states(sample(a=nsqd()), sample(a=nsqd(paused)), channels=True) == {C: "used"}


def test_ephemeral_ones_and_those_gone_everywhere_are_left_out() -> None:
    known = {("e#ephemeral", ""): Counters(), ("e#ephemeral", "c"): Counters(), T: Counters()}
    one = sample(a=nsqd({**known, ("t", "c#ephemeral"): Counters()}))
    assert states(one, one) == {T: "idle"}
    assert states(one, one, channels=True) == {}
    assert states(one, sample(a=nsqd({}))) == {}
    assert states(one, sample({"a": ()})) == {T: "silent"}


NUMBERS = st.integers(0, 2)
ZERO = st.just(0)
COUNTERS = st.builds(Counters, *[NUMBERS] * 4, ZERO, NUMBERS, NUMBERS, ZERO, st.booleans())
REPORT = st.fixed_dictionaries(
    {T: COUNTERS, C: COUNTERS}, optional={("t", "d"): COUNTERS, ("u", ""): COUNTERS}
).map(nsqd)
CHANGES = [*Counters._fields[:-1], "restarted", "created", "deleted", "gone"]
HIDING = [("c", None), ("c", ("t",)), ("c", ("u",)), ("c", ())]


def changed(first: ClusterSample, change: Any, key: tuple[str, str], number: int) -> ClusterSample:
    """The first sample after one change, most of them on one of its nsqds."""
    if isinstance(change, tuple):
        return sample(dict([change]), **first.nsqds)
    nsqds = dict(first.nsqds)
    counters = dict(nsqds.pop("a").counters)
    if change == "gone":
        return sample(None, **nsqds)
    if change == "deleted":
        counters.pop(key, None)
    elif change == "created":
        counters.setdefault(key, Counters())
    elif change != "restarted" and key in counters:
        counters[key] = counters[key]._replace(**cast("Any", {change: number}))
    return sample(None, **nsqds, a=nsqd(counters, 2 if change == "restarted" else 1))


def known(key: tuple[str, str], each: ClusterSample) -> Any:
    """What must stay the same.

    None if somebody is connected, if it is paused, or if a server may have more.
    """
    topic, channel = key
    found = {
        (name, part): (report.start_time, counters)
        for name, report in each.nsqds.items()
        if key in report.counters or not channel
        for part, counters in report.counters.items()
        if part[0] == topic and (part[1] in ("", channel) or not channel)
    }
    hidden = any(topics is None or topic in topics for topics in each.silent.values())
    if hidden or any(counters.clients or counters.paused for _, counters in found.values()):
        return None
    return {
        part: (start, counters.messages, counters.requeues, counters.timeouts, counters.held)
        for part, (start, counters) in found.items()
    }


@settings(max_examples=40)
@given(
    a=REPORT, b=REPORT, key=st.sampled_from([T, C, ("t", "d"), ("u", "")]), number=st.integers(0, 2)
)
@pytest.mark.parametrize("channels", [False, True])
def test_what_is_idle_was_seen_unchanged_and_without_clients_in_every_sample(
    a: CounterSample, b: CounterSample, key: tuple[str, str], number: int, channels: bool
) -> None:
    """And whatever was, is idle."""
    first = sample(None, a=a, b=b)
    others = [changed(first, each, key, number) for each in (*CHANGES, *HIDING)]
    for samples in ([first, x, *rest] for x in others for rest in ([], [first])):
        found = states(*samples, channels=channels)
        every = {each for report in samples[-1].nsqds.values() for each in report.counters}
        for each in {e for e in every if e[1]} if channels else {(t, "") for t, _ in every}:
            looks = [known(each, one) for one in samples]
            same = all(look is not None and look == looks[0] for look in looks)
            assert (found[each] in ("idle", "holding")) == same
            if same:
                assert (found[each] == "holding") == any(used[-1] for used in looks[0].values())


DAY, YEAR = 86_400.0, 366 * 86_400.0
wrong = st.sampled_from([-YEAR, -40 * DAY, 0.0, 40 * DAY, YEAR])


@given(
    st.floats(0, 40 * DAY),
    st.lists(st.tuples(wrong, wrong, st.floats(0, 5)), min_size=1, max_size=3),
    st.tuples(wrong, wrong),
    st.data(),
)
def test_a_sample_is_never_older_than_it_is_while_any_clock_tells_right(
    age: float,
    nsqds: list[tuple[float, float, float]],
    here: tuple[float, float],
    data: st.DataObject,
) -> None:
    """All other clocks are wrong by any time at both samples, and set in between."""
    clocks = {str(number): each for number, each in enumerate(nsqds)}
    right = data.draw(st.sampled_from(["", *clocks]))
    if right:
        clocks[right] = clocks[right][0], clocks[right][0], clocks[right][2]
    else:
        here = here[0], here[0]
    then, now = 3 * YEAR, 3 * YEAR + age
    times = [
        {n: (at + each[which] - each[2], at + each[which] + each[2]) for n, each in clocks.items()}
        for which, at in enumerate((then, now))
    ]
    first = ClusterSample(then + here[0], {}, {}, times=times[0])
    last = ClusterSample(now + here[1], {}, {}, times=times[1])
    found = last.since(first)
    assert found
    assert found[0] <= age + 1e-6
    if all(before == after for before, after, _ in [*clocks.values(), (*here, 0.0)]):
        assert found[0] >= age - 10 - 1e-6


def test_without_the_clock_of_an_nsqd_nothing_is_known() -> None:
    """Neither the age of a sample nor, if another nsqd tells its age, the use on this nsqd."""
    timed = {"a": (0.0, 1.0), "c": (0.0, 1.0)}
    first = ClusterSample(0.0, {"a": nsqd(), "b": nsqd(), "gone": nsqd()}, {}, times=timed)
    last = replace(
        sample(a=nsqd(), b=nsqd()),
        at=9.0,
        boot="x",
        uptime=60.0,
        times={"a": (8.0, 9.0), "b": (8.0, 9.0)},
    )
    assert last.since(first) == (7.0, "a")
    assert last.since(replace(first, boot="y", uptime=58.0)) == (7.0, "a")
    assert last.since(replace(first, boot="x", uptime=58.0)) == (2.0, "")  # all clocks were set
    assert last.since(replace(first, times={"c": (0.0, 1.0)})) is None
    assert last.since(replace(first, times={})) is None
    assert last.comparable(first).nsqds.keys() == {"a", "gone"}
    assert states(last.comparable(first), last)[T] == "unknown"
