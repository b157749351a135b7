"""nsqd's HTTP API (``nsqd/http.go``), as far as the embedded nsqd has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.errors import ServerError
from nsqtools.names import is_valid_name
from nsqtools.sandbox.http_api import (
    Refused,
    argument,
    arguments,
    json_reply,
    names_of,
    ping,
    router,
    text_reply,
)
from nsqtools.sandbox.nsqd.nsqd_stats import take_stats
from nsqtools.sandbox.nsqd.parser import split_bodies, to_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.net.http.server import Handler, Request, Response
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.channel import Channel

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class NsqdApi:
    """The HTTP API of an nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    def handler(self) -> Handler:
        """What answers requests."""
        on_topic, on_channel = self._on_topic, self._on_channel
        return router(
            {
                ("GET", "/ping"): ping,
                ("GET", "/info"): self._info,
                ("GET", "/stats"): self._stats,
                ("POST", "/pub"): self._pub,
                ("POST", "/mpub"): self._mpub,
                ("POST", "/topic/create"): self._create_topic,
                ("POST", "/topic/delete"): on_topic(lambda it: self._broker.delete_topic(it.name)),
                ("POST", "/topic/empty"): self._empty_topic,
                ("POST", "/topic/pause"): on_topic(lambda it: it.pause()),
                ("POST", "/topic/unpause"): on_topic(lambda it: it.unpause()),
                ("POST", "/channel/create"): self._create_channel,
                ("POST", "/channel/delete"): on_channel(
                    lambda it: it.topic.delete_channel(it.name)
                ),
                ("POST", "/channel/empty"): on_channel(lambda it: it.empty()),
                ("POST", "/channel/pause"): on_channel(lambda it: it.pause()),
                ("POST", "/channel/unpause"): on_channel(lambda it: it.unpause()),
            }
        )

    async def _info(self, _: Request) -> Response:
        return json_reply(self._nsqd.info())

    async def _stats(self, request: Request) -> Response:
        given = arguments(request)
        clients = _BOOLEANS.get(given.get("include_clients", ""), True)
        topic, channel = given.get("topic", ""), given.get("channel", "")
        return json_reply(take_stats(self._nsqd, topic, channel, clients=clients))

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
        return text_reply("OK")

    async def _create_topic(self, request: Request) -> Response:
        await self._nsqd.looked_up(self._made_topic(request))
        return text_reply()

    async def _empty_topic(self, request: Request) -> Response:
        if not is_valid_name(name := argument(request, "topic")):
            raise Refused(400, "INVALID_TOPIC")
        self._topic(name).empty()
        return text_reply()

    async def _create_channel(self, request: Request) -> Response:
        topic, channel = names_of(request)
        self._topic(topic).channel(channel)
        return text_reply()

    def _on_topic(self, act: Callable[[Topic], object]) -> Handler:
        async def handle(request: Request) -> Response:
            act(self._topic(argument(request, "topic")))
            return text_reply()

        return handle

    def _on_channel(self, act: Callable[[Channel], object]) -> Handler:
        async def handle(request: Request) -> Response:
            topic, name = names_of(request)
            channel = self._topic(topic).channels.get(name)
            if not channel:
                raise Refused(404, "CHANNEL_NOT_FOUND")
            act(channel)
            return text_reply()

        return handle

    def _topic(self, name: str) -> Topic:
        if name not in self._broker.topics:
            raise Refused(404, "TOPIC_NOT_FOUND")
        return self._broker.topics[name]

    def _made_topic(self, request: Request) -> str:
        """The name of the query's topic; nsqd creates it before it looks at anything else."""
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
