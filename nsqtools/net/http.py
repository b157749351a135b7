"""Clients of the HTTP APIs of nsqd and nsqlookupd (``nsqd/http.go``, ``nsqlookupd/http.go``).

What cannot be had is an HTTPError: its ``code`` is the server's own word, such as TOPIC_NOT_FOUND.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from nsqtools.errors import HTTPError, show
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT
from nsqtools.net.exchange import URL, HTTPClient, parse_url
from nsqtools.net.replies import (
    ChannelStats,
    ClientStats,
    Latency,
    Lookup,
    NsqdInfo,
    NsqdStats,
    Producer,
    TopicStats,
    decode_info,
    decode_lookup,
    decode_names,
    decode_nodes,
    decode_report,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nsqtools.names import Address

__all__ = [
    "URL",
    "Answers",
    "ChannelStats",
    "ClientStats",
    "HTTPClient",
    "Latency",
    "Lookup",
    "Lookupd",
    "NsqdHTTP",
    "NsqdInfo",
    "NsqdStats",
    "Producer",
    "TopicStats",
    "ask_all",
    "attempt",
    "parse_url",
    "union_producers",
]

T = TypeVar("T")
C = TypeVar("C", bound="HTTPClient")


class Lookupd(HTTPClient):
    """An nsqlookupd.

    A path in the URL is that of /lookup, as for go-nsq (``consumer.go``, buildLookupAddr); the
    other endpoints are taken to be beside it.
    """

    default_port = LOOKUPD_HTTP_PORT

    async def topics(self) -> list[str]:
        """All topics."""
        return await self._read("topics", {}, partial(decode_names, field="topics"))

    async def channels(self, topic: str) -> list[str]:
        """A topic's channels; none for an unknown topic."""
        return await self._read(
            "channels",
            {"topic": topic},
            partial(decode_names, field="channels"),
            unknown=[],
        )

    async def lookup(self, topic: str) -> Lookup:
        """A topic's channels and nsqds, without the tombstoned and the silent ones."""
        nothing = Lookup(known=False)
        return await self._read("lookup", {"topic": topic}, decode_lookup, unknown=nothing)

    async def nodes(self) -> list[Producer]:
        """All nsqds, with their topics."""
        return await self._read("nodes", {}, decode_nodes)

    async def create_topic(self, topic: str) -> None:
        """Make a topic known, without an nsqd that has it."""
        await self._change("topic/create", topic=topic)

    async def delete_topic(self, topic: str) -> None:
        """Forget a topic with its channels; one that it does not know is no error.

        An nsqd that still has the topic makes it known again when it registers anew.
        """
        await self._change("topic/delete", topic=topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel known, and its topic: an nsqd that makes the topic makes it too."""
        await self._change("channel/create", topic=topic, channel=channel)

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Forget a channel; CHANNEL_NOT_FOUND if it does not know it, or its topic."""
        await self._change("channel/delete", topic=topic, channel=channel)

    async def tombstone(self, topic: str, node: Address) -> None:
        """Hide an nsqd from the topic's lookups for a while; ``node`` is its ``Producer.http``.

        An nsqd that it does not know is no error.
        """
        # Compared with "host:port" as text, so IPv6 stands without brackets (nsqlookupd/http.go).
        await self._change("topic/tombstone", topic=topic, node=f"{node.host}:{node.port}")

    def _path(self, name: str) -> str:
        lookup = self.url.path if self.url.path not in ("", "/") else "/lookup"
        return lookup if name == "lookup" else f"{lookup.rpartition('/')[0]}/{name}"


class NsqdHTTP(HTTPClient):
    """The HTTP API of an nsqd; a path in the URL stands before the endpoints' own."""

    default_port = NSQD_HTTP_PORT

    async def ping(self) -> None:
        """Raise HTTPError unless nsqd is well; the text is nsqd's own (``NOK - ...``)."""
        reply = await self._exchange("GET", "ping", {})
        if reply.status != 200:
            raise self._refused("ping", reply)
        if reply.body.strip() != b"OK":
            text = f"/ping: expected OK, not {show(reply.body)!r}"
            raise HTTPError(text, self.address, status=200)

    async def info(self) -> NsqdInfo:
        """What it calls itself and where it listens."""
        return await self._read("info", {}, decode_info)

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, include_clients: bool = False
    ) -> list[TopicStats]:
        """All topics or one, with all their channels or one; none if there is no such topic.

        ``include_clients`` is only for servers that count no clients unless they list them.
        """
        return list((await self.report(topic, channel, include_clients=include_clients)).topics)

    async def report(
        self, topic: str | None = None, channel: str | None = None, *, include_clients: bool = False
    ) -> NsqdStats:
        """``stats`` with what nsqd says of itself; channels have ``clients`` if included."""
        params = {
            "format": "json",
            "include_clients": "true" if include_clients else "false",
            "include_mem": "false",
            **({} if topic is None else {"topic": topic}),
            **({} if channel is None else {"channel": channel}),
        }
        said = await self._read("stats", params, decode_report)
        return replace(said, topics=tuple(_select_stats(said.topics, topic, channel)))

    async def create_topic(self, topic: str) -> None:
        """Make a topic; one that is there is left as it is."""
        await self._change("topic/create", topic=topic)

    async def delete_topic(self, topic: str) -> None:
        """Drop a topic, its channels and their messages, and hang up on who consumes it.

        As all that follow, it says TOPIC_NOT_FOUND of a topic that is not there.
        """
        await self._change("topic/delete", topic=topic)

    async def empty_topic(self, topic: str) -> None:
        """Drop the messages that are in none of its channels yet."""
        await self._change("topic/empty", topic=topic)

    async def pause_topic(self, topic: str) -> None:
        """Keep what is published in the topic, away from its channels, until ``unpause_topic``."""
        await self._change("topic/pause", topic=topic)

    async def unpause_topic(self, topic: str) -> None:
        """Give the channels what was kept from them."""
        await self._change("topic/unpause", topic=topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel of a topic that is there; one that is there is left as it is."""
        await self._change("channel/create", topic=topic, channel=channel)

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Drop a channel and its messages, and hang up on who consumes it.

        As all that follow, it says CHANNEL_NOT_FOUND of a channel that is not there.
        """
        await self._change("channel/delete", topic=topic, channel=channel)

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Drop a channel's messages, those in flight and deferred too."""
        await self._change("channel/empty", topic=topic, channel=channel)

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Deliver nothing of a channel until ``unpause_channel``; it goes on filling."""
        await self._change("channel/pause", topic=topic, channel=channel)

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Deliver again."""
        await self._change("channel/unpause", topic=topic, channel=channel)


def union_producers(answers: Iterable[Iterable[Producer]]) -> dict[Address, Producer]:
    """All producers by ``broadcast_address:tcp_port`` (building_client_libraries, Discovery).

    Of one in several answers the topics are united. A topic is tombstoned there only if all who
    list it say so: a consumer that asks them all would still find it.
    """
    united: dict[Address, Producer] = {}
    for producer in (each for answer in answers for each in answer):
        known = united.setdefault(producer.tcp, producer)
        dead = dict(zip(known.topics, known.tombstones, strict=True))
        for topic, tombstoned in zip(producer.topics, producer.tombstones, strict=True):
            dead[topic] = dead.get(topic, True) and tombstoned
        united[producer.tcp] = replace(known, topics=tuple(dead), tombstones=tuple(dead.values()))
    return united


def _select_stats(
    topics: Iterable[TopicStats], topic: str | None, channel: str | None
) -> list[TopicStats]:
    """The topic of that name, and of all or that one the channel of that name, if it has it.

    So nsqd filters since 1.0; earlier ones may send everything.
    """
    found = [each for each in topics if topic in (None, each.name)]
    if channel is None:
        return found
    only = [
        replace(each, channels=tuple(c for c in each.channels if c.name == channel))
        for each in found
    ]
    return [each for each in only if each.channels]


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What several servers said, each with its address, in the order they were asked."""

    answers: list[tuple[Address, T]]
    failures: list[tuple[Address, HTTPError]]

    @property
    def values(self) -> list[T]:
        """The answers alone."""
        return [value for _, value in self.answers]


async def attempt(call: Awaitable[T]) -> T | HTTPError:
    """The answer, or why there is none: an error without what it came from, as many are kept."""
    try:
        return await call
    except HTTPError as error:
        return error.bare()


async def ask_all(clients: Sequence[C], call: Callable[[C], Awaitable[T]]) -> Answers[T]:
    """Ask all servers at once. A dead one is among the failures and hides no other's answer."""

    async def ask(client: C) -> T | HTTPError:
        return await attempt(call(client))

    said = await asyncio.gather(*map(ask, clients))
    found = [(client.address, each) for client, each in zip(clients, said, strict=True)]
    return Answers(
        [(address, each) for address, each in found if not isinstance(each, HTTPError)],
        [(address, each) for address, each in found if isinstance(each, HTTPError)],
    )
