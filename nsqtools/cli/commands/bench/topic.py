"""The topic of a bench: created for the run and deleted after it."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Self

from nsqtools.cli.remotes import addresses
from nsqtools.config.admin import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from nsqtools.engine.administration import Servers, carry_out, survey
from nsqtools.engine.changes import Target, plan
from nsqtools.errors import ConfigError, NSQError, UnreachableError
from nsqtools.names import Address
from nsqtools.net.tls import http_context

if TYPE_CHECKING:
    from nsqtools.config.bench import BenchOptions, BenchServerOptions
    from nsqtools.config.connection import ClientConfig
    from nsqtools.engine.changes import Survey

log = logging.getLogger(__name__)

_WHY = "bench creates and deletes its topic over HTTP: check --nsqd-http-address"


class BenchTopic:
    """A topic and a channel on ``nsqds``, for one run; an async context manager.

    Entering it finds the nsqds. Raises ConfigError if the topic exists, and UnreachableError if an
    nsqd does not answer over HTTP. Leaving it deletes the topic; ``is_left`` is set if some servers
    may still have it.
    """

    def __init__(
        self, servers: BenchServerOptions, load: BenchOptions, config: ClientConfig
    ) -> None:
        self.nsqds: tuple[Address, ...] = ()
        self.is_left = False
        self.run = secrets.token_bytes(8)
        """Distinguishes the messages of this run from others."""
        self.topic = load.topic or f"nsqtools-bench-{self.run.hex()[:8]}"
        self.channel = "bench"
        self._options = servers
        limits: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT.default,
            "request_timeout": REQUEST_TIMEOUT.default,
            "tls": http_context(config),
        }
        self._servers = Servers(servers.lookupd_http_address, _http_of(servers), limits)

    async def __aenter__(self) -> Self:
        try:
            found = await survey(self._servers, self.topic)
        except UnreachableError as error:
            raise UnreachableError(f"{error}: {_WHY}") from error
        exists = any(each.topic for each in found.holdings)
        exists = exists or any(each.knows(Target(self.topic)) for each in found.registries)
        if exists:
            raise ConfigError(
                f"topic {self.topic} exists: choose another --topic, as the run deletes its topic"
            )
        self.nsqds = self._reachable(found)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            found = await survey(self._servers, self.topic)
            taken = await carry_out(self._servers, plan("delete", Target(self.topic), found))
        except NSQError as error:
            errors: list[NSQError] = [error]
        else:
            errors = [step.error for step in taken if step.error]
        for each in errors:
            log.error(
                "%s: topic %s may still exist: delete it with nsqtools topic delete",
                *(each, self.topic),
            )
        self.is_left = bool(errors)

    def _reachable(self, found: Survey) -> tuple[Address, ...]:
        """The nsqds to load, without those silent over HTTP: their topic could not be deleted.

        Raises UnreachableError if a given nsqd, or every listed nsqd, is silent.
        """
        errors = [each.error for each in found.holdings if each.error]
        if not self._options.lookupd_http_address:
            if errors:
                raise UnreachableError(f"{errors[0]}: {_WHY}")
            return addresses(self._options.nsqd_tcp_address)
        for error in errors:
            log.warning("not measured: nsqd %s", error)
        nsqds = [each.node.tcp for each in found.holdings if each.node.tcp and not each.error]
        if not nsqds:
            raise errors[0] if errors else UnreachableError("nsqlookupd lists no nsqd")
        return tuple(nsqds)


def _http_of(servers: BenchServerOptions) -> tuple[str, ...]:
    """The nsqds' HTTP addresses known before asking nsqlookupd.

    Raises ConfigError if some are missing.
    """
    apis = servers.nsqd_http_address
    nsqds = dict.fromkeys(addresses(servers.nsqd_tcp_address))
    if servers.lookupd_http_address:
        return apis
    if apis and len(apis) < len(nsqds):
        raise ConfigError(f"--nsqd-http-address is given for {len(apis)} of {len(nsqds)} nsqds")
    return apis or tuple(str(Address(host, port + 1)) for host, port in nsqds)
