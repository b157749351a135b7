"""An in-memory nsqd and nsqlookupd in one event loop, for demos and tests without Go."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Self

from nsqtools.clock import wall
from nsqtools.config.sandbox import NsqdOptions, SandboxOptions
from nsqtools.errors import ConfigError, PublishError
from nsqtools.names import Address, check_name, is_loopback
from nsqtools.sandbox.events import publish_at_rate, sample_events
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

__all__ = ["Nsqd", "Nsqlookupd", "Sandbox"]

_LOOKUPD_OFFSET = 10
_MOST_SEEDED = 100_000  # maximum unread sample events, so that memory does not fill up over time


class Sandbox:
    """An nsqd that is registered with an nsqlookupd; an async context manager.

    Their bound addresses are ``tcp`` and ``http`` of ``nsqd`` and ``lookupd``. Without ``options``
    they listen on free ports of loopback; nsqd's HTTP port follows its TCP port. ``rng`` chooses
    the consumer of each message, and the sample events.
    """

    def __init__(
        self,
        options: SandboxOptions | None = None,
        nsqd: NsqdOptions | None = None,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options or SandboxOptions(port=0)
        self.nsqd = Nsqd(nsqd or NsqdOptions(), rng=rng)
        self.lookupd = Nsqlookupd()
        self._seeding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, and return once nsqd is registered with nsqlookupd.

        Raises ConfigError for a port that is in use, and for a host that other hosts can reach,
        unless ``options.i_know`` is set.
        """
        host = await _resolve(self.options.host, i_know=self.options.i_know)
        try:
            await self._start(host)
        except OSError as error:
            await self.stop()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ConfigError(
                f"--port {self.options.port}: cannot listen on {error.filename or host}: {reason};"
                " this port and those 1, 10 and 11 above it must be free: choose another, or 0"
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening, close all connections and discard all messages."""
        if self._seeding:
            self._seeding.cancel()
            with suppress(asyncio.CancelledError):
                await self._seeding
        await self.nsqd.stop()
        await self.lookupd.stop()

    async def publish(self, topic: str, bodies: Sequence[bytes], *, defer: float = 0.0) -> None:
        """Publish messages, deferred by ``defer`` seconds; on return nsqlookupd knows the topic.

        Raises ConfigError for an invalid topic and PublishError for bodies that nsqd would refuse;
        nothing is published then.
        """
        check_name("topic", topic)
        longest = self.nsqd.options.max_msg_size
        bad = [place for place, body in enumerate(bodies) if not 0 < len(body) <= longest]
        if bad:
            size = len(bodies[bad[0]])
            text = f"topic {topic}: a message has {size} bytes, expected 1 to {longest}"
            raise PublishError(text, bad, permanent=True)
        self.nsqd.publish(topic, bodies, defer=defer)
        await self.nsqd.looked_up(topic)
        await self.nsqd.settled()

    async def _start(self, host: str) -> None:
        port = self.options.port
        home = host
        if ip_address(host).is_unspecified:
            home = "::1" if ":" in host else "127.0.0.1"
        lookupd_port = port and port + _LOOKUPD_OFFSET
        await self.lookupd.start(host, lookupd_port, lookupd_port and lookupd_port + 1)
        lookupds = [Address(home, self.lookupd.tcp.port)]
        await self.nsqd.start(host, port, lookupd_tcp_addresses=lookupds)
        await self.nsqd.settled()
        if self.options.seed_topic:
            self._seeding = asyncio.create_task(self._seed(self.options.seed_topic))

    async def _seed(self, topic: str) -> None:
        def publish(bodies: Sequence[bytes]) -> None:
            held = self.nsqd.broker.topic(topic)
            unread = max((channel.depth for channel in held.channels.values()), default=0)
            if held.depth + unread < _MOST_SEEDED:
                self.nsqd.publish(topic, bodies)

        events = sample_events(self.nsqd.rng, wall)
        await publish_at_rate(publish, events, self.options.rate)


async def _resolve(host: str, *, i_know: bool) -> str:
    """Return the address to listen on; raises ConfigError if other hosts can reach it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"--host {host!r}: cannot resolve the host name") from error
    addresses = sorted((family != socket.AF_INET, str(at[0])) for family, *_, at in found)
    for _, address in addresses:
        if not i_know and not is_loopback(address):
            raise ConfigError(
                f"--host {host}: other hosts can reach {address}, and the sandbox has no access "
                "control and loses messages at a restart; choose a loopback address, or add "
                "--i-know"
            )
    return addresses[0][1]
