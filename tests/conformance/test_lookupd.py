"""nsqlookupd: what nsqds that come and go change, and what time does."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.raw import RawLookupd, http_ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import MakeNsqlookupd, Nsqlookupd

    Register = Callable[..., RawLookupd]

PEER: dict[str, Any] = {
    "broadcast_address": "peer.test",
    "hostname": "peer",
    "tcp_port": 14150,
    "http_port": 14151,
    "version": "1.3.0",
}


@pytest.fixture
def register() -> Iterator[Register]:
    """Connects as an nsqd that has one topic."""
    with ExitStack() as opened:

        def connect(lookupd: Nsqlookupd, *names: str, **changes: Any) -> RawLookupd:
            peer = opened.enter_context(RawLookupd(lookupd.tcp))
            peer.ask("IDENTIFY", json.dumps(PEER | changes).encode())
            assert peer.ask(f"REGISTER {' '.join(names)}") == b"OK"
            return peer

        yield connect


def ask(lookupd: Nsqlookupd, request: str) -> Any:
    return http_ask(lookupd.http, request).json


@pytest.mark.parametrize(
    "noise",
    [b"", b" ", b"\x00" * 1000, b"  V1IDENTIFY\n\x7f\xff\xff\xff", b"  V1" + b"x" * 200_000],
)
def test_noise_costs_one_connection(noise: bytes, nsqlookupd: Nsqlookupd) -> None:
    with suppress(ConnectionError), RawLookupd(nsqlookupd.tcp, noise) as client:
        with suppress(OSError):  # it may have cut the connection by now
            client.socket.shutdown(socket.SHUT_WR)
        while client.socket.recv(65536):
            pass
    assert http_ask(nsqlookupd.http, "GET /ping").body == b"OK"


def test_a_peer_that_hangs_up_is_forgotten_but_its_topics_are_not(
    register: Register, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    peer = register(nsqlookupd, topic, "c")
    peer.close()
    eventually(lambda: not nsqlookupd.lookup(topic))
    found = ask(nsqlookupd, f"GET /lookup?topic={topic}")
    assert found == {"channels": ["c"], "producers": []}
    nodes = ask(nsqlookupd, "GET /nodes")["producers"]
    assert peer.address not in {node["remote_address"] for node in nodes}


def test_a_tombstone_ends_after_its_lifetime(
    register: Register, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd("-tombstone-lifetime=300ms")
    register(lookupd, "t")
    http_ask(lookupd.http, "POST /topic/tombstone?topic=t&node=peer.test:14151")
    eventually(lambda: lookupd.lookup("t"))


def test_a_peer_that_does_not_ping_is_hidden_until_it_does(
    register: Register, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupd = make_nsqlookupd("-inactive-producer-timeout=300ms")
    peer = register(lookupd, "t")
    eventually(lambda: not lookupd.lookup("t") and not ask(lookupd, "GET /nodes")["producers"])

    def shown() -> bool:
        assert peer.ask("PING") == b"OK"
        return bool(lookupd.lookup("t") and ask(lookupd, "GET /nodes")["producers"])

    eventually(shown)
