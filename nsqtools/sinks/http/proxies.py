"""Which requests go through an HTTP proxy."""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache, partial
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.request import getproxies

import httpx

from nsqtools.errors import ConfigError
from nsqtools.names import is_loopback
from nsqtools.net.http.client import Proxy
from nsqtools.net.http.replies import ascii_host
from nsqtools.sinks.http.requests import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from nsqtools.net.http.client import Origin

_HOST = re.compile(r"[^\s%]+")
_NETWORK = re.compile(r"[^/]+/[0-9]+")
_PLACE = re.compile(r"(?:(?P<host>[^:\[\]]*)|\[(?P<bracketed>[^\[\]]*)\]):(?P<port>[^:\[\]]*)")


def proxies_for(proxy: str, urls: Sequence[str]) -> Callable[[Origin], Proxy | None] | None:
    """Return a function that returns the proxy of an origin, or None; itself None without proxies.

    ``proxy`` is a URL, "" for the environment, or "none". A proxy of the environment is not used
    for this host and for those of no_proxy, as in Go (golang.org/x/net/http/httpproxy). Raises
    ConfigError if the proxy of one of the ``urls`` is invalid.
    """
    environment = {} if proxy else getproxies()
    if proxy == "none" or not (proxy or environment):
        return None
    if proxy:
        given = _parse(proxy, "--proxy", "none")
        return lambda _: given
    proxy_of = lru_cache(1000)(partial(_proxy_of, environment))
    for url in urls:
        proxy_of(origin_of(httpx.URL(url)))
    return proxy_of


def _parse(text: str, where: str, otherwise: str) -> Proxy:
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.host):
        raise ConfigError(f"{where}: expected http://HOST:PORT, or {otherwise}")
    user = f"{url.username}:{url.password}".encode() if url.userinfo else b""
    return Proxy(origin_of(url), b"Basic " + b64encode(user) if user else b"")


def _proxy_of(environment: Mapping[str, str], origin: Origin) -> Proxy | None:
    """Return the proxy of the environment for an origin. Raises ConfigError."""
    scheme, host, port = origin
    name = scheme if environment.get(scheme) else "all"
    text = environment.get(name)
    if not text or is_loopback(host) or is_exempt(host, port, environment.get("no", "")):
        return None
    return _parse(text, f"${name}_proxy", "--proxy none")


def is_exempt(host: str, port: int, no_proxy: str) -> bool:
    """Return whether an entry of ``no_proxy`` covers a host; what means nothing is ignored."""
    return any(_covers(entry.strip().lower(), host, str(port)) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, port: str) -> bool:
    """Compare as Go does: a network, an address, a domain, or its subdomains, maybe with a port."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if _NETWORK.fullmatch(entry):
        with suppress(ValueError):
            return address is not None and address in ip_network(entry, strict=False)
    if place := _PLACE.fullmatch(entry):
        entry, own_port = place["host"] or place["bracketed"], place["port"]
        if own_port not in ("", port) or not entry:
            return False
    if own := _address(entry):
        return address == own
    domain = entry.removeprefix("*") if entry.startswith("*.") else entry
    return address is None and _is_in(_ascii(host.lower()), domain)


def _is_in(host: str, domain: str) -> bool:
    """Return whether a host is in a domain; one with a leading dot has subdomains only."""
    own = _ascii(domain.removeprefix("."))
    return host.endswith(f".{own}") or (host == own and not domain.startswith("."))


def _ascii(host: str) -> str:
    with suppress(UnicodeError):
        return host if host.isascii() else ascii_host(host)
    return host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address without its zone, in IPv6 an IPv4 address as itself; None for a name."""
    with suppress(ValueError):
        address = ip_address(text.partition("%")[0])
        return getattr(address, "ipv4_mapped", None) or address
    return None
