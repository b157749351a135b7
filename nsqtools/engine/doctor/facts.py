"""The facts about a topic, or all topics, and their servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from shlex import quote
from typing import TYPE_CHECKING

from nsqtools.errors import AuthError, RefusedError
from nsqtools.names import NSQD_TCP_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsqtools.errors import HTTPError, PeerError
    from nsqtools.net.http.replies import ChannelStats, NsqdStats, Registration, TopicStats
    from nsqtools.net.probe import Speaks
    from nsqtools.proto.session import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdFacts:
    """The answers of an nsqlookupd, or its ``error`` and the protocol ``speaks`` of its port.

    ``url`` is as given. ``is_nsqd`` is true for the HTTP port of an nsqd. ``skew`` is the least
    possible lead of the nsqlookupd's clock over this host's, in seconds, None if unknown.
    ``producers`` are from
    /lookup, ``nodes`` from /nodes. ``left_out`` maps descriptions of invalid entries to true if
    they are from /lookup. ``stale_channels`` are registered channels that no nsqd has, each with
    its topic.
    """

    url: str
    address: Address
    error: HTTPError | None = None
    speaks: Speaks = ""
    is_nsqd: bool = False
    version: str = ""
    skew: float | None = None
    topics: frozenset[str] = frozenset()
    producers: tuple[Registration, ...] = ()
    nodes: tuple[Registration, ...] = ()
    left_out: Mapping[str, bool] = field(default_factory=dict)
    stale_channels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdFacts:
    """The answers of an nsqd at ``tcp``, its address for consumers, and at ``http``.

    ``url`` is the URL of ``http``. ``given`` is true if the user gave the address; ``tcp`` may then
    be unknown, None. ``features`` is None unless IDENTIFY succeeded. ``is_lookupd`` is true if
    ``tcp`` is the HTTP port of an nsqlookupd; ``tcp_port`` is nsqd's TCP port if ``tcp`` is its
    HTTP port. ``topics`` has the names of all topics of an nsqd without the topic in question.
    ``stats`` and ``later_stats`` are the answers of both looks, and ``topic`` and ``later`` the
    topic in them; of a whole cluster, ``Facts.by_topic`` sets these two. ``time`` is the earliest
    and latest possible time on the nsqd's own clock at the last look, None if unknown.

    The rest is known only of a whole cluster: ``broadcast`` is the broadcast address of an nsqd
    given by another. ``offers_tls`` is None if unknown; ``expiry`` is the end of its certificate,
    in seconds since the epoch, 0 if unknown.
    """

    tcp: Address | None
    url: str
    http: Address
    given: bool = False
    producer: Registration | None = None
    tcp_error: PeerError | None = None
    tcp_speaks: Speaks = ""
    tcp_port: int = 0
    is_lookupd: bool = False
    features: Features | None = None
    needs_tls: bool = False
    http_error: HTTPError | None = None
    http_speaks: Speaks = ""
    skew: float | None = None
    version: str = ""
    topics: frozenset[str] = frozenset()
    topic: TopicStats | None = None
    later: TopicStats | None = None
    stats: NsqdStats | None = None
    later_stats: NsqdStats | None = None
    time: tuple[float, float] | None = None
    broadcast: Address | None = None
    offers_tls: bool | None = None
    expiry: float = 0.0

    @property
    def name(self) -> str:
        """The TCP address or, if it is unknown, the HTTP address."""
        return str(self.tcp or self.http)

    @property
    def right_tcp(self) -> Address | None:
        """The TCP address, with nsqd's TCP port if ``tcp`` is its HTTP port."""
        return Address(self.tcp.host, self.tcp_port) if self.tcp and self.tcp_port else self.tcp

    @property
    def answers(self) -> bool:
        """Whether the nsqd answers over TCP or HTTP."""
        return self.features is not None or self.needs_tls or self.http_error is None

    @property
    def is_there(self) -> bool:
        """Whether a server answers there, even if it refuses the client or is not nsqd."""
        refused = isinstance(self.tcp_error, AuthError | RefusedError)
        answered = self.http_error is not None and self.http_error.status > 0
        return self.answers or refused or answered or bool(self.tcp_speaks or self.http_speaks)

    def channel(self, name: str, *, later: bool = False) -> ChannelStats | None:
        """Return a channel of the topic; None if the nsqd lacks it."""
        topic = self.later if later else self.topic
        channels = topic.channels if topic else ()
        return next((each for each in channels if each.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All facts of a diagnosis; ``channel`` is empty unless the user named a channel.

    ``whole`` is true if all topics are examined, and ``topic`` is one of them, or empty.
    ``has_secret``, ``max_in_flight`` and ``compression`` are settings of the consumer in question;
    ``compression`` is snappy, deflate or empty. ``at`` is the time of the examination, in seconds
    since the epoch.
    """

    topic: str
    channel: str
    lookupds: tuple[LookupdFacts, ...]
    nsqds: tuple[NsqdFacts, ...]
    has_secret: bool
    max_in_flight: int
    compression: str = ""
    whole: bool = False
    at: float = 0.0

    @property
    def anybody(self) -> bool:
        """Whether any server answers, even at a wrong port."""
        lookupds = [not each.error or each.speaks for each in self.lookupds]
        return any(lookupds) or any(each.is_there for each in self.nsqds)

    @cached_property
    def found(self) -> set[Address]:
        """The nsqd addresses returned by nsqlookupds for the topic."""
        return {producer.tcp for each in self.lookupds for producer in each.producers}

    @property
    def concerned(self) -> list[NsqdFacts]:
        """The nsqds to judge: all, or those given, with the topic, or listed for the topic."""
        return [each for each in self.nsqds if each.given or self.is_concerned(each)]

    def is_concerned(self, nsqd: NsqdFacts) -> bool:
        """Whether an nsqd has the topic or is listed for it, tombstoned or not."""
        if self.whole:
            return True
        listed = nsqd.producer is not None and self.topic in nsqd.producer.topics
        return listed or nsqd.topic is not None or nsqd.tcp in self.found

    @cached_property
    def maybe(self) -> set[str] | None:
        """The topics of a whole cluster that silent nsqds may have; None if they may have any.

        An nsqd is silent if it did not answer at both looks, or was not asked. What nsqlookupds
        list for it is known, unless one of them is silent too.
        """
        silent = (each for each in self.nsqds if not each.later_stats)
        if any(each.error for each in self.lookupds) or not all(each.producer for each in silent):
            return None
        answered = {each.tcp for each in self.nsqds if each.later_stats}
        nodes = (node for each in self.lookupds for node in each.nodes)
        return {topic for node in nodes if node.tcp not in answered for topic in node.topics}

    @cached_property
    def tombstones(self) -> Mapping[tuple[str, Address], Sequence[LookupdFacts]]:
        """The nsqlookupds that hide a topic of an nsqd: any, or the topic in question."""
        hidden: dict[tuple[str, Address], list[LookupdFacts]] = {}
        for lookupd in self.lookupds:
            for node in lookupd.nodes:
                for topic in compress(node.topics, node.tombstones):
                    if topic == self.topic or self.whole:
                        hidden.setdefault((topic, node.tcp), []).append(lookupd)
        return hidden

    def having(self) -> Iterator[tuple[NsqdFacts, TopicStats]]:
        """Yield the nsqds with the topic, each with the topic's stats."""
        return ((each, each.topic) for each in self.nsqds if each.topic)

    def by_topic(self) -> Iterator[Facts]:
        """Yield the facts about each topic of a whole cluster, with the nsqds that have it."""
        having: dict[str, list[NsqdFacts]] = {}
        for nsqd in self.nsqds:
            later = {each.name: each for each in _topics(nsqd.later_stats)}
            for topic in _topics(nsqd.stats):
                seen = replace(nsqd, topic=topic, later=later.get(topic.name))
                having.setdefault(topic.name, []).append(seen)
        for name in sorted(having):
            yield replace(self, topic=name, nsqds=tuple(having[name]))

    @property
    def known_topics(self) -> set[str]:
        """The names of all topics on any server."""
        names = [*(each.topics for each in self.lookupds), *(each.topics for each in self.nsqds)]
        return {name for some in names for name in some}

    def command(self, *words: str, nsqds: tuple[NsqdFacts, ...] = ()) -> str:
        """Return a ``nsqtools`` command with the HTTP addresses of ``nsqds``, or of all servers.

        nsqlookupds stand for the nsqds that they list.
        """
        addressed = nsqds or (self._unlisted if self.lookupds else self.nsqds)
        return _line(
            *words,
            *(() if nsqds else self._lookupd_options),
            *_each("--nsqd-http-address", (each.url for each in addressed)),
        )

    def look(self, channel: str) -> str:
        """Return the command to look at a channel's messages or, without a channel, at copies.

        It finishes no message of the channel.
        """
        words = ["tail", "--topic", self.topic]
        if channel:
            words += ["--channel", channel, "-n", "5", "--peek"]
        if self.lookupds and not self._unlisted:
            return _line(*words, *self._lookupd_options)
        nsqds = [each for each in self.nsqds if each.topic or (each.given and not self.lookupds)]
        addresses = (each.right_tcp for each in nsqds if each.tcp)
        return _line(*words, *_each("--nsqd-tcp-address", addresses))

    def publish(self) -> str:
        """Return the command to publish a message to an answering nsqd."""
        answering = [each.right_tcp for each in self.nsqds if each.tcp and each.answers]
        address = str(answering[0]) if answering else f"HOST:{NSQD_TCP_PORT}"
        return _line("pub", "--topic", self.topic, "--nsqd-tcp-address", address, "hello")

    def watch_consumers(self) -> str:
        """Return the command to show the finished messages of each consumer of the channel."""
        return self.command("stats", "--clients", "--topic", self.topic, "--channel", self.channel)

    @property
    def _unlisted(self) -> list[NsqdFacts]:
        """The nsqds with the topic that were given, as no nsqlookupd lists them."""
        return [each for each in self.nsqds if each.topic and each.given and not each.producer]

    @property
    def _lookupd_options(self) -> list[str]:
        return _each("--lookupd-http-address", (each.url for each in self.lookupds))


def _topics(stats: NsqdStats | None) -> Sequence[TopicStats]:
    return stats.topics if stats else ()


def _each(option: str, values: Iterable[object]) -> list[str]:
    return [word for value in values for word in (option, str(value))]


def _line(*words: str) -> str:
    """Return a command line, quoted for the shell."""
    return " ".join(map(quote, ("nsqtools", *words)))
