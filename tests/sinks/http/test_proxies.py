"""Which requests go through a proxy, and how: by --proxy, by the environment, or not at all."""

import asyncio
import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from nsqtools.errors import ConfigError
from nsqtools.sandbox.pytest import LoopThread
from nsqtools.sinks.http.proxies import is_exempt, proxies_for
from nsqtools.sinks.http.requests import origin_of
from nsqtools.sinks.http.transport import Transport
from tests.support.clock import real_loops
from tests.support.tls import Certificates
from tests.support.webserver import WebServer

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
        self.clients: list[asyncio.StreamWriter] = []
        self.servers: list[asyncio.StreamWriter] = []
        self.tasks: set[asyncio.Future[None]] = set()
        self.lines: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.refusal = b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(writer)
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                self.lines.append(lines[0])
                fields = [line.partition(": ") for line in lines[1:] if line]
                self.heads.append({name.lower(): value for name, _, value in fields})
                if not lines[0].startswith("CONNECT"):
                    writer.write(b"HTTP/1.1 204 Yes\r\n\r\n")
                elif (port := lines[0].split()[1].rpartition(":")[2]) == "443":
                    writer.write(self.refusal)
                    await writer.drain()
                    break
                else:
                    far, near = await asyncio.open_connection("127.0.0.1", port)
                    self.servers.append(near)
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    await asyncio.gather(pump(reader, near), pump(far, writer))
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()
    proxy.url = f"{'https' if tls else 'http'}://{host}:{port}"
    yield proxy
    server.close()
    for writer in [*proxy.clients, *proxy.servers]:
        writer.transport.abort()
    await asyncio.gather(*proxy.tasks, return_exceptions=True)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with listening() as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def through(
    given: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """Get a URL with this for --proxy, and return the status."""
    transport = Transport(context, connect_timeout=30.0, proxy_of=proxies_for(given, []))

    async def get(url: str) -> int:
        request = httpx.Request("GET", url)
        return (await transport.handle_async_request(request)).status_code

    yield get
    await transport.aclose()


def places(given: str, *urls: str) -> list[str]:
    """The host of the proxy of each URL; empty for none."""
    proxy_of = proxies_for(given, urls)
    found = [proxy_of(origin_of(httpx.URL(url))) if proxy_of else None for url in urls]
    return [proxy.origin[1] if proxy else "" for proxy in found]


@pytest.mark.usefixtures("no_such_name")
class TestRequests:
    """Names of endpoints are the business of the proxy: nobody here looks them up."""

    @pytest.mark.parametrize("scheme", ["", "http://"])
    async def test_the_target_is_a_whole_url(self, proxy: Proxy, scheme: str) -> None:
        urls = ["http://a.test/x?y=%20", "http://b.test:81/", "http://[::1]:81/", "http://1.2.3.4/"]
        async with through(proxy.url.replace("http://", scheme)) as get:
            for url in [*urls, "http://ä.test/", *urls]:
                assert await get(url) == 204
        wanted = [*urls, "http://xn--4ca.test/", *urls]
        assert proxy.lines == [f"GET {url} HTTP/1.1" for url in wanted]
        assert len(proxy.clients) == 5  # one for each place, kept alive

    async def test_the_password_is_for_the_proxy(self, proxy: Proxy) -> None:
        async with through(proxy.url.replace("//", "//me:s%20t@")) as get:
            await get("http://a.test/")
        assert proxy.heads[0]["proxy-authorization"] == f"Basic {b64encode(b'me:s t').decode()}"

    async def test_tls_goes_through_its_tunnel_and_the_password_no_further(
        self, proxy: Proxy, certificates: Certificates
    ) -> None:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        given = proxy.url.replace("//", "//me:secret@")
        with WebServer(tls=certificates.other_host) as web:
            url = web.url("/in", "elsewhere.test")
            async with through(given, context) as get:
                for _ in range(3):
                    assert await get(url) == 200
            async with through(given) as get:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await get(url)
            requests = web.requests
        assert [request.target for request in requests] == ["/in"] * 3
        assert not [each for each in requests if "proxy-authorization" in each.headers]
        assert [head["proxy-authorization"] for head in proxy.heads] == ["Basic bWU6c2VjcmV0"] * 2
        assert {head["host"] for head in proxy.heads} == {httpx.URL(url).netloc.decode()}

    @pytest.mark.parametrize("new_loop", real_loops())
    def test_a_proxy_may_have_tls_as_well(
        self, certificates: Certificates, new_loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificates.server.cert, certificates.server.key)

        async def ask(given: str, url: str) -> None:
            async with through(given, context) as get:
                assert await get("http://a.test/") == 204
                assert await get(url) == 200

        with (
            WebServer(tls=certificates.other_host) as web,
            LoopThread() as thread,
            asyncio.Runner(loop_factory=new_loop) as runner,
        ):
            serving = listening(tls)
            proxy = thread.call(serving.__aenter__())
            runner.run(ask(proxy.url, web.url("/in", "elsewhere.test")))
            thread.call(serving.__aexit__(None, None, None))

    @pytest.mark.parametrize(
        ("refusal", "reason"),
        [
            (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "403"),
            (b"HTTP/1.1 407 No\r\n\r\n", "407"),
            (b"220 smtp\r\n", "HTTP"),
            (b"", "closed"),
        ],
    )
    async def test_no_tunnel_is_no_connection(
        self, proxy: Proxy, refusal: bytes, reason: str
    ) -> None:
        proxy.refusal = refusal
        async with through(proxy.url) as get:
            with pytest.raises(httpx.ConnectError, match=f"the proxy .*{reason}"):
                await get("https://a.test/")
        assert proxy.lines == ["CONNECT a.test:443 HTTP/1.1"]

    async def test_a_proxy_that_nobody_knows_is_no_connection(self) -> None:
        async with through("http://proxy.test:3128") as get:
            with pytest.raises(httpx.ConnectError):
                await get("http://127.0.0.1/")


class TestGiven:
    def test_one_is_used_for_all_and_beats_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", NOBODY)
        assert places("none", "http://a.test/") == [""]
        monkeypatch.setenv("no_proxy", "*")
        urls = "http://a.test/", "https://a.test/", "http://127.0.0.1/"
        assert places("http://p.test", *urls) == ["p.test"] * 3

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
            proxies_for(given, ["http://a.test/"])
        assert "secret" not in str(caught.value)


GO = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, "
    "10.0.0.0/30, 2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, "
    "2002:db8:a::45/64"
)
"""The list of Go's own tests, with what it spares at port 80, and what not."""
SPARED = (
    *("192.168.1.1", "192.168.1.3", "10.0.0.2", "2001:db8::52:0:1", "2001:db8::52:0:3"),
    *("2002:db8:a::123", "foobar.com", "www.foobar.com", "www.barbaz.net", "nested.wildcard.io"),
)
PROXIED = (
    *("::2", "192.168.1.2", "192.168.1.4", "10.0.0.4", "2001:db8::52:0:2", "2002:db8:b::123"),
    *("fe80::424b:c8be:1643:a1b6", "barbaz.net", "foofoobar.com", "baz.com", "localhost.net"),
    *("local.localhost", "barbarbaz.net", "wildcard.io", "awildcard.io"),
)


