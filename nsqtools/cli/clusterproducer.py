"""Publishes to the consumed cluster: dead letters of to-http and relay, and those of redrive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.cli.remotes import addresses
from nsqtools.config.connection import ClientConfig, ProducerConfig
from nsqtools.engine.lookup import nodes
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.sinks.deadletters import make_dead_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.consuming import DeadLetterOptions, ServerOptions, SourceOptions
    from nsqtools.names import Address
    from nsqtools.sinks.deadletters import DeadLetters


def dead_letters(
    source: SourceOptions, dead: DeadLetterOptions, config: ConsumerConfig
) -> DeadLetters:
    """The destination of given-up messages.

    Raises ConfigError if the dead-letter topic is consumed by the same command.
    """
    if dead.dead_letter_topic in source.topic:
        raise ConfigError(
            f"--dead-letter-topic {dead.dead_letter_topic}: is also consumed, so its messages "
            "would come back: choose another topic"
        )
    return make_dead_letters(dead, ClusterProducer(source, config))


class ClusterProducer:
    """A producer for the consumed cluster; it connects at the first message.

    It publishes to the nsqds of the source or, with nsqlookupd, to all listed nsqds. Bodies may be
    as large as the consumer accepts, because these nsqds delivered them. ``config`` holds the
    secret of --auth-secret-file.
    """

    def __init__(self, source: ServerOptions, config: ConsumerConfig) -> None:
        self._source = source
        self._config = config
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish like Producer; also raises UnreachableError."""
        async with self._opening:
            if self._producer is None:
                self._producer = await self._open()
        await self._producer.publish(topic, bodies)

    async def close(self) -> None:
        """Close the connections."""
        if self._producer:
            await self._producer.close()

    async def _open(self) -> Producer:
        config = self._config
        names = set(ClientConfig.declared()) - {"heartbeat_interval", "read_timeout"}
        shared = {name: getattr(config, name) for name in names}
        max_size = max(config.max_msg_size, ProducerConfig().max_body_size)
        target = ProducerConfig().with_values(**shared, max_body_size=max_size)
        producer = Producer(await self._nsqds(), target)
        await producer.connect()
        return producer

    async def _nsqds(self) -> Sequence[Address]:
        urls = self._source.lookupd_http_address
        if not urls:
            return addresses(self._source.nsqd_tcp_address)
        timeout = self._config.lookupd_poll_timeout
        found = await nodes(urls, self._config, (timeout, timeout))
        if not found:
            raise UnreachableError("nsqlookupd lists no nsqd")
        return [node.tcp for node in found]
