"""Which requests go through a proxy: those that --proxy or the environment has one for."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.post import read
from nsqtools.sinks.http.proxies import with_proxies
from tests.support.delivering import Scripted
from tests.support.requesting import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONTEXT = ssl.create_default_context()
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy:
    """A real one that answers all requests itself; its URL is known while it runs."""

    def __init__(self) -> None:
        self.url = ""
        self.lines: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                self.lines.append(lines[0])
                fields = [line.partition(": ") for line in lines[1:] if line]
                self.heads.append({name.lower(): value for name, _, value in fields})
                size = int(self.heads[-1].get("content-length", 0))
                self.bodies.append(await reader.readexactly(size))
                answer = "403 No" if lines[0].startswith("CONNECT") else "204 Yes"
                length = "" if answer.startswith("204") else "Content-Length: 0\r\n"
                writer.write(f"HTTP/1.1 {answer}\r\n{length}\r\n".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxying() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.url = f"http://{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()


async def ask(transport: httpx.AsyncBaseTransport, url: str) -> int:
    response = await transport.handle_async_request(httpx.Request("GET", url))
    await read(response)
    return response.status_code


async def asked(proxy: str, *urls: str) -> tuple[list[str], Scripted]:
    """The hosts that were asked directly."""
    web = Scripted()
    transport = with_proxies(web, proxy, CONTEXT, urls)
    for url in urls:
        await ask(transport, url)
    await transport.aclose()
    assert web.is_closed
    return web.hosts(), web


async def test_without_a_proxy_all_is_direct() -> None:
    web = Scripted()
    assert with_proxies(web, "", CONTEXT, ["http://a.test/"]) is web


async def test_none_is_none_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    hosts, _ = await asked("none", "http://a.test/")
    assert hosts == ["a.test"]


async def test_one_that_is_given_is_used_for_all() -> None:
    async with proxying() as proxy:
        hosts, _ = await asked(proxy.url, "http://a.test/x?y=%20", "http://b.test:81/")
        assert hosts == []
        assert proxy.lines == [
            "GET http://a.test/x?y=%20 HTTP/1.1",
            "GET http://b.test:81/ HTTP/1.1",
        ]


async def test_one_without_a_scheme_speaks_http() -> None:
    async with proxying() as proxy:
        hosts, _ = await asked(proxy.url.removeprefix("http://"), "http://a.test/")
        assert (hosts, len(proxy.lines)) == ([], 1)


async def test_requests_of_messages_go_through_it_as_they_are() -> None:
    endpoints = [
        *make_endpoints(post=["http://a.test/x?y=1"], headers=[(b"X-Own", b"own")]),
        *make_endpoints(get=["http://a.test/%s"]),
    ]
    async with proxying() as proxy:
        transport = with_proxies(Scripted(), proxy.url, CONTEXT, ["http://a.test/"])
        for endpoint in endpoints:
            request = endpoint.build("t", "c", message(b"a/b"), 0.0)
            response = await transport.handle_async_request(request)
            await read(response)
            assert response.status_code == 204
        await transport.aclose()
    assert proxy.lines == [
        "POST http://a.test/x?y=1 HTTP/1.1",
        "GET http://a.test/a%2Fb HTTP/1.1",
    ]
    assert proxy.heads[0]["x-own"] == "own"
    assert proxy.heads[0]["x-nsq-topic"] == "t"
    assert proxy.bodies == [b"a/b", b""]


async def test_user_and_password_are_for_the_proxy() -> None:
    async with proxying() as proxy:
        await asked(proxy.url.replace("//", "//me:secret@"), "http://a.test/")
        assert proxy.heads[0]["proxy-authorization"] == "Basic bWU6c2VjcmV0"


async def test_one_that_is_given_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "a.test")
    async with proxying() as proxy:
        await asked(proxy.url, "http://a.test/")
        assert len(proxy.lines) == 1


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
async def test_the_environment_is_heeded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async with proxying() as proxy:
        monkeypatch.setenv(name, proxy.url)
        hosts, _ = await asked("", "http://a.test/")
        assert (hosts, len(proxy.lines)) == ([], 1)


@pytest.mark.parametrize(
    ("spared", "url", "direct"),
    [
        ("a.test", "http://a.test/", True),
        ("a.test", "http://www.a.test/", True),
        (".a.test", "http://www.a.test/", True),
        ("a.test", "http://ba.test/", False),
        ("b.test, a.test", "http://a.test:81/", True),
        ("*", "http://a.test/", True),
        ("127.0.0.1", "http://127.0.0.1:81/", True),
        ("::1", "http://[::1]:81/", True),
        ("a.test:81", "http://a.test:81/", True),
        ("a.test:81", "http://a.test:82/", False),
        ("a.test:80", "http://a.test/", True),
    ],
)
async def test_no_proxy_names_hosts_that_are_asked_directly(
    monkeypatch: pytest.MonkeyPatch, spared: str, url: str, direct: bool
) -> None:
    async with proxying() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", spared)
        hosts, _ = await asked("", url)
        assert (len(hosts), len(proxy.lines)) == ((1, 0) if direct else (0, 1))


async def test_a_proxy_for_https_is_none_for_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxying() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        web = Scripted()
        transport = with_proxies(web, "", CONTEXT, ["http://a.test/"])
        assert await ask(transport, "http://a.test/") == 200
        with pytest.raises(httpx.ProxyError, match="403"):
            await ask(transport, "https://a.test/")
        assert web.hosts() == ["a.test"]
        assert proxy.lines == ["CONNECT a.test:443 HTTP/1.1"]
        await transport.aclose()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
async def test_the_environments_is_not_for_this_host(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with proxying() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        hosts, _ = await asked("", f"http://{host}:81/")
        assert (len(hosts), proxy.lines) == (1, [])
        await asked(proxy.url, f"http://{host}:81/")
        assert len(proxy.lines) == 1


async def test_one_that_is_not_there_was_certainly_not_reached() -> None:
    with pytest.raises(httpx.ConnectError):
        await asked("http://127.0.0.1:1", "http://a.test/")


@pytest.mark.parametrize(
    "proxy",
    ["ftp://a.test", "http://", "http://a.test:port", "socks5://a.test:1080", "http://a b", "://"],
)
def test_what_cannot_be_a_proxy_is_an_error_naming_the_flag(proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"^--proxy: expected http://HOST:PORT, or none$"):
        with_proxies(Scripted(), proxy, CONTEXT, ["http://a.test/"])


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_of_the_environment_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "socks5h://me:secret@a.test")
    text = rf"^\${name}: expected http://HOST:PORT, or --proxy none$"
    with pytest.raises(ConfigError, match=text):
        with_proxies(Scripted(), "", CONTEXT, ["http://a.test/"])


def test_a_bad_one_that_is_not_needed_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://a.test")
    monkeypatch.setenv("no_proxy", "b.test")
    with_proxies(Scripted(), "", CONTEXT, ["http://a.test/", "https://b.test/"])