class TestNoProxy:
    @pytest.mark.parametrize("host", SPARED)
    def test_what_go_spares_is_spared(self, host: str) -> None:
        assert is_exempt(host, 80, GO)
        assert is_exempt(host, 80, GO.upper())
        assert is_exempt(host, 80, "*")

    @pytest.mark.parametrize("host", PROXIED)
    def test_what_go_sends_to_its_proxy_is_sent_there(self, host: str) -> None:
        assert not is_exempt(host, 80, GO)
        assert is_exempt(host, 80, "*")

    @pytest.mark.parametrize(
        ("no_proxy", "host", "port", "spared"),
        [
            ("10.0.0.0/8", "10.200.3.4", 8080, True),
            ("10.9.9.9/8", "10.200.3.4", 8080, True),
            ("10.0.0.0/8", "11.0.0.1", 8080, False),
            ("10.0.0.0/8", "::ffff:10.0.0.1", 80, True),
            ("10.0.0.0/8", "10.test", 80, False),
            ("10.0.0.0/8:80", "10.0.0.1", 80, False),
            ("10.0.0.0/33", "10.0.0.1", 80, False),
            ("10.0.0.0/255.0.0.0", "10.0.0.1", 80, False),
            ("0.0.0.0/0", "fd00::1", 80, False),
            ("::/0", "10.0.0.1", 80, False),
            ("fd00::/8", "fd12::9", 443, True),
            ("fd00::/8", "fd12::9%eth0", 443, True),
            ("FD12::9", "fd12:0:0::9", 443, True),
            ("[fd12::9]:443", "fd12::9", 443, True),
            ("[fd12::9]", "fd12::9", 443, False),
            ("0.0.1", "10.0.0.1", 80, False),
            ("example.test", "1000::%.example.test", 80, False),
            ("a.test", "A.test", 80, True),
            (".a.test", "a.test", 80, False),
            ("b.test, a.test", "a.test", 81, True),
            ("a.test:81", "x.a.test", 81, True),
            ("a.test:81", "a.test", 82, False),
            ("a.test:", "a.test", 82, True),
            (".\u793a\u4f8b.com", "www.\u793a\u4f8b.com", 80, True),
            ("xn--fsq092h.com", "www.\u793a\u4f8b.com", 80, True),
            ("\u793a\u4f8b.com", "www.xn--fsq092h.com", 80, True),
            ("\u793a\u4f8b.com", "xn--fsq092h.com", 80, True),
            ("a b", "a", 80, False),
            *(
                (useless, "a.test", 80, False)
                for useless in ("", ",", ":1", "[]:80", ".", "*.", "**")
            ),
            *((useless, "10.0.0.1", 80, False) for useless in ("", ":80", "/8", "[", "]:", ".1")),
        ],
    )
    def test_networks_addresses_domains_and_ports(
        self, no_proxy: str, host: str, port: int, spared: bool
    ) -> None:
        assert is_exempt(host, port, no_proxy) is spared


