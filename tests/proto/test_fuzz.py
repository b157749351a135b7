"""Random and mutated server dialogues, fed in random reads to a session.

Whatever arrives, only documented errors come of it, each in one line that names the peer.
What is held never outgrows what arrived (times deflate's best ratio where it is compressed).
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from nsqtools.proto.session import (
    Closed,
    CommandFailed,
    CommandReply,
    Event,
    Session,
    State,
    TLSRequested,
)
from tests.support import wire
from tests.support.sessions import ADDRESS, SERVER_CODECS, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsqtools.errors import PeerError
    from nsqtools.proto.messages import Message

    Chance = Callable[[], float]

LIMIT = 1 << 16
DEFLATE_RATIO = 1032
"""The most plain bytes that one compressed byte stands for (zlib, Technical Details)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is fed, and a valid dialogue with it as nsqd's whole replies."""

    name: str
    dialogue: Sequence[bytes]
    asked: Mapping[str, object] = field(default_factory=dict)
    subscription: tuple[str, str] | None = ("t", "c")
    ratio: int = 1
    closes: bool = False
    """Whether CLS is sent when it is ready."""

    @property
    def same_for_all_cuts(self) -> bool:
        """TLS and CLS happen between two reads; a codec may find damage before what preceded it."""
        return not (self.ratio > 1 or self.closes or "tls_v1" in self.asked)


def encoded(codec: str, *parts: bytes) -> list[bytes]:
    return list(map(SERVER_CODECS[codec]().encode, parts))


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
TLS = wire.response(b'{"tls_v1":true}')
FLATE = wire.response(b'{"deflate":true}')
SNAPPY = wire.response(b'{"snappy":true}')

TARGETS = (
    Target("consumer", [wire.HEARTBEAT, SMALL, wire.OK, *STREAM]),
    Target("old", [wire.OK, wire.OK, *STREAM, wire.error("E_BAD_TOPIC E_BAD_TOPIC")]),
    Target("producer", [SMALL, wire.OK, wire.OK, wire.error("E_BAD_MESSAGE")], subscription=None),
    Target("auth", [AUTH, wire.response(b"{}"), wire.OK, *STREAM]),
    Target("closing", [SMALL, wire.OK, *STREAM], closes=True),
    Target("tls", [TLS, wire.OK, wire.OK, *STREAM], {"tls_v1": True}),
    Target(
        "deflate",
        [FLATE, *encoded("deflate", wire.OK, wire.OK, *STREAM)],
        {"deflate": True, "deflate_level": 1},
        ratio=DEFLATE_RATIO,
    ),
    Target(
        "snappy",
        [SNAPPY, *encoded("snappy", wire.OK, wire.OK, *STREAM)],
        {"snappy": True},
        ratio=DEFLATE_RATIO,
    ),
)
WEIGHTS = (8, 2, 2, 2, 2, 2, 1, 1)
REFUSALS = (wire.error("E_UNAUTHORIZED x"), wire.error("E_INVALID x"), b"HTTP/1.1 400")
POOL = (*(part for target in TARGETS for part in target.dialogue), *REFUSALS)
NUMBERS = (0, 1, 2, 3, 4, 5, 29, 30, 31, LIMIT, LIMIT + 1, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1)
TELLING = (*(struct.pack(">I", n) for n in NUMBERS), b"HTTP", b"\xff\x06\0\0", b"_hea", b"E_FI")


def make_input(rng: random.Random) -> tuple[Target, list[bytes]]:
    """A target and the reads it is to get."""
    (target,) = rng.choices(TARGETS, WEIGHTS)
    chance = rng.random
    parts = list(target.dialogue)
    if chance() < 0.5:
        rearrange(parts, chance)
    data = bytearray().join(parts)
    if chance() < 0.05:
        data = bytearray(rng.randbytes(int(chance() * 80)))
    if chance() < 0.8:
        for _ in range(1 + int(chance() * 4)):
            mutate(data, rng)
    return target, split(bytes(data), chance)


def rearrange(parts: list[bytes], chance: Chance) -> None:
    """Drop, repeat, swap or splice in whole replies."""
    place = int(chance() * len(parts))
    kind = int(chance() * 4)
    if kind == 0:
        del parts[place]
    elif kind == 1:
        parts.insert(place, parts[int(chance() * len(parts))])
    elif kind == 2:
        parts.insert(place, POOL[int(chance() * len(POOL))])
    else:
        parts[place:] = parts[: place - 1 : -1] if place else parts[::-1]


def mutate(data: bytearray, rng: random.Random) -> None:
    """Damage some bytes in place."""
    chance = rng.random
    place = int(chance() * (len(data) + 1))
    end = place + 1 + int(chance() * 12)
    kind = int(chance() * 7)
    if kind == 0 and place < len(data):
        data[place] ^= 1 << int(chance() * 8)
    elif kind == 1:
        del data[place:end]
    elif kind == 2:
        data[place:place] = data[place:end]
    elif kind == 3:
        data[place:place] = rng.randbytes(end - place)
    elif kind == 4:
        other = POOL[int(chance() * len(POOL))]
        data[place:] = other[int(chance() * len(other)) :]
    elif kind == 5:
        data[place : place + 4] = TELLING[int(chance() * len(TELLING))]
    else:
        del data[place:]


def split(data: bytes, chance: Chance) -> list[bytes]:
    if chance() < 0.02:
        return cut(data, range(1, len(data)))
    return cut(data, [int(chance() * (len(data) + 1)) for _ in range(int(chance() * 4))])


def run(target: Target, reads: list[bytes]) -> set[str]:
    """Feed the reads; what came of it by name. AssertionError if it breaks the contract above."""
    messages, events = converse(target, reads)
    if target.same_for_all_cuts and len(reads) > 1:
        more, same = converse(target, [b"".join(reads)])
        assert same == events, "another cut gives other events"
        assert more[: len(messages)] == messages, "another cut gives other messages"
    return {event.partition(":")[0] for event in events} | ({"Message"} if messages else set())


def converse(target: Target, reads: list[bytes]) -> tuple[list[tuple[bytes, bytes]], list[str]]:
    session = Session(
        target.asked,
        subscription=target.subscription,
        auth_secret="s3cret",
        max_msg_size=LIMIT,
        address=ADDRESS,
    )
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
                session.close()
        messages += session.take_messages()
        session.take_output()
    held = sum(len(m.body) for m in messages)
    held += sum(len(event.data) for event in events if isinstance(event, CommandReply))
    held += len(session._parser.take_rest())
    assert held <= target.ratio * sum(map(len, reads)), "more is held than arrived"
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
            assert error is not None
            return describe(error)
        case CommandReply(data):
            return f"Reply: {data!r}"
    return type(event).__name__


def describe(error: PeerError) -> str:
    text = str(error)
    assert text.startswith("nsqd.example:4150: "), "the error does not name the peer"
    return f"{type(error).__name__}: {text}"


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
            raise AssertionError(f"{target.name} was fed {reads}") from error
    assert seen == REACHED


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_dialogue_that_is_not_mutated_is_taken_to_its_end(target: Target) -> None:
    seen = run(target, list(target.dialogue))
    assert seen <= REACHED - {"ProtocolError", "MessageSizeError"}
    assert "Ready" in seen
