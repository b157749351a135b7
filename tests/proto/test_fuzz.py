"""Random and mutated server dialogues, fed in random reads to a session.

Whatever arrives, only documented errors come of it, each in one line that names the peer.
What is held never outgrows what arrived (times deflate's best ratio where it is compressed).
"""

import random
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from nsqtools.proto.session import (
    Closed,
    CommandFailed,
    CommandReply,
    Event,
    State,
    TLSRequested,
)
from tests.support import wire
from tests.support.sessions import SERVER_CODECS, cut, new

if TYPE_CHECKING:
    from nsqtools.proto.messages import Message

LIMIT = 1 << 16
DEFLATE_RATIO = 1032
"""The most plain bytes that one compressed byte stands for (zlib, Technical Details)."""


class Target(NamedTuple):
    """What nsqd says in a valid dialogue, reply by reply, and options of the session."""

    dialogue: Sequence[bytes]
    options: Mapping[str, Any] = {}
    is_compressed: bool = False
    closes: bool = False
    """Whether CLS is sent when it is ready."""

    @property
    def same_for_all_cuts(self) -> bool:
        """TLS and CLS happen between two reads; a codec may find damage before what preceded it."""
        return not (self.is_compressed or self.closes or self == TLS)


STREAM = (
    wire.message(1, b"body"),
    wire.HEARTBEAT,
    wire.message(2, b""),
    wire.error("E_FIN_FAILED FIN 1"),
    wire.message(3, b"\0" * 40, timestamp=2**63 - 1, attempts=65535),
    wire.CLOSE_WAIT,
)
SMALL = wire.response(b'{"max_rdy_count":5,"version":"1.3.0"}')
AUTH = wire.response(b'{"auth_required":true}')
TLS = Target(
    [wire.response(b'{"tls_v1":true}'), wire.OK, wire.OK, *STREAM], {"asked": {"tls_v1": True}}
)
TARGETS = (
    Target([wire.HEARTBEAT, SMALL, wire.OK, *STREAM]),
    Target([wire.OK, wire.OK, *STREAM, wire.error("E_BAD_TOPIC E_BAD_TOPIC")]),
    Target([SMALL, wire.OK, wire.OK, wire.error("E_BAD_MESSAGE")], {"subscription": None}),
    Target([AUTH, wire.response(b"{}"), wire.OK, *STREAM]),
    Target([SMALL, wire.OK, *STREAM], closes=True),
    TLS,
    *(
        Target(
            [
                wire.response(b'{"%b":true}' % codec.encode()),
                *map(SERVER_CODECS[codec]().encode, (wire.OK, wire.OK, *STREAM)),
            ],
            {"asked": {codec: True}},
            is_compressed=True,
        )
        for codec in ("deflate", "snappy")
    ),
)
WEIGHTS = (8, 2, 2, 2, 2, 2, 1, 1)
REFUSALS = (wire.error("E_UNAUTHORIZED x"), wire.error("E_INVALID x"), b"HTTP/1.1 400")
POOL = (*(part for target in TARGETS for part in target.dialogue), *REFUSALS)
NUMBERS = (0, 1, 2, 3, 4, 5, 29, 30, 31, LIMIT, LIMIT + 1, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1)
TELLING = (*(struct.pack(">I", n) for n in NUMBERS), b"HTTP", b"\xff\x06\0\0", b"_hea", b"E_FI")


def make_input(rng: random.Random) -> tuple[Target, list[bytes]]:
    """A target and the reads it is to get: replies are exchanged, and then bytes."""
    (target,) = rng.choices(TARGETS, WEIGHTS)
    parts = list(target.dialogue)
    for _ in range(rng.choice((0, 0, 1, 2))):
        splice(parts, rng.sample(POOL, rng.randrange(2)), rng)
    data = bytearray().join(parts)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        splice(data, rng.choice((rng.choice(TELLING), rng.randbytes(rng.randrange(12)))), rng)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data) + 1) :]
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.randrange(4))]
    return target, cut(bytes(data), range(1, len(data)) if rng.random() < 0.02 else cuts)


def splice(items: Any, new: Any, rng: random.Random) -> None:
    """Insert some, delete some or replace some by as many."""
    start = rng.randrange(len(items) + 1)
    items[start : start + rng.choice((0, 1, 4, len(new)))] = new


def run(target: Target, reads: list[bytes]) -> set[str]:
    """Feed the reads; what came of it by name. AssertionError if it breaks the contract above."""
    messages, events = converse(target, reads)
    if target.same_for_all_cuts and len(reads) > 1:
        more, same = converse(target, [b"".join(reads)])
        assert same == events, "another cut gives other events"
        assert more[: len(messages)] == messages, "another cut gives other messages"
    return {event.partition(":")[0] for event in events} | ({"Message"} if messages else set())


def converse(target: Target, reads: list[bytes]) -> tuple[list[tuple[bytes, bytes]], list[str]]:
    session = new(**target.options, secret="s3cret", limit=LIMIT)
    messages: list[Message] = []
    events: list[Event] = []
    session.take_output()
    for read in reads:
        session.receive_data(read)
        if found := session.take_events():
            events += found
            if TLSRequested() in found:
                session.tls_established()
            if target.closes:
                session.stop_messages()
        messages += session.take_messages()
        session.take_output()
    held = sum(len(m.body) for m in messages)
    held += sum(len(event.data) for event in events if isinstance(event, CommandReply))
    held += len(session._parser.take_rest())
    ratio = DEFLATE_RATIO if target.is_compressed else 1
    assert held <= ratio * sum(map(len, reads)), "more is held than arrived"
    session.receive_eof()
    events += session.take_events()
    assert session.state is State.CLOSED, "open after the end"
    endings = [place for place, event in enumerate(events, 1) if isinstance(event, Closed)]
    assert endings == [len(events)], "closed twice, or something follows"
    session.receive_data(wire.OK)
    assert not session.take_events(), "an event after the end"
    assert not session.take_output(), "output after the end"
    return [(m.id, m.body) for m in messages], list(map(describe_event, events))


def describe_event(event: Event) -> str:
    match event:
        case Closed(None):
            return "closed as it should be"
        case Closed(error) | CommandFailed(error):
            assert str(error).startswith("nsqd.example:4150: "), "the error does not name the peer"
            return f"{type(error).__name__}: {error}"
        case CommandReply(data):
            return f"Reply: {data!r}"
    return type(event).__name__


REACHED = {
    *("closed as it should be", "CloseWait", "Message", "Ready", "Reply"),
    *("TLSRequested", "AuthError", "UnreachableError", "ConnectionLostError"),
    *("MessageSizeError", "ProtocolError", "RefusedError", "ServerError"),
}


def test_only_documented_errors_come_of_hostile_dialogues(
    full: bool, pytestconfig: pytest.Config
) -> None:
    rng = random.Random(pytestconfig.option.seed)
    seen: set[str] = set()
    for _ in range(80_000 if full else 20_000):
        target, reads = make_input(rng)
        try:
            seen |= run(target, reads)
        except Exception as error:
            raise AssertionError(f"{target} was fed {reads}") from error
    assert seen == REACHED