class TestEnvironment:
    @pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
    @pytest.mark.parametrize(
        ("spared", "url", "direct"),
        [
            ("", "http://a.test/", False),
            *(("", f"http://{host}:81/", True) for host in ("127.1.2.3", "localhost", "[::1]")),
            ("10.0.0.0/8", "http://10.1.2.3/", True),
            ("a.test:80", "http://a.test/", True),
        ],
    )
    def test_it_is_for_all_but_this_host_and_those_of_no_proxy(
        self, monkeypatch: pytest.MonkeyPatch, name: str, spared: str, url: str, direct: bool
    ) -> None:
        monkeypatch.setenv(name, "p.test:3128")
        monkeypatch.setenv("NO_PROXY", spared)
        assert places("", url) == ["" if direct else "p.test"]

    def test_one_for_https_is_none_for_http(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("https_proxy", "http://p.test")
        assert places("", "http://a.test/", "https://a.test/") == ["", "p.test"]

    @pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
    async def test_a_bad_one_is_named_where_it_is_needed(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "socks5h://me:secret@a.test")
        with pytest.raises(ConfigError, match=rf"^\${name}: ") as caught:
            proxies_for("", ["http://a.test/"])
        assert "secret" not in str(caught.value)
        monkeypatch.setenv("no_proxy", "a.test")
        proxies_for("", ["http://a.test/"])
        monkeypatch.delenv(name)
        monkeypatch.setenv("https_proxy", "socks5://a.test")
        async with through("") as get:  # as after a redirect
            with pytest.raises(httpx.ConnectError, match=r"\$https_proxy: "):
                await get("https://b.test/")
