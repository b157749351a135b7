"""The embedded nsqd on real sockets: its options, its ports, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import ConfigError
from nsqtools.sandbox.nsqd import Nsqd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.names import Address
    from tests.support.tls import Certificates


def with_cert(certificates: Certificates, **options: Any) -> dict[str, Any]:
    server = certificates.server
    return {"tls_cert": str(server.cert), "tls_key": str(server.key), **options}


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
async def test_a_stopped_nsqd_cuts_what_was_accepted_just_now(turns: int) -> None:
    nsqd = Nsqd()
    await nsqd.start(tcp_port=0)
    await cut(nsqd.tcp, turns, nsqd.stop)
    assert not nsqd.links
