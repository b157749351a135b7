"""Sessions in any state, and the codecs of the nsqd they talk to."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

from nsqtools.names import Address
from nsqtools.proto.codecs import Snappy
from nsqtools.proto.session import Closed, Session, State
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsqtools.errors import PeerError

ADDRESS = Address("nsqd.example", 4150)


class Plain:
    """nsqd's side of a connection without compression."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class ServerDeflate(Plain):
    def __init__(self) -> None:
        self._packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        self._unpacker = zlib.decompressobj(-15)

    def encode(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._unpacker.decompress(data)


class ServerSnappy(Plain):
    def __init__(self) -> None:
        self._codec = Snappy()

    def encode(self, data: bytes) -> bytes:
        return self._codec.encode(data)

    def decode(self, data: bytes) -> bytes:
        return b"".join(self._codec.decode(data))


SERVER_CODECS = {"none": Plain, "snappy": ServerSnappy, "deflate": ServerDeflate}


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


def ready(subscription: tuple[str, str] | None = ("t", "c")) -> Session:
    """A READY session, nothing waiting to be taken."""
    session = new(subscription=subscription)
    session.receive_data(wire.negotiated())
    if session.state is State.SUBSCRIBING:
        session.receive_data(wire.OK)
    assert session.state is State.READY
    drain(session)
    return session


def closing() -> Session:
    session = ready()
    session.close()
    assert session.take_output() == b"CLS\n"
    return session


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


def reach(state: State) -> Session:
    """A session in this state by the shortest path, nothing waiting to be taken."""
    match state:
        case State.IDENTIFYING:
            session = new()
        case State.SECURING | State.TLS_CONFIRMING:
            session = new({"tls_v1": True})
            session.receive_data(wire.negotiated(tls_v1=True))
            if state is State.TLS_CONFIRMING:
                session.tls_established()
        case State.COMPRESSING:
            session = new({"deflate": True})
            session.receive_data(wire.negotiated(deflate=True))
        case State.AUTHENTICATING:
            session = new(secret="s3cret")
            session.receive_data(wire.negotiated(auth_required=True))
        case State.SUBSCRIBING:
            session = new()
            session.receive_data(wire.negotiated())
        case State.READY:
            session = ready()
        case State.CLOSING:
            session = closing()
        case State.CLOSED:
            session = closing()
            session.receive_eof()
    drain(session)
    assert session.state is state
    return session
