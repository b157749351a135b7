"""Telling what listens at a port."""

import socket
from typing import Any

import pytest

from nsqtools.net.probe import what_speaks
from tests.support.scripted_http import serving
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
from tests.support.tls import Certificates


async def test_the_ports_of_nsqd_and_nsqlookupd_are_told_apart(
    nsqd: Nsqd, nsqlookupd: Nsqlookupd
) -> None:
    ports = (nsqd.tcp, nsqlookupd.tcp, nsqd.http, nsqlookupd.http)
    found = [await what_speaks(port, limit=10) for port in ports]
    assert found == ["nsqd", "nsqlookupd", "http", "http"]


@pytest.mark.nsqd_only("the sandbox has no HTTPS")
async def test_a_port_that_wants_tls_is_told(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd(*certificates.server.nsqd_args())
    assert await what_speaks(nsqd.https, limit=10) == "tls"


@pytest.mark.parametrize("answer", [b"", b"220 mail.test ESMTP\r\n", b"\0" * 100_000])
async def test_another_server_is_not_taken_for_one_of_these(answer: bytes) -> None:
    async with serving(answer, plain=True) as server:
        assert await what_speaks(server.address, limit=10) == ""


async def test_a_silent_server_is_waited_for_no_longer_than_the_limit() -> None:
    async with serving(None, plain=True) as server:
        assert await what_speaks(server.address, limit=0.05) == ""


async def test_a_server_is_found_at_any_address_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.1")  # the server listens at the second
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    async with serving(b"HTTP/1.1 400 Bad Request\r\n\r\n", plain=True) as server:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        there = server.address._replace(host="two.test")
        assert await what_speaks(there, limit=10) == "http"
