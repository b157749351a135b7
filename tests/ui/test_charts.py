"""Charts: what is drawn, where there are gaps, and how many lines."""

from nsqtools.policy.history import SPACING, History, Points
from nsqtools.policy.rates import Counters, Row
from nsqtools.ui.charts import charts, path, spark

KEY = ("t", "c")


def row(depth: int, missing: int = 0) -> Row:
    return Row("t", "c", Counters(depth=depth), 1, missing, egress=0.0)


def history_of(nsqds: int) -> History:
    history = History()
    for n in range(3):
        history.add(SPACING * n, {f"nsqd{each}": [row(n)] for each in range(nsqds)})
    return history


def test_a_path_has_a_gap_where_a_value_is_unknown() -> None:
    points = Points([0.0, 50.0, 75.0, 100.0], [0.0, None, 5.0, 10.0])
    assert path(points, 10.0, 100.0, 100.0, 100, 102) == "M0.0,101.0h0.5M75.0,51.0h0.5L100.0,1.0"


def test_charts_end_with_the_newest_numbers_and_have_few_lines() -> None:
    for nsqds, labels in ((1, 1), (2, 3), (20, 8)):
        depth, *others = charts(history_of(nsqds), KEY, 50.0, row(45))
        assert len(others) == 6
        assert (depth.title, depth.top, depth.span) == ("Waiting", 50.0, 60.0)
        assert len(depth.lines) == labels
        assert (depth.lines[0][0], depth.last) == ("all", 45.0)
    assert len(charts(history_of(1), ("t", ""), 50.0, row(1))) == 2
    assert charts(history_of(1), KEY, 50.0, row(45, missing=1))[0].last is None


def test_a_small_chart_of_nothing_is_empty() -> None:
    assert spark(History(), [KEY]) == ""
    assert spark(history_of(1), [KEY]).startswith("M")
