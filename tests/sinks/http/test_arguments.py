"""What --post, --get, --header and their like may be; nothing that is refused shows a secret."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.signing import Signer
from tests.support.archiving import message
from tests.support.requesting import header, receive

SIGNER = Signer([bytes(32)])
CONTROLS = [chr(code) for code in (*range(9), *range(10, 32), 127)]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HIDDEN = "********"


def posted(url: str, **more: Any) -> httpx.Request:
    (endpoint,) = make_endpoints(post=[url], **more)
    return endpoint.build("t", "c", [message(b"x")], 1e9)


def refused(make: Callable[[], object]) -> str:
    """The text of the error, which shows no secret."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).isprintable()
    assert "swordfish" not in str(caught.value)
    return str(caught.value)


def fault(**arguments: Any) -> str:
    return refused(lambda: make_endpoints(**arguments))


def fault_of_headers(*lines: str, files: tuple[Path, ...] = ()) -> str:
    return refused(lambda: read_headers(lines, list(map(str, files))))


class TestURLs:
    @pytest.mark.parametrize(
        ("url", "host", "target"),
        [
            ("http://example.com", b"example.com", b"/"),
            ("http://example.com:80/", b"example.com", b"/"),
            ("https://Example.COM:8443/A?b", b"example.com:8443", b"/A?b"),
            ("http://example.com?q=1", b"example.com", b"/?q=1"),
            ("http://[::1]:8080/x", b"[::1]:8080", b"/x"),
            ("http://[fe80::1%25eth0]:81/x", b"[fe80::1]:81", b"/x"),
            ("http://bücher.example/ä", b"xn--bcher-kva.example", b"/%C3%A4"),
            ("http://under_score/100%/%zz/%2f?%s=%25%", b"under_score", b"/100%/%zz/%2f?%s=%25%"),
            ("http://1.2.3.4/~a/{b}", b"1.2.3.4", b"/~a/%7Bb%7D"),
        ],
    )
    def test_one_gives_host_and_target(self, url: str, host: bytes, target: bytes) -> None:
        received = receive(posted(url))
        assert dict(received.headers)[b"host"] == host
        assert received.target == target

    @pytest.mark.parametrize(
        "url",
        [
            *("", "example.com/%s", "127.0.0.1:8080/%s", "ftp://a/%s", "unix:///run/x.sock/%s"),
            *("http:///%s", "http://:80/%s", "http://a%20b/%s", "http://a%0d%0ab/%s"),
            *('http://a"b/%s', "http://a,b/%s", "http://[::1/%s", "http://[::g]/%s"),
            *("http://1.2.3.999/%s", "http://a:port/%s", "http://a:0/%s", "http://a:65536/%s"),
            *("http://a:-1/%s", "http://a/?x=%s#frag", "http://a/x y%s", " http://a/%s"),
            *("http://a/%s\u00a0", "http://a/%s\u2028", "http://a/" + "x" * 70000 + "%s"),
            *("http://ann:swordfish@:80/%s", "http://ann:swordfish@h:port/%s"),
            *("ann:swordfish@h/%s", "http://ann:sword#swordfish@h/%s", "ftp://a:swordfish@h/%s"),
            *("http://ann:sword/swordfish@h/%s", "http://ann:sword?swordfish@h/%s"),
            *("http://ann:sword@swordfish@h:0/%s", "http://ann:swordfish@h/a b%s"),
            *("http://h:0/?token=swordfish&v=%s", "http://h/?token=swordfish&v=%s#x"),
        ],
    )
    def test_a_faulty_one_is_refused(self, url: str) -> None:
        for flag in ("post", "get"):
            assert fault(**{flag: [url]}).startswith(f"--{flag} '")

    @pytest.mark.parametrize(
        "url",
        [
            *("http://a/", "http://a/%S", "http://a/%s?x=%s"),
            *("http://%s.example/", "http://%s:p@a/", "http://a/%s/../b"),
            *("http://a/?x=%%s", "http://a/?x=%2%s", "http://a/?x=%%a%s"),  # escapes, with a digit
        ],
    )
    def test_the_place_of_the_body_is_one_and_certain(self, url: str) -> None:
        assert "%s" in fault(get=[url])

    def test_after_a_whole_escape_the_body_may_stand(self) -> None:
        (endpoint,) = make_endpoints(get=["http://a/?x=%25%s"])
        request = endpoint.build("t", "c", [message(b"41")], 1e9)
        assert receive(request).target == b"/?x=%2541"


