"""Connections to nsqd: go-nsq's options of clients, consumers and producers."""

from __future__ import annotations

import errno
import os
import stat

from nsqtools import __version__
from nsqtools.config.option import (
    NO_LIMIT,
    Option,
    Options,
    choice,
    duration,
    flag,
    flag_name,
    integer,
    like,
    number,
    path,
    size,
    text,
)
from nsqtools.config.units import format_duration
from nsqtools.errors import ConfigError
from nsqtools.names import Address

_LONGEST_SECRET = 65536
_FIFO_WAIT = 10.0
"""Maximum seconds to wait for the first byte of a FIFO, such as a process substitution."""

CHOICE = (
    "How to choose among several destinations: round-robin takes turns, hostpool avoids failing "
    "ones, all sends a copy to each."
)

CA_FILE = path("CA certificates to trust instead of the system's (PEM file).")
CLIENT_CERT = path("Client certificate (PEM file).")
CLIENT_KEY = path("Key of the client certificate (PEM file).")
SKIP_VERIFY = flag("Do not verify the server's certificate.")


def check_pair(options: Options, one: str, other: str) -> None:
    """Raise ConfigError if one of two options is given without the other."""
    if bool(getattr(options, one)) != bool(getattr(options, other)):
        both = f"--{flag_name(one)} and --{flag_name(other)}"
        text = f"{both} belong together: give both or neither"
        raise ConfigError(text, options=(one, other))


