"""The servers that options name, as the engine wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqtools.config import ClusterOptions
    from nsqtools.engine.cluster import Cluster

PARTS = 2.5
"""What one server that hangs may cost of the time of a poll, which asks nsqlookupds and then nsqds:
so both may hang, and the others are told of in time."""


def client_limits(where: ClusterOptions) -> dict[str, Any]:
    """HTTPClient's connect_timeout, request_timeout and tls; for plain http no CAs are loaded.

    Raises ConfigError for CAs that cannot be read.
    """
    from nsqtools.config import ClientConfig
    from nsqtools.net.tls import client_context

    urls = (*where.lookupd_http_address, *where.nsqds)
    secure = where.tls_root_ca_file or any(url.strip().startswith("https:") for url in urls)
    tls = ClientConfig(tls_root_ca_file=where.tls_root_ca_file)
    return {
        "connect_timeout": where.http_client_connect_timeout,
        "request_timeout": where.http_client_request_timeout,
        "tls": client_context(tls) if secure else None,
    }


def open_cluster(
    where: ClusterOptions, *, request_timeout: float | None = None, quiet: bool = False
) -> Cluster:
    """The cluster; ``request_timeout``, in seconds, is a limit besides that of the options.

    Raises ConfigError for a malformed address, and as ``client_limits``.
    """
    from nsqtools.engine.cluster import Cluster

    limits = client_limits(where)
    if request_timeout is not None:
        limits["request_timeout"] = min(limits["request_timeout"], request_timeout)
    return Cluster(where.lookupd_http_address, where.nsqds, quiet=quiet, **limits)
