"""The result of a check as monitoring programs read it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from nsqtools.cli.exits import one_line
from nsqtools.policy.checks import number

if TYPE_CHECKING:
    from nsqtools.policy.checks import Datum, Verdict

_MOST_LINES = 50  # Nagios keeps 8 KiB of an output
_NOT_IN_LABELS = re.compile(r"[='|]")


def nagios(verdict: Verdict) -> str:
    """A line of state and numbers, then one for each finding if there are several.

    As the Monitoring Plugins Development Guidelines want it (Plugin Output, Performance data).
    """
    data = " ".join(map(_datum, verdict.data))
    first = f"NSQ {verdict.status.name} - {_plain(verdict.summary)}"
    lines = [f"{first} | {data}" if data else first]
    if len(verdict.findings) > 1:
        shown = verdict.findings[:_MOST_LINES]
        lines += [f"{each.status.name}: {_plain(str(each))}" for each in shown]
        if more := len(verdict.findings) - len(shown):
            lines.append(f"and {more} more")
    return "".join(f"{line}\n" for line in lines)


def _datum(datum: Datum) -> str:
    """``'label'=value[UOM];[warn];[crit];[min];[max]``; U is a value that could not be had."""
    known = datum.value is not None and math.isfinite(datum.value)
    value = f"{number(datum.value or 0)}{datum.unit}" if known else "U"
    limits = [
        "" if limit is None else f"{number(limit)}{':' if datum.at_least else ''}"
        for limit in (datum.limit.warn, datum.limit.crit)
    ]
    most = "" if datum.maximum is None else number(datum.maximum)
    label = _NOT_IN_LABELS.sub("_", one_line(datum.label))
    return f"'{label}'={';'.join((value, *limits, '0', most))}".rstrip(";")


def _plain(text: str) -> str:
    """A line of text that does not end where the numbers begin."""
    return one_line(text).replace("|", "/")
