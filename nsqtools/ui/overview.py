"""The pages that only show: all topics, a topic, a channel, the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from nsqtools.config.connection import ExaminedConfig
from nsqtools.engine.clusterstats import latencies, topics_of
from nsqtools.engine.doctor import diagnose
from nsqtools.engine.doctor.examine import Question, examine
from nsqtools.names import is_valid_name
from nsqtools.policy.checks import age
from nsqtools.ui.charts import charts, spark
from nsqtools.ui.site import WebPage, name_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from nsqtools.engine.cluster import Snapshot
    from nsqtools.engine.clusterwatch import TopicLine
    from nsqtools.policy.rates import ChannelKey
    from nsqtools.ui.site import Site

_PER_PAGE = 50
_MAX_FINDINGS = 20
_MAX_CLIENTS = 500
_MAX_CHANNELS = 500
_DOCTOR_TIMEOUT = 8.0

SORTS: dict[str, Callable[[TopicLine], float | str | None]] = {
    "topic": lambda line: line.name,
    "depth": lambda line: line.depth,
    "in_flight": lambda line: line.in_flight,
    "deferred": lambda line: line.deferred,
    "in": lambda line: line.ingress,
    "out": lambda line: line.egress,
    "oldest": lambda line: line.oldest,
    "clients": lambda line: line.clients,
}
"""How topics can be sorted: names from the first, numbers from the highest."""


async def overview(site: Site, request: Request) -> WebPage:
    """Show all topics, filtered, sorted and in portions, and what doctor finds."""
    picture, query = site.watch.picture, request.query_params
    text, sort = query.get("q", "")[:100], query.get("sort", "depth")
    value = SORTS.get(sort, SORTS["depth"])
    found = [line for line in picture.topics if text.lower() in line.name.lower()]
    known = [line for line in found if value(line) is not None]
    known.sort(key=value, reverse=sort != "topic")  # type: ignore[arg-type] # one type each
    found = [*known, *(line for line in found if value(line) is None)]
    pages = max(1, -(-len(found) // _PER_PAGE))
    number = min(pages, int(query.get("page", "")) if query.get("page", "").isdecimal() else 1)
    start = _PER_PAGE * (max(number, 1) - 1)
    shown = found[start : start + _PER_PAGE]
    keys: dict[str, list[ChannelKey]] = {line.name: [] for line in shown}
    for key in picture.rows:
        if key[0] in keys:
            keys[key[0]].append(key)
    context = {
        "lines": [(line, spark(site.watch.history, keys[line.name], "depth")) for line in shown],
        "count": len(found),
        "pages": pages,
        "page": max(number, 1),
        "q": text,
        "sort": sort,
        "sorts": list(SORTS),
        "findings": picture.findings[:_MAX_FINDINGS],
        "more_findings": len(picture.findings) - _MAX_FINDINGS,
    }
    return WebPage("overview.html", context)


async def topic(site: Site, request: Request) -> WebPage:
    """Show a topic or one of its channels: charts, numbers by nsqd, channels or consumers."""
    name, channel = name_in(request, "topic"), name_in(request, "channel")
    picture = site.watch.picture
    row = picture.rows.get((name, channel))
    if row is None:
        what = f"channel {channel} of topic {name}" if channel else f"topic {name}"
        silent = f"; no answer from {len(picture.silent)} servers" if picture.silent else ""
        raise HTTPException(404, f"no answering nsqd has {what}{silent}")
    snapshot = await site.watch.detail(name)
    clients = [
        (node, client)
        for node, found in topics_of(snapshot)
        for each in found.channels
        if channel and each.name == channel
        for client in each.clients
    ]
    channels = [
        (each, age(each)) for key, each in picture.rows.items() if key[0] == name and key[1]
    ]
    context = {
        "topic": name,
        "channel": channel,
        "row": row,
        "oldest": age(row),
        "charts": charts(site.watch.history, (name, channel), picture.snapshot.at, row),
        "nodes": _by_node(snapshot, name, channel),
        "channels": [] if channel else channels[:_MAX_CHANNELS],
        "more_channels": 0 if channel else len(channels) - _MAX_CHANNELS,
        "clients": clients[:_MAX_CLIENTS],
        "more_clients": len(clients) - _MAX_CLIENTS,
        "latencies": latencies(snapshot).get((name, channel), ()),
        "findings": [each for each in picture.findings if each.topic == name],
        "silent": [str(error) for error in snapshot.failures.values()],
    }
    return WebPage("topic.html", context)


def _by_node(snapshot: Snapshot, topic: str, channel: str) -> list[tuple[str, object]]:
    """Return the numbers of a topic or channel on each nsqd that has it; None for a silent nsqd."""
    found: list[tuple[str, object]] = []
    for name in snapshot.nodes:
        if name not in snapshot.stats:
            found.append((name, None))
            continue
        for each in snapshot.stats[name].topics:
            parts: Sequence[object] = [each]
            if channel:
                parts = [part for part in each.channels if part.name == channel]
            found += [(name, part) for part in parts if each.name == topic]
    return found


async def nodes(site: Site, request: Request) -> WebPage:
    """Show all nsqds and nsqlookupds, with versions, health, and the topics of each nsqd."""
    snapshot = site.watch.picture.snapshot
    found = [
        (node, snapshot.stats.get(name), snapshot.failures.get(name))
        for name, node in snapshot.nodes.items()
    ]
    chosen = snapshot.nodes.get(request.query_params.get("nsqd", ""))
    held = snapshot.stats[chosen.name].topics if chosen and chosen.name in snapshot.stats else ()
    names = sorted({*chosen.topics, *(each.name for each in held)}) if chosen else []
    return WebPage("nodes.html", {"nodes": found, "chosen": chosen, "names": names})


async def doctor(site: Site, request: Request) -> WebPage:
    """Examine a topic or channel as ``nsqtools doctor`` does."""
    name, channel = request.query_params.get("topic", ""), request.query_params.get("channel", "")
    if not is_valid_name(name) or (channel and not is_valid_name(channel)):
        raise HTTPException(404, "no topic or channel can have this name")
    question = Question(
        topic=name,
        channel=channel,
        nsqds=(),
        lookupds=site.servers.lookupds,
        urls=site.servers.nsqds,
        timeout=_DOCTOR_TIMEOUT,
    )
    async with site.lookers:
        facts = await examine(question, ExaminedConfig(**vars(site.config)))
    context = {"topic": name, "channel": channel, "findings": diagnose(facts)}
    return WebPage("doctor.html", context, live=False)
