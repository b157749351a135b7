"""What the replies of the HTTP APIs of nsqd and nsqlookupd hold, checked field by field.

The ``decode_`` functions take JSON data without an envelope and raise ValueError, naming the field,
for data of another shape: no reply of a foreign server may end in a KeyError.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.errors import show as show
from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Producer:
    """An nsqd that nsqlookupd knows. ``tombstones`` run parallel to ``topics``; /nodes has both."""

    broadcast_address: str
    hostname: str
    remote_address: str
    tcp_port: int
    http_port: int
    version: str
    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @property
    def tcp(self) -> Address:
        """Where to consume; what identifies it (building_client_libraries, Discovery)."""
        return Address(self.broadcast_address, self.tcp_port)

    @property
    def http(self) -> Address:
        """Where its HTTP API is."""
        return Address(self.broadcast_address, self.http_port)


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one nsqlookupd knows of a topic; empty if it does not know the topic."""

    channels: tuple[str, ...] = ()
    producers: tuple[Producer, ...] = ()


@dataclass(frozen=True, slots=True)
class NsqdInfo:
    """/info of an nsqd; ``start_time`` is in seconds since the epoch. Before 1.0: only version."""

    version: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    start_time: int


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A consumer in /stats; ``connect_ts`` is in seconds since the epoch.

    ``state`` is 3 while it consumes and 4 when it is about to leave (``nsqd/client_v2.go``).
    """

    client_id: str
    hostname: str
    user_agent: str
    remote_address: str
    state: int
    ready_count: int
    in_flight: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    tls: bool
    snappy: bool
    deflate: bool
    authed: bool


@dataclass(frozen=True, slots=True)
class Latency:
    """From publishing to FIN: pairs of a quantile and seconds, over nsqd's window of time."""

    count: int
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel in /stats. ``depth`` includes ``backend_depth``, but not in flight or deferred.

    ``latency`` is None unless nsqd is told to keep percentiles; ``clients`` come if asked for.
    """

    name: str
    depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    paused: bool
    latency: Latency | None = None
    clients: tuple[ClientStats, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic in /stats; its own depth is what no channel has taken yet."""

    name: str
    depth: int
    backend_depth: int
    message_count: int
    paused: bool
    channels: tuple[ChannelStats, ...]
    message_bytes: int = 0
    latency: Latency | None = None


@dataclass(frozen=True, slots=True)
class NsqdStats:
    """/stats; ``start_time`` is in seconds since the epoch, ``health`` is OK or what is wrong."""

    version: str
    health: str
    start_time: int
    topics: tuple[TopicStats, ...]


def union_producers(answers: Iterable[Iterable[Producer]]) -> dict[Address, Producer]:
    """All producers by ``broadcast_address:tcp_port`` (building_client_libraries, Discovery).

    Of one in several answers the topics are united. A topic is tombstoned there only if all who
    list it say so: a consumer that asks them all would still find it.
    """
    united: dict[Address, Producer] = {}
    for producer in (each for answer in answers for each in answer):
        known = united.setdefault(producer.tcp, producer)
        dead = dict(zip(known.topics, known.tombstones, strict=True))
        for topic, tombstoned in zip(producer.topics, producer.tombstones, strict=True):
            dead[topic] = dead.get(topic, True) and tombstoned
        united[producer.tcp] = replace(known, topics=tuple(dead), tombstones=tuple(dead.values()))
    return united


def decode_lookup(data: object) -> Lookup:
    """/lookup of nsqlookupd."""
    return Lookup(tuple(decode_texts(data, "channels")), tuple(_producers(data)))


def decode_nodes(data: object) -> list[Producer]:
    """/nodes of nsqlookupd."""
    return _producers(data)


def decode_texts(data: object, name: str) -> list[str]:
    """A list of texts, such as that of /topics."""
    values = _field(data, name, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name!r} is expected to hold only texts")
    return values


def decode_info(data: object) -> NsqdInfo:
    """/info of nsqd."""
    return NsqdInfo(
        _field(data, "version", str),
        _field(data, "broadcast_address", str, ""),
        _field(data, "hostname", str, ""),
        _field(data, "tcp_port", int, 0),
        _field(data, "http_port", int, 0),
        _field(data, "start_time", int, 0),
    )


def decode_report(data: object) -> NsqdStats:
    """/stats of nsqd with what it says of itself; of an early nsqd that is missing."""
    return NsqdStats(
        _field(data, "version", str, ""),
        _field(data, "health", str, ""),
        _field(data, "start_time", int, 0),
        tuple(decode_stats(data)),
    )


def decode_stats(data: object) -> list[TopicStats]:
    """/stats of nsqd, where Go writes an empty list as null."""
    return [
        TopicStats(
            _field(topic, "topic_name", str),
            _field(topic, "depth", int),
            _field(topic, "backend_depth", int, 0),
            _field(topic, "message_count", int, 0),
            _field(topic, "paused", bool, False),
            tuple(_channel(channel) for channel in _nullable(topic, "channels")),
            _field(topic, "message_bytes", int, 0),
            _latency(topic),
        )
        for topic in _nullable(data, "topics")
    ]


