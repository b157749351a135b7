"""The responses of the HTTP APIs of nsqd and nsqlookupd as dataclasses, checked by field.

The ``decode_`` functions take JSON data without an envelope. They raise ValueError naming the field
for data of the wrong type, so an unknown server never causes a KeyError. An unusable entry of a
list is left out, and added to ``LeftOut`` with the reason. Texts contain no control characters, and
names of topics and channels are valid.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, fields
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.errors import show
from nsqtools.names import Address, is_valid_name

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LeftOut = list[str]
"""The first few entries left out of a response: a line each, with the reason."""

_MAX_LEFT_OUT = 10
_NUMBERS = range(-1 << 63, 1 << 64)  # int64 and uint64
_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
}
_SPELLED = {"in_flight": "in_flight_count", "deferred": "deferred_count"}
"""Fields with a different name in nsqd's JSON."""


@dataclass(frozen=True, slots=True)
class Registration:
    """An nsqd as nsqlookupd lists it; /nodes has its topics, with ``tombstones`` in parallel."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str = ""
    remote_address: str = ""
    version: str = ""
    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @property
    def host(self) -> str:
        """The broadcast address, without the brackets of IPv6."""
        return self.broadcast_address.strip("[]")

    @property
    def tcp(self) -> Address:
        """The address for consumers, and the nsqd's identity (building_client_libraries,
        Discovery)."""
        return Address(self.host, self.tcp_port)

    @property
    def http(self) -> Address:
        """The address of the nsqd's HTTP API."""
        return Address(self.host, self.http_port)

    @property
    def node(self) -> Address:
        """The nsqd's name for nsqlookupd: unchanged broadcast address and HTTP port."""
        return Address(self.broadcast_address, self.http_port)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer of one nsqlookupd for a topic; ``known`` is false for an unknown topic."""

    channels: tuple[str, ...] = ()
    producers: tuple[Registration, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class NsqdInfo:
    """/info of an nsqd; ``start_time`` is in seconds since the epoch. Before 1.0: version only."""

    version: str
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    start_time: int = 0

    @property
    def tcp(self) -> Address | None:
        """The TCP broadcast address, without the brackets of IPv6; None if it is unknown.

        The /info of an nsqlookupd has no TCP port.
        """
        return Address(self.broadcast_address.strip("[]"), self.tcp_port) if self.tcp_port else None


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A consumer in /stats; ``connect_ts`` is in seconds since the epoch.

    ``state`` is 3 while it consumes, 4 after CLS (``nsqd/client_v2.go``).
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    remote_address: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    authed: bool = False


@dataclass(frozen=True, slots=True)
class ProcessingLatency:
    """Time from publishing to FIN: pairs of quantile and seconds, over nsqd's time window."""

    count: int
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel in /stats; ``depth`` includes ``backend_depth``, but not in flight or deferred.

    ``latency`` is None unless nsqd keeps percentiles; ``clients`` is empty unless requested.
    """

    name: str
    depth: int
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: bool = False
    latency: ProcessingLatency | None = None
    clients: tuple[ClientStats, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic in /stats; ``depth`` counts the messages not yet copied to a channel."""

    name: str
    depth: int
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    channels: tuple[ChannelStats, ...] = ()
    message_bytes: int = 0
    latency: ProcessingLatency | None = None


@dataclass(frozen=True, slots=True)
class NsqdStats:
    """/stats; ``start_time`` is in seconds since the epoch, ``health`` is OK or the problem."""

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: tuple[TopicStats, ...] = ()


def decode_lookup(data: object, left_out: LeftOut) -> Lookup:
    """Decode /lookup of nsqlookupd."""
    channels = decode_names(data, left_out, field="channels")
    return Lookup(tuple(channels), tuple(decode_nodes(data, left_out)))


def decode_nodes(data: object, left_out: LeftOut) -> list[Registration]:
    """Decode /nodes of nsqlookupd."""
    entries = _field(data, "producers", list)
    return _usable(entries, "nsqd", lambda entry: _decoded(entry, left_out), left_out)


