"""nsqlookupd's HTTP API (``nsqlookupd/http.go``), as far as the embedded nsqlookupd has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.names import is_valid_name
from nsqtools.sandbox.http_api import (
    VERSION,
    Refused,
    argument,
    json_reply,
    names_of,
    ping,
    router,
    text_reply,
)

if TYPE_CHECKING:
    from nsqtools.net.http.server import Handler, Request, Response
    from nsqtools.sandbox.lookupd import Nsqlookupd


class LookupdApi:
    """The HTTP API of an nsqlookupd."""

    def __init__(self, lookupd: Nsqlookupd) -> None:
        self._lookupd = lookupd
        self._registry = lookupd.registry

    def handler(self) -> Handler:
        """What answers requests."""
        return router(
            {
                ("GET", "/ping"): ping,
                ("GET", "/info"): self._info,
                ("GET", "/topics"): self._topics,
                ("GET", "/channels"): self._channels,
                ("GET", "/lookup"): self._lookup,
                ("GET", "/nodes"): self._nodes,
                ("POST", "/topic/create"): self._create_topic,
                ("POST", "/topic/delete"): self._delete_topic,
                ("POST", "/topic/tombstone"): self._tombstone,
                ("POST", "/channel/create"): self._create_channel,
                ("POST", "/channel/delete"): self._delete_channel,
            }
        )

    async def _info(self, _: Request) -> Response:
        return json_reply({"version": VERSION})

    async def _topics(self, _: Request) -> Response:
        return json_reply({"topics": list(self._registry.topics)})

    async def _channels(self, request: Request) -> Response:
        return json_reply({"channels": self._registry.channels(argument(request, "topic"))})

    async def _lookup(self, request: Request) -> Response:
        topic = argument(request, "topic")
        if topic not in self._registry.topics:
            raise Refused(404, "TOPIC_NOT_FOUND")
        peers = self._registry.producers(topic, self._lookupd.now)
        producers = [peer.facts() for peer in peers]
        return json_reply({"channels": self._registry.channels(topic), "producers": producers})

    async def _nodes(self, _: Request) -> Response:
        found = [
            {**peer.facts(), "tombstones": list(marks.values()), "topics": list(marks)}
            for peer, marks in self._registry.nodes(self._lookupd.now)
        ]
        return json_reply({"producers": found})

    async def _create_topic(self, request: Request) -> Response:
        topic = argument(request, "topic")
        if not is_valid_name(topic):
            raise Refused(400, "INVALID_ARG_TOPIC")
        self._registry.create(topic)
        return text_reply()

    async def _delete_topic(self, request: Request) -> Response:
        self._registry.delete_topic(argument(request, "topic"))
        return text_reply()

    async def _tombstone(self, request: Request) -> Response:
        topic, node = argument(request, "topic"), argument(request, "node")
        self._registry.tombstone(topic, node, self._lookupd.now)
        return text_reply()

    async def _create_channel(self, request: Request) -> Response:
        self._registry.create(*names_of(request))
        return text_reply()

    async def _delete_channel(self, request: Request) -> Response:
        if not self._registry.delete_channel(*names_of(request)):
            raise Refused(404, "CHANNEL_NOT_FOUND")
        return text_reply()
