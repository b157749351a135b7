"""Contexts made from options, used against real TLS servers; and how their refusals read."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization

from nsqtools.config import ClientConfig, ConsumerConfig
from nsqtools.errors import ConfigError
from nsqtools.net import tls
from nsqtools.net.http import Lookupd
from nsqtools.net.tls import client_context, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.tls import Certificate, Certificates

PATIENCE = 10.0


def tls_server(
    certificate: Certificate,
    *,
    client_ca: Path | None = None,
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Callable[[socket.socket], None]:
    """Shake hands, read a byte, answer OK."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    context.minimum_version, context.maximum_version = minimum, maximum
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)

    def serve(raw: socket.socket) -> None:
        peer = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        try:
            with contextlib.suppress(OSError):
                peer.do_handshake()
                peer.recv(1)
                peer.sendall(b"OK")
        finally:
            hang_up(socket.socket(fileno=peer.detach()))

    return serve


def plain_server(raw: socket.socket) -> None:
    raw.recv(65536)
    raw.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    hang_up(raw)


def silent_server(raw: socket.socket) -> None:
    hang_up(raw)


def resetting_server(raw: socket.socket) -> None:
    raw.recv(1)
    raw.close()  # with data unread, which resets the connection


def hang_up(raw: socket.socket) -> None:
    """Close once the client has: before, unread data could reset away what was sent."""
    with raw, contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection; the value is the port."""

    def run() -> None:
        raw, _ = listener.accept()
        raw.settimeout(PATIENCE)
        serve(raw)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def talk(
    serve: Callable[[socket.socket], None], config: ClientConfig, host: str = "localhost"
) -> str:
    """What the server answered, or the explanation of why it did not."""
    context = client_context(config)
    with (
        listening(serve) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE) as raw,
    ):
        try:
            with context.wrap_socket(raw, server_hostname=host) as connection:
                connection.sendall(b"?")
                return connection.recv(2).decode()
        except OSError as error:
            text = explain(error)
            assert "\n" not in text
            return text


@pytest.fixture
def trusting(certificates: Certificates) -> ClientConfig:
    return ClientConfig(tls_root_ca_file=str(certificates.ca))


def with_identity(config: ClientConfig, identity: Certificate) -> ClientConfig:
    return config.with_values(tls_cert=str(identity.cert), tls_key=str(identity.key))


@pytest.fixture
def encrypted_key(certificates: Certificates, tmp_path: Path) -> str:
    key = serialization.load_pem_private_key(certificates.client.key.read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return str(path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_signed_by_the_given_ca_is_trusted_in_either_version(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion
) -> None:
    serve = tls_server(certificates.server, minimum=version, maximum=version)
    assert talk(serve, trusting) == "OK"


def test_the_name_verified_is_the_one_the_caller_gives(
    certificates: Certificates, trusting: ClientConfig
) -> None:
    assert talk(tls_server(certificates.server), trusting, "127.0.0.1") == "OK"


def test_the_servers_own_certificate_may_be_what_is_trusted(certificates: Certificates) -> None:
    config = ClientConfig(tls_root_ca_file=str(certificates.server.cert))
    assert talk(tls_server(certificates.server), config) == "OK"


def test_an_unknown_ca_is_refused_with_the_option_to_name_it(certificates: Certificates) -> None:
    for config in (ClientConfig(), ClientConfig(tls_root_ca_file=str(certificates.other_ca))):
        text = talk(tls_server(certificates.server), config)
        assert "unable to get local issuer certificate" in text
        assert "--tls-root-ca-file" in text


@pytest.mark.parametrize("host", ["elsewhere.test", "127.0.0.2"])
def test_a_certificate_for_another_host_is_refused_naming_the_host(
    certificates: Certificates, trusting: ClientConfig, host: str
) -> None:
    text = talk(tls_server(certificates.server), trusting, host)
    assert f"not valid for '{host}'" in text
    assert text.endswith("connect by a name that it holds")


def test_an_expired_certificate_is_refused_as_such(
    certificates: Certificates, trusting: ClientConfig
) -> None:
    text = talk(tls_server(certificates.expired), trusting)
    assert "certificate has expired" in text
    assert "--tls-root-ca-file" not in text


def test_without_verification_any_certificate_will_do(certificates: Certificates) -> None:
    config = ClientConfig(tls_insecure_skip_verify=True)
    assert talk(tls_server(certificates.expired), config, "elsewhere.test") == "OK"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_is_shown_to_a_server_that_requires_one(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion
) -> None:
    serve = tls_server(
        certificates.server, client_ca=certificates.ca, minimum=version, maximum=version
    )
    assert talk(serve, with_identity(trusting, certificates.client)) == "OK"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_requires_a_client_certificate_leads_to_its_options(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion
) -> None:
    serve = tls_server(
        certificates.server, client_ca=certificates.ca, minimum=version, maximum=version
    )
    text = talk(serve, trusting)
    assert "client certificate" in text
    assert "--tls-cert" in text
    assert "--tls-key" in text
    if version is ssl.TLSVersion.TLSv1_3:
        assert text.startswith("the server requires a client certificate")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_of_an_unknown_ca_is_called_that(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion
) -> None:
    serve = tls_server(
        certificates.server, client_ca=certificates.ca, minimum=version, maximum=version
    )
    text = talk(serve, with_identity(trusting, certificates.other_client))
    assert text.startswith("the server does not know the CA that signed the client certificate")


def test_a_port_without_tls_is_called_that(trusting: ClientConfig) -> None:
    assert talk(plain_server, trusting).startswith("the server does not speak TLS here")


@pytest.mark.parametrize("serve", [silent_server, resetting_server])
def test_a_connection_that_ends_in_the_handshake_is_explained(
    trusting: ClientConfig, serve: Callable[[socket.socket], None]
) -> None:
    text = talk(serve, trusting)
    assert "in the TLS handshake" in text
    assert "check that it speaks TLS here" in text


def test_no_common_version_leads_to_the_option_for_it(
    certificates: Certificates, trusting: ClientConfig
) -> None:
    serve = tls_server(certificates.server, maximum=ssl.TLSVersion.TLSv1_2)
    text = talk(serve, trusting.with_values(tls_min_version="tls1.3"))
    assert text == "the server speaks no TLS version that --tls-min-version allows"


@pytest.mark.parametrize("name", ["ssl3.0", "tls1.0", "tls1.1", "tls1.2"])
def test_no_option_lowers_the_version_below_1_2(name: str) -> None:
    context = client_context(ClientConfig(tls_min_version=name))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_other_errors_keep_the_systems_words() -> None:
    assert explain(OSError(errno.EHOSTUNREACH, "x")) == os.strerror(errno.EHOSTUNREACH).lower()
    assert explain(TimeoutError()) == "TimeoutError"
    assert explain(ssl.SSLError(1, "[SSL] internal error (_ssl.c:1)")).startswith("TLS failed: ")


@pytest.mark.parametrize("option", ["tls_root_ca_file", "tls_cert", "tls_key"])
def test_a_file_that_cannot_be_read_is_named_with_its_option(
    certificates: Certificates, tmp_path: Path, option: str
) -> None:
    missing = str(tmp_path / "missing.pem")
    good = with_identity(ClientConfig(), certificates.client)
    flag = "--" + option.replace("_", "-")
    with pytest.raises(ConfigError) as raised:
        client_context(good.with_values(**{option: missing}))
    assert str(raised.value) == f"{flag} {missing}: no such file or directory"
    with pytest.raises(ConfigError) as raised:
        client_context(good.with_values(**{option: str(tmp_path)}))
    assert str(raised.value) == f"{flag} {tmp_path}: is a directory"
    with pytest.raises(ConfigError) as raised:
        client_context(good.with_values(**{option: "a\0b"}))
    assert str(raised.value).startswith(flag)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x30\x82\x01"])
@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("tls_root_ca_file", "certificate"),
        ("tls_cert", "certificate"),
        ("tls_key", "private key"),
    ],
)
def test_a_file_of_another_kind_is_named_with_its_option(
    certificates: Certificates, tmp_path: Path, option: str, kind: str, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    good = with_identity(ClientConfig(), certificates.client)
    with pytest.raises(ConfigError) as raised:
        client_context(good.with_values(**{option: str(path)}))
    flag = "--" + option.replace("_", "-")
    assert str(raised.value) == f"{flag} {path}: is not a PEM {kind}"


def test_a_damaged_certificate_is_no_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.pem"
    lines = certificates.ca.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[-1], ""]))
    with pytest.raises(ConfigError, match="is not a PEM certificate"):
        client_context(ClientConfig(tls_root_ca_file=str(path)))


def test_certificate_and_key_given_the_wrong_way_round_blame_the_certificate(
    certificates: Certificates,
) -> None:
    cert, key = str(certificates.client.cert), str(certificates.client.key)
    with pytest.raises(ConfigError) as raised:
        client_context(ClientConfig(tls_cert=key, tls_key=cert))
    assert str(raised.value) == f"--tls-cert {key}: is not a PEM certificate"


def test_a_key_of_another_certificate_is_named_with_that_certificate(
    certificates: Certificates,
) -> None:
    cert, key = str(certificates.client.cert), str(certificates.server.key)
    with pytest.raises(ConfigError) as raised:
        client_context(ClientConfig(tls_cert=cert, tls_key=key))
    expected = f"--tls-key {key}: is not the key of the certificate --tls-cert {cert}"
    assert str(raised.value) == expected


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase(
    certificates: Certificates, encrypted_key: str
) -> None:
    config = ClientConfig(tls_cert=str(certificates.client.cert), tls_key=encrypted_key)
    with pytest.raises(ConfigError) as raised:
        client_context(config)
    # OpenSSL asks on the terminal only where there is nobody else to ask, and then says nothing.
    assert str(raised.value).startswith(f"--tls-key {encrypted_key}: is encrypted")


def test_files_are_loaded_once_until_one_changes(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    load = tls._load_certificates

    def counting(*args: Any) -> None:
        loads.append(args)
        load(*args)

    monkeypatch.setattr(tls, "_load_certificates", counting)
    path = tmp_path / "ca.pem"
    path.write_bytes(certificates.ca.read_bytes())
    made = {
        client_context(kind(tls_root_ca_file=str(path), **options))
        for kind in (ClientConfig, ConsumerConfig)
        for options in ({}, {"snappy": True}, {"client_id": "x"})
    }
    assert (len(made), len(loads)) == (1, 1)
    (first,) = made
    assert client_context(ClientConfig()) is not first
    for replacement in (certificates.other_ca, certificates.ca):
        other = tmp_path / "new.pem"
        other.write_bytes(replacement.read_bytes())
        other.replace(path)
        again = client_context(ClientConfig(tls_root_ca_file=str(path)))
        assert again is not first
        first = again
    assert len(loads) == 3


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://192.0.2.1:4161", 1), ("https://192.0.2.1:4161", 0), ("http://localhost:4161", 0)],
)
async def test_a_token_that_others_can_read_is_warned_of_once(
    url: str, warned: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_in_clear", [])
    for token in ("", "s3cret", "s3cret"):
        async with Lookupd(url, connect_timeout=1, request_timeout=1, token=token):
            pass
    assert len([text for text in caplog.messages if "without TLS" in text]) == warned
