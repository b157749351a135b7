"""What the options of the source and of the sink mean: texts to settings, or one clear error.

Names are in the style of Spark's Kafka source. Spark hands them over in lower case; an error spells
them as the documentation does. ``nsq.NAME`` is the option NAME of a connection, as
``--consumer-opt`` takes it. Secrets have no value here, since options travel and are logged: they
are read where the connection is made, from a file or from an environment variable.

The errors of what these options lead to name options. Where a command of nsqtools has made them of
its flags, ``flags`` is true, and the errors name those.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nsqtools.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    StreamConfig,
    checked_secret,
    read_secret,
)
from nsqtools.config.option import Option
from nsqtools.config.units import nearest
from nsqtools.errors import ConfigError, NSQError, PeerError
from nsqtools.names import NSQD_TCP_PORT, Address, check_name, is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

C = TypeVar("C", bound=ClientConfig)
C_co = TypeVar("C_co", bound=ClientConfig, covariant=True)

_NSQ = "nsq."
_SECRET_ENV = "auth_secret_env"  # noqa: S105 - names a variable

_SERVERS = ("nsqd.tcp.addresses", "nsqlookupd.http.addresses")
_FLAGS = "flags"

# Options that may be left out, each with its field in SourceSettings, which has the default.
_OPTIONAL = {
    "checkpointPath": ("checkpoint", Option("text", "")),
    "streamName": ("stream", Option("text", "")),
    "maxMessagesPerTrigger": ("max_messages", Option("integer", "", minimum=0)),
    "connectionsPerNsqd": ("connections", Option("integer", "", minimum=1, maximum=1000)),
    "maxInFlight": ("max_in_flight", Option("integer", "", minimum=1)),
    "idleTimeoutMs": ("idle_timeout", Option("integer", "", minimum=1)),
    "maxReadMs": ("max_read", Option("integer", "", minimum=0)),
    "pollIntervalMs": ("poll_interval", Option("integer", "", minimum=1)),
    "waitForServers": ("wait_for_servers", Option("flag", "")),
}
_SOURCE = (*_SERVERS, "subscribe", "channel", "stagingLocation", *_OPTIONAL, _FLAGS)
_SINK = (*_SERVERS, "topic", _FLAGS)

# Spark puts what the query itself is told among the options of its sink.
_OF_QUERIES = ("checkpointlocation", "queryname")

# Of a consumer's options, those that make sense where Spark decides what is read.
_SOURCE_NSQ = [name for name in StreamConfig.declared() if name != "max_in_flight"]


class SharedSettings(Protocol[C_co]):
    """What the settings of source and sink share."""

    @property
    def config(self) -> C_co:
        """Of the connections, without a secret."""

    @property
    def auth_secret_env(self) -> str:
        """The variable that has the secret, or nothing."""

    @property
    def flags(self) -> bool:
        """Whether errors name flags."""


@dataclass(frozen=True, slots=True)
class NamedNsqd:
    """An nsqd that is named in the options; ``http`` is a URL or ``host:port``."""

    tcp: Address
    http: str


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The source's options; times are seconds. One of ``nsqds`` and ``lookupds`` is empty."""

    topics: tuple[str, ...]
    channel: str
    staging: str
    nsqds: tuple[NamedNsqd, ...]
    lookupds: tuple[str, ...]
    config: ConsumerConfig
    auth_secret_env: str = ""
    checkpoint: str = ""
    """Path of the query's checkpoint, where that is local: its logs are synced."""
    stream: str = ""
    """What a new checkpoint calls its stream, to go on with what one of that name has staged."""
    max_messages: int = 0
    """Most messages of a micro-batch; 0 for no limit."""
    connections: int = 2
    """Partitions for each topic on an nsqd."""
    max_in_flight: int = 5_000
    """For each partition. nsqd allows a connection 2500 by default, so several share it."""
    idle_timeout: float = 2.0
    """A partition ends when nothing came for this long, short of its quota."""
    max_read: float = 60.0
    """A partition ends after this time; 0 for no limit."""
    poll_interval: float = 0.5
    wait_for_servers: bool = False
    """That no server answers at the start is no error."""
    flags: bool = False


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The sink's options. One of ``nsqds`` and ``lookupds`` is empty; ``topic`` may be."""

    topic: str
    nsqds: tuple[Address, ...]
    lookupds: tuple[str, ...]
    config: ProducerConfig
    auth_secret_env: str = ""
    flags: bool = False


