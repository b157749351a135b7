"""The part of nsqd's HTTP API (``nsqd/http.go``) that the embedded nsqd has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.errors import ServerError
from nsqtools.names import is_valid_name
from nsqtools.sandbox.http_api import Refused, argument, arguments, names_of, ok_reply, ping, router
from nsqtools.sandbox.nsqd.nsqd_stats import take_stats
from nsqtools.sandbox.nsqd.parser import split_bodies, to_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.net.http.server import Request, RequestHandler, Response
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.channel import Channel

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class NsqdApi:
    """The HTTP API of an nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    def handler(self) -> RequestHandler:
        """Return the handler for requests."""
        topic, channel = self._topic, self._channel
        return router(
            {
                ("GET", "/ping"): ping,
                ("GET", "/info"): lambda _: self._nsqd.info(),
                ("GET", "/stats"): self._stats,
                ("POST", "/pub"): self._pub,
                ("POST", "/mpub"): self._mpub,
                ("POST", "/topic/create"): self._create_topic,
                ("POST", "/topic/delete"): lambda it: self._broker.delete_topic(topic(it).name),
                ("POST", "/topic/empty"): self._empty_topic,
                ("POST", "/topic/pause"): lambda it: topic(it).pause(),
                ("POST", "/topic/unpause"): lambda it: topic(it).unpause(),
                ("POST", "/channel/create"): self._create_channel,
                ("POST", "/channel/delete"): self._delete_channel,
                ("POST", "/channel/empty"): lambda it: channel(it).empty(),
                ("POST", "/channel/pause"): lambda it: channel(it).pause(),
                ("POST", "/channel/unpause"): lambda it: channel(it).unpause(),
            }
        )

    def _stats(self, request: Request) -> dict[str, Any]:
        given = arguments(request)
        clients = _BOOLEANS.get(given.get("include_clients", ""), True)
        topic, channel = given.get("topic", ""), given.get("channel", "")
        return take_stats(self._nsqd, topic, channel, clients=clients)

    async def _pub(self, request: Request) -> Response:
        options = self._nsqd.options
        if request.length > options.max_msg_size:
            raise Refused(413, "MSG_TOO_BIG")
        if not request.body:
            raise Refused(400, "MSG_EMPTY")
        topic = self._made_topic(request)
        defer = _seconds(arguments(request).get("defer", "0"), options.max_req_timeout)
        return await self._publish(topic, [request.body], defer)

    async def _mpub(self, request: Request) -> Response:
        options = self._nsqd.options
        if request.length > options.max_body_size:
            raise Refused(413, "BODY_TOO_BIG")
        topic = self._made_topic(request)
        if _BOOLEANS.get(arguments(request).get("binary", "false"), True):
            try:
                bodies = split_bodies(request.body, options)
            except ServerError as error:
                raise Refused(413, error.code.removeprefix("E_")) from None
        else:
            bodies = [line for line in request.body.split(b"\n") if line]
            if any(len(body) > options.max_msg_size for body in bodies):
                raise Refused(413, "MSG_TOO_BIG")
        return await self._publish(topic, bodies)

    async def _publish(self, topic: str, bodies: Sequence[bytes], defer: float = 0.0) -> Response:
        self._nsqd.publish(topic, bodies, defer=defer)
        await self._nsqd.looked_up(topic)
        return ok_reply()

    async def _create_topic(self, request: Request) -> None:
        await self._nsqd.looked_up(self._made_topic(request))

    def _empty_topic(self, request: Request) -> None:
        if not is_valid_name(argument(request, "topic")):
            raise Refused(400, "INVALID_TOPIC")
        self._topic(request).empty()

    def _create_channel(self, request: Request) -> None:
        _, name = names_of(request)
        self._topic(request).channel(name)

    def _delete_channel(self, request: Request) -> None:
        channel = self._channel(request)
        channel.topic.delete_channel(channel.name)

    def _topic(self, request: Request) -> Topic:
        """Return the topic of the query; raises Refused if it does not exist."""
        if topic := self._broker.topics.get(argument(request, "topic")):
            return topic
        raise Refused(404, "TOPIC_NOT_FOUND")

    def _channel(self, request: Request) -> Channel:
        """Return the channel of the query; raises Refused if it does not exist."""
        _, name = names_of(request)
        if channel := self._topic(request).channels.get(name):
            return channel
        raise Refused(404, "CHANNEL_NOT_FOUND")

    def _made_topic(self, request: Request) -> str:
        """Return the name of the query's topic, which nsqd creates before any other check."""
        name = argument(request, "topic")
        if not is_valid_name(name):
            raise Refused(400, "INVALID_TOPIC")
        self._broker.topic(name)
        return name


def _seconds(defer: str, longest: float) -> float:
    milliseconds = to_number(defer.encode())
    if milliseconds is None or milliseconds > longest * 1000:
        raise Refused(400, "INVALID_DEFER")
    return milliseconds / 1000
