"""Magic, IDENTIFY, and the frames of TLS and compression."""

from __future__ import annotations

import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.conftest import Connect
    from tests.support.raw import Raw
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates

AGREED = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


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


def test_identify_without_negotiation_is_answered_ok(client: Raw) -> None:
    assert client.ask("IDENTIFY", b"{}") == b"OK"


def test_identify_with_negotiation_is_answered_with_all_settings_in_order(client: Raw) -> None:
    agreed = client.identify()
    assert list(agreed.items()) == list(AGREED.items())


def test_the_settings_are_compact_json(client: Raw) -> None:
    reply = client.ask("IDENTIFY", b'{"feature_negotiation":true}')
    assert reply == json.dumps(AGREED, separators=(",", ":")).encode()


@pytest.mark.parametrize("body", [b"nonsense", b"[]", b'"text"', b'{"client_id": 1}', b"{"])
def test_a_body_of_identify_that_is_not_its_json_is_refused(body: bytes, client: Raw) -> None:
    text = "E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert client.fatal("IDENTIFY", body) == text


@pytest.mark.parametrize("value", ['"1000"', "1.5", "true", "[]", "{}"])
def test_a_setting_of_the_wrong_type_is_refused(value: str, client: Raw) -> None:
    body = f'{{"heartbeat_interval": {value}}}'.encode()
    text = "E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert client.fatal("IDENTIFY", body) == text


def test_null_and_unknown_settings_are_ignored(client: Raw) -> None:
    assert client.identify(heartbeat_interval=None, unheard_of=[1]) == AGREED


def test_the_names_of_settings_may_be_in_any_case(client: Raw) -> None:
    reply = json.loads(client.ask("IDENTIFY", b'{"Feature_Negotiation":true,"MSG_TIMEOUT":2000}'))
    assert reply["msg_timeout"] == 2000


def test_an_empty_body_of_identify_is_refused(client: Raw) -> None:
    assert client.fatal("IDENTIFY", b"") == "E_BAD_BODY IDENTIFY invalid body size 0"


def test_a_negative_body_size_of_identify_is_refused(client: Raw) -> None:
    client.write(b"IDENTIFY\n\xff\xff\xff\xff")
    assert client.failure() == "E_BAD_BODY IDENTIFY invalid body size -1"
    assert client.ended()


def test_a_body_of_identify_over_the_limit_is_refused_before_it_arrives(client: Raw) -> None:
    client.write(b"IDENTIFY\n\x00\x50\x00\x01")
    assert client.failure() == "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"
    assert client.ended()


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
        ("heartbeat_interval", 60001, "heartbeat interval (60001) is invalid"),
        ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
        ("output_buffer_size", 63, "output buffer size (63) is invalid"),
        ("output_buffer_size", 65537, "output buffer size (65537) is invalid"),
        ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
        ("output_buffer_timeout", 30001, "output buffer timeout (30001) is invalid"),
        ("sample_rate", 100, "sample rate (100) is invalid"),
        ("sample_rate", -1, "sample rate (-1) is invalid"),
        ("msg_timeout", 999, "msg timeout (999) is invalid"),
        ("msg_timeout", 900001, "msg timeout (900001) is invalid"),
    ],
)
def test_a_setting_out_of_range_is_refused(
    setting: str, value: int, text: str, client: Raw
) -> None:
    body = json.dumps({setting: value}).encode()
    assert client.fatal("IDENTIFY", body) == f"E_BAD_BODY IDENTIFY {text}"


