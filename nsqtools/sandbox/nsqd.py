"""The embedded nsqd: its ports, its clients and the broker between them."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from typing import TYPE_CHECKING, Any

from nsqtools.config import NsqdOptions
from nsqtools.names import Address
from nsqtools.sandbox.auth import make_secrets
from nsqtools.sandbox.broker import Broker
from nsqtools.sandbox.client import Client
from nsqtools.sandbox.http import serve
from nsqtools.sandbox.lookup_peer import LookupPeers
from nsqtools.sandbox.nsqd_http import routes
from nsqtools.sandbox.server import bound, naming
from nsqtools.sandbox.tls import server_context
from nsqtools.sandbox.wire import VERSION

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nsqtools.sandbox.broker import Topic
    from nsqtools.sandbox.server import StreamServer

log = logging.getLogger(__name__)

_SCAN_PAUSE = 0.005
"""Timeouts that fall this close together are dealt with at once."""


class Nsqd:
    """An nsqd in this event loop, all of it in memory.

    ``tcp``, ``http`` and ``https`` are the bound addresses once it is started; ``https`` is None
    without a certificate. Raises ConfigError for a certificate or secret that cannot be read.
    """

    def __init__(
        self, options: NsqdOptions | None = None, *, rng: random.Random | None = None
    ) -> None:
        self.options = options or NsqdOptions()
        self.rng = rng or random.Random()  # noqa: S311 - it shares out messages
        self.tls = server_context(self.options)
        self.tls_required = self.options.tls_required
        if self.options.tls_client_auth_policy and self.tls_required == "false":
            self.tls_required = "true"  # as nsqd.go, New
        self.secrets = make_secrets(self.options)
        self.broker = Broker(self.rng, max_msg_timeout=self.options.max_msg_timeout)
        self.broker.listener = self
        self.broker.wake = self._wake
        self.clients: dict[Client, None] = {}
        """Connections that have introduced themselves, in order of arrival."""
        self.tcp = self.http = Address("", 0)
        self.https: Address | None = None
        self.broadcast_address = ""
        self.lookupds: LookupPeers | None = None
        self._server: asyncio.Server | None = None
        self._http_servers: list[StreamServer] = []
        self._connections: set[Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.lookups: dict[str, asyncio.Task[None]] = {}
        """By topic, while its channels are looked up."""
        self._awake = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(
        self,
        host: str = "127.0.0.1",
        tcp_port: int = 4150,
        http_port: int = 4151,
        *,
        https_port: int | None = None,
        lookupd_tcp_addresses: Sequence[Address] = (),
        broadcast_address: str = "",
    ) -> None:
        """Listen; port 0 takes a free one. Raises OSError whose ``filename`` is the address.

        HTTPS is on the port after ``http_port``, or a free one, unless told. The broadcast
        address is the host unless told.
        """
        loop = asyncio.get_running_loop()
        self.broadcast_address = broadcast_address or host
        if https_port is None:
            https_port = http_port and http_port + 1
        try:
            with naming(Address(host, tcp_port)):
                self._server = await loop.create_server(self._accept, host, tcp_port)
            self.tcp = bound(self._server)
            self.http = await self._serve_http(host, http_port, secure=False)
            if self.tls:
                self.https = await self._serve_http(host, https_port, secure=True)
            self.lookupds = LookupPeers(self._identity(), self._names)
            await self.lookupds.set_addresses(lookupd_tcp_addresses)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening and cut every connection; what was held is gone."""
        if self._server:
            self._server.close()
        for client in tuple(self._connections):
            client.abort()
        for server in self._http_servers:
            await server.stop()
        if self.lookupds:
            await self.lookupds.stop()
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
        """As Broker.publish, now."""
        self.broker.publish(topic, bodies, now=self.now, defer=defer)

    def info(self) -> dict[str, Any]:
        """The reply to ``/info``."""
        options = self.options
        return {
            "version": VERSION,
            "broadcast_address": self.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http.port,
            "tcp_port": self.tcp.port,
            "start_time": self.broker.start_time,
            "max_heartbeat_interval": round(options.max_heartbeat_interval * 1e9),
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": round(options.max_output_buffer_timeout * 1e9),
            "max_deflate_level": options.max_deflate_level,
        }

    @property
    def producers(self) -> list[Client]:
        """Clients that have published."""
        return [client for client in self.clients if client.pub_counts]

    def topic_created(self, topic: str) -> None:
        """Broker's listener: ask nsqlookupds for the topic's channels before messages flow."""
        if not self.lookupds or not self.lookupds.addresses:
            return
        self.lookupds.topic_created(topic)
        self.broker.topics[topic].hold()
        self.lookups[topic] = self.run(self._create_channels(self.broker.topics[topic]))

    def topic_deleted(self, topic: str) -> None:
        """Broker's listener."""
        if self.lookupds:
            self.lookupds.topic_deleted(topic)

    def channel_created(self, topic: str, channel: str) -> None:
        """Broker's listener."""
        if self.lookupds:
            self.lookupds.channel_created(topic, channel)

    def channel_deleted(self, topic: str, channel: str) -> None:
        """Broker's listener."""
        if self.lookupds:
            self.lookupds.channel_deleted(topic, channel)

    async def looked_up(self, topic: str) -> None:
        """Return when a new topic has the channels that nsqlookupds know; nsqd answers then."""
        if task := self.lookups.get(topic):
            await asyncio.wait([task])

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background until ``stop``."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def attach(self, client: Client) -> None:
        """A client has introduced itself."""
        self.clients[client] = None

    def detach(self, client: Client) -> None:
        """A client is not served any more."""
        self.clients.pop(client, None)

    def forget(self, client: Client) -> None:
        """A client's connection is gone."""
        self._connections.discard(client)

    def _accept(self) -> Client:
        client = Client(self)
        self._connections.add(client)
        return client

    async def _serve_http(self, host: str, port: int, *, secure: bool) -> Address:
        server = await serve(
            routes(self, secure=secure),
            host,
            port,
            self.tls if secure else None,
            max_body=max(self.options.max_body_size, self.options.max_msg_size),
        )
        self._http_servers.append(server)
        return server.address

    async def _create_channels(self, topic: Topic) -> None:
        """Create the channels that nsqlookupds know, and let the topic's messages flow."""
        assert self.lookupds
        try:
            for channel in await self.lookupds.channels(topic.name):
                if self.broker.topics.get(topic.name) is topic:
                    topic.channel(channel)
        finally:
            topic.release()
            if self.lookups.get(topic.name) is asyncio.current_task():
                del self.lookups[topic.name]

    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "tcp_port": self.tcp.port,
            "http_port": self.http.port,
            "hostname": socket.gethostname(),
            "broadcast_address": self.broadcast_address,
        }

    def _names(self) -> list[tuple[str, str]]:
        return [
            (topic.name, channel)
            for topic in self.broker.topics.values()
            for channel in topic.channels or ("",)
        ]

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Move the broker on; once per turn of the loop at most."""
        due = self.broker.tick(self.now)
        self._awake = False
        if due is None:
            return
        if self._timer:
            if self._timer.when() <= due + _SCAN_PAUSE and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due + _SCAN_PAUSE, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if not self._awake:
            self._awake = True
            self._turn()
