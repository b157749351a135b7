"""Contexts made from options, used against real TLS; and what their refusals lead to."""

import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from nsqtools.config.connection import ClientConfig, ConsumerConfig
from nsqtools.errors import ConfigError
from nsqtools.net import tls
from nsqtools.net.http.daemons import Lookupd
from nsqtools.net.tls import client_context, expiry, explain
from tests.support.tls import Certificate, Certificates

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def talk(
    certificate: Certificate,
    config: ClientConfig,
    host: str = "localhost",
    *,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    client_ca: Path | None = None,
) -> str:
    """What a server with this certificate answered, or the explanation of why it did not."""
    context = certificate.context()
    context.maximum_version = version
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(up, down, server_side=True)
    client = client_context(config).wrap_bio(down, up, server_hostname=host)
    try:
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            with contextlib.suppress(ssl.SSLError):
                server.do_handshake()
        with contextlib.suppress(ssl.SSLError):
            server.write(b"OK")
        return client.read(2).decode()
    except ssl.SSLError as error:
        text = explain(error)
        assert text.isprintable()
        return text


@pytest.fixture
def trusting(certificates: Certificates) -> ClientConfig:
    return ClientConfig(tls_root_ca_file=str(certificates.ca))


def with_identity(config: ClientConfig, identity: Certificate) -> ClientConfig:
    return config.with_values(tls_cert=str(identity.cert), tls_key=str(identity.key))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_signed_by_the_given_ca_is_trusted_by_each_of_its_names(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion, host: str
) -> None:
    assert talk(certificates.server, trusting, host, version=version) == "OK"
    careless = ClientConfig(tls_insecure_skip_verify=True)
    assert talk(certificates.expired, careless, "elsewhere.test", version=version) == "OK"


@pytest.mark.parametrize(
    ("shown", "ca", "host", "told"),
    [
        ("server", "", "localhost", "--tls-root-ca-file"),
        ("server", "other_ca", "localhost", "--tls-root-ca-file"),
        ("server", "ca", "elsewhere.test", "elsewhere.test"),
        ("server", "ca", "127.0.0.2", "127.0.0.2"),
        ("expired", "ca", "localhost", "expired"),
    ],
)
def test_a_server_that_is_not_trusted_is_refused_with_what_to_do(
    certificates: Certificates, shown: str, ca: str, host: str, told: str
) -> None:
    config = ClientConfig(tls_root_ca_file=str(getattr(certificates, ca)) if ca else "")
    text = talk(getattr(certificates, shown), config, host)
    assert told in text
    assert ("--tls-root-ca-file" in text) == (told == "--tls-root-ca-file")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_requires_a_client_certificate_takes_a_known_one_alone(
    certificates: Certificates, trusting: ClientConfig, version: ssl.TLSVersion
) -> None:
    def offer(config: ClientConfig) -> str:
        return talk(certificates.server, config, version=version, client_ca=certificates.ca)

    assert offer(with_identity(trusting, certificates.client)) == "OK"
    for config in (trusting, with_identity(trusting, certificates.other_client)):
        text = offer(config)
        assert "client certificate" in text
        assert "--tls-cert" in text
        assert "--tls-key" in text
        assert ("does not know the CA" in text) is (config is not trusting)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:1000)"),
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:992)"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_connection_that_ends_in_the_handshake_is_explained(error: OSError) -> None:
    assert "TLS handshake" in explain(error)


def test_no_common_version_leads_to_the_option_for_it(
    certificates: Certificates, trusting: ClientConfig
) -> None:
    newer = trusting.with_values(tls_min_version="tls1.3")
    assert "--tls-min-version" in talk(certificates.server, newer, version=VERSIONS[0])


@pytest.mark.parametrize("name", ["ssl3.0", "tls1.2"])
def test_no_option_lowers_the_version_below_1_2(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_unused", set())
    with caplog.at_level("INFO"):
        context = client_context(ClientConfig(tls_min_version=name))
        client_context(ClientConfig(tls_min_version=name))
    notes = ["--tls-min-version ssl3.0: ignored, TLS 1.2 is the minimum"]
    assert caplog.messages == (notes if name == "ssl3.0" else [])
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def refusal(config: ClientConfig) -> str:
    with pytest.raises(ConfigError) as raised:
        client_context(config)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("option", ["tls_root_ca_file", "tls_cert", "tls_key"])
def test_a_file_that_cannot_be_used_is_named_with_its_option(
    certificates: Certificates, tmp_path: Path, option: str
) -> None:
    good = with_identity(ClientConfig(), certificates.client)
    flag = "--" + option.replace("_", "-")
    missing = tmp_path / "missing"
    assert refusal(good.with_values(**{option: "a\0b"})).startswith(flag)
    for path in (missing, tmp_path):
        assert refusal(good.with_values(**{option: str(path)})).startswith(f"{flag} {path}: ")
    kind = "private key" if option == "tls_key" else "certificate"
    damaged = certificates.ca.read_bytes().splitlines()
    for content in (b"", b"garbage", b"\n".join([*damaged[:3], damaged[-1], b""])):
        missing.write_bytes(content)
        text = refusal(good.with_values(**{option: str(missing)}))
        assert text.startswith(f"{flag} {missing}: ")
        assert kind in text


def test_of_a_certificate_and_a_key_the_one_at_fault_is_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    cert, key = str(certificates.client.cert), str(certificates.client.key)
    other = str(certificates.server.key)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        serialization.load_pem_private_key(
            certificates.client.key.read_bytes(), None
        ).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert refusal(ClientConfig(tls_cert=key, tls_key=cert)).startswith(f"--tls-cert {key}: ")
    text = refusal(ClientConfig(tls_cert=cert, tls_key=other))
    assert text.startswith(f"--tls-key {other}: ")
    assert f"--tls-cert {cert}" in text
    # OpenSSL asks on the terminal only where there is nobody else to ask, and then says nothing.
    text = refusal(ClientConfig(tls_cert=cert, tls_key=str(encrypted)))
    assert text.startswith(f"--tls-key {encrypted}: ")
    assert "encrypted" in text.partition(": ")[2]


def test_files_are_loaded_once_until_one_changes(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    load = tls.load_certificates

    def counting(*args: Any) -> None:
        loads.append(args)
        load(*args)

    monkeypatch.setattr(tls, "load_certificates", counting)
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


@pytest.mark.parametrize("year", [2049, 2050])  # they are written in different forms
def test_the_end_of_a_certificate_is_read_without_its_ca(year: int) -> None:
    end = datetime(year, 2, 1, 3, 4, 5, tzinfo=UTC)
    made = trustme.CA().issue_cert("localhost", not_after=end)
    certificate = ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())
    assert expiry(certificate) == end.timestamp()
    assert not any(expiry(certificate[:size]) for size in range(0, 100, 7))
    assert not any(expiry(bytes(data)) for data in ([0x30] * 50, [0xFF] * 50, [0x80] * 50))
