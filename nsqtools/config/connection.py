"""Connections to nsqd: go-nsq's options of a client, a consumer and a producer."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from nsqtools import __version__
from nsqtools.config.option import Options, flag_name, format_duration, option, option_class
from nsqtools.errors import ConfigError
from nsqtools.names import Address


def _hostname() -> str:
    from socket import gethostname

    return gethostname()


def _max_msg_size() -> Any:
    """The bound of what one message may take in memory, from nsqd or from a file."""
    return option(
        64 << 20, "size", "Maximum message size; a larger message is an error.", minimum=1
    )


@option_class
class ClientConfig(Options):
    """A connection to nsqd: go-nsq's names, defaults and bounds, but TLS is at least 1.2."""

    title: ClassVar[str] = "Connection options"
    shared: ClassVar[bool] = True

    dial_timeout: float = option(
        1.0, "duration", "Limit for a TCP connection to be made.", minimum=0.001, flag=False
    )
    read_timeout: float = option(
        60.0,
        "duration",
        "A connection that stays silent this long is dropped.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    write_timeout: float = option(
        1.0,
        "duration",
        "A connection that takes no byte of ours for this long is dropped.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    local_addr: str = option(
        "", "text", "Local address to connect from.", metavar="HOST:PORT", flag=False
    )
    client_id: str = option(
        "", "text", "Name of this client in /stats; the short host name unless set."
    )
    hostname: str = option("", "text", "Host name shown in /stats; this host's.", flag=False)
    user_agent: str = option(
        f"nsqtools/{__version__}", "text", "User agent shown in /stats.", flag=False
    )
    heartbeat_interval: float = option(
        30.0, "duration", "Time between nsqd's heartbeats.", minimum=1.0, flag=False
    )
    output_buffer_size: int = option(
        65536,
        "size",
        "Bytes nsqd gathers before it writes; -1 for none.",
        minimum=-1,
        flag=False,
    )
    output_buffer_timeout: float = option(
        0.25,
        "duration",
        "Longest nsqd holds gathered bytes; 0 for its own default.",
        minimum=0.0,
        flag=False,
    )
    max_msg_size: int = _max_msg_size()
    tls_v1: bool = option(False, "flag", "Use TLS.")
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust instead of the system's (PEM)."
    )
    tls_cert: str = option("", "path", "Client certificate (PEM).")
    tls_key: str = option("", "path", "Key of the client certificate (PEM).")
    tls_insecure_skip_verify: bool = option(
        False, "flag", "Do not verify the server's certificate."
    )
    tls_min_version: str = option(
        "tls1.2",
        "choice",
        "Lowest TLS version accepted.",
        choices=("ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3"),
    )
    snappy: bool = option(
        False, "flag", "Compress the connection with snappy.", excludes=("deflate",)
    )
    deflate: bool = option(False, "flag", "Compress the connection with deflate.")
    deflate_level: int = option(6, "integer", "Level of deflate.", minimum=1, maximum=9)
    auth_secret: str = option(
        "",
        "text",
        "Secret for an nsqd that requires AUTH.",
        flag=False,
        secret=True,
        excludes=("auth_secret_file",),
    )
    auth_secret_file: str = option("", "path", "File that holds the AUTH secret.")
    topology_region: str = option("", "text", "Region sent to nsqd.", flag=False)
    topology_zone: str = option("", "text", "Zone sent to nsqd.", flag=False)

    def validate(self) -> None:
        """Refuse what nsqd would refuse, before any connection is made."""
        if self.snappy and self.deflate:
            raise ConfigError("--snappy and --deflate exclude each other: choose one")
        if self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                f"heartbeat_interval {format_duration(self.heartbeat_interval)} is longer than "
                f"read_timeout {format_duration(self.read_timeout)}: a healthy connection would "
                "be dropped"
            )
        if 0 < self.output_buffer_timeout < 0.025:
            raise ConfigError("output_buffer_timeout: nsqd takes 0 or at least 25ms")
        if self.local_addr:
            Address.parse(self.local_addr, 0)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")

    @property
    def uses_tls(self) -> bool:
        """Whether TLS was asked for: any tls option does, as in go-nsq (``config.go``)."""
        return bool(
            self.tls_v1 or self.tls_root_ca_file or self.tls_cert or self.tls_insecure_skip_verify
        )

    def spelled(self, name: str) -> str:
        """How a command line sets an option: by its flag, or by that for many."""
        if self.declared()[name].flag or not self.opt_flag:
            return f"--{flag_name(name)}"
        return f"--{self.opt_flag} {name}"

    def beside_producer(self) -> Self:
        """For a command that publishes as well, whose --max-msg-size is first of all for that.

        A low one keeps a message from being published, and not from being read.
        """
        least = self.default("max_msg_size", {})
        return self.with_values(max_msg_size=max(self.max_msg_size, least))

    def identify(self) -> dict[str, Any]:
        """The body of IDENTIFY (tcp_protocol_spec, IDENTIFY); times in milliseconds."""
        return {
            "client_id": self.client_id or _hostname().partition(".")[0],
            "hostname": self.hostname or _hostname(),
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": round(self.heartbeat_interval * 1000),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": round(self.output_buffer_timeout * 1000),
            "tls_v1": self.uses_tls,
            "snappy": self.snappy,
            "deflate": self.deflate,
            **({"deflate_level": self.deflate_level} if self.deflate else {}),
            **({"topology_region": self.topology_region} if self.topology_region else {}),
            **({"topology_zone": self.topology_zone} if self.topology_zone else {}),
        }


