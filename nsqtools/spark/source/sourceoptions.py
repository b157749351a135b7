"""The options of the source and of the sink: texts to settings, or an error.

Names follow Spark's Kafka source. Spark passes them in lower case; errors use the documented
spelling. ``nsq.NAME`` is the option NAME of a connection, as in ``--consumer-opt``. Secrets cannot
be options, because options are sent around and logged: a file or an environment variable provides
them where the connection is made.

Errors name options, or command line flags if ``flags`` is true because a command of nsqtools has
set the options.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nsqtools.config.connection import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    checked_secret,
    read_secret,
)
from nsqtools.config.lake import StreamConfig
from nsqtools.config.option import Option
from nsqtools.config.units import nearest
from nsqtools.errors import ConfigError, NSQError, PeerError
from nsqtools.names import NSQD_TCP_PORT, Address, check_name, is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

C = TypeVar("C", bound=ClientConfig)

_NSQ = "nsq."
_SECRET_ENV = "auth_secret_env"  # noqa: S105 - names a variable

_SERVERS = ("nsqd.tcp.addresses", "nsqlookupd.http.addresses")
_FLAGS = "flags"

_REQUIRED = {
    "subscribe": "the topics to read, separated by commas",
    "channel": "the channel to consume",
    "stagingLocation": "a directory, shared by driver and executors, for the messages of "
    "uncommitted micro-batches",
}
# Options that may be left out, each with its field in SourceSettings, which has the default.
_OPTIONAL = {
    "checkpointPath": ("checkpoint", Option("text", "")),
    "streamName": ("stream", Option("text", "")),
    "streamGroup": ("group", Option("text", "")),
    "maxMessagesPerTrigger": ("max_messages", Option("integer", "", minimum=0)),
    "minMessagesPerTrigger": ("min_messages", Option("integer", "", minimum=0)),
    "maxTriggerDelay": ("max_trigger_delay", Option("duration", "", minimum=0)),
    "partitions": ("partitions", Option("integer", "", minimum=0, maximum=100_000)),
    "connectionsPerNsqd": ("connections", Option("integer", "", minimum=1, maximum=1000)),
    "maxInFlight": ("max_in_flight", Option("integer", "", minimum=1)),
    "idleTimeoutMs": ("idle_timeout", Option("integer", "", minimum=1)),
    "maxReadMs": ("max_read", Option("integer", "", minimum=0)),
    "pollIntervalMs": ("poll_interval", Option("integer", "", minimum=1)),
    "waitForServers": ("wait_for_servers", Option("flag", "")),
}
_SOURCE = (*_SERVERS, *_REQUIRED, *_OPTIONAL, _FLAGS)
_SINK = (*_SERVERS, "topic", _FLAGS)

# Spark puts what the query itself is told among the options of its sink.
_OF_QUERIES = ("checkpointlocation", "queryname")

# Of a consumer's options, those that make sense where Spark decides what is read.
_SOURCE_NSQ = [name for name in StreamConfig.declared() if name != "max_in_flight"]


@dataclass(frozen=True, slots=True)
class NamedNsqd:
    """An nsqd from the options; ``http`` is a URL or ``host:port``."""

    tcp: Address
    http: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings(Generic[C]):
    """Settings that source and sink share. Either ``nsqds`` or ``lookupds`` is empty."""

    lookupds: tuple[str, ...]
    config: C
    """Options of connections, without a secret."""
    auth_secret_env: str = ""
    """The environment variable with the secret, or an empty text."""
    flags: bool = False
    """Whether errors name flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(SharedSettings[ConsumerConfig]):
    """The source's options; times are in seconds."""

    topics: tuple[str, ...]
    channel: str
    staging: str
    nsqds: tuple[NamedNsqd, ...]
    checkpoint: str = ""
    """Path of the query's checkpoint if it is local; its logs are synced."""
    stream: str = ""
    """Name of the stream in a new checkpoint, to continue with messages staged under that name."""
    group: str = ""
    """Beginning of the names of all streams of the checkpoint: a query may have several."""
    max_messages: int = 0
    """Maximum messages per micro-batch; 0 for no limit."""
    min_messages: int = 0
    """Messages to wait for before a micro-batch, but not longer than ``max_trigger_delay``."""
    max_trigger_delay: float = 900.0
    partitions: int = 0
    """Partitions of a micro-batch; 0 for the number of the driver's cores."""
    connections: int = 2
    """Maximum connections per topic and nsqd, each of another partition."""
    max_in_flight: int = 5_000
    """Per partition; several connections share it, as nsqd allows 2500 each by default."""
    idle_timeout: float = 2.0
    """A partition ends early after this time without a message."""
    max_read: float = 60.0
    """A partition ends after this time; 0 for no limit."""
    poll_interval: float = 0.5
    wait_for_servers: bool = False
    """Whether to wait, and not fail, if no server answers at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings(SharedSettings[ProducerConfig]):
    """The sink's options; ``topic`` may be empty."""

    topic: str
    nsqds: tuple[Address, ...]


