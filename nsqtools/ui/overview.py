"""The pages that only show: all topics, a topic, a channel, the servers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from nsqtools.config.connection import ExaminedConfig
from nsqtools.config.units import counted
from nsqtools.engine.administration import survey
from nsqtools.engine.clusterstats import by_node, latencies
from nsqtools.engine.doctor import diagnose
from nsqtools.engine.doctor.examine import Question, examine
from nsqtools.policy.checks import age
from nsqtools.ui.charts import charts, spark
from nsqtools.ui.site import SentForm, WebPage, target_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqtools.policy.rates import Row
    from nsqtools.ui.site import Site

_PER_PAGE = 50

COLUMNS = {
    "name": "Topic",
    "depth": "Waiting",
    "in_flight": "In flight",
    "deferred": "Deferred",
    "ingress": "In/s",
    "egress": "Out/s",
    "oldest": "Oldest, about",
    "clients": "Consumers",
}
"""The numbers of TopicLine by which topics can be sorted, with their titles."""


async def overview(site: Site, request: Request) -> WebPage:
    """Show all topics, filtered, sorted and in portions, and what doctor finds."""
    picture, query = site.watch.picture, request.query_params
    text, sort = query.get("q", "")[:100], query.get("sort", "")
    sort = sort if sort in COLUMNS else "depth"
    found = [line for line in picture.topics if text.lower() in line.name.lower()]
    if sort != "name":  # as they are sorted; numbers from the highest, unknown ones last
        found.sort(key=lambda line: (getattr(line, sort) is None, -(getattr(line, sort) or 0)))
    pages = max(1, -(-len(found) // _PER_PAGE))
    wanted = query.get("page", "")[:9]
    number = max(1, min(pages, int(wanted) if wanted.isdecimal() else 1))
    shown = found[_PER_PAGE * (number - 1) :][:_PER_PAGE]
    context = {
        "lines": [(line, spark(site.watch.history, line.keys)) for line in shown],
        "count": len(found),
        "pages": pages,
        "page": number,
        "q": text,
        "sort": sort,
        "columns": COLUMNS,
    }
    return WebPage("overview.html", context)


async def topic(site: Site, request: Request) -> WebPage:
    """Show a topic or one of its channels: charts, numbers by nsqd, channels or consumers."""
    target = target_of(request.path_params)
    name, channel = target.topic, target.channel
    picture = site.watch.picture
    row, own = (picture.rows.get((name, each)) for each in (channel, ""))
    listed: list[Row] = []
    if own and not own.is_held:  # only nsqlookupd knows it, with channels that no nsqd has
        async with site.asking():
            known = (await survey(site.servers, name)).channels
        listed = [replace(own, channel=each) for each in sorted(known)]
        row = row or next((each for each in listed if each.channel == channel), None)
    if row is None:
        silent = "; no answer from " + counted(len(picture.silent), "server")
        text = f"no answering nsqd has {target}"
        raise HTTPException(404, text + silent if picture.silent else text)
    snapshot, consumers = await site.watch.detail(name)
    held = [each for key, each in picture.rows.items() if key[0] == name and key[1]]
    context = {
        "topic": name,
        "channel": channel,
        "row": row,
        "oldest": age(row),
        "charts": charts(site.watch.history, (name, channel), picture.snapshot.at, row),
        "nodes": by_node(snapshot, channel),
        "channels": [(each, age(each)) for each in held or listed],
        "clients": [each for each in consumers if each.channel == channel],
        "latencies": latencies(snapshot).get((name, channel), ()),
        "findings": [each for each in picture.findings if each.topic == name],
        "silent": [str(error) for error in snapshot.silent.values()],
    }
    return WebPage("topic.html", context, live=not listed)


async def nodes(site: Site, request: Request) -> WebPage:
    """Show all nsqds and nsqlookupds, with versions, health, and the topics of each nsqd."""
    snapshot = site.watch.picture.snapshot
    chosen = snapshot.nodes.get(request.query_params.get("nsqd", ""))
    stats = snapshot.stats.get(chosen.name) if chosen else None
    held = {each.name: each for each in stats.topics} if stats else {}
    context = {
        "listings": Counter(each.tcp for some in snapshot.listed.values() for each in some),
        "chosen": chosen,
        "held": held,
        "names": sorted({*chosen.topics, *held}) if chosen else [],
    }
    return WebPage("nodes.html", context)


async def doctor(site: Site, request: Request) -> WebPage:
    """Examine a topic or channel as ``nsqtools doctor`` does."""
    target = target_of(SentForm(request.query_params))
    question = Question(
        topic=target.topic,
        channel=target.channel,
        nsqds=(),
        lookupds=site.servers.lookupds,
        urls=site.servers.nsqds,
        timeout=site.servers.timeout,
    )
    async with site.asking():
        facts = await examine(question, ExaminedConfig(**vars(site.config)))
    context = {"target": target, "findings": diagnose(facts)}
    return WebPage("doctor.html", context, live=False)
