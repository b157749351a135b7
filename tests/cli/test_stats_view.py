"""The live view without a terminal: keys and reports in, lines out."""

from __future__ import annotations

import io
import os
import sys
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from rich.screen import Screen

from nsqtools.cli.commands.stats import watch
from nsqtools.cli.commands.stats.view import ViewState, short, sparkline
from nsqtools.cli.commands.stats.watch import Keys
from tests.support.clock import elapse, virtual
from tests.support.reports import report, row

if TYPE_CHECKING:
    from rich.segment import Segment

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


def sorted_by(view: ViewState) -> str:
    (chosen,) = [part.text for part in drawn(view)[1] if part.style and part.style.reverse]
    return chosen.strip()


def test_what_is_not_known_comes_last_in_both_orders() -> None:
    view = ViewState(2.0)
    view.update(report(row("a", ingress=1.0), row("b", ingress=None), row("c", ingress=4.0)))
    press(view, "s", "s", "s")
    assert names(view) == ["c/c", "a/c", "b/c"]
    press(view, "r")
    assert names(view) == ["a/c", "c/c", "b/c"]


def test_keys_are_text_while_a_filter_is_typed() -> None:
    view = ViewState(2.0)
    view.update(report())
    assert press(view, "/", "q", "s", "r", "j")
    assert (view.filter, sorted_by(view)) == ("qsrj", "depth▼")
    press(view, "backspace", "backspace")
    assert view.filter == "qs"
    press(view, "escape")
    assert (view.filter, view.editing) == ("", False)
    assert press(view, "/", "q", "enter", "escape")
    assert (view.filter, view.editing) == ("", False)


def test_rows_that_exceed_the_window_scroll_and_stop_at_both_ends() -> None:
    view = ViewState(2.0)
    view.update(report(*(row("t", f"c{n:02}") for n in range(30))))
    height = 13  # ten rows
    assert names(view, height=height) == [f"t/c{n:02}" for n in range(10)]
    steps = {
        "up": 0,
        "j": 1,
        "pagedown": 11,
        "end": 20,
        "down": 20,
        "k": 19,
        "pageup": 9,
        "home": 0,
    }
    for key, first in steps.items():
        press(view, key)
        assert names(view, height=height)[0] == f"t/c{first:02}"
        assert len(names(view, height=height)) == 10


def test_sparklines_hold_what_was_and_forget_what_is_gone() -> None:
    view = ViewState(2.0)
    for depth in (0, 10, 20):
        view.update(report(row(depth=depth)))
    assert "▁▅█ " in shown(view)[2]
    view.update(report())
    view.update(report(row(depth=20)))
    assert "▁▅█" not in shown(view)[2]


def test_narrow_windows_lose_sparklines_first_and_names_are_cut_last() -> None:
    view = ViewState(2.0)
    view.update(report(row("a" * 30, "b" * 30, depth=123)))
    wide, narrow, least = (shown(view, width=width) for width in (200, 90, 50))
    assert "depth, 0s" in wide[1]
    assert "a" * 30 in wide[2]
    assert "b" * 30 in wide[2]
    assert "0s" not in narrow[1]
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
    ("values", "width", "text"),
    [
        ([], 4, "    "),
        ([0, 1, 2, 7], 4, "▁▂▃█"),
        ([1e-9, 100], 2, "▂█"),
        ([5, nan, 5], 3, "█ █"),
        ([1, 2, 3, 4, 5, 6, 7, 7], 4, "▃▅▇█"),
        ([9, 0, 0, 0], 2, "█▁"),
    ],
)
def test_sparklines(values: list[float], width: int, text: str) -> None:
    assert sparkline(values, width) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (9.96, "10.0"),
        (99999, "99999"),
        (99999.6, "100k"),
        (1234567, "1.23M"),
    ],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "pageup", "pagedown"]),
        (b"\x1b[H\x1b[4~\x1bOF", ["home", "end", "end"]),
        (b"\r\n\x7f\x08", ["enter", "enter", "backspace", "backspace"]),
        (b"\x1b[1;5C\x01", ["unknown", "unknown"]),
        ("ä€".encode(), ["ä", "€"]),
        (b"a\xffb", ["a", "\ufffd", "b"]),
        (b"\x1b\x1b[A\x1bq", ["escape", "up", "escape", "q"]),
    ],
)
def test_what_a_terminal_sends_are_keys(data: bytes, expected: list[str]) -> None:
    assert Keys().feed(data) == expected


@pytest.mark.parametrize("sequence", [b"\x1b[5~", b"\x1bOA", b"\x1b[A"])
def test_a_key_may_come_in_parts(sequence: bytes) -> None:
    for cut in range(1, len(sequence)):
        keys = Keys()
        assert keys.feed(b"q" + sequence[:cut]) == ["q"]
        assert keys.waiting
        assert keys.feed(sequence[cut:] + b"s") == ["pageup" if b"5" in sequence else "up", "s"]
        assert not keys.waiting


@pytest.mark.parametrize(
    ("begun", "key"), [(b"\x1b", "escape"), (b"\x1b[1;", "unknown"), (b"\x1bO", "unknown")]
)
def test_a_key_that_goes_on_no_more_is_one_key(begun: bytes, key: str) -> None:
    keys = Keys()
    assert keys.feed(begun) == []
    assert keys.release() == [key]
    assert keys.release() == []
    assert keys.feed(b"A") == ["A"]


class Pressed:
    """The keys that a screen hears of."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def press(self, key: str) -> bool:
        self.keys.append(key)
        return True


@virtual
async def test_what_goes_on_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as terminal, os.fdopen(writing, "wb", 0) as user:
        monkeypatch.setattr(sys, "stdin", terminal)
        pressed: Any = Pressed()
        screen = watch.Screen(pressed)
        for sequence, patience in ((b"\x1b", 0.01), (b"[A", 0.01), (b"\x1b", 3600.0)):
            monkeypatch.setattr(watch, "_SEQUENCE", patience)
            user.write(sequence)
            screen._read()
        await elapse(1)
        assert pressed.keys == ["up"]
