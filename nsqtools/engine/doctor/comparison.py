"""The differences between two snapshots: findings, nsqds, topics and channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.engine.doctor.findings import without

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.engine.doctor.snapshot import SavedSnapshot
    from nsqtools.policy.rates import ChannelKey, CounterSample

    Samples = Mapping[str, CounterSample | None]


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences to a snapshot taken at ``since``, in seconds since the epoch.

    ``came``, ``went`` and ``still`` are topics and channels; the channel of a topic is empty.
    ``still`` are those on which nothing was published and nothing consumed: a topic only with all
    its channels. Nothing is said of nsqds that were silent in either snapshot, or that a silent
    nsqlookupd may list, or of counters of an nsqd restarted since. While servers are silent, only
    findings about a single nsqd that answers are gone. ``nsqds_came`` and
    ``nsqds_went`` are the nsqds that only one of the snapshots knows.
    """

    since: float
    new_findings: tuple[Finding, ...]
    gone_findings: tuple[Finding, ...]
    came: tuple[ChannelKey, ...]
    went: tuple[ChannelKey, ...]
    still: tuple[ChannelKey, ...]
    nsqds_came: tuple[str, ...]
    nsqds_went: tuple[str, ...]


def compare(
    before: SavedSnapshot, now: SavedSnapshot, skipped: Collection[str] = ()
) -> Differences:
    """Return the differences to the snapshot ``before``, without findings of ``skipped`` codes."""
    old, new = ({each.about for each in one.findings} for one in (before, now))
    samples = before.samples(), now.samples()
    gone = (
        each
        for each in without(before.findings, skipped)
        if each.about not in new and (now.is_complete or each.server in now.stats)
    )
    return Differences(
        before.at,
        tuple(each for each in without(now.findings, skipped) if each.about not in old),
        tuple(gone),
        _only_in_second(*samples, hidden=bool(before.silent_lookupds)),
        _only_in_second(*reversed(samples), hidden=bool(now.silent_lookupds)),
        _still(*samples),
        _nsqds_only_in_second(before, now),
        _nsqds_only_in_second(now, before),
    )


def _only_in_second(first: Samples, second: Samples, *, hidden: bool) -> tuple[ChannelKey, ...]:
    """Return what is in the second only, unless an nsqd that has it was not seen at the first.

    That nsqd was silent or, if ``hidden``, perhaps listed by a silent nsqlookupd.
    """
    known = _keys(first)
    unseen = {name for name in second if first.get(name) is None and (hidden or name in first)}
    doubtful = _keys({name: second[name] for name in unseen})
    return tuple(sorted(_keys(second) - known - doubtful))


def _nsqds_only_in_second(first: SavedSnapshot, second: SavedSnapshot) -> tuple[str, ...]:
    """Return the nsqds that answered at the second only; none if the first may not tell.

    A silent nsqlookupd may have listed them. An nsqd that was silent at the first, and is unknown
    to the second, may be one of them under another address.
    """
    if first.silent_lookupds or first.silent.keys() - second.samples().keys():
        return ()
    return tuple(sorted(second.stats.keys() - first.samples().keys()))


def _keys(samples: Samples) -> set[ChannelKey]:
    return {key for sample in samples.values() if sample for key in sample.counters}


def _still(before: Samples, now: Samples) -> tuple[ChannelKey, ...]:
    """Return what has the same counters on the same nsqds, none of which was restarted."""
    moved: set[ChannelKey] = set()
    for name in before.keys() | now.keys():
        first, second = before.get(name), now.get(name)
        if first is None or second is None or first.start_time != second.start_time:
            moved |= _keys({name: first}) | _keys({name: second})
            continue
        for key in first.counters.keys() | second.counters.keys():
            then, later = first.counters.get(key), second.counters.get(key)
            if not then or not later or (then.messages, then.held) != (later.messages, later.held):
                moved |= {key, (key[0], "")}
    return tuple(sorted((_keys(before) & _keys(now)) - moved))
