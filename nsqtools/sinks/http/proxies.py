"""Which endpoints are reached through a proxy, and how."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

import httpx

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.requests import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ssl import SSLContext

    from nsqtools.net.http.client import Origin

__all__ = ["with_proxies"]

_HOST = re.compile(r"[^\s%]+")


def with_proxies(
    direct: httpx.AsyncBaseTransport, proxy: str, context: SSLContext, urls: Sequence[str]
) -> httpx.AsyncBaseTransport:
    """``direct``, and httpx's own transport for what ``proxy`` or the environment has a proxy for.

    ``proxy`` is a URL, "" for the environment, or "none". The environment's is not for this host,
    as in Go (``httpproxy``, ProxyFunc). Raises ConfigError for a proxy of one of the ``urls`` that
    cannot be one.
    """
    known = getproxies()
    if proxy == "none" or not (proxy or known):
        return direct

    def proxy_of(url: httpx.URL) -> httpx.Proxy | None:
        if proxy:
            return _parse(proxy, "--proxy", "none")
        name = url.scheme if known.get(url.scheme) else "all"
        text = known.get(name)
        _, host, port = origin_of(url)
        if not text or _is_loopback(host) or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
            return None
        return _parse(text, f"${name}_proxy", "--proxy none")

    for url in urls:
        proxy_of(httpx.URL(url))
    return _Routes(
        direct,
        proxy_of,
        lambda proxy: httpx.AsyncHTTPTransport(
            verify=context,
            proxy=proxy,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        ),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse(text: str, where: str, otherwise: str) -> httpx.Proxy:
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.host):
        raise ConfigError(f"{where}: expected http://HOST:PORT, or {otherwise}")
    return httpx.Proxy(url)


class _Routes(httpx.AsyncBaseTransport):
    """Sends through a proxy what has one, with a transport that ``make`` made for its origin."""

    def __init__(
        self,
        direct: httpx.AsyncBaseTransport,
        proxy_of: Callable[[httpx.URL], httpx.Proxy | None],
        make: Callable[[httpx.Proxy], httpx.AsyncBaseTransport],
    ) -> None:
        self._direct = direct
        self._proxy_of = proxy_of
        self._make = make
        self._known: dict[Origin, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response."""
        origin = origin_of(request.url)
        transport = self._known.get(origin)
        if transport is None:
            proxy = self._proxy_of(request.url)
            transport = self._known[origin] = self._make(proxy) if proxy else self._direct
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Hang up."""
        for transport in {self._direct, *self._known.values()}:
            await transport.aclose()
