"""Session against a scripted nsqd: each path, each state with every input, any sequence."""

# size: the states of one machine share their transcripts

import struct
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nsqtools import errors
from nsqtools.proto import commands
from nsqtools.proto.session import (
    Closed,
    CloseWait,
    CommandFailed,
    CommandReply,
    Event,
    Features,
    Ready,
    Session,
    State,
    TLSRequested,
)
from tests.support import wire
from tests.support.sessions import (
    ADDRESS,
    SERVER_CODECS,
    Step,
    advance,
    closed,
    drain,
    new,
    reach,
    sent,
)

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
    assert session.take_events() == [CommandReply(b"OK"), CommandReply(b"OK")]
    session.stop_messages()
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


@pytest.mark.parametrize(
    ("version", "down"),
    [
        *(("0.2.24", True), ("0.3.0", False), ("10.0.0-compat", False), ("x.y", True)),
        ("9" * 5000 + ".0", True),
    ],
)
def test_an_nsqd_before_0_3_counts_rdy_down(version: str, down: bool) -> None:
    session = new()
    session.receive_data(wire.negotiated(version=version))
    assert session.features.counts_rdy_down is down


# What ends a session, as the table of all states below does not show

AUTH, TLS_AGREED = wire.negotiated(auth_required=True), wire.negotiated(tls_v1=True)
TLS, WRONG, PRODUCER = {"asked": {"tls_v1": True}}, {"secret": "wrong"}, {"subscription": None}
P, R = errors.ProtocolError, errors.RefusedError
A, S = errors.AuthError, errors.ServerError
MANY = b"9" * 5000

# name: options of the session, what is said to it, its error, and what this names
ENDINGS: dict[str, tuple[Mapping[str, Any], Sequence[Step], type[errors.PeerError], str]] = {
    "no TLS": (TLS, [wire.negotiated(tls_v1=None)], R, "does not offer TLS"),
    "no TLS of an old nsqd": (TLS, [wire.OK], R, "does not offer TLS"),
    "no secret": ({}, [AUTH, wire.error("E_BAD_BODY size 0")], A, "--auth-secret-file"),
    "no secret, no TLS": ({}, [AUTH, wire.error("E_INVALID (TLS required)")], R, "--tls-v1"),
    "a secret, no TLS": (WRONG, [AUTH, wire.error("E_INVALID (TLS required)")], R, "--tls-v1"),
    **{
        code: (WRONG, [AUTH, wire.error(f"{code} no")], A, f"{code} no")
        for code in ("E_AUTH_FAILED", "E_UNAUTHORIZED", "E_AUTH_ERROR")
    },
    "SUB": ({}, [wire.negotiated(), wire.error("E_BAD_TOPIC SUB")], R, "E_BAD_TOPIC SUB"),
    "text": ({}, [wire.response(b"KO")], P, ""),
    "cut JSON": ({}, [wire.response(b'{"version":')], P, ""),
    "not UTF-8": ({}, [wire.response(b"\xff\xfe\x00")], P, ""),
    "words for numbers": ({}, [wire.response(b'{"max_rdy_count":"many"}')], P, ""),
    "a list for a number": ({}, [wire.response(b'{"max_rdy_count":[1]}')], P, ""),
    "NaN": ({}, [wire.response(b'{"msg_timeout":NaN}')], P, ""),
    "5000 digits": ({}, [wire.response(b'{"max_rdy_count":' + MANY + b"}")], P, ""),
    "no float": ({}, [wire.response(b'{"msg_timeout":' + MANY[:400] + b"}")], P, ""),
    "depth": ({}, [wire.response(b"[" * 200_000)], P, ""),
    # Plain bytes before the TLS handshake are not taken for secured ones.
    **{
        f"plain {extra!r}": (TLS, [TLS_AGREED, extra, Session.tls_established], P, "")
        for extra in (wire.HEARTBEAT, wire.OK, b"\0", b"\x16")
    },
    "in one read": (TLS, [TLS_AGREED + b"\0", Session.tls_established], P, ""),
    # Nothing but OK is the answer to a publish.
    **{
        f"reply {reply!r}": (PRODUCER, [wire.negotiated(), wire.response(reply)], P, "")
        for reply in (b"CLOSE_WAIT", b"", b"ok", b"OK\n")
    },
    # Only three errors are not fatal, and what is in them is escaped and cut.
    **{
        repr(text[:30]): (PRODUCER, [wire.negotiated(), wire.frame(wire.ERROR, text)], S, code)
        for text, code in (
            (b"E_FIN_FAILEDX", "E_FIN_FAILEDX"),
            (b"E_INVALID E_FIN_FAILED", "E_INVALID"),
            (b"E_INVALID \xff\xfe", "E_INVALID"),
            (b"  \n", "E_UNKNOWN"),
            (b"E_INVALID \x1b[2J\r\n\xe2\x80\xae" + b"x" * 100_000, "E_INVALID"),
        )
    },
}


