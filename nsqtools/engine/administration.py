"""Asking servers who has a topic, and changing it on all of them at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqtools.engine.changes import Holding, Outcome, Registry, Survey
from nsqtools.engine.cluster import Cluster
from nsqtools.errors import HTTPError, UnreachableError
from nsqtools.net.http import Lookupd, NsqdHTTP, parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.engine.changes import Stages, Step
    from nsqtools.engine.cluster import Node

# What a server says that does not have what is to be deleted.
_GONE = frozenset({"TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"})


@dataclass(frozen=True, slots=True)
class Servers:
    """Whom to ask: URLs, and as ``limits`` HTTPClient's connect_timeout, request_timeout and tls.

    A malformed address is a ConfigError when it is used.
    """

    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    limits: Mapping[str, Any]


async def survey(servers: Servers, topic: str) -> Survey:
    """Ask everybody who has the topic; raises UnreachableError if nobody answers."""
    lookupds = tuple(dict.fromkeys(servers.lookupds))
    given = {str(parse_url(url, NsqdHTTP.default_port).address) for url in servers.nsqds}
    async with Cluster(lookupds, servers.nsqds, quiet=True, **servers.limits) as cluster:
        nodes, registries = await asyncio.gather(
            cluster.find(),
            asyncio.gather(*(_ask_lookupd(servers, url, topic) for url in lookupds)),
        )
    holdings = await asyncio.gather(
        *(_ask_nsqd(servers, node, topic, given=node.name in given) for node in nodes)
    )
    errors = [*(each.error for each in registries), *(each.error for each in holdings)]
    if errors and all(errors):
        more = f" (nor do {len(errors) - 1} others)" if len(errors) > 1 else ""
        raise UnreachableError(f"no server answers: {errors[0]}{more}")
    return Survey(tuple(registries), tuple(holdings))


async def all_topics(servers: Servers, found: Survey) -> set[str]:
    """The names of all topics, as far as servers that answered still do."""

    async def ask(node: Node) -> list[str]:
        try:
            async with NsqdHTTP(node.http, **servers.limits) as client:
                return [topic.name for topic in await client.stats()]
        except HTTPError:
            return []

    alive = [each.node for each in found.holdings if not each.error]
    held = await asyncio.gather(*map(ask, alive))
    listed = [each.topics for each in found.registries]
    return {name for names in (*held, *listed) for name in names}


async def carry_out(servers: Servers, stages: Stages) -> list[Outcome]:
    """Take all steps, whoever fails; how each ended, in their order."""
    outcomes: list[Outcome] = []
    for steps in stages:
        outcomes += await asyncio.gather(*(_take(servers, step) for step in steps))
    return outcomes


async def _ask_lookupd(servers: Servers, url: str, topic: str) -> Registry:
    try:
        async with Lookupd(url, **servers.limits) as client:
            topics, channels, producers = await asyncio.gather(
                client.topics(), client.channels(topic), client.nodes()
            )
    except HTTPError as error:
        return Registry(url, error=error)
    return Registry(url, tuple(topics), tuple(channels), tuple(producers))


async def _ask_nsqd(servers: Servers, node: Node, topic: str, *, given: bool) -> Holding:
    try:
        async with NsqdHTTP(node.http, **servers.limits) as client:
            found = await client.stats(topic)
    except HTTPError as error:
        return Holding(node, given, error=error)
    return Holding(node, given, found[0] if found else None)


async def _take(servers: Servers, step: Step) -> Outcome:
    if step.error:
        return Outcome(step, step.error)
    kind, _, verb = step.path.partition("/")
    try:
        if step.server == "nsqlookupd":
            async with Lookupd(step.url, **servers.limits) as lookupd:
                if step.node:
                    await lookupd.tombstone(step.names[0], step.node)
                else:
                    await getattr(lookupd, f"{verb}_{kind}")(*step.names)
        else:
            async with NsqdHTTP(step.url, **servers.limits) as nsqd:
                await getattr(nsqd, f"{verb}_{kind}")(*step.names)
    except HTTPError as error:
        if verb == "delete" and error.code in _GONE:
            return Outcome(step, note="is not there")
        return Outcome(step, error)
    return Outcome(step, note=step.note)
