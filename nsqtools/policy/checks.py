"""The monitoring check of a cluster: OK, WARNING, CRITICAL or UNKNOWN, the reason, and numbers.

A threshold applies to each topic and channel separately, summed over all nsqds. It is exceeded by
a greater value, like a range 0:N of the Monitoring Plugins Development Guidelines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from nsqtools.policy.rates import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsqtools.policy.rates import Row


class Status(IntEnum):
    """The state of a check, and its exit status (guidelines, Plugin Return Codes)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def weight(self) -> int:
        """The order of severity: CRITICAL and WARNING outweigh UNKNOWN."""
        return (Status.OK, Status.UNKNOWN, Status.WARNING, Status.CRITICAL).index(self)


@dataclass(frozen=True, slots=True)
class Limit:
    """Maximum values of a number; None is no limit."""

    warn: float | None = None
    crit: float | None = None

    def __bool__(self) -> bool:
        return self.warn is not None or self.crit is not None

    def exceeded(self, value: float) -> tuple[Status, float]:
        """Return OK and 0, or the state and the exceeded limit."""
        for status, limit in ((Status.CRITICAL, self.crit), (Status.WARNING, self.warn)):
            if limit is not None and value > limit:
                return status, limit
        return Status.OK, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All thresholds of a check: rates per second, ages in seconds; 0 is no minimum."""

    depth: Limit = field(default_factory=Limit)
    requeue_rate: Limit = field(default_factory=Limit)
    timeout_rate: Limit = field(default_factory=Limit)
    age: Limit = field(default_factory=Limit)
    clients_min: int = 0
    nsqds_min: int = 0
    paused: bool = False

    @property
    def need_rates(self) -> bool:
        """Whether the check needs two samples."""
        return bool(self.requeue_rate or self.timeout_rate or self.age)


@dataclass(frozen=True, slots=True)
class Peers:
    """The queried servers, each with its error, or None if it answered.

    ``unwell`` has the health of each unhealthy nsqd, as reported by it.
    """

    nsqds: Mapping[str, str | None]
    lookupds: Mapping[str, str | None] = field(default_factory=dict)
    unwell: Mapping[str, str] = field(default_factory=dict)

    @property
    def answering(self) -> int:
        """The number of answering nsqds."""
        return sum(error is None for error in self.nsqds.values())

    @property
    def errors(self) -> list[str]:
        """The errors of all servers without an answer."""
        programs = (("nsqlookupd", self.lookupds), ("nsqd", self.nsqds))
        return [f"{p} {error}" for p, asked in programs for error in asked.values() if error]

    @property
    def none_answers(self) -> bool:
        """Whether no server answers."""
        return all((*self.nsqds.values(), *self.lookupds.values()))


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem with a topic or channel, or with the servers if both names are empty."""

    status: Status
    text: str
    topic: str = ""
    channel: str = ""

    def __str__(self) -> str:
        return f"{_place(self.topic, self.channel)}: {self.text}" if self.topic else self.text


