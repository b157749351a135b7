"""Every option, declared once.

A concern is a frozen dataclass and an option is a field of it. The field's name gives the flag
(``--max-in-flight``), the TOML key, the environment variable and, for the classes that mirror
go-nsq's ``Config`` (``config.go``), the name that ``--consumer-opt`` and ``--producer-opt`` take.
Durations are seconds, sizes are bytes.

This file is over 400 lines because it is a table, and a table in two places is two tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from nsqtools import __version__
from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Kind = Literal["text", "path", "flag", "integer", "number", "duration", "size", "choice", "count"]

Values = Literal["", "topic", "channel", "profile"]

_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_LONGEST = 40  # characters of a number that is meant
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as ``1h30m``, ``500ms`` or ``0``; raises ConfigError."""
    text = text.strip()
    if text == "0":
        return 0.0
    total, end = 0.0, 0
    while len(text) < _LONGEST and (match := _DURATION.match(text, end)):
        total += float(match[1]) * _DURATION_UNITS[match[2]]
        end = match.end()
    if not text or end != len(text):
        raise ConfigError(f"{text!r} is not a duration: write it with units, as in 500ms or 1h30m")
    return total


def format_duration(seconds: float) -> str:
    """A short text that ``parse_duration`` reads as these seconds, to the nanosecond."""
    for unit, length in (("ns", 1e-6), ("us", 1e-3), ("ms", 1.0)):
        if 0 < seconds < length:
            return f"{round(seconds / _DURATION_UNITS[unit], 3):g}{unit}"
    text = ""
    for unit, length in (("h", 3600), ("m", 60)):
        count = int(seconds // length)
        seconds -= count * length
        text += f"{count}{unit}" if count else ""
    rest = f"{seconds:.9f}".rstrip("0").rstrip(".")
    return text if text and rest == "0" else f"{text}{rest}s"


def parse_size(text: str) -> int:
    """Bytes of ``64MiB`` (powers of 1024), ``64M`` (the same) or ``64MB`` (powers of 1000)."""
    match = _SIZE.fullmatch(text.strip())
    if text.strip() == "-1":
        return -1  # "none", where the minimum allows it
    if not match or len(text) > _LONGEST:
        raise ConfigError(f"{text!r} is not a size: write it as in 65536, 64KiB or 5MB")
    decimal = bool(match[2]) and match[3].lower() == "b"
    return int(float(match[1]) * (1000 if decimal else 1024) ** _SIZE_POWERS[match[2].lower()])


def format_size(count: int) -> str:
    """The shortest text that ``parse_size`` reads as this many bytes."""
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def _parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1" | "yes" | "on" | "t":
            return True
        case "false" | "0" | "no" | "off" | "f":
            return False
    raise ConfigError(f"{text!r} is not a boolean: write true or false")


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a whole number") from None


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None


_PARSERS: Mapping[Kind, Callable[[str], Any]] = {
    "text": str,
    "path": str,
    "choice": str,
    "flag": _parse_bool,
    "count": _parse_integer,
    "integer": _parse_integer,
    "number": _parse_number,
    "duration": parse_duration,
    "size": parse_size,
}


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option besides its name, type and default."""

    kind: Kind
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    multiple: bool = False
    short: str = ""
    metavar: str = ""
    flag: bool = True
    secret: bool = False
    alias: str = ""
    values: Values = ""
    """What the values name, where a server or the configuration file knows them: for TAB."""
    own: bool = False
    """Whether it is its command's own in a class whose options are shared."""
    in_file: bool = True
    excludes: tuple[str, ...] = ()
    """Options of the same class whose weaker values give way to a value of this one."""

    def parse(self, text: str) -> Any:
        """One value from its text; raises ConfigError without naming the option."""
        if self.values and not text:
            raise ConfigError(f"expected the name of a {self.values}, found nothing")
        value = _PARSERS[self.kind](text)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError if the value is out of range."""
        if self.choices and value not in self.choices:
            near = nearest(str(value), self.choices)
            raise ConfigError(f"{value!r} is not one of {', '.join(self.choices)}{near}")
        if self.kind not in ("integer", "number", "duration", "size"):
            return
        low, high = self.minimum, self.maximum
        # Said this way nan is out of range too.
        within = (low is None or value >= low) and (high is None or value <= high)
        if not within or value == float("inf"):
            raise ConfigError(f"{self.show(value)} is out of range: expected {self.range}")

    def show(self, value: Any) -> str:
        """The value as a user would write it."""
        match self.kind:
            case "duration":
                return format_duration(value)
            case "size":
                return format_size(value)
            case "flag":
                return str(value).lower()
            case "number":
                return f"{value:g}"
        return str(value)

    @property
    def range(self) -> str:
        """``low to high``, ``at least low``, ``at most high``, or nothing."""
        low = None if self.minimum is None else self.show(self.minimum)
        high = None if self.maximum is None else self.show(self.maximum)
        if low is not None and high is not None:
            return f"{low} to {high}"
        if low is not None:
            return f"at least {low}"
        return f"at most {high}" if high is not None else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing when no known word is near."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def option(default: Any, kind: Kind, help: str, **rest: Any) -> Any:  # noqa: A002 - click's word
    """A dataclass field that is an option; ``rest`` as in Option."""
    return field(default=default, metadata={"option": Option(kind, help, **rest)})


def _texts(help: str, *, metavar: str, **rest: Any) -> Any:  # noqa: A002
    return option((), "text", help, multiple=True, metavar=metavar, **rest)


def flag_name(name: str) -> str:
    """``max_in_flight`` to ``max-in-flight``."""
    return name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base of all option classes. Raises ConfigError when made with a value out of range."""

    title: ClassVar[str] = "Options"
    shared: ClassVar[bool] = False
    """Whether one environment variable, NSQTOOLS_<OPTION>, serves all commands."""
    opt_flag: ClassVar[str] = ""
    """The flag that takes go-nsq's ``name,value`` texts for this class, if it has one."""

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            values = getattr(self, name) if declared.multiple else (getattr(self, name),)
            try:
                for value in values:
                    if value is not None:
                        declared.check(value)
            except ConfigError as error:
                raise ConfigError(f"--{flag_name(name)}: {error}") from None
        self.check()

    def check(self) -> None:
        """Raise ConfigError if options contradict each other."""

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Options by field name, in order of declaration."""
        return {f.name: f.metadata["option"] for f in fields(cls)}

    @classmethod
    def shares(cls, declared: Option) -> bool:
        """Whether an option of this class has a variable and a key for all commands."""
        return cls.shared and not declared.own

    @classmethod
    def pairs_option(cls) -> Option:
        """The option ``opt_flag``."""
        return Option(
            "text",
            "Set an option by go-nsq's name, with or without a flag; may be repeated.",
            multiple=True,
            metavar="NAME,VALUE",
        )

    @classmethod
    def parse_pairs(cls, pairs: Iterable[str], where: str) -> dict[str, Any]:
        """Values from go-nsq's ``name,value`` texts (``config_flag.go``); a bare name is true.

        Raises ConfigError for an unknown name, with the nearest known one; ``where`` begins it.
        """
        known = {}
        for name, declared in cls.declared().items():
            if not declared.multiple:
                known[name] = known[declared.alias or name] = (name, declared)
        values = {}
        for pair in pairs:
            given, comma, text = pair.partition(",")
            key = given.strip().replace("-", "_")
            if key not in known:
                raise ConfigError(f"{where}: unknown option {given!r}{nearest(key, known)}")
            name, declared = known[key]
            try:
                values[name] = declared.parse(text if comma else "true")
            except ConfigError as error:
                raise ConfigError(f"{where} {given}: {error}") from None
        return values

    def with_values(self, **values: Any) -> Self:
        """A checked copy with some values replaced."""
        return replace(self, **values)


def _hostname() -> str:
    from socket import gethostname

    return gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
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
    max_msg_size: int = option(
        0, "size", "Largest frame accepted from nsqd; 0 for no limit.", minimum=0, flag=False
    )
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
    deflate: bool = option(
        False, "flag", "Compress the connection with deflate.", excludes=("snappy",)
    )
    deflate_level: int = option(6, "integer", "Level of deflate.", minimum=1, maximum=9)
    auth_secret: str = option(
        "",
        "text",
        "Secret for an nsqd that requires AUTH.",
        flag=False,
        secret=True,
        excludes=("auth_secret_file",),
    )
    auth_secret_file: str = option(
        "", "path", "File that holds the AUTH secret.", excludes=("auth_secret",)
    )
    topology_region: str = option("", "text", "Region sent to nsqd.", flag=False)
    topology_zone: str = option("", "text", "Zone sent to nsqd.", flag=False)

    def check(self) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def check(self) -> None:
        """As the base's, and what only a consumer negotiates."""
        ClientConfig.check(self)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        "To one nsqd in turn, another if it fails; or a copy to each.",
        choices=("round-robin", "all"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Options):
    """Where a consuming command reads."""

    title: ClassVar[str] = "Source"
    shared: ClassVar[bool] = True

    topic: tuple[str, ...] = _texts(
        "Topic to consume; may be repeated.", metavar="TOPIC", values="topic", own=True
    )
    channel: str = option(
        "", "text", "Channel to consume it on.", metavar="CHANNEL", values="channel", own=True
    )
    nsqd_tcp_address: tuple[str, ...] = _texts(
        "nsqd to consume from; may be repeated. [default: 127.0.0.1:4150]",
        metavar="HOST:PORT",
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = _texts(
        "nsqlookupd to ask for nsqds instead; may be repeated.",
        metavar="HOST:PORT",
        excludes=("nsqd_tcp_address",),
    )

    def check(self) -> None:
        """Both kinds of address contradict each other."""
        if not self.topic:
            raise ConfigError("--topic: name at least one topic")
        for topic in self.topic:
            check_name("topic", topic)
        if self.channel:
            check_name("channel", self.channel)
        if self.nsqd_tcp_address and self.lookupd_http_address:
            raise ConfigError(
                "--nsqd-tcp-address and --lookupd-http-address exclude each other: give one kind"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions(Options):
    """When a consuming command is done; 0 is never."""

    title: ClassVar[str] = "When to stop"

    count: int = option(
        0, "integer", "Stop after this many messages, all topics together.", minimum=0, short="n"
    )
    max_duration: float = option(0.0, "duration", "Stop after this time.", minimum=0.0)
    idle_timeout: float = option(
        0.0, "duration", "Stop when no message came for this long.", minimum=0.0
    )
    until_empty: bool = option(
        False,
        "flag",
        "Stop when depth, in flight and deferred are 0 on every nsqd, seen twice.",
    )
    nsqd_http_address: tuple[str, ...] = _texts(
        "HTTP address of an nsqd, for --until-empty; may be repeated. [default: what nsqlookupd "
        "says, or the port after the TCP port]",
        metavar="HOST:PORT",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """What goes to stderr."""

    title: ClassVar[str] = "Logging"
    shared: ClassVar[bool] = True

    verbose: int = option(0, "count", "Say what is going on; -vv says everything.", short="v")
    quiet: bool = option(False, "flag", "Say nothing but errors.", short="q")
    log_format: str = option(
        "text", "choice", "Form of log lines on stderr.", choices=("text", "json")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions(Options):
    """Which configuration file is read, and which of its profiles."""

    title: ClassVar[str] = "Configuration"
    shared: ClassVar[bool] = True

    config: str = option(
        "",
        "path",
        "Configuration file, or none. [default: $XDG_CONFIG_HOME/nsqtools/config.toml, "
        "then /etc/nsqtools/config.toml]",
        in_file=False,
    )
    profile: tuple[str, ...] = _texts(
        "Profile of that file. [default: its default_profile]",
        metavar="NAME",
        values="profile",
        in_file=False,
    )

    def check(self) -> None:
        """There is one profile at a time."""
        if len(self.profile) > 1:
            names = " and ".join(map(repr, self.profile))
            raise ConfigError(f"--profile: give one profile, not {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(Options):
    """How messages stand in a stream of bytes, for ``tail`` out and for ``pub`` in."""

    title: ClassVar[str] = "Format"

    delimiter: str = option(
        "\\n", "text", "Bytes after each message: text, \\n, \\t, \\0, \\xNN.", metavar="BYTES"
    )
    null: bool = option(False, "flag", "A NUL after each message, as for xargs -0.", short="0")
    length_prefix: bool = option(
        False, "flag", "Four bytes of length, big-endian, before each message."
    )
    json: bool = option(False, "flag", "One JSON object a line, with the message's metadata.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions(RecordOptions):
    """What ``tail`` prints."""

    print_topic: bool = option(False, "flag", "Print 'topic | ' before each message.")
    timestamps: bool = option(False, "flag", "Print the time of publishing before each message.")
    format: str = option(
        "",
        "text",
        "Template: %s body, %S its size, %R its size in 4 bytes, %t topic, %c channel, %i id, "
        "%a attempts, %T ns since the epoch, %d{strftime}, %h nsqd, %%, \\n, \\t, \\0, \\xNN.",
        short="f",
        metavar="TEMPLATE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(Options):
    """Where a publishing command writes."""

    title: ClassVar[str] = "Target"
    shared: ClassVar[bool] = True

    topic: str = option(
        "", "text", "Topic to publish to.", metavar="TOPIC", values="topic", own=True
    )
    nsqd_tcp_address: tuple[str, ...] = _texts(
        "nsqd to publish to; may be repeated. [default: 127.0.0.1:4150]", metavar="HOST:PORT"
    )

    def check(self) -> None:
        """A topic is needed."""
        if not self.topic:
            raise ConfigError("--topic: name the topic to publish to")
        check_name("topic", self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubOptions(RecordOptions):
    """What ``pub`` reads and how it sends."""

    title: ClassVar[str] = "Input and publishing"

    file: tuple[str, ...] = option(
        (),
        "path",
        "File to read messages from, - for stdin; may be repeated.",
        multiple=True,
        metavar="FILE",
    )
    whole: bool = option(False, "flag", "Each file, or all of stdin, is one message.")
    keep_empty: bool = option(
        False, "flag", "An empty message is an error; else it is skipped, as nsqd takes none."
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    defer: float = option(
        0.0, "duration", "Let nsqd deliver only after this time.", minimum=0.0, maximum=3600.0
    )
    tee: bool = option(False, "flag", "Copy to stdout what was read.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions(Options):
    """Which nsqlookupds to ask and how to print."""

    title: ClassVar[str] = "Look-up"
    shared: ClassVar[bool] = True

    lookupd_http_address: tuple[str, ...] = _texts(
        "nsqlookupd to ask; may be repeated. [default: 127.0.0.1:4161]", metavar="HOST:PORT"
    )
    http_client_connect_timeout: float = option(
        2.0, "duration", "Limit for a connection to be made.", minimum=0.001
    )
    http_client_request_timeout: float = option(
        5.0, "duration", "Limit for an answer.", minimum=0.001
    )
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )
    json: bool = option(False, "flag", "Print JSON.", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions(Options):
    """How settings are printed."""

    title: ClassVar[str] = "Output"

    json: bool = option(False, "flag", "Print JSON.")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        "", "text", "Server to ask about AUTH secrets.", metavar="HOST:PORT"
    )
    auth_secret_file: str = option(
        "", "path", "File with the one AUTH secret that is accepted, for everything."
    )

    def check(self) -> None:
        """What belongs together."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")
        if self.tls_required != "false" and not self.tls_cert:
            raise ConfigError("--tls-required: needs --tls-cert and --tls-key")
        if self.auth_http_address and self.auth_secret_file:
            raise ConfigError(
                "--auth-http-address and --auth-secret-file exclude each other: give one"
            )
        if self.auth_http_address:
            Address.parse(self.auth_http_address, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    )
    rate: float = option(10.0, "number", "Sample events a second.", minimum=0.001, maximum=100000.0)

    def check(self) -> None:
        """A topic must have a valid name."""
        if self.seed_topic:
            check_name("topic", self.seed_topic)
