"""The embedded nsqlookupd: its registry, and both its protocols the same as the real one's."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.pytest import LoopThread
from nsqtools.sandbox.registry import CLIENT, Peer, Registration, Registry
from tests.support import servers
from tests.support.eventually import eventually
from tests.support.raw import RawLookupd, http_ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nsqtools.names import Address
    from tests.support.raw import Answer

SECOND = 10**9


def peer(name: str = "1.2.3.4:5", now: int = 0, http_port: int = 4151) -> Peer:
    return Peer(name, "host", "1.2.3.4", 4150, http_port, "1.3.0", now)


def test_a_topic_is_known_by_its_producers_and_after_them() -> None:
    registry, one = Registry(), peer()
    assert registry.lookup("t", 0) is None
    registry.register(one, "t")
    assert registry.lookup("t", 0) == [one]
    registry.unregister(one, "t")
    assert registry.lookup("t", 0) == []
    assert registry.topics() == ["t"]
    registry.delete_topic("t")
    assert registry.lookup("t", 0) is None


def test_a_channel_registers_its_topic() -> None:
    registry, one = Registry(), peer()
    registry.register(one, "t", "c")
    assert registry.channels("t") == ["c"]
    assert registry.lookup("t", 0) == [one]
    registry.unregister(one, "t", "c")
    assert registry.channels("t") == ["c"]
    assert registry.lookup("t", 0) == [one]


def test_what_is_ephemeral_vanishes_with_its_last_producer() -> None:
    registry, one, two = Registry(), peer("a"), peer("b")
    for each in (one, two):
        registry.register(each, "t#ephemeral", "c#ephemeral")
    registry.unregister(one, "t#ephemeral", "c#ephemeral")
    assert registry.channels("t#ephemeral") == ["c#ephemeral"]
    registry.unregister(two, "t#ephemeral", "c#ephemeral")
    assert registry.channels("t#ephemeral") == []
    registry.unregister(one, "t#ephemeral")
    assert registry.topics() == ["t#ephemeral"]
    registry.unregister(two, "t#ephemeral")
    assert registry.topics() == []


def test_a_topic_that_is_unregistered_takes_its_channels_along() -> None:
    registry, one = Registry(), peer()
    registry.register(one, "t", "c")
    registry.unregister(one, "t")
    assert registry.entries[Registration("channel", "t", "c")] == {}
    assert registry.channels("t") == ["c"]


def test_a_silent_producer_is_hidden_after_the_timeout() -> None:
    registry, one = Registry(inactive_timeout=300), peer(now=0)
    registry.add(CLIENT, one)
    registry.register(one, "t")
    assert registry.lookup("t", 300 * SECOND) == [one]
    assert registry.lookup("t", 300 * SECOND + 1) == []
    assert list(registry.nodes(300 * SECOND + 1)) == []
    one.last_update = 300 * SECOND
    assert registry.lookup("t", 301 * SECOND) == [one]


def test_a_tombstone_hides_one_producer_of_one_topic_for_its_lifetime() -> None:
    registry = Registry(tombstone_lifetime=45)
    one, two = peer("a", http_port=1), peer("b", http_port=2)
    for each in (one, two):
        registry.add(CLIENT, each)
        registry.register(each, "t")
        registry.register(each, "u")
    registry.tombstone("t", "1.2.3.4:1", SECOND)
    assert registry.lookup("t", SECOND) == [two]
    assert registry.lookup("u", SECOND) == [one, two]
    assert dict(registry.nodes(SECOND))[one] == {"t": True, "u": False}
    registry.register(one, "t")
    assert registry.lookup("t", 46 * SECOND - 1) == [two]
    assert registry.lookup("t", 46 * SECOND) == [one, two]
    assert dict(registry.nodes(46 * SECOND))[one] == {"t": False, "u": False}


def test_a_peer_that_is_gone_leaves_names_behind() -> None:
    registry, one = Registry(), peer()
    registry.add(CLIENT, one)
    registry.register(one, "t", "c")
    registry.forget(one)
    assert registry.lookup("t", 0) == []
    assert registry.channels("t") == ["c"]
    assert list(registry.nodes(0)) == []


def test_a_second_registration_changes_nothing() -> None:
    registry, one = Registry(), peer()
    registry.register(one, "t")
    registry.tombstone("t", "1.2.3.4:4151", 0)
    registry.register(one, "t")
    assert registry.lookup("t", 1) == []


class Lookupd:
    """Either server: where it listens."""

    def __init__(self, tcp: Address, http: Address) -> None:
        self.tcp, self.http = tcp, http


@pytest.fixture
def ours() -> Iterator[Lookupd]:
    with LoopThread() as thread:
        lookupd = Nsqlookupd(broadcast_address="127.0.0.1")
        thread.call(lookupd.start("127.0.0.1", 0, 0))
        yield Lookupd(lookupd.tcp, lookupd.http)
        thread.call(lookupd.stop())


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Lookupd]:
    with servers.Nsqlookupd(tmp_path / "nsqlookupd") as lookupd:
        yield Lookupd(lookupd.tcp, lookupd.http)


IDENTITY = {
    "broadcast_address": "127.0.0.1",
    "hostname": "host",
    "http_port": 4151,
    "tcp_port": 4150,
    "version": "1.3.0",
}

REQUESTS: Sequence[str] = [
    "GET /ping",
    "GET /info",
    "GET /nope",
    "POST /ping",
    "GET /topics",
    "GET /nodes",
    "GET /debug",
    "GET /channels",
    "GET /channels?topic=absent",
    "GET /lookup",
    "GET /lookup?topic=absent",
    "GET /lookup?topic=%zz",
    "POST /topic/create",
    "POST /topic/create?topic=",
    "POST /topic/create?topic=a%20b",
    "POST /topic/create?topic=made",
    "GET /lookup?topic=made",
    "POST /channel/create",
    "POST /channel/create?topic=made",
    "POST /channel/create?topic=a%20b&channel=c",
    "POST /channel/create?topic=made&channel=a%20b",
    "POST /channel/create?topic=made-too&channel=c",
    "GET /channels?topic=made-too",
    "GET /lookup?topic=made-too",
    "POST /channel/delete?topic=made-too",
    "POST /channel/delete?topic=made-too&channel=absent",
    "POST /channel/delete?topic=made-too&channel=c",
    "GET /channels?topic=made-too",
    "POST /topic/delete",
    "POST /topic/delete?topic=absent",
    "POST /topic/delete?topic=made",
    "POST /topic/delete?topic=made-too",
    "GET /topics",
    "POST /topic/tombstone",
    "POST /topic/tombstone?topic=t",
    "POST /topic/tombstone?topic=absent&node=x",
]


def show(answer: Answer) -> tuple[Any, ...]:
    """What has to agree: all but times, and the order of what is kept in Go's maps."""
    headers = {name: answer.headers[name] for name in sorted(answer.headers)}
    for name in ("date", "content-length"):
        headers.pop(name, None)
    text = re.sub(r'("(?:last_update|tombstoned_at)":)\d+', r"\1N", answer.body.decode())
    return answer.status, headers, text


