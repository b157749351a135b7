"""nsqd's HTTP API (``nsqd/http.go``), as far as the embedded nsqd has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.errors import ServerError
from nsqtools.names import is_valid_name
from nsqtools.sandbox.http import (
    Refused,
    Request,
    Response,
    json_reply,
    names_of,
    ping,
    router,
    text_reply,
)
from nsqtools.sandbox.nsqd_stats import take_stats
from nsqtools.sandbox.wire import split_bodies, to_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config import NsqdOptions
    from nsqtools.sandbox.broker import Topic
    from nsqtools.sandbox.channel import Channel
    from nsqtools.sandbox.http import Handler
    from nsqtools.sandbox.nsqd import Nsqd

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def routes(nsqd: Nsqd) -> Handler:
    """The HTTP API."""
    return router(
        {
            ("GET", "/ping"): ping,
            ("GET", "/stats"): _stats(nsqd),
            ("GET", "/info"): _info(nsqd),
            ("POST", "/pub"): _pub(nsqd),
            ("POST", "/mpub"): _mpub(nsqd),
            **_topic_routes(nsqd),
            **_channel_routes(nsqd),
        }
    )


def _info(nsqd: Nsqd) -> Handler:
    async def info(_: Request) -> Response:
        return json_reply(nsqd.info())

    return info


def _stats(nsqd: Nsqd) -> Handler:
    async def stats(request: Request) -> Response:
        arguments = request.arguments()
        clients = _BOOLEANS.get(arguments.get("include_clients", ""), True)
        topic, channel = arguments.get("topic", ""), arguments.get("channel", "")
        return json_reply(take_stats(nsqd, topic, channel, clients=clients))

    return stats


def _pub(nsqd: Nsqd) -> Handler:
    async def pub(request: Request) -> Response:
        if request.length > nsqd.options.max_msg_size:
            raise Refused(413, "MSG_TOO_BIG")
        if not request.body:
            raise Refused(400, "MSG_EMPTY")
        topic = _created_topic(nsqd, request)
        defer = 0.0
        if "defer" in (arguments := request.arguments()):
            defer = _seconds(arguments["defer"], nsqd.options.max_req_timeout)
        nsqd.publish(topic, [request.body], defer=defer)
        await nsqd.looked_up(topic)
        return text_reply("OK")

    return pub


def _mpub(nsqd: Nsqd) -> Handler:
    async def mpub(request: Request) -> Response:
        options = nsqd.options
        if request.length > options.max_body_size:
            raise Refused(413, "BODY_TOO_BIG")
        topic = _created_topic(nsqd, request)
        binary = request.arguments().get("binary")
        if binary is not None and _BOOLEANS.get(binary, True):
            bodies = _split_bodies(request.body, options)
        else:
            bodies = [line for line in request.body.split(b"\n") if line]
            if any(len(body) > options.max_msg_size for body in bodies):
                raise Refused(413, "MSG_TOO_BIG")
        nsqd.publish(topic, bodies)
        await nsqd.looked_up(topic)
        return text_reply("OK")

    return mpub


def _topic_routes(nsqd: Nsqd) -> dict[tuple[str, str], Handler]:
    def route(act: Callable[[Topic], object]) -> Handler:
        async def handle(request: Request) -> Response:
            act(_topic(nsqd, request.argument("topic")))
            return text_reply()

        return handle

    async def create(request: Request) -> Response:
        await nsqd.looked_up(_created_topic(nsqd, request))
        return text_reply()

    async def empty(request: Request) -> Response:
        if not is_valid_name(name := request.argument("topic")):
            raise Refused(400, "INVALID_TOPIC")
        _topic(nsqd, name).empty()
        return text_reply()

    return {
        ("POST", "/topic/create"): create,
        ("POST", "/topic/delete"): route(lambda topic: nsqd.broker.delete_topic(topic.name)),
        ("POST", "/topic/empty"): empty,
        ("POST", "/topic/pause"): route(lambda topic: topic.pause()),
        ("POST", "/topic/unpause"): route(lambda topic: topic.unpause()),
    }


def _channel_routes(nsqd: Nsqd) -> dict[tuple[str, str], Handler]:
    def route(act: Callable[[Topic, Channel], object]) -> Handler:
        async def handle(request: Request) -> Response:
            topic_name, name = names_of(request)
            topic = _topic(nsqd, topic_name)
            if name not in topic.channels:
                raise Refused(404, "CHANNEL_NOT_FOUND")
            act(topic, topic.channels[name])
            return text_reply()

        return handle

    async def create(request: Request) -> Response:
        topic, channel = names_of(request)
        _topic(nsqd, topic).channel(channel)
        return text_reply()

    return {
        ("POST", "/channel/create"): create,
        ("POST", "/channel/delete"): route(lambda topic, it: topic.delete_channel(it.name)),
        ("POST", "/channel/empty"): route(lambda _, channel: channel.empty()),
        ("POST", "/channel/pause"): route(lambda _, channel: channel.pause()),
        ("POST", "/channel/unpause"): route(lambda _, channel: channel.unpause()),
    }


def _created_topic(nsqd: Nsqd, request: Request) -> str:
    """The name of the query's topic, which exists then: nsqd makes it before it looks further."""
    name = request.argument("topic")
    if not is_valid_name(name):
        raise Refused(400, "INVALID_TOPIC")
    nsqd.broker.topic(name)
    return name


def _topic(nsqd: Nsqd, name: str) -> Topic:
    if name not in nsqd.broker.topics:
        raise Refused(404, "TOPIC_NOT_FOUND")
    return nsqd.broker.topics[name]


def _seconds(defer: str, longest: float) -> float:
    milliseconds = to_number(defer.encode())
    if milliseconds is None or milliseconds > longest * 1000:
        raise Refused(400, "INVALID_DEFER")
    return milliseconds / 1000


def _split_bodies(body: bytes, options: NsqdOptions) -> Sequence[bytes]:
    try:
        return split_bodies(
            body, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size
        )
    except ServerError as error:
        raise Refused(413, error.code.removeprefix("E_")) from None