@dataclass(frozen=True, slots=True)
class Datum:
    """A number for graphs; ``value`` is None if unknown, ``unit`` is "s" or empty.

    With ``at_least``, ``limit.crit`` is a minimum.
    """

    label: str
    value: float | None
    limit: Limit = field(default_factory=Limit)
    unit: str = ""
    at_least: bool = False
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check; ``troubles`` are sorted, the most severe first."""

    status: Status
    summary: str
    troubles: Sequence[Trouble] = ()
    data: Sequence[Datum] = ()


def unknown(reason: str) -> CheckResult:
    """Return the result UNKNOWN, with its reason."""
    return CheckResult(Status.UNKNOWN, reason)


def age(row: Row) -> float | None:
    """Estimate the waiting time of messages of a topic or channel, in seconds; None without egress.

    nsqd does not report waiting times. The depth, divided by the messages leaving per second, is
    the waiting time of a new message; at a steady rate the oldest message has waited as long
    (Little's law). The result is infinite if messages wait and no message leaves.
    """
    if not row.totals.depth:
        return 0.0
    if row.egress is None or not row.whole:
        return None  # the depth covers all nsqds, the egress only some nsqds
    return row.totals.depth / row.egress if row.egress else math.inf


@dataclass(frozen=True, slots=True)
class _Measure:
    """A number with an optional Limit of the same ``name``; ``text`` reports an exceeded limit."""

    name: str
    text: str
    of_topics: bool = False
    is_rate: bool = False
    unit: str = ""

    def of(self, row: Row) -> float | None:
        """Return the value; None for a rate unknown on some nsqds, as the sum would be too low."""
        if self.name == "age":
            return age(row)
        value: float | None = getattr(row if self.is_rate else row.totals, self.name)
        return value if row.whole or not self.is_rate else None


_MEASURES = (
    _Measure("depth", "depth {} is over {}", of_topics=True),
    _Measure("requeue_rate", "{} requeued per second, over {}", is_rate=True),
    _Measure("timeout_rate", "{} timed out per second, over {}", is_rate=True),
    _Measure("age", "messages wait about {} s, over {} s", of_topics=True, is_rate=True, unit="s"),
)


def _limited(limits: Limits, row: Row) -> Iterator[tuple[_Measure, Limit]]:
    """Yield the measures of this channel or topic with a limit, and the limits."""
    for measure in _MEASURES:
        if (row.channel or measure.of_topics) and (limit := getattr(limits, measure.name)):
            yield measure, limit


def judge(
    limits: Limits, rows: Sequence[Row], peers: Peers, *, topic: str = "", channel: str = ""
) -> CheckResult:
    """Judge the rows: of everything, one topic, all channels of a name, or one channel.

    The status is UNKNOWN if no server answers. Otherwise the most severe trouble decides: a silent
    nsqd or nsqlookupd is a WARNING; if no nsqd answers, or no nsqd has the named topic or channel,
    the status is CRITICAL.
    """
    if peers.none_answers:
        return unknown(f"no server answers: {'; '.join(peers.errors)}")
    seen = [row for row in shown(rows, channel) if row.nodes]
    found = [*_of_peers(limits, peers), *_missing(seen, peers, topic, channel)]
    for row in seen:
        found += _of_row(limits, row)
    found.sort(key=lambda trouble: (-trouble.status.weight, trouble.topic, trouble.channel))
    status = found[0].status if found else Status.OK
    summary = str(found[0]) if found else _summary(seen, peers, channel)
    if len(found) > 1:
        summary += f" (and {len(found) - 1} more)"
    return CheckResult(status, summary, found, [*_data(limits, seen, peers, topic)])


def _of_peers(limits: Limits, peers: Peers) -> Iterator[Trouble]:
    for error in peers.errors:
        yield Trouble(Status.WARNING, error)
    for name, health in peers.unwell.items():
        yield Trouble(Status.CRITICAL, f"nsqd {name} is unhealthy: {health}")
    if peers.answering < limits.nsqds_min:
        text = f"nsqds that answer: {peers.answering}, fewer than {limits.nsqds_min}"
        yield Trouble(Status.CRITICAL, text)
    elif peers.nsqds and not peers.answering:
        text = f"none of {len(peers.nsqds)} nsqds answers" if len(peers.nsqds) > 1 else ""
        yield Trouble(Status.CRITICAL, text or "the only nsqd does not answer")


def _missing(rows: Sequence[Row], peers: Peers, topic: str, channel: str) -> Iterator[Trouble]:
    if peers.nsqds and not peers.answering:
        return
    if not topic and not channel:
        if not peers.nsqds:
            yield Trouble(Status.CRITICAL, "nsqlookupd lists no nsqd")
        return
    if not any(topic in ("", row.topic) and channel in ("", row.channel) for row in rows):
        silent = " that answers" if peers.answering < len(peers.nsqds) else ""
        what = "" if topic else f"channel {channel}: "
        yield Trouble(Status.CRITICAL, f"{what}not found on any nsqd{silent}", topic, channel)


def _of_row(limits: Limits, row: Row) -> Iterator[Trouble]:
    found = [_over(limit, measure, row) for measure, limit in _limited(limits, row)]
    if row.channel and row.totals.clients < limits.clients_min:
        text = f"{row.totals.clients} clients, fewer than {limits.clients_min}"
        found.append((Status.CRITICAL, text))
    if limits.paused and row.totals.paused:
        found.append((Status.CRITICAL, "paused"))
    for status, text in found:
        if status is not Status.OK:
            yield Trouble(status, text, row.topic, row.channel)


def _over(limit: Limit, measure: _Measure, row: Row) -> tuple[Status, str]:
    value = measure.of(row)
    if value is None:
        return (
            Status.UNKNOWN,
            "rates are unknown: it was recreated, or nsqd restarted, during the check",
        )
    status, over = limit.exceeded(value)
    if value == math.inf:
        return status, f"depth {row.totals.depth}, and nothing is consumed"
    return status, measure.text.format(number(value), number(over))


def _summary(rows: Sequence[Row], peers: Peers, channel: str) -> str:
    if channel and len(only := [row for row in rows if row.channel]) == 1:
        totals = only[0].totals
        return (
            f"{_place(only[0].topic, channel)}: depth {totals.depth}, "
            f"in flight {totals.in_flight}, clients {totals.clients}"
        )
    topics = len({row.topic for row in rows})
    channels = sum(bool(row.channel) for row in rows)
    depth = sum(row.totals.depth for row in rows)
    return f"nsqds {peers.answering}, topics {topics}, channels {channels}, depth {depth}"


def _data(limits: Limits, rows: Sequence[Row], peers: Peers, topic: str) -> Iterator[Datum]:
    """Yield all numbers of a named topic; without one, sums, and maximums with their limits.

    The labels depend only on the options and on the topic's channels.
    """
    least = limits.nsqds_min or None
    yield Datum("nsqds", peers.answering, Limit(crit=least), "", True, len(peers.nsqds))
    if topic:
        for row in rows:
            yield from _data_of(limits, row)
        return
    for name in ("depth", "in_flight", "deferred", "clients"):
        yield Datum(name, sum(getattr(row.totals, name) for row in rows))
    for measure in _MEASURES:
        if limit := getattr(limits, measure.name):
            values = [measure.of(row) for row in rows if row.channel or measure.of_topics]
            yield Datum(f"highest_{measure.name}", _highest(values), limit, measure.unit)


def _data_of(limits: Limits, row: Row) -> Iterator[Datum]:
    place = _place(row.topic, row.channel)
    yield Datum(f"{place}:depth", row.totals.depth, limits.depth)
    if row.channel:
        yield Datum(f"{place}:in_flight", row.totals.in_flight)
        yield Datum(f"{place}:deferred", row.totals.deferred)
        least = Limit(crit=limits.clients_min or None)
        yield Datum(f"{place}:clients", row.totals.clients, least, "", True)
    for measure, limit in _limited(limits, row):
        if measure.is_rate:
            yield Datum(f"{place}:{measure.name}", measure.of(row), limit, measure.unit)


def _highest(values: Sequence[float | None]) -> float | None:
    """Return the maximum; None if any value is unknown, as this value may be the maximum."""
    numbers = [value for value in values if value is not None]
    return max(numbers, default=0.0) if len(numbers) == len(values) else None


def number(value: float) -> str:
    """Format a number without exponent and without trailing zeros."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _place(topic: str, channel: str) -> str:
    return f"{topic}/{channel}" if channel else topic
