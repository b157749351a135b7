"""Metrics as plain data, independent of how they are exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MetricType = Literal["counter", "gauge", "summary"]
"""A counter only grows while the process lives, and its name ends in ``_total``.

A summary has quantiles over a recent period; its label ``quantile`` says which.
"""


class Sample(NamedTuple):
    """One value; its ``labels`` distinguish it from the other values of the metric."""

    labels: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """A metric, with a name that is valid in Prometheus, and its current values.

    Times are in seconds and sizes in bytes, and the name ends in the unit. ``help`` is a sentence.
    All samples have the same label names, and no two have the same label values.
    """

    name: str
    kind: MetricType
    help: str
    samples: Sequence[Sample]


@runtime_checkable
class Measured(Protocol):
    """An object that has metrics, such as a sink."""

    def metrics(self) -> Iterable[Metric]:
        """Return the current values. The event loop calls it, so it must not block."""
