"""Who may see the page and change things: checks every request before a page is made."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse

from nsqtools.config.ui import read_passwords
from nsqtools.policy.pace import Pace

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from nsqtools.config.ui import UiOptions

log = logging.getLogger(__name__)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers would send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_FOREIGN = "the request comes from another origin: a proxy must pass the browser's Host on"

_LOGINS = 10.0
"""Maximum number of logins answered per second, right or wrong, over all connections."""
_MAX_WAITING = 50


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of a request; ``name`` is empty without users.

    ``token`` is in each form: a page of another origin cannot know it. ``refusal`` says why the
    user cannot change anything, and what would help; it is empty for those who can. ``is_led``
    means that a link of a page of another origin led here.
    """

    name: str
    token: str
    refusal: str
    is_led: bool = False


class AccessGuard:
    """An ASGI application that refuses requests, or passes them on with their ``Visitor``.

    It refuses hosts that are no name of this server (DNS rebinding), requests from pages of other
    origins, and unknown users. Each response gets the headers of a strict policy.
    """

    def __init__(self, app: ASGIApp, options: UiOptions) -> None:
        self._app = app
        self._options = options
        self._names = {"localhost", *(name.lower() for name in options.server_name)}
        self._passwords = read_passwords(options) if options.password_file else {}
        self._key = secrets.token_bytes(32)
        self._pace = Pace(_LOGINS)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if self._passwords and (visitor := scope["state"].get("visitor")):
                    badge = self._sign("login", visitor.name)
                    headers["Set-Cookie"] = f"login={badge}; Path=/; HttpOnly; SameSite=Strict"
            await send(message)

        app = await self._refusal(scope)
        await (app or self._app)(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if not self._is_own(host) or len(headers.getlist("host")) != 1:
            text = f"this server is not known as {host!r}: --server-name makes it known"
            return PlainTextResponse(f"{text}\n", 421)
        # Browsers send no Origin for an image or a script of another page, but these headers.
        is_led = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        is_part = is_led and headers.get("sec-fetch-dest") != "document"
        if is_part or origin not in ("", f"http://{host}", f"https://{host}"):
            return PlainTextResponse(f"{_FOREIGN}: Origin {origin!r}, Host {host!r}\n", 403)
        if scope["path"] == f"{self._options.base_path.rstrip('/')}/ping":
            return PlainTextResponse("OK")  # as by nsqadmin, for those who watch the process
        name = self._user(headers)
        if self._passwords and "authorization" in headers and not await self._admits(scope, name):
            text = "too many logins are waiting: try again later\n"
            return PlainTextResponse(text, 503, {"Retry-After": f"{_MAX_WAITING / _LOGINS:g}"})
        if name is None and self._passwords:
            if "authorization" in headers:
                host = (scope.get("client") or ("an unknown address",))[0]
                log.warning("unknown user or wrong password from %s", host)
            challenge = {"WWW-Authenticate": 'Basic realm="nsqtools", charset="UTF-8"'}
            return PlainTextResponse("unknown user or wrong password\n", 401, challenge)
        if name is None:
            text = f"the header {self._options.acl_http_header} names no user"
            return PlainTextResponse(f"{text}\n", 403)
        refusal = ""
        if not self._options.allow_changes:
            refusal = "the page is read-only: start nsqtools ui with --allow-changes"
        elif self._options.admin_user and name not in self._options.admin_user:
            refusal = f"user {name} only reads: --admin-user {name} would allow changes"
        scope["state"] = {"visitor": Visitor(name, self._sign("form", name), refusal, is_led)}
        return None

    async def _admits(self, scope: Scope, name: str | None) -> bool:
        """Wait until a login may be answered; returns false if too many wait.

        A browser that has the cookie of an earlier login does not wait: whoever guesses passwords
        delays only new logins.
        """
        badge = HTTPConnection(scope).cookies.get("login", "")
        if name and hmac.compare_digest(badge.encode(), self._sign("login", name).encode()):
            return True
        if self._waiting >= _MAX_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(self._pace.delay(1, now=asyncio.get_running_loop().time()))
        finally:
            self._waiting -= 1
        return True

    def _sign(self, purpose: str, name: str) -> str:
        return hmac.new(self._key, f"{purpose} {name}".encode(), hashlib.sha256).hexdigest()

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server: an IP address, or a known name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or bool(ip_address(name))
        except ValueError:
            return False

    def _user(self, headers: Headers) -> str | None:
        """Return the user, empty without users; None for nobody known."""
        if header := self._options.acl_http_header:
            names = headers.getlist(header)  # two may be the browser's and the proxy's
            return names[0] or None if len(names) == 1 else None
        if not self._passwords:
            return ""
        scheme, _, encoded = headers.get("authorization", "").partition(" ")
        try:
            login = base64.b64decode(encoded.strip(), validate=True).decode()
        except ValueError:
            return None
        name, _, password = login.partition(":")
        known = self._sign("password", self._passwords.get(name, secrets.token_hex()))
        is_right = hmac.compare_digest(known, self._sign("password", password))
        return name if is_right and scheme.lower() == "basic" else None
