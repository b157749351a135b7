"""nsqlookupd: noise, and who does not ping."""

import json
import socket
from contextlib import suppress

import pytest

from tests.support.eventually import eventually
from tests.support.raw import RawLookupd, http_ask
from tests.support.servers import MakeNsqlookupd, Nsqlookupd

PEER = {
    "broadcast_address": "peer.test",
    "hostname": "peer",
    "tcp_port": 14150,
    "http_port": 14151,
    "version": "1.3.0",
}


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


def test_a_peer_that_does_not_ping_is_hidden_until_it_does(make_nsqlookupd: MakeNsqlookupd) -> None:
    lookupd = make_nsqlookupd("-inactive-producer-timeout=300ms")

    def is_listed() -> bool:
        nodes = http_ask(lookupd.http, "GET /nodes").json["producers"]
        return bool(lookupd.lookup("t") and nodes)

    with RawLookupd(lookupd.tcp) as peer:
        peer.ask("IDENTIFY", json.dumps(PEER).encode())
        peer.ask("REGISTER t")
        eventually(lambda: not is_listed())
        eventually(lambda: peer.ask("PING") == b"OK" and is_listed())
