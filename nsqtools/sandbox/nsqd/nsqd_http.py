"""The part of nsqd's HTTP API (``nsqd/http.go``) that the embedded nsqd has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, ServerError
from nsqtools.names import Address, is_valid_name
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
from nsqtools.sandbox.nsqd.nsqd_stats import stats_text, take_stats
from nsqtools.sandbox.nsqd.parser import split_bodies, to_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.net.http.server import Request, RequestHandler, Response
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.channel import Channel

_LOG_LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
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
                ("GET", "/config/*"): self._config,
                ("PUT", "/config/*"): self._configure,
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

    def _stats(self, request: Request) -> Response:
        given = arguments(request)
        found = take_stats(
            self._nsqd,
            given.get("topic", ""),
            given.get("channel", ""),
            clients=_BOOLEANS.get(given.get("include_clients", ""), True),
            memory=_BOOLEANS.get(given.get("include_mem", ""), True),
        )
        return json_reply(found) if given.get("format") == "json" else text_reply(stats_text(found))

    def _config(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        values = self._nsqd.settings()
        if name not in values:
            raise Refused(400, "INVALID_OPTION")
        value = values[name]
        return text_reply(value) if isinstance(value, str) else json_reply(value)

    async def _configure(self, request: Request) -> Response:
        if not 0 < request.length <= self._nsqd.options.max_msg_size:
            raise Refused(413, "INVALID_VALUE")
        match request.path.rpartition("/")[2]:
            case "nsqlookupd_tcp_addresses":
                await self._nsqd.use_lookupds(_read_addresses(request.body))
            case "log_level":
                level = _LOG_LEVELS.get(request.body.decode("latin-1").lower())
                if level is None:
                    raise Refused(400, "INVALID_VALUE")
                self._nsqd.log_level = level
            case _:
                raise Refused(400, "INVALID_OPTION")
        return self._config(request)

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


def _read_addresses(body: bytes) -> list[Address]:
    try:
        texts = json.loads(body)
        if not isinstance(texts, list):
            raise ValueError(texts)
        return [Address.parse(str(text)) for text in texts]
    except (ValueError, RecursionError, ConfigError):
        raise Refused(400, "INVALID_VALUE") from None


def _seconds(defer: str, longest: float) -> float:
    milliseconds = to_number(defer.encode())
    if milliseconds is None or milliseconds > longest * 1000:
        raise Refused(400, "INVALID_DEFER")
    return milliseconds / 1000