@pytest.mark.parametrize(
    ("setting", "value", "agreed"),
    [
        ("heartbeat_interval", 1000, {}),
        ("heartbeat_interval", -1, {}),
        ("output_buffer_size", 64, {"output_buffer_size": 64}),
        ("output_buffer_size", 65536, {"output_buffer_size": 65536}),
        ("output_buffer_size", -1, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ("output_buffer_timeout", 25, {"output_buffer_timeout": 25}),
        ("output_buffer_timeout", 30000, {"output_buffer_timeout": 30000}),
        ("output_buffer_timeout", -1, {"output_buffer_timeout": 0}),
        ("sample_rate", 99, {"sample_rate": 99}),
        ("msg_timeout", 1000, {"msg_timeout": 1000}),
        ("msg_timeout", 900000, {"msg_timeout": 900000}),
        ("msg_timeout", 0, {}),
        ("tls_v1", True, {}),  # a server without a certificate does not offer TLS
    ],
)
def test_a_setting_at_the_edge_of_its_range_is_taken(
    setting: str, value: int, agreed: dict[str, int], client: Raw
) -> None:
    assert client.identify(**{setting: value}) == AGREED | agreed


@pytest.mark.parametrize(("asked", "agreed"), [(0, 6), (1, 1), (6, 6), (9, 6), (-3, 6)])
def test_the_level_of_deflate_is_clamped_to_the_maximum(
    asked: int, agreed: int, client: Raw
) -> None:
    reply = client.identify(deflate=True, deflate_level=asked)
    assert reply == AGREED | {"deflate": True, "deflate_level": agreed}


def test_the_level_of_deflate_is_the_default_where_deflate_is_not_asked_for(client: Raw) -> None:
    assert client.identify(deflate_level=1) == AGREED


def test_limits_given_to_the_server_are_told_to_clients(
    make_nsqd: MakeNsqd, connect: Connect
) -> None:
    nsqd = make_nsqd(
        *("-max-rdy-count=7", "-msg-timeout=2s", "-max-msg-timeout=5s", "-max-deflate-level=3"),
        *("-snappy=false",),
    )
    assert connect(nsqd).identify(snappy=True) == AGREED | {
        "max_rdy_count": 7,
        "msg_timeout": 2000,
        "max_msg_timeout": 5000,
        "max_deflate_level": 3,
        "deflate_level": 3,
    }


def test_both_compressions_at_once_are_refused(client: Raw) -> None:
    body = b'{"feature_negotiation": true, "snappy": true, "deflate": true}'
    text = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert client.fatal("IDENTIFY", body) == text


def test_identify_may_be_repeated_before_sub(client: Raw) -> None:
    assert client.identify(msg_timeout=2000)["msg_timeout"] == 2000
    assert client.identify(msg_timeout=3000)["msg_timeout"] == 3000


def test_identify_after_sub_is_refused(client: Raw, topic: str) -> None:
    client.subscribe(topic)
    assert client.fatal("IDENTIFY", b"{}") == "E_INVALID cannot IDENTIFY in current state"


def test_a_client_is_shown_as_it_identified_itself(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.identify(client_id="an id", hostname="a.host", user_agent="agent/1", sample_rate=20)
    client.subscribe(topic)
    shown = stats_of(client, nsqd, topic)
    names = ("client_id", "hostname", "user_agent", "sample_rate")
    assert [shown[name] for name in names] == ["an id", "a.host", "agent/1", 20]


def test_a_client_that_did_not_identify_itself_is_shown_by_its_host(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.subscribe(topic)
    shown = stats_of(client, nsqd, topic)
    assert (shown["client_id"], shown["hostname"], shown["user_agent"]) == (
        "127.0.0.1",
        "127.0.0.1",
        "",
    )


def test_an_identify_without_names_leaves_them_empty(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.identify(short_id="deprecated", long_id="deprecated")
    shown = stats_of(client.subscribe(topic), nsqd, topic)
    assert (shown["client_id"], shown["hostname"]) == ("", "")


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


def test_after_snappy_is_agreed_an_ok_comes_through_it_and_then_all_else(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    assert client.identify(snappy=True) == AGREED | {"snappy": True}
    client.start_snappy()
    assert client.response() == b"OK"
    shown = exchange(client, nsqd, topic)
    assert (shown["snappy"], shown["deflate"], shown["tls"]) == (True, False, False)


@pytest.mark.parametrize("level", [1, 6])
def test_after_deflate_is_agreed_an_ok_comes_through_it_and_then_all_else(
    level: int, client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.identify(deflate=True, deflate_level=level)
    client.start_deflate()
    assert client.response() == b"OK"
    shown = exchange(client, nsqd, topic)
    assert (shown["snappy"], shown["deflate"], shown["tls"]) == (False, True, False)


@pytest.fixture(scope="module")
def secure(
    nsqd_class: type[Nsqd], certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    args = [*certificates.server.nsqd_args(), "-tls-required=true"]
    with nsqd_class(tmp_path_factory.mktemp("secure"), *args) as running:
        yield running


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
def test_tls_begins_after_the_reply_to_identify_and_an_ok_comes_through_it(
    compression: str,
    connect: Connect,
    certificates: Certificates,
    topic: str,
    make_nsqd: MakeNsqd,
) -> None:
    nsqd = make_nsqd(*certificates.server.nsqd_args())
    client = connect(nsqd)
    options = {compression: True} if compression else {}
    assert client.identify(tls_v1=True, **options) == AGREED | {"tls_v1": True} | options
    client.start_tls(ssl.create_default_context(cafile=str(certificates.ca)))
    assert client.response() == b"OK"
    if compression:
        client.start_snappy() if compression == "snappy" else client.start_deflate()
        assert client.response() == b"OK"
    shown = exchange(client, nsqd, topic)
    assert shown["tls"] is True
    assert shown[compression or "tls"] is True
    assert shown["tls_version"] == "TLS1.3"
    assert (shown["tls_negotiated_protocol"], shown["tls_negotiated_protocol_is_mutual"]) == (
        "",
        True,
    )


@pytest.mark.parametrize(
    "command", ["NOP", "SUB t c", "PUB t", "RDY 1", "FIN x", "CLS", "AUTH", "nonsense", ""]
)
def test_where_tls_is_required_every_command_but_identify_is_refused_without(
    command: str, secure: Nsqd, connect: Connect
) -> None:
    text = connect(secure).fatal(command)
    name = command.partition(" ")[0]
    assert text == f"E_INVALID cannot {name} in current state (TLS required)"


def test_where_tls_is_required_it_opens_all_commands(
    secure: Nsqd, connect: Connect, certificates: Certificates, topic: str
) -> None:
    client = connect(secure)
    client.identify(tls_v1=True)
    client.start_tls(ssl.create_default_context(cafile=str(certificates.ca)))
    assert client.response() == b"OK"
    assert client.ask(f"PUB {topic}", b"x") == b"OK"


def test_a_policy_for_client_certificates_requires_tls(
    make_nsqd: MakeNsqd, connect: Connect, certificates: Certificates
) -> None:
    nsqd = make_nsqd(
        *certificates.server.nsqd_args(),
        "-tls-client-auth-policy=require-verify",
        "-tls-required=tcp-https",
        f"-tls-root-ca-file={certificates.ca}",
    )
    assert connect(nsqd).fatal("NOP") == "E_INVALID cannot NOP in current state (TLS required)"
    assert nsqd.request("GET", "/ping") == b"OK"


def test_a_client_that_ends_tls_is_hung_up_on_at_once(
    secure: Nsqd, connect: Connect, certificates: Certificates
) -> None:
    client = connect(secure)
    client.identify(tls_v1=True)
    client.start_tls(ssl.create_default_context(cafile=str(certificates.ca)))
    assert client.response() == b"OK"
    assert isinstance(client.socket, ssl.SSLSocket)
    with pytest.raises(ssl.SSLEOFError):
        client.socket.unwrap()  # waits for the other side's end


def test_garbage_instead_of_a_tls_handshake_closes_the_connection(
    secure: Nsqd, connect: Connect
) -> None:
    client = connect(secure)
    client.identify(tls_v1=True)
    client.write(b"this is no handshake" * 10)
    with contextlib.suppress(ConnectionError):
        while chunk := client.socket.recv(65536):
            assert wire.OK not in chunk
