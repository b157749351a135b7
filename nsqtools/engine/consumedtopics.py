"""The topics of a run, each with its state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsqtools.engine.totals import ConsumerStats

if TYPE_CHECKING:
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.consumer import Consumer
    from nsqtools.errors import NSQError


@dataclass(slots=True, eq=False)
class ConsumedTopic:
    """A topic of the run: consumed, or waiting for its next start."""

    subscription: Subscription
    consumer: Consumer | None = None
    """None before the start, between retries, and after the end."""
    error: NSQError | None = None
    """The error of the last start, if it failed."""
    warning: str = ""
    """A warning to log once a consumer has started."""
    is_dropped: bool = False
    """Whether nsqlookupd no longer lists the topic; a dropped topic is drained."""
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    has_started: bool = False
    """Whether a consumer of the topic has started."""

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.subscription.topic

    def interrupt(self) -> None:
        """Drain the topic, because it was dropped or the run stops."""
        self.interrupted.set()
        if self.consumer:
            self.consumer.stop()


class ConsumedTopics:
    """The current topics by name, and the totals of all topics, dropped topics included."""

    def __init__(self) -> None:
        self.current: dict[str, ConsumedTopic] = {}
        self.undrained: set[str] = set()
        """Topics dropped before the handler could settle all their messages."""
        self._past: dict[str, ConsumerStats] = {}

    def add(self, subscription: Subscription) -> ConsumedTopic:
        """Add a topic, new or previously dropped."""
        topic = self.current[subscription.topic] = ConsumedTopic(subscription)
        self._past.setdefault(topic.name, ConsumerStats())
        return topic

    def ended(self, topic: ConsumedTopic) -> ConsumerStats:
        """Note the end of the topic's consumer; return the totals of all the topic's consumers."""
        assert topic.consumer
        ended, topic.consumer = topic.consumer.stats(), None
        ended.connections = ended.in_flight = ended.backoff_level = 0
        self._past[topic.name].follow(ended)
        return self._past[topic.name]

    def stats(self) -> ConsumerStats:
        """Return the totals of all topics; ``last_message`` is 0 before the first message."""
        total = ConsumerStats()
        for part in self.by_topic().values():
            total.add(part)
        return total

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Return the totals by topic, dropped topics included."""
        totals = {name: replace(past) for name, past in self._past.items()}
        for name, topic in self.current.items():
            if topic.consumer:
                totals[name].follow(topic.consumer.stats())
        return totals

    @property
    def in_flight(self) -> int:
        """The number of received, unsettled messages."""
        consumers = [topic.consumer for topic in self.current.values()]
        return sum(consumer.in_flight for consumer in consumers if consumer)

    @property
    def active(self) -> list[Subscription]:
        """The subscriptions of the current topics, except topics with a failed start."""
        return [topic.subscription for topic in self.current.values() if not topic.error]

    @property
    def unreached(self) -> list[str]:
        """The names of topics not consumed because their start failed."""
        return [name for name, topic in self.current.items() if topic.error]
