"""IDENTIFY: what a client may ask for, and what it is answered (protocol_v2.go, client_v2.go)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn

from nsqtools.errors import ServerError
from nsqtools.sandbox.http import to_json
from nsqtools.sandbox.wire import VERSION

if TYPE_CHECKING:
    from nsqtools.config import NsqdOptions

DEFLATE_LEVEL = 6
"""The default of nsqd, and its maximum."""

MAX_OUTPUT_BUFFER_SIZE = 64 << 10
MAX_OUTPUT_BUFFER_TIMEOUT = 30_000  # ms
_MIN_OUTPUT_BUFFER_SIZE = 64
_MIN_OUTPUT_BUFFER_TIMEOUT = 25  # ms
_MIN_INTERVAL = 1000  # ms, of heartbeats and message timeouts


def _int32() -> Any:
    return field(default=0, metadata={"bits": 32})


@dataclass(slots=True)
class Identify:
    """The body of IDENTIFY; times in ms, 0 and "" for what was not said."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = _int32()
    user_agent: str = ""
    msg_timeout: int = 0


@dataclass(slots=True)
class Settings:
    """What holds for one client; times in seconds."""

    client_id: str
    hostname: str
    msg_timeout: float
    user_agent: str = ""
    heartbeat_interval: float = 30.0
    """0 for no heartbeats."""
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout: float = 0.25
    sample_rate: int = 0

    def apply(self, wishes: Identify, options: NsqdOptions) -> None:
        """Take over what a client wishes; raises ServerError for what is out of bounds."""
        self.client_id = wishes.client_id
        self.hostname = wishes.hostname
        self.user_agent = wishes.user_agent
        self._set_heartbeat(wishes.heartbeat_interval, options)
        self._set_output_buffer(wishes)
        if not 0 <= wishes.sample_rate <= 99:
            _refuse("sample rate", wishes.sample_rate)
        self.sample_rate = wishes.sample_rate
        if wishes.msg_timeout:
            longest = round(options.max_msg_timeout * 1000)
            if not _MIN_INTERVAL <= wishes.msg_timeout <= longest:
                _refuse("msg timeout", wishes.msg_timeout)
            self.msg_timeout = wishes.msg_timeout / 1000

    def _set_heartbeat(self, wish: int, options: NsqdOptions) -> None:
        if wish == -1:
            self.heartbeat_interval = 0.0
        elif wish:
            if not _MIN_INTERVAL <= wish <= round(options.max_heartbeat_interval * 1000):
                _refuse("heartbeat interval", wish)
            self.heartbeat_interval = wish / 1000

    def _set_output_buffer(self, wishes: Identify) -> None:
        timeout, size = wishes.output_buffer_timeout, wishes.output_buffer_size
        if timeout == -1:
            self.output_buffer_timeout = 0.0
        elif timeout:
            if not _MIN_OUTPUT_BUFFER_TIMEOUT <= timeout <= MAX_OUTPUT_BUFFER_TIMEOUT:
                _refuse("output buffer timeout", timeout)
            self.output_buffer_timeout = timeout / 1000
        if size == -1:
            self.output_buffer_size, self.output_buffer_timeout = 1, 0.0
        elif size:
            if not _MIN_OUTPUT_BUFFER_SIZE <= size <= MAX_OUTPUT_BUFFER_SIZE:
                _refuse("output buffer size", size)
            self.output_buffer_size = size


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The answer to a client that negotiates, and the layers that come with it."""

    reply: bytes
    tls: bool
    snappy: bool
    deflate_level: int
    """0 for no deflate."""


def negotiate(
    wishes: Identify,
    settings: Settings,
    options: NsqdOptions,
    *,
    has_tls: bool,
    auth_required: bool,
) -> Negotiated:
    """What is granted of a client's wishes; raises ServerError for both compressions."""
    deflate, snappy = options.deflate and wishes.deflate, options.snappy and wishes.snappy
    level = DEFLATE_LEVEL
    if deflate and wishes.deflate_level > 0:
        level = min(wishes.deflate_level, DEFLATE_LEVEL)
    if deflate and snappy:
        raise ServerError("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
    reply = {
        "max_rdy_count": options.max_rdy_count,
        "version": VERSION,
        "max_msg_timeout": round(options.max_msg_timeout * 1000),
        "msg_timeout": round(settings.msg_timeout * 1000),
        "tls_v1": has_tls and wishes.tls_v1,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": DEFLATE_LEVEL,
        "snappy": snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": auth_required,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": round(settings.output_buffer_timeout * 1000),
    }
    return Negotiated(to_json(reply), has_tls and wishes.tls_v1, snappy, level if deflate else 0)


def parse_identify(body: bytes) -> Identify:
    """The body of IDENTIFY, as Go's ``encoding/json`` takes it: names in any case, null for
    nothing, no number for a text. Raises ServerError.
    """
    try:
        given = json.loads(body.decode("utf-8", "replace"), parse_constant=_no_constant)
        if given is None:
            return Identify()
        if not isinstance(given, dict):
            raise TypeError
        known = {each.name: each for each in fields(Identify)}
        values = {}
        for name, value in given.items():
            if (each := known.get(name.lower())) and value is not None:
                _check_type(value, each.type, each.metadata.get("bits", 64))
                values[each.name] = value
    except (ValueError, TypeError, RecursionError):
        raise ServerError("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    return Identify(**values)


def _check_type(value: object, wanted: object, bits: int) -> None:
    if type(value).__name__ != wanted:
        raise TypeError
    if isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError


def _no_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _refuse(what: str, value: int) -> NoReturn:
    raise ServerError(f"E_BAD_BODY IDENTIFY {what} ({value}) is invalid")
