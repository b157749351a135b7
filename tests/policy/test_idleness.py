"""Which topics and channels are idle, from samples of the counters of their nsqds."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
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
        (sample(a=nsqd({**EMPTY, C: Counters(4)}), b=nsqd()), "used"),
        (sample(a=nsqd(start=2), b=nsqd()), "unknown"),
        (sample(a=nsqd({}), b=nsqd()), "unknown"),
        (sample(a=nsqd()), "unknown"),
        (sample({"nsqd b": ()}, a=nsqd()), "silent"),
        (sample(a=nsqd(), b=nsqd(), c=nsqd()), "unknown"),
        (sample({"nsqd c": ()}, a=nsqd(), b=nsqd()), "idle"),
        (sample({"nsqd c": ("t",)}, a=nsqd(), b=nsqd()), "silent"),
        (sample({"nsqlookupd x": None}, a=nsqd(), b=nsqd()), "silent"),
    ],
)
@pytest.mark.parametrize("channels", [False, True])
def test_one_sample_in_between_that_differs_is_enough(
    between: ClusterSample, state: str, channels: bool
) -> None:
    key = C if channels else T
    assert states(QUIET, between, QUIET, channels=channels)[key] == state
    assert states(QUIET, between, channels=channels)[key] == state


def test_messages_are_held_until_some_are_consumed() -> None:
    held, fewer = sample(a=nsqd(HELD)), sample(a=nsqd({**HELD, C: Counters(5, depth=4)}))
    moved = sample(a=nsqd({**HELD, C: Counters(5, depth=5)}))
    assert states(held, moved) == {T: "messages"}
    assert states(held, moved, channels=True) == {C: "messages"}
    assert states(held, fewer) == {T: "used"}
    waiting = sample(a=nsqd({**EMPTY, T: Counters(5, depth=2)}))
    assert states(waiting, waiting, channels=True) == {C: "messages"}


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
    assert states(one, sample({"nsqd a": ()})) == {T: "silent"}


counts = st.integers(0, 2)
COUNTERS = st.builds(
    Counters, counts, counts, counts, counts, st.just(0), counts, counts, st.integers(0, 1)
)
REPORTS = st.builds(
    nsqd,
    st.dictionaries(st.sampled_from([T, C, ("t", "d"), ("u", ""), ("u", "c")]), COUNTERS),
    st.integers(1, 2),
)
NAMES = st.sampled_from(["a", "b"])
SILENT = st.dictionaries(
    st.sampled_from(["nsqd a", "nsqd b", "nsqlookupd l"]), st.sampled_from([None, ("t",), ()])
)
SAMPLES = st.builds(
    lambda nsqds, silent: sample(
        {name: each for name, each in silent.items() if name.removeprefix("nsqd ") not in nsqds},
        **nsqds,
    ),
    st.dictionaries(NAMES, REPORTS),
    SILENT,
)


def activity(each: Counters) -> tuple[int, ...]:
    return each.messages, each.requeues, each.timeouts, each.held


@given(
    samples=st.one_of(
        st.lists(SAMPLES, min_size=1, max_size=4),
        st.tuples(SAMPLES, st.integers(1, 3)).map(lambda pair: [pair[0]] * pair[1]),
        st.tuples(SAMPLES, SAMPLES).map(lambda pair: [pair[0], pair[1], pair[0]]),
    ),
    channels=st.booleans(),
)
def test_what_is_idle_was_seen_unchanged_and_without_clients_in_every_sample(
    samples: list[ClusterSample], channels: bool
) -> None:
    """And only that: whatever else there is has another verdict."""

    def seen(key: tuple[str, str], each: ClusterSample) -> Any:
        """All that counts of a topic or channel; None if a server may hide some of it."""
        if any(topics is None or key[0] in topics for topics in each.silent.values()):
            return None
        return {
            name: (report.start_time, used)
            for name, report in each.nsqds.items()
            if (used := of(key, report))
        }

    def of(key: tuple[str, str], report: CounterSample) -> dict[tuple[str, str], Any]:
        if channels and key not in report.counters:
            return {}
        wanted = {key, (key[0], "")} if channels else {k for k in report.counters if k[0] == key[0]}
        return {k: report.counters[k] for k in wanted if k in report.counters}

    found = states(*samples, channels=channels)
    last = samples[-1]
    every = {key for each in last.nsqds.values() for key in each.counters}
    keys = {key for key in every if key[1]} if channels else {(topic, "") for topic, _ in every}
    assert keys <= found.keys()
    for key in keys:
        looks = [seen(key, each) for each in samples]
        same = [
            look
            and {
                name: (start, {k: activity(each) for k, each in used.items()})
                for name, (start, used) in look.items()
            }
            for look in looks
        ]
        clients = any(
            each.clients
            for look in looks
            if look
            for _, used in look.values()
            for each in used.values()
        )
        held = sum(each.held for _, used in (looks[-1] or {}).values() for each in used.values())
        unchanged = all(each and each == same[0] for each in same) and not clients
        expected = ("messages" if held else "idle") if unchanged else None
        assert (found[key] if found[key] in ("idle", "messages") else None) == expected
