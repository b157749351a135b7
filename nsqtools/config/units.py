"""Durations, sizes and counts in human-readable form."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_LONGEST = 40  # maximum characters of a number
_MOST = 5  # names in one line
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration such as ``1h30m``, ``500ms`` or ``0``.

    Raises ConfigError for other texts.
    """
    text = text.strip()
    if text == "0":
        return 0.0
    total, end = 0.0, 0
    while len(text) < _LONGEST and (match := _DURATION.match(text, end)):
        total += float(match[1]) * _DURATION_UNITS[match[2]]
        end = match.end()
    if not text or end != len(text):
        raise ConfigError(
            f"{text!r} is not a duration: write a number and a unit, as in 500ms or 1h30m"
        )
    return total


def format_duration(seconds: float) -> str:
    """Return a short text for ``parse_duration``, exact to the nanosecond."""
    for unit, length in (("ns", 1e-6), ("us", 1e-3), ("ms", 1.0)):
        if 0 < seconds < length:
            return f"{round(seconds / _DURATION_UNITS[unit], 3):g}{unit}"
    text = ""
    for unit, length in (("h", 3600), ("m", 60)):
        count = int(seconds // length)
        seconds -= count * length
        text += f"{count}{unit}" if count else ""
    rest = f"{seconds:.9f}".rstrip("0").rstrip(".")
    return text if text and rest == "0" else f"{text}{rest}s"


TIME = "a time in UTC, such as 2026-11-21 or 2026-11-21T09:00, or a DURATION before now."
"""The values of ``parse_time``, for the help of options."""


def parse_time(text: str, now: float = 0.0) -> int:
    """Return ns since the epoch, of a time in ISO 8601 or of a duration before ``now``.

    ``now`` is in seconds since the epoch. A time without an offset is in UTC. Raises ConfigError
    for other texts.
    """
    from datetime import UTC, datetime  # not at a TAB press

    try:
        return round((now - parse_duration(text)) * 1e9)
    except ConfigError:
        pass
    try:
        found = datetime.fromisoformat(text.strip())
        return round(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1e6) * 1000
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{text!r} is not a time: write 2026-11-22T21:00:00Z, or a duration such as 1h30m"
        ) from None


def format_time(seconds: float) -> str:
    """Return a time in seconds since the epoch as UTC; ``-`` for one beyond the calendar."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "-"


def format_number(value: float | None) -> str:
    """Return a count or a rate; ``-`` for an unknown value."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 10 and value != int(value) else f"{value:,.0f}"


def format_age(seconds: float | None) -> str:
    """Return an estimated age; ``-`` for an unknown one, infinite if no message leaves."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "none leaves"
    return format_duration(round(seconds)) if seconds >= 1 else "0s"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 message`` or ``2,000 messages``; by default the plural ends in s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def enumerated(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others, for one line."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def parse_size(text: str) -> int:
    """Return the bytes of ``64MiB`` or ``64M`` (powers of 1024) or ``64MB`` (powers of 1000).

    Raises ConfigError for other texts.
    """
    match = _SIZE.fullmatch(text.strip())
    if text.strip() == "-1":
        return -1  # means none, where the minimum allows -1
    if not match or len(text) > _LONGEST:
        raise ConfigError(f"{text!r} is not a size: write it as in 65536, 64KiB or 5MB")
    decimal = bool(match[2]) and match[3].lower() == "b"
    return int(float(match[1]) * (1000 if decimal else 1024) ** _SIZE_POWERS[match[2].lower()])


def format_size(count: int) -> str:
    """Return a text for ``parse_size``, in the largest unit without a fraction."""
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for a similar known word, or an empty text."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
