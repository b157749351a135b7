"""Magic, TLS and compression."""

import contextlib
import ssl
from collections.abc import Iterator

import pytest

from tests.support import wire
from tests.support.raw import Connect
from tests.support.servers import MakeNsqd, Nsqd
from tests.support.tls import Certificates


def test_an_unknown_magic_is_refused_and_the_connection_closed(connect: Connect) -> None:
    client = connect(magic=b"  V9")
    assert client.failure() == "E_BAD_PROTOCOL"
    assert client.ended()


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


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True}])
def test_after_each_layer_that_is_agreed_an_ok_comes_through_it_and_then_all_else(
    tls: bool,
    compression: dict[str, bool],
    connect: Connect,
    trusting: ssl.SSLContext,
    nsqd: Nsqd,
    secure: Nsqd,
    topic: str,
) -> None:
    server = secure if tls else nsqd
    client = connect(server)
    agreed = {"tls_v1": tls, "snappy": False, "deflate": False} | compression
    assert client.identify(tls_v1=tls, **compression).items() >= agreed.items()
    if tls:
        client.start_tls(trusting)
        assert client.response() == b"OK"
    for name in compression:
        client.start_snappy() if name == "snappy" else client.start_deflate()
        assert client.response() == b"OK"
    bodies = [b"x", b"y" * 1_000_000, bytes(range(256)) * 300]
    server.create(topic, "c")
    for body in bodies:
        assert client.ask(f"PUB {topic}", body) == b"OK"
    client.subscribe(topic, ready=10)
    assert sorted(client.message().body for _ in bodies) == sorted(bodies)
    (shown,) = server.channel(topic, "c")["clients"]
    assert {name: shown[name.removesuffix("_v1")] for name in agreed} == agreed
    assert shown["tls_version"] == ("TLS1.3" if tls else "")
    assert shown["tls_negotiated_protocol_is_mutual"] is tls


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
