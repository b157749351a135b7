"""The embedded nsqd: its ports, its clients and its broker."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from itertools import chain
from typing import TYPE_CHECKING, Any

from nsqtools.clock import wall_ns
from nsqtools.config.connection import read_secret
from nsqtools.config.sandbox import NsqdOptions
from nsqtools.names import Address, is_ephemeral
from nsqtools.net.http.server import serve
from nsqtools.net.tcp import bound, close, name_of, naming
from nsqtools.sandbox.http_api import VERSION
from nsqtools.sandbox.nsqd.broker import Broker
from nsqtools.sandbox.nsqd.identify import (
    DEFLATE_LEVEL,
    MAX_OUTPUT_BUFFER_SIZE,
    MAX_OUTPUT_BUFFER_TIMEOUT,
)
from nsqtools.sandbox.nsqd.lookup_peer import LookupPeer
from nsqtools.sandbox.nsqd.nsqd_http import NsqdApi
from nsqtools.sandbox.nsqd.protocol import Client
from nsqtools.sandbox.nsqd.tls_layer import server_context

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nsqtools.net.tcp import StreamServer
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.client_link import ClientLink

log = logging.getLogger(__name__)

_TRIES = 20  # attempts to find two consecutive free ports
_MEM_QUEUE_SIZE = 10_000  # nsqd's default; the sandbox keeps everything in memory
_SCAN_PAUSE = 0.005
"""Timeouts that expire within this many seconds of each other are handled together."""


class Nsqd:
    """An nsqd in this event loop that keeps all messages in memory.

    ``tcp`` and ``http`` are the bound addresses after ``start``. Raises ConfigError for a
    certificate or secret that cannot be read.
    """

    def __init__(
        self, options: NsqdOptions | None = None, *, rng: random.Random | None = None
    ) -> None:
        self.options = options or NsqdOptions()
        self.rng = rng or random.Random()  # noqa: S311 - it shares out messages
        self.tls = server_context(self.options)
        # A policy for certificates requires TLS too (nsqd.go, New).
        self.tls_required = bool(
            self.options.tls_required != "false" or self.options.tls_client_auth_policy
        )
        path = self.options.auth_secret_file
        self.secret = read_secret(path, f"--auth-secret-file {path}").encode() if path else b""
        """The only secret that AUTH accepts; empty if clients need no AUTH."""
        longest = self.options.max_msg_timeout
        self.broker = Broker(self.rng, clock_ns=wall_ns, max_msg_timeout=longest)
        self.broker.created = self._created
        self.broker.deleted = self._deleted
        self.broker.wake = self._wake
        self.clients: dict[Client, None] = {}
        """Clients that have sent the magic, in order of arrival."""
        self.links: set[ClientLink] = set()
        """All connections."""
        self.stopped = False
        self.tcp = self.http = Address("", 0)
        self.broadcast_address = ""
        self.lookupds: list[LookupPeer] = []
        self.log_level = 2
        """As set by PUT /config/log_level; of no effect."""
        self._server: asyncio.Server | None = None
        self._http_server: StreamServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.lookups: dict[str, asyncio.Task[None]] = {}
        """Queries for the channels of new topics, by topic."""
        self._awake = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(
        self,
        host: str = "127.0.0.1",
        tcp_port: int = 4150,
        http_port: int | None = None,
        *,
        lookupd_tcp_addresses: Sequence[Address] = (),
        broadcast_address: str = "",
    ) -> None:
        """Listen; port 0 picks a free port. Call ``stop`` even if this fails.

        By default the HTTP port follows the TCP port, and the broadcast address is the host. Raises
        OSError with the address as its ``filename``.
        """
        self.broadcast_address = broadcast_address or name_of(host)
        await self._listen(host, tcp_port, http_port)
        await self.use_lookupds(lookupd_tcp_addresses)

    async def use_lookupds(self, addresses: Sequence[Address]) -> None:
        """Register with these nsqlookupds, and no longer with others."""
        kept = [peer for peer in self.lookupds if peer.address in addresses]
        left = [peer for peer in self.lookupds if peer not in kept]
        known = {peer.address for peer in kept}
        self.lookupds = kept
        for address in dict.fromkeys(addresses):
            if address not in known:
                self.lookupds.append(LookupPeer(address, self._identity, self._names))
                self.lookupds[-1].start()
        for peer in left:
            await peer.stop()

    async def stop(self) -> None:
        """Stop listening, close all connections and discard all messages."""
        self.stopped = True
        await close(self._server)
        for link in tuple(self.links):
            link.abort()
        if self._http_server:
            await self._http_server.stop()
        for peer in self.lookupds:
            await peer.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer:
            self._timer.cancel()
        if self._server:
            await self._server.wait_closed()

    @property
    def now(self) -> float:
        """The broker's time: seconds of the loop's clock."""
        return asyncio.get_running_loop().time()

    def publish(self, topic: str, bodies: Sequence[bytes], *, defer: float = 0.0) -> None:
        """Publish messages to a topic, deferred by ``defer`` seconds."""
        self.broker.publish(topic, bodies, now=self.now, defer=defer)

    def info(self) -> dict[str, Any]:
        """Return the response to ``/info``."""
        options = self.options
        return {
            **self._identity(),
            "start_time": self.broker.start_time,
            "max_heartbeat_interval": round(options.max_heartbeat_interval * 1e9),
            "max_output_buffer_size": MAX_OUTPUT_BUFFER_SIZE,
            "max_output_buffer_timeout": MAX_OUTPUT_BUFFER_TIMEOUT * 10**6,
            "max_deflate_level": DEFLATE_LEVEL,
        }

    def settings(self) -> dict[str, Any]:
        """Return the values for ``/config``, durations in ns, by nsqd's names."""
        options = self.options
        values = {name: getattr(options, name) for name in options.declared()}
        del values["auth_secret_file"]
        for name, declared in options.declared().items():
            if declared.kind == "duration":
                values[name] = round(values[name] * 1e9)
        return {
            **values,
            "tcp_address": str(self.tcp),
            "http_address": str(self.http),
            "broadcast_address": self.broadcast_address,
            "broadcast_tcp_port": self.tcp.port,
            "broadcast_http_port": self.http.port,
            "nsqlookupd_tcp_addresses": [str(peer.address) for peer in self.lookupds],
            "mem_queue_size": _MEM_QUEUE_SIZE,
            "tls_required": ("false", "tcp-https", "true").index(options.tls_required),
            "log_level": self.log_level,
        }

    async def settled(self) -> None:
        """Return when every nsqlookupd is up to date; never returns if one is unreachable."""
        for peer in self.lookupds:
            await peer.settled()

    async def looked_up(self, topic: str) -> None:
        """Return when a new topic has the channels that nsqlookupds know."""
        if task := self.lookups.get(topic):
            await asyncio.wait([task])

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background until ``stop``."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self, host: str, tcp_port: int, http_port: int | None) -> None:
        """Listen for TCP and HTTP, by default on consecutive ports."""
        loop = asyncio.get_running_loop()
        handler = NsqdApi(self).handler()
        largest = max(self.options.max_body_size, self.options.max_msg_size)
        for tries in reversed(range(_TRIES)):
            with naming(Address(host, tcp_port)):
                self._server = await loop.create_server(lambda: Client(self).link, host, tcp_port)
            self.tcp = bound(self._server)
            port = self.tcp.port + 1 if http_port is None else http_port
            try:
                self._http_server = await serve(handler, host, port, max_body=largest)
                self.http = self._http_server.address
                return
            except (OSError, OverflowError):
                await close(self._server)
                if tcp_port or http_port is not None or not tries:
                    raise

    def _created(self, topic: str, channel: str) -> None:
        """Inform nsqlookupds. A new topic holds its messages while its channels are looked up."""
        for peer in self.lookupds:
            peer.tell("REGISTER", topic, channel)
        if not channel and self.lookupds:
            self.broker.topics[topic].held = True
            self.lookups[topic] = self.run(self._create_channels(self.broker.topics[topic]))

    def _deleted(self, topic: str, channel: str) -> None:
        """Inform nsqlookupds."""
        for peer in self.lookupds:
            peer.tell("UNREGISTER", topic, channel)

    async def _create_channels(self, topic: Topic) -> None:
        """Create the channels that nsqlookupds know, except ephemeral ones, then release messages.

        No channels are created if the topic has been deleted meanwhile.
        """
        try:
            answers = await asyncio.gather(*(each.channels(topic.name) for each in self.lookupds))
            for channel in sorted(set(chain.from_iterable(answers))):
                if self.broker.topics.get(topic.name) is topic and not is_ephemeral(channel):
                    topic.channel(channel)
        finally:
            topic.held = False
            topic.changed()
            if self.lookups.get(topic.name) is asyncio.current_task():
                del self.lookups[topic.name]

    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "broadcast_address": self.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http.port,
            "tcp_port": self.tcp.port,
        }

    def _names(self) -> list[tuple[str, str]]:
        return [
            (topic.name, channel)
            for topic in self.broker.topics.values()
            for channel in topic.channels or ("",)
        ]

    def _wake(self) -> None:
        """Let the broker work in the next turn of the loop."""
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self._timer:
            self._timer.cancel()
        due = self.broker.tick(self.now)
        self._awake = False
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due + _SCAN_PAUSE, self._wake)
