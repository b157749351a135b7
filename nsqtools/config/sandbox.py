"""The embedded nsqd and nsqlookupd."""

from __future__ import annotations

from nsqtools.config.connection import check_pair
from nsqtools.config.option import (
    Options,
    choice,
    duration,
    flag,
    integer,
    number,
    path,
    size,
    text,
    topic_name,
)
from nsqtools.errors import ConfigError


class NsqdOptions(Options):
    """The embedded nsqd: nsqd's names and defaults (``nsqd/options.go``)."""

    title = "The embedded nsqd"

    msg_timeout: float = duration(
        "A message is delivered again after this time.", 60.0, minimum=0.001
    )
    max_msg_timeout: float = duration(
        "Maximum time that TOUCH can hold a message.", 900.0, minimum=0.001
    )
    max_req_timeout: float = duration("Maximum delay of REQ and DPUB.", 3600.0)
    max_msg_size: int = size("Maximum size of a message.", 1 << 20, minimum=1)
    max_body_size: int = size("Maximum size of a command's body.", 5 << 20, minimum=64)
    max_rdy_count: int = integer("Maximum RDY of a client.", 2500, minimum=1)
    max_heartbeat_interval: float = duration(
        "Maximum heartbeat interval of a client.", 60.0, minimum=1.0
    )
    max_channel_consumers: int = integer("Maximum consumers of a channel; 0 for no limit.", 0)
    snappy: bool = flag("Offer snappy.", default=True)
    deflate: bool = flag("Offer deflate.", default=True)
    tls_cert: str = path("Certificate (PEM); with it TLS is offered.")
    tls_key: str = path("Key of the certificate (PEM).")
    tls_root_ca_file: str = path("CA certificates of clients (PEM).")
    tls_client_auth_policy: str = choice(
        "Whether a client must show a certificate, and a certificate of a known CA.",
        *("", "require", "require-verify"),
    )
    tls_required: str = choice(
        "Refuse TCP clients without TLS; HTTP stays open.",
        *("false", "tcp-https"),
    )
    auth_secret_file: str = path("File with the only AUTH secret to accept, for everything.")

    def validate(self) -> None:
        """What belongs together."""
        check_pair(self, "tls_cert", "tls_key")
        if self.tls_required != "false" and not self.tls_cert:
            raise ConfigError("--tls-required: needs --tls-cert and --tls-key")
        if self.tls_client_auth_policy and not (self.tls_cert and self.tls_root_ca_file):
            raise ConfigError(
                "--tls-client-auth-policy: needs --tls-cert, --tls-key, and --tls-root-ca-file "
                "for the CA that signed the certificates of clients"
            )


class SandboxOptions(Options):
    """Where the sandbox listens and what it publishes by itself."""

    title = "Sandbox"

    host: str = text("Address to listen on.", "127.0.0.1", metavar="HOST")
    port: int = integer(
        "TCP port of nsqd; HTTP is the one after it, and nsqlookupd's ports are ten higher. "
        "0 takes free ports and prints them as JSON.",
        4150,
        maximum=65524,
    )
    i_know: bool = flag("Listen on an address that others can reach, although all is in memory.")
    seed_topic: str = topic_name(
        "Publish sample events to this topic, while fewer than 100,000 wait there."
    )
    rate: float = number("Sample events per second.", 10.0, minimum=0.001, maximum=100000.0)
