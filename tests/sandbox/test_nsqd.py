"""The embedded nsqd on real sockets: its options, its ports, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import ConfigError
from nsqtools.sandbox.nsqd import Nsqd
from nsqtools.sandbox.server import StreamServer
from tests.support.eventually import eventually_async
from tests.support.raw import Raw, sized

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nsqtools.names import Address
    from tests.support.tls import Certificates


@contextlib.asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Nsqd]:
    nsqd = Nsqd(NsqdOptions(**options), rng=Random(1))
    await nsqd.start("127.0.0.1", 0, 0)
    try:
        yield nsqd
    finally:
        await nsqd.stop()


def with_cert(certificates: Certificates, **options: Any) -> dict[str, Any]:
    server = certificates.server
    return {"tls_cert": str(server.cert), "tls_key": str(server.key), **options}


async def test_what_was_sent_before_tls_is_not_heard(certificates: Certificates) -> None:
    async with running(**with_cert(certificates)) as nsqd:

        def talk() -> bytes:
            with Raw(nsqd.tcp) as raw:
                wishes = sized(b'{"feature_negotiation": true, "tls_v1": true}')
                raw.write(b"IDENTIFY\n" + wishes + b"CLS\n")
                raw.response()
                raw.start_tls(ssl.create_default_context(cafile=str(certificates.ca)))
                assert raw.response() == b"OK"
                return raw.ask("SUB t c")

        assert await asyncio.to_thread(talk) == b"OK"


@pytest.mark.parametrize(
    ("change", "culprits"),
    [
        ({"tls_cert": "/nowhere.pem"}, ["--tls-cert /nowhere.pem"]),
        ({"tls_root_ca_file": "/nowhere.pem"}, ["--tls-root-ca-file /nowhere.pem"]),
        ({"tls_client_auth_policy": "require"}, ["--tls-root-ca-file"]),
        (
            {"tls_client_auth_policy": "require", "tls_cert": "", "tls_key": ""},
            ["--tls-cert", "--tls-key"],
        ),
        ({"auth_secret_file": "/nowhere"}, ["--auth-secret-file /nowhere"]),
        ({"tls_key": "another"}, ["--tls-key"]),
    ],
)
def test_a_file_that_is_wrong_is_an_error_of_the_options(
    certificates: Certificates, change: dict[str, str], culprits: list[str]
) -> None:
    if change.get("tls_key") == "another":
        change = {"tls_key": str(certificates.client.key)}
    with pytest.raises(ConfigError) as caught:
        Nsqd(NsqdOptions(**{**with_cert(certificates), **change}))
    assert all(each in str(caught.value) for each in culprits)


async def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    async with running() as first:
        second = Nsqd(NsqdOptions())
        with pytest.raises(OSError, match="in use") as caught:
            await second.start("127.0.0.1", 0, first.http.port)
        assert caught.value.filename == str(first.http)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*second.tcp)


async def test_stop_cuts_every_connection_and_frees_the_ports() -> None:
    async with running() as nsqd:
        reader, writer = await asyncio.open_connection(*nsqd.tcp)
        writer.write(b"  V2SUB t c\nRDY 1\n")
        await eventually_async(lambda: nsqd.clients)
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    again = Nsqd(NsqdOptions())
    await again.start(*nsqd.tcp, 0)
    await again.stop()


TURNS = range(8)
"""Of the loop: a connection is accepted in the first, and served for good some turns later."""


async def cut(address: Address, turns: int, stop: Callable[[], Awaitable[None]]) -> None:
    """Dial, stop the server some turns later, and expect that the connection ends."""
    with socket.create_connection(address, timeout=10) as dialled:
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(stop(), 10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(dialled.recv, 1) == b""


@pytest.mark.parametrize("turns", TURNS)
async def test_a_stopped_server_cuts_what_was_accepted_just_now(turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    server = StreamServer(serve)
    await server.start("127.0.0.1", 0)
    await cut(server.address, turns, server.stop)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_stopped_nsqd_cuts_what_was_accepted_just_now(turns: int) -> None:
    nsqd = Nsqd()
    await nsqd.start(tcp_port=0)
    await cut(nsqd.tcp, turns, nsqd.stop)
    assert not nsqd.links
