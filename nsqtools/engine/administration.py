"""Finds a topic's servers, and changes the topic on all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsqtools.clock import wall
from nsqtools.engine.changes import Holding, Registry, Step, Survey, plan
from nsqtools.engine.cluster import Cluster
from nsqtools.engine.lookup import no_answer
from nsqtools.errors import HTTPError, UnreachableError
from nsqtools.net.http.api import Deadline, HTTPClient, parse_url
from nsqtools.net.http.daemons import Lookupd, NsqdHTTP, attempt
from nsqtools.policy.idleness import IdleVerdict
from nsqtools.tasks import call_each, together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.engine.changes import Stages, Target
    from nsqtools.engine.cluster import Node, Snapshot
    from nsqtools.names import Address
    from nsqtools.policy.idleness import Idleness

# Error codes of a server without the topic or channel to delete.
_GONE = frozenset({"TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"})

_API: dict[str, type[HTTPClient]] = {"nsqlookupd": Lookupd, "nsqd": NsqdHTTP}


@dataclass(frozen=True, slots=True)
class Servers:
    """URLs of the servers to ask, and ``limits`` for HTTPClient.

    ``limits`` has connect_timeout, request_timeout and tls. A survey and a change share
    ``timeout`` seconds: each may use half. A malformed address raises ConfigError at its first use.
    """

    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    limits: Mapping[str, Any]
    timeout: float = math.inf

    def half(self) -> dict[str, Any]:
        """Return the limits with a deadline half of ``timeout`` from now."""
        return {"deadline": Deadline(self.timeout / 2), **self.limits}


async def survey(servers: Servers, topic: str) -> Survey:
    """Ask all servers whether they have the topic; raises UnreachableError if no server answers."""
    async with quiet_cluster(servers) as cluster:
        found, _ = await _survey(servers, cluster, topic)
    return found


def quiet_cluster(servers: Servers) -> Cluster:
    """Return a cluster of these servers that logs nothing; each look may use half of the time."""
    lookupds = dict.fromkeys(servers.lookupds)
    timeout = servers.timeout / 2
    return Cluster(lookupds, servers.nsqds, quiet=True, timeout=timeout, **servers.limits)


async def delete_idle(
    servers: Servers, target: Target, idleness: Idleness, cluster: Cluster, *, with_messages: bool
) -> tuple[IdleVerdict, list[Step]]:
    """Ask all servers once more, then delete the topic or channel if it is still idle.

    ``cluster`` keeps its connections from one deletion to the next. Returns the verdict and the
    steps taken, none if it stays, as it does if it holds messages unless ``with_messages``. What
    happens between the answers and the deletion is not seen.
    """
    try:
        found, snapshot = await _survey(servers, cluster, target.topic)
    except UnreachableError as error:
        return IdleVerdict("silent", str(error)), []
    if found.mute:
        return IdleVerdict("silent", f"nsqlookupd {found.mute[0]}"), []
    verdict = idleness.judge((target.topic, target.channel), snapshot.cluster_sample(wall()))
    if not verdict.is_idle(with_messages=with_messages):
        return verdict, []
    return verdict, await carry_out(servers, plan("delete", target, found))


async def _survey(servers: Servers, cluster: Cluster, topic: str) -> tuple[Survey, Snapshot]:
    lookupds, limits = dict.fromkeys(servers.lookupds), servers.half()
    snapshot, answers = await together(
        cluster.look(topic, everywhere=True),
        together(*(_ask_lookupd(limits, url, topic) for url in lookupds)),
    )
    registries = [_registry(each, snapshot) for each in answers]
    holdings = [_holding(node, snapshot) for node in snapshot.nodes.values()]
    errors = [*(each.error for each in registries), *(each.error for each in holdings)]
    if errors and all(errors):
        raise no_answer("server", [error for error in errors if error])
    return Survey(tuple(registries), tuple(holdings)), snapshot


async def all_topics(servers: Servers, found: Survey) -> set[str]:
    """Return the names of all topics on the reachable servers."""

    limits = servers.half()

    async def names(node: Node) -> list[str]:
        async with NsqdHTTP(node.http, **limits) as client:
            return [topic.name for topic in (await client.report()).topics]

    alive = [each.node for each in found.holdings if not each.error]
    answers = await call_each(alive, lambda node: attempt(names(node)))
    held = [each for each in answers if not isinstance(each, HTTPError)]
    listed = [each.topics for each in found.registries]
    return {name for names in (*held, *listed) for name in names}


async def evict(servers: Servers, nsqd: Address) -> list[Step]:
    """Tombstone all topics of an nsqd on each nsqlookupd listing it.

    ``nsqd`` is its broadcast address. Returns a step for each topic and each silent nsqlookupd.
    """
    limits = servers.half()

    async def ask(url: str) -> list[Step]:
        name = str(parse_url(url, Lookupd.default_port).address)
        step = Step("nsqlookupd", name, url, "topic/tombstone", ())
        try:
            async with Lookupd(url, **limits) as client:
                listed = [each for each in await client.nodes() if each.tcp == nsqd]
        except HTTPError as error:
            return [replace(step, error=error.bare())]
        return [
            replace(step, names=(topic,), node=each.node)
            for each in listed
            for topic in each.topics
        ]

    found = await call_each(tuple(dict.fromkeys(servers.lookupds)), ask)
    return await carry_out(servers, [[step for steps in found for step in steps]])


async def carry_out(servers: Servers, stages: Stages) -> list[Step]:
    """Take all steps, even if some fail; return them with their results, in order."""
    limits = servers.half()
    taken: list[Step] = []
    for steps in stages:
        taken += await call_each(steps, lambda step: _take(limits, step))
    return taken


async def _ask_lookupd(limits: Mapping[str, Any], url: str, topic: str) -> Registry:
    name = str(parse_url(url, Lookupd.default_port).address)
    try:
        async with Lookupd(url, **limits) as client:
            topics, channels = await together(client.topics(), client.channels(topic))
    except HTTPError as error:
        return Registry(name, url, error=error)
    return Registry(name, url, tuple(topics), tuple(channels))


def _registry(registry: Registry, snapshot: Snapshot) -> Registry:
    """Return the registry with its listed nsqds, as the cluster found them."""
    if error := registry.error or snapshot.lookupds.get(registry.name):
        return Registry(registry.name, registry.url, error=error)
    return replace(registry, producers=tuple(snapshot.listed.get(registry.name, ())))


def _holding(node: Node, snapshot: Snapshot) -> Holding:
    given = node.api is None
    if error := snapshot.silent.get(node.name):
        return Holding(node, given, error=error)
    topic = next(iter(snapshot.stats[node.name].topics), None)
    return Holding(node, given, topic, clock=snapshot.clocks.get(node.name))


async def _take(limits: Mapping[str, Any], step: Step) -> Step:
    if step.error:
        return step
    try:
        async with _API[step.server](step.url, **limits) as client:
            await client.change(step.path, **step.params)
    except HTTPError as error:
        if step.path.endswith("/delete") and error.code in _GONE:
            return replace(step, note="does not exist")
        return replace(step, note="", error=error.bare())
    return step
