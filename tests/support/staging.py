"""Fake nsqds and nsqlookupds with fixed answers over HTTP, and clusters of them."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from nsqtools.engine.cluster import Cluster
from nsqtools.net.http.replies import ChannelStats, ClientStats, Registration, TopicStats
from nsqtools.net.http.server import Request, Response, serve
from nsqtools.sandbox.http_api import json_reply
from tests.support.servers import free_port


@dataclass(slots=True)
class Fake:
    """A server with fixed answers by path, until it is stopped."""

    answers: dict[str, Any]
    port: int = field(default_factory=free_port)
    asked: list[str] = field(default_factory=list)
    server: Any = None

    async def answer(self, request: Request) -> Response:
        self.asked.append(f"{request.path}?{request.query}" if request.query else request.path)
        return json_reply(self.answers[request.path])

    async def start(self) -> None:
        self.server = await serve(self.answer, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop()
        self.server = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(each.partition("?")[0] == path for each in self.asked)


class Stage:
    """Fakes, and clusters of them, that end with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    async def nsqd(self, *topics: str) -> Fake:
        fake = Fake({})
        facts = {"version": "1.3.0", "start_time": 5}
        fake.answers["/info"] = {
            **facts,
            "broadcast_address": "127.0.0.1",
            "hostname": "host",
            "tcp_port": free_port(),
            "http_port": fake.port,
        }
        entries = [{"topic_name": name, "depth": 1, "channels": []} for name in topics]
        fake.answers["/stats"] = {**facts, "topics": entries}
        await self.start(fake)
        return fake

    async def lookupd(self, *nsqds: Fake) -> Fake:
        fake = Fake({"/nodes": {"producers": [listed(each) for each in nsqds]}})
        await self.start(fake)
        return fake

    async def start(self, fake: Fake) -> None:
        await fake.start()
        self.stack.push_async_callback(fake.stop)

    def cluster(self, *lookupds: Fake, nsqds: tuple[Fake, ...] = ()) -> Cluster:
        made = Cluster(
            [each.name for each in lookupds],
            [each.name for each in nsqds],
            connect_timeout=60,
            request_timeout=60,
        )
        self.stack.push_async_callback(made.close)
        return made


def listed(nsqd: Fake) -> dict[str, Any]:
    info, stats = nsqd.answers["/info"], nsqd.answers["/stats"]
    topics = [each["topic_name"] for each in stats["topics"]]
    return {**info, "topics": topics, "tombstones": [False] * len(topics)}


def channel(name: str = "c", *clients: ClientStats, **values: Any) -> ChannelStats:
    numbers = ("depth", "backend_depth", "in_flight", "deferred", "message_count")
    more = ("requeue_count", "timeout_count")
    zeros = dict.fromkeys(numbers + more, 0)
    known = {"name": name, "paused": False, "clients": clients, "client_count": len(clients)}
    return ChannelStats(**{**zeros, **known, **values})


def events(*channels: ChannelStats, published: int = 1, **values: Any) -> TopicStats:
    """Topic events of an nsqd."""
    known = {"depth": 0, "backend_depth": 0, "message_count": published, "paused": False}
    return TopicStats(**{"name": "events", "channels": channels, **known, **values})


def producer(host: str, *topics: str, hostname: str = "") -> Registration:
    """An nsqd as nsqlookupd lists it."""
    marks = (False,) * len(topics)
    remote = "172.17.0.5:33000"
    return Registration(host, 4150, 4151, hostname or host, remote, "1.3.0", topics, marks)
