"""Which requests go through a proxy: those that --proxy or the environment has one for."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.post import read
from nsqtools.sinks.http.proxies import with_proxies
from tests.support.delivering import Scripted
from tests.support.tls import Certificates
from tests.support.webserver import WebServer

CONTEXT = ssl.create_default_context()
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy:
    """A real one, which tunnels to ports of this host alone, and answers all else itself."""

    def __init__(self) -> None:
        self.url = ""
        self.lines: list[str] = []
        self.heads: list[dict[str, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                self.lines.append(lines[0])
                fields = [line.partition(": ") for line in lines[1:] if line]
                self.heads.append({name.lower(): value for name, _, value in fields})
                if not lines[0].startswith("CONNECT"):
                    writer.write(b"HTTP/1.1 204 Yes\r\n\r\n")
                elif (port := lines[0].split()[1].partition(":")[2]) == "443":
                    writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
                else:
                    far, near = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    await asyncio.gather(pump(reader, near), pump(far, writer))
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.url = f"http://{host}:{port}"
    yield proxy
    server.close()


async def asked(given: str, *urls: str, context: ssl.SSLContext = CONTEXT) -> list[str]:
    """The hosts that were asked directly, with this for --proxy."""
    web = Scripted()
    transport = with_proxies(web, given, context, urls)
    try:
        for url in urls:
            await read(await transport.handle_async_request(httpx.Request("GET", url)))
    finally:
        await transport.aclose()
    assert web.is_closed
    return web.hosts()


class TestGiven:
    async def test_one_is_used_for_all_with_a_scheme_or_without(self, proxy: Proxy) -> None:
        for given in (proxy.url, proxy.url.removeprefix("http://")):
            urls = ["http://a.test/x?y=%20", "http://b.test:81/", "http://127.0.0.1:81/"]
            assert await asked(given, *urls) == []
        assert proxy.lines == [f"GET {url} HTTP/1.1" for url in urls * 2]

    async def test_it_beats_the_environment_and_none_is_none(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", NOBODY)
        assert await asked("none", "http://a.test/") == ["a.test"]
        monkeypatch.setenv("no_proxy", "a.test")
        assert await asked(proxy.url, "http://a.test/") == []

    async def test_tls_goes_through_its_tunnel_and_the_password_no_further(
        self, proxy: Proxy, certificates: Certificates
    ) -> None:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        given = proxy.url.replace("//", "//me:secret@")
        with WebServer(tls=certificates.other_host) as web:
            url = web.url("/in", "elsewhere.test")
            assert await asked(given, url, context=context) == []
            with pytest.raises(httpx.ConnectError):
                await asked(given, url)
            (request,) = web.requests
        assert request.target == "/in"
        assert "proxy-authorization" not in request.headers
        assert proxy.heads[0]["proxy-authorization"] == "Basic bWU6c2VjcmV0"

    @pytest.mark.parametrize(
        "given",
        [
            *("ftp://a.test", "http://", "http://a.test:port"),
            *("socks5://a.test:1080", "http://a b", "://"),
            *("http://me:secret@a.test:port", "ftp://me:secret@a.test"),
        ],
    )
    def test_what_cannot_be_one_is_an_error_naming_the_flag(self, given: str) -> None:
        with pytest.raises(ConfigError, match=r"^--proxy: ") as caught:
            with_proxies(Scripted(), given, CONTEXT, ["http://a.test/"])
        assert "secret" not in str(caught.value)


class TestEnvironment:
    @pytest.mark.parametrize(
        ("spared", "url", "direct"),
        [
            ("", "http://a.test/", False),
            ("", "http://127.1.2.3:81/", True),
            ("", "http://localhost/", True),
            ("", "http://[::1]:81/", True),
            ("a.test", "http://a.test/", True),
            ("a.test", "http://www.a.test/", True),
            (".a.test", "http://www.a.test/", True),
            ("a.test", "http://ba.test/", False),
            ("b.test, a.test", "http://a.test:81/", True),
            ("*", "http://a.test/", True),
            ("a.test:81", "http://a.test:81/", True),
            ("a.test:81", "http://a.test:82/", False),
            ("a.test:80", "http://a.test/", True),
        ],
    )
    @pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
    async def test_it_is_for_all_but_this_host_and_those_of_no_proxy(
        self,
        proxy: Proxy,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        spared: str,
        url: str,
        direct: bool,
    ) -> None:
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", spared)
        assert (len(await asked("", url)), len(proxy.lines)) == ((1, 0) if direct else (0, 1))

    async def test_one_for_https_is_none_for_http(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", proxy.url)
        assert await asked("", "http://a.test/") == ["a.test"]
        with pytest.raises(httpx.ProxyError, match="403"):
            await asked("", "https://a.test/")
        assert proxy.lines == ["CONNECT a.test:443 HTTP/1.1"]

    @pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
    def test_a_bad_one_is_named_where_it_is_needed(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "socks5h://me:secret@a.test")
        with pytest.raises(ConfigError, match=rf"^\${name}: ") as caught:
            with_proxies(Scripted(), "", CONTEXT, ["http://a.test/"])
        assert "secret" not in str(caught.value)
        monkeypatch.setenv("no_proxy", "a.test")
        with_proxies(Scripted(), "", CONTEXT, ["http://a.test/"])
        monkeypatch.delenv(name)
        monkeypatch.setenv("https_proxy", "socks5://a.test")
        with_proxies(Scripted(), "", CONTEXT, ["http://b.test/"])
