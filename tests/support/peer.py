"""A client of the embedded nsqd in memory: the test is its socket, and time is virtual."""

from __future__ import annotations

import asyncio
import json
import struct
from random import Random
from typing import TYPE_CHECKING, Any

from nsqtools.config import NsqdOptions
from nsqtools.sandbox.client import Client
from nsqtools.sandbox.nsqd import Nsqd
from tests.support import wire
from tests.support.raw import sized
from tests.support.transport import FakeTransport

if TYPE_CHECKING:
    from nsqtools.sandbox.broker import Channel

FIN_OF_NOTHING = f"E_FIN_FAILED FIN {'z' * 16} failed ID not in flight".encode()


def make_nsqd(**options: Any) -> Nsqd:
    """An nsqd that listens nowhere."""
    return Nsqd(NsqdOptions(**options), rng=Random(1))


async def turn() -> None:
    """Let everything happen that is due now."""
    for _ in range(6):
        await asyncio.sleep(0)


class SlowTransport(FakeTransport):
    """A connection whose peer may take a part of what waits for it."""

    def drain(self, size: int) -> None:
        """The peer takes some bytes."""
        self._buffered = max(0, self._buffered - size)
        self._flow()


class Peer:
    """A connection that has sent the magic."""

    def __init__(self, nsqd: Nsqd, magic: bytes = wire.MAGIC) -> None:
        self.nsqd = nsqd
        self.client = Client(nsqd)
        extra = {"peername": ("127.0.0.1", 5555)}
        self.transport = SlowTransport(self.client.link, extra=extra)
        self.transport.connect()
        self._received = b""
        self.transport.deliver(magic)

    @property
    def closed(self) -> bool:
        return self.transport.is_closing()

    @property
    def channel(self) -> Channel:
        assert self.client.channel
        return self.client.channel

    def send(self, *lines: str, body: bytes | None = None) -> None:
        """Lines in one read; the body, if any, follows the last."""
        data = "".join(f"{line}\n" for line in lines).encode()
        self.transport.deliver(data + (b"" if body is None else sized(body)))

    def identify(self, **wishes: Any) -> None:
        self.send("IDENTIFY", body=json.dumps(wishes).encode())

    def frames(self) -> list[tuple[int, bytes]]:
        """What has come since the last call; bodies alone of messages."""
        self._received += self.transport.take()
        found = []
        while len(self._received) >= 8:
            size, kind = struct.unpack_from(">II", self._received)
            data = self._received[8 : 4 + size]
            found.append((kind, data))
            self._received = self._received[4 + size :]
        return found

    def texts(self) -> list[str]:
        """As ``frames``: texts of replies, and bodies of messages after ``msg ``."""
        return [
            f"msg {data[26:].decode()}" if kind == wire.MESSAGE else data.decode()
            for kind, data in self.frames()
        ]

    def ids(self) -> list[str]:
        """The ids of the messages that came since the last call."""
        return [data[10:26].decode() for kind, data in self.frames() if kind == wire.MESSAGE]
