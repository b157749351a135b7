"""Metrics as plain data, independent of how they are exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MetricType = Literal["counter", "gauge", "summary"]
"""A counter only grows while the process lives, and its name ends in ``_total``.

A summary has quantiles over a recent period, distinguished by the label ``quantile``.
"""


class Sample(NamedTuple):
    """One value; its ``labels`` distinguish it from the other values of the metric."""

    labels: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """A metric, with a name valid in Prometheus, and its current values.

    Times are in seconds, sizes in bytes; the name ends in the unit. ``help`` is a sentence.
    All samples have the same label names, and no two have the same label values.
    """

    name: str
    kind: MetricType
    help: str
    samples: Sequence[Sample]


@runtime_checkable
class Measured(Protocol):
    """An object with metrics, such as a sink."""

    def metrics(self) -> Iterable[Metric]:
        """Return the current values. The event loop calls it, so it must not block."""


def of_fields(
    prefix: str,
    rows: Iterable[tuple[str, str, str]],
    found: Sequence[tuple[Mapping[str, str], object]],
) -> Iterator[Metric]:
    """Yield a metric for each row, with a sample for each of the labelled objects.

    A row is a field of the objects, the metric's name without the prefix, and its help. A name
    ending in ``_total`` makes a counter, any other a gauge.
    """
    for field, name, text in rows:
        kind: MetricType = "counter" if name.endswith("_total") else "gauge"
        samples = [Sample(labels, float(getattr(each, field))) for labels, each in found]
        yield Metric(prefix + name, kind, text, samples)
