"""What a server gets of a message, or of several, byte for byte."""

import gzip
import json
import struct
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools import __version__
from nsqtools.records.readers import LengthPrefixed
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.requests import MAX_IDS, Endpoint
from nsqtools.sinks.http.signing import Signer
from tests.support.archiving import START, message
from tests.support.requesting import header, receive

URL = "http://127.0.0.1:8080/hook"
ID = b"%016x" % 1
NOW = 1.7e9
AGENT = (b"user-agent", f"nsqtools/{__version__}".encode())

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
DOCUMENTS = st.builds(
    lambda value, indent: json.dumps(value, indent=indent).encode(),
    JSON.filter(lambda value: "Infinity" not in json.dumps(value)),
    st.sampled_from([None, 0, 2]),
)


def poster(**more: Any) -> Endpoint:
    (endpoint,) = make_endpoints(post=[URL], **more)
    return endpoint


def getter(url: str = "http://127.0.0.1/q?v=%s") -> Endpoint:
    (endpoint,) = make_endpoints(get=[url])
    return endpoint


def post(body: bytes = b"x", **more: Any) -> httpx.Request:
    return poster(**more).build("events", "web", [message(body)], NOW)


def get(body: bytes, url: str = "http://127.0.0.1/q?v=%s") -> httpx.Request:
    return getter(url).build("events", "web", [message(body)], NOW)


class TestPost:
    def test_a_server_gets_exactly_this(self) -> None:
        one = message(b"\x00\r\nbody", attempts=3)
        received = receive(poster().build("events", "web#ephemeral", [one], NOW))
        assert (received.method, received.target) == (b"POST", b"/hook")
        assert received.body == b"\x00\r\nbody"
        assert received.headers == [
            (b"host", b"127.0.0.1:8080"),
            AGENT,
            (b"content-type", b"application/octet-stream"),
            (b"x-nsq-topic", b"events"),
            (b"x-nsq-channel", b"web#ephemeral"),
            (b"x-nsq-id", ID),
            (b"x-nsq-attempts", b"3"),
            (b"x-nsq-timestamp", str(START).encode()),
            (b"content-length", b"7"),
        ]

    @given(st.binary(), st.binary(max_size=16), st.text(st.characters(exclude_categories=["Cs"])))
    def test_nothing_of_a_message_makes_a_header_or_a_second_request(
        self, body: bytes, identity: bytes, name: str
    ) -> None:
        endpoint = poster(signer=Signer([bytes(32)]))
        usual = receive(endpoint.build("events", "web", [message(b"")], NOW))
        request = endpoint.build(name, name, [message(body, identity=identity)], NOW)
        received = receive(request)
        assert received.body == body
        assert [key for key, _ in received.headers] == [key for key, _ in usual.headers]

    def test_requests_share_no_headers_and_topics_do_not_mix(self) -> None:
        endpoint = poster()
        for topic, channel in [("a", "c"), ("b", "c"), ("a", "d"), ("a", "c")]:
            request = endpoint.build(topic, channel, [message(topic.encode())], NOW)
            assert header(request, "X-NSQ-Topic") == topic
            assert header(request, "X-NSQ-Channel") == channel
            assert header(request, "Host") == "127.0.0.1:8080"
            assert header(request, "X-Test") is None
            request.headers["X-Test"] = "1"
            del request.headers["Host"]

    def test_compression_is_gzip_without_a_time(self) -> None:
        request = post(b"abc" * 100, compress=True)
        assert header(request, "Content-Encoding") == "gzip"
        received = receive(request)
        assert gzip.decompress(received.body) == b"abc" * 100
        assert len(received.body) < 100
        assert received.body[4:8] == bytes(4)

    @pytest.mark.parametrize(
        "name", ["User-Agent", "Content-Type", "X-NSQ-Topic", "X-NSQ-ID", "x-nsq-attempts"]
    )
    def test_a_header_of_the_user_replaces_ours(self, name: str) -> None:
        assert header(post(headers=read_headers([f"{name}: mine"])), name) == "mine"


