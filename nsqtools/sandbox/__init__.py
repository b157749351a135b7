"""An nsqd and an nsqlookupd in one event loop, all in memory: for demos and tests without Go."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Self

from nsqtools.config import NsqdOptions, SandboxOptions
from nsqtools.errors import ConfigError, PublishError
from nsqtools.names import Address, check_name
from nsqtools.sandbox.events import publish_at_rate, sample_events
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

__all__ = ["Nsqd", "Nsqlookupd", "Sandbox"]

_LOOKUPD_OFFSET = 10
_MOST_SEEDED = 100_000  # sample events that wait unread; more would fill the memory over night


class Sandbox:
    """One nsqd, registered with one nsqlookupd; an async context manager.

    Both have their bound addresses as ``tcp`` and ``http``. Without ``options`` it listens on free
    ports of loopback; nsqd's HTTP port is the one after its TCP port. ``rng`` chooses the consumer
    of each message, and the sample events.
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
        """Listen; on return nsqlookupd knows nsqd.

        Raises ConfigError for a host that others can reach, unless ``options.i_know``, and for a
        taken port.
        """
        host = await _resolve(self.options.host, i_know=self.options.i_know)
        try:
            await self._start(host)
        except OSError as error:
            await self.stop()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ConfigError(
                f"--port {self.options.port}: cannot listen on {error.filename or host}: {reason}; "
                "give another --port, or 0 for free ones"
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening, cut every connection and forget everything."""
        if self._seeding:
            self._seeding.cancel()
            with suppress(asyncio.CancelledError):
                await self._seeding
        await self.nsqd.stop()
        await self.lookupd.stop()

    async def publish(self, topic: str, bodies: Sequence[bytes], *, defer: float = 0.0) -> None:
        """Publish, each held back for ``defer`` seconds; nsqlookupd knows the topic on return.

        Raises ConfigError for a topic, PublishError for bodies that nsqd would not take: then none
        is published.
        """
        check_name("topic", topic)
        longest = self.nsqd.options.max_msg_size
        bad = [place for place, body in enumerate(bodies) if not 0 < len(body) <= longest]
        if bad:
            size = len(bodies[bad[0]])
            text = f"topic {topic}: a message of {size} bytes, expected 1 to {longest}"
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

        events = sample_events(self.nsqd.rng, time.time)
        await publish_at_rate(publish, events, self.options.rate)


async def _resolve(host: str, *, i_know: bool) -> str:
    """The address to listen on; raises ConfigError if others could reach one of the host's."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"--host {host!r}: no such host") from error
    addresses = sorted((family != socket.AF_INET, str(at[0])) for family, *_, at in found)
    for _, address in addresses:
        if not i_know and not _is_loopback(address):
            raise ConfigError(
                f"--host {host}: others could reach {address}, and nothing there is safe from them "
                "or from a restart; give a loopback address, or --i-know"
            )
    return addresses[0][1]


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
