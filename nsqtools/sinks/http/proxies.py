"""Connections through HTTP proxies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

import httpx

from nsqtools.errors import ConfigError
from nsqtools.names import is_loopback
from nsqtools.sinks.http.requests import origin_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from nsqtools.net.http.client import Origin

_HOST = re.compile(r"[^\s%]+")


def with_proxies(
    direct: httpx.AsyncBaseTransport, proxy: str, context: SSLContext, urls: Sequence[str]
) -> httpx.AsyncBaseTransport:
    """Return a transport that uses ``direct`` or, for origins with a proxy, httpx's own transport.

    ``proxy`` is a URL, "" for the environment, or "none". Proxies of the environment are not used
    for this host, as in Go (``httpproxy``, ProxyFunc). Raises ConfigError if the proxy of one of
    the ``urls`` is invalid.
    """
    if proxy == "none" or not (proxy or getproxies()):
        return direct
    routes = _Routes(direct, proxy, context)
    for url in urls:
        routes.proxy_of(httpx.URL(url))
    return routes


def _parse(text: str, where: str, otherwise: str) -> httpx.Proxy:
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.host):
        raise ConfigError(f"{where}: expected http://HOST:PORT, or {otherwise}")
    return httpx.Proxy(url)


class _Routes(httpx.AsyncBaseTransport):
    """Sends requests directly, or through the proxy of their origin."""

    def __init__(self, direct: httpx.AsyncBaseTransport, proxy: str, context: SSLContext) -> None:
        self._direct = direct
        self._proxy = proxy
        self._context = context
        self._environment = getproxies()
        self._known: dict[Origin, httpx.AsyncBaseTransport] = {}

    def proxy_of(self, url: httpx.URL) -> httpx.Proxy | None:
        """Return the proxy for a URL; None for a direct connection. Raises ConfigError."""
        if self._proxy:
            return _parse(self._proxy, "--proxy", "none")
        name = url.scheme if self._environment.get(url.scheme) else "all"
        text = self._environment.get(name)
        _, host, port = origin_of(url)
        if not text or is_loopback(host) or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
            return None
        return _parse(text, f"${name}_proxy", "--proxy none")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response."""
        origin = origin_of(request.url)
        if origin not in self._known:
            self._known[origin] = self._transport(self.proxy_of(request.url))
        return await self._known[origin].handle_async_request(request)

    def _transport(self, proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
        if proxy is None:
            return self._direct
        return httpx.AsyncHTTPTransport(
            verify=self._context,
            proxy=proxy,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        for transport in {self._direct, *self._known.values()}:
            await transport.aclose()
