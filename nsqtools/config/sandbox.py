"""The embedded nsqd and nsqlookupd."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import Options, option, option_class
from nsqtools.errors import ConfigError


@option_class
class NsqdOptions(Options):
    """The embedded nsqd: nsqd's names and defaults (``nsqd/options.go``)."""

    title: ClassVar[str] = "The embedded nsqd"

    msg_timeout: float = option(
        60.0, "duration", "A message is delivered again after this time.", minimum=0.001
    )
    max_msg_timeout: float = option(
        900.0, "duration", "Longest that TOUCH can hold a message.", minimum=0.001
    )
    max_req_timeout: float = option(
        3600.0, "duration", "Longest delay of REQ and DPUB.", minimum=0.0
    )
    max_msg_size: int = option(1 << 20, "size", "Largest message.", minimum=1)
    max_body_size: int = option(5 << 20, "size", "Largest body of a command.", minimum=64)
    max_rdy_count: int = option(2500, "integer", "Highest RDY of a client.", minimum=1)
    max_heartbeat_interval: float = option(
        60.0, "duration", "Longest heartbeat interval of a client.", minimum=1.0
    )
    max_output_buffer_size: int = option(
        65536, "size", "Largest output buffer of a client.", minimum=64
    )
    max_output_buffer_timeout: float = option(
        30.0, "duration", "Longest output buffer timeout of a client.", minimum=0.025
    )
    max_deflate_level: int = option(6, "integer", "Highest level of deflate.", minimum=1, maximum=9)
    max_channel_consumers: int = option(
        0, "integer", "Most consumers of a channel; 0 for no limit.", minimum=0
    )
    snappy: bool = option(True, "flag", "Offer snappy.")
    deflate: bool = option(True, "flag", "Offer deflate.")
    tls_cert: str = option("", "path", "Certificate (PEM); with it TLS is offered.")
    tls_key: str = option("", "path", "Key of the certificate (PEM).")
    tls_root_ca_file: str = option("", "path", "CA certificates of clients (PEM).")
    tls_client_auth_policy: str = option(
        "",
        "choice",
        "Whether a client must show a certificate, and one of a known CA.",
        choices=("", "require", "require-verify"),
    )
    tls_required: str = option(
        "false",
        "choice",
        "Refuse clients without TLS, over TCP alone or over HTTP too.",
        choices=("false", "true", "tcp-https"),
    )
    auth_http_address: str = option(
        "",
        "address",
        "Server to ask about AUTH secrets.",
        metavar="HOST:PORT",
        excludes=("auth_secret_file",),
    )
    auth_secret_file: str = option(
        "", "path", "File with the one AUTH secret that is accepted, for everything."
    )

    def validate(self) -> None:
        """What belongs together."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")
        if self.tls_required != "false" and not self.tls_cert:
            raise ConfigError("--tls-required: needs --tls-cert and --tls-key")


@option_class
class SandboxOptions(Options):
    """Where the sandbox listens and what it publishes by itself."""

    title: ClassVar[str] = "Sandbox"

    host: str = option("127.0.0.1", "text", "Address to listen on.", metavar="HOST")
    port: int = option(
        4150,
        "integer",
        "TCP port of nsqd; HTTP is the one after it, and nsqlookupd's ports are ten higher. "
        "0 takes free ports and prints them as JSON.",
        minimum=0,
        maximum=65524,
    )
    i_know: bool = option(
        False, "flag", "Listen on an address that others can reach, although all is in memory."
    )
    seed_topic: str = option(
        "",
        "text",
        "Publish sample events to this topic, while fewer than 100,000 wait there.",
        metavar="TOPIC",
        values="topic",
    )
    rate: float = option(10.0, "number", "Sample events a second.", minimum=0.001, maximum=100000.0)