def select_stats(
    topics: Iterable[TopicStats], topic: str | None, channel: str | None
) -> list[TopicStats]:
    """The topic of that name, and of all or that one the channel of that name, if it has it.

    So nsqd filters since 1.0; earlier ones may send everything.
    """
    found = [each for each in topics if topic in (None, each.name)]
    if channel is None:
        return found
    only = [
        replace(each, channels=tuple(c for c in each.channels if c.name == channel))
        for each in found
    ]
    return [each for each in only if each.channels]


def _channel(entry: object) -> ChannelStats:
    clients = _nullable(entry, "clients") if "clients" in _keys(entry) else []
    return ChannelStats(
        _field(entry, "channel_name", str),
        _field(entry, "depth", int),
        _field(entry, "backend_depth", int, 0),
        _field(entry, "in_flight_count", int, 0),
        _field(entry, "deferred_count", int, 0),
        _field(entry, "message_count", int, 0),
        _field(entry, "requeue_count", int, 0),
        _field(entry, "timeout_count", int, 0),
        _field(entry, "client_count", int, len(clients)),
        _field(entry, "paused", bool, False),
        _latency(entry),
        tuple(map(_client, clients)),
    )


def _client(entry: object) -> ClientStats:
    return ClientStats(
        _field(entry, "client_id", str, ""),
        _field(entry, "hostname", str, ""),
        _field(entry, "user_agent", str, ""),
        _field(entry, "remote_address", str, ""),
        _field(entry, "state", int, 0),
        _field(entry, "ready_count", int, 0),
        _field(entry, "in_flight_count", int, 0),
        _field(entry, "message_count", int, 0),
        _field(entry, "finish_count", int, 0),
        _field(entry, "requeue_count", int, 0),
        _field(entry, "connect_ts", int, 0),
        _field(entry, "tls", bool, False),
        _field(entry, "snappy", bool, False),
        _field(entry, "deflate", bool, False),
        _field(entry, "authed", bool, False),
    )


def _latency(entry: object) -> Latency | None:
    """None without percentiles: those of nsqd are in nanoseconds (``internal/quantile``)."""
    found = _keys(entry).get("e2e_processing_latency")
    if found is None or not _keys(found).get("percentiles"):
        return None
    percentiles = _field(found, "percentiles", list)
    return Latency(
        _field(found, "count", int, 0),
        tuple((_number(each, "quantile"), _number(each, "value") / 1e9) for each in percentiles),
    )


def _producers(data: object) -> list[Producer]:
    return [_producer(entry) for entry in _field(data, "producers", list)]


def _producer(entry: object) -> Producer:
    host = _field(entry, "broadcast_address", str)
    if not _is_host(host):
        raise ValueError(f"'broadcast_address' is {_name(host)}, expected a host")
    topics = decode_texts(entry, "topics") if "topics" in _keys(entry) else []
    tombstones = _field(entry, "tombstones", list, [False] * len(topics))
    if len(tombstones) != len(topics) or not all(type(each) is bool for each in tombstones):
        raise ValueError("'tombstones' is expected to hold a boolean for each topic")
    return Producer(
        host,
        _field(entry, "hostname", str, ""),
        _field(entry, "remote_address", str, ""),
        _port(entry, "tcp_port"),
        _port(entry, "http_port"),
        _field(entry, "version", str, ""),
        tuple(topics),
        tuple(tombstones),
    )


def _is_host(text: str) -> bool:
    """Whether an address can be made of it that reads back as the same."""
    if ":" not in text:
        return text.isprintable() and re.fullmatch(r"[^\s/\\?#@%\[\]]+", text) is not None
    try:
        return ip_address(text).version == 6
    except ValueError:
        return False


def _port(entry: object, name: str) -> int:
    port = _field(entry, name, int)
    if not 0 < port < 65536:
        raise ValueError(f"{name!r} is {port}, expected 1 to 65535")
    return port


def _nullable(entry: object, name: str) -> list[Any]:
    return [] if _keys(entry).get(name, ()) is None else _field(entry, name, list)


_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
}


def _field(entry: object, name: str, kind: type[T], default: T | None = None) -> T:
    """A field of a JSON object; one that is missing is an error unless there is a default."""
    value = _keys(entry).get(name, default)
    if value is None and name not in _keys(entry):
        raise ValueError(f"{name!r} is missing")
    if type(value) is not kind:  # a JSON boolean must not pass for an integer
        raise ValueError(f"{name!r} is {_name(value)}, expected {_KINDS[kind]}")
    return value


def _number(entry: object, name: str) -> float:
    """A field that JSON may write with or without a fraction."""
    value: Any = _keys(entry).get(name)
    if type(value) not in (int, float):
        raise ValueError(f"{name!r} is {_name(value)}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name!r} is out of range") from None


def _keys(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, not {_name(entry)}")
    return entry


def _name(value: object) -> str:
    return _KINDS[type(value)] if isinstance(value, list | dict) else show(json.dumps(value))
