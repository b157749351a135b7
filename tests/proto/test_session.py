"""Session against a scripted nsqd: each path, each state and input, and hostile peers."""

from __future__ import annotations

import pytest

from nsqtools.errors import AuthError, ProtocolError, RefusedError
from nsqtools.proto import commands
from nsqtools.proto.session import Features, Ready, Reply, State, TLSRequested
from tests.support import wire
from tests.support.sessions import SERVER_CODECS, closed, drain, new, sent

# The paths of the handshake


def test_a_consumer_identifies_subscribes_and_is_ready() -> None:
    session = new({"client_id": "x"})
    assert sent(session) == ["  V2", 'IDENTIFY {"client_id": "x"}']
    assert session.take_output() == b""
    session.receive_data(wire.negotiated(max_rdy_count=100, msg_timeout=1500))
    assert sent(session) == ["SUB t c"]
    assert session.take_events() == []
    session.receive_data(wire.OK)
    features = Features(version="1.3.0", max_rdy_count=100, msg_timeout=1.5, max_msg_timeout=900.0)
    assert session.take_events() == [Ready(features)]
    assert session.features == features
    assert not features.counts_rdy_down
    assert session.state is State.READY
    assert session.take_output() == b""


def test_a_producer_is_ready_without_sub() -> None:
    session = new(subscription=None)
    drain(session)
    session.receive_data(wire.negotiated())
    assert session.take_output() == b""
    assert [type(event) for event in session.take_events()] == [Ready]
    session.send(commands.publish("t", b"one"))
    session.send(commands.publish("t", b"two"))
    assert sent(session) == ["PUB t b'one'", "PUB t b'two'"]
    session.receive_data(wire.OK + wire.OK)
    assert session.take_events() == [Reply(b"OK"), Reply(b"OK")]
    session.close()
    assert (session.take_output(), session.state) == (b"", State.READY)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ({"snappy": True, "deflate_level": 3}, wire.OK),
        ({"deflate": True}, wire.negotiated(deflate=False, version="", max_rdy_count=None)),
        ({}, wire.negotiated(snappy=True, version="", max_rdy_count=None)),
    ],
)
def test_what_was_not_both_asked_for_and_granted_is_not_used(
    asked: dict[str, object], reply: bytes
) -> None:
    session = new(asked, secret="s3cret")
    drain(session)
    session.receive_data(reply)
    assert sent(session) == ["SUB t c"]
    session.receive_data(wire.OK)
    assert [type(event) for event in session.take_events()] == [Ready]
    assert session.features.max_rdy_count == 2500
    assert session.features.counts_rdy_down


