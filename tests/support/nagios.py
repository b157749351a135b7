"""A strict reader of what a monitoring plugin prints.

After the Monitoring Plugins Development Guidelines: Plugin Output, Threshold and Ranges,
Performance data.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_NUMBER = r"-?\d+(?:\.\d+)?"
_FIRST = re.compile(rf"NSQ ({'|'.join(STATES)}) - ([^|]*[^| ])(?: \| (.*))?")
_RANGE = re.compile(rf"(?:(~|{_NUMBER})?:)?({_NUMBER})?")
_DATUM = re.compile(
    rf"(?:'(?P<quoted>[^'=|]+)'|(?P<bare>[^' =|]+))=(?P<value>{_NUMBER}|U)(?P<unit>[A-Za-z%]*)"
    rf"(?:;(?P<warn>[^; ]*)(?:;(?P<crit>[^; ]*)"
    rf"(?:;(?P<low>{_NUMBER})?(?:;(?P<high>{_NUMBER})?)?)?)?)?"
)
_UNITS = ("", "s", "us", "ms", "%", "B", "KB", "MB", "GB", "TB", "c")


@dataclass(frozen=True, slots=True)
class Range:
    """What is fine, ends included."""

    low: float
    high: float

    @classmethod
    def read(cls, text: str) -> Range | None:
        if not text:
            return None
        match = _RANGE.fullmatch(text)
        assert match, f"{text!r} is no range"
        assert text != "~:", f"{text!r} is no range"
        low, high = match.groups()
        start = -math.inf if low == "~" else float(low or 0)
        end = math.inf if high is None else float(high)
        assert start <= end, f"{text!r} goes backwards"
        return cls(start, end)


@dataclass(frozen=True, slots=True)
class Datum:
    value: float | None
    unit: str
    warn: Range | None
    crit: Range | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Output:
    state: str
    text: str
    data: dict[str, Datum]
    more: list[str]

    @property
    def code(self) -> int:
        return STATES.index(self.state)


def read(text: str) -> Output:
    """AssertionError for what the guidelines do not allow."""
    assert text.endswith("\n"), "the last line does not end"
    first, *more = text[:-1].split("\n")
    assert all(line.isprintable() for line in (first, *more)), f"{text!r} would drive a terminal"
    assert not any("|" in line for line in more), "performance data stand in the first line"
    match = _FIRST.fullmatch(first)
    assert match, f"{first!r} is not: service, state, text and performance data"
    state, summary, data = match.groups()
    return Output(state, summary, _data(data or ""), more)


def _data(text: str) -> dict[str, Datum]:
    found: dict[str, Datum] = {}
    at = 0
    while at < len(text):
        match = _DATUM.match(text, at)
        assert match, f"{text[at:]!r} is no 'label'=value[UOM];[warn];[crit];[min];[max]"
        label = match["quoted"] or match["bare"]
        assert label not in found, f"{label} twice"
        assert match["unit"] in _UNITS, f"{match['unit']!r} is no unit"
        found[label] = Datum(
            None if match["value"] == "U" else float(match["value"]),
            match["unit"],
            Range.read(match["warn"] or ""),
            Range.read(match["crit"] or ""),
            float(match["low"]) if match["low"] else None,
            float(match["high"]) if match["high"] else None,
        )
        at = match.end()
        assert text[at : at + 1] in ("", " "), f"{text[at:]!r} after {label}"
        at += 1
    return found
