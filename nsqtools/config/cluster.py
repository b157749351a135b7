"""Which servers are asked or changed over HTTP."""

from __future__ import annotations

from typing import Any, ClassVar

from nsqtools.config.option import Options, addresses, option, option_class, urls
from nsqtools.errors import ConfigError
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT, NSQD_TCP_PORT


def _connect_timeout() -> Any:
    return option(2.0, "duration", "Limit for a connection to be made.", minimum=0.001)


def _request_timeout() -> Any:
    return option(5.0, "duration", "Limit for an answer.", minimum=0.001)


def _timeout() -> Any:
    return option(
        8.0,
        "duration",
        "Time limit for the whole command; in stats, for each report. --check adds --interval.",
        minimum=0.1,
    )


@option_class
class LookupOptions(Options):
    """Which nsqlookupds to ask and how to print."""

    title: ClassVar[str] = "Look-up"
    shared: ClassVar[bool] = True

    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask; may be repeated.",
        default=(f"127.0.0.1:{LOOKUPD_HTTP_PORT}",),
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )
    json: bool = option(False, "flag", "Print JSON.", own=True)


@option_class
class ClusterOptions(Options):
    """Which nsqds a command looks at, over HTTP."""

    title: ClassVar[str] = "Cluster"
    shared: ClassVar[bool] = True

    lookupd_http_address: tuple[str, ...] = urls("nsqlookupd to ask for nsqds; may be repeated.")
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, asked right there; may be repeated, beside nsqlookupds too.",
        outranks=("lookupd_http_address",),
        default_note=f"127.0.0.1:{NSQD_HTTP_PORT}, unless an nsqlookupd is given",
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )

    @property
    def nsqds(self) -> tuple[str, ...]:
        """The given nsqds: the one of this host, if neither is given."""
        if self.nsqd_http_address or self.lookupd_http_address:
            return self.nsqd_http_address
        return (f"127.0.0.1:{NSQD_HTTP_PORT}",)


@option_class
class ChangeOptions(ClusterOptions):
    """Which servers ``topic``, ``channel`` and ``node`` change, and how they say so."""

    dry_run: bool = option(False, "flag", "Only print what would be asked of whom.", own=True)
    json: bool = option(False, "flag", "Print JSON.", own=True)


@option_class
class LossOptions(ChangeOptions):
    """As ChangeOptions, where messages are lost."""

    yes: bool = option(
        False,
        "flag",
        "Do not ask; needed where there is no terminal to ask on.",
        short="y",
        own=True,
        in_file=False,
    )


@option_class
class TombstoneOptions(LossOptions):
    """How ``node tombstone`` hides an nsqd."""

    delete: bool = option(
        False,
        "flag",
        "Then delete the topic on that nsqd, with its messages, as nsqadmin does.",
        own=True,
    )

    def check_complete(self) -> None:
        """A tombstone is nsqlookupd's."""
        if not self.lookupd_http_address:
            raise ConfigError("--lookupd-http-address is required: nsqlookupd keeps tombstones")


@option_class
class DoctorOptions(Options):
    """What ``doctor`` looks at: the topic and the servers of a command that sees nothing."""

    title: ClassVar[str] = "Source"
    shared: ClassVar[bool] = True

    topic: str = option(
        "",
        "text",
        "Topic that is consumed.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    channel: str = option(
        "", "text", "Channel it is consumed on.", metavar="CHANNEL", values="channel", own=True
    )
    nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to consume from; may be repeated.",
        default=(f"127.0.0.1:{NSQD_TCP_PORT}",),
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask for nsqds instead; may be repeated."
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd to look at; may be repeated.",
        default_note="what nsqlookupd says, or the port after the TCP port",
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    json: bool = option(False, "flag", "Print JSON.", own=True)
