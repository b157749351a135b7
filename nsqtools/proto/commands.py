"""Encodes commands as bytes (tcp_protocol_spec, Commands).

``finish``, ``requeue`` and ``touch`` encode many commands as one byte string.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAGIC = b"  V2"
NOP = b"NOP\n"
CLS = b"CLS\n"

MAX_DELAY = 2.0**31
"""Maximum delay of REQ and DPUB in seconds; nsqd's number of nanoseconds overflows at 2**33."""

_pack_size = Struct(">I").pack


def identify(body: Mapping[str, Any]) -> bytes:
    """Encode IDENTIFY with its JSON body."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _pack_size(len(data)) + data


def auth(secret: bytes) -> bytes:
    """Encode AUTH; the secret is sent unchanged."""
    return b"AUTH\n" + _pack_size(len(secret)) + secret


def subscribe(topic: str, channel: str) -> bytes:
    """Encode SUB; the names must be valid."""
    return f"SUB {topic} {channel}\n".encode()


def ready(count: int) -> bytes:
    """Encode RDY."""
    return b"RDY %d\n" % count


def finish(ids: Iterable[bytes]) -> bytes:
    """Encode one FIN per id; empty without ids."""
    lines = b"\nFIN ".join(ids)
    return b"FIN " + lines + b"\n" if lines else b""


def touch(ids: Iterable[bytes]) -> bytes:
    """Encode one TOUCH per id; empty without ids."""
    lines = b"\nTOUCH ".join(ids)
    return b"TOUCH " + lines + b"\n" if lines else b""


def requeue(delays: Iterable[tuple[bytes, int]]) -> bytes:
    """Encode one REQ per pair of an id and a delay in ms."""
    return b"".join([b"REQ %b %d\n" % delay for delay in delays])


def publish(topic: str, body: bytes, *, defer_ms: int | None = None) -> bytes:
    """Encode PUB, or DPUB with a delay in ms."""
    head = f"PUB {topic}\n" if defer_ms is None else f"DPUB {topic} {defer_ms}\n"
    return head.encode() + _pack_size(len(body)) + body


def publish_many(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Encode MPUB: nsqd accepts all of the bodies or none."""
    parts = [b""] * (2 * len(bodies) + 1)
    parts[1::2] = map(_pack_size, map(len, bodies))
    parts[2::2] = bodies
    parts[0] = _pack_size(len(bodies))
    data = b"".join(parts)
    return b"MPUB %b\n%b%b" % (topic.encode(), _pack_size(len(data)), data)


def publish_many_size(count: int, total: int) -> int:
    """Return the size of an MPUB body for ``count`` bodies of ``total`` bytes."""
    return 4 + 4 * count + total