@pytest.mark.parametrize(("options", "steps", "kind", "culprit"), ENDINGS.values(), ids=ENDINGS)
def test_an_error_is_a_short_line_that_names_the_culprit_and_never_the_secret(
    options: Mapping[str, Any], steps: Sequence[Step], kind: type[errors.PeerError], culprit: str
) -> None:
    session = new(**options)
    advance(session, steps)
    error = closed(session)
    assert type(error) is kind
    assert str(error).isprintable()
    assert len(str(error)) < 300
    assert "wrong" not in str(error)
    if isinstance(error, errors.ServerError):
        assert (error.code, error.fatal) == (culprit, True)
    else:
        assert culprit in str(error)


# Each state with every input.

I, SEC, T, Z, AU, SUB, RUN, CLS, END = State  # noqa: E741 - as short as a table needs

INPUTS = {
    "OK": wire.OK,
    "JSON": wire.negotiated(),
    "CLOSE_WAIT": wire.CLOSE_WAIT,
    "heartbeat": wire.HEARTBEAT,
    "E_FIN_FAILED": wire.error("E_FIN_FAILED FIN 0123456789abcdef failed not in flight"),
    "E_INVALID": wire.error("E_INVALID cannot RDY in current state"),
    "E_UNAUTHORIZED": wire.error("E_UNAUTHORIZED AUTH failed"),
    "message": wire.message(1),
    "bad size": struct.pack(">I", 2**32 - 1),
    "bad type": struct.pack(">II", 30, 7),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n",
    "EOF": None,
}
"""What may come, in the order of the columns below. None is the end of the stream."""

C, L = errors.UnreachableError, errors.ConnectionLostError

# The next state, or the type of the error that the session ends with; END is without an error.
# fmt: off
TABLE: dict[State, list[State | type[errors.PeerError]]] = {
    #     OK   JSON CW   hb   FIN  INV  UNA  msg  size type HTTP EOF
    I:   [SUB, SUB, P,   I,   I,   R,   A,   P,   P,   P,   P,   C],
    SEC: [P,   P,   P,   P,   P,   P,   P,   P,   P,   P,   P,   C],
    T:   [SUB, P,   P,   T,   T,   R,   A,   P,   P,   P,   P,   C],
    Z:   [SUB, P,   P,   Z,   Z,   R,   A,   P,   P,   P,   P,   C],
    AU:  [SUB, SUB, SUB, AU,  AU,  R,   A,   P,   P,   P,   P,   C],
    SUB: [RUN, P,   P,   SUB, SUB, R,   A,   P,   P,   P,   P,   C],
    RUN: [RUN, RUN, RUN, RUN, RUN, S,   A,   RUN, P,   P,   P,   L],
    CLS: [P,   P,   CLS, CLS, CLS, S,   A,   CLS, P,   P,   P,   END],
    END: [END, END, END, END, END, END, END, END, END, END, END, END],
}
# fmt: on


