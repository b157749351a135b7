"""Sessions in any state, and the codecs of the nsqd they talk to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from nsqtools.errors import PeerError
from nsqtools.names import Address
from nsqtools.proto.codecs import Codec, Deflate, Snappy
from nsqtools.proto.session import Closed, Session, State
from tests.support import wire

ADDRESS = Address("nsqd.example", 4150)


class ServerSide:
    """nsqd's side of a connection."""

    def __init__(self, codec: Codec | None = None) -> None:
        self._codec = codec

    def encode(self, data: bytes) -> bytes:
        return self._codec.encode(data) if self._codec else data

    def decode(self, data: bytes) -> bytes:
        return b"".join(self._codec.decode(data)) if self._codec else data


SERVER_CODECS: dict[str, Callable[[], ServerSide]] = {
    "none": ServerSide,
    "snappy": lambda: ServerSide(Snappy()),
    "deflate": lambda: ServerSide(Deflate()),
}


def cut(data: bytes, offsets: Iterable[int]) -> list[bytes]:
    """The data as reads that end at these offsets, in any order, and at its end."""
    return [data[a:b] for a, b in pairwise([0, *sorted(offsets), len(data)])]


def new(
    asked: Mapping[str, object] | None = None,
    *,
    subscription: tuple[str, str] | None = ("t", "c"),
    secret: str = "",
    limit: int = 64 << 20,
) -> Session:
    """A session that ``asked`` for this with IDENTIFY."""
    return Session(
        asked or {},
        subscription=subscription,
        auth_secret=secret,
        max_msg_size=limit,
        address=ADDRESS,
    )


def sent(session: Session) -> list[str]:
    return wire.commands(session.take_output())


def drain(session: Session) -> None:
    session.take_output()
    session.take_events()
    session.take_messages()


def closed(session: Session) -> PeerError | None:
    """The error of a session that has just ended: its last event, and the only one of its kind."""
    events = session.take_events()
    assert session.state is State.CLOSED
    assert [type(event) for event in events].count(Closed) == 1
    assert isinstance(events[-1], Closed)
    assert session.take_output() == b""
    error = events[-1].error
    assert error is None or str(error).startswith("nsqd.example:4150: ")
    return error


Step = bytes | Callable[[Session], object]
"""What the server says, or what is done to the session."""
IDENTIFIED, SECURED = (wire.negotiated(tls_v1=tls) for tls in (False, True))
PATHS: dict[State, tuple[Mapping[str, Any], Sequence[Step]]] = {
    State.IDENTIFYING: ({}, ()),
    State.SECURING: ({"asked": {"tls_v1": True}}, [SECURED]),
    State.TLS_CONFIRMING: ({"asked": {"tls_v1": True}}, [SECURED, Session.tls_established]),
    State.COMPRESSING: ({"asked": {"deflate": True}}, [wire.negotiated(deflate=True)]),
    State.AUTHENTICATING: ({"secret": "s3cret"}, [wire.negotiated(auth_required=True)]),
    State.SUBSCRIBING: ({}, [IDENTIFIED]),
    State.READY: ({}, [IDENTIFIED, wire.OK]),
    State.CLOSING: ({}, [IDENTIFIED, wire.OK, Session.stop_messages]),
    State.CLOSED: ({}, [IDENTIFIED, wire.OK, Session.stop_messages, Session.receive_eof]),
}


def advance(session: Session, steps: Iterable[Step]) -> None:
    for step in steps:
        if callable(step):
            step(session)
        else:
            session.receive_data(step)


def reach(state: State) -> Session:
    """A session in this state by the shortest path, nothing waiting to be taken."""
    options, steps = PATHS[state]
    session = new(**options)
    advance(session, steps)
    drain(session)
    assert session.state is state
    return session
