"""Publishes to the cluster that a command consumes from, if it ever has to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.cli.peers import addresses, with_secret
from nsqtools.config import ClientConfig, ProducerConfig
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.net.tls import http_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config import ConsumerConfig, DeadLetterOptions, SourceOptions
    from nsqtools.names import Address


def check_dead_letter_topic(source: SourceOptions, dead: DeadLetterOptions) -> None:
    """Raise ConfigError if dead letters would be consumed, and be dead letters again."""
    if dead.dead_letter_topic in source.topic:
        raise ConfigError(
            f"--dead-letter-topic {dead.dead_letter_topic}: is consumed itself, its messages would "
            "come back: choose another one"
        )


class Postbox:
    """Connects at the first message; then it is a Producer.

    The nsqds are those that are consumed from or, with nsqlookupd, all that it knows. What they
    delivered they may take again: how big that can be is theirs to say.
    """

    def __init__(self, source: SourceOptions, config: ConsumerConfig) -> None:
        self._source = source
        self._config = config
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """As Producer; raises UnreachableError, too."""
        async with self._opening:
            if self._producer is None:
                self._producer = await self._open()
        await self._producer.publish(topic, bodies)

    async def close(self) -> None:
        """Hang up."""
        if self._producer:
            await self._producer.close()

    async def _open(self) -> Producer:
        config = with_secret(self._config)
        names = set(ClientConfig.declared()) - {"heartbeat_interval", "read_timeout"}
        shared = {name: getattr(config, name) for name in names}
        most = max(config.max_msg_size, ProducerConfig().max_body_size)
        target = ProducerConfig().with_values(**shared, max_body_size=most)
        producer = Producer(await self._nsqds(), target)
        await producer.connect()
        return producer

    async def _nsqds(self) -> Sequence[Address]:
        urls = self._source.lookupd_http_address
        if not urls:
            return addresses(self._source.nsqd_tcp_address)
        from nsqtools.engine.lookup import ask_lookupds  # loads httpx

        config = with_secret(self._config)
        answers = await ask_lookupds(
            urls,
            lambda client: client.nodes(),
            connect_timeout=config.lookupd_poll_timeout,
            request_timeout=config.lookupd_poll_timeout,
            token=config.auth_secret if config.lookupd_authorization else "",
            tls=http_context(config),
        )
        found = dict.fromkeys(node.tcp for nodes in answers.values for node in nodes)
        if not found:
            raise UnreachableError("nsqlookupd knows of no nsqd")
        return list(found)
