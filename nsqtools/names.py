"""Server addresses, and the rules for topic and channel names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol, Self, runtime_checkable

from nsqtools.errors import ConfigError

NSQD_TCP_PORT = 4150
NSQD_HTTP_PORT = 4151
LOOKUPD_HTTP_PORT = 4161

MAX_NAME = 64
_EPHEMERAL = "#ephemeral"
_NAME = re.compile(rf"[.a-zA-Z0-9_-]+({_EPHEMERAL})?")


@runtime_checkable
class TopicPattern(Protocol):
    """A compiled regular expression for the names of topics, of ``re`` or of another library."""

    @property
    def pattern(self) -> str:
        """The expression."""

    def search(self, string: str, /) -> object | None:
        """Return None if nothing in a name matches."""


class _HostPort(NamedTuple):
    host: str
    port: int


class Address(_HostPort):
    """Host and port of a server. ``str()`` gives ``host:port``, or ``[host]:port`` for IPv6.

    Raises ConfigError unless ``host`` is a text and ``port`` a whole number from 0 to 65535::

        address = Address("127.0.0.1", 4150)
        assert address == Address.parse("127.0.0.1:4150")
        assert str(Address("::1", 4150)) == "[::1]:4150"
    """

    __slots__ = ()

    def __new__(cls, host: str, port: int) -> Self:
        """Check the types."""
        check_type("host", host, str)
        check_type("port", port, int)
        if not 0 <= port <= 65535:
            raise ConfigError(f"port: {port} is out of range: expected 0 to 65535")
        return super().__new__(cls, host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Address:
        """Parse ``host:port``, ``[v6]:port``, or ``host`` if there is a default port.

        With a default port of 0, used for local addresses, the text may contain port 0, too.
        Raises ConfigError with the reason.
        """
        text = text.strip()
        if "@" in text:  # never show the part before @: it may hold a password
            host = text.rpartition("@")[2]
            raise ConfigError(
                f"address of {host!r}: user names are not supported: remove the part before @"
            )
        if "," in text:
            raise ConfigError(
                f"address {text!r}: expected one address: repeat the option, or separate the "
                "values of an environment variable by spaces"
            )
        if "/" in text:
            raise ConfigError(f"address {text!r}: expected host:port, without a scheme or path")
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise ConfigError(f"address {text!r}: write an IPv6 address as [host]:port")
            port = rest[1:]
        elif text.count(":") > 1:
            raise ConfigError(f"address {text!r}: write an IPv6 address as [host]:port")
        else:
            host, _, port = text.partition(":")
        if not host:
            raise ConfigError(f"address {text!r}: the host is missing: expected host:port")
        if not port and default_port is not None:
            return cls(host, default_port)
        lowest = 0 if default_port == 0 else 1
        valid = port.isascii() and port.isdigit() and len(port) < 6
        if not (valid and lowest <= int(port) < 65536):
            raise ConfigError(f"address {text!r}: expected a port from 1 to 65535 after the colon")
        return cls(host, int(port))


def listening_address(text: str) -> Address | None:
    """Parse a listening address; returns None for an empty text.

    ``:PORT`` means 127.0.0.1, and the port may be 0. Raises ConfigError for a malformed address.
    """
    text = text.strip()
    if not text:
        return None
    if text.startswith(":") and text.count(":") == 1:
        text = f"127.0.0.1{text}"
    return Address.parse(text, 0 if text.endswith(":0") else None)


def check_type(name: str, value: object, kind: type) -> None:
    """Raise ConfigError, naming the argument, unless the value has this type."""
    if not isinstance(value, kind):
        found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise ConfigError(f"{name}: expected {kind.__name__}, found {found}")


def check_seconds(name: str, *values: object) -> None:
    """Raise ConfigError, naming the argument, unless each value is a number of at least 0."""
    for value in values:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
            raise ConfigError(f"{name}: expected a number of seconds, found {value!r}")


def check_list(name: str, values: object, kind: type) -> None:
    """Raise ConfigError unless ``values`` is a list or tuple of items of this type."""
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, kind)):
        raise ConfigError(
            f"{name}: expected a list of {kind.__name__}, found {type(values).__name__}"
        )
    for found in set(map(type, values)):
        if not issubclass(found, kind):
            raise ConfigError(f"{name}: expected {kind.__name__}, found {found.__name__}")


def is_valid_name(name: str) -> bool:
    """Whether nsqd accepts this as a topic or channel name (tcp_protocol_spec, Notes)."""
    return 0 < len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether nsqd deletes the topic with its last channel, or the channel with its last client."""
    return name.endswith(_EPHEMERAL)


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach an address, given as a name or an IP address."""
    from ipaddress import ip_address  # a TAB press does not need it

    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_name(kind: str, name: str) -> str:
    """Return the name, or raise ConfigError; ``kind`` is "topic" or "channel"."""
    if not isinstance(name, str) or not is_valid_name(name):
        raise ConfigError(
            f"{kind} {name!r}: expected 1 to {MAX_NAME} of the characters . _ - a-z A-Z 0-9, "
            f"optionally ending in {_EPHEMERAL}"
        )
    return name
