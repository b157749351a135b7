"""The servers in options, converted to the engine's types."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.config.connection import without_waiting
from nsqtools.names import NSQD_HTTP_PORT, NSQD_TCP_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config.admin import ApiOptions, ClusterOptions, HttpsOptions
    from nsqtools.config.connection import ClientConfig, ConsumerConfig
    from nsqtools.config.consuming import ServerOptions
    from nsqtools.config.publishing import TargetOptions
    from nsqtools.engine.cluster import Cluster
    from nsqtools.engine.lookup import Backlog

C = TypeVar("C", bound="ClientConfig")


def addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """nsqd addresses of ``--nsqd-tcp-address``."""
    return tuple(Address.parse(text, NSQD_TCP_PORT) for text in texts)


def fixed_nsqds(servers: ServerOptions) -> tuple[Address, ...]:
    """The nsqds to connect to; empty if nsqlookupd lists them."""
    return () if servers.lookupd_http_address else addresses(servers.nsqd_tcp_address)


async def targets(target: TargetOptions, config: ClientConfig) -> Sequence[Address]:
    """The nsqds to publish to: from ``--nsqd-tcp-address``, or listed by nsqlookupds.

    Raises ConfigError for a malformed address, UnreachableError if nsqlookupds list none.
    """
    if not target.lookupd_http_address:
        return addresses(target.nsqd_tcp_address)
    from nsqtools.config.admin import CONNECT_TIMEOUT, REQUEST_TIMEOUT
    from nsqtools.engine.lookup import find_targets

    timeouts = CONNECT_TIMEOUT.default, REQUEST_TIMEOUT.default
    return await find_targets(target.topic, target.lookupd_http_address, config, timeouts)


async def channel_depth(
    servers: ServerOptions,
    topic: str,
    channel: str,
    config: ConsumerConfig,
    urls: Sequence[str],
    *,
    may_create: bool = False,
) -> Backlog:
    """Return the backlog of a channel, to be counted; ``urls`` are HTTP addresses of its nsqds.

    Raises NSQError if the topic or the channel is paused, or does not exist: consuming would create
    it. With ``may_create`` a topic without any channel is enough.
    """
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.lookup import Backlog
    from nsqtools.errors import NSQError

    nsqds, lookupds = fixed_nsqds(servers), servers.lookupd_http_address
    subscription = Subscription(topic=topic, channel=channel, nsqds=nsqds, lookupds=lookupds)
    backlog = Backlog(subscription, config, urls)
    found, is_complete = await backlog.known()
    channels = [each for part in found for each in part.channels]
    names = {each.name for each in channels}
    if is_complete and not found:
        raise NSQError(f"no nsqd has topic {topic}: check the name")
    if is_complete and channel not in names and (names or not may_create):
        if not names:
            raise NSQError(f"topic {topic} has no channels")
        others = " ".join(sorted(names))
        text = f"topic {topic} has no channel {channel}: choose one with --channel: {others}"
        raise NSQError(text)
    if any(each.paused for each in found):
        raise NSQError(f"topic {topic} is paused, and delivers nothing: unpause it")
    if any(each.paused for each in channels if each.name == channel):
        raise NSQError(f"{topic}/{channel} is paused, and delivers nothing: unpause it")
    return backlog


def with_secret(config: C) -> C:
    """The configuration with the secret of ``--auth-secret-file``.

    Raises ConfigError if the file cannot be read; warns if others may read it.
    """
    from nsqtools.config.connection import read_secret

    path = config.auth_secret_file
    if not path:
        return config
    secret = read_secret(path, f"--auth-secret-file {path}")
    warn_if_public(path)
    return config.with_values(auth_secret=secret, auth_secret_file="")


def warn_if_public(path: str) -> None:
    """Warn if others may read this file with a secret."""
    from logging import getLogger

    from nsqtools.cli.configfile import may_be_read_by_others

    with suppress(OSError), open(path, "rb", opener=without_waiting) as file:
        if may_be_read_by_others(file):
            getLogger(__name__).warning("%s may be read by others: chmod 600 it", path)


def beside_producer(config: C) -> C:
    """The consumer's configuration in a command with a producer.

    A low --max-msg-size then limits only published messages, not received messages.
    """
    least = config.declared()["max_msg_size"].default
    return config.with_values(max_msg_size=max(config.max_msg_size, least))


def nsqds_of(servers: ApiOptions) -> tuple[str, ...]:
    """The nsqds to ask; if no server is given, the nsqd on this host."""
    if servers.nsqd_http_address or servers.lookupd_http_address:
        return servers.nsqd_http_address
    return (f"127.0.0.1:{NSQD_HTTP_PORT}",)


def client_limits(options: HttpsOptions) -> dict[str, Any]:
    """HTTPClient's connect_timeout, request_timeout and tls; by default with the system's CAs.

    Raises ConfigError if a file of certificates or the key cannot be used.
    """
    from nsqtools.config.connection import ClientConfig
    from nsqtools.net.http.api import limits_within
    from nsqtools.net.tls import http_context

    tls = ClientConfig(
        tls_root_ca_file=options.tls_root_ca_file,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_insecure_skip_verify=options.tls_insecure_skip_verify,
    )
    return {**limits_within(options.timeout), "tls": http_context(tls)}


def open_cluster(servers: ClusterOptions, *, looks: int = 1, quiet: bool = False) -> Cluster:
    """The cluster, for ``looks`` polls sharing one --timeout.

    Raises ConfigError for a malformed address, and the errors of ``client_limits``.
    """
    from nsqtools.engine.cluster import Cluster

    timeout = servers.timeout / looks
    addresses = servers.lookupd_http_address, nsqds_of(servers)
    limits = {
        **client_limits(servers),
        "connect_timeout": servers.http_client_connect_timeout,
        "request_timeout": servers.http_client_request_timeout,
    }
    return Cluster(*addresses, quiet=quiet, timeout=timeout, **limits)