class TestUserAndPassword:
    @pytest.mark.parametrize(
        ("userinfo", "credentials"),
        [
            ("ann:secret", b"ann:secret"),
            ("ann", b"ann:"),
            (":secret", b":secret"),
            ("ann:p%40ss%3A%2F%25", b"ann:p@ss:/%"),
            ("ann:a:b", b"ann:a:b"),
            ("ann:x@y", b"ann:x@y"),
            ("grün:ö", "grün:ö".encode()),
            ("ann:%0d%0aX-Evil:1", b"ann:\r\nX-Evil:1"),
        ],
    )
    @pytest.mark.parametrize("flag", ["post", "get"])
    def test_they_become_basic_authorization_and_leave_the_url(
        self, flag: str, userinfo: str, credentials: bytes
    ) -> None:
        (endpoint,) = make_endpoints(**{flag: [f"http://{userinfo}@h:81/p?v=%s"]})  # type: ignore[arg-type]
        request = endpoint.build("t", "c", [message(b"x")], 1e9)
        receive(request)
        scheme, _, token = (header(request, "Authorization") or "").partition(" ")
        assert (scheme, base64.b64decode(token)) == ("Basic", credentials)
        assert request.url.userinfo == b""
        assert str(request.url).startswith("http://h:81/p?v=")
        assert header(request, "Host") == "h:81"
        assert endpoint.name == "http://h:81/p?v=%s"

    def test_endpoints_have_their_own_and_a_header_of_the_user_goes_before_them(self) -> None:
        urls = ["http://a:1@h/", "http://b:2@h/", "http://h/"]
        for headers, expected in (
            ([], ["Basic YTox", "Basic Yjoy", None]),
            (["authorization: Bearer x"], ["Bearer x"] * 3),
        ):
            made = make_endpoints(post=urls, headers=read_headers(headers))
            sent = [header(e.build("t", "c", [message(b"")], 1), "Authorization") for e in made]
            assert sent == expected

    def test_a_name_hides_the_values_of_the_query_but_not_the_place_of_the_body(self) -> None:
        (endpoint,) = make_endpoints(get=["http://u:p@h/x?token=abc&v=%s&flag&abc%20def=&x=y=z"])
        query = f"token={HIDDEN}&v=%s&{HIDDEN}&abc%20def={HIDDEN}&x={HIDDEN}"
        assert endpoint.name == f"http://h/x?{query}"
        assert "abc&" not in repr(endpoint)


@pytest.mark.parametrize(
    ("given", "line", "flag"),
    [
        ({"content_type": "a/b"}, "content-Type: c/d", "--content-type"),
        ({"compress": True}, "Content-Encoding: br", "--compress"),
        ({"signer": SIGNER}, "Webhook-Id: 1", "--sign-secret-file"),
        ({"signer": SIGNER}, "webhook-signature: v1,x", "--sign-secret-file"),
    ],
)
def test_a_header_cannot_contradict_a_flag(given: dict[str, Any], line: str, flag: str) -> None:
    headers = read_headers([line])
    assert fault(post=["http://h/"], headers=headers, **given).startswith(f"{flag}: ")
    make_endpoints(post=["http://h/"], headers=headers)


def test_a_control_character_is_refused_wherever_it_stands() -> None:
    for control in CONTROLS:
        assert "--content-type" in fault(post=["http://h/"], content_type=f"a/b{control}")
        for line in ("Key: swordfish{}", "Key: {}x", "Key: a{}X: b", "Key:{}", "K{}y: x", "{}K: x"):
            assert fault_of_headers(line.format(control)).startswith("--header number 1: ")
    for control in (*CONTROLS, "\t", "\x85"):
        for url in ("http://a{}/%s", "http://a/%s{}", "http://u{}:swordfish@a/%s", "{}http://a/%s"):
            for flag in ("post", "get"):
                assert fault(**{flag: [url.format(control)]}).startswith(f"--{flag} ")


