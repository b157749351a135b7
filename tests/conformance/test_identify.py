"""Magic, IDENTIFY, and the frames of TLS and compression."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import Connect, Raw
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates


def stats_of(client: Raw, nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """What /stats says of a subscriber."""
    for each in nsqd.channel(topic, "c")["clients"]:
        if each["remote_address"] == client.address:
            found: dict[str, Any] = each
            return found
    raise LookupError(client.address)


def test_an_unknown_magic_is_refused_and_the_connection_closed(connect: Connect) -> None:
    client = connect(magic=b"  V9")
    assert client.failure() == "E_BAD_PROTOCOL"
    assert client.ended()


def test_a_client_is_shown_as_it_identified_itself(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.identify(client_id="an id", hostname="a.host", user_agent="agent/1", sample_rate=20)
    client.subscribe(topic)
    shown = stats_of(client, nsqd, topic)
    names = ("client_id", "hostname", "user_agent", "sample_rate")
    assert [shown[name] for name in names] == ["an id", "a.host", "agent/1", 20]


def exchange(client: Raw, nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """Pass small and large bodies both ways; returns what /stats says of the client."""
    nsqd.create(topic, "c")
    bodies = [b"x", b"y" * 1_000_000, bytes(range(256)) * 300]
    for body in bodies:
        assert client.ask(f"PUB {topic}", body) == b"OK"
    client.subscribe(topic, ready=10)
    got = [client.message() for _ in bodies]
    assert sorted(message.body for message in got) == sorted(bodies)
    return stats_of(client, nsqd, topic)


def begin(client: Raw, compression: str) -> None:
    if compression == "snappy":
        client.start_snappy()
    elif compression:
        client.start_deflate()
    assert client.response() == b"OK"


@pytest.mark.parametrize("options", [{"snappy": True}, {"deflate": True, "deflate_level": 1}])
def test_after_a_compression_is_agreed_an_ok_comes_through_it_and_then_all_else(
    options: dict[str, Any], client: Raw, nsqd: Nsqd, topic: str
) -> None:
    reply = client.identify(**options)
    assert {name: reply[name] for name in options} == options
    name = next(iter(options))
    begin(client, name)
    shown = exchange(client, nsqd, topic)
    assert [shown[each] for each in ("snappy", "deflate", "tls")] == [
        name == "snappy",
        name == "deflate",
        False,
    ]


@pytest.fixture(scope="module")
def secure(
    nsqd_class: type[Nsqd], certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    args = [*certificates.server.nsqd_args(), "-tls-required=tcp-https"]
    with nsqd_class(tmp_path_factory.mktemp("secure"), *args) as running:
        yield running


@pytest.fixture
def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
def test_tls_begins_after_the_reply_to_identify_and_an_ok_comes_through_it(
    compression: str, connect: Connect, trusting: ssl.SSLContext, topic: str, secure: Nsqd
) -> None:
    client = connect(secure)
    reply = client.identify(tls_v1=True, **({compression: True} if compression else {}))
    assert reply["tls_v1"] is reply[compression or "tls_v1"] is True
    client.start_tls(trusting)
    assert client.response() == b"OK"
    if compression:
        begin(client, compression)
    shown = exchange(client, secure, topic)
    assert shown["tls"] is shown[compression or "tls"] is True
    assert (shown["tls_version"], shown["tls_negotiated_protocol_is_mutual"]) == ("TLS1.3", True)


def test_where_tls_is_required_every_command_but_identify_is_refused_without(
    secure: Nsqd, connect: Connect
) -> None:
    for command in ("NOP", "SUB t c", "PUB t", "FIN x", "AUTH", "nonsense", ""):
        name = command.partition(" ")[0]
        assert connect(secure).fatal(command) == (
            f"E_INVALID cannot {name} in current state (TLS required)"
        )


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_client_certificates_requires_tls_and_one_that_is_known(
    policy: str,
    make_nsqd: MakeNsqd,
    connect: Connect,
    certificates: Certificates,
    trusting: ssl.SSLContext,
) -> None:
    nsqd = make_nsqd(
        *certificates.server.nsqd_args(),
        f"-tls-client-auth-policy={policy}",
        f"-tls-root-ca-file={certificates.ca}",
    )
    assert connect(nsqd).fatal("NOP") == "E_INVALID cannot NOP in current state (TLS required)"

    def reply() -> bytes:
        client = connect(nsqd)
        client.identify(tls_v1=True)
        client.start_tls(trusting)
        return client.response()

    with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
        reply()
    trusting.load_cert_chain(certificates.client.cert, certificates.client.key)
    assert reply() == b"OK"


def test_garbage_instead_of_a_tls_handshake_closes_the_connection(
    secure: Nsqd, connect: Connect
) -> None:
    client = connect(secure)
    client.identify(tls_v1=True)
    client.write(b"this is no handshake" * 10)
    said = b""
    with contextlib.suppress(ConnectionError):
        while chunk := client.socket.recv(65536):
            said += chunk
    assert b"E_IDENTIFY_FAILED IDENTIFY failed " in said
    assert wire.OK not in said
