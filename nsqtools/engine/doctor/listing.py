"""Judges what nsqlookupds list: who is missing there, and what is no longer there."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from nsqtools.config.units import counted, enumerated, nearest
from nsqtools.engine.doctor.findings import fault, passed
from nsqtools.names import is_ephemeral
from nsqtools.net.http.daemons import claimed_twice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.names import Address

_REGISTER = "start that nsqd with --lookupd-tcp-address for each nsqlookupd"


def judge_listing(facts: Facts) -> Iterator[Finding]:
    """Judge whether nsqlookupds return all nsqds with the topic."""
    answering = [each for each in facts.lookupds if not each.error]
    if not answering:
        return
    having = [nsqd for nsqd, _ in facts.having()]
    lost = False  # whether nsqds of the topic are registered with unusable addresses
    for each in answering:
        lost = lost or any(each.left_out.values())
        yield from _unusable(each)
    if facts.found:
        names = ", ".join(sorted(map(str, facts.found)))
        text = (
            f"nsqlookupd lists topic {facts.topic} on {counted(len(facts.found), 'nsqd')}: {names}"
        )
        yield passed("listing", text)
    elif not lost and not having and not facts.tombstones:
        yield _unlisted(facts, answering)
    yield from _judge_tombstones(facts, answering)
    for nsqd in facts.nsqds:
        if nsqd.tcp in facts.found and nsqd.topic is None and not nsqd.http_error:
            yield _not_there(nsqd, facts.topic, error=True)
    for nsqd in having:
        if nsqd.tcp not in facts.found and (facts.topic, nsqd.tcp) not in facts.tombstones:
            yield _not_listed(nsqd, facts.topic)
    for each in answering:
        missing = facts.found - {producer.tcp for producer in each.producers}
        hidden = {tcp for (_, tcp), by in facts.tombstones.items() if each in by}
        if missing - hidden:
            names = ", ".join(sorted(map(str, missing - hidden)))
            text = f"nsqlookupd {each.address} does not list topic {facts.topic} on {names}"
            fix = "start those nsqds with --lookupd-tcp-address for it too"
            yield fault("NSQ023", text, fix, topic=facts.topic, server=each.address)


def _unlisted(facts: Facts, answering: list[LookupdFacts]) -> Finding:
    topic = facts.topic
    if not any(each.nodes for each in answering):
        return _nobody("" if len(answering) == len(facts.lookupds) else " that answers")
    if any(topic in each.topics for each in answering):
        text = f"nsqlookupd knows topic {topic}, but no nsqd has it"
        fix = f"start the nsqd that had it, or publish, which creates it: {facts.publish()}"
        return fault("NSQ025", text, fix, error=True, topic=topic)
    near = nearest(topic, sorted(facts.known_topics - {topic}))
    text = f"no nsqlookupd lists topic {topic}{near}"
    fix = (
        "check the name, or publish to it; if its nsqd runs without --lookupd-tcp-address, give "
        f"its --nsqd-http-address; this lists all topics: {facts.command('lookup', 'topics')}"
    )
    return fault("NSQ028", text, fix, topic=topic)


def _nobody(where: str) -> Finding:
    text = f"no nsqd is registered with any nsqlookupd{where}"
    return fault("NSQ021", text, "start nsqd with --lookupd-tcp-address for each nsqlookupd")


def _judge_tombstones(facts: Facts, answering: list[LookupdFacts]) -> Iterator[Finding]:
    """Judge the topics that nsqlookupds hide; an error if the topic in question is not found."""
    for (topic, tcp), by in sorted(facts.tombstones.items()):
        everywhere = len(by) == len(answering)
        is_found = not everywhere if facts.whole else tcp in facts.found
        names = "all nsqlookupds" if everywhere else ", ".join(str(each.address) for each in by)
        text = f"topic {topic} of nsqd {tcp} is tombstoned at {names}"
        text += "" if is_found else ": consumers do not find it"
        fix = "wait until it expires, after 45 s or nsqlookupd's --tombstone-lifetime"
        is_error = not (facts.whole or is_found)
        yield fault("NSQ027", text, fix, error=is_error, topic=topic, server=tcp)


def _unusable(lookupd: LookupdFacts) -> Iterator[Finding]:
    for entry, is_of_topic in lookupd.left_out.items():
        fix = "start that nsqd with --broadcast-address=HOST and ports that consumers can reach"
        text = f"nsqlookupd {lookupd.address} lists a server with an unusable address: {entry}"
        yield fault("NSQ020", text, fix, error=is_of_topic, server=lookupd.address, subject=entry)


def _not_there(nsqd: NsqdFacts, topic: str, *, error: bool) -> Finding:
    text = f"nsqlookupd lists topic {topic} at {nsqd.tcp}, but that nsqd does not have it"
    fix = "check --broadcast-address and the ports of the nsqd that has the topic"
    return fault("NSQ025", text, fix, error=error, topic=topic, server=nsqd.name)


def _not_listed(nsqd: NsqdFacts, topic: str) -> Finding:
    text = f"nsqd {nsqd.name} has topic {topic}, but no nsqlookupd lists it there"
    fix = "restart that nsqd: it then registers its topics with nsqlookupd"
    fix = fix if nsqd.producer else _REGISTER
    return fault("NSQ026", text, fix, topic=topic, server=nsqd.name)


def judge_registrations(facts: Facts) -> Iterator[Finding]:
    """Judge all registrations of a whole cluster against what nsqds have."""
    answering = [each for each in facts.lookupds if not each.error]
    yield from _judge_addresses(facts, answering)
    if not answering:
        return
    for each in answering:
        yield from _unusable(each)
    where = "" if len(answering) == len(facts.lookupds) else " that answers"
    if not any(each.nodes for each in answering):
        yield _nobody(where)
    yield from _judge_agreement(answering)
    for nsqd in facts.nsqds:
        if nsqd.producer is None and nsqd.stats:
            text = f"nsqd {nsqd.name} is registered with no nsqlookupd{where}"
            text += ": consumers do not find it"
            yield fault("NSQ022", text, _REGISTER, server=nsqd.name)
        elif nsqd.producer and nsqd.stats:
            yield from _judge_topics_of(nsqd, answering)
    yield from _judge_tombstones(facts, answering)
    yield from _judge_leftovers(facts, answering)


def _judge_addresses(facts: Facts, answering: list[LookupdFacts]) -> Iterator[Finding]:
    """Judge whether each nsqd, given or registered, has a broadcast address of its own."""
    given: dict[Address, set[str]] = {}
    for nsqd in facts.nsqds:
        if nsqd.tcp:
            given.setdefault(nsqd.tcp, set()).add(str(nsqd.http))
    claims = {tcp: found for tcp, found in given.items() if len(found) > 1}
    for each in answering:
        claims |= claimed_twice(each.nodes)
    for tcp, found in sorted(claims.items()):
        names = enumerated(sorted(found))
        text = f"{len(found)} nsqds have one broadcast address {tcp}: {names}"
        fix = "start each with a --broadcast-address of its own"
        yield fault("NSQ029", text, fix, server=tcp)


def _judge_agreement(answering: list[LookupdFacts]) -> Iterator[Finding]:
    """Judge whether all nsqlookupds list the same nsqds, with the same topics."""
    listings = [_listing(each) for each in answering]
    nsqds = {tcp for listing in listings for tcp in listing}
    topics = {tcp: _union(each.get(tcp, ()) for each in listings) for tcp in nsqds}
    for each, listing in zip(answering, listings, strict=True):
        who = f"nsqlookupd {each.address} does not list"
        for tcp in sorted(nsqds - listing.keys()):
            text = f"{who} nsqd {tcp}, but another nsqlookupd does"
            fix = "start that nsqd with --lookupd-tcp-address for it too"
            yield fault("NSQ023", text, fix, server=each.address, subject=tcp)
        absent: dict[str, list[str]] = {}
        for tcp in sorted(listing):
            for topic in topics[tcp] - listing[tcp]:
                absent.setdefault(topic, []).append(str(tcp))
        for topic, lacking in sorted(absent.items()):
            text = f"{who} topic {topic} of nsqd {enumerated(lacking)}, but another nsqlookupd does"
            fix = "restart each such nsqd: it then registers its topics with each nsqlookupd"
            yield fault("NSQ023", text, fix, topic=topic, server=each.address)


def _judge_topics_of(nsqd: NsqdFacts, answering: list[LookupdFacts]) -> Iterator[Finding]:
    """Judge whether an nsqd has the topics listed for it, and is listed for those it has."""
    assert nsqd.stats
    entries = [node for each in answering for node in each.nodes if node.tcp == nsqd.tcp]
    listed = _union(node.topics for node in entries)
    hidden = _union(compress(node.topics, node.tombstones) for node in entries)
    looks = [look for look in (nsqd.stats, nsqd.later_stats) if look]
    names = [{topic.name for topic in look.topics} for look in looks]
    for topic in sorted((listed - hidden).difference(*names)):
        if not is_ephemeral(topic):
            yield _not_there(nsqd, topic, error=False)
    for topic in sorted(set.intersection(*names) - listed):
        if not is_ephemeral(topic):
            yield _not_listed(nsqd, topic)


def _judge_leftovers(facts: Facts, answering: list[LookupdFacts]) -> Iterator[Finding]:
    """Judge topics and channels that an nsqlookupd remembers, and no nsqd has."""
    if facts.maybe is None:
        return
    having = {topic for nsqd in facts.nsqds for topic in nsqd.topics} | facts.maybe
    having |= {each.name for n in facts.nsqds if n.later_stats for each in n.later_stats.topics}
    for each in answering:
        listed = _union(node.topics for node in each.nodes)
        forgotten = each.topics - having - listed
        for topic in sorted(forgotten):
            text = f"nsqlookupd {each.address} has topic {topic}, but no nsqd has it"
            fix = (
                "if the nsqd that had it is down, start it; a topic that nobody needs can be "
                "deleted"
            )
            yield fault("NSQ025", text, fix, topic=topic, server=each.address)
        for topic, channel in each.stale_channels:
            if topic in forgotten:
                continue  # deleting the topic deletes its channels
            text = (
                f"nsqlookupd {each.address} has channel {channel} of topic {topic}, but no nsqd "
                "has it: the next nsqd with the topic creates it, and it keeps every message"
            )
            fix = (
                "if the nsqd that had it is down, start it; a channel that nobody needs can be "
                "deleted"
            )
            yield fault("NSQ025", text, fix, topic=topic, channel=channel, server=each.address)


def _listing(lookupd: LookupdFacts) -> dict[Address, frozenset[str]]:
    """Return the topics listed for each nsqd, tombstoned or not."""
    found: dict[Address, frozenset[str]] = {}
    for node in lookupd.nodes:
        found[node.tcp] = found.get(node.tcp, frozenset()).union(node.topics)
    return found


def _union(some: Iterable[Iterable[str]]) -> set[str]:
    return {each for names in some for each in names}