class TestHeaders:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("Key: value", (b"Key", b"value")),
            ("Key:value", (b"Key", b"value")),
            ("Key=value", (b"Key", b"value")),
            ("Key = value", (b"Key", b"value")),
            ("Authorization: Basic YTpi==", (b"Authorization", b"Basic YTpi==")),
            ("X-Url=http://a:1/?b=c", (b"X-Url", b"http://a:1/?b=c")),
            ("Key:", (b"Key", b"")),
            ("Key==", (b"Key", b"=")),
            ("Key:: x", (b"Key", b": x")),
            (" Key:\t a\tb \t", (b"Key", b"a\tb")),
            ("!#$%&'*+-.^_`|~9: x", (b"!#$%&'*+-.^_`|~9", b"x")),
            ("Key: \udcff", (b"Key", b"\xff")),
        ],
    )
    def test_both_ways_of_writing_one_are_read(
        self, line: str, expected: tuple[bytes, bytes]
    ) -> None:
        assert read_headers([line]) == [expected]

    @pytest.mark.parametrize(
        "line", ["", "Key", ": swordfish", "=x", "A B: swordfish", "Ä: x", "(a): x"]
    )
    def test_what_has_no_name_is_refused(self, line: str) -> None:
        assert fault_of_headers("A: b", line).startswith("--header number 2: ")

    @given(TEXT, TEXT)
    def test_what_is_taken_is_one_header(self, name: str, value: str) -> None:
        try:
            headers = read_headers([f"{name}: {value}"])
        except ConfigError:
            return
        plain = receive(posted("http://h/")).headers
        received = receive(posted("http://h/", headers=headers)).headers
        assert len(received) in (len(plain), len(plain) + 1)

    @pytest.mark.parametrize(
        "name",
        ["Host", "content-length", "Transfer-Encoding", "CONNECTION", "Upgrade", "Expect", "TE"],
    )
    def test_those_of_the_connection_cannot_be_set(self, name: str) -> None:
        assert name in fault_of_headers(f"{name}: swordfish")

    @pytest.mark.parametrize("name", ["Authorization", "Content-Type", "User-Agent"])
    def test_some_can_be_given_once_only(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / "headers"
        path.write_text(f"{name.lower()}: swordfish")
        assert name.lower() in fault_of_headers(f"{name}: swordfish", files=(path,))

    def test_each_line_of_a_file_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(
            b"\xef\xbb\xbfKey: 1\r\n\r\n # note\n#x: y\n Other=\xc3\xa4 \n"
        )
        (tmp_path / "b").write_text("Last: z")
        assert read_headers(["First: a"], [str(tmp_path / "a"), str(tmp_path / "b")]) == [
            (b"First", b"a"),
            (b"Key", b"1"),
            (b"Other", "ä".encode()),
            (b"Last", b"z"),
        ]

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            (b"A: b\nswordfish\n", " line 2: "),
            (b"A: b\n\nKey: swordfish\rfish\n", " line 3: "),
            (b"Host: swordfish", " line 1: "),
            (b"Key: swordfish\xe4", ""),
        ],
    )
    def test_a_fault_of_a_file_is_told_with_its_place(
        self, tmp_path: Path, text: bytes, place: str
    ) -> None:
        path = tmp_path / "headers"
        path.write_bytes(text)
        said = fault_of_headers(files=(path,))
        assert said.startswith(f"--header-file {path}")
        assert place in said


def test_endpoints_of_one_name_are_numbered_so_that_logs_and_metrics_tell_them_apart() -> None:
    made = make_endpoints(post=["http://h/a?key=1", "http://h/a?key=2", "http://h/b"])
    first, second, other = (endpoint.name for endpoint in made)
    assert second == f"{first} #2"
    assert other not in (first, second)
