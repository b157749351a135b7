"""The embedded nsqd's HTTP API, answer by answer the same as the real one's.

Over 400 lines because the requests are tables.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.names import Address
from nsqtools.sandbox.pytest import Nsq
from tests.support.binaries import require_nsq
from tests.support.eventually import eventually
from tests.support.raw import Answer, Raw, http_ask, mpub, sized
from tests.support.servers import Nsqd, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.tls import Certificates

LIMITS = NsqdOptions(max_msg_size=100, max_body_size=300, max_req_timeout=60.0)
LIMIT_FLAGS = ("-max-msg-size=100", "-max-body-size=300", "-max-req-timeout=60s")

Step = tuple[str, bytes | None]

TOPICS: Sequence[Step] = [
    ("POST /topic/create", None),
    ("POST /topic/create?topic=", None),
    ("POST /topic/create?topic=a%20b", None),
    ("POST /topic/create?topic=%zz", None),
    ("POST /topic/create?topic=a;b", None),
    ("POST /topic/create?topic=t", b"a body that nobody reads"),
    ("POST /topic/create?topic=t&topic=u", None),
    ("GET /topic/create?topic=t", None),
    ("POST /topic/delete", None),
    ("POST /topic/delete?topic=", None),
    ("POST /topic/delete?topic=absent", None),
    ("POST /topic/empty", None),
    ("POST /topic/empty?topic=a%20b", None),
    ("POST /topic/empty?topic=absent", None),
    ("POST /topic/pause", None),
    ("POST /topic/pause?topic=absent", None),
    ("POST /topic/unpause?topic=absent", None),
    ("POST /topic/pause?topic=t", None),
    ("GET /stats?format=json&include_mem=0", None),
    ("POST /topic/unpause?topic=t", None),
    ("POST /pub?topic=t", b"gone soon"),
    ("POST /topic/empty?topic=t", None),
    ("GET /stats?format=json&include_mem=0", None),
    ("POST /topic/delete?topic=t", None),
    ("GET /stats?format=json&include_mem=false", None),
]

CHANNELS: Sequence[Step] = [
    ("POST /topic/create?topic=t", None),
    ("POST /channel/create", None),
    ("POST /channel/create?topic=t", None),
    ("POST /channel/create?topic=&channel=c", None),
    ("POST /channel/create?topic=t&channel=a%20b", None),
    ("POST /channel/create?topic=absent&channel=c", None),
    ("POST /channel/create?topic=t&channel=c", None),
    ("POST /channel/create?topic=t&channel=b", None),
    *(
        (f"POST /channel/{verb}?topic={topic}&channel={channel}", None)
        for verb in ("delete", "empty", "pause", "unpause")
        for topic, channel in (("t", "absent"), ("absent", "c"), ("", "c"), ("t", ""))
    ),
    ("POST /pub?topic=t", b"one"),
    ("POST /channel/pause?topic=t&channel=c", None),
    ("POST /channel/empty?topic=t&channel=b", None),
    ("GET /stats?format=json&include_mem=0", None),
    ("POST /channel/unpause?topic=t&channel=c", None),
    ("POST /channel/delete?topic=t&channel=b", None),
    ("GET /stats?format=json&include_mem=0", None),
]

PUBLISHING: Sequence[Step] = [
    ("POST /pub", b"x"),
    ("POST /pub", b""),
    ("POST /pub?topic=", b"x"),
    ("POST /pub?topic=a%20b", b"x"),
    ("POST /pub?topic=p", b"x" * 100),
    ("POST /pub?topic=p", b"x" * 101),
    ("POST /pub?topic=p", b"x" * 2_000_000),
    ("POST /pub?topic=p", None),
    *(
        (f"POST /pub?topic=p&defer={defer}", b"x")
        for defer in ("", "x", "-1", "1.5", "60001", "+5")
    ),
    ("POST /pub?topic=p&defer=99999999999999999999", b"x"),
    ("POST /pub?topic=only-refused&defer=x", b"x"),
    ("GET /pub?topic=p", None),
    ("POST /mpub", b"x"),
    ("POST /mpub?topic=m", b""),
    ("POST /mpub?topic=m", b"\none\n\ntwo\nthree"),
    ("POST /mpub?topic=m", b"x" * 101),
    ("POST /mpub?topic=m", b"x" * 301),
    ("POST /mpub?topic=m&binary=false", mpub(b"1")),
    *(
        (f"POST /mpub?topic=b&binary={binary}", mpub(b"1", b"22"))
        for binary in ("true", "1", "yes", "")
    ),
    ("POST /mpub?topic=b&binary=0", b"one\ntwo"),
    *(
        ("POST /mpub?topic=b&binary=1", body)
        for body in (
            b"",
            b"\x00\x00",
            mpub(),
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x3c" + sized(b"x"),
            mpub(b"x", b""),
            mpub(b"x" * 101),
            mpub(b"x")[:-1],
            mpub(b"x", b"y")[:-3],
            mpub(b"last") + b"what follows is ignored",
        )
    ),
    ("GET /stats?format=json&include_mem=0", None),
]

STATS: Sequence[Step] = [
    ("GET /stats?format=json&include_mem=0", None),
    ("GET /stats?include_mem=0", None),
    ("POST /topic/create?topic=b", None),
    ("POST /topic/create?topic=a", None),
    ("POST /channel/create?topic=a&channel=y", None),
    ("POST /channel/create?topic=a&channel=x", None),
    ("POST /pub?topic=a", b"1"),
    ("POST /pub?topic=b", b"2"),
    ("POST /topic/pause?topic=b", None),
    ("POST /channel/pause?topic=a&channel=y", None),
    *(
        (f"GET /stats?format=json&include_mem=0{more}", None)
        for more in (
            "",
            "&topic=a",
            "&topic=a&channel=x",
            "&channel=x",
            "&topic=b&channel=x",
            "&topic=absent",
            "&include_clients=0",
            "&include_clients=nonsense",
            "&a=%zz",
        )
    ),
    ("GET /stats?include_mem=0", None),
    ("GET /stats?include_mem=0&topic=a&channel=y", None),
    ("GET /stats?include_mem=0&topic=absent", None),
]

OTHERS: Sequence[Step] = [
    ("GET /ping", None),
    ("HEAD /ping", None),
    ("POST /ping", None),
    ("GET /info", None),
    ("GET /nope", None),
    ("POST /nope", b"x"),
    ("PUT /stats", None),
    ("OPTIONS /stats", None),
    ("OPTIONS /config/x", None),
    ("OPTIONS /nope", None),
    ("DELETE /config/x", None),
    *(
        (f"GET /config/{name}", None)
        for name in (
            "log_level",
            "max_msg_size",
            "msg_timeout",
            "max_rdy_count",
            "snappy",
            "tls_cert",
            "tls_required",
            "mem_queue_size",
            "broadcast_address",
            "auth_http_addresses",
            "nsqlookupd_tcp_addresses",
            "nope",
        )
    ),
    ("PUT /config/log_level", b"WARN"),
    ("GET /config/log_level", None),
    ("PUT /config/log_level", b"loud"),
    ("PUT /config/log_level", b""),
    ("PUT /config/log_level", b"x" * 101),
    ("PUT /config/max_msg_size", b"5"),
    ("PUT /config/nsqlookupd_tcp_addresses", b"not json"),
    ("PUT /config/nsqlookupd_tcp_addresses", b'{"a":1}'),
    ("PUT /config/nsqlookupd_tcp_addresses", b"[]"),
    ("POST /config/log_level", b"info"),
    ("GET /config", None),
    ("GET /config/", None),
    ("GET /config/a/b", None),
]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd", *LIMIT_FLAGS) as nsqd:
        yield nsqd


@pytest.fixture
def nsq() -> Iterator[Nsq]:
    with Nsq(LIMITS) as running:
        yield running


@pytest.fixture
def http(nsq: Nsq) -> Address:
    return Address.parse(nsq.nsqd_http_address)


def show(answer: Answer) -> tuple[Any, ...]:
    """What has to agree: all but times, ports and the name of the program."""
    headers = {name: answer.headers[name] for name in sorted(answer.headers)}
    del headers["date"]
    length = headers.pop("content-length", "")
    headers["allow"] = " ".join(sorted(headers.get("allow", "").split(", ")))
    text = answer.body.decode()
    text = re.sub(r'("(?:start_time|\w+_port)":)\d+', r"\1N", text)
    text = re.sub(r"^nsqd v1.3.0 .*", "nsqd v1.3.0", text)
    text = re.sub(r"(?m)^(start_time|uptime) .*", r"\1", text)
    return answer.status, headers, text or length


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(TOPICS, id="topics"),
        pytest.param(CHANNELS, id="channels"),
        pytest.param(PUBLISHING, id="publishing"),
        pytest.param(STATS, id="stats"),
        pytest.param(OTHERS, id="others"),
    ],
)
def test_every_answer_is_nsqds(steps: Sequence[Step], http: Address, real: Nsqd) -> None:
    http_ask(http, "PUT /config/nsqlookupd_tcp_addresses", b"[]")
    for request, body in steps:
        ours, theirs = (show(http_ask(where, request, body)) for where in (http, real.http))
        assert ours == theirs, f"{request} {(body or b'')[:40]!r}"


def with_clients(http: Address, tcp: Address) -> list[str]:
    """The stats while a consumer and a producer are there, in all forms."""
    with Raw(tcp) as consumer, Raw(tcp) as producer, Raw(tcp) as newcomer:
        consumer.identify(client_id="me", hostname="host", user_agent="agent/1", sample_rate=99)
        consumer.subscribe("t", "c", ready=2)
        producer.identify(client_id="you", hostname="there", user_agent="agent/2", deflate=False)
        newcomer.identify()
        for topic in ("t", "u", "t"):
            assert producer.ask(f"PUB {topic}", b"12345") == b"OK"
        consumer.send(f"FIN {consumer.message().id}")
        consumer.send(f"REQ {consumer.message().id} 60000")
        consumer.settle()
        names = {consumer.address: "CONSUMER", producer.address: "PRODUCER"}
        forms = (
            "format=json&topic=t",
            "format=json&topic=u",
            "format=json&topic=t&channel=c",
            "format=json&topic=t&include_clients=false",
            "topic=t",
            "format=json&topic=absent",
        )
        found = []
        for form in forms:
            answer = http_ask(http, f"GET /stats?include_mem=0&{form}")
            text = repr(show(answer))
            for address, name in names.items():
                text = text.replace(address, name).replace(address.rpartition(":")[2], name)
            found.append(re.sub(r'"connect_ts":\d+|connected: \d+s', "CONNECTED", text))
        return found


def test_clients_are_listed_as_nsqd_lists_them(nsq: Nsq, http: Address, real: Nsqd) -> None:
    ours = with_clients(http, Address.parse(nsq.nsqd_tcp_address))
    assert "PRODUCER" in repr(ours)
    assert "CONSUMER" in repr(ours)
    assert ours == with_clients(real.http, real.tcp)


@pytest.mark.parametrize("required", ["true", "tcp-https"])
def test_http_is_refused_where_tls_is_required_of_it_too(
    required: str, certificates: Certificates, tmp_path: Path
) -> None:
    pair = certificates.server
    options = NsqdOptions(tls_cert=str(pair.cert), tls_key=str(pair.key), tls_required=required)
    flags = (*pair.nsqd_args(), f"-tls-required={required}")
    with Nsq(options) as nsq, Nsqd(tmp_path / "nsqd", *flags) as real:
        http = Address.parse(nsq.nsqd_http_address)
        https = Address.parse(nsq.nsqd_https_address)
        for request in ("GET /ping", "GET /nope", "POST /pub?topic=t"):
            ours, theirs = (show(http_ask(where, request, b"x")) for where in (http, real.http))
            theirs_as_ours = repr(theirs).replace(str(real.https.port), str(https.port))
            assert repr(ours) == theirs_as_ours
        context = ssl.create_default_context(cafile=str(certificates.ca))
        with urlopen(f"https://{https}/ping", context=context, timeout=10) as reply:
            assert reply.read() == b"OK"


def test_what_is_published_over_http_reaches_consumers(nsq: Nsq, http: Address) -> None:
    with Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer:
        consumer.identify()
        consumer.subscribe("t", "c", ready=10)
        assert http_ask(http, "POST /pub?topic=t", b"1").body == b"OK"
        assert http_ask(http, "POST /mpub?topic=t", b"2\n3\n").body == b"OK"
        assert http_ask(http, "POST /mpub?topic=t&binary=1", mpub(b"4\n")).body == b"OK"
        assert [consumer.message().body for _ in range(4)] == [b"1", b"2", b"3", b"4\n"]
        assert http_ask(http, "POST /pub?topic=t&defer=60000", b"later").body == b"OK"
        assert http_ask(http, "POST /pub?topic=t", b"5").body == b"OK"
        assert consumer.message().body == b"5"
        assert nsq.stats("t")["topics"][0]["channels"][0]["deferred_count"] == 1


def test_an_unpaused_topic_and_channel_deliver_at_once(nsq: Nsq, http: Address) -> None:
    with Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer:
        consumer.identify()
        consumer.subscribe("t", "c", ready=10)
        for kind in ("topic", "channel"):
            http_ask(http, f"POST /{kind}/pause?topic=t&channel=c")
            http_ask(http, "POST /pub?topic=t", kind.encode())
            assert consumer.settle() == 0
            http_ask(http, f"POST /{kind}/unpause?topic=t&channel=c")
            assert consumer.message().body == kind.encode()


def test_deleting_a_channel_or_topic_closes_its_consumers(nsq: Nsq, http: Address) -> None:
    for request in ("POST /channel/delete?topic=t&channel=c", "POST /topic/delete?topic=t"):
        with Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer:
            consumer.identify()
            consumer.subscribe("t", "c", ready=1)
            assert http_ask(http, request).status == 200
            assert consumer.ended()


def test_nsqlookupds_can_be_changed_while_it_runs(nsq: Nsq, http: Address) -> None:
    lookupd = Address.parse(nsq.lookupd_http_address)

    def nodes() -> int:
        return len(http_ask(lookupd, "GET /nodes").json["producers"])

    assert nodes() == 1
    at = json.dumps([nsq.lookupd_tcp_address]).encode()
    request = "PUT /config/nsqlookupd_tcp_addresses"
    assert http_ask(http, request, b"[]").body == b"[]"
    eventually(lambda: nodes() == 0)
    assert http_ask(http, request, at).body == at
    eventually(lambda: nodes() == 1)


def test_nsq_stat_reads_it(nsq: Nsq, http: Address) -> None:
    program = require_nsq().path("nsq_stat", "whether nsq_stat reads the sandbox")
    nsq.publish("t", *["x"] * 7)
    http_ask(http, "POST /channel/create?topic=t&channel=c")
    for flag, address in (
        ("-nsqd-http-address", nsq.nsqd_http_address),
        ("-lookupd-http-address", nsq.lookupd_http_address),
    ):
        done = subprocess.run(
            [program, "-topic=t", "-channel=c", "-count=1", "-interval=10ms", flag, address],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1].split()[3] == "7"


class Nsqadmin(Server):
    program = "nsqadmin"

    def _arguments(self) -> list[str]:
        return [f"-http-address={self.http}"]


@pytest.mark.parametrize("by", ["nsqd", "lookupd"])
def test_nsqadmin_reads_and_changes_it(by: str, nsq: Nsq, tmp_path: Path) -> None:
    nsq.publish("t", *["x"] * 7)
    address = nsq.nsqd_http_address if by == "nsqd" else nsq.lookupd_http_address
    with (
        Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer,
        Nsqadmin(tmp_path / "nsqadmin", f"-{by}-http-address={address}") as admin,
    ):
        consumer.identify(client_id="me", hostname="host")
        consumer.subscribe("t", "c")
        assert http_ask(admin.http, "GET /api/topics").json == {"message": "", "topics": ["t"]}
        topic = http_ask(admin.http, "GET /api/topics/t").json
        assert (topic["message_count"], topic["channels"][0]["channel_name"]) == (7, "c")
        channel = http_ask(admin.http, "GET /api/topics/t/c").json
        assert (channel["depth"], channel["clients"][0]["client_id"]) == (7, "me")
        (node,) = http_ask(admin.http, "GET /api/nodes").json["nodes"]
        assert f"127.0.0.1:{node['http_port']}" == nsq.nsqd_http_address
        counter = http_ask(admin.http, "GET /api/counter").json["stats"]
        assert [each["message_count"] for each in counter.values()] == [7]
        for action, paused in (("pause", True), ("unpause", False)):
            body = json.dumps({"action": action}).encode()
            assert http_ask(admin.http, "POST /api/topics/t/c", body).status == 200
            assert nsq.stats("t")["topics"][0]["channels"][0]["paused"] is paused
        assert http_ask(admin.http, "DELETE /api/topics/t").status == 200
        assert nsq.stats()["topics"] == []
