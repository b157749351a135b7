"""``to-http`` as a process: what its requests are, in all forms, and what answers do to messages.

Deliveries are counted exactly, by the record of the endpoints.
"""

import base64
import gzip
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import webhooks
from tests.support.binaries import Nsq
from tests.support.consuming import run_beside
from tests.support.eventually import eventually
from tests.support.nginx import Nginx
from tests.support.posting import DIRECT, Posting
from tests.support.process import Cli
from tests.support.servers import Nsqd
from tests.support.tls import Certificates
from tests.support.webserver import HANG, Answer, Request, WebServer, per_message, redirect

EVERY_BYTE = bytes(range(256))

NAMES = """
import socket, sys, threading

if "{loop}" == "asyncio":
    sys.modules["uvloop"] = None
real = socket.getaddrinfo

def find(host, *args, **options):
    if host == "dead.test":
        threading.Event().wait()
    return real("127.0.0.1" if host == "alive.test" else host, *args, **options)

socket.getaddrinfo = find
"""
"""A sitecustomize for a name server that never answers about one name, and a choice of the loop."""


@pytest.mark.nsqd_only("compares with nsq_to_http, for which there is the real nsqd")
@pytest.mark.parametrize(
    "flags",
    [
        ("-post={url}post",),
        ("--post={url}a", "-post", "{url}b", "-mode=round-robin", "-content-type=text/x; a=b"),
        ("-get={url}get?a=%s", "-header", "X-Own: 1", "--header=X-Other: 2", "-sample=1.0"),
    ],
    ids=["defaults", "round-robin", "get"],
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
        ours = ("to-http", *words("py", py.url()))
        theirs = (program, *words("go", go.url()))
        run_beside(nsqtools_cli, ours, theirs, nsqd, topic, env=DIRECT)
        expected, made = ([_essence(each) for each in web.requests] for web in (go, py))
    assert sorted(made) == sorted(expected)


def _essence(request: Request) -> tuple[object, ...]:
    """What endpoints look at; which of two URLs got it is left to chance."""
    kept = ("content-type", "content-length", "x-own", "x-other")
    told = [(name, text) for name, text in request.headers.items() if name in kept]
    return request.method, request.target.lstrip("/ab"), request.body, sorted(told)


def test_requests_tell_what_they_carry_and_the_log_tells_no_secret(posting: Posting) -> None:
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
    assert web.url("/in").partition("?")[0] in poster.said
    for secret in ("p%40ss", "p@ss", "h1dden", "t0ps3cret"):
        assert secret not in poster.said


def test_batches_hold_every_message_once_and_are_signed(posting: Posting) -> None:
    """Another implementation of Standard Webhooks verifies what is compressed."""
    secret = f"whsec_{base64.b64encode(b'o' * 32).decode()}"
    file = posting.folder / "secrets"
    file.write_text(f"{secret}\n")
    posting.publish(b'{"n": %d}' % number for number in range(105))
    options = "--batch", "2", "--batch-format", "json-array", "--compress", "gzip", "-n", "3"
    with WebServer() as web:
        posting.start("--post", web.url(), *options, "--sign-secret-file", str(file)).finish()
        numbers = []
        for request in web.requests:
            told = request.headers
            assert told["content-encoding"] == "gzip"
            body = gzip.decompress(request.body)
            webhooks.verify(secret, body, told)
            batch = json.loads(body)
            assert int(told["x-nsq-count"]) == len(batch) == len(request.ids) <= 10
            numbers += [each["n"] for each in batch]
    assert sorted(numbers) == list(range(105))


def test_a_sample_is_delivered_at_a_limited_rate_and_the_rest_finished(posting: Posting) -> None:
    posting.numbers(100)
    with WebServer() as web:
        posting.start("--post", web.url(), "--sample", "0.3", "--rate", "50").finish()
        assert set(web.deliveries.values()) == {1}
        assert 5 < (count := len(web.deliveries)) < 70
        burst = 5  # a tenth of a second, however long the first ones took
        assert web.requests[-1].at - web.requests[0].at > (count - 1 - burst) / 50


def test_answers_decide_what_is_delivered_tried_again_redirected_or_dropped(
    posting: Posting,
) -> None:
    """``costs`` are the requests for a message with that status; the dead took all attempts."""
    costs = {200: 1, 204: 2, 302: 1, 307: 1, 400: 1, 409: 2, 410: 1, 429: 1, 503: 2}
    statuses = "--success-on", "200,302,410", "--drop-on", "4xx", "--retry-on", "201-204,409"
    posting.publish([b"%d" % code for code in costs])

    def by_status(request: Request) -> Answer:
        return redirect(other.url("/there"), int(request.body))

    with WebServer() as other, WebServer(by_status) as web:
        options = *statuses, "--follow-redirects", "--header", "Cookie: a=b", "--header", "X-Own: 1"
        url = web.url().replace("//", "//me:it@")
        posting.start("--post", url, *options, *posting.dead_after(2)).finish()
        assert Counter(int(request.body) for request in web.requests) == costs
    dead = [int(each["body"]) for each in posting.dead_letters()]
    assert dead == [204, 400, 409, 429, 503]
    (elsewhere,) = other.requests
    assert (elsewhere.target, elsewhere.body) == ("/there", b"307")
    secrets = {"authorization", "cookie", "x-own"}
    assert not secrets & elsewhere.headers.keys()
    assert all(secrets <= request.headers.keys() for request in web.requests)


def test_a_request_that_is_not_answered_in_time_costs_an_attempt(posting: Posting) -> None:
    posting.publish([b"1"])
    with WebServer(HANG) as web:
        options = "--http-client-request-timeout", "200ms", *posting.dead_after(1)
        posting.start("--post", web.url(), *options).finish()
    assert [letter["body"] for letter in posting.dead_letters()] == ["1"]


def test_in_mode_all_who_has_taken_a_message_does_not_get_it_again(posting: Posting) -> None:
    """Who cannot be reached keeps messages from no other, and they are finished when it is back."""
    posting.publish([b"1", b"2"])
    batch = ("--batch", "10", "--batch-format", "json-array")
    failing = per_message(Answer(status=500), Answer(cut=True))
    with WebServer() as one, WebServer(failing) as other, WebServer() as dead:
        dead.refuse()
        posts = [word for web in (one, other, dead) for word in ("--post", web.url())]
        poster = posting.start("--mode", "all", *posts, *batch, "-n", "1")
        eventually(lambda: len(one.deliveries) == len(other.accepted()) == 2)
        assert not posting.is_drained
        dead.listen()
        poster.finish()
        for web, count in ((one, 1), (other, 2), (dead, 1)):
            assert list(web.deliveries.values()) == [count] * 2
        assert list(other.accepted().values()) == [1, 1]


def test_tls_that_cannot_be_trusted_carries_nothing_unless_it_need_not_be_verified(
    posting: Posting, certificates: Certificates
) -> None:
    posting.publish([b"1", b"2"])
    trust = ("--http-tls-root-ca-file", str(certificates.ca))
    with WebServer(tls=certificates.other_server) as web:
        poster = posting.start("--post", web.url(), "-vv", *trust, *posting.dead_after(2))
        poster.finish()
        assert web.requests == []
        assert [letter["body"] for letter in posting.dead_letters()] == ["1", "2"]
        assert "--http-tls-root-ca-file" in poster.said
        assert "Traceback" not in poster.said
        posting.publish([b"1", b"2"])
        posting.start("--post", web.url(), "--http-tls-insecure-skip-verify").finish()
        assert list(web.deliveries.values()) == [1, 1]


def test_nginx_over_tls_wants_a_certificate_and_refuses_what_is_too_long(
    posting: Posting, certificates: Certificates, tmp_path: Path
) -> None:
    """It closes each connection after seven requests, and refuses before it has read the body."""
    location = """
        client_max_body_size 100;
        if ($ssl_client_verify != SUCCESS) { return 403; }
        return 200 "OK";
    """
    client = certificates.client
    bad = [b"x" * 1_000_000, b"y" * 4_000]
    with Nginx(tmp_path / "nginx", location, certificates) as nginx:
        options = ("--post", nginx.url, "--http-tls-root-ca-file", str(certificates.ca))
        posting.numbers(2)
        posting.start(*options, *posting.dead_after(2)).finish()
        assert [row[1:] for row in nginx.answers()] == [["403", "NONE"]] * 4
        assert len(posting.dead_letters()) == 2
        identity = "--http-tls-cert", str(client.cert), "--http-tls-key", str(client.key)
        posting.publish([*(b"%d" % number for number in range(100)), *bad])
        posting.start(*options, *identity, "--drop-on", "413", *posting.dead_after(0)).finish()
        answers = nginx.answers()[4:]
        assert len({row[0] for row in answers if row[1] == "200"}) == len(answers) - 2 == 100
        assert len(posting.dead_letters()) == 4


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_name_that_is_never_found_delays_neither_other_endpoints_nor_the_end(
    posting: Posting, tmp_path: Path, loop: str
) -> None:
    """Its lookup would hold a thread for ever, and each try would begin another one."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(NAMES.format(loop=loop))
    posting.numbers(60)
    with WebServer() as web:
        alive = web.url("/in", "alive.test")
        options = "--post", "http://dead.test/", "--post", alive, "--mode", "round-robin"
        limits = "--http-client-connect-timeout", "50ms", "--drain-timeout", "1s"
        running = posting.start(*options, *limits, env={**DIRECT, "PYTHONPATH": str(shim)})
        running.drain()
        assert len(web.deliveries) == 60
        assert running.end() == 0, running.said
