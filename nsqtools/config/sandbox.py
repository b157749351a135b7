"""Options of the embedded nsqd and nsqlookupd."""

from __future__ import annotations

from nsqtools.config.connection import check_pair
from nsqtools.config.option import (
    NO_LIMIT,
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
    """Options of the embedded nsqd, with nsqd's names and defaults (``nsqd/options.go``)."""

    title = "The embedded nsqd"

    msg_timeout: float = duration(
        "Time after which an unfinished message is delivered again.", 60.0, minimum=0.001
    )
    max_msg_timeout: float = duration(
        "Maximum time of a message in flight, with TOUCH.", 900.0, minimum=0.001
    )
    max_req_timeout: float = duration("Maximum delay of REQ and DPUB.", 3600.0)
    max_msg_size: int = size("Maximum size of a message.", 1 << 20, minimum=1)
    max_body_size: int = size("Maximum size of a command's body.", 5 << 20, minimum=64)
    max_rdy_count: int = integer("Maximum RDY of a client.", 2500, minimum=1)
    max_heartbeat_interval: float = duration(
        "Maximum heartbeat interval of a client.", 60.0, minimum=1.0
    )
    max_channel_consumers: int = integer(
        "Maximum consumers of a channel.", 0, default_note=NO_LIMIT
    )
    snappy: bool = flag("Offer snappy.", default=True)
    deflate: bool = flag("Offer deflate.", default=True)
    tls_cert: str = path("Certificate (PEM file); enables TLS.")
    tls_key: str = path("Key of the certificate (PEM file).")
    tls_root_ca_file: str = path("CA certificates of clients (PEM file).")
    tls_client_auth_policy: str = choice(
        "Require certificates of clients; with require-verify, only those of a known CA.",
        *("", "require", "require-verify"),
    )
    tls_required: str = choice(
        "Refuse TCP clients without TLS. HTTP stays open.", *("false", "tcp-https")
    )
    auth_secret_file: str = path("File with the AUTH secret to accept.")

    def validate(self) -> None:
        """Raise ConfigError for TLS options without the options they need."""
        check_pair(self, "tls_cert", "tls_key")
        if self.tls_required != "false" and not self.tls_cert:
            text = "--tls-required needs --tls-cert and --tls-key"
            raise ConfigError(text, options=("tls_required",))
        if self.tls_client_auth_policy and not (self.tls_cert and self.tls_root_ca_file):
            raise ConfigError(
                "--tls-client-auth-policy needs --tls-cert, --tls-key and --tls-root-ca-file, "
                "with the CA that signed the certificates of clients",
                options=("tls_client_auth_policy", "tls_cert", "tls_root_ca_file"),
            )


class SandboxOptions(Options):
    """Addresses of the sandbox, and its sample events."""

    title = "Sandbox"

    host: str = text("Address to listen on.", "127.0.0.1", metavar="HOST")
    port: int = integer(
        "TCP port of nsqd. Its HTTP port is one higher, nsqlookupd's ports are ten "
        "higher. 0 picks free ports. All addresses are printed as JSON.",
        4150,
        maximum=65524,
    )
    i_know: bool = flag(
        "Listen on an address reachable from other hosts, although messages are in memory only."
    )
    seed_topic: str = topic_name(
        "Publish sample events to this topic, while fewer than 100,000 messages wait there."
    )
    rate: float = number(
        "Sample events published per second.", 10.0, minimum=0.001, maximum=100000.0
    )