def compact(value: dict[str, Any]) -> Registration | dict[str, Any]:
    """Decode the entry of an nsqd while JSON is parsed; anything else is returned unchanged.

    A faulty entry is also returned unchanged. A list of objects would take three times as much
    memory.
    """
    if "broadcast_address" not in value:
        return value
    faults: LeftOut = []
    try:
        found = _producer(value, faults)
    except ValueError:
        return value
    return value if faults else found


def _decoded(entry: object, left_out: LeftOut) -> Registration:
    return entry if isinstance(entry, Registration) else _producer(entry, left_out)


def decode_names(data: object, left_out: LeftOut, *, field: str) -> list[str]:
    """Decode a list of names, such as /topics."""
    return _usable(_field(data, field, list), field.rstrip("s"), _checked, left_out)


def decode_info(data: object, _: LeftOut) -> NsqdInfo:
    """Decode /info of nsqd."""
    return NsqdInfo(**_fields(NsqdInfo, data))


def decode_report(data: object, left_out: LeftOut) -> NsqdStats:
    """Decode /stats of nsqd; null means an empty list, and old versions have fewer fields."""
    entries = _nullable(data, "topics")
    topics = _usable(entries, "topic", lambda entry: _topic(entry, left_out), left_out)
    return NsqdStats(**_fields(NsqdStats, data), topics=tuple(topics))


def encode_report(stats: NsqdStats) -> dict[str, Any]:
    """Return /stats as nsqd writes it, for ``decode_report``, without clients and latencies."""
    topics = [
        {
            "topic_name": topic.name,
            **_values(TopicStats, topic),
            "channels": [
                {"channel_name": channel.name, **_values(ChannelStats, channel)}
                for channel in topic.channels
            ],
        }
        for topic in stats.topics
    ]
    return {**_values(NsqdStats, stats), "topics": topics}


def _values(kind: type, each: object) -> dict[str, Any]:
    return {key: getattr(each, name) for name, key, _, _ in _plain(kind)}


def _usable(
    entries: list[Any], kind: str, decode: Callable[[Any], T], left_out: LeftOut
) -> list[T]:
    """Return the decodable entries; an invalid entry affects no other."""
    found = []
    for entry in entries:
        try:
            found.append(decode(entry))
        except ValueError as error:
            if len(left_out) < _MAX_LEFT_OUT:
                left_out.append(f"{kind}{_title(entry)}: {error}")
    return found


def _title(entry: object) -> str:
    """Return an entry's name for messages, or an empty string."""
    fields = entry if isinstance(entry, dict) else {}
    names = ("broadcast_address", "topic_name", "channel_name", "client_id", "remote_address")
    titles = [_name(fields[name]) for name in names if name in fields]
    return " " + ", from ".join(titles) if titles else ""


def _topic(entry: object, left_out: LeftOut) -> TopicStats:
    entries = _nullable(entry, "channels")
    channels = _usable(entries, "channel", lambda each: _channel(each, left_out), left_out)
    return TopicStats(
        name=_checked(_keys(entry).get("topic_name")),
        channels=tuple(channels),
        latency=_latency(entry),
        **_fields(TopicStats, entry),
    )


def _channel(entry: object, left_out: LeftOut) -> ChannelStats:
    keys = _keys(entry)
    entries = _nullable(entry, "clients") if "clients" in keys else []
    counted = {} if "client_count" in keys else {"client_count": len(entries)}
    return ChannelStats(
        name=_checked(keys.get("channel_name")),
        latency=_latency(entry),
        clients=tuple(_usable(entries, "client", _client, left_out)),
        **(_fields(ChannelStats, entry) | counted),
    )


def _client(entry: object) -> ClientStats:
    return ClientStats(**_fields(ClientStats, entry))


def _latency(entry: object) -> ProcessingLatency | None:
    """Decode percentiles, in nanoseconds (``internal/quantile``); None if there are none."""
    found = _keys(entry).get("e2e_processing_latency")
    if found is None or not _keys(found).get("percentiles"):
        return None
    pairs = [
        (_field(each, "quantile", float), _field(each, "value", float) / 1e9)
        for each in _field(found, "percentiles", list)
    ]
    return ProcessingLatency(_field(found, "count", int, 0), tuple(pairs))