def test_every_answer_is_nsqlookupds(ours: Lookupd, real: Lookupd) -> None:
    for request in REQUESTS:
        answers = [show(http_ask(lookupd.http, request)) for lookupd in (ours, real)]
        assert answers[0] == answers[1], request


def identity(**changes: object) -> bytes:
    return json.dumps({**IDENTITY, **changes}).encode()


REGISTERED: Sequence[tuple[str, bytes | None]] = [
    ("PING", None),
    ("IDENTIFY", identity()),
    ("PING", None),
    ("REGISTER t", None),
    ("REGISTER t c extra words", None),
    ("REGISTER t ", None),
    (" REGISTER u c \r", None),
    ("REGISTER e#ephemeral c#ephemeral", None),
    ("REGISTER f c#ephemeral", None),
    ("UNREGISTER f c#ephemeral", None),
    ("UNREGISTER u", None),
    ("UNREGISTER absent c", None),
]


def test_an_nsqd_registers_as_with_nsqlookupd(ours: Lookupd, real: Lookupd) -> None:
    def transcript(lookupd: Lookupd) -> str:
        with RawLookupd(lookupd.tcp) as nsqd:
            replies: list[Any] = [nsqd.ask(line, body) for line, body in REGISTERED]
            replies[1] = [*json.loads(replies[1]).items()]
            requests = (
                "POST /topic/tombstone?topic=t&node=127.0.0.1:4151",
                "POST /topic/tombstone?topic=f&node=127.0.0.1:1",
                *(f"GET /lookup?topic={topic}" for topic in ("t", "u", "e%23ephemeral", "f")),
                *(f"GET /channels?topic={topic}" for topic in ("t", "u", "e%23ephemeral", "f")),
                "GET /debug",
            )
            replies += [show(http_ask(lookupd.http, request)) for request in requests]
            (node,) = http_ask(lookupd.http, "GET /nodes").json["producers"]
            marks = sorted(zip(node.pop("topics"), node.pop("tombstones"), strict=True))
            replies += [[*node.items()], marks]
            address = nsqd.address
        eventually(lambda: not http_ask(lookupd.http, "GET /nodes").json["producers"])
        replies.append(sorted(http_ask(lookupd.http, "GET /topics").json["topics"]))
        replies.append(show(http_ask(lookupd.http, "GET /lookup?topic=f")))
        ports = {str(lookupd.tcp.port): "TCP", str(lookupd.http.port): "HTTP", address: "NSQD"}
        return re.sub("|".join(ports), lambda found: ports[found[0]], repr(replies))

    assert transcript(ours) == transcript(real)