def parse_source(options: Mapping[str, str]) -> SourceSettings:
    """Return the settings of a read; raises ConfigError, which names the option."""
    given = _Given(options, _SOURCE, _SOURCE_NSQ)
    for name, wanted in _REQUIRED.items():
        if not given.items(name):
            raise ConfigError(f"option {name} is required: give {wanted}")
    topics = tuple(check_name("topic", each) for each in given.items("subscribe"))
    channel = given.text("channel")
    if is_ephemeral(check_name("channel", channel)):
        raise ConfigError(
            f"option channel: {channel!r} would be deleted between two micro-batches: choose a"
            " name without #ephemeral"
        )
    nsqds, lookupds = given.servers()
    return SourceSettings(
        topics=tuple(dict.fromkeys(topics)),
        channel=channel,
        staging=given.text("stagingLocation"),
        nsqds=nsqds,
        lookupds=lookupds,
        **given.connecting(ConsumerConfig),
        **given.optional(),
    )


def parse_sink(options: Mapping[str, str]) -> SinkSettings:
    """Return the settings of a write; raises ConfigError, which names the option."""
    of_sink = {k: v for k, v in options.items() if k.lower() not in _OF_QUERIES}
    given = _Given(of_sink, _SINK, tuple(ProducerConfig.declared()))
    topic = given.text("topic")
    nsqds, lookupds = given.servers()
    return SinkSettings(
        topic=check_name("topic", topic) if topic else "",
        nsqds=tuple(each.tcp for each in nsqds),
        lookupds=lookupds,
        **given.connecting(ProducerConfig),
    )


def with_secret(settings: SharedSettings[C]) -> C:
    """Return the connection options with the secret, from a file or variable of this machine.

    Raises ConfigError if the secret cannot be read.
    """
    config, path = settings.config, settings.config.auth_secret_file
    if path:
        secret = read_secret(path, f"{_spelled('auth_secret_file', settings.flags)} {path}")
    elif variable := settings.auth_secret_env:
        where = f"{_spelled(_SECRET_ENV, settings.flags)} {variable}"
        if variable not in os.environ:
            raise ConfigError(
                f"{where}: the environment variable is not set on this machine: set it on every "
                "machine that connects to nsqd"
            )
        secret = checked_secret(os.environ[variable], where)
    else:
        return config
    return config.with_values(auth_secret=secret, auth_secret_file="")


def respelled(error: NSQError, *, flags: bool) -> NSQError:
    """Return the error with flags as options: ``--tls-v1`` becomes ``nsq.tls_v1``.

    With ``flags`` the error is unchanged.
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
                    f"option {key}: a secret cannot be an option, because options are sent "
                    "around and logged: give nsq.auth_secret_file or nsq.auth_secret_env, which "
                    "are read where connections are made"
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
            raise ConfigError(f"options {direct} and {lookup} exclude each other: choose one")
        if not (nsqds or lookupds):
            nsqds = (_nsqd(direct, f"127.0.0.1:{NSQD_TCP_PORT}"),)
        return tuple({each.tcp: each for each in nsqds}.values()), lookupds

    def connecting(self, kind: type[ClientConfig]) -> dict[str, Any]:
        """The options of connections, by field of SharedSettings."""
        flags = bool(self.parsed(_FLAGS, Option("flag", "")))
        variable = self.text(_NSQ + _SECRET_ENV)
        declared, values = kind.declared(), {}
        for key, name in self._nsq.items():
            if name in declared and key in self._options:
                values[name] = self.parsed(key, declared[name])
        if values.get("auth_secret_file") and variable:
            raise ConfigError(
                f"options nsq.auth_secret_file and nsq.{_SECRET_ENV} exclude each other: choose one"
            )
        try:
            config = kind(**values)
        except ConfigError as error:
            raise respelled(error, flags=flags) from None
        return {"config": config, "auth_secret_env": variable, "flags": flags}


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
