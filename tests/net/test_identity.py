"""What IDENTIFY says of the options."""

from typing import Any

import pytest

from nsqtools.config.connection import ClientConfig, ConsumerConfig, ProducerConfig
from nsqtools.net.identity import identify_body

GIVEN: dict[str, Any] = {
    "client_id": "c",
    "hostname": "h.example",
    "user_agent": "u",
    "deflate": True,
    "deflate_level": 3,
    "sample_rate": 10,
    "topology_region": "r",
    "topology_zone": "z",
}


def test_identify_asks_for_what_is_configured_in_milliseconds() -> None:
    config = ConsumerConfig(
        heartbeat_interval=1.5, output_buffer_timeout=0.5, msg_timeout=2.0, **GIVEN
    )
    assert identify_body(config) == GIVEN | {
        "feature_negotiation": True,
        "heartbeat_interval": 1500,
        "output_buffer_size": 65536,
        "output_buffer_timeout": 500,
        "msg_timeout": 2000,
        "tls_v1": False,
        "snappy": False,
    }


def test_identify_leaves_out_what_is_not_asked_for() -> None:
    body = identify_body(ConsumerConfig())
    assert {"msg_timeout", "sample_rate", "deflate_level", "topology_region"}.isdisjoint(body)
    assert "." not in body["client_id"]
    assert "msg_timeout" not in identify_body(ProducerConfig())


@pytest.mark.parametrize(
    "values",
    [
        {"tls_root_ca_file": "ca.pem"},
        {"tls_insecure_skip_verify": True},
        {"tls_cert": "c.pem", "tls_key": "k.pem"},
        {"tls_min_version": "tls1.3"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_only_tls_v1_asks_for_tls(values: dict[str, Any]) -> None:
    assert identify_body(ClientConfig(**values))["tls_v1"] is False
    assert identify_body(ClientConfig(**values, tls_v1=True))["tls_v1"] is True