def parse_source(options: Mapping[str, str]) -> SourceSettings:
    """The settings of a read; raises ConfigError naming option and fix."""
    given = _Given(options, _SOURCE, _SOURCE_NSQ)
    topics = tuple(check_name("topic", each) for each in given.items("subscribe"))
    if not topics:
        raise ConfigError("option subscribe is required: the topics to read, with commas between")
    channel = given.text("channel")
    if not channel:
        raise ConfigError("option channel is required: messages are taken from that channel")
    if is_ephemeral(check_name("channel", channel)):
        raise ConfigError(
            f"option channel: {channel!r} would vanish between two micro-batches: take one that "
            "does not end in #ephemeral"
        )
    staging = given.text("stagingLocation")
    if not staging:
        raise ConfigError(
            "option stagingLocation is required: a directory, shared by driver and executors, for "
            "the messages of micro-batches that are not committed yet"
        )
    nsqds, lookupds = given.servers()
    return SourceSettings(
        topics=tuple(dict.fromkeys(topics)),
        channel=channel,
        staging=staging,
        nsqds=nsqds,
        lookupds=lookupds,
        config=given.config(ConsumerConfig),
        auth_secret_env=given.secret_env,
        flags=given.flags,
        **given.optional(),
    )


def parse_sink(options: Mapping[str, str]) -> SinkSettings:
    """The settings of a write; raises ConfigError naming option and fix."""
    of_sink = {k: v for k, v in options.items() if k.lower() not in _OF_QUERIES}
    given = _Given(of_sink, _SINK, tuple(ProducerConfig.declared()))
    topic = given.text("topic")
    nsqds, lookupds = given.servers()
    return SinkSettings(
        topic=check_name("topic", topic) if topic else "",
        nsqds=tuple(each.tcp for each in nsqds),
        lookupds=lookupds,
        config=given.config(ProducerConfig),
        auth_secret_env=given.secret_env,
        flags=given.flags,
    )


def with_secret(settings: SharedSettings[C]) -> C:
    """The connections' options with the secret, from the file or variable of this machine.

    Raises ConfigError if it cannot be read.
    """
    config, path = settings.config, settings.config.auth_secret_file
    if path:
        secret = read_secret(path, f"{_spelled('auth_secret_file', settings.flags)} {path}")
    elif variable := settings.auth_secret_env:
        where = f"{_spelled(_SECRET_ENV, settings.flags)} {variable}"
        if variable not in os.environ:
            raise ConfigError(f"{where}: no such variable where the connection is made")
        secret = checked_secret(os.environ[variable], where)
    else:
        return config
    return config.with_values(auth_secret=secret, auth_secret_file="")


def respelled(error: NSQError, *, flags: bool) -> NSQError:
    """The error with the flags it names replaced by options, as ``--tls-v1`` by ``nsq.tls_v1``.

    With ``flags`` it stays as it is.
    """
    if flags:
        return error
    if isinstance(error, PeerError):
        error.text = _respell(error.text)
    error.args = tuple(_respell(each) if isinstance(each, str) else each for each in error.args)
    return error


def _respell(text: str) -> str:
    def option(match: re.Match[str]) -> str:
        return _spelled(match[1].replace("-", "_"), flags=False)

    return re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])", option, text)


def _spelled(name: str, flags: bool) -> str:
    """An option of connections, as errors name it."""
    return f"--{name.replace('_', '-')}" if flags else _NSQ + name


