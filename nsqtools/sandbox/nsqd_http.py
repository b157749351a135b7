"""nsqd's HTTP API (``nsqd/http.go``) over an embedded nsqd, but for ``/debug``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, ServerError
from nsqtools.names import Address, is_valid_name
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
from nsqtools.sandbox.nsqd_stats import stats_json, stats_text, take_stats
from nsqtools.sandbox.wire import split_bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config import NsqdOptions
    from nsqtools.sandbox.broker import Channel, Topic
    from nsqtools.sandbox.http import Handler
    from nsqtools.sandbox.nsqd import Nsqd

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_LOG_LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}


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
            **_config_routes(nsqd),
        }
    )


def _info(nsqd: Nsqd) -> Handler:
    async def info(_: Request) -> Response:
        return json_reply(nsqd.info())

    return info


def _stats(nsqd: Nsqd) -> Handler:
    async def stats(request: Request) -> Response:
        arguments = request.arguments()
        found = take_stats(
            nsqd,
            arguments.get("topic", ""),
            arguments.get("channel", ""),
            clients=_BOOLEANS.get(arguments.get("include_clients", ""), True),
            memory=_BOOLEANS.get(arguments.get("include_mem", ""), True),
        )
        if arguments.get("format") == "json":
            return json_reply(stats_json(found))
        return text_reply(stats_text(found))

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
            defer = _milliseconds(arguments["defer"], nsqd.options.max_req_timeout)
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


def _config_routes(nsqd: Nsqd) -> dict[tuple[str, str], Handler]:
    log_level = _LOG_LEVELS["info"]  # read back as it was set, and of no effect

    def value_of(name: str) -> Response:
        settings = {**_settings(nsqd), "log_level": log_level}
        if name not in settings:
            raise Refused(400, "INVALID_OPTION")
        value = settings[name]
        return text_reply(value) if isinstance(value, str) else json_reply(value)

    async def read(request: Request) -> Response:
        return value_of(request.path.rpartition("/")[2])

    async def write(request: Request) -> Response:
        nonlocal log_level
        if not 0 < request.length <= nsqd.options.max_msg_size:
            raise Refused(413, "INVALID_VALUE")
        match name := request.path.rpartition("/")[2]:
            case "nsqlookupd_tcp_addresses":
                await nsqd.lookupds.set_addresses(_read_addresses(request.body))
            case "log_level":
                level = _LOG_LEVELS.get(request.body.decode("latin-1").lower())
                if level is None:
                    raise Refused(400, "INVALID_VALUE")
                log_level = level
            case _:
                raise Refused(400, "INVALID_OPTION")
        return value_of(name)

    return {("GET", "/config/*"): read, ("PUT", "/config/*"): write}


def _settings(nsqd: Nsqd) -> dict[str, Any]:
    """Options by nsqd's names (``nsqd/options.go``), durations in ns; the ones there are here."""
    options = nsqd.options
    found: dict[str, Any] = {}
    for name, declared in options.declared().items():
        value = getattr(options, name)
        found[name] = round(value * 1e9) if declared.kind == "duration" else value
    del found["auth_secret_file"]
    return found | {
        "tcp_address": str(nsqd.tcp),
        "http_address": str(nsqd.http),
        "broadcast_address": nsqd.broadcast_address,
        "broadcast_tcp_port": nsqd.tcp.port,
        "broadcast_http_port": nsqd.http.port,
        "nsqlookupd_tcp_addresses": list(map(str, nsqd.lookupds.addresses)),
        "mem_queue_size": nsqd.broker.mem_queue_size,
        "tls_required": int(nsqd.tls_required),
    }


def _read_addresses(body: bytes) -> list[Address]:
    try:
        texts = json.loads(body)
        if not isinstance(texts, list):
            raise ValueError(texts)
        return [Address.parse(str(text)) for text in texts]
    except (ValueError, RecursionError, ConfigError):
        raise Refused(400, "INVALID_VALUE") from None


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


def _milliseconds(text: str, longest: float) -> float:
    """Seconds of ``defer``."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise Refused(400, "INVALID_DEFER")
    seconds = int(text) / 1000
    if not 0 <= seconds <= longest:
        raise Refused(400, "INVALID_DEFER")
    return seconds


def _split_bodies(body: bytes, options: NsqdOptions) -> Sequence[bytes]:
    try:
        return split_bodies(
            body, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size
        )
    except ServerError as error:
        raise Refused(413, error.code.removeprefix("E_")) from None
