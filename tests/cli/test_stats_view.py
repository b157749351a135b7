"""The live view without a terminal: keys and reports in, lines out."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.screen import Screen
from rich.segment import Segment

from nsqtools.cli.commands.stats.view import ViewState, short
from nsqtools.net.http.replies import ChannelStats, NsqdStats, TopicStats
from tests.support.reports import NSQD, report, row

WIDE, TALL = 160, 30


def drawn(view: ViewState, width: int = WIDE, height: int = TALL) -> list[list[Segment]]:
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    return console.render_lines(Screen(view.draw(width, height)))


def shown(view: ViewState, width: int = WIDE, height: int = TALL) -> list[str]:
    return ["".join(part.text for part in line) for line in drawn(view, width, height)]


def names(view: ViewState, width: int = WIDE, height: int = TALL) -> list[str]:
    """Topic and channel of each row that is shown."""
    found = [line.split() for line in shown(view, width, height)[2:-1]]
    return ["/".join(words[:2]) for words in found if words]


def press(view: ViewState, *keys: str) -> bool:
    return all(view.press(key) for key in keys)


def test_what_is_not_known_comes_last() -> None:
    view = ViewState(2.0)
    view.update(report(row("a", ingress=1.0), row("b", ingress=None), row("c", ingress=4.0)))
    press(view, "s", "s", "s")
    assert names(view) == ["c/c", "a/c", "b/c"]


def test_of_more_rows_than_the_window_has_the_first_are_shown_and_counted() -> None:
    view = ViewState(2.0)
    view.update(report(*(row("t", f"c{n:02}") for n in range(30))))
    assert names(view, height=13) == [f"t/c{n:02}" for n in range(10)]
    assert "10 of 30 rows" in shown(view, height=13)[0]
    press(view, *"ss")
    assert len(names(view, height=13)) == 10


WINDOWS = (
    "topic    channel   depth▼   inflt     def    in/s   out/s   req/s   t-o/s  clients trend",
    "t        c             20       3       4       0       0     0.5     0.2        8 "
    "▁▅█          paused missing=1",
    "events   archive        0       3       4       -      12     0.5     0.2        8",
    "",
    "no answer: 127.0.0.1:4251: connection refused (and 1 more)",
    "q quit  s sort",
    "topic    channel   depth▼   inflt     def    in/s   out/s   req/s   t-o/s  clients",
    "t        c             20       3       4       0       0     0.5     0.2        8 "
    "paused missing=1",
    "events   archive        0       3       4       -      12     0.5     0.2        8",
    "",
    "no answer: 127.0.0.1:4251: connection refused (and 1 more)",
    "q quit  s sort",
    "topic    channel   depth▼    in/s   out/s",
    "t        c             20       0       0 paused missing=1",
    "events   archive        0       -      12",
    "",
    "no answer: 127.0.0.1:4251: connection refused (and 1 more)",
    "q quit  s sort",
)


def test_a_window_has_what_fits_into_it() -> None:
    view = ViewState(2.0)
    assert not "".join(shown(view)).strip()
    for at, depth in ((0.0, 0), (150.0, 10), (300.0, 20)):
        first = row(depth=depth, paused=True, missing=1)
        second = row("events", "archive", ingress=None, egress=12.25)
        told = report(first, second, silent=True, lookupd=True)
        channel = ChannelStats("c", depth)
        stats = NsqdStats("1.3.0", "OK", 5, (TopicStats("t", 0, channels=(channel,)),))
        view.update(replace(told, snapshot=replace(told.snapshot, at=at, stats={NSQD: stats})))
    lines = [line.rstrip() for width in (112, 111, 70) for line in shown(view, width, 7)[1:]]
    assert tuple(lines) == WINDOWS
    assert shown(view, 112, 7)[0].rstrip().endswith("  2 nsqds (1 silent)  2 rows  every 2s")
    press(view, "s")
    low = shown(view, 123, 5)
    assert ("1 of 2 rows" in low[0], "inflt▼" in low[1]) == (True, True)


def test_narrow_windows_lose_columns_first_and_names_are_cut_last() -> None:
    view = ViewState(2.0)
    view.update(report(row("a" * 30, "b" * 30, depth=123)))
    wide, narrow, least = (shown(view, width=width) for width in (200, 90, 50))
    assert "clients" in wide[1]
    assert "a" * 30 in wide[2]
    assert "b" * 30 in wide[2]
    assert "clients" not in narrow[1]
    assert "…" in least[2]
    assert all(title in least[1] for title in ("depth", "in/s", "out/s"))
    assert "123" in least[2]
    assert {len(line) for line in shown(view, width=15)} == {15}


def test_what_a_server_sends_cannot_drive_the_terminal() -> None:
    view = ViewState(2.0)
    view.update(report(row("a\x1b[2Jb", "c\nd", missing=1), silent=True))
    lines = shown(view)
    assert all(line.isprintable() for line in lines)
    assert any("no answer: " in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (9.96, "10.0"),
        (9.5, "9.5"),
        (10.4, "10"),
        (99999, "99999"),
        (99999.6, "100k"),
        (1234567, "1.23M"),
        (1e21, "1e+21"),
    ],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text
