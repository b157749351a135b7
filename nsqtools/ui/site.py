"""What all pages share: the cluster, the options, URLs, and how a page is rendered."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, StreamingResponse

from nsqtools import __version__
from nsqtools.config.units import counted, format_duration
from nsqtools.names import is_valid_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqtools.config.connection import ClientConfig
    from nsqtools.config.ui import UiOptions
    from nsqtools.engine.administration import Servers
    from nsqtools.engine.clusterwatch import ClusterWatch
    from nsqtools.records.bodies.bodydecoder import BodyDecoder
    from nsqtools.ui.access import Visitor
    from nsqtools.ui.audit import Audit
    from nsqtools.ui.republication import Republications

    PageView = Callable[["Site", Request], Awaitable["WebPage"]]
    FormView = Callable[["Site", Request, "SentForm"], Awaitable[Response]]

FILES = Path(__file__).parent

MAX_FORM = 4 << 20
"""Maximum size of a form, in bytes."""
_MAX_FIELDS = 1000
_FORM_TIMEOUT = 30.0
_MAX_LOOKERS = 8
_MAX_STREAMS = 200
"""Maximum number of browsers that get new pictures."""


@dataclass(frozen=True, slots=True)
class WebPage:
    """A template with its variables; ``live`` pages are sent again with each new picture."""

    template: str
    context: Mapping[str, Any]
    live: bool = True
    status: int = 200


class SentForm:
    """The fields of a submitted form; a field may occur several times."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def __getitem__(self, name: str) -> str:
        return next((value for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self._pairs if key == name]

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number within bounds; raises HTTPException."""
        try:
            value = float(self[name] or default)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise HTTPException(400, f"{name}: expected {least:g} to {most:g}")
        return value


class Site:
    """Everything that pages need."""

    def __init__(
        self,
        watch: ClusterWatch,
        options: UiOptions,
        servers: Servers,
        config: ClientConfig,
        audit: Audit,
        republications: Republications,
        decoder: BodyDecoder | None = None,
    ) -> None:
        self.watch = watch
        self.options = options
        self.servers = servers
        self.config = config
        self.audit = audit
        self.republications = republications
        self.decoder = decoder
        self.decoding = asyncio.Lock()
        """For the use of the decoder, by one thread at a time."""
        self.lookers = asyncio.Semaphore(_MAX_LOOKERS)
        """For requests that keep connections to servers open for seconds; more of them wait."""
        self.streams = 0
        """Number of browsers that get new pictures."""
        self.base = options.base_path.rstrip("/")
        self._templates = Environment(
            loader=FileSystemLoader(FILES / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"url": self.url, "version": __version__, "options": options}
        self._templates.filters |= {
            "number": number,
            "age": age,
            "clock": clock,
            "counted": counted,
        }
        macros = self._templates.get_template("macros.html")
        self._templates.globals["m"] = macros.module

    def url(self, *parts: str, **query: object) -> str:
        """Return the path of a page, with the names of topics and channels escaped."""
        path = "/".join([self.base, *(quote(part, safe="") for part in parts)]) or "/"
        path = path if parts else f"{self.base}/"
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return f"{path}?{urlencode(given)}" if given else path

    def render(self, page: WebPage, request: Request, *, block: str = "") -> str:
        """Return the HTML of a page, or of one of its blocks."""
        template = self._templates.get_template(page.template)
        context = {
            "visitor": visitor_of(request),
            "picture": self.watch.picture,
            "live": page.live,
            **page.context,
        }
        if not block:
            return template.render(context)
        return "".join(template.blocks[block](template.new_context(context)))

    def respond(self, page: WebPage, request: Request) -> HTMLResponse:
        """Return a whole page."""
        return HTMLResponse(self.render(page, request), page.status)

    def notice(self, request: Request, text: str, status: int) -> HTMLResponse:
        """Return a page with one sentence."""
        return self.respond(
            WebPage("notice.html", {"text": text}, live=False, status=status), request
        )


def viewed(site: Site, view: PageView) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of a view: a page or, for an EventSource, its live part again and again."""

    @wraps(view)
    async def endpoint(request: Request) -> Response:
        page = await view(site, request)
        if not page.live or "text/event-stream" not in request.headers.get("accept", ""):
            return site.respond(page, request)
        if site.streams >= _MAX_STREAMS:
            return site.notice(request, "too many browsers are looking: reload later", 503)
        return StreamingResponse(_stream(site, view, request), media_type="text/event-stream")

    return endpoint


async def _stream(site: Site, view: PageView, request: Request) -> AsyncIterator[str]:
    site.streams += 1
    try:
        yield "retry: 2000\n\n"
        while await site.watch.turn():
            try:
                page = await view(site, request)
                html = site.render(page, request, block="live")
            except HTTPException as error:
                html = site.render(
                    WebPage("notice.html", {"text": error.detail}), request, block="live"
                )
            yield "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"
    finally:
        site.streams -= 1


def posted(
    site: Site, post: FormView, *, changes: bool = True
) -> Callable[[Request], Awaitable[Any]]:
    """Make an endpoint of a form's action, which gets only forms with the visitor's token.

    With ``changes``, visitors who only read are refused.
    """

    @wraps(post)
    async def endpoint(request: Request) -> Response:
        visitor = visitor_of(request)
        form = await _read_form(request)
        if not hmac.compare_digest(form["token"].encode(), visitor.token.encode()):
            raise HTTPException(403, "the form is out of date: go back, reload the page, try again")
        if changes and not visitor.may_change:
            raise HTTPException(403, why_read_only(site, visitor))
        return await post(site, request, form)

    return endpoint


async def _read_form(request: Request) -> SentForm:
    if request.headers.get("content-type", "") != "application/x-www-form-urlencoded":
        raise HTTPException(415, "expected a form")
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM:
                    raise HTTPException(413, f"the form is larger than {MAX_FORM >> 20} MiB")
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except TimeoutError:
        raise HTTPException(408, f"no form within {_FORM_TIMEOUT:g} s") from None
    except ValueError:
        raise HTTPException(400, "the form is not usable") from None
    return SentForm(pairs)


def visitor_of(request: Request) -> Visitor:
    """Return the user of a request."""
    found: Visitor = request.scope["state"]["visitor"]
    return found


def why_read_only(site: Site, visitor: Visitor) -> str:
    """Return the reason why a visitor cannot change anything, with the fix."""
    if not site.options.allow_changes:
        return "the page is read-only: start nsqtools ui with --allow-changes"
    return f"user {visitor.name} only reads: --admin-user {visitor.name} would allow changes"


def name_in(request: Request, kind: str) -> str:
    """Return the topic or channel named by the path, empty if there is none.

    Raises HTTPException for a name that no server has.
    """
    found: str = request.path_params.get(kind, "")
    if found and not is_valid_name(found):
        raise HTTPException(404, f"no {kind} can have this name")
    return found


def number(value: float | None) -> str:
    """Return a count or a rate; ``-`` for an unknown value."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 10 and value != int(value) else f"{value:,.0f}"


def age(value: float | None) -> str:
    """Return an estimated age; ``-`` for an unknown value."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "none leaves"
    return format_duration(round(value)) if value >= 1 else "0s"


def clock(value: float) -> str:
    """Return a time in seconds since the epoch as UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(value))
