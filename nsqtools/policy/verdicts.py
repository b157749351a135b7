"""Decides the fate of a message by the status of the HTTP response (RFC 9110)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPAN = re.compile(r"(?P<first>[1-5][0-9]{2})(?:-(?P<last>[1-5][0-9]{2}))?")
_CLASS = re.compile(r"([1-5])xx", re.IGNORECASE)

_CODE, _RANGE, _ANY_OF_CLASS = 3, 2, 1

RETRY_AFTER = frozenset({429, 503})
"""Statuses whose ``Retry-After`` is respected (RFC 6585, section 4; RFC 9110, section 15.6.4)."""
_BLAME_MESSAGE = frozenset({400, 409, 411, 412, 413, 414, 415, 416, 422, 428, 431})
_BLAME_TIME = frozenset({408, 425, 429})


def blames_message(status: int) -> bool:
    """Whether the status blames the request; then the endpoint may be healthy."""
    return status in _BLAME_MESSAGE


def may_blame_one(status: int) -> bool:
    """Whether a batch refused with this status should be retried message by message."""
    return 400 <= status < 500 and status not in _BLAME_TIME


class Verdict(Enum):
    """The fate of a message; GONE is RETRY, and the endpoint is never used again."""

    DONE = "done"
    DROP = "drop"
    GONE = "gone"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class _Rule:
    """One item of a list; ``item`` is its flag and text. The greater ``exactness`` wins."""

    item: str
    exactness: int
    statuses: range
    verdict: Verdict


def _parse(flag: str, text: str, verdict: Verdict) -> Iterator[_Rule]:
    for word in [word.strip() for word in text.split(",")] if text.strip() else []:
        item = f"{flag} {word}"
        if match := _CLASS.fullmatch(word):
            first = 100 * int(match[1])
            yield _Rule(item, _ANY_OF_CLASS, range(first, first + 100), verdict)
        elif (match := _SPAN.fullmatch(word)) and match["first"] <= (match["last"] or "599"):
            last = int(match["last"] or match["first"])
            exactness = _RANGE if match["last"] else _CODE
            yield _Rule(item, exactness, range(int(match["first"]), last + 1), verdict)
        else:
            raise ConfigError(
                f"{flag}: {word!r} is not a status: give codes such as 429, 200-204 or 5xx, "
                "separated by commas"
            )


class Statuses:
    """Verdicts by status, from three lists of codes.

    A list is a text of codes (``304``), ranges (``200-204``) and classes (``2xx``), separated by
    commas; it may be empty.

    A code takes precedence over a range, and a range over a class, across all lists. A status in no
    list is retried, and 410 is GONE unless a list has it as a code. Raises ConfigError naming
    ``--success-on``, ``--drop-on`` or ``--retry-on`` for any other text, and for a status with
    different verdicts of equal precedence.
    """

    def __init__(self, success_on: str = "2xx", drop_on: str = "", retry_on: str = "") -> None:
        rules = [
            *_parse("--success-on", success_on, Verdict.DONE),
            *_parse("--drop-on", drop_on, Verdict.DROP),
            *_parse("--retry-on", retry_on, Verdict.RETRY),
        ]
        deciding: dict[int, _Rule] = {}
        for rule in sorted(rules, key=lambda rule: -rule.exactness):
            for status in rule.statuses:
                other = deciding.setdefault(status, rule)
                if other.exactness == rule.exactness and other.verdict is not rule.verdict:
                    raise ConfigError(
                        f"{other.item} and {rule.item}: status {status} is in both: remove one"
                    )
        self._verdicts = {status: rule.verdict for status, rule in deciding.items()}
        if 410 not in deciding or deciding[410].exactness < _CODE:
            self._verdicts[410] = Verdict.GONE

    def verdict(self, status: int) -> Verdict:
        """Return the verdict for this status."""
        return self._verdicts.get(status, Verdict.RETRY)


_DATES = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
"""The date formats of RFC 9110, section 5.6.7."""


def retry_after(value: str, *, date: str, longest: float) -> float | None:
    """Return the delay in seconds in a ``Retry-After`` header, at most ``longest``.

    The header is a whole number of seconds, or a date in one of the formats of RFC 9110, section
    5.6.7, by the server's clock: ``date`` is the Date header of the same response, and a date
    before it gives 0. Returns None for anything else, also for a date if the response's own date is
    missing or invalid: the server's time is then unknown, and this host's says nothing about it.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value), longest)
    now = _parse_date(date.strip())
    then = now and _parse_date(value, now.year)
    return min(max(0.0, (then - now).total_seconds()), longest) if now and then else None


def _parse_date(text: str, year: int = 0) -> datetime | None:
    """Parse a date; two digits of a year mean the one nearest to ``year``, if that is given."""
    for form in _DATES:
        with suppress(ValueError):
            moment = datetime.strptime(text, form).replace(tzinfo=UTC)
            if "%y" in form and year:
                moment = moment.replace(year=moment.year + 100 * round((year - moment.year) / 100))
            return moment
    return None
