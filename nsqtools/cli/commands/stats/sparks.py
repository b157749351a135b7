"""Numbers in few characters: sparklines, and counts that keep their width."""

from __future__ import annotations

from math import ceil, isnan, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*%#"


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """The newest value on the right, scaled to the highest; nan is a gap.

    More values than characters share them, the highest of each group showing.
    """
    if len(values) > width:
        values = [_highest(values, n, width) for n in range(width)]
    top = max((each for each in values if not isnan(each)), default=0.0)
    return "".join(_block(each, top, blocks) for each in values).rjust(width)


def _highest(values: Sequence[float], number: int, groups: int) -> float:
    first, after = (len(values) * n // groups for n in (number, number + 1))
    return max((each for each in values[first:after] if not isnan(each)), default=nan)


def _block(value: float, top: float, blocks: str) -> str:
    if isnan(value):
        return " "
    # Only nothing is as low as nothing.
    return blocks[ceil(value * (len(blocks) - 1) / top) if top else 0]


def short(value: float | None) -> str:
    """At most 6 characters: ``99999``, ``123k``, ``1.23M``; ``-`` for what is not known."""
    if value is None:
        return "-"
    if 0 < value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 99999.5:
        return str(round(value))
    scaled = value
    for unit in "kMGTPE":
        scaled /= 1000
        if scaled < 999.5:
            return f"{scaled:.3g}{unit}"
    return f"{value:.0e}"
