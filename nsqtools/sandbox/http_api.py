"""Common parts of the HTTP APIs of nsqd and nsqlookupd.

Responses are as in ``internal/http_api`` of nsqio/nsq: JSON or text, ``{"message": CODE}`` for
errors, and a header that names version 1 of the API.
"""

from __future__ import annotations

import json
import re
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from nsqtools.names import is_valid_name
from nsqtools.net.http.server import TEXT, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsqtools.net.http.server import Request, RequestHandler

    ApiReply = Response | dict[str, Any] | None
    ApiEndpoint = Callable[[Request], ApiReply | Awaitable[ApiReply]]

VERSION = "1.3.0"
"""The version of nsqd and nsqlookupd that the sandbox imitates."""

_JSON = "application/json; charset=utf-8"
_V1 = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")


class Refused(Exception):  # noqa: N818 - an answer, not a failure of ours
    """Raised by an endpoint to respond with a status and ``{"message": message}``."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.response = Response(status, to_json({"message": message}), _JSON, (*_V1, *headers))


def router(routes: Mapping[tuple[str, str], ApiEndpoint]) -> RequestHandler:
    """Return a handler for a table of (method, path); errors are those of Go's httprouter.

    A last part ``*`` of a path stands for any name.
    An endpoint returns a Response, an object to send as JSON, or None for an empty response.
    """
    allowed: dict[str, list[str]] = {}
    for method, path in routes:
        allowed.setdefault(path, []).append(method)

    async def route(request: Request) -> Response:
        path = request.path
        if path not in allowed:
            folder, _, name = path.rpartition("/")
            path = f"{folder}/*" if name else path  # as httprouter's /config/:opt
        if path not in allowed:
            raise Refused(404, "NOT_FOUND")
        if endpoint := routes.get((request.method, path)):
            result = endpoint(request)
            return _reply(await result if isawaitable(result) else result)
        methods = ", ".join([*sorted(allowed[path]), "OPTIONS"])
        if request.method == "OPTIONS":
            return Response(headers=(("Allow", methods),))
        raise Refused(405, "METHOD_NOT_ALLOWED", ("Allow", methods))

    async def handle(request: Request) -> Response:
        try:
            return await route(request)
        except Refused as refused:
            return refused.response

    return handle


def ping(_: Request) -> Response:
    """Respond to ``/ping``, the only response without a version."""
    return Response(200, b"OK", TEXT)


def arguments(request: Request) -> dict[str, str]:
    """Return the first value of each query argument; raises Refused where Go's ``ParseQuery``
    fails.
    """
    found: dict[str, str] = {}
    for part in filter(None, request.query.split("&")):
        name, _, value = part.partition("=")
        if ";" in part or _BAD_ESCAPE.search(part):
            raise Refused(400, "INVALID_REQUEST")
        found.setdefault(unquote_plus(name), unquote_plus(value))
    return found


def argument(request: Request, name: str) -> str:
    """Return an argument of the query; raises Refused if it is missing."""
    try:
        return arguments(request)[name]
    except KeyError:
        raise Refused(400, f"MISSING_ARG_{name.upper()}") from None


def names_of(request: Request) -> tuple[str, str]:
    """Return topic and channel of the query; raises Refused as ``GetTopicChannelArgs`` does."""
    if not is_valid_name(topic := argument(request, "topic")):
        raise Refused(400, "INVALID_ARG_TOPIC")
    if not is_valid_name(channel := argument(request, "channel")):
        raise Refused(400, "INVALID_ARG_CHANNEL")
    return topic, channel


def text_reply(text: str) -> Response:
    """Return text as a response of version 1; an empty one has no type."""
    return Response(200, text.encode("utf-8", "replace"), TEXT if text else "", _V1)


def json_reply(value: Any) -> Response:
    """Return a value as a JSON response of version 1."""
    return Response(200, to_json(value), _JSON, _V1)


def _reply(result: ApiReply) -> Response:
    if isinstance(result, Response):
        return result
    return Response(headers=_V1) if result is None else json_reply(result)


def to_json(value: Any) -> bytes:
    """Return JSON without spaces, in the order of the dict."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
