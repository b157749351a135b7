"""What is known of the servers behind a topic, and what may be found wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Literal

from nsqtools.errors import AuthError, RefusedError
from nsqtools.names import NSQD_TCP_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsqtools.errors import HTTPError, PeerError
    from nsqtools.names import Address
    from nsqtools.net.http.replies import ChannelStats, Registration, TopicStats
    from nsqtools.net.probe import Speaks
    from nsqtools.proto.session import Features

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the diagnosis. ``check`` is a stable word for scripts, ``fix`` what to do."""

    level: Level
    check: str
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdFacts:
    """What an nsqlookupd says; with an ``error``, what ``speaks`` at its port instead.

    ``url`` is as it was given.
    ``is_nsqd`` is for the HTTP port of an nsqd. ``skew`` is how far its clock is at least ahead of
    ours, in seconds. ``producers`` are those of /lookup, ``nodes`` those of /nodes; ``left_out``
    says what is wrong with others, and whether they are of /lookup.
    """

    url: str
    address: Address
    error: HTTPError | None = None
    speaks: Speaks = ""
    is_nsqd: bool = False
    version: str = ""
    skew: float = 0.0
    topics: frozenset[str] = frozenset()
    producers: tuple[Registration, ...] = ()
    nodes: tuple[Registration, ...] = ()
    left_out: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdFacts:
    """What an nsqd says at ``tcp``, where consumers connect, and at ``http``, which is in ``url``.

    ``given`` is by the user, not found; then ``tcp`` is None if it is not known. ``features`` are
    None unless it was greeted over TCP. ``is_lookupd`` is for ``tcp`` being the HTTP port of an
    nsqlookupd; ``tcp_port`` is where nsqd listens, if ``tcp`` is its HTTP port. ``topics`` are all
    of its topics, if the one in question is not there. ``later`` is ``topic`` as it was a moment
    after that, if that was asked.
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
    skew: float = 0.0
    version: str = ""
    topics: frozenset[str] = frozenset()
    topic: TopicStats | None = None
    later: TopicStats | None = None

    @property
    def name(self) -> str:
        """Its TCP address, or that of HTTP if there is none."""
        return str(self.tcp or self.http)

    @property
    def answers(self) -> bool:
        """Whether it does, one way or the other."""
        return self.features is not None or self.needs_tls or self.http_error is None

    @property
    def is_there(self) -> bool:
        """Whether it answers, or refuses to."""
        refused = isinstance(self.tcp_error, AuthError | RefusedError)
        said = self.http_error is not None and self.http_error.status > 0
        return self.answers or refused or said or bool(self.tcp_speaks or self.http_speaks)

    def channel(self, name: str, *, later: bool = False) -> ChannelStats | None:
        """A channel of the topic, if it has it."""
        topic = self.later if later else self.topic
        channels = topic.channels if topic else ()
        return next((each for each in channels if each.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that the diagnosis is made of; ``channel`` is empty if none was named.

    ``has_secret``, ``max_in_flight`` and ``compression``, which is snappy, deflate or empty, are of
    the consumer in question.
    """

    topic: str
    channel: str
    lookupds: tuple[LookupdFacts, ...]
    nsqds: tuple[NsqdFacts, ...]
    has_secret: bool
    max_in_flight: int
    compression: str = ""

    @property
    def anybody(self) -> bool:
        """Whether any server is there, as it should be or not."""
        lookupds = [not each.error or each.speaks for each in self.lookupds]
        return any(lookupds) or any(each.is_there for each in self.nsqds)

    @cached_property
    def found(self) -> set[Address]:
        """Where nsqlookupds send consumers of the topic."""
        return {producer.tcp for each in self.lookupds for producer in each.producers}

    @property
    def concerned(self) -> list[NsqdFacts]:
        """The nsqds that matter: given ones, those that have the topic, those listed for it."""
        return [each for each in self.nsqds if each.given or self.is_concerned(each)]

    def is_concerned(self, nsqd: NsqdFacts) -> bool:
        """Whether it has the topic, or is listed with it, tombstoned or not."""
        listed = nsqd.producer is not None and self.topic in nsqd.producer.topics
        return listed or nsqd.topic is not None or nsqd.tcp in self.found

    def hidden_by(self, nsqd: NsqdFacts) -> Sequence[LookupdFacts]:
        """The nsqlookupds where the topic of this nsqd has a tombstone."""
        return self._tombstones.get(nsqd.tcp, ())

    @cached_property
    def _tombstones(self) -> Mapping[Address | None, Sequence[LookupdFacts]]:
        hidden: dict[Address | None, list[LookupdFacts]] = {}
        for lookupd in self.lookupds:
            for producer in lookupd.nodes:
                topics = zip(producer.topics, producer.tombstones, strict=True)
                if (self.topic, True) in topics:
                    hidden.setdefault(producer.tcp, []).append(lookupd)
        return hidden

    def having(self) -> Iterator[tuple[NsqdFacts, TopicStats]]:
        """The nsqds that have the topic, with what they say of it."""
        return ((each, each.topic) for each in self.nsqds if each.topic)

    @property
    def known_topics(self) -> set[str]:
        """The names of all topics that servers told."""
        names = [*(each.topics for each in self.lookupds), *(each.topics for each in self.nsqds)]
        return {name for some in names for name in some}

    def command(self, *words: str, nsqds: tuple[NsqdFacts, ...] = ()) -> str:
        """``nsqtools ...`` with the servers in question, over HTTP: some nsqds, or else all."""
        nsqds = nsqds or (() if self.lookupds else self.nsqds)
        return _line(
            *words,
            *_each("--nsqd-http-address", (each.url for each in nsqds)),
            *(() if nsqds else self._lookupd_options),
        )

    def consume(self, channel: str) -> str:
        """The command that prints messages of a channel, or without one of a copy of all."""
        words = ["tail", "--topic", self.topic, *(["--channel", channel] if channel else [])]
        given = (each.tcp for each in self.nsqds if each.given and each.tcp)
        nsqds = () if self.lookupds else _each("--nsqd-tcp-address", given)
        return _line(*words, *self._lookupd_options, *nsqds)

    def publish(self) -> str:
        """The command that publishes a message, to an nsqd that is there."""
        known = [each.tcp for each in self.nsqds if each.tcp and each.answers]
        where = str(known[0]) if known else f"HOST:{NSQD_TCP_PORT}"
        return _line("pub", "--topic", self.topic, "--nsqd-tcp-address", where, "hello")

    def watch_consumers(self) -> str:
        """The command that tells again and again what each consumer of the channel finishes."""
        return self.command("stats", "--clients", "--topic", self.topic, "--channel", self.channel)

    @property
    def _lookupd_options(self) -> list[str]:
        return _each("--lookupd-http-address", (each.url for each in self.lookupds))


def _each(option: str, values: Iterable[object]) -> list[str]:
    return [word for value in values for word in (option, str(value))]


def _line(*words: str) -> str:
    """A command as it is typed."""
    return " ".join(map(quote, ("nsqtools", *words)))
