"""The servers that options name, as the engine wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqtools.config import ClusterOptions, LookupOptions
    from nsqtools.engine.cluster import Cluster


def client_limits(where: ClusterOptions | LookupOptions) -> dict[str, Any]:
    """HTTPClient's connect_timeout, request_timeout and tls: the CAs of the system by default.

    Raises ConfigError for CAs that cannot be read.
    """
    from nsqtools.config import ClientConfig
    from nsqtools.net.tls import client_context

    ca_file = where.tls_root_ca_file
    return {
        "connect_timeout": where.http_client_connect_timeout,
        "request_timeout": where.http_client_request_timeout,
        "tls": client_context(ClientConfig(tls_root_ca_file=ca_file)) if ca_file else None,
    }


def open_cluster(where: ClusterOptions, *, looks: int = 1, quiet: bool = False) -> Cluster:
    """The cluster; so many ``looks`` at it take no longer together than --timeout.

    Raises ConfigError for a malformed address, and as ``client_limits``.
    """
    from nsqtools.engine.cluster import Cluster

    timeout = where.timeout / looks
    addresses = where.lookupd_http_address, where.nsqds
    return Cluster(*addresses, quiet=quiet, timeout=timeout, **client_limits(where))
