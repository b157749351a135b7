"""What is counted, as plain data: nothing here knows who serves it, or how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Kind", "Measured", "Metric", "Sample"]

Kind = Literal["counter", "gauge", "summary"]
"""A counter only grows while the process lives, and its name ends in ``_total``.

A summary has quantiles of a time just past: the label ``quantile`` says which.
"""


class Sample(NamedTuple):
    """One value; ``labels`` tell it from the other values of the same metric."""

    labels: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """A name, as Prometheus wants it, and its values of now.

    Times are in seconds and sizes in bytes, and the name says so; ``help`` is a sentence. All
    samples have the same labels by name, and no two of them by value.
    """

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


@runtime_checkable
class Measured(Protocol):
    """A part that counts, such as a sink."""

    def metrics(self) -> Iterable[Metric]:
        """The values of now; called in the event loop, so it must not block."""
