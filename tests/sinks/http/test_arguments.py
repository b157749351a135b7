from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.signing import Signer
from tests.support.requesting import header, message, receive

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

SIGNER = Signer([bytes(32)])
CONTROLS = [chr(code) for code in (*range(9), *range(10, 32), 127)]


def posted(url: str, **more: Any) -> httpx.Request:
    (endpoint,) = make_endpoints(post=[url], **more)
    return endpoint.build("t", "c", message(b"x"), 1e9)


def names(*urls: str) -> list[str]:
    return [endpoint.name for endpoint in make_endpoints(post=urls)]


def fault(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_endpoints(**arguments)
    assert str(caught.value).isprintable()
    return str(caught.value)


class TestURLs:
    @pytest.mark.parametrize(
        ("url", "host", "target"),
        [
            ("http://example.com", b"example.com", b"/"),
            ("http://example.com:80/", b"example.com", b"/"),
            ("https://Example.COM:8443/A?b", b"example.com:8443", b"/A?b"),
            ("http://example.com?q=1", b"example.com", b"/?q=1"),
            ("http://[::1]:8080/x", b"[::1]:8080", b"/x"),
            ("http://[2001:db8::1]/x", b"[2001:db8::1]", b"/x"),
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

    @pytest.mark.parametrize("flag", ["post", "get"])
    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("", "http:// or https://"),
            ("example.com/%s", "http:// or https://"),
            ("127.0.0.1:8080/%s", "http:// or https://"),
            ("ftp://example.com/%s", "http:// or https://"),
            ("unix:///run/x.sock/%s", "http:// or https://"),
            ("http:///%s", "host"),
            ("http://:80/%s", "host"),
            ("http://a%20b/%s", "host"),
            ("http://a%0d%0ab/%s", "host"),
            ('http://a"b/%s', "host"),
            ("http://a,b/%s", "host"),
            ("http://[::1/%s", ""),
            ("http://[::g]/%s", "not a URL"),
            ("http://1.2.3.999/%s", "not a URL"),
            ("http://a:port/%s", "not a URL"),
            ("http://a:0/%s", "port from 1 to 65535"),
            ("http://a:65536/%s", "port from 1 to 65535"),
            ("http://a:-1/%s", ""),
            ("http://a/?x=%s#frag", "write %23"),
            ("http://a/x y%s", "holds a space"),
            (" http://a/%s", "holds a space"),
            ("http://a/%s\u00a0", "holds a space"),
            ("http://a/%s\u2028", "holds a space"),
            ("http://a/" + "x" * 70000 + "%s", "not a URL"),
        ],
    )
    def test_a_faulty_one_is_refused(self, flag: str, url: str, text: str) -> None:
        said = fault(**{flag: [url]})
        assert said.startswith(f"--{flag} '")
        assert text in said

    @pytest.mark.parametrize("control", [*CONTROLS, "\t", "\x85"])
    @pytest.mark.parametrize(
        "url", ["http://a{}/%s", "http://a/%s{}", "http://u{}:p@a/%s", "{}http://a/%s"]
    )
    def test_one_with_a_control_character_is_refused(self, url: str, control: str) -> None:
        for flag in ("post", "get"):
            assert "holds a space" in fault(**{flag: [url.format(control)]})

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("http://a/", "exactly one %s, found 0"),
            ("http://a/%S", "exactly one %s, found 0"),
            ("http://a/%s?x=%s", "exactly one %s, found 2"),
            ("http://%s.example/", "host name"),
            ("http://%s:p@a/", "in the path and in the query alone"),
            ("http://a/%s/../b", "in the path and in the query alone"),
            ("http://a/?x=%%s", "would make an escape"),
            ("http://a/?x=%2%s", "would make an escape"),
            ("http://a/?x=%%a%s", "would make an escape"),
        ],
    )
    def test_the_place_of_the_body_is_one_and_certain(self, url: str, text: str) -> None:
        assert text in fault(get=[url])

    def test_after_a_whole_escape_the_body_may_stand(self) -> None:
        (endpoint,) = make_endpoints(get=["http://a/?x=%25%s"])
        request = endpoint.build("t", "c", message(b"41"), 1e9)
        assert receive(request).target == b"/?x=%2541"

    def test_either_post_or_get_is_needed(self) -> None:
        assert "--post, or with --get" in fault()
        assert "not both" in fault(post=["http://a/"], get=["http://a/%s"])

    def test_endpoints_keep_the_order_of_their_urls(self) -> None:
        made = make_endpoints(post=["http://b/", "http://a/"])
        assert [(each.method, str(each.url)) for each in made] == [
            ("POST", "http://b/"),
            ("POST", "http://a/"),
        ]
        assert [each.method for each in make_endpoints(get=["http://b/%s"])] == ["GET"]


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
        request = endpoint.build("t", "c", message(b"x"), 1e9)
        receive(request)
        scheme, _, token = (header(request, "Authorization") or "").partition(" ")
        assert (scheme, base64.b64decode(token)) == ("Basic", credentials)
        assert request.url.userinfo == b""
        assert str(request.url).startswith("http://h:81/p?v=")
        assert header(request, "Host") == "h:81"
        assert endpoint.name == "http://h:81/p?v=%s"

    def test_a_header_of_the_user_goes_before_them(self) -> None:
        request = posted("http://u:p@h/", headers=read_headers(["authorization: Bearer x"]))
        assert header(request, "Authorization") == "Bearer x"

    def test_endpoints_have_their_own(self) -> None:
        made = make_endpoints(post=["http://a:1@h/", "http://b:2@h/", "http://h/"])
        sent = [header(e.build("t", "c", message(b""), 1), "Authorization") for e in made]
        assert sent == ["Basic YTox", "Basic Yjoy", None]

    @pytest.mark.parametrize(
        "url",
        [
            "http://ann:swordfish@:80/",
            "http://ann:swordfish@h:port/",
            "http://ann:sword#swordfish@h/",
            "http://ann:sword/swordfish@h/",
            "http://ann:sword?swordfish@h/",
            "http://ann:sword@swordfish@h:0/",
            "http://ann:swordfish@h/a b",
            "http://ann:swordfish\n@h/",
            "ann:swordfish@h/",
            "ftp://ann:swordfish@h/",
            "http://h:0/?token=swordfish",
            "http://h/?token=swordfish#x",
        ],
    )
    def test_no_error_shows_a_secret(self, url: str) -> None:
        assert "swordfish" not in fault(post=[url])


