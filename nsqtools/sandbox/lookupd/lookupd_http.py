"""The part of nsqlookupd's HTTP API (``nsqlookupd/http.go``) that the embedded nsqlookupd has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.names import is_valid_name
from nsqtools.sandbox.http_api import VERSION, Refused, argument, names_of, ping, router

if TYPE_CHECKING:
    from nsqtools.net.http.server import Request, RequestHandler
    from nsqtools.sandbox.lookupd import Nsqlookupd


def lookupd_api(lookupd: Nsqlookupd) -> RequestHandler:
    """Return the handler for requests to an nsqlookupd."""
    registry = lookupd.registry

    def look_up(request: Request) -> dict[str, Any]:
        topic = argument(request, "topic")
        if topic not in registry.topics:
            raise Refused(404, "TOPIC_NOT_FOUND")
        producers = [peer.facts() for peer in registry.producers(topic, lookupd.now)]
        return {"channels": registry.channels(topic), "producers": producers}

    def nodes(_: Request) -> dict[str, Any]:
        return {
            "producers": [
                {**peer.facts(), "tombstones": list(marks.values()), "topics": list(marks)}
                for peer, marks in registry.nodes(lookupd.now)
            ]
        }

    def create_topic(request: Request) -> None:
        topic = argument(request, "topic")
        if not is_valid_name(topic):
            raise Refused(400, "INVALID_ARG_TOPIC")
        registry.create(topic)

    def tombstone(request: Request) -> None:
        topic, node = argument(request, "topic"), argument(request, "node")
        registry.tombstone(topic, node, lookupd.now)

    def create_channel(request: Request) -> None:
        registry.create(*names_of(request))

    def delete_channel(request: Request) -> None:
        if not registry.delete_channel(*names_of(request)):
            raise Refused(404, "CHANNEL_NOT_FOUND")

    return router(
        {
            ("GET", "/ping"): ping,
            ("GET", "/info"): lambda _: {"version": VERSION},
            ("GET", "/topics"): lambda _: {"topics": list(registry.topics)},
            ("GET", "/channels"): lambda it: {"channels": registry.channels(argument(it, "topic"))},
            ("GET", "/lookup"): look_up,
            ("GET", "/nodes"): nodes,
            ("GET", "/debug"): lambda _: registry.debug(),
            ("POST", "/topic/create"): create_topic,
            ("POST", "/topic/delete"): lambda it: registry.delete_topic(argument(it, "topic")),
            ("POST", "/topic/tombstone"): tombstone,
            ("POST", "/channel/create"): create_channel,
            ("POST", "/channel/delete"): delete_channel,
        }
    )
