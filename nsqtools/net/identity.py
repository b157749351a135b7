"""The body of IDENTIFY."""

# size: one function for connection.py and its tests

from __future__ import annotations

from socket import gethostname
from typing import TYPE_CHECKING, Any

from nsqtools.config.connection import ConsumerConfig
from nsqtools.net.tls import uses_tls

if TYPE_CHECKING:
    from nsqtools.config.connection import ClientConfig


def identify_body(config: ClientConfig) -> dict[str, Any]:
    """Return the body of IDENTIFY (tcp_protocol_spec, IDENTIFY); times are in milliseconds."""
    host = gethostname()
    body: dict[str, Any] = {
        "client_id": config.client_id or host.partition(".")[0],
        "hostname": config.hostname or host,
        "user_agent": config.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": round(config.heartbeat_interval * 1000),
        "output_buffer_size": config.output_buffer_size,
        "output_buffer_timeout": round(config.output_buffer_timeout * 1000),
        "tls_v1": uses_tls(config),
        "snappy": config.snappy,
        "deflate": config.deflate,
    }
    if config.deflate:
        body["deflate_level"] = config.deflate_level
    wishes: dict[str, Any] = {
        "topology_region": config.topology_region,
        "topology_zone": config.topology_zone,
    }
    if isinstance(config, ConsumerConfig):
        wishes["sample_rate"] = config.sample_rate
        wishes["msg_timeout"] = round(config.msg_timeout * 1000)
    return body | {name: value for name, value in wishes.items() if value}
