"""nsqd's side of nsqlookupd's protocol V1 (``nsqd/lookup.go``, ``nsqd/lookup_peer.go``)."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nsqtools.errors import NSQError
from nsqtools.names import Address
from nsqtools.net.http.daemons import Lookupd
from nsqtools.sandbox.http_api import to_json
from nsqtools.sandbox.lookupd.lookupd_tcp import MAGIC, SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Identity = Callable[[], Mapping[str, Any]]
    Names = Callable[[], Iterable[tuple[str, str]]]

log = logging.getLogger(__name__)

PING_INTERVAL = 15.0
TIMEOUT = 1.0
"""Timeout in seconds for connecting and for each response."""

RETRY_DELAYS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, PING_INTERVAL)
QUERY_TIMEOUT = 5.0
_MAX_REPLY = 1 << 20
_FAILURES = (OSError, EOFError, ValueError)


class LookupPeer:
    """Keeps one nsqlookupd informed of this nsqd's topics and channels, over one connection.

    ``identity`` returns the body of IDENTIFY, ``names`` all (topic, channel) pairs, with an empty
    channel for a topic without one. ``http`` is the nsqlookupd's HTTP API, once known.
    """

    def __init__(self, address: Address, identity: Identity, names: Names) -> None:
        self.address = address
        self.http: Address | None = None
        self._identity = identity
        self._names = names
        # None while not connected; everything is registered then
        self._commands: list[bytes] | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._failures = 0  # since the last success
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and reconnect after failures."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Close the connection, which withdraws all registrations."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def tell(self, verb: str, topic: str, channel: str) -> None:
        """Send REGISTER or UNREGISTER for a topic or, if named, a channel."""
        if self._commands is not None:
            self._commands.append(f"{verb} {topic} {channel}".rstrip().encode() + b"\n")
            self._settled.clear()
            self._changed.set()

    async def settled(self) -> None:
        """Return when nsqlookupd has answered all commands."""
        await self._settled.wait()

    async def channels(self, topic: str) -> list[str]:
        """Return the known channels of a topic; if nsqlookupd does not answer, log that and return
        none.
        """
        if not self.http:
            return []
        try:
            async with Lookupd(
                str(self.http), connect_timeout=QUERY_TIMEOUT, request_timeout=QUERY_TIMEOUT
            ) as client:
                return await client.channels(topic)
        except NSQError as error:
            log.warning("topic %s: cannot look up its channels: %s", topic, error)
            return []

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TIMEOUT):
                    reader, writer = await asyncio.open_connection(*self.address)
                try:
                    await self._introduce(reader, writer)
                    await self._keep_told(reader, writer)
                finally:
                    writer.transport.abort()
            except _FAILURES as error:
                self.http = self._commands = None
                self._settled.clear()
                self._failures += 1
                level = logging.WARNING if self._failures == 1 else logging.DEBUG
                log.log(level, "%s: nsqlookupd: %s", self.address, _text(error))
            await asyncio.sleep(RETRY_DELAYS[min(self._failures, len(RETRY_DELAYS)) - 1])

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = to_json(dict(sorted(self._identity().items())))
        (reply,) = await _ask(reader, writer, [MAGIC + b"IDENTIFY\n" + SIZE.pack(len(body)) + body])
        try:
            facts = json.loads(reply)
            self.http = Address(str(facts["broadcast_address"]), int(facts["http_port"]))
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"unexpected response to IDENTIFY: {reply[:100]!r}") from None
        self._commands = []
        for topic, channel in self._names():
            self.tell("REGISTER", topic, channel)

    async def _keep_told(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send pending commands, or PING; raises OSError or EOFError when the connection ends."""
        while True:
            while self._commands:
                commands, self._commands = self._commands, []
                await _ask(reader, writer, commands)
            self._changed.clear()
            self._settled.set()
            self._failures = 0
            try:
                async with asyncio.timeout(PING_INTERVAL):
                    await self._changed.wait()
            except TimeoutError:
                await _ask(reader, writer, [b"PING\n"])


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commands: Sequence[bytes]
) -> list[bytes]:
    """Send commands in one write; return the responses. Raises ValueError for E_* responses."""
    writer.write(b"".join(commands))
    replies = []
    for _ in commands:
        async with asyncio.timeout(TIMEOUT):
            (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
            if not 0 <= size <= _MAX_REPLY:
                raise ValueError(f"response of {size} bytes, which is too large")
            replies.append(await reader.readexactly(size))
        if replies[-1].startswith(b"E_"):
            raise ValueError(replies[-1].decode("utf-8", "replace"))
    return replies


def _text(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "nsqlookupd closed the connection"
    return str(error) or "no response in time"