REFUSED: Sequence[tuple[str, bytes | None]] = [
    ("", None),
    ("NOPE", None),
    ("register t", None),
    ("IDENTIFY", b""),
    ("IDENTIFY", b"{"),
    ("IDENTIFY", b"[]"),
    ("IDENTIFY", b"5"),
    ("IDENTIFY", b"{}"),
    ("IDENTIFY", identity(tcp_port="4150")),
    ("IDENTIFY", identity(hostname=5)),
    *(("IDENTIFY", identity(**{name: None})) for name in IDENTITY if name != "hostname"),
    ("REGISTER t", None),
    ("UNREGISTER t", None),
]

REFUSED_LATER: Sequence[tuple[str, bytes | None]] = [
    ("IDENTIFY", identity()),
    ("REGISTER", None),
    ("UNREGISTER", None),
    ("REGISTER  c", None),
    ("REGISTER a/b", None),
    ("UNREGISTER a/b c", None),
    ("REGISTER t a/b", None),
    (f"REGISTER {'t' * 65}", None),
]


def test_refusals_are_worded_as_nsqlookupds_and_end_the_connection(
    ours: Lookupd, real: Lookupd
) -> None:
    def refusal(lookupd: Lookupd, line: str, body: bytes | None, *, identify: bool) -> str:
        with RawLookupd(lookupd.tcp) as nsqd:
            if identify:
                nsqd.ask("IDENTIFY", identity())
            return nsqd.fatal(line, body)

    for identify, cases in ((False, REFUSED), (True, REFUSED_LATER)):
        for line, body in cases:
            texts = [refusal(each, line, body, identify=identify) for each in (ours, real)]
            assert texts[0] == texts[1], (line, body)
            assert texts[0].startswith("E_")
    for lookupd in (ours, real):
        with RawLookupd(lookupd.tcp, b"  V2") as client:
            assert client.response() == b"E_BAD_PROTOCOL"
            assert client.ended()


@pytest.mark.parametrize(
    "noise",
    [b"", b" ", b"\x00" * 1000, b"  V1IDENTIFY\n\x7f\xff\xff\xff", b"  V1" + b"x" * 200_000],
)
def test_noise_costs_one_connection(
    noise: bytes, ours: Lookupd, caplog: pytest.LogCaptureFixture
) -> None:
    with suppress(ConnectionError), RawLookupd(ours.tcp, noise) as client:
        with suppress(OSError):  # it may have cut the connection by now
            client.socket.shutdown(socket.SHUT_WR)
        while client.socket.recv(65536):
            pass
    assert http_ask(ours.http, "GET /ping").body == b"OK"
    assert [record for record in caplog.records if record.levelname not in ("DEBUG", "INFO")] == []


def test_a_real_nsqd_registers(ours: Lookupd, tmp_path: Path) -> None:
    flag = f"-lookupd-tcp-address={ours.tcp}"
    with servers.Nsqd(tmp_path / "nsqd", flag) as nsqd:
        nsqd.create("t", "c")
        nsqd.create("alone")

        def known() -> tuple[Any, ...]:
            found = http_ask(ours.http, "GET /lookup?topic=t").json
            ports = [(each["tcp_port"], each["http_port"]) for each in found["producers"]]
            return found["channels"], ports, http_ask(ours.http, "GET /topics").json["topics"]

        here = [(nsqd.tcp.port, nsqd.http.port)]
        eventually(lambda: known() == (["c"], here, ["t", "alone"]))
        nsqd.delete("t", "c")
        nsqd.delete("alone")
        eventually(lambda: http_ask(ours.http, "GET /lookup?topic=alone").json["producers"] == [])
        # It asks for channels before a new topic's messages flow.
        http_ask(ours.http, "POST /channel/create?topic=new&channel=waiting")
        nsqd.publish("new", [b"x"])
        eventually(lambda: nsqd.channel("new", "waiting")["depth"] == 1)
    eventually(lambda: http_ask(ours.http, "GET /lookup?topic=t").json["producers"] == [])


async def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    lookupd = Nsqlookupd()
    await lookupd.start("127.0.0.1", 0, 0)
    other = Nsqlookupd()
    with pytest.raises(OSError, match="in use") as caught:
        await other.start("127.0.0.1", lookupd.tcp.port, 0)
    assert caught.value.filename == str(lookupd.tcp)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*other.http)
    await lookupd.stop()