class TestGet:
    def test_a_server_gets_exactly_this(self) -> None:
        received = receive(get(b"a b&c=d#e"))
        assert (received.method, received.target) == (b"GET", b"/q?v=a+b%26c%3Dd%23e")
        assert received.body == b""
        assert received.headers == [
            (b"host", b"127.0.0.1"),
            AGENT,
            (b"x-nsq-topic", b"events"),
            (b"x-nsq-channel", b"web"),
            (b"x-nsq-id", ID),
            (b"x-nsq-attempts", b"1"),
            (b"x-nsq-timestamp", str(START).encode()),
        ]

    def test_every_byte_is_escaped_as_go_does(self) -> None:
        # net/url, shouldEscape for a component of a query
        spared = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~"
        for byte in range(256):
            shown = bytes([byte]) if byte in spared else b"%%%02X" % byte
            expected = b"+" if byte == 0x20 else shown
            assert receive(get(bytes([byte]))).target == b"/q?v=" + expected
        # which may be more than httpx lets a URL be
        assert receive(get(b"/" * 100_000)).target == b"/q?v=" + b"%2F" * 100_000

    @given(st.binary())
    def test_the_value_is_all_of_the_body_and_nothing_else_changes(self, body: bytes) -> None:
        target = receive(get(body, "http://h/a%2Fb%zz?x=%41%&v=%s&y=100%")).target
        assert target == b"/a%%2Fb%%zz?x=%%41%%&v=%b&y=100%%" % quote_plus(body).encode()
        value = target.removeprefix(b"/a%2Fb%zz?x=%41%&v=").removesuffix(b"&y=100%")
        assert unquote_to_bytes(value.replace(b"+", b" ")) == body

    @given(st.binary().filter(lambda body: body not in (b".", b"..")))
    def test_in_the_path_it_stays_one_part_of_it(self, body: bytes) -> None:
        target = receive(get(body, "http://h/a/%s/b?c=d")).target
        assert target == b"/a/%b/b?c=d" % quote_plus(body).encode()
        assert target.count(b"/") == 3

    @pytest.mark.parametrize(
        ("url", "body", "fits"),
        [
            ("http://h/a/%s/b", b"..", False),
            ("http://h/a/%s", b".", False),
            ("http://h/%s?x=y", b"..", False),
            ("http://h/a/.%s/b", b".", False),
            ("http://h/a/.%s/b", b"..", True),
            ("http://h/a/v%s/b", b"..", True),
            ("http://h/a/%s/b", b"../..", True),
            ("http://h/a?p=/%s/b", b"..", True),
        ],
    )
    def test_a_body_that_would_lead_to_another_path_does_not_fit(
        self, url: str, body: bytes, fits: bool
    ) -> None:
        assert getter(url).fits(body) is fits


class TestBatches:
    @staticmethod
    def built(form: str, *bodies: bytes, **more: Any) -> httpx.Request:
        endpoint = poster(batch_format=form, **more)
        assert all(map(endpoint.fits, bodies))
        return endpoint.build("events", "web", [message(body) for body in bodies], NOW)

    @pytest.mark.parametrize(
        ("form", "content_type"),
        [
            ("ndjson", "application/x-ndjson"),
            ("json-array", "application/json"),
            ("length-prefixed", "application/octet-stream"),
        ],
    )
    def test_its_headers_tell_what_is_in_it(self, form: str, content_type: str) -> None:
        endpoint = poster(batch_format=form)
        messages = [message(b"1", identity=b"%016x" % n) for n in range(3)]
        received = receive(endpoint.build("events", "web", messages, NOW))
        assert received.headers[2:] == [
            (b"content-type", content_type.encode()),
            (b"x-nsq-topic", b"events"),
            (b"x-nsq-channel", b"web"),
            (b"x-nsq-count", b"3"),
            (b"x-nsq-ids", b"0000000000000000,0000000000000001,0000000000000002"),
            (b"content-length", str(len(received.body)).encode()),
        ]

    def test_a_long_list_of_ids_is_left_out(self) -> None:
        assert len(header(self.built("ndjson", *[b"1"] * MAX_IDS), "X-NSQ-Ids") or "") < 4000
        request = self.built("ndjson", *[b"1"] * (MAX_IDS + 1))
        assert header(request, "X-NSQ-Ids") is None
        assert header(request, "X-NSQ-Count") == str(MAX_IDS + 1)

    @given(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
    def test_no_id_breaks_out_of_the_list(self, ids: list[bytes]) -> None:
        messages = [message(b"1", identity=identity) for identity in ids]
        request = poster(batch_format="ndjson").build("t", "c", messages, NOW)
        assert dict(receive(request).headers)[b"x-nsq-ids"].count(b",") == len(ids) - 1

    @settings(max_examples=40)  # to make a document takes long
    @given(st.lists(DOCUMENTS, min_size=1, max_size=5))
    def test_bodies_of_json_are_lines_or_elements(self, bodies: list[bytes]) -> None:
        lines = self.built("ndjson", *bodies).read().split(b"\n")
        assert lines.pop() == b""
        assert [json.loads(line) for line in lines] == [json.loads(body) for body in bodies]
        both = zip(lines, bodies, strict=True)
        assert all(line == body for line, body in both if b"\n" not in body)
        assert self.built("json-array", *bodies).read() == b"[" + b",".join(bodies) + b"]"

    @pytest.mark.parametrize(
        ("body", "line"),
        [
            (b'{"b":1, "a":1.10, "b":12345678901234567890123}', None),
            (b"9" * 5000, None),
            (b"1e999999", None),
            (b'"\\ud800\\n"', None),
            ('"\u2028 é"'.encode(), None),
            (b'{\r\n  "a": [\n1\n]\r\n}\n', b'{    "a": [ 1 ]  } '),
            (b" \r null \r", b"   null  "),
        ],
    )
    def test_a_body_is_never_written_anew(self, body: bytes, line: bytes | None) -> None:
        data = self.built("ndjson", body, b"0").read()
        assert data == (line or body) + b"\n0\n"

    def test_what_is_not_json_does_not_fit(self) -> None:
        for form in ("ndjson", "json-array"):
            assert not any(map(poster(batch_format=form).fits, (b"", b"1\n2", b"{} {}", b"NaN")))

    @given(st.lists(st.binary(), min_size=1, max_size=5))
    def test_length_prefixed_takes_any_bodies(self, bodies: list[bytes]) -> None:
        data = self.built("length-prefixed", *bodies).read()
        splitter = LengthPrefixed()
        assert splitter.feed(data) + splitter.finish() == bodies
        assert data.startswith(struct.pack(">I", len(bodies[0])))
