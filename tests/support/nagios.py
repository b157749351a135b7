"""A strict reader of what a monitoring plugin prints.

After the Monitoring Plugins Development Guidelines: Plugin Output, Threshold and Ranges,
Performance data.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_NUMBER = r"-?\d+(?:\.\d+)?"
_FIRST = re.compile(rf"NSQ ({'|'.join(STATES)}) - ([^|]*[^| ])(?: \| (.*))?")
_RANGE = re.compile(rf"(?:(~|{_NUMBER})?:)?({_NUMBER})?")
_DATUM = re.compile(
    rf"(?:'(?P<quoted>[^'=|]+)'|(?P<bare>[^' =|]+))=(?P<value>{_NUMBER}|U)"
    r"(?:s|us|ms|%|[KMGT]?B|c|)"
    rf"(?:;(?P<warn>[^; ]*)(?:;(?P<crit>[^; ]*)(?:;(?:{_NUMBER})?(?:;(?:{_NUMBER})?)?)?)?)?"
    r"(?: |$)"
)


class Datum(NamedTuple):
    value: float | None


class Output(NamedTuple):
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
        for each in (match["warn"] or "", match["crit"] or ""):
            limits = _RANGE.fullmatch(each)
            assert limits, f"{each!r} is no range"
            low, high = limits.groups()
            start = -math.inf if low == "~" else float(low or 0)
            assert each != "~:", "no limit"
            assert start <= (math.inf if high is None else float(high)), f"{each!r} goes backwards"
        found[label] = Datum(None if match["value"] == "U" else float(match["value"]))
        at = match.end()
    return found
