"""The servers that options name, as the engine wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.names import NSQD_HTTP_PORT

if TYPE_CHECKING:
    from nsqtools.config import ClusterOptions
    from nsqtools.engine.cluster import Cluster


def nsqds_of(where: ClusterOptions) -> tuple[str, ...]:
    """The nsqds to ask: that of this host, if no server is given."""
    if where.nsqd_http_address or where.lookupd_http_address:
        return where.nsqd_http_address
    return (f"127.0.0.1:{NSQD_HTTP_PORT}",)


def client_limits(where: ClusterOptions) -> dict[str, Any]:
    """HTTPClient's connect_timeout, request_timeout and tls; for plain http no CAs are loaded.

    Raises ConfigError for CAs that cannot be read.
    """
    from nsqtools.config import ClientConfig
    from nsqtools.net.tls import client_context

    urls = (*where.lookupd_http_address, *nsqds_of(where))
    secure = where.tls_root_ca_file or any(url.strip().startswith("https:") for url in urls)
    tls = ClientConfig(tls_root_ca_file=where.tls_root_ca_file)
    return {
        "connect_timeout": where.http_client_connect_timeout,
        "request_timeout": where.http_client_request_timeout,
        "tls": client_context(tls) if secure else None,
    }


def open_cluster(where: ClusterOptions, *, looks: int = 1, quiet: bool = False) -> Cluster:
    """The cluster; so many ``looks`` at it take no longer together than --timeout.

    Raises ConfigError for a malformed address, and as ``client_limits``.
    """
    from nsqtools.engine.cluster import Cluster

    timeout = where.timeout / looks
    addresses = where.lookupd_http_address, nsqds_of(where)
    return Cluster(*addresses, quiet=quiet, timeout=timeout, **client_limits(where))
