"""What is kept of the last hour: gaps where a server was silent, sums, and bounded memory."""

import tracemalloc

from nsqtools.policy.history import POINTS, SPACING, History
from nsqtools.policy.rates import Counters, CounterSample, Row


def row(channel: str, depth: int, ingress: float | None = None) -> Row:
    return Row("t", channel, Counters(depth=depth), 1, 0, ingress=ingress, egress=0.0)


def test_a_sum_has_a_gap_where_an_nsqd_that_has_the_channel_was_silent() -> None:
    history = History()
    history.add(0.0, {"a": [row("c", 1)], "b": [row("c", 10)]})
    history.add(SPACING, {"a": [row("c", 2)], "b": None})
    history.add(2 * SPACING, {"a": [row("c", 3)], "b": []})
    assert history.total([("t", "c")], "depth") == ([0.0, SPACING, 2 * SPACING], [11.0, None, 3.0])
    assert history.of_node(("t", "c"), "a", "depth").values == [1.0, 2.0, 3.0]
    assert history.of_node(("t", "c"), "b", "depth").values == [10.0, None, None]
    assert history.nodes(("t", "c")) == ["a", "b"]


def test_a_rate_that_is_unknown_is_no_zero() -> None:
    history = History()
    history.add(0.0, {"a": [row("c", 0)]})
    history.add(SPACING, {"a": [row("c", 0, 7.0)]})
    assert history.total([("t", "c")], "ingress").values == [None, 7.0]
    assert history.total([("t", "c"), ("t", "d")], "requeues").values == [None, None]


def test_a_poll_adds_a_point_if_the_next_would_be_farther_from_the_spacing() -> None:
    history = History()
    for at in (0.0, 9.0, 17.4, 18.0, 35.4, 35.5):
        sample = CounterSample(at, 1, {("t", "c"): Counters()})
        history.record(at, {"a": sample}, 5.0)
    times, _ = history.total([("t", "c")], "depth")
    assert times == [0.0, 18.0, 35.5]


def test_the_ring_keeps_an_hour_and_forgets_what_is_gone() -> None:
    history = History()
    history.add(0.0, {"gone": [row("c", 5)]})
    history.add(SPACING, {"a": [row("c", 4)]})
    for n in range(POINTS):
        history.add(SPACING * (n + 2), {"a": [row("d", n)]})
    times, values = history.total([("t", "d")], "depth")
    assert (len(times), times[0], values[-1]) == (POINTS, 2 * SPACING, POINTS - 1.0)
    assert history.nodes(("t", "c")) == []


def test_an_hour_of_2000_busy_channels_on_three_nsqds_stays_below_80_mb() -> None:
    busy, rates = Counters(1, 1, 1, 5, 0, 1, 1, 1), (1.0, 1.0, 1.0, 1.0)
    rows = [Row(f"t{n}", "c", busy, 1, 0, *rates, 1) for n in range(200)]
    rows += [
        Row(f"t{n}", "", Counters(1, depth=1), 1, 0, 1.0, 1.0, 0.0, 0.0, 1) for n in range(200)
    ]
    history = History()
    tracemalloc.start()
    try:
        for n in range(3):
            history.add(n * SPACING, dict.fromkeys("abc", rows))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8e6  # of a tenth of them; a series has all its memory from its first point on