class TestNames:
    def test_a_name_hides_the_values_of_the_query_but_not_the_place_of_the_body(self) -> None:
        (endpoint,) = make_endpoints(get=["http://u:p@h/x?token=abc&v=%s&flag&abc%20def=&x=y=z"])
        hidden = "********"
        assert (
            endpoint.name
            == f"http://h/x?token={hidden}&v=%s&{hidden}&abc%20def={hidden}&x={hidden}"
        )
        assert "abc&" not in repr(endpoint)

    def test_names_differ_even_where_urls_do_not(self) -> None:
        assert names("http://h/?a=1", "http://h/?a=2", "http://u@h/?a=1", "http://h/") == [
            "http://h/?a=********",
            "http://h/?a=******** #2",
            "http://h/?a=******** #3",
            "http://h/",
        ]

    def test_a_name_of_ipv6_has_its_brackets(self) -> None:
        assert names("https://[::1]:444/x", "https://[::1]/x") == [
            "https://[::1]:444/x",
            "https://[::1]/x",
        ]


class TestCombinations:
    @pytest.mark.parametrize(
        ("given", "flag"),
        [
            ({"content_type": "a/b"}, "--content-type"),
            ({"compress": True}, "--compress"),
            ({"batch_format": "ndjson"}, "--batch-format"),
            ({"signer": SIGNER}, "--sign-secret-file"),
        ],
    )
    def test_what_is_of_a_body_needs_post(self, given: dict[str, Any], flag: str) -> None:
        assert fault(get=["http://h/%s"], **given).startswith(f"{flag}: needs --post")

    @pytest.mark.parametrize(
        ("given", "line", "flag"),
        [
            ({"content_type": "a/b"}, "content-Type: c/d", "--content-type"),
            ({"compress": True}, "Content-Encoding: br", "--compress"),
            ({"signer": SIGNER}, "Webhook-Id: 1", "--sign-secret-file"),
            ({"signer": SIGNER}, "webhook-signature: v1,x", "--sign-secret-file"),
        ],
    )
    def test_a_header_cannot_contradict_a_flag(
        self, given: dict[str, Any], line: str, flag: str
    ) -> None:
        said = fault(post=["http://h/"], headers=read_headers([line]), **given)
        assert said.startswith(f"{flag}: a --header gives {line.partition(':')[0].lower()}")
        make_endpoints(post=["http://h/"], headers=read_headers([line]))

    @pytest.mark.parametrize("control", CONTROLS)
    def test_a_content_type_cannot_hold_a_control_character(self, control: str) -> None:
        assert "--content-type" in fault(post=["http://h/"], content_type=f"a/b{control}")

    def test_an_unknown_format_is_refused(self) -> None:
        assert "expected ndjson, json-array, length-prefixed" in fault(
            post=["http://h/"], batch_format="csv"
        )


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
        with pytest.raises(
            ConfigError, match=r"^--header number 2: expected 'Name: value'"
        ) as caught:
            read_headers(["A: b", line])
        assert "swordfish" not in str(caught.value)

    @pytest.mark.parametrize("control", CONTROLS)
    @pytest.mark.parametrize(
        "line",
        ["Key: swordfish{}", "Key: {}x", "Key: a{}X-Evil: b", "Key:{}", "K{}y: x", "{}Key: x"],
    )
    def test_a_control_character_is_refused_wherever_it_stands(
        self, line: str, control: str
    ) -> None:
        with pytest.raises(ConfigError, match=r"^--header number 1: ") as caught:
            read_headers([line.format(control)])
        assert str(caught.value).isprintable()
        assert "swordfish" not in str(caught.value)

    @given(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
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
        with pytest.raises(ConfigError, match=f"number 1: {name} belongs to the connection"):
            read_headers([f"{name}: x"])

    @pytest.mark.parametrize("name", ["Authorization", "Content-Type", "User-Agent"])
    def test_some_can_be_given_once_only(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / "headers"
        path.write_text(f"{name.lower()}: swordfish")
        with pytest.raises(ConfigError, match=f"{name.lower()} is given 2 times") as caught:
            read_headers([f"{name}: swordfish"], [str(path)])
        assert "swordfish" not in str(caught.value)


class TestHeaderFiles:
    def test_each_line_is_a_header(self, tmp_path: Path) -> None:
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
        ("text", "said"),
        [
            ("A: b\nswordfish\n", "line 2: expected 'Name: value'"),
            ("A: b\n\nKey: sword\rfish\n", "line 3: the value of Key holds a line break"),
            ("Key: swordfish\0", "line 1: the value of Key holds a line break"),
            ("Host: swordfish", "line 1: Host belongs to the connection"),
            ("swordfish" * 200_000, "more than 1048576 characters"),
        ],
    )
    def test_a_fault_is_told_with_its_place_and_without_its_value(
        self, tmp_path: Path, text: str, said: str
    ) -> None:
        path = tmp_path / "headers"
        path.write_bytes(text.encode())
        with pytest.raises(ConfigError, match=said) as caught:
            read_headers([], [str(path)])
        assert str(caught.value).startswith(f"--header-file {path}")
        assert "sword" not in str(caught.value)
        assert str(caught.value).isprintable()

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"^--header-file .*/none: No such file"):
            read_headers([], [str(tmp_path / "none")])
        (tmp_path / "latin").write_bytes(b"Key: \xe4")
        with pytest.raises(ConfigError, match=r"/latin: not text$"):
            read_headers([], [str(tmp_path / "latin")])