@pytest.mark.parametrize("codec", SERVER_CODECS)
@pytest.mark.parametrize(("tls", "auth"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
def test_every_combination_of_tls_compression_and_auth(
    codec: str, tls: bool, auth: bool, bytewise: bool
) -> None:
    asked = {"tls_v1": tls, "snappy": codec == "snappy", "deflate": codec == "deflate"}
    session = new(asked, secret="s3cret")
    drain(session)

    def receive(data: bytes) -> None:
        for piece in [data[n : n + 1] for n in range(len(data))] if bytewise else [data]:
            session.receive_data(piece)

    receive(wire.negotiated(**asked, auth_required=auth))
    if tls:
        assert session.state.name == "SECURING"
        assert session.take_events() == [TLSRequested()]
        assert session.take_output() == b""
        session.tls_established()
        assert session.state.name == "TLS_CONFIRMING"
        receive(wire.OK)
    server = SERVER_CODECS[codec]()
    if codec != "none":
        assert session.state is State.COMPRESSING
        assert session.take_output() == b""
        receive(server.encode(wire.OK))
    if auth:
        assert session.state is State.AUTHENTICATING
        assert wire.commands(server.decode(session.take_output())) == ["AUTH s3cret"]
        receive(server.encode(wire.response(b'{"identity":"x","permission_count":1}')))
    assert session.state is State.SUBSCRIBING
    assert wire.commands(server.decode(session.take_output())) == ["SUB t c"]
    receive(server.encode(wire.OK))
    assert [type(event) for event in session.take_events()] == [Ready]
    features = session.features
    assert (features.tls, features.auth_required) == (tls, auth)
    assert (features.snappy, features.deflate) == (codec == "snappy", codec == "deflate")
    receive(server.encode(wire.message(1, b"x" * 70_000) + wire.HEARTBEAT + wire.message(2)))
    assert [m.id for m in session.take_messages()] == [wire.message_id(1), wire.message_id(2)]
    assert wire.commands(server.decode(session.take_output())) == ["NOP"]
    assert session.take_events() == []


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_compressed_bytes_right_behind_the_identify_reply_are_decoded(codec: str) -> None:
    server = SERVER_CODECS[codec]()
    plain = wire.negotiated(**{codec: True})
    stream = plain + server.encode(wire.OK) + server.encode(wire.HEARTBEAT)
    for offset in range(len(plain) - 1, len(stream) + 1):
        session = new({codec: True}, subscription=None)
        drain(session)
        session.receive_data(stream[:offset])
        session.receive_data(stream[offset:])
        assert [type(event) for event in session.take_events()] == [Ready]
        assert server.__class__().decode(session.take_output()) == b"NOP\n"


# Refusals of the handshake

AUTH = wire.negotiated(auth_required=True)
REFUSALS = [
    ({"tls_v1": True}, "", [wire.OK], RefusedError, "does not offer TLS"),
    ({"tls_v1": True}, "", [wire.negotiated(tls_v1=None)], RefusedError, "does not offer TLS"),
    ({}, "", [AUTH, wire.error("E_BAD_BODY AUTH body size 0")], AuthError, "--auth-secret-file"),
    ({}, "", [AUTH, wire.error("E_INVALID no AUTH (TLS required)")], RefusedError, "--tls-v1"),
    ({}, "wrong", [AUTH, wire.error("E_INVALID (TLS required)")], RefusedError, "--tls-v1"),
    ({}, "wrong", [AUTH, wire.error("E_AUTH_FAILED no")], AuthError, "E_AUTH_FAILED no"),
    ({}, "wrong", [AUTH, wire.error("E_UNAUTHORIZED no")], AuthError, "E_UNAUTHORIZED no"),
    ({}, "wrong", [AUTH, wire.error("E_AUTH_ERROR")], AuthError, "E_AUTH_ERROR"),
    ({}, "", [wire.negotiated(), wire.error("E_BAD_TOPIC SUB")], RefusedError, "E_BAD_TOPIC SUB"),
]


@pytest.mark.parametrize(("asked", "secret", "replies", "kind", "culprit"), REFUSALS)
def test_a_refusal_names_the_option_or_quotes_nsqd_and_never_the_secret(
    asked: dict[str, object], secret: str, replies: list[bytes], kind: type, culprit: str
) -> None:
    session = new(asked, secret=secret)
    for reply in replies:
        session.receive_data(reply)
    error = closed(session)
    assert type(error) is kind
    assert culprit in str(error)
    assert "wrong" not in str(error)


GARBAGE = {
    "text": b"KO",
    "a list": b"[]",
    "cut JSON": b'{"version":',
    "not UTF-8": b"\xff\xfe\x00",
    "words for numbers": b'{"max_rdy_count":"many"}',
    "a list for a number": b'{"max_rdy_count":[1]}',
    "infinity": b'{"max_rdy_count":Infinity}',
    "NaN": b'{"msg_timeout":NaN}',
    "a number of 5000 digits": b'{"max_rdy_count":' + b"9" * 5000 + b"}",
    "a number no float holds": b'{"msg_timeout":1' + b"0" * 400 + b"}",
    "depth": b"[" * 200_000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_answer_to_identify_is_a_protocol_error(data: bytes) -> None:
    session = new()
    session.receive_data(wire.response(data))
    error = closed(session)
    assert type(error) is ProtocolError
    assert len(str(error)) < 300
    assert "\n" not in str(error)


@pytest.mark.parametrize("number", [None, 0, -(10**30)])
def test_numbers_nsqd_cannot_mean_are_taken_as_not_said(number: object) -> None:
    session = new()
    session.receive_data(
        wire.negotiated(max_rdy_count=number, msg_timeout=number, max_msg_timeout=number)
    )
    features = session.features
    assert features.max_rdy_count == 2500
    assert (features.msg_timeout, features.max_msg_timeout) == (60.0, 900.0)


@pytest.mark.parametrize(
    ("version", "down"),
    [
        ("0.2.24", True),
        ("0.3.0", False),
        ("1.0.0-compat", False),
        ("10.0", False),
        ("", True),
        ("x.y", True),
        ("9" * 5000 + ".0", True),
    ],
)
def test_an_nsqd_before_0_3_counts_rdy_down(version: str, down: bool) -> None:
    session = new()
    session.receive_data(wire.negotiated(version=version))
    assert session.features.counts_rdy_down is down


@pytest.mark.parametrize("extra", [wire.HEARTBEAT, wire.OK, b"\0", b"\x16"])
def test_plain_bytes_before_the_tls_handshake_are_not_taken_for_secured_ones(extra: bytes) -> None:
    reply = wire.negotiated(tls_v1=True)
    for reads in ([reply + extra], [reply, extra]):
        session = new({"tls_v1": True})
        for read in reads:
            session.receive_data(read)
        session.tls_established()
        assert type(closed(session)) is ProtocolError
