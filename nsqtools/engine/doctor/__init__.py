"""Finds out why a consumer receives nothing: it gathers facts, and pure functions judge them."""

# size: the list of judges

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.engine.clusterstats import topics_of
from nsqtools.engine.doctor.backlog import judge_channel, judge_consumers, judge_topic
from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
from nsqtools.engine.doctor.findings import Finding, fault
from nsqtools.engine.doctor.servers import (
    judge_capacity,
    judge_clocks,
    judge_listing,
    judge_lookupds,
    judge_nsqds,
)
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsqtools.engine.cluster import Snapshot
    from nsqtools.net.http.replies import ChannelStats, TopicStats

_JUDGES = (
    judge_lookupds,
    judge_listing,
    judge_nsqds,
    judge_clocks,
    judge_capacity,
    judge_topic,
    judge_channel,
    judge_consumers,
)


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings: on servers first, then on messages."""
    return [finding for judge in _JUDGES for finding in judge(facts)]


def findings_of(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the warnings and failures that a poll of all topics shows.

    Findings on servers come first. Only topics and channels that are paused,
    or have messages and no consumer, are judged.
    """
    for name, lookupd_error in snapshot.lookupds.items():
        if lookupd_error:
            fix = f"start it, or leave {name} out"
            yield fault("NSQ001", f"nsqlookupd {lookupd_error}", fix, server=name)
    for name, nsqd_error in snapshot.failures.items():
        fix = f"start it, or leave {name} out"
        yield fault("NSQ003", f"nsqd {nsqd_error}", fix, error=True, server=name)
    for name, stats in snapshot.stats.items():
        if stats.health not in ("", "OK"):
            text = f"nsqd {name} is unhealthy: {stats.health}"
            yield fault("NSQ004", text, "see its log, and the space on its disk", server=name)
    having: dict[str, dict[str, TopicStats]] = {}
    for node, topic in topics_of(snapshot):
        having.setdefault(topic.name, {})[node] = topic
    for topic_name in sorted(having):
        if not any(map(_is_suspect, having[topic_name].values())):
            continue
        facts = _facts(snapshot, topic_name, having[topic_name])
        for found in (*judge_topic(facts), *judge_channel(facts)):
            if found.severity != "ok" and found.check != "topic":
                yield found


def _is_suspect(topic: TopicStats) -> bool:
    return topic.paused or bool(topic.depth) or any(map(_is_left, topic.channels))


def _is_left(channel: ChannelStats) -> bool:
    held = channel.depth or channel.in_flight or channel.deferred
    return channel.paused or bool(held and not channel.client_count)


def _facts(snapshot: Snapshot, topic: str, having: Mapping[str, TopicStats]) -> Facts:
    """Return the facts about a topic that /stats alone has; ``having`` is by nsqd."""
    nsqds = []
    for name, found in having.items():
        node = snapshot.nodes[name]
        http = node.api or Address.parse(name.partition("/")[0])
        nsqds.append(NsqdFacts(tcp=node.tcp, url=node.http, http=http, given=True, topic=found))
    lookupds = [LookupdFacts(url=name, address=Address.parse(name)) for name in snapshot.lookupds]
    return Facts(
        topic=topic,
        channel="",
        lookupds=tuple(lookupds),
        nsqds=tuple(nsqds),
        has_secret=False,
        max_in_flight=1,
        whole=True,
    )