def without_waiting(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of ``open``; raises OSError for a FIFO without a writer."""
    import select

    fd = os.open(path, flags | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and not select.select([fd], [], [], _FIFO_WAIT)[0]:
            raise OSError(errno.EAGAIN, "a FIFO that nobody writes to", path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_secret(path: str, where: str) -> str:
    """Return the secret in a file. Raises ConfigError beginning with ``where``."""
    try:
        with open(path, encoding="utf-8-sig", opener=without_waiting) as file:
            return checked_secret(file.read(_LONGEST_SECRET + 1), where)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{where}: {reason}") from error


def checked_secret(text: str, where: str) -> str:
    """Return the stripped text; raises ConfigError if it is empty or too long."""
    secret = text.strip()
    if not secret:
        raise ConfigError(f"{where}: the secret is empty")
    if len(secret) > _LONGEST_SECRET:
        raise ConfigError(f"{where}: the secret has more than {_LONGEST_SECRET} characters")
    return secret


def _buffer_timeout(value: float) -> None:
    if 0 < value < 0.025:
        raise ConfigError("nsqd accepts 0 or at least 25ms")


def _msg_timeout(value: float) -> None:
    if 0 < value < 1:
        raise ConfigError("nsqd accepts 0, for its own default, or at least 1s")


class ClientConfig(Options):
    """Options of a connection to nsqd, as in go-nsq; but TLS is at least 1.2."""

    title = "Connection options"
    shared = True

    dial_timeout: float = duration(
        "Timeout for making a TCP connection.", 1.0, minimum=0.001, flag=False
    )
    read_timeout: float = duration(
        "Drop a connection after this long without data from nsqd.",
        60.0,
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    write_timeout: float = duration(
        "Drop a connection that accepts no data for this long.",
        1.0,
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    local_addr: str = text(
        "Local address to connect from.",
        metavar="HOST:PORT",
        flag=False,
        rule=lambda value: Address.parse(value, 0),
    )
    client_id: str = text(
        "Name of this client in nsqd's statistics.", default_note="the short host name"
    )
    hostname: str = text(
        "Host name shown in /stats.", flag=False, default_note="the name of this host"
    )
    user_agent: str = text("User agent shown in /stats.", f"nsqtools/{__version__}", flag=False)
    heartbeat_interval: float = duration(
        "Time between nsqd's heartbeats.", 30.0, minimum=1.0, flag=False
    )
    output_buffer_size: int = size(
        "Size of nsqd's output buffer for this connection; -1 for no buffer.",
        65536,
        minimum=-1,
        flag=False,
    )
    output_buffer_timeout: float = duration(
        "Maximum time in nsqd's output buffer; 0 for nsqd's own default.",
        0.25,
        flag=False,
        rule=_buffer_timeout,
    )
    max_msg_size: int = size(
        "Maximum size of a message; a larger message is an error.", 64 << 20, minimum=1
    )
    tls_v1: bool = flag("Use TLS.")
    tls_root_ca_file: str = CA_FILE
    tls_cert: str = CLIENT_CERT
    tls_key: str = CLIENT_KEY
    tls_insecure_skip_verify: bool = SKIP_VERIFY
    tls_min_version: str = choice(
        "Lowest TLS version accepted.",
        *("tls1.2", "tls1.3"),
        other_choices=("ssl3.0", "tls1.0", "tls1.1"),
    )
    snappy: bool = flag("Compress the connection with snappy.", excludes=("deflate",))
    deflate: bool = flag("Compress the connection with deflate.")
    deflate_level: int = integer(
        "Compression level of deflate.", 6, minimum=1, maximum=9, hidden=True
    )
    auth_secret: str = text(
        "AUTH secret.",
        flag=False,
        secret=True,
        excludes=("auth_secret_file",),
    )
    auth_secret_file: str = path("File with the AUTH secret.")
    topology_region: str = text("Region sent to nsqd.", flag=False)
    topology_zone: str = text("Zone sent to nsqd.", flag=False)

    def validate(self) -> None:
        """Raise ConfigError for settings that would break every connection."""
        if self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                f"heartbeat_interval {format_duration(self.heartbeat_interval)} is longer than "
                f"read_timeout {format_duration(self.read_timeout)}, so that healthy connections "
                "would be dropped: lower heartbeat_interval or raise read_timeout",
                options=("heartbeat_interval", "read_timeout"),
            )
        check_pair(self, "tls_cert", "tls_key")


class ConsumerConfig(ClientConfig):
    """Options of a consumer: go-nsq's, with its names and bounds, and some more.

    Two defaults differ from go-nsq's: ``max_attempts`` is 0, no limit, instead of 5, and
    ``output_buffer_size`` is 64 KiB instead of 16.

    For example::

        config = ConsumerConfig(max_in_flight=500, max_attempts=20, tls_v1=True)
        slow = config.with_values(max_in_flight=10, msg_timeout=300.0)
        assert slow.tls_v1 and slow.drain_timeout == 30.0
    """

    title = "Consumer options"
    opt_flag = "consumer-opt"

    max_in_flight: int = integer("Maximum messages in flight per topic, over all connections.", 1)
    max_in_flight_bytes: int = size(
        "Maximum bytes in flight, estimated from the mean body size.", 64 << 20, minimum=1
    )
    msg_timeout: float = duration(
        "Time after which nsqd delivers an unfinished message again.",
        0.0,
        default_note="0s, nsqd's own default",
        rule=_msg_timeout,
    )
    sample_rate: int = integer(
        "Percentage of messages to receive; nsqd drops the rest from the channel.",
        0,
        maximum=99,
        default_note="all",
    )
    max_attempts: int = integer(
        "Give a message up after this many deliveries.", 0, maximum=65535, default_note=NO_LIMIT
    )
    default_requeue_delay: float = duration(
        "Delay of a requeued message, multiplied by the number of its attempts.",
        90.0,
        maximum=3600.0,
        alias="requeue_delay",
    )
    max_requeue_delay: float = duration(
        "Maximum delay of a requeued message.", 900.0, maximum=3600.0, flag=False
    )
    backoff_strategy: str = choice("How backoff grows.", "exponential", "full_jitter", flag=False)
    backoff_multiplier: float = duration(
        "Unit of backoff: the first wait is twice this.", 1.0, maximum=3600.0, flag=False
    )
    max_backoff_duration: float = duration(
        "Maximum backoff; 0 for no backoff at all.", 120.0, maximum=3600.0, flag=False
    )
    low_rdy_idle_timeout: float = duration(
        "With --max-in-flight below the number of connections, an idle connection gives up its "
        "RDY after this.",
        10.0,
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    low_rdy_timeout: float = duration(
        "With --max-in-flight below the number of connections, a busy connection gives up its "
        "RDY after this.",
        30.0,
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    rdy_redistribute_interval: float = duration(
        "Time between redistributions of RDY.", 5.0, minimum=0.001, maximum=5.0, flag=False
    )
    lookupd_poll_interval: float = duration(
        "Time between polls of nsqlookupd.", 60.0, minimum=0.01, maximum=300.0, flag=False
    )
    lookupd_poll_jitter: float = number(
        "Random part of the time between polls.", 0.3, maximum=1.0, flag=False
    )
    lookupd_poll_timeout: float = duration(
        "Timeout for nsqlookupd's response.", 60.0, minimum=0.001, flag=False
    )
    lookupd_authorization: bool = flag(
        "Send the AUTH secret to nsqlookupd as a bearer token. go-nsq calls this option "
        "skip_lookupd_authorization, although true sends it.",
        default=True,
        flag=False,
        alias="skip_lookupd_authorization",
    )
    reconnect_delay: float = duration(
        "First delay before an nsqd is dialled again; it doubles each time.",
        1.0,
        flag=False,
    )
    max_reconnect_delay: float = duration(
        "Maximum delay before an nsqd is dialled again.", 120.0, flag=False
    )
    drain_timeout: float = duration(
        "Timeout for finishing messages in flight when a run ends.", 30.0
    )


def _consumer_only() -> dict[str, Option]:
    """Return go-nsq's options of a consumer, by go-nsq's names."""
    own = {"max_in_flight_bytes", "drain_timeout", "reconnect_delay", "max_reconnect_delay"}
    theirs = ConsumerConfig.declared()
    found = {name: theirs[name] for name in theirs.keys() - ClientConfig.declared().keys() - own}
    found["skip_lookupd_authorization"] = found.pop("lookupd_authorization")
    return found


class BatchConsumerConfig(ConsumerConfig):
    """ConsumerConfig with the default of most commands, for large batches."""

    max_in_flight: int = like(ConsumerConfig.max_in_flight, default=2500)


class ExaminedConfig(BatchConsumerConfig):
    """ConsumerConfig of ``doctor``. It consumes nothing, so some options have no effect."""

    default_requeue_delay: float = like(ConsumerConfig.default_requeue_delay, unused=True)
    drain_timeout: float = like(ConsumerConfig.drain_timeout, unused=True)


class ProducerConfig(ClientConfig):
    """Options of a producer.

    For example::

        config = ProducerConfig(mode="hostpool", publish_timeout=10.0)
        fast = config.with_values(dial_timeout=0.5)
        assert fast.mode == "hostpool"
    """

    title = "Producer options"
    opt_flag = "producer-opt"
    # go-nsq has one Config for both sides, so its producing tools accept these options, too.
    ignored = _consumer_only()

    heartbeat_interval: float = like(ClientConfig.heartbeat_interval, default=10.0)
    read_timeout: float = like(
        ClientConfig.read_timeout,
        default=25.0,
    )
    mode: str = choice(
        CHOICE,
        *("round-robin", "hostpool", "all"),
        other_choices=("epsilon-greedy",),
    )
    max_msg_size: int = size("Maximum size of a message; nsqd's -max-msg-size.", 1 << 20, minimum=1)
    max_body_size: int = size(
        "Maximum size of a batch; nsqd's -max-body-size.", 5 << 20, minimum=64
    )
    reconnect_delay: float = like(
        ConsumerConfig.reconnect_delay,
        default=0.25,
        minimum=0.001,
    )
    max_reconnect_delay: float = like(
        ConsumerConfig.max_reconnect_delay, default=8.0, minimum=0.001
    )
    publish_timeout: float = duration(
        "Timeout for publishing a batch, with all retries.", 60.0, minimum=0.001
    )
