"""The embedded nsqlookupd and its HTTP API (``nsqlookupd/http.go``)."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqtools.names import Address, is_valid_name
from nsqtools.sandbox.http import (
    Refused,
    Request,
    Response,
    json_reply,
    names_of,
    ping,
    router,
    serve,
    text_reply,
)
from nsqtools.sandbox.lookupd_tcp import converse
from nsqtools.sandbox.registry import Registry
from nsqtools.sandbox.server import StreamServer, name_of
from nsqtools.sandbox.wire import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.sandbox.http import Handler, Routes


class Nsqlookupd:
    """An nsqlookupd in this event loop; timeouts in seconds. It tells nsqds its broadcast address,
    the one it listens on unless told.

    ``tcp`` and ``http`` are the bound addresses, once it is started.
    """

    def __init__(
        self,
        *,
        broadcast_address: str = "",
        inactive_producer_timeout: float = 300.0,
        tombstone_lifetime: float = 45.0,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.registry = Registry(inactive_producer_timeout, tombstone_lifetime)
        self.tcp = self.http = Address("", 0)
        self._broadcast_address = broadcast_address
        self._clock_ns = clock_ns
        self._tcp_server = StreamServer(partial(converse, self))
        self._http_server: StreamServer | None = None

    async def start(self, host: str, tcp_port: int, http_port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError whose ``filename`` is the address."""
        self._broadcast_address = self._broadcast_address or name_of(host)
        try:
            self._http_server = await serve(routes(self), host, http_port)
            self.http = self._http_server.address
            await self._tcp_server.start(host, tcp_port)
            self.tcp = self._tcp_server.address
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Cut every connection and forget what was registered over them."""
        await self._tcp_server.stop()
        if self._http_server:
            await self._http_server.stop()

    def info(self) -> dict[str, Any]:
        """The reply to IDENTIFY."""
        return {
            "broadcast_address": self._broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http.port,
            "tcp_port": self.tcp.port,
            "version": VERSION,
        }

    @property
    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return self._clock_ns()


def routes(lookupd: Nsqlookupd) -> Handler:
    """The HTTP API over a lookupd, but for ``/debug``."""
    return router({**_questions(lookupd), **_changes(lookupd)})


def _questions(lookupd: Nsqlookupd) -> Routes:
    registry = lookupd.registry

    async def info(_: Request) -> Response:
        return json_reply({"version": VERSION})

    async def topics(_: Request) -> Response:
        return json_reply({"topics": list(registry.topics)})

    async def channels(request: Request) -> Response:
        return json_reply({"channels": registry.channels(request.argument("topic"))})

    async def lookup(request: Request) -> Response:
        topic = request.argument("topic")
        if topic not in registry.topics:
            raise Refused(404, "TOPIC_NOT_FOUND")
        producers = [peer.facts() for peer in registry.producers(topic, lookupd.now)]
        return json_reply({"channels": registry.channels(topic), "producers": producers})

    async def nodes(_: Request) -> Response:
        found = [
            {**peer.facts(), "tombstones": list(marks.values()), "topics": list(marks)}
            for peer, marks in registry.nodes(lookupd.now)
        ]
        return json_reply({"producers": found})

    return {
        ("GET", "/ping"): ping,
        ("GET", "/info"): info,
        ("GET", "/topics"): topics,
        ("GET", "/channels"): channels,
        ("GET", "/lookup"): lookup,
        ("GET", "/nodes"): nodes,
    }


def _changes(lookupd: Nsqlookupd) -> Routes:
    registry = lookupd.registry

    async def create_topic(request: Request) -> Response:
        topic = request.argument("topic")
        if not is_valid_name(topic):
            raise Refused(400, "INVALID_ARG_TOPIC")
        registry.create(topic)
        return text_reply()

    async def delete_topic(request: Request) -> Response:
        registry.delete_topic(request.argument("topic"))
        return text_reply()

    async def tombstone(request: Request) -> Response:
        topic, node = request.argument("topic"), request.argument("node")
        registry.tombstone(topic, node, lookupd.now)
        return text_reply()

    async def create_channel(request: Request) -> Response:
        registry.create(*names_of(request))
        return text_reply()

    async def delete_channel(request: Request) -> Response:
        if not registry.delete_channel(*names_of(request)):
            raise Refused(404, "CHANNEL_NOT_FOUND")
        return text_reply()

    return {
        ("POST", "/topic/create"): create_topic,
        ("POST", "/topic/delete"): delete_topic,
        ("POST", "/topic/tombstone"): tombstone,
        ("POST", "/channel/create"): create_channel,
        ("POST", "/channel/delete"): delete_channel,
    }
