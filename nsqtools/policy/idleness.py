"""Decides which topics and channels are idle, by the counters of all their nsqds over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from nsqtools.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from nsqtools.policy.rates import ChannelKey, Counters, CounterSample

CALENDAR_END = datetime.max.replace(tzinfo=UTC).timestamp()
"""The first time that no date can show, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The counters of each answering nsqd at about ``at``, in seconds since the epoch.

    ``silent`` has the nsqds without an answer, each with the topics it may have; None is any topic.
    ``silent_lookupds`` are nsqlookupds without an answer: they may list other nsqds. ``shared`` are
    names that several nsqds have, each with their topics: which of them answered is unknown.
    ``times`` has the earliest and latest possible time on each nsqd's own clock when it answered,
    if it is known. ``boot`` and ``uptime`` in seconds are those of the host that asked.
    """

    at: float
    nsqds: Mapping[str, CounterSample]
    silent: Mapping[str, Collection[str] | None]
    silent_lookupds: Collection[str] = ()
    shared: Mapping[str, Collection[str]] = field(default_factory=dict)
    times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    boot: str = ""
    uptime: float = 0.0

    def since(self, earlier: ClusterSample) -> tuple[float, str] | None:
        """Return the least time since another sample in seconds, and the nsqd whose clock says so.

        The nsqd is empty if this host says so. Any clock may have been set in between, so the least
        counts, by this host's clock and those of all nsqds in both samples, and by this host's
        uptime if it was not booted in between. It is None without such an nsqd.
        """
        both = self.times.keys() & earlier.times.keys()
        ages = [(self.times[nsqd][0] - earlier.times[nsqd][1], nsqd) for nsqd in both]
        ages.append((self.at - earlier.at, ""))
        if self.boot and self.boot == earlier.boot:
            ages.append((self.uptime - earlier.uptime, ""))
        return min(ages) if both else None

    def comparable(self, earlier: ClusterSample) -> ClusterSample:
        """Return another sample without nsqds that answered both times, but not with the time."""
        both = self.times.keys() & earlier.times.keys()
        nsqds = earlier.nsqds.items()
        known = {name: each for name, each in nsqds if name in both or name not in self.nsqds}
        return replace(earlier, nsqds=known)


class IdleVerdict(NamedTuple):
    """The state of a topic or channel, its reason for users, and the messages it holds.

    ``holding`` is idle, but holds messages. ``unknown`` and ``silent`` may be in use: the samples
    leave it open, or a server does not answer.
    """

    state: Literal["idle", "holding", "used", "unknown", "silent"]
    reason: str
    held: int = 0

    def is_idle(self, *, with_messages: bool = True) -> bool:
        """Whether it is idle; only without messages unless ``with_messages``."""
        return self.state == "idle" or (with_messages and self.state == "holding")


class _Use(NamedTuple):
    """The counters that tell whether a topic or channel is used on one nsqd, by channel.

    Those of a topic are its own, under an empty name, and those of all its channels. Those of a
    channel are its own and the topic's: the channel still gets the messages of a paused topic.
    """

    start_time: int
    parts: Mapping[str, Counters]


class Idleness:
    """Compares each sample of a cluster with the first; with ``channels`` it judges channels.

    A topic or channel is idle if all samples show it on the same nsqds, in the same run of
    each nsqd, with the same counters, without clients and not paused. nsqd counts from 0 after a
    restart, so nothing is known about the time before. Ephemeral topics and channels are left to
    nsqd.
    """

    def __init__(self, *, channels: bool) -> None:
        self._channels = channels
        self._began = 0.0
        self._first: dict[ChannelKey, dict[str, _Use]] | None = None
        self._lasting: dict[ChannelKey, IdleVerdict] = {}
        self.verdicts: dict[ChannelKey, IdleVerdict] = {}
        """The verdicts after the last sample, of all topics or channels that still exist."""

    def record(self, sample: ClusterSample) -> None:
        """Take the next sample, in the order of time."""
        found = self._uses(sample)
        if self._first is None:
            self._first, self._began = found, sample.at
        self.verdicts = {}
        for key in sorted(self._first.keys() | found.keys()):
            verdict = self._compare(key, found.get(key, {}), sample)
            before = self._lasting.get(key)
            if before and verdict.state != "used":
                verdict = before
            elif not verdict.is_idle():
                self._lasting[key] = verdict
            if key in found or verdict.state == "silent":
                self.verdicts[key] = verdict

    def judge(self, key: ChannelKey, sample: ClusterSample) -> IdleVerdict:
        """Compare one topic or channel, judged before, with a later sample, which stays unrecorded.

        The sample may lack all other topics.
        """
        return self._lasting.get(key) or self._compare(key, self._uses(sample).get(key, {}), sample)

    def _uses(self, sample: ClusterSample) -> dict[ChannelKey, dict[str, _Use]]:
        found: dict[ChannelKey, dict[str, _Use]] = {}
        for nsqd, each in sample.nsqds.items():
            topics: dict[str, dict[str, Counters]] = {}
            for (topic, channel), counters in each.counters.items():
                if not is_ephemeral(topic):
                    topics.setdefault(topic, {})[channel] = counters
            for topic, parts in topics.items():
                for channel in parts if self._channels else [""]:
                    if not self._channels:
                        use = parts
                    elif channel and not is_ephemeral(channel):
                        use = {name: parts[name] for name in ("", channel) if name in parts}
                    else:
                        continue
                    uses = found.setdefault((topic, channel), {})
                    uses[nsqd] = _Use(each.start_time, use)
        return found

    def _compare(
        self, key: ChannelKey, now: Mapping[str, _Use], sample: ClusterSample
    ) -> IdleVerdict:
        before = (self._first or {}).get(key, {})
        parts = [each for use in now.values() for each in use.parts.values()]
        if clients := sum(each.clients for each in parts):
            return IdleVerdict("used", f"clients: {clients}")
        if any(each.paused for each in parts):
            return IdleVerdict("used", "paused")
        for nsqd in before.keys() & now.keys():
            if before[nsqd].start_time == now[nsqd].start_time and (
                change := _change(before[nsqd].parts, now[nsqd].parts)
            ):
                return IdleVerdict("used", f"{change} since {shown_time(self._began)}")
        for lookupd in sample.silent_lookupds:
            return IdleVerdict("silent", f"nsqlookupd {lookupd} does not answer")
        for nsqd, topics in sample.silent.items():
            if topics is None or key[0] in topics or nsqd in before:
                return IdleVerdict("silent", f"nsqd {nsqd} does not answer")
        for nsqd, some in sample.shared.items():
            if key[0] in some or nsqd in before:
                return IdleVerdict("unknown", f"several nsqds have the address {nsqd}")
        for reason in self._gaps(before, now, sample):
            return IdleVerdict("unknown", reason)
        if held := sum(each.held for each in parts):
            return IdleVerdict("holding", f"holds messages: {held}", held)
        return IdleVerdict("idle", f"unchanged since {shown_time(self._began)}")

    def _gaps(
        self, before: Mapping[str, _Use], now: Mapping[str, _Use], sample: ClusterSample
    ) -> Iterator[str]:
        """The reasons why the two samples do not tell whether it was used in between."""
        for nsqd in sorted(before.keys() | now.keys()):
            if nsqd not in before:
                yield f"nothing is known of it on nsqd {nsqd} at {shown_time(self._began)}"
            elif nsqd not in now:
                yield f"nothing is known of it on nsqd {nsqd} at {shown_time(sample.at)}"
            elif before[nsqd].start_time != now[nsqd].start_time:
                yield f"nsqd {nsqd} was restarted at {shown_time(now[nsqd].start_time)}"
            elif not now[nsqd].start_time:
                yield f"nsqd {nsqd} does not report when it was started"


def _change(before: Mapping[str, Counters], now: Mapping[str, Counters]) -> str:
    """Return what has happened to a topic or channel in one run of nsqd; empty if nothing."""
    if before.keys() != now.keys():
        return "channels were created or deleted"
    pairs = [(before[name], now[name]) for name in now]
    published = max(b.messages - a.messages for a, b in pairs)
    consumed = sum(b.messages - b.held - a.messages + a.held for a, b in pairs)
    failed = sum(b.requeues - a.requeues + b.timeouts - a.timeouts for a, b in pairs)
    for number, name in ((published, "published"), (consumed, "consumed"), (failed, "attempted")):
        if number > 0:
            return f"{name}: {number}"
    same = all(
        (a.messages, a.requeues, a.timeouts, a.held) == (b.messages, b.requeues, b.timeouts, b.held)
        for a, b in pairs
    )
    return "" if same else "emptied or created again"


def shown_time(at: float) -> str:
    """Return a time in UTC, as far as there is a calendar: servers may claim any."""
    if not 0 <= at < CALENDAR_END:
        return f"{at:g}"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
