"""What all pages share: the cluster, the options, URLs, and how a page is rendered."""

from __future__ import annotations

import asyncio
import hmac
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, StreamingResponse

from nsqtools import __version__
from nsqtools.config.units import counted, format_age, format_number, format_time
from nsqtools.engine.changes import Target
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import check_name
from nsqtools.sinks.peek import WORN
from nsqtools.sinks.threads import as_output_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqtools.config.connection import ClientConfig
    from nsqtools.config.ui import UiOptions
    from nsqtools.engine.administration import Servers
    from nsqtools.engine.clusterwatch import ClusterWatch
    from nsqtools.records.bodies.bodydecoder import BodyDecoder
    from nsqtools.redrive.republication import Republications
    from nsqtools.ui.access import Visitor
    from nsqtools.ui.audit import Audit

    PageView = Callable[["Site", Request], Awaitable["WebPage"]]
    FormView = Callable[["Site", Request, "SentForm"], Awaitable[Response]]

FILES = Path(__file__).parent

ERRORS = (HTTPException, NSQError, OSError)
"""The errors to tell visitors of; others are bugs."""

MAX_FORM = 4 << 20
"""Maximum size of a form, in bytes."""
_MAX_FIELDS = 1000
_FORM_TIMEOUT = 30.0
_MAX_ASKERS = 8
_MAX_WORN = 1000
_MAX_STREAMS = 200
"""Maximum number of browsers that get new pictures."""


@dataclass(frozen=True, slots=True)
class WebPage:
    """A template with its variables; ``live`` pages are sent again with each new picture."""

    template: str
    context: Mapping[str, Any]
    live: bool = True
    status: int = 200


class SentForm(ImmutableMultiDict[str, str]):
    """The fields of a submitted form; a field may occur several times."""

    def __getitem__(self, name: str) -> str:
        """Return a field, empty if it is missing."""
        return next(iter(self.getlist(name)), "")

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number within bounds; raises HTTPException."""
        try:
            value = float(self[name] or default)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise HTTPException(400, f"{name}: expected {least:g} to {most:g}")
        return value


@dataclass(eq=False)
class Site:
    """Everything that pages need."""

    watch: ClusterWatch
    options: UiOptions
    servers: Servers
    config: ClientConfig
    audit: Audit
    republications: Republications
    decoder: BodyDecoder | None = None

    def __post_init__(self) -> None:
        """Load the templates."""
        self._askers = asyncio.Semaphore(_MAX_ASKERS)
        self.decoding = asyncio.Lock()
        """For the use of the decoder, by one thread at a time."""
        self.publishing = asyncio.Lock()
        """Held while a publication is logged and begun, so that a double click begins one."""
        self.worn: dict[Target, int] = {}
        """The most attempts of messages found in a channel, where the last look found worn ones."""
        self.streams = 0
        """Number of browsers that get new pictures."""
        self._polls = 0
        self._drawings: dict[tuple[str, bool], asyncio.Task[str]] = {}
        self.base = self.options.base_path.rstrip("/")
        self._templates = Environment(
            loader=FileSystemLoader(FILES / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shared = {"url": self.url, "version": __version__, "options": self.options}
        self._templates.globals |= shared
        filters = {"number": format_number, "age": format_age, "clock": format_time}
        self._templates.filters |= {**filters, "counted": counted}
        self._templates.globals["m"] = self._templates.get_template("macros.html").module

    def note_attempts(self, target: Target, attempts: int) -> None:
        """Remember whether a look at a channel found worn messages, of the last channels."""
        self.worn.pop(target, None)
        if attempts >= WORN:
            self.worn[target] = attempts
        if len(self.worn) > _MAX_WORN:
            del self.worn[next(iter(self.worn))]

    def url(self, *parts: str, **query: object) -> str:
        """Return the path of a page, with the names of topics and channels escaped."""
        path = "/".join([self.base, *(quote(part, "", None, "replace") for part in parts or ("",))])
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return f"{path}?{urlencode(given, errors='replace')}" if given else path

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask servers for seconds; raises HTTPException at once if many others do so."""
        if self._askers.locked():
            raise HTTPException(503, "too many requests ask servers now: try again in some seconds")
        async with self._askers:
            yield

    def render(self, page: WebPage, request: Request, *, block: str = "") -> str:
        """Return the HTML of a page, or of one of its blocks."""
        template = self._templates.get_template(page.template)
        context = {
            "visitor": request.state.visitor,
            "may_change": not request.state.visitor.refusal,
            "picture": self.watch.picture,
            "live": page.live,
            **page.context,
        }
        found = template.new_context(context)
        text = "".join((template.blocks[block] if block else template.root_render_func)(found))
        # Servers and dead letters may have halves of surrogate pairs, which are no characters.
        return text.encode(errors="backslashreplace").decode()

    def event(self, page: WebPage, request: Request) -> str:
        """Return the live part of a page as a server-sent event."""
        html = self.render(page, request, block="live")
        return "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"

    async def drawn(self, view: PageView, request: Request) -> str:
        """Return the live part of a page, drawn once after a poll for all who look at this page.

        It depends on whether a visitor may change things, but not on the visitor.
        """
        if self._polls != self.watch.polls:
            self._polls, self._drawings = self.watch.polls, {}
        key = str(request.url), bool(request.state.visitor.refusal)
        if key not in self._drawings:
            self._drawings[key] = asyncio.ensure_future(_draw(self, view, request))
        return await asyncio.shield(self._drawings[key])

    def respond(self, page: WebPage, request: Request) -> HTMLResponse:
        """Return a whole page."""
        return HTMLResponse(self.render(page, request), page.status)


