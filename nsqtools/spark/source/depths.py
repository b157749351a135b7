"""The depths of a channel, by which the driver plans micro-batches."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from nsqtools.engine.connector import Subscription
from nsqtools.engine.lookup import STATS_LIMITS, find_producers
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import ConfigError, HTTPError, UnreachableError
from nsqtools.net.http.daemons import NsqdHTTP
from nsqtools.net.tls import http_context
from nsqtools.spark.source.sourceoptions import respelled, with_secret
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.net.http.replies import TopicStats
    from nsqtools.spark.source.plans import TopicOnNsqd
    from nsqtools.spark.source.sourceoptions import SourceSettings

log = logging.getLogger(__name__)

_MOST_REQUESTS = 8
"""Maximum number of requests to an nsqd at once."""


class Depths:
    """Queries nsqds; with nsqlookupds, the nsqds are looked up each time.

    Topics that do not exist are created on fixed nsqds if ``creates`` is set. Otherwise
    ``missing`` has those that no nsqd had at the last look; it is empty if one did not answer.
    Raises ConfigError for invalid TLS options.
    """

    def __init__(self, settings: SourceSettings, *, creates: bool = True) -> None:
        self.missing: set[str] = set()
        self.unknown: list[str] = []
        """The servers that did not answer at the last look, each with the reason."""
        self._creates = creates
        self._settings = settings
        self._outages = OutageLog()
        self._silent: set[str] = set()
        self._heard = settings.wait_for_servers
        self._subscriptions = [
            Subscription(topic=topic, channel=settings.channel, lookupds=settings.lookupds)
            for topic in (settings.topics if settings.lookupds else ())
        ]
        try:
            self._tls = http_context(settings.config)
            self._lookup_config = self._with_secret()
        except ConfigError as error:
            raise respelled(error, flags=settings.flags) from None

    async def ask(self) -> dict[TopicOnNsqd, int]:
        """Return waiting messages by topic and nsqd (``host:tcp_port``); 0 for one that does not
        answer.

        A failing server is logged once until it answers again. Raises UnreachableError if no server
        has ever answered, unless ``wait_for_servers`` is set: then an address is probably wrong,
        and a run would end without doing anything.
        """
        self.missing, self.unknown = set(self._settings.topics), []
        asked = await self._queues()
        found: dict[TopicOnNsqd, int] = {}
        failures: dict[str, HTTPError] = {}
        answers = await call_each(asked.items(), lambda each: self._ask(*each))
        for url, answer in zip(asked, answers, strict=True):
            if isinstance(answer, HTTPError):
                failures[url] = answer
            else:
                found |= answer
        self.unknown += [f"nsqd {error}" for error in failures.values()]
        if self.unknown:
            self.missing = set()
        if failures and not (found or self._heard or self._subscriptions):
            way = "give --nsqd-http-address" if self._settings.flags else "write host:tcp/http"
            raise UnreachableError(
                f"no nsqd answers: {next(iter(failures.values()))}: depths are queried over HTTP; "
                f"if the HTTP port is not the TCP port plus one, {way}"
            )
        for url, error in failures.items():
            log.log(logging.DEBUG if url in self._silent else logging.WARNING, "nsqd %s", error)
        for url in sorted(self._silent.intersection(asked) - failures.keys()):
            log.info("nsqd %s answers again", url)
        self._heard, self._silent = True, set(failures)
        silent = {queue: 0 for queues in asked.values() for queue in queues if queue not in found}
        return found | silent

    async def _queues(self) -> dict[str, list[TopicOnNsqd]]:
        """Return the queues to ask for by the address of their HTTP API."""
        settings = self._settings
        queues: dict[str, list[TopicOnNsqd]] = defaultdict(list)
        for topic in settings.topics:
            for nsqd in settings.nsqds:
                queues[nsqd.http].append((topic, str(nsqd.tcp)))
        try:
            answers = await call_each(
                self._subscriptions,
                lambda each: find_producers(each, self._lookup_config, self._outages),
            )
        except UnreachableError as error:
            if not self._heard:
                raise
            self._outages.all_lookupds_failed(error)
            self.unknown.append(str(error))
            return queues
        for topic, (producers, errors) in zip(settings.topics, answers, strict=False):
            self.unknown += [
                text for error in errors if (text := f"nsqlookupd {error}") not in self.unknown
            ]
            for address, producer in sorted(producers.items()):
                queues[str(producer.http)].append((topic, str(address)))
        return queues

    async def _ask(
        self, url: str, queues: Sequence[TopicOnNsqd]
    ) -> dict[TopicOnNsqd, int] | HTTPError:
        found, channel = {}, self._settings.channel
        try:
            async with NsqdHTTP(url, tls=self._tls, **STATS_LIMITS) as nsqd:
                stats = await _topics(nsqd, [topic for topic, _ in queues])
                without = []
                for topic, address in queues:
                    found[topic, address] = depth(stats.get(topic), channel)
                    if topic in stats:
                        self.missing.discard(topic)
                    elif not self._creates:
                        continue
                    if not _has_channel(stats, topic, channel):
                        without.append(topic)
                # nsqd gives a channel what is published after it was made, and it is made by its
                # first consumer: without messages there would never be one.
                parts = [without[number::_MOST_REQUESTS] for number in range(_MOST_REQUESTS)]
                await call_each(parts, lambda part: self._create_channels(nsqd, part, stats))
        except HTTPError as error:
            return error
        return found

    async def _create_channels(
        self, nsqd: NsqdHTTP, topics: Sequence[str], stats: Mapping[str, TopicStats]
    ) -> None:
        """Make channels as SUB would; raises HTTPError.

        Topics that do not exist are made on fixed nsqds alone: others may just have been deleted.
        """
        fixed = bool(self._settings.nsqds)
        for topic in topics:
            if fixed and topic not in stats:
                await nsqd.change("topic/create", topic=topic)
            try:
                await nsqd.change("channel/create", topic=topic, channel=self._settings.channel)
            except HTTPError as error:
                if error.code != "TOPIC_NOT_FOUND":
                    raise

    def _with_secret(self) -> ConsumerConfig:
        """The configuration for requests to nsqlookupd."""
        config = self._settings.config
        if self._settings.lookupds and config.lookupd_authorization:
            try:
                config = with_secret(self._settings)
            except ConfigError as error:  # it may be there for executors only
                log.info("nsqlookupd is queried without a secret: %s", error)
        return config


def depth(topic: TopicStats | None, channel: str) -> int:
    """Return the messages that wait for a channel: its depth and the topic's depth.

    A channel that does not exist yet will start with the topic's depth. Messages in flight,
    deferred or paused do not count.
    """
    if topic is None:
        return 0
    waiting = 0 if topic.paused else topic.depth
    for each in topic.channels:
        if each.name == channel:
            return 0 if each.paused else each.depth + waiting
    return waiting


async def _topics(nsqd: NsqdHTTP, topics: Sequence[str]) -> dict[str, TopicStats]:
    """Return those of the topics that an nsqd has; raises HTTPError.

    For many topics a single request of all topics of the nsqd takes less time.
    """
    if len(topics) > _MOST_REQUESTS:
        wanted = set(topics)
        return {each.name: each for each in (await nsqd.report()).topics if each.name in wanted}
    found = await call_each(topics, nsqd.stats)
    return {each.name: each for answer in found for each in answer}


def _has_channel(stats: Mapping[str, TopicStats], topic: str, channel: str) -> bool:
    return topic in stats and any(each.name == channel for each in stats[topic].channels)