class _Given:
    """The options that were given, all of them known ones."""

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], nsq: Iterable[str]
    ) -> None:
        self._options = {key.lower(): str(value).strip() for key, value in options.items()}
        self._nsq = {_NSQ + name: name for name in (*nsq, _SECRET_ENV) if name != "auth_secret"}
        spelling = {name.lower(): name for name in (*known, *self._nsq)}
        for key in self._options:
            if key == f"{_NSQ}auth_secret":
                raise ConfigError(
                    f"option {key}: a secret is no option, since options travel and are logged: "
                    "give nsq.auth_secret_file or nsq.auth_secret_env, read where connections are "
                    "made"
                )
            if key not in spelling:
                found = nearest(key, spelling)
                near = re.sub("'.*'", lambda match: repr(spelling[match[0][1:-1]]), found)
                raise ConfigError(f"unknown option {key!r}{near}")

    def text(self, name: str) -> str:
        """An option's value, or nothing."""
        return self._options.get(name.lower(), "")

    def items(self, name: str) -> list[str]:
        """The values of an option that takes several, with commas between."""
        return [item for each in self.text(name).split(",") if (item := each.strip())]

    def parsed(self, name: str, option: Option) -> Any:
        """Its value, or None where it is not given."""
        if name.lower() not in self._options:
            return None
        try:
            return option.parse(self.text(name))
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def optional(self) -> dict[str, Any]:
        """What was given of the options that may be left out, by field; times in seconds."""
        found = {}
        for name, (field, option) in _OPTIONAL.items():
            value = self.parsed(name, option)
            if value is not None:
                found[field] = value / 1000 if name.endswith("Ms") else value
        return found

    def servers(self) -> tuple[tuple[NamedNsqd, ...], tuple[str, ...]]:
        """The nsqds, or the nsqlookupds; an nsqd on this host if neither is given."""
        direct, lookup = _SERVERS
        lookupds = tuple(self.items(lookup))
        for each in lookupds:
            _check_url(lookup, each)
        nsqds = tuple(_nsqd(direct, each) for each in self.items(direct))
        if nsqds and lookupds:
            raise ConfigError(f"options {direct} and {lookup} exclude each other: give one")
        if not (nsqds or lookupds):
            nsqds = (_nsqd(direct, f"127.0.0.1:{NSQD_TCP_PORT}"),)
        return tuple({each.tcp: each for each in nsqds}.values()), lookupds

    def config(self, kind: type[C]) -> C:
        """The options of connections."""
        declared, values = kind.declared(), {}
        for key, name in self._nsq.items():
            if name in declared and key in self._options:
                values[name] = self.parsed(key, declared[name])
        if values.get("auth_secret_file") and self.secret_env:
            raise ConfigError(
                f"options nsq.auth_secret_file and nsq.{_SECRET_ENV} exclude each other: give one"
            )
        try:
            return kind(**values)
        except ConfigError as error:
            raise respelled(error, flags=self.flags) from None

    @property
    def flags(self) -> bool:
        """Whether errors name flags."""
        return bool(self.parsed(_FLAGS, Option("flag", "")))

    @property
    def secret_env(self) -> str:
        """The name of the variable that has the secret."""
        return self.text(_NSQ + _SECRET_ENV)


def _nsqd(option: str, text: str) -> NamedNsqd:
    """``HOST:TCP``, ``HOST:TCP/HTTP`` or ``HOST:TCP/URL``; the HTTP port is the next one."""
    tcp, slash, http = text.partition("/")
    try:
        address = Address.parse(tcp, NSQD_TCP_PORT)
    except ConfigError as error:
        raise ConfigError(f"option {option}: {error}") from None
    if not slash:
        http = str(min(address.port + 1, 65535))
    if http.isascii() and http.isdigit():
        http = f"{str(address).rpartition(':')[0]}:{http}"
    _check_url(option, http)
    return NamedNsqd(address, http)


def _check_url(option: str, text: str) -> None:
    try:
        Option("url", "").check(text or "/")
    except ConfigError as error:
        raise ConfigError(f"option {option}: {error}") from None
