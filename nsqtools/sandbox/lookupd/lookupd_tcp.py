"""nsqlookupd's TCP protocol V1 (``nsqlookupd/lookup_protocol_v1.go``).

Commands are lines; IDENTIFY also has a JSON body preceded by its size. Responses are a 4-byte size
and data, without a frame type. Every error ends the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.names import is_valid_name
from nsqtools.net.tcp import peer_address
from nsqtools.sandbox.http_api import to_json
from nsqtools.sandbox.lookupd.registrations import Registrant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.sandbox.lookupd import Nsqlookupd

log = logging.getLogger(__name__)

MAGIC = b"  V1"
SIZE = Struct(">i")
"""Precedes each response, and the body of IDENTIFY."""

_MAX_BODY = 1 << 20


class _CommandError(Exception):
    """The text is the final response on the connection."""


async def converse(
    lookupd: Nsqlookupd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Execute the commands of one nsqd until one is invalid.

    Raises OSError or EOFError when the nsqd has closed the connection.
    """
    address = peer_address(writer)
    client = _NsqdConversation(str(address), lookupd)
    try:
        if await reader.readexactly(len(MAGIC)) != MAGIC:
            raise _CommandError("E_BAD_PROTOCOL")
        while True:
            reply = await client.execute(reader)
            writer.write(SIZE.pack(len(reply)) + reply)
            await writer.drain()
    except _CommandError as refused:
        log.info("%s: %s", address, refused)
        reply = str(refused).encode("utf-8", "replace")
        writer.write(SIZE.pack(len(reply)) + reply)
    finally:
        client.close()


class _NsqdConversation:
    """The connection of one nsqd."""

    def __init__(self, name: str, lookupd: Nsqlookupd) -> None:
        self._name = name
        self._lookupd = lookupd
        self._registry = lookupd.registry
        self._peer: Registrant | None = None

    async def execute(self, reader: asyncio.StreamReader) -> bytes:
        """Read a command and return its response; raises _RefusedError, OSError or EOFError."""
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise _CommandError("E_INVALID command too long") from None
        command, *names = line.decode("utf-8", "replace").strip().split(" ")
        match command:
            case "PING":
                if self._peer:
                    self._peer.last_update = self._lookupd.now
            case "IDENTIFY":
                return await self._identify(reader)
            case "REGISTER":
                self._registry.register(self._identified(), *_names(command, names))
            case "UNREGISTER":
                self._registry.unregister(self._identified(), *_names(command, names))
            case _:
                raise _CommandError(f"E_INVALID invalid command {command}")
        return b"OK"

    def close(self) -> None:
        """Withdraw all registrations of this connection."""
        if self._peer:
            self._registry.forget(self._peer)

    def _identified(self) -> Registrant:
        if not self._peer:
            raise _CommandError("E_INVALID client must IDENTIFY")
        return self._peer

    async def _identify(self, reader: asyncio.StreamReader) -> bytes:
        if self._peer:
            raise _CommandError("E_INVALID cannot IDENTIFY again")
        (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
        if not 0 <= size <= _MAX_BODY:
            raise _CommandError("E_BAD_BODY IDENTIFY failed to read body size")
        body = await reader.readexactly(size)
        self._peer = _read_peer(body, self._name, self._lookupd.now)
        self._registry.peers[self._peer] = None
        return to_json(self._lookupd.info())


def _read_peer(body: bytes, name: str, now: int) -> Registrant:
    try:
        facts = json.loads(body)
        if not isinstance(facts, dict):
            raise ValueError(facts)
        texts = [facts.get(key) or "" for key in ("hostname", "broadcast_address", "version")]
        ports = [facts.get(key) or 0 for key in ("tcp_port", "http_port")]
        if not (all(type(text) is str for text in texts) and all(type(p) is int for p in ports)):
            raise ValueError(facts)
    except (ValueError, RecursionError):
        raise _CommandError("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    hostname, broadcast_address, version = texts
    if not (broadcast_address and version and all(ports)):
        raise _CommandError("E_BAD_BODY IDENTIFY missing fields")
    return Registrant(name, hostname, broadcast_address, ports[0], ports[1], version, now)


def _names(command: str, names: Sequence[str]) -> tuple[str, str]:
    """Return topic and channel, "" for none; further words are ignored, as nsqlookupd does."""
    if not names:
        raise _CommandError(f"E_INVALID {command} insufficient number of params")
    topic, channel = (*names, "")[:2]
    if not is_valid_name(topic):
        raise _CommandError(f"E_BAD_TOPIC {command} topic name '{topic}' is not valid")
    if channel and not is_valid_name(channel):
        raise _CommandError(f"E_BAD_CHANNEL {command} channel name '{channel}' is not valid")
    return topic, channel