def _producer(entry: object, left_out: LeftOut) -> Registration:
    fields = _fields(Registration, entry)
    host = fields["broadcast_address"]
    if not is_host(host):
        raise ValueError(f"'broadcast_address' is {_name(host)}, expected a host")
    for name in ("tcp_port", "http_port"):
        if not 0 < fields[name] < 65536:
            raise ValueError(f"{name!r} is {fields[name]}, expected 1 to 65535")
    topics = _field(entry, "topics", list, [])
    tombstones = _field(entry, "tombstones", list, [False] * len(topics))
    if len(tombstones) != len(topics) or not all(type(each) is bool for each in tombstones):
        raise ValueError("'tombstones' is invalid, expected a boolean for each topic")
    pairs = _usable(
        list(zip(topics, tombstones, strict=True)),
        f"topic of nsqd {_name(host)}",
        lambda pair: (_checked(pair[0]), pair[1]),
        left_out,
    )
    shared = {name: _shared(fields[name]) for name in ("version", "tcp_port", "http_port")}
    return Registration(
        **fields | shared,
        topics=_shared(tuple(_shared(topic) for topic, _ in pairs)),
        tombstones=_shared(tuple(tombstoned for _, tombstoned in pairs)),
    )


@lru_cache(maxsize=10_000)
def _shared(value: T) -> T:
    """Return an equal value seen before: hundreds of thousands of nsqds have few versions."""
    return value


def is_host(text: str) -> bool:
    """Whether ``text`` may be a host name, or is an IP address, IPv6 with or without brackets."""
    try:
        if ":" in text:
            return ip_address(re.sub(r"\A\[(.*)\]\Z", r"\1", text)).version == 6
        ascii_host(text)
    except ValueError:  # UnicodeError is a ValueError
        return False
    return text.isprintable() and re.fullmatch(r"[^\s/\\?#@%,\[\]]+", text) is not None


def ascii_host(host: str) -> str:
    """Encode a host for DNS; raises UnicodeError."""
    if not host.isascii():
        return host.encode("idna").decode()
    # The checks of the IDNA codec, repeated here because importing it takes long.
    if not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise UnicodeError("a label is empty or too long")
    return host


def _checked(name: object) -> str:
    """Return a valid name of a topic or channel; raises ValueError."""
    if not isinstance(name, str) or not is_valid_name(name):
        raise ValueError(f"{_name(name)} is not a valid name")
    return name


def _nullable(entry: object, name: str) -> list[Any]:
    return [] if _keys(entry).get(name, ()) is None else _field(entry, name, list)


def _fields(kind: type, entry: object) -> dict[str, Any]:
    """Read a dataclass's str, int and bool fields from a JSON object.

    A field without a default must be present. ``name`` is left to the caller.
    """
    return {name: _field(entry, key, of, default) for name, key, of, default in _plain(kind)}


@cache
def _plain(kind: type) -> list[tuple[str, str, type, Any]]:
    """Return these fields of a dataclass: name, name in JSON, type, and default or None."""
    types = {"str": str, "int": int, "bool": bool}
    return [
        (
            each.name,
            _SPELLED.get(each.name, each.name),
            types[str(each.type)],
            None if each.default is MISSING else each.default,
        )
        for each in fields(kind)
        if each.type in types and each.name != "name"
    ]


def _field(entry: object, name: str, kind: type[T], default: T | None = None) -> T:
    """Read a field of a JSON object; raises ValueError if it is missing without a default."""
    keys = _keys(entry)
    value: Any = keys.get(name, default)
    if value is None and name not in keys:
        raise ValueError(f"{name!r} is missing")
    if type(value) is int and value not in _NUMBERS:
        raise ValueError(f"{name!r} is out of range")
    if kind is float and type(value) is int:  # JSON may write a float without a fraction
        value = float(value)
    if type(value) is not kind:  # a JSON boolean must not pass for an integer
        raise ValueError(f"{name!r} is {_name(value)}, expected {_KINDS[kind]}")
    if isinstance(value, str) and not value.isprintable():
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)  # type: ignore[return-value]
    return value


def _keys(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, not {_name(entry)}")
    return entry


def _name(value: object) -> str:
    return _KINDS[type(value)] if isinstance(value, list | dict) else show(json.dumps(value))
