"""Consumers of a broker that keep what they are given; instants are up to the tests."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from nsqtools.sandbox.broker import Broker
from nsqtools.sandbox.consumer import Consumer

if TYPE_CHECKING:
    from nsqtools.sandbox.broker import Channel
    from nsqtools.sandbox.consumer import Message

TIMEOUT = 60.0
STAMP = 1_700_000_000 * 10**9


class Client:
    """The connection behind a consumer: it keeps what it was given."""

    def __init__(self, msg_timeout: float = TIMEOUT, sample_rate: int = 0) -> None:
        self.consumer = Consumer(self, msg_timeout, sample_rate)
        self.batches: list[list[Message]] = []
        self.closed = False
        self.blocks_after = 10**9

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for batch in self.batches for message in batch]

    @property
    def ids(self) -> list[bytes]:
        return [message.id for batch in self.batches for message in batch]

    def deliver(self, messages: list[Message]) -> None:
        self.batches.append(messages)
        self.consumer.blocked = len(self.batches) >= self.blocks_after

    def close(self) -> None:
        self.closed = True

    def stats(self, topic: str) -> dict[str, Any]:
        return {}


def make_broker(**options: Any) -> Broker:
    return Broker(Random(1), clock_ns=lambda: STAMP, **options)


def subscribe(channel: Channel, rdy: int, client: Client | None = None) -> Client:
    client = client or Client()
    client.consumer.rdy = rdy
    channel.add(client.consumer)
    return client


def bodies(count: int, size: int = 1) -> list[bytes]:
    return [b"%d" % number * size for number in range(count)]
