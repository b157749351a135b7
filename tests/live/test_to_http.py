"""``to-http`` as a process: what its requests are, in all forms, and how they are told to be."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.eventually import eventually
from tests.support.posting import DIRECT
from tests.support.servers import drained, free_port
from tests.support.webserver import OK, Answer, WebServer, per_message, redirect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq
    from tests.support.posting import Posting
    from tests.support.process import Cli
    from tests.support.servers import Nsqd
    from tests.support.webserver import Request

EVERY_BYTE = bytes(range(256))


@pytest.mark.nsqd_only("compares with nsq_to_http, for which there is the real nsqd")
@pytest.mark.parametrize(
    "flags",
    [
        ("-post={url}post",),
        ("--post={url}a", "-post", "{url}b", "-mode=round-robin", "-content-type=text/x; a=b"),
        ("-post={url}a", "-post={url}b", "-mode", "epsilon-greedy", "-header=X-Own: some: text"),
        ("-get={url}get?a=%s", "-header", "X-Own: 1", "--header=X-Other: 2", "-sample=1.0"),
    ],
    ids=["defaults", "round-robin", "epsilon-greedy", "get"],
)
def test_nsq_to_https_flags_make_the_same_requests(
    nsqtools_cli: Cli, nsqd: Nsqd, nsq: Nsq, topic: str, flags: Sequence[str]
) -> None:
    """Both get the very same words, in the spelling of either."""
    program = nsq.path("nsq_to_http", "that to-http is like nsq_to_http")

    def words(name: str, url: str) -> tuple[str, ...]:
        return (
            *(f"-topic={topic}", "-channel", name, "-n", "7", "--max-in-flight=20"),
            *("-status-every=50", "-http-client-connect-timeout=2s"),
            *("--http-client-request-timeout", "5s", "-consumer-opt=max_backoff_duration,2m"),
            *(flag.format(url=url) for flag in flags),
            f"-nsqd-tcp-address={nsqd.tcp}",
        )

    for name in ("go", "py"):
        nsqd.create(topic, name)
    nsqd.publish(topic, [b"%d \xff&=%%s+/ ~" % number for number in range(100)])
    with WebServer() as go, WebServer() as py:
        ours = nsqtools_cli.start("to-http", *words("py", py.url()), env=DIRECT)
        command = [program, *words("go", go.url())]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as theirs:
            try:
                eventually(lambda: drained(nsqd, topic, "go") and drained(nsqd, topic, "py"))
                for process in (ours, theirs):
                    process.terminate()
                    assert process.wait(20) == 0
            finally:
                theirs.kill()
        expected, made = ([_essence(each) for each in web.requests] for web in (go, py))
    assert sorted(made) == sorted(expected)


def _essence(request: Request) -> tuple[object, ...]:
    """What endpoints look at; which of two URLs got it is left to chance."""
    kept = ("content-type", "content-length", "x-own", "x-other")
    told = [(name, text) for name, text in request.headers.items() if name in kept]
    return request.method, request.target.lstrip("/ab"), request.body, sorted(told)


def test_requests_tell_what_they_carry(posting: Posting) -> None:
    begin = time.time_ns()
    posting.publish([b"one", EVERY_BYTE])
    file = posting.folder / "headers"
    file.write_text("# secrets\n\nX-Token: t0ps3cret\r\nAccept=text/plain\n")
    with WebServer(per_message(Answer(status=500))) as web:
        url = web.url("/in?key=h1dden").replace("//", "//me:p%40ss@")
        options = "--header", "X-Own: é", "--header", "x-own: b", "--header-file", str(file)
        poster = posting.start("--post", url, *options, "-vv", "--status-every", "1")
        poster.finish()
        requests = web.requests
        assert Counter(request.body for request in requests) == {b"one": 2, EVERY_BYTE: 2}
        for request in requests:
            told = request.headers
            assert (request.method, request.target) == ("POST", "/in?key=h1dden")
            assert (told["x-nsq-topic"], told["x-nsq-channel"]) == (posting.topic, "c")
            assert re.fullmatch("[0-9a-f]{16}", told["x-nsq-id"])
            assert begin < int(told["x-nsq-timestamp"]) < time.time_ns()
            assert told["content-type"] == "application/octet-stream"
            assert told["user-agent"].startswith("nsqtools/")
            assert told["host"] == f"127.0.0.1:{web.address.port}"
            assert told["x-own"].encode("latin-1") == "é, b".encode()
            assert (told["x-token"], told["accept"]) == ("t0ps3cret", "text/plain")
            assert told["authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
        for identity in web.deliveries:
            mine = [each.headers for each in requests if identity in each.ids]
            assert [each["x-nsq-attempts"] for each in mine] == ["1", "2"]
            assert len({each["x-nsq-timestamp"] for each in mine}) == 1
    for secret in ("p%40ss", "p@ss", "h1dden", "t0ps3cret"):
        assert secret not in poster.said


def test_headers_of_the_user_replace_ours(posting: Posting) -> None:
    posting.publish([b"1"])
    own = {"User-Agent": "me/1", "X-NSQ-Topic": "mine", "content-TYPE": "text/a", "x-nsq-id": "5"}
    options = [word for name, text in own.items() for word in ("--header", f"{name}: {text}")]
    with WebServer() as web:
        posting.start("--post", web.url(), *options).finish()
        (request,) = web.requests
    head = request.head.decode()
    for name, text in own.items():
        assert re.findall(f"(?i)\n{name}: *(.*)\r", f"{head}\r") == [text]
    assert "X-NSQ-Attempts: 1" in head


def test_the_body_of_a_get_stands_escaped_in_the_url_and_the_rest_stays_as_it_is(
    posting: Posting,
) -> None:
    bodies = [EVERY_BYTE, b"a b&c=d?#/../%2F", b"\r\nX-Evil: 1\r\n\r\nGET / HTTP/1.1", b"..", b"."]
    posting.publish(bodies)
    with WebServer() as web:
        url = web.url("/100%25/a%2Fb?x=%41&q=%s&z=%zz")
        posting.start("--get", url, "--header", "X-Own: 1").finish()
        requests = web.requests
    before, after = "/100%25/a%2Fb?x=%41&q=", "&z=%zz"
    values = [each.target.removeprefix(before).removesuffix(after) for each in requests]
    assert sorted(unquote_to_bytes(each.replace("+", "%20")) for each in values) == sorted(bodies)
    assert all(re.fullmatch(r"[\w.~+%-]*", each) for each in values)
    for request in requests:
        assert (request.method, request.body, request.headers["x-own"]) == ("GET", b"", "1")
        assert "content-type" not in request.headers
        assert "x-evil" not in request.headers


def test_a_body_that_would_lead_a_get_elsewhere_is_a_dead_letter(posting: Posting) -> None:
    posting.publish([b"..", b".", b"..."])
    with WebServer() as web:
        poster = posting.start("--get", web.url("/in/%s/it"), *posting.dead_after(1))
        poster.finish()
        assert [request.target for request in web.requests] == ["/in/.../it"]
    assert [letter["body"] for letter in posting.dead_letters()] == [".", ".."]


def _lines(body: bytes) -> list[bytes]:
    assert body.endswith(b"\n")
    return body.splitlines()


def _array(body: bytes) -> list[bytes]:
    return [json.dumps(each).encode() for each in json.loads(body)]


def _prefixed(body: bytes) -> list[bytes]:
    found = []
    while body:
        (size,) = struct.unpack_from(">I", body)
        found.append(body[4 : 4 + size])
        body = body[4 + size :]
    return found


FORMATS = {
    "ndjson": (_lines, "application/x-ndjson"),
    "json-array": (_array, "application/json"),
    "length-prefixed": (_prefixed, "application/octet-stream"),
}


@pytest.mark.parametrize(
    ("form", "method"),
    [("ndjson", "none"), ("json-array", "gzip"), ("length-prefixed", "none")],
)
def test_batches_hold_every_message_once(posting: Posting, form: str, method: str) -> None:
    read, content_type = FORMATS[form]
    posting.publish(b'{"n": %d}' % number for number in range(105))
    options = "--batch", "10", "--batch-format", form, "--compress", method, "-n", "3"
    with WebServer() as web:
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
        counts = Counter[bytes]()
        sizes = []
        for request in web.requests:
            told = request.headers
            body = gzip.decompress(request.body) if method == "gzip" else request.body
            assert told.get("content-encoding", "none") == method
            assert told["content-type"] == content_type
            assert "x-nsq-attempts" not in told
            bodies = read(body)
            assert int(told["x-nsq-count"]) == len(bodies) == len(request.ids)
            counts.update(bodies)
            sizes.append(len(bodies))
        assert counts == {b'{"n": %d}' % number: 1 for number in range(105)}
        assert set(web.deliveries.values()) == {1}
        assert max(sizes) == 10
        assert len(sizes) < 30


def test_json_of_several_lines_is_one_line_of_ndjson(posting: Posting) -> None:
    posting.publish([b'{\n "a": "\\n",\r\n "b": 12345678901234567890.5\n}\n', b"1"])
    with WebServer() as web:
        posting.start("--post", web.url(), "--batch", "2").finish()
        lines = [line for request in web.requests for line in request.body.splitlines()]
    assert sorted(lines) == [b"1", b'{  "a": "\\n",   "b": 12345678901234567890.5 } ']


def test_signatures_are_what_another_implementation_of_standard_webhooks_expects(
    posting: Posting,
) -> None:
    """With two secrets while they rotate, over what is compressed, and the same id each time."""
    old, new, stranger = (
        f"whsec_{base64.b64encode(letter * 32).decode()}" for letter in (b"o", b"n", b"s")
    )
    file = posting.folder / "secrets"
    file.write_text(f"# the new one first\n{new}\n{old}\n")
    posting.publish([b'{"a": "\xc3\xa9"}', b"[]", b"3"])
    with WebServer(per_message(Answer(status=500))) as web:
        options = "--sign-secret-file", str(file), "--compress", "gzip", "-vv"
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
        requests = web.requests
        assert list(web.deliveries.values()) == [2, 2, 2]
    for request in requests:
        body = gzip.decompress(request.body)
        for secret in (old, new):
            assert Webhook(secret).verify(body, request.headers) == json.loads(body)
        for wrong, data in ((stranger, body), (old, body + b" ")):
            with pytest.raises(WebhookVerificationError):
                Webhook(wrong).verify(data, request.headers)
    assert len({(each.headers["webhook-id"], *each.ids) for each in requests}) == 3
    assert "whsec" not in poster.said
    assert old[6:] not in poster.said


def test_a_batch_is_signed_as_a_whole(posting: Posting) -> None:
    secret = base64.b64encode(b"b" * 24).decode()
    (posting.folder / "secret").write_text(secret)
    posting.publish(b"%d" % number for number in range(50))
    options = "--sign-secret-file", "secret", "--batch", "10", "--batch-format", "json-array"
    with WebServer() as web:
        posting.start("--post", web.url(), *options).finish()
        found = [Webhook(secret).verify(each.body, each.headers) for each in web.requests]
    assert sorted(number for batch in found for number in batch) == list(range(50))


def test_credentials_do_not_follow_to_another_server(posting: Posting) -> None:
    posting.publish([b"1"])
    with WebServer() as other, WebServer() as web:
        places = {"/": redirect("/here"), "/here": redirect(other.url("/there"), 308)}
        web.script = lambda request: places[request.target]
        options = "--header", "Cookie: a=b", "--header", "X-Own: 1", "--follow-redirects"
        posting.start("--post", web.url().replace("//", "//me:it@"), *options).finish()
        requests = [*web.requests, *other.requests]
    assert [request.target for request in requests] == ["/", "/here", "/there"]
    for request in requests:
        assert request.body == b"1"
        given = {"authorization", "cookie", "x-own"} & request.headers.keys()
        assert len(given) == (0 if request.target == "/there" else 3)
    assert requests[2].headers["host"] == f"127.0.0.1:{other.address.port}"


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_sample_is_delivered_and_the_rest_finished(posting: Posting, share: float) -> None:
    posting.numbers(1000)
    with WebServer() as web:
        posting.start("--post", web.url(), "--sample", str(share)).finish()
        assert set(web.deliveries.values()) <= {1}
        assert abs(len(web.deliveries) - 1000 * share) <= 1000 * share / 3


def test_concurrency_is_limited_in_all_and_by_endpoint(posting: Posting) -> None:
    posting.numbers(100)
    with WebServer() as one, WebServer() as other:
        for web in (one, other):
            web.hold()
        posts = "--post", one.url(), "--post", other.url(), "-n", "9", "--endpoint-concurrency", "6"
        poster = posting.start(*posts)
        eventually(lambda: len(one.requests) + len(other.requests) == 9)
        for web in (one, other):
            web.release()
        poster.finish()
        assert max(one.most_at_once, other.most_at_once) <= 6
        both = one.deliveries + other.deliveries
        assert len(both) == both.total() == 100


def test_the_rate_is_limited(posting: Posting) -> None:
    posting.numbers(40)
    with WebServer() as web:
        posting.start("--post", web.url(), "--rate", "50").finish()
        assert list(web.deliveries.values()) == [1] * 40
        assert web.requests[-1].at - web.requests[0].at > 0.7


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ((), "--post or --get is required"),
        (("--post", "{url}", "--mode", "roundrobin"), "round-robin"),
        (("--post", "{url}", "--header", "X-A: b\r\nX-C: d"), "line break"),
        (("--post", "{url}\r\nX-A: b"), "line break"),
        (("--post", "{url}", "--drop-on", "404", "--retry-on", "404"), "404"),
        (("--post", "{url}", "--sign-secret-file", "nosuch"), "nosuch"),
        (("--post", "{url}", "--proxy", "socks9://x"), "--proxy"),
        (("--post", "{url}", "--dead-letter-dir", "a", "--dead-letter-topic", "b"), "--dead"),
    ],
)
def test_usage_errors_are_status_2_and_nothing_is_sent(
    nsqtools_cli: Cli, options: Sequence[str], culprit: str
) -> None:
    with WebServer(OK) as web:
        words = [word.replace("{url}", web.url()) for word in options]
        source = "--topic", "t", "--nsqd-tcp-address", f"127.0.0.1:{free_port()}"
        ended = nsqtools_cli("to-http", *source, *words, env=DIRECT)
        assert web.connections == 0
    assert (ended.code, ended.stdout) == (2, b""), ended.stderr
    assert culprit in ended.stderr
    assert "Traceback" not in ended.stderr