def notice_of(error: Exception) -> WebPage:
    """Return the page that tells of one of ``ERRORS``; raises an OSError that names no file."""
    if isinstance(error, OSError) and not error.filename:
        raise error
    text = getattr(error, "detail", str(as_output_error(error)))
    by_kind = 400 if isinstance(error, ConfigError) else 500 if isinstance(error, OSError) else 502
    status = getattr(error, "status_code", by_kind)
    text = "there is no such page" if text == "Not Found" else text
    return WebPage("notice.html", {"text": text}, live=False, status=status)


def viewed(site: Site, view: PageView) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of a view: a page or, for an EventSource, its live part again and again."""

    @wraps(view)
    async def endpoint(request: Request) -> Response:
        page = await view(site, request)
        if not page.live or "text/event-stream" not in request.headers.get("accept", ""):
            return site.respond(page, request)
        if site.streams >= _MAX_STREAMS:
            raise HTTPException(503, "too many browsers are looking: reload later")
        return StreamingResponse(_live(site, view, request, page), media_type="text/event-stream")

    return endpoint


async def _live(site: Site, view: PageView, request: Request, page: WebPage) -> AsyncIterator[str]:
    site.streams += 1
    try:
        yield "retry: 2000\n\n" + site.event(page, request)
        while await site.watch.next_picture():
            yield await site.drawn(view, request)
    finally:
        site.streams -= 1


async def _draw(site: Site, view: PageView, request: Request) -> str:
    try:
        page = await view(site, request)
    except ERRORS as error:
        page = notice_of(error)
    return site.event(page, request)


def posted(
    site: Site, post: FormView, *, changes: bool = True
) -> Callable[[Request], Awaitable[Any]]:
    """Make an endpoint of a form's action, which gets only forms with the visitor's token.

    With ``changes``, visitors who only read are refused.
    """

    @wraps(post)
    async def endpoint(request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        form = await _read_form(request)
        if not hmac.compare_digest(form["token"].encode(), visitor.token.encode()):
            raise HTTPException(403, "the form is out of date: go back, reload the page, try again")
        if changes and visitor.refusal:
            raise HTTPException(403, visitor.refusal)
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
    except (ValueError, ClientDisconnect):
        raise HTTPException(400, "the form is not usable") from None
    return SentForm(pairs)


def target_of(names: Mapping[str, str]) -> Target:
    """Return the topic or channel that a path or a form names; raises ConfigError."""
    topic, channel = check_name("topic", names["topic"]), names.get("channel", "")
    return Target(topic, channel and check_name("channel", channel))
