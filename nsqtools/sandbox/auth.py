"""Who may do what: the reply of an authd, asked over HTTP, or one secret that may do all.

An authd is asked as nsqd does: GET /auth with remote_ip, tls, secret and common_name; its regular
expressions match anywhere in a name (internal/auth/authorizations.go).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from nsqtools.errors import AuthError, ConfigError
from nsqtools.names import Address
from nsqtools.sandbox.http import get

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config import NsqdOptions

_TIMEOUT = 5.0  # options.go, HTTPClientRequestTimeout
_PERMISSIONS = ("subscribe", "publish")


@dataclass(frozen=True, slots=True)
class Authorization:
    """What may be done where."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether it covers subscribing, or with channel "" publishing."""
        wanted = "subscribe" if channel else "publish"
        return (
            wanted in self.permissions
            and self.topic.search(topic) is not None
            and any(each.search(channel) for each in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """What a secret was found to be good for, until ``expires`` (seconds of the loop's clock)."""

    expires: float
    identity: str = ""
    identity_url: str = ""
    authorizations: tuple[Authorization, ...] = ()

    def allows(self, topic: str, channel: str) -> bool:
        """Whether any authorization covers it."""
        return any(each.allows(topic, channel) for each in self.authorizations)


@dataclass(frozen=True, slots=True)
class Question:
    """What is known of a client that sent AUTH."""

    secret: bytes
    remote_ip: str
    tls: bool
    common_name: str


class Secrets(Protocol):
    """Knows what a secret is good for."""

    async def ask(self, question: Question) -> Grant:
        """What it is good for now; raises AuthError."""


def make_secrets(options: NsqdOptions) -> Secrets | None:
    """What the options say of AUTH, None without it; raises ConfigError."""
    if options.auth_http_address:
        return Authd(Address.parse(options.auth_http_address, 80))
    if options.auth_secret_file:
        try:
            secret = Path(options.auth_secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"--auth-secret-file {options.auth_secret_file}: {error.strerror}"
            ) from None
        if not secret:
            raise ConfigError(f"--auth-secret-file {options.auth_secret_file}: is empty")
        return OneSecret(secret)
    return None


class OneSecret:
    """A secret that may do everything; all others may not even stay."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    async def ask(self, question: Question) -> Grant:
        """As Secrets.ask."""
        if not hmac.compare_digest(question.secret, self._secret):
            raise AuthError("the secret is not the one in --auth-secret-file")
        anything = re.compile("")
        allowed = Authorization(anything, (anything,), frozenset(_PERMISSIONS))
        return Grant(float("inf"), authorizations=(allowed,))


class Authd:
    """The HTTP server of --auth-http-address."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def ask(self, question: Question) -> Grant:
        """As Secrets.ask."""
        query = urlencode(
            {
                "common_name": question.common_name,
                "remote_ip": question.remote_ip,
                "secret": question.secret,
                "tls": "true" if question.tls else "false",
            }
        )
        try:
            status, body = await get(self._address, f"/auth?{query}", timeout=_TIMEOUT)
        except OSError as error:
            raise AuthError(str(error), self._address) from None
        if status != 200:
            raise AuthError(f"status {status}", self._address)
        try:
            return parse_grant(body, asyncio.get_running_loop().time())
        except ValueError as error:
            raise AuthError(f"unusable reply: {error}", self._address) from None


def parse_grant(body: bytes, now: float) -> Grant:
    """An authd's reply; raises ValueError for what nsqd does not take."""
    reply = json.loads(body)
    if not isinstance(reply, dict):
        raise ValueError("not a JSON object")
    authorizations = tuple(map(_parse_authorization, _list(reply, "authorizations")))
    ttl = reply.get("ttl") or 0
    if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    identity, url = _text(reply, "identity"), _text(reply, "identity_url")
    return Grant(now + ttl, identity, url, authorizations)


def _parse_authorization(entry: Any) -> Authorization:
    if not isinstance(entry, dict):
        raise ValueError(f"authorization {entry!r}: not a JSON object")
    permissions = frozenset(map(str, _list(entry, "permissions")))
    if unknown := permissions.difference(_PERMISSIONS):
        raise ValueError(f"unknown permission {min(unknown)}")
    try:
        topic = re.compile(_text(entry, "topic"))
        channels = tuple(re.compile(str(each)) for each in _list(entry, "channels"))
    except re.error as error:
        raise ValueError(f"unable to compile {error.pattern!r}: {error}") from None
    return Authorization(topic, channels, permissions)


def _list(reply: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = reply.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key}: not a list")
    return value


def _text(reply: Mapping[str, Any], key: str) -> str:
    value = reply.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key}: not a text")
    return value
