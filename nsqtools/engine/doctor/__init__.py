"""Finds out what is wrong with a topic or a cluster: pure functions judge gathered facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.engine.doctor.backlog import (
    judge_channel,
    judge_consumers,
    judge_topic,
    judge_topics,
)
from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
from nsqtools.engine.doctor.listing import judge_listing, judge_registrations
from nsqtools.engine.doctor.servers import (
    judge_balance,
    judge_capacity,
    judge_clocks,
    judge_health,
    judge_lookupds,
    judge_nsqds,
    judge_tls,
    judge_versions,
)
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.engine.cluster import Snapshot
    from nsqtools.engine.doctor.findings import Finding

_JUDGES = (
    judge_lookupds,
    judge_listing,
    judge_nsqds,
    judge_versions,
    judge_health,
    judge_clocks,
    judge_capacity,
    judge_topic,
    judge_channel,
    judge_consumers,
)
_JUDGES_OF_WHOLE = (
    judge_lookupds,
    judge_registrations,
    judge_nsqds,
    judge_versions,
    judge_health,
    judge_tls,
    judge_clocks,
    judge_balance,
    judge_topics,
)
_ORDER = ("ok", "error", "warning", "note")


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings: on servers first, then on messages.

    Those of a whole cluster are in the order of their severities and codes, after what is well.
    """
    judges = _JUDGES_OF_WHOLE if facts.whole else _JUDGES
    found = [finding for judge in judges for finding in judge(facts)]
    if facts.whole:
        found.sort(key=lambda each: (_ORDER.index(each.severity), each.code))
    return found


def findings_of(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the warnings and errors that one poll of all topics shows, on servers first."""
    facts = _facts(snapshot)
    for judge in (judge_lookupds, judge_nsqds, judge_health, judge_topics):
        yield from (found for found in judge(facts) if found.severity != "ok")


def _facts(snapshot: Snapshot) -> Facts:
    """Return the facts that a poll has found."""
    nsqds = []
    for name, node in snapshot.nodes.items():
        stats, error = snapshot.stats.get(name), snapshot.silent.get(name)
        http = node.api or Address.parse(name.partition("/")[0])
        tcp = node.tcp if stats else None
        nsqds.append(NsqdFacts(tcp=tcp, url=node.http, http=http, stats=stats, http_error=error))
    lookupds = [
        LookupdFacts(url=name, address=Address.parse(name), error=error)
        for name, error in snapshot.lookupds.items()
    ]
    return Facts(
        topic="",
        channel="",
        lookupds=tuple(lookupds),
        nsqds=tuple(nsqds),
        has_secret=False,
        max_in_flight=1,
        whole=True,
    )
