"""IDENTIFY: the requests of a client and what nsqd grants (protocol_v2.go, client_v2.go)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ServerError
from nsqtools.sandbox.http_api import VERSION, to_json

if TYPE_CHECKING:
    from nsqtools.config.sandbox import NsqdOptions

DEFLATE_LEVEL = 6
"""nsqd's default and maximum."""

MAX_OUTPUT_BUFFER_SIZE = 64 << 10
MAX_OUTPUT_BUFFER_TIMEOUT = 30_000  # ms
# -1 disables these
_SWITCHED_OFF = ("heartbeat_interval", "output_buffer_timeout", "output_buffer_size")


@dataclass(slots=True)
class Negotiated:
    """The settings of a client: nsqd's defaults, or values of IDENTIFY; times in milliseconds."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval: int = 30_000
    """0 for no heartbeats."""
    output_buffer_size: int = 16 << 10
    output_buffer_timeout: int = 250
    sample_rate: int = 0
    msg_timeout: int = 60_000
    feature_negotiation: bool = False
    """Whether the client expects ``reply`` instead of OK. Without it no layer is granted."""
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL

    def reply(self, options: NsqdOptions) -> bytes:
        """Return the response to IDENTIFY, with keys in nsqd's order."""
        if not self.feature_negotiation:
            return b"OK"
        return to_json(
            {
                "max_rdy_count": options.max_rdy_count,
                "version": VERSION,
                "max_msg_timeout": round(options.max_msg_timeout * 1000),
                "msg_timeout": self.msg_timeout,
                "tls_v1": self.tls_v1,
                "deflate": self.deflate,
                "deflate_level": self.deflate_level,
                "max_deflate_level": DEFLATE_LEVEL,
                "snappy": self.snappy,
                "sample_rate": self.sample_rate,
                "auth_required": bool(options.auth_secret_file),
                "output_buffer_size": self.output_buffer_size,
                "output_buffer_timeout": self.output_buffer_timeout,
            }
        )


def negotiate(body: bytes, options: NsqdOptions) -> Negotiated:
    """Return the settings for the body of an IDENTIFY; raises ServerError."""
    wishes = _parse(body)
    bounds = {
        "heartbeat_interval": (1000, round(options.max_heartbeat_interval * 1000)),
        "output_buffer_size": (64, MAX_OUTPUT_BUFFER_SIZE),
        "output_buffer_timeout": (25, MAX_OUTPUT_BUFFER_TIMEOUT),
        "sample_rate": (0, 99),
        "msg_timeout": (1000, round(options.max_msg_timeout * 1000)),
    }
    for name, (least, most) in bounds.items():
        wish = wishes.get(name, 0)
        if wish == -1 and name in _SWITCHED_OFF:
            wishes[name] = 0
        elif not wish:
            wishes.pop(name, None)
        elif not least <= wish <= most:
            text = f"IDENTIFY {name.replace('_', ' ')} ({wish}) is invalid"
            raise ServerError(f"E_BAD_BODY {text}")
    agreed = Negotiated(**{"msg_timeout": round(options.msg_timeout * 1000), **wishes})
    if not agreed.output_buffer_size:  # without a buffer there is no timeout
        agreed.output_buffer_size, agreed.output_buffer_timeout = 1, 0
    _grant(agreed, options)
    return agreed


def _grant(agreed: Negotiated, options: NsqdOptions) -> None:
    """Clear layers that nsqd does not offer; raises ServerError for both compressions."""
    negotiates = agreed.feature_negotiation
    agreed.tls_v1 &= negotiates and bool(options.tls_cert)
    agreed.snappy &= negotiates and options.snappy
    agreed.deflate &= negotiates and options.deflate
    if agreed.snappy and agreed.deflate:
        raise ServerError("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
    if not (agreed.deflate and 0 < agreed.deflate_level < DEFLATE_LEVEL):
        agreed.deflate_level = DEFLATE_LEVEL


def _parse(body: bytes) -> dict[str, Any]:
    """Return the known keys of an IDENTIFY; null counts as missing. Raises ServerError."""
    known = {each.name: each.type for each in fields(Negotiated)}
    try:
        given = json.loads(body.decode("utf-8", "replace"))
        given = {} if given is None else given
        wishes = {name: given[name] for name in known if given.get(name) is not None}
        if any(type(value).__name__ != known[name] for name, value in wishes.items()):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ServerError("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    return wishes
