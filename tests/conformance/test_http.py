"""nsqd's HTTP API: statuses, bodies and headers of its routes."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.raw import http_ask, mpub

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.support.raw import Raw
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates


def ask(nsqd: Nsqd, request: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    found = http_ask(nsqd.http, request, body, **headers)
    return found.status, found.body


def refusal(code: str) -> bytes:
    return json.dumps({"message": code}, separators=(",", ":")).encode()


def test_ping_says_ok_in_plain_text(nsqd: Nsqd) -> None:
    found = http_ask(nsqd.http, "GET /ping")
    assert (found.status, found.body) == (200, b"OK")
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in found.headers


def test_json_replies_say_their_type_and_version(nsqd: Nsqd) -> None:
    for request in ("GET /info", "GET /stats?format=json", "GET /nowhere", "POST /topic/create"):
        found = http_ask(nsqd.http, request)
        assert found.headers["content-type"] == "application/json; charset=utf-8"
        assert found.headers["x-nsq-content-type"] == "nsq; version=1.0"


def test_text_replies_of_the_api_say_their_version_too(nsqd: Nsqd, topic: str) -> None:
    for request, body in ((f"POST /pub?topic={topic}", b"x"), ("GET /stats", None)):
        found = http_ask(nsqd.http, request, body)
        assert found.headers["content-type"] == "text/plain; charset=utf-8"
        assert found.headers["x-nsq-content-type"] == "nsq; version=1.0"
    empty = http_ask(nsqd.http, f"POST /topic/create?topic={topic}")
    assert (empty.body, empty.headers["content-length"]) == (b"", "0")
    assert "content-type" not in empty.headers


def test_info_says_who_it_is_and_its_limits(nsqd: Nsqd) -> None:
    found = http_ask(nsqd.http, "GET /info").json
    start_time = found["start_time"]
    assert abs(start_time - time.time()) < 600
    assert list(found.items()) == [
        ("version", "1.3.0"),
        ("broadcast_address", "127.0.0.1"),
        ("hostname", socket.gethostname()),
        ("http_port", nsqd.http.port),
        ("tcp_port", nsqd.tcp.port),
        ("start_time", start_time),
        ("max_heartbeat_interval", 60_000_000_000),
        ("max_output_buffer_size", 65536),
        ("max_output_buffer_timeout", 30_000_000_000),
        ("max_deflate_level", 6),
    ]


def test_an_unknown_path_is_not_found(nsqd: Nsqd) -> None:
    for request in ("GET /", "GET /nowhere", "POST /put?topic=t", "GET /topic"):
        assert ask(nsqd, request) == (404, refusal("NOT_FOUND"))


@pytest.mark.parametrize(
    "request_line",
    ["POST /ping", "GET /pub?topic=t", "PUT /mpub?topic=t", "POST /stats", "GET /topic/create"],
)
def test_a_wrong_method_is_not_allowed(request_line: str, nsqd: Nsqd) -> None:
    assert ask(nsqd, request_line) == (405, refusal("METHOD_NOT_ALLOWED"))


def test_a_reply_to_405_names_the_methods_that_are_allowed(nsqd: Nsqd) -> None:
    found = http_ask(nsqd.http, "DELETE /config/log_level")
    assert found.status == 405
    assert set(found.headers["allow"].split(", ")) == {"GET", "PUT", "OPTIONS"}


def test_pub_publishes_its_body_as_it_is(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = [b"one\ntwo\n", bytes(range(256)), b"x" * (1 << 20)]
    for body in bodies:
        assert ask(nsqd, f"POST /pub?topic={topic}", body) == (200, b"OK")
    client = connect().subscribe(topic, ready=3)
    assert sorted(client.message().body for _ in bodies) == sorted(bodies)


def test_pub_takes_a_chunked_body(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connection = http.client.HTTPConnection(*nsqd.http, timeout=10)
    parts = iter([b"one", b"two"])
    connection.request("POST", f"/pub?topic={topic}", parts, encode_chunked=True)
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (200, b"OK")
    connection.close()
    assert connect().subscribe(topic, ready=1).message().body == b"onetwo"


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("topic=t", b"", 400, "MSG_EMPTY"),
        ("", b"", 400, "MSG_EMPTY"),
        ("topic=t", b"x" * ((1 << 20) + 1), 413, "MSG_TOO_BIG"),
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("topic=", b"x", 400, "INVALID_TOPIC"),
        ("topic=bad!", b"x", 400, "INVALID_TOPIC"),
        ("topic=" + "n" * 65, b"x", 400, "INVALID_TOPIC"),
        ("topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("topic=t&defer=soon", b"x", 400, "INVALID_DEFER"),
        ("topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("topic=a;b=c", b"x", 400, "INVALID_REQUEST"),
    ],
)
def test_a_bad_pub_is_refused(query: str, body: bytes, status: int, code: str, nsqd: Nsqd) -> None:
    assert ask(nsqd, f"POST /pub?{query}", body) == (status, refusal(code))


def test_pub_with_defer_waits_in_the_channels(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    assert ask(nsqd, f"POST /pub?topic={topic}&defer=3600000", b"x") == (200, b"OK")
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] == 1)


def test_mpub_takes_a_message_a_line_and_skips_empty_ones(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    body = b"one\n\ntwo\r\n three \n\nfour"
    assert ask(nsqd, f"POST /mpub?topic={topic}", body) == (200, b"OK")
    assert nsqd.topic(topic)["message_count"] == 4
    client = connect().subscribe(topic, ready=4)
    assert sorted(client.message().body for _ in range(4)) == sorted(
        [b"one", b"two\r", b" three ", b"four"]
    )


@pytest.mark.parametrize("body", [b"", b"\n\n"])
def test_an_mpub_of_no_lines_is_fine_and_creates_the_topic(
    body: bytes, nsqd: Nsqd, topic: str
) -> None:
    assert ask(nsqd, f"POST /mpub?topic={topic}", body) == (200, b"OK")
    assert nsqd.topic(topic)["message_count"] == 0


@pytest.mark.parametrize("binary", ["true", "1", "yes", ""])
def test_a_binary_mpub_takes_the_body_of_the_command(
    binary: str, nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    body = mpub(b"one\ntwo", b"\0")
    assert ask(nsqd, f"POST /mpub?topic={topic}&binary={binary}", body) == (200, b"OK")
    client = connect().subscribe(topic, ready=2)
    assert {client.message().body for _ in range(2)} == {b"one\ntwo", b"\0"}


@pytest.mark.parametrize("binary", ["false", "0"])
def test_binary_can_be_switched_off(binary: str, nsqd: Nsqd, topic: str) -> None:
    body = b"one\ntwo"
    assert ask(nsqd, f"POST /mpub?topic={topic}&binary={binary}", body) == (200, b"OK")
    assert nsqd.topic(topic)["message_count"] == 2


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("topic=bad!", b"x", 400, "INVALID_TOPIC"),
        ("topic=t", b"\n" * ((5 << 20) + 1), 413, "BODY_TOO_BIG"),
        ("topic=t", b"x\n" + b"y" * ((1 << 20) + 1), 413, "MSG_TOO_BIG"),
        ("topic=t&binary=true", b"", 413, "BAD_BODY"),
        ("topic=t&binary=true", b"\0\0\0\0", 413, "BAD_BODY"),
        ("topic=t&binary=true", b"\0\0\0\1", 413, "BAD_MESSAGE"),
        ("topic=t&binary=true", b"\0\0\0\1\0\0\0\0", 413, "BAD_MESSAGE"),
        ("topic=t&binary=true", b"\0\0\0\1\0\0\0\5four", 413, "BAD_MESSAGE"),
        ("topic=t&binary=true", mpub(b"x" * ((1 << 20) + 1)), 413, "BAD_MESSAGE"),
    ],
)
def test_a_bad_mpub_is_refused(query: str, body: bytes, status: int, code: str, nsqd: Nsqd) -> None:
    assert ask(nsqd, f"POST /mpub?{query}", body) == (status, refusal(code))


def test_a_refused_mpub_publishes_nothing(nsqd: Nsqd, topic: str) -> None:
    body = b"x\n" + b"y" * ((1 << 20) + 1)
    assert ask(nsqd, f"POST /mpub?topic={topic}", body)[0] == 413
    assert nsqd.topic(topic)["message_count"] == 0


def test_topics_and_channels_are_created_once_and_deleted(nsqd: Nsqd, topic: str) -> None:
    for _ in range(2):
        assert ask(nsqd, f"POST /topic/create?topic={topic}") == (200, b"")
        assert ask(nsqd, f"POST /channel/create?topic={topic}&channel=c") == (200, b"")
    assert nsqd.channel(topic, "c")["depth"] == 0
    assert ask(nsqd, f"POST /channel/delete?topic={topic}&channel=c") == (200, b"")
    answer = ask(nsqd, f"POST /channel/delete?topic={topic}&channel=c")
    assert answer == (404, refusal("CHANNEL_NOT_FOUND"))
    assert ask(nsqd, f"POST /topic/delete?topic={topic}") == (200, b"")
    assert ask(nsqd, f"POST /topic/delete?topic={topic}") == (404, refusal("TOPIC_NOT_FOUND"))


@pytest.mark.parametrize("verb", ["pause", "unpause", "empty"])
def test_topics_and_channels_are_paused_unpaused_and_emptied_however_often(
    verb: str, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    for _ in range(2):
        assert ask(nsqd, f"POST /topic/{verb}?topic={topic}") == (200, b"")
        assert ask(nsqd, f"POST /channel/{verb}?topic={topic}&channel=c") == (200, b"")
    paused = verb == "pause"
    assert nsqd.topic(topic)["paused"] is nsqd.channel(topic, "c")["paused"] is paused


@pytest.mark.parametrize("verb", ["delete", "empty", "pause", "unpause"])
def test_what_is_done_to_an_unknown_topic_or_channel_is_not_found(
    verb: str, nsqd: Nsqd, topic: str
) -> None:
    unknown = f"POST /channel/{verb}?topic={topic}&channel=c"
    assert ask(nsqd, f"POST /topic/{verb}?topic={topic}") == (404, refusal("TOPIC_NOT_FOUND"))
    assert ask(nsqd, unknown) == (404, refusal("TOPIC_NOT_FOUND"))
    nsqd.create(topic)
    assert ask(nsqd, unknown) == (404, refusal("CHANNEL_NOT_FOUND"))


def test_a_channel_is_not_created_without_its_topic(nsqd: Nsqd, topic: str) -> None:
    answer = ask(nsqd, f"POST /channel/create?topic={topic}&channel=c")
    assert answer == (404, refusal("TOPIC_NOT_FOUND"))


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
def test_bad_arguments_of_topics_and_channels_are_refused(verb: str, nsqd: Nsqd) -> None:
    for target, code in (
        ("/topic/{}", "MISSING_ARG_TOPIC"),
        ("/topic/{}?topic=%zz", "INVALID_REQUEST"),
        ("/channel/{}", "MISSING_ARG_TOPIC"),
        ("/channel/{}?topic=bad!", "INVALID_ARG_TOPIC"),
        ("/channel/{}?topic=t", "MISSING_ARG_CHANNEL"),
        ("/channel/{}?topic=t&channel=bad!", "INVALID_ARG_CHANNEL"),
        ("/channel/{}?topic=t&channel=%zz", "INVALID_REQUEST"),
    ):
        assert ask(nsqd, f"POST {target.format(verb)}") == (400, refusal(code))


@pytest.mark.parametrize("verb", ["create", "empty"])
def test_a_bad_topic_name_is_refused_by_create_and_empty(verb: str, nsqd: Nsqd) -> None:
    assert ask(nsqd, f"POST /topic/{verb}?topic=bad!") == (400, refusal("INVALID_TOPIC"))


@pytest.mark.parametrize("verb", ["delete", "pause", "unpause"])
def test_a_bad_topic_name_is_not_found_by_the_others(verb: str, nsqd: Nsqd) -> None:
    assert ask(nsqd, f"POST /topic/{verb}?topic=bad!") == (404, refusal("TOPIC_NOT_FOUND"))


def test_arguments_are_read_from_the_query_alone_and_the_first_of_a_name_counts(
    nsqd: Nsqd, topic: str
) -> None:
    kind = "application/x-www-form-urlencoded"
    answer = ask(nsqd, "POST /topic/create", f"topic={topic}".encode(), **{"Content-Type": kind})
    assert answer == (400, refusal("MISSING_ARG_TOPIC"))
    assert ask(nsqd, f"POST /topic/create?topic={topic}&topic=bad!") == (200, b"")


def test_escapes_in_the_query_are_undone(nsqd: Nsqd, topic: str) -> None:
    assert ask(nsqd, f"POST /topic/create?topic={topic}%23ephemeral") == (200, b"")
    assert nsqd.topic(f"{topic}#ephemeral")["depth"] == 0
    assert ask(nsqd, f"POST /topic/create?topic={topic}+") == (400, refusal("INVALID_TOPIC"))


@pytest.mark.parametrize(
    ("option", "value"),
    [("nsqlookupd_tcp_addresses", []), ("max_msg_size", 1048576), ("max_rdy_count", 2500)],
)
def test_config_tells_an_option_by_its_name_in_files(
    option: str, value: object, nsqd: Nsqd
) -> None:
    assert http_ask(nsqd.http, f"GET /config/{option}").json == value


def test_config_tells_durations_in_nanoseconds_and_the_log_level_as_a_number(nsqd: Nsqd) -> None:
    assert ask(nsqd, "GET /config/msg_timeout") == (200, b"60000000000")
    assert ask(nsqd, "GET /config/log_level") == (200, b"2")


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_config_of_an_unknown_option_is_refused(method: str, nsqd: Nsqd) -> None:
    body = b"x" if method == "PUT" else None
    assert ask(nsqd, f"{method} /config/unknown", body) == (400, refusal("INVALID_OPTION"))


def test_other_options_cannot_be_changed(nsqd: Nsqd) -> None:
    assert ask(nsqd, "PUT /config/msg_timeout", b"1") == (400, refusal("INVALID_OPTION"))


def test_the_log_level_can_be_changed(nsqd: Nsqd) -> None:
    for name, number in (("debug", b"1"), ("WARN", b"3"), ("error", b"4"), ("info", b"2")):
        assert ask(nsqd, "PUT /config/log_level", name.encode()) == (200, number)
    assert ask(nsqd, "PUT /config/log_level", b"loud") == (400, refusal("INVALID_VALUE"))
    assert ask(nsqd, "PUT /config/log_level", b"") == (413, refusal("INVALID_VALUE"))


def test_the_lookupd_addresses_can_be_changed(nsqd: Nsqd) -> None:
    target = "/config/nsqlookupd_tcp_addresses"
    for body in (b'["127.0.0.1:1"]', b"[]"):
        assert ask(nsqd, f"PUT {target}", body) == (200, body)
        assert ask(nsqd, f"GET {target}") == (200, body)
    assert ask(nsqd, f"PUT {target}", b"nonsense") == (400, refusal("INVALID_VALUE"))
    assert ask(nsqd, f"PUT {target}", b"[1]") == (400, refusal("INVALID_VALUE"))


def test_where_tls_is_required_plain_http_leads_to_the_https_port(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    for request in ("GET /ping", "GET /nowhere", "POST /pub?topic=t"):
        found = http_ask(nsqd.http, request, b"x")
        assert found.status == 403
        text = f'{{"message": "TLS_REQUIRED", "https_port": {nsqd.https.port}}}'
        assert found.body == text.encode()
        assert found.headers["content-type"] == "application/json; charset=utf-8"


def test_limits_given_to_the_server_hold_over_http(make_nsqd: MakeNsqd, topic: str) -> None:
    nsqd = make_nsqd("-max-msg-size=100", "-max-body-size=200", "-max-req-timeout=2s")
    pub, many = f"POST /pub?topic={topic}", f"POST /mpub?topic={topic}"
    assert ask(nsqd, pub, b"x" * 100) == (200, b"OK")
    assert ask(nsqd, pub, b"x" * 101) == (413, refusal("MSG_TOO_BIG"))
    assert ask(nsqd, many, b"x\n" * 100) == (200, b"OK")
    assert ask(nsqd, many, b"x\n" * 101) == (413, refusal("BODY_TOO_BIG"))
    assert ask(nsqd, f"{many}&binary=1", b"\0\0\0\x28") == (413, refusal("BAD_BODY"))
    assert ask(nsqd, f"{pub}&defer=2000", b"x") == (200, b"OK")
    assert ask(nsqd, f"{pub}&defer=2001", b"x") == (400, refusal("INVALID_DEFER"))


def test_a_message_published_over_http_is_as_any_other(nsqd: Nsqd, client: Raw, topic: str) -> None:
    before = time.time_ns()
    assert ask(nsqd, f"POST /pub?topic={topic}", b"x")[0] == 200
    message = client.subscribe(topic, ready=1).message()
    assert (message.attempts, message.body) == (1, b"x")
    assert before <= message.timestamp <= time.time_ns()
