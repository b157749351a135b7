"""A strict reader of what a monitoring plugin prints.

After the Monitoring Plugins Development Guidelines: Plugin Output, Threshold and Ranges,
Performance data.
"""

import re
from dataclasses import dataclass

STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = rf"(?:(?:(?:~|{_NUMBER})?:)?{_NUMBER}|{_NUMBER}:|)"
_DATUM = re.compile(
    rf"(?:'(?P<quoted>[^'=|]+)'|(?P<bare>[^' =|]+))=(?P<value>{_NUMBER}|U)"
    rf"(?:[mu]?s|%|[KMGT]?B|c|)"
    rf"(?:;{_RANGE}(?:;{_RANGE}(?:;(?:{_NUMBER})?(?:;(?:{_NUMBER})?)?)?)?)?(?: |$)"
)
_FIRST = re.compile(rf"NSQ ({'|'.join(STATES)}) - ([^|]*[^| ])(?: \| (.*))?")


@dataclass(frozen=True, slots=True)
class Output:
    state: str
    text: str
    data: dict[str, float | None]
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
    state, summary, left = match[1], match[2], match[3] or ""
    data: dict[str, float | None] = {}
    while left:
        datum = _DATUM.match(left)
        assert datum, f"{left!r} is no 'label'=value[UOM];[warn];[crit];[min];[max]"
        label = datum["quoted"] or datum["bare"]
        assert label not in data, f"{label} twice"
        data[label] = None if datum["value"] == "U" else float(datum["value"])
        left = left[datum.end() :]
    return Output(state, summary, data, more)
