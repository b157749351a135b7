"""The HTTP APIs of nsqd and nsqlookupd (``nsqd/http.go``, ``nsqlookupd/http.go``).

Requests raise HTTPError if the server is silent or refuses; ``code`` is then the server's error
code, such as TOPIC_NOT_FOUND.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nsqtools.errors import HTTPError
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT
from nsqtools.net.http.api import HTTPClient
from nsqtools.net.http.replies import (
    Lookup,
    compact,
    decode_info,
    decode_lookup,
    decode_names,
    decode_nodes,
    decode_report,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nsqtools.names import Address
    from nsqtools.net.http.replies import NsqdInfo, NsqdStats, Registration, TopicStats

T = TypeVar("T")
C = TypeVar("C", bound="HTTPClient")


class Lookupd(HTTPClient):
    """An nsqlookupd.

    A path in the URL is the path of /lookup, as for go-nsq (``consumer.go``, buildLookupAddr); the
    other endpoints are expected beside it.
    """

    kind, default_port = "nsqlookupd", LOOKUPD_HTTP_PORT
    max_reply = 64 << 20  # about 300,000 nsqds; parsed they take twice as much memory

    async def topics(self) -> list[str]:
        """Return all topics."""
        return await self._read("topics", {}, partial(decode_names, field="topics"))

    async def channels(self, topic: str) -> list[str]:
        """Return a topic's channels; an empty list for an unknown topic.

        For the topic ``*`` nsqlookupd returns the channels of all topics, a name as often as there
        are topics with it (``nsqlookupd/registration_db.go``, FindRegistrations).
        """
        decode = partial(decode_names, field="channels")
        return await self._read("channels", {"topic": topic}, decode, unknown=[])

    async def lookup(self, topic: str) -> Lookup:
        """Return a topic's channels and nsqds, without tombstoned and inactive nsqds."""
        nothing = Lookup(known=False)
        return await self._read("lookup", {"topic": topic}, decode_lookup, unknown=nothing)

    async def nodes(self) -> list[Registration]:
        """Return all nsqds, with their topics."""
        return await self._read("nodes", {}, decode_nodes)

    def _decode_object(self, value: dict[str, Any]) -> object:
        return compact(value)

    def _path(self, name: str) -> str:
        lookup = self.url.path if self.url.path not in ("", "/") else "/lookup"
        return lookup if name == "lookup" else f"{lookup.rpartition('/')[0]}/{name}"


class NsqdHTTP(HTTPClient):
    """The HTTP API of an nsqd; a path in the URL is a prefix of the endpoints' paths."""

    kind, default_port = "nsqd", NSQD_HTTP_PORT
    max_reply = 64 << 20  # /stats of a very large nsqd is a few MiB

    async def info(self) -> NsqdInfo:
        """Return the nsqd's addresses, version and start time."""
        return await self._read("info", {}, decode_info)

    async def stats(self, topic: str) -> list[TopicStats]:
        """Return the topic with all its channels; an empty list for an unknown topic."""
        return list((await self.report(topic)).topics)

    async def report(
        self, topic: str | None = None, channel: str | None = None, *, include_clients: bool = False
    ) -> NsqdStats:
        """Return all topics or one, with all channels or one, and the state of nsqd.

        Channels have ``clients`` only with ``include_clients``.
        """
        params = {
            "format": "json",
            "include_clients": "true" if include_clients else "false",
            "include_mem": "false",
            **({} if topic is None else {"topic": topic}),
            **({} if channel is None else {"channel": channel}),
        }
        return await self._read("stats", params, decode_report)


def union_producers(answers: Iterable[Iterable[Registration]]) -> dict[Address, Registration]:
    """Unite all nsqds by ``broadcast_address:tcp_port`` (building_client_libraries, Discovery).

    The topics of an nsqd in several answers are united. A topic is tombstoned only if every answer
    listing the topic says so: otherwise a consumer asking all nsqlookupds still finds it.
    """
    united: dict[Address, Registration] = {}
    for producer in (each for answer in answers for each in answer):
        tcp = producer.tcp
        first = united.setdefault(tcp, producer)
        if first is producer:
            continue
        dead = dict(zip(first.topics, first.tombstones, strict=True))
        for topic, tombstoned in zip(producer.topics, producer.tombstones, strict=True):
            dead[topic] = dead.get(topic, True) and tombstoned
        united[tcp] = replace(first, topics=tuple(dead), tombstones=tuple(dead.values()))
    return united


def without_repeats(infos: Mapping[str, NsqdInfo | None]) -> dict[str, NsqdInfo | None]:
    """Leave out further addresses of one nsqd, by its /info; unknown ones stay.

    nsqd reports nothing that tells it from another with its broadcast address, host name, ports and
    second of start. Before 1.0 it reports only its version, so these stay too.
    """
    found: dict[str, NsqdInfo | None] = {}
    known: set[NsqdInfo] = set()
    for address, info in infos.items():
        if info not in known:
            found[address] = info
        if info and info.tcp:
            known.add(info)
    return found


def claimed_twice(nodes: Iterable[Registration]) -> dict[Address, set[str]]:
    """Return the broadcast addresses that several nsqds of one nsqlookupd's list have.

    Each has the hosts of its nsqds, for users. An nsqd that was restarted may be listed twice for a
    while, but from the same host; nsqlookupds may see one nsqd at different addresses.
    """
    hosts: dict[Address, set[str]] = {}
    for node in nodes:
        host = f"{node.hostname} ({node.remote_address.rpartition(':')[0]})"
        hosts.setdefault(node.tcp, set()).add(host)
    return {tcp: found for tcp, found in hosts.items() if len(found) > 1}


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers of several servers, and the errors of silent ones, in the order of asking.

    Each has the address of its server.
    """

    answers: list[tuple[Address, T]]
    silent: list[tuple[Address, HTTPError]]

    @property
    def values(self) -> list[T]:
        """The answers without addresses."""
        return [value for _, value in self.answers]


async def attempt(call: Awaitable[T]) -> T | HTTPError:
    """Return the answer or the HTTPError; without traceback, as callers may keep many errors."""
    try:
        return await call
    except HTTPError as error:
        return error.bare()


async def ask_all(clients: Sequence[C], call: Callable[[C], Awaitable[T]]) -> Answers[T]:
    """Ask all servers at once; a failure hides no other server's answer."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(attempt(call(client))) for client in clients]
    found = [(client.address, each.result()) for client, each in zip(clients, asked, strict=True)]
    return Answers(
        [(address, each) for address, each in found if not isinstance(each, HTTPError)],
        [(address, each) for address, each in found if isinstance(each, HTTPError)],
    )
