"""Session against a scripted nsqd: each path, each state and input, and hostile peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import (
    AuthError,
    ConnectError,
    HTTPPortError,
    ProtocolError,
    RefusedError,
)
from nsqtools.proto import commands
from nsqtools.proto.session import (
    Features,
    Ready,
    Reply,
    State,
    TLSRequested,
)
from tests.support import wire
from tests.support.sessions import SERVER_CODECS, closed, drain, new, ready, sent

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def test_a_producer_has_nothing_to_send_when_it_closes() -> None:
    session = ready(subscription=None)
    session.close()
    assert (session.take_output(), session.state) == (b"", State.READY)


def test_an_old_nsqd_that_says_only_ok_has_negotiated_nothing() -> None:
    session = new({"snappy": True, "deflate_level": 3}, secret="s3cret")
    drain(session)
    session.receive_data(wire.OK)
    assert sent(session) == ["SUB t c"]
    session.receive_data(wire.OK)
    assert session.take_events() == [Ready(Features())]
    assert session.features.max_rdy_count == 2500
    assert session.features.counts_rdy_down


@pytest.mark.parametrize("codec", SERVER_CODECS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("auth", [False, True], ids=["open", "auth"])
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


def test_compression_that_was_not_asked_for_or_not_granted_is_not_used() -> None:
    pairs: list[tuple[dict[str, bool], dict[str, bool]]] = [
        ({}, {"snappy": True}),
        ({"deflate": True}, {"deflate": False}),
    ]
    for asked, granted in pairs:
        session = new(asked)
        drain(session)
        session.receive_data(wire.negotiated(**granted))
        assert sent(session) == ["SUB t c"]


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


def test_a_whole_dialogue_in_one_read_or_in_two_or_in_bytes_is_the_same() -> None:
    stream = (
        wire.HEARTBEAT
        + wire.negotiated(auth_required=True)
        + wire.response(b"{}")
        + wire.error("E_FIN_FAILED too early")
        + wire.OK
        + wire.message(1)
        + wire.error("E_TOUCH_FAILED x")
        + wire.message(2)
        + wire.HEARTBEAT
        + wire.error("E_INVALID bye")
    )

    def outcome(reads: Iterable[bytes]) -> tuple[list[str], list[bytes]]:
        session = new(secret="s")
        for read in reads:
            session.receive_data(read)
        events = [repr(event) for event in session.take_events()]
        return events, [m.id for m in session.take_messages()]

    events, ids = outcome([stream])
    assert ids == [wire.message_id(1), wire.message_id(2)]
    assert [event.partition("(")[0] for event in events] == [
        "CommandFailed",
        "Ready",
        "CommandFailed",
        "Closed",
    ]
    assert outcome(stream[n : n + 1] for n in range(len(stream))) == (events, ids)
    for offset in range(len(stream)):
        assert outcome([stream[:offset], stream[offset:]]) == (events, ids)


# Refusals of the handshake


def test_tls_that_is_not_offered_is_refused_with_the_fix() -> None:
    for reply in (wire.OK, wire.negotiated(), wire.negotiated(tls_v1=None)):
        session = new({"tls_v1": True})
        session.receive_data(reply)
        error = closed(session)
        assert type(error) is RefusedError
        assert "does not offer TLS" in str(error)


def test_auth_that_is_required_and_not_configured_names_the_option() -> None:
    session = new()
    session.receive_data(wire.negotiated(auth_required=True))
    assert sent(session)[-1] == "AUTH "
    session.receive_data(wire.error("E_BAD_BODY AUTH invalid body size 0"))
    error = closed(session)
    assert type(error) is AuthError
    assert "--auth-secret-file" in str(error)


@pytest.mark.parametrize("secret", ["", "s3cret"])
def test_where_auth_and_tls_are_required_tls_is_what_is_asked_for(secret: str) -> None:
    session = new(secret=secret)
    session.receive_data(wire.negotiated(auth_required=True))
    session.receive_data(wire.error("E_INVALID cannot AUTH in current state (TLS required)"))
    error = closed(session)
    assert type(error) is RefusedError
    assert "--tls-v1" in str(error)
    assert "--auth-secret-file" not in str(error)


@pytest.mark.parametrize(
    "text",
    ["E_AUTH_FAILED AUTH failed", "E_UNAUTHORIZED AUTH no authorizations found", "E_AUTH_ERROR"],
)
def test_a_refused_secret_is_an_auth_error_that_quotes_nsqd(text: str) -> None:
    session = new(secret="wrong")
    session.receive_data(wire.negotiated(auth_required=True))
    session.receive_data(wire.error(text))
    error = closed(session)
    assert type(error) is AuthError
    assert text in str(error)
    assert "wrong" not in str(error)


@pytest.mark.parametrize("text", ["E_BAD_TOPIC SUB topic name", "E_SUB_FAILED", "E_INVALID x"])
def test_a_refused_sub_is_a_refusal_that_quotes_nsqd(text: str) -> None:
    session = new()
    session.receive_data(wire.negotiated())
    session.receive_data(wire.error(text))
    error = closed(session)
    assert type(error) is RefusedError
    assert text in str(error)


GARBAGE = {
    "text": b"KO",
    "nothing": b"",
    "CLOSE_WAIT": b"CLOSE_WAIT",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "a string": b'"OK"',
    "cut JSON": b'{"version":',
    "not UTF-8": b"\xff\xfe\x00",
    "words for numbers": b'{"max_rdy_count":"many"}',
    "a list for a number": b'{"max_rdy_count":[1]}',
    "an object for a number": b'{"msg_timeout":{"ms":1}}',
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


@pytest.mark.parametrize("number", [None, 0, -1, -(10**30), False])
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
        ("0.2.30-rc.1", True),
        ("0.3.0", False),
        ("0.3", False),
        ("1.0.0-compat", False),
        ("1.3.0", False),
        ("10.0", False),
        ("", True),
        ("1", True),
        ("x.y", True),
        ("9" * 5000 + ".0", True),
    ],
)
def test_an_nsqd_before_0_3_counts_rdy_down(version: str, down: bool) -> None:
    session = new()
    session.receive_data(wire.negotiated(version=version))
    assert session.features.counts_rdy_down is down


EXTRA = {
    "a heartbeat": wire.HEARTBEAT,
    "an OK": wire.OK,
    "one byte": b"\0",
    "a TLS record": b"\x16",
}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA)
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "in the next read"])
def test_plain_bytes_before_the_tls_handshake_are_not_taken_for_secured_ones(
    extra: bytes, together: bool
) -> None:
    session = new({"tls_v1": True})
    reply = wire.negotiated(tls_v1=True)
    for read in [reply + extra] if together else [reply, extra]:
        session.receive_data(read)
    session.tls_established()
    error = closed(session)
    assert type(error) is ProtocolError
    assert "before the TLS handshake" in str(error)


def test_tls_established_does_not_raise_a_closed_session_from_the_dead() -> None:
    session = new({"tls_v1": True})
    session.receive_data(wire.negotiated(tls_v1=True))
    session.receive_eof()
    assert type(closed(session)) is ConnectError
    session.tls_established()
    session.receive_data(wire.OK)
    assert session.state is State.CLOSED
    assert session.take_events() == []


def test_an_http_server_is_told_from_nsqd_by_four_bytes() -> None:
    session = new()
    session.receive_data(b"HTTP")
    assert type(closed(session)) is HTTPPortError
