"""nsqlookupd: what nsqds tell it over TCP, and what it tells over HTTP."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.eventually import eventually
from tests.support.raw import RawLookupd, http_ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import MakeNsqlookupd, Nsqlookupd

PEER: dict[str, Any] = {
    "broadcast_address": "peer.test",
    "hostname": "peer",
    "tcp_port": 14150,
    "http_port": 14151,
    "version": "1.3.0",
}


class ConnectPeer(Protocol):
    """Connects to an nsqlookupd as an nsqd does; without fields, it does not identify itself."""

    def __call__(self, lookupd: Nsqlookupd | None = None, /, **fields: Any) -> RawLookupd: ...


@pytest.fixture
def connect(nsqlookupd: Nsqlookupd) -> Iterator[ConnectPeer]:
    with ExitStack() as opened:

        def connect(lookupd: Nsqlookupd | None = None, /, **fields: Any) -> RawLookupd:
            peer = opened.enter_context(RawLookupd((lookupd or nsqlookupd).tcp))
            if fields:
                peer.ask("IDENTIFY", json.dumps(fields).encode())
            return peer

        yield connect


@pytest.fixture
def peer(connect: ConnectPeer) -> RawLookupd:
    """An nsqd that has identified itself."""
    return connect(**PEER)


def ask(lookupd: Nsqlookupd, request: str) -> tuple[int, Any]:
    found = http_ask(lookupd.http, request)
    return found.status, json.loads(found.body) if found.body else None


def refusal(code: str) -> dict[str, str]:
    return {"message": code}


def test_ping_and_info(nsqlookupd: Nsqlookupd) -> None:
    found = http_ask(nsqlookupd.http, "GET /ping")
    assert (found.status, found.body) == (200, b"OK")
    assert http_ask(nsqlookupd.http, "GET /info").body == b'{"version":"1.3.0"}'


def test_replies_say_their_type_and_version(nsqlookupd: Nsqlookupd) -> None:
    for request in ("GET /info", "GET /topics", "GET /nowhere"):
        found = http_ask(nsqlookupd.http, request)
        assert found.headers["content-type"] == "application/json; charset=utf-8"
        assert found.headers["x-nsq-content-type"] == "nsq; version=1.0"


def test_unknown_paths_and_wrong_methods(nsqlookupd: Nsqlookupd) -> None:
    assert ask(nsqlookupd, "GET /stats") == (404, refusal("NOT_FOUND"))
    assert ask(nsqlookupd, "POST /lookup") == (405, refusal("METHOD_NOT_ALLOWED"))
    assert ask(nsqlookupd, "GET /topic/create") == (405, refusal("METHOD_NOT_ALLOWED"))


def test_a_new_one_knows_nothing(make_nsqlookupd: MakeNsqlookupd) -> None:
    lookupd = make_nsqlookupd()
    assert http_ask(lookupd.http, "GET /topics").body == b'{"topics":[]}'
    assert http_ask(lookupd.http, "GET /nodes").body == b'{"producers":[]}'
    assert http_ask(lookupd.http, "GET /debug").body == b"{}"


def test_an_unknown_topic_has_no_channels_and_is_not_found_by_lookup(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    assert ask(nsqlookupd, f"GET /channels?topic={topic}") == (200, {"channels": []})
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}") == (404, refusal("TOPIC_NOT_FOUND"))


@pytest.mark.parametrize(
    ("request_line", "code"),
    [
        ("GET /lookup", "MISSING_ARG_TOPIC"),
        ("GET /channels", "MISSING_ARG_TOPIC"),
        ("GET /lookup?topic=%zz", "INVALID_REQUEST"),
        ("POST /topic/create", "MISSING_ARG_TOPIC"),
        ("POST /topic/create?topic=bad!", "INVALID_ARG_TOPIC"),
        ("POST /topic/delete", "MISSING_ARG_TOPIC"),
        ("POST /channel/create", "MISSING_ARG_TOPIC"),
        ("POST /channel/create?topic=bad!&channel=c", "INVALID_ARG_TOPIC"),
        ("POST /channel/create?topic=t", "MISSING_ARG_CHANNEL"),
        ("POST /channel/create?topic=t&channel=bad!", "INVALID_ARG_CHANNEL"),
        ("POST /channel/delete?topic=t", "MISSING_ARG_CHANNEL"),
        ("POST /topic/tombstone", "MISSING_ARG_TOPIC"),
        ("POST /topic/tombstone?topic=t", "MISSING_ARG_NODE"),
    ],
)
def test_bad_arguments_are_refused(request_line: str, code: str, nsqlookupd: Nsqlookupd) -> None:
    assert ask(nsqlookupd, request_line) == (400, refusal(code))


def test_a_topic_can_be_created_without_a_producer(nsqlookupd: Nsqlookupd, topic: str) -> None:
    assert ask(nsqlookupd, f"POST /topic/create?topic={topic}") == (200, None)
    assert topic in ask(nsqlookupd, "GET /topics")[1]["topics"]
    answer = http_ask(nsqlookupd.http, f"GET /lookup?topic={topic}")
    assert (answer.status, answer.body) == (200, b'{"channels":[],"producers":[]}')


def test_creating_a_channel_creates_its_topic(nsqlookupd: Nsqlookupd, topic: str) -> None:
    assert ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel=c") == (200, None)
    assert topic in ask(nsqlookupd, "GET /topics")[1]["topics"]
    assert ask(nsqlookupd, f"GET /channels?topic={topic}") == (200, {"channels": ["c"]})


def test_deleting_a_topic_takes_its_channels_and_an_unknown_one_is_no_error(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel=c")
    for _ in range(2):
        assert ask(nsqlookupd, f"POST /topic/delete?topic={topic}") == (200, None)
        assert ask(nsqlookupd, f"GET /channels?topic={topic}")[1]["channels"] == []
    assert topic not in ask(nsqlookupd, "GET /topics")[1]["topics"]


def test_deleting_a_channel_leaves_its_topic_and_an_unknown_one_is_not_found(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel=c")
    delete = f"POST /channel/delete?topic={topic}&channel=c"
    assert ask(nsqlookupd, delete) == (200, None)
    assert ask(nsqlookupd, delete) == (404, refusal("CHANNEL_NOT_FOUND"))
    assert topic in ask(nsqlookupd, "GET /topics")[1]["topics"]


def test_an_unknown_magic_is_refused(nsqlookupd: Nsqlookupd) -> None:
    with RawLookupd(nsqlookupd.tcp, b"  V2") as client:
        assert client.response() == b"E_BAD_PROTOCOL"
        assert client.ended()


def test_identify_is_answered_with_who_the_nsqlookupd_is(
    connect: ConnectPeer, nsqlookupd: Nsqlookupd
) -> None:
    reply = connect().ask("IDENTIFY", json.dumps(PEER).encode())
    assert json.loads(reply) == {
        "broadcast_address": "127.0.0.1",
        "hostname": socket.gethostname(),
        "http_port": nsqlookupd.http.port,
        "tcp_port": nsqlookupd.tcp.port,
        "version": "1.3.0",
    }
    assert list(json.loads(reply)) == sorted(json.loads(reply))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"nonsense", "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"{}", "E_BAD_BODY IDENTIFY missing fields"),
        (
            json.dumps({**PEER, "tcp_port": 0}).encode(),
            "E_BAD_BODY IDENTIFY missing fields",
        ),
        (
            json.dumps({**PEER, "version": ""}).encode(),
            "E_BAD_BODY IDENTIFY missing fields",
        ),
    ],
)
def test_a_bad_identify_is_refused(body: bytes, text: str, connect: ConnectPeer) -> None:
    assert connect().fatal("IDENTIFY", body) == text


def test_a_second_identify_is_refused(peer: RawLookupd) -> None:
    assert peer.fatal("IDENTIFY") == "E_INVALID cannot IDENTIFY again"


@pytest.mark.parametrize("command", ["REGISTER t c", "UNREGISTER t c"])
def test_a_peer_must_identify_itself_first(command: str, connect: ConnectPeer) -> None:
    assert connect().fatal(command) == "E_INVALID client must IDENTIFY"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nonsense", "E_INVALID invalid command nonsense"),
        ("REGISTER", "E_INVALID REGISTER insufficient number of params"),
        ("REGISTER bad!", "E_BAD_TOPIC REGISTER topic name 'bad!' is not valid"),
        ("REGISTER t bad!", "E_BAD_CHANNEL REGISTER channel name 'bad!' is not valid"),
        ("UNREGISTER bad!", "E_BAD_TOPIC UNREGISTER topic name 'bad!' is not valid"),
    ],
)
def test_a_bad_command_is_refused(line: str, text: str, peer: RawLookupd) -> None:
    assert peer.fatal(line) == text


def test_ping_is_answered_also_before_identify(connect: ConnectPeer, peer: RawLookupd) -> None:
    assert connect().ask("PING") == b"OK"
    assert peer.ask("PING") == b"OK"


def test_a_registered_peer_is_found_by_lookup(
    peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    for line in (f"REGISTER {topic}", f"REGISTER {topic} c", f"REGISTER {topic} c"):
        assert peer.ask(line) == b"OK"
    expected = {"remote_address": peer.address, "hostname": PEER["hostname"]}
    for name in ("broadcast_address", "tcp_port", "http_port", "version"):
        expected[name] = PEER[name]
    answer = http_ask(nsqlookupd.http, f"GET /lookup?topic={topic}")
    assert (
        answer.body
        == json.dumps({"channels": ["c"], "producers": [expected]}, separators=(",", ":")).encode()
    )


def test_registering_a_channel_registers_its_topic(
    peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    assert peer.ask(f"REGISTER {topic} c") == b"OK"
    found = ask(nsqlookupd, f"GET /lookup?topic={topic}")[1]
    assert (found["channels"], len(found["producers"])) == (["c"], 1)


def test_nodes_show_peers_with_their_topics_and_tombstones(
    connect: ConnectPeer, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd()
    peer = connect(lookupd, **PEER)
    for topic in ("one", "two"):
        peer.ask(f"REGISTER {topic} c")
    (node,) = ask(lookupd, "GET /nodes")[1]["producers"]
    assert list(node) == [
        "remote_address",
        "hostname",
        "broadcast_address",
        "tcp_port",
        "http_port",
        "version",
        "tombstones",
        "topics",
    ]
    assert (node["remote_address"], node["tombstones"]) == (peer.address, [False, False])
    assert sorted(node["topics"]) == ["one", "two"]


def test_unregistering_a_channel_leaves_the_channel_and_the_topic(
    peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer.ask(f"REGISTER {topic} c")
    assert peer.ask(f"UNREGISTER {topic} c") == b"OK"
    found = ask(nsqlookupd, f"GET /lookup?topic={topic}")[1]
    assert (found["channels"], len(found["producers"])) == (["c"], 1)


def test_unregistering_a_topic_leaves_its_name_without_producer(
    peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer.ask(f"REGISTER {topic} c")
    assert peer.ask(f"UNREGISTER {topic}") == b"OK"
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}")[1] == {"channels": ["c"], "producers": []}


def test_unregistering_what_is_ephemeral_removes_it(
    peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    name = f"{topic}#ephemeral"
    peer.ask(f"REGISTER {name} c#ephemeral")
    peer.ask(f"UNREGISTER {name} c#ephemeral")
    quoted = name.replace("#", "%23")
    assert ask(nsqlookupd, f"GET /channels?topic={quoted}")[1]["channels"] == []
    peer.ask(f"UNREGISTER {name}")
    assert name not in ask(nsqlookupd, "GET /topics")[1]["topics"]


def test_what_is_ephemeral_stays_while_another_peer_has_it(
    peer: RawLookupd, connect: ConnectPeer, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    other = connect(**PEER | {"tcp_port": 24150})
    for each in (peer, other):
        each.ask(f"REGISTER {topic} c#ephemeral")
    peer.ask(f"UNREGISTER {topic} c#ephemeral")
    assert ask(nsqlookupd, f"GET /channels?topic={topic}")[1]["channels"] == ["c#ephemeral"]


def test_a_peer_that_hangs_up_is_forgotten_but_its_topics_are_not(
    connect: ConnectPeer, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer = connect(**PEER)
    peer.ask(f"REGISTER {topic} c")
    peer.close()
    eventually(lambda: not nsqlookupd.lookup(topic))
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}")[1] == {"channels": ["c"], "producers": []}
    nodes = ask(nsqlookupd, "GET /nodes")[1]["producers"]
    assert peer.address not in {node["remote_address"] for node in nodes}


def test_a_tombstone_hides_a_peer_from_lookup_but_not_from_nodes(
    connect: ConnectPeer, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer = connect(**PEER | {"broadcast_address": f"{topic}.test"})
    other = connect(**PEER | {"broadcast_address": "other.test"})
    for each in (peer, other):
        each.ask(f"REGISTER {topic}")
    bury = f"POST /topic/tombstone?topic={topic}&node={topic}.test:14151"
    assert ask(nsqlookupd, bury) == (200, None)
    found = ask(nsqlookupd, f"GET /lookup?topic={topic}")[1]["producers"]
    assert [each["broadcast_address"] for each in found] == ["other.test"]
    peer.ask(f"REGISTER {topic}")
    assert len(ask(nsqlookupd, f"GET /lookup?topic={topic}")[1]["producers"]) == 1
    nodes = ask(nsqlookupd, "GET /nodes")[1]["producers"]
    marks = {node["remote_address"]: node["tombstones"] for node in nodes}
    assert (marks[peer.address], marks[other.address]) == ([True], [False])


@pytest.mark.parametrize("node", ["elsewhere.test:14151", "peer.test:14150", "peer.test", ""])
def test_a_tombstone_for_an_unknown_node_is_no_error(
    node: str, peer: RawLookupd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer.ask(f"REGISTER {topic}")
    answer = ask(nsqlookupd, f"POST /topic/tombstone?topic={topic}&node={node}")
    assert answer == (200, None)
    assert len(nsqlookupd.lookup(topic)) == 1


def test_a_tombstone_ends_after_its_lifetime(
    connect: ConnectPeer, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd("-tombstone-lifetime=1s")
    connect(lookupd, **PEER).ask("REGISTER t")
    ask(lookupd, "POST /topic/tombstone?topic=t&node=peer.test:14151")
    assert not lookupd.lookup("t")
    eventually(lambda: lookupd.lookup("t"))


def test_a_peer_that_does_not_ping_is_hidden_until_it_does(
    connect: ConnectPeer, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd("-inactive-producer-timeout=1s")
    peer = connect(lookupd, **PEER)
    peer.ask("REGISTER t")
    eventually(lambda: not lookupd.lookup("t"))
    assert ask(lookupd, "GET /nodes")[1]["producers"] == []
    assert peer.ask("PING") == b"OK"
    assert lookupd.lookup("t")
    assert len(ask(lookupd, "GET /nodes")[1]["producers"]) == 1


def test_debug_shows_the_whole_registry(
    connect: ConnectPeer, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd()
    peer = connect(lookupd, **PEER)
    peer.ask("REGISTER t c")
    ask(lookupd, "POST /topic/create?topic=empty")
    found = ask(lookupd, "GET /debug")[1]
    assert set(found) == {"client::", "topic:t:", "channel:t:c"}
    (entry,) = found["topic:t:"]
    assert abs(entry.pop("last_update") / 1e9 - time.time()) < 600
    assert type(entry.pop("tombstoned_at")) is int
    assert entry == {"id": peer.address, "tombstoned": False, **PEER}