@option_class
class ConsumerConfig(ClientConfig):
    """A consumer: go-nsq's names, defaults and bounds, plus what its library leaves out."""

    title: ClassVar[str] = "Consumer options"
    opt_flag: ClassVar[str] = "consumer-opt"

    max_in_flight: int = option(
        1, "integer", "Most messages in flight, for each topic over all connections.", minimum=0
    )
    max_in_flight_bytes: int = option(
        64 << 20, "size", "Most bytes of bodies in flight, by their mean size.", minimum=1
    )
    sample_rate: int = option(
        0,
        "integer",
        "Percent of the messages to receive, the rest is discarded by nsqd; 0 for all.",
        minimum=0,
        maximum=99,
    )
    msg_timeout: float = option(
        0.0,
        "duration",
        "nsqd delivers a message again after this time; 0 for its own default.",
        minimum=0.0,
    )
    max_attempts: int = option(
        5,
        "integer",
        "Deliveries before a message is given up; 0 for no limit.",
        minimum=0,
        maximum=65535,
    )
    default_requeue_delay: float = option(
        90.0,
        "duration",
        "Delay of a requeued message, times its attempts.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    max_requeue_delay: float = option(
        900.0,
        "duration",
        "Longest delay of a requeued message.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    backoff_strategy: str = option(
        "exponential",
        "choice",
        "How backoff grows.",
        choices=("exponential", "full_jitter"),
        flag=False,
    )
    backoff_multiplier: float = option(
        1.0,
        "duration",
        "Unit of backoff: the first wait is twice this.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    max_backoff_duration: float = option(
        120.0,
        "duration",
        "Longest backoff; 0 for none at all.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    low_rdy_idle_timeout: float = option(
        10.0,
        "duration",
        "With fewer slots than connections: an idle one gives up its RDY after this.",
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    low_rdy_timeout: float = option(
        30.0,
        "duration",
        "With fewer slots than connections: a busy one gives up its RDY after this.",
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    rdy_redistribute_interval: float = option(
        5.0,
        "duration",
        "How often RDY is looked at.",
        minimum=0.001,
        maximum=5.0,
        flag=False,
    )
    lookupd_poll_interval: float = option(
        60.0,
        "duration",
        "Time between rounds of nsqlookupd.",
        minimum=0.01,
        maximum=300.0,
        flag=False,
    )
    lookupd_poll_jitter: float = option(
        0.3,
        "number",
        "Random part of that time.",
        minimum=0.0,
        maximum=1.0,
        flag=False,
    )
    lookupd_poll_timeout: float = option(
        60.0, "duration", "Limit for an answer of nsqlookupd.", minimum=0.001, flag=False
    )
    lookupd_authorization: bool = option(
        True,
        "flag",
        "Send the AUTH secret to nsqlookupd as a bearer token. go-nsq's name for it, "
        "skip_lookupd_authorization, does the same: true sends.",
        flag=False,
        alias="skip_lookupd_authorization",
    )
    reconnect_delay: float = option(
        8.0,
        "duration",
        "First delay before a fixed nsqd is dialled again; it doubles each time.",
        minimum=0.0,
        flag=False,
    )
    max_reconnect_delay: float = option(
        120.0, "duration", "Longest such delay.", minimum=0.0, flag=False
    )
    drain_timeout: float = option(
        30.0, "duration", "Limit for finishing what is in flight when stopping.", minimum=0.0
    )

    def validate(self) -> None:
        """As the base's, and what only a consumer negotiates."""
        ClientConfig.validate(self)
        if 0 < self.msg_timeout < 1:
            raise ConfigError("--msg-timeout: nsqd takes 0, for its own, or at least 1s")

    def identify(self) -> dict[str, Any]:
        """As the base's, with what only a consumer negotiates."""
        body = ClientConfig.identify(self)
        if self.sample_rate:
            body["sample_rate"] = self.sample_rate
        if self.msg_timeout:
            body["msg_timeout"] = round(self.msg_timeout * 1000)
        return body


@option_class
class ProducerConfig(ClientConfig):
    """A producer of messages."""

    title: ClassVar[str] = "Producer options"
    opt_flag: ClassVar[str] = "producer-opt"

    heartbeat_interval: float = option(
        10.0, "duration", "Time between nsqd's heartbeats.", minimum=1.0, flag=False
    )
    read_timeout: float = option(
        25.0,
        "duration",
        "A connection that stays silent this long is dropped, and its batches go elsewhere.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    mode: str = option(
        "round-robin",
        "choice",
        "Which of several nsqds gets a batch: the next one, the next one of those that answer, "
        "more often a faster one; another if that fails. Or all of them get a copy.",
        choices=("round-robin", "hostpool", "epsilon-greedy", "all"),
    )
    max_msg_size: int = option(
        1 << 20, "size", "Largest message, as nsqd's option of that name.", minimum=1
    )
    max_body_size: int = option(
        5 << 20, "size", "Largest batch, as nsqd's option of that name.", minimum=64
    )
    reconnect_delay: float = option(
        0.25,
        "duration",
        "First delay before an nsqd is dialled again; it doubles each time.",
        minimum=0.001,
        flag=False,
    )
    max_reconnect_delay: float = option(
        8.0, "duration", "Longest such delay.", minimum=0.001, flag=False
    )
    publish_timeout: float = option(
        60.0,
        "duration",
        "A batch that no nsqd has taken within this time is given up.",
        minimum=0.001,
    )
