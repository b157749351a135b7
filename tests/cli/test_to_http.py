"""What to-http makes of its options, and what it refuses before it connects anywhere."""

from pathlib import Path
from typing import Any

import pytest

from nsqtools.cli.commands.to_http import http_sink
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import DeadLetterOptions, SourceOptions
from nsqtools.config.http import HttpOptions
from nsqtools.errors import ConfigError
from nsqtools.sinks.http.httpsink import HttpSink
from tests.support.tls import Certificates


def make(**options: Any) -> HttpSink:
    """The sink of these options."""
    return http_sink(
        SourceOptions(topic=("events",), nsqd_tcp_address=("127.0.0.1:1",)),
        HttpOptions(post=("http://127.0.0.1:1/",), **options),
        DeadLetterOptions(),
        ConsumerConfig(),
    )


async def test_a_file_of_secrets_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer x\n")
    for mode, warned in ((0o600, 0), (0o644, 1)):
        file.chmod(mode)
        await make(header_file=(str(file),)).close()
        assert [record.message for record in caplog.records] == [
            f"{file} may be read by others: chmod 600 it"
        ] * warned


@pytest.mark.parametrize(
    ("cert", "key", "flag"),
    [
        ("client.pem", "server.key", "--http-tls-key"),
        ("client.key", "client.key", "--http-tls-cert"),
        ("none.pem", "client.key", "--http-tls-cert .*none.pem"),
    ],
)
def test_a_certificate_or_key_that_does_not_fit_is_named_with_its_flag(
    certificates: Certificates, cert: str, key: str, flag: str
) -> None:
    folder = certificates.ca.parent
    with pytest.raises(ConfigError, match=f"^{flag}"):
        make(http_tls_cert=str(folder / cert), http_tls_key=str(folder / key))