EVENTS: dict[State, list[type[Event]]] = {RUN: [CommandReply], SUB: [Ready], CLS: [CloseWait]}
"""What comes of a response."""


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("name", INPUTS)
def test_every_input_in_every_state_has_the_outcome_of_the_table(state: State, name: str) -> None:
    data, outcome = INPUTS[name], TABLE[state][list(INPUTS).index(name)]
    session = reach(state)
    server = SERVER_CODECS["deflate" if state is State.COMPRESSING else "none"]()
    if data is None:
        session.receive_eof()
    else:
        session.receive_data(server.encode(data))
    if state is State.CLOSED:
        assert (session.take_events(), session.take_output()) == ([], b"")
        assert session.state is State.CLOSED
    elif isinstance(outcome, State) and outcome is not State.CLOSED:
        assert session.state is outcome
        output = server.decode(session.take_output())
        assert (output == commands.NOP) is (name == "heartbeat")
        quiet: list[type[Event]] = [CommandFailed] * (name == "E_FIN_FAILED")
        is_response = name in ("OK", "JSON", "CLOSE_WAIT")
        events = EVENTS.get(state, []) if is_response else quiet
        assert [type(event) for event in session.take_events()] == events
        assert len(session.take_messages()) == (name == "message")
    else:
        error = closed(session)
        assert (error and type(error)) == (None if outcome is State.CLOSED else outcome)


@pytest.mark.parametrize("state", [State.READY, State.CLOSING])
@pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
def test_three_errors_are_not_fatal_whatever_follows_the_code(state: State, code: str) -> None:
    session = reach(state)
    for tail in ("", " ", " FIN 1 failed ID not in flight", "\tx", "\nE_INVALID"):
        session.receive_data(wire.error(code + tail) + wire.message(1))
        (event,) = session.take_events()
        assert isinstance(event, CommandFailed)
        assert (event.error.code, event.error.text) == (code, " ".join([code, *tail.split()]))
        assert event.error.address == ADDRESS
        assert len(session.take_messages()) == 1
        assert session.state is state


# The end


BEHIND = wire.HEARTBEAT + wire.error("E_FIN_FAILED x") + wire.OK + wire.CLOSE_WAIT


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (b"\xff\xff\xff\xff", P),
        (b"HTTP", P),
        (wire.error("E_INVALID x") + BEHIND + wire.error("E_AUTH_FAILED y") + b"HTTP", S),
    ],
)
def test_what_stood_before_the_failure_in_the_same_read_is_delivered_and_nothing_behind_it(
    ending: bytes, kind: type[errors.PeerError]
) -> None:
    session = reach(State.READY)
    failed = wire.error("E_REQ_FAILED x")
    session.receive_data(wire.message(1) + failed + wire.OK + wire.message(2) + ending)
    assert session.take_output() == b""
    assert [m.id for m in session.take_messages()] == [wire.message_id(1), wire.message_id(2)]
    events = session.take_events()
    assert [type(event) for event in events] == [CommandFailed, CommandReply, Closed]
    assert isinstance(events[-1], Closed)
    assert type(events[-1].error) is kind


def test_cls_is_sent_once_and_what_was_granted_is_still_delivered() -> None:
    session = reach(State.READY)
    session.send(commands.ready(5))
    session.stop_messages()
    session.stop_messages()
    assert sent(session) == ["RDY 5", "CLS"]
    session.receive_data(wire.message(1) + wire.CLOSE_WAIT + wire.HEARTBEAT)
    assert session.take_events() == [CloseWait()]
    assert len(session.take_messages()) == 1
    session.send(commands.finish([wire.message_id(1)]))
    assert sent(session) == ["NOP", f"FIN {wire.message_id(1).decode()}"]
    session.receive_eof()
    assert session.take_events() == [Closed(None)]
    early = new()
    early.stop_messages()
    assert sent(early) == ["  V2", "IDENTIFY {}"]


def test_a_frame_over_the_limit_ends_the_session_before_its_bomb_takes_memory() -> None:
    session = new({"deflate": True}, limit=1000)
    drain(session)
    server = SERVER_CODECS["deflate"]()
    bomb = server.encode(
        2 * wire.OK + struct.pack(">II", 31 + 1000, wire.MESSAGE) + bytes(64 << 20)
    )
    tracemalloc.start()
    try:
        session.receive_data(wire.negotiated(deflate=True) + bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert type(closed(session)) is errors.MessageSizeError
