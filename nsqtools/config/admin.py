"""Options for servers to query or change over HTTP."""

from __future__ import annotations

from nsqtools.config.connection import (
    CA_FILE,
    CLIENT_CERT,
    CLIENT_KEY,
    SKIP_VERIFY,
    check_pair,
)
from nsqtools.config.consuming import HTTP_FOUND, ServerOptions
from nsqtools.config.option import (
    Options,
    channel_name,
    duration,
    flag,
    like,
    path,
    paths,
    texts,
    topic_name,
    topic_pattern,
    urls,
)
from nsqtools.config.program import JSON
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT

CONNECT_TIMEOUT = duration("Timeout for connecting.", 2.0, minimum=0.001)
REQUEST_TIMEOUT = duration("Timeout for a response.", 5.0, minimum=0.001)


class TimeoutOptions(Options):
    """Timeout of a command that queries servers over HTTP."""

    shared = True

    timeout: float = duration("Timeout for the whole command.", 8.0, minimum=0.1)


class HttpsOptions(TimeoutOptions):
    """How to reach servers at addresses that begin with https://."""

    tls_root_ca_file: str = CA_FILE
    tls_cert: str = CLIENT_CERT
    tls_key: str = CLIENT_KEY
    tls_insecure_skip_verify: bool = SKIP_VERIFY

    def validate(self) -> None:
        """Raise ConfigError for a certificate without its key, or the reverse."""
        check_pair(self, "tls_cert", "tls_key")


class LookupOptions(HttpsOptions):
    """The nsqlookupds to query, and the output format."""

    title = "Look-up"

    lookupd_http_address: tuple[str, ...] = like(
        ServerOptions.lookupd_http_address, default=(f"127.0.0.1:{LOOKUPD_HTTP_PORT}",)
    )
    json: bool = JSON


class ApiOptions(HttpsOptions):
    """The servers to query over HTTP."""

    title = "Cluster"

    lookupd_http_address: tuple[str, ...] = ServerOptions.lookupd_http_address
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd to query, in addition to those of nsqlookupds; may be repeated.",
        outranks=("lookupd_http_address",),
        default_note=f"127.0.0.1:{NSQD_HTTP_PORT}, unless an nsqlookupd is given",
    )


class ClusterOptions(ApiOptions):
    """The servers queried repeatedly by ``stats``, with nsq_stat's timeouts."""

    timeout: float = like(TimeoutOptions.timeout, help="Timeout for each report.")
    http_client_connect_timeout: float = like(CONNECT_TIMEOUT, own=True)
    http_client_request_timeout: float = like(REQUEST_TIMEOUT, own=True)


class ChangeOptions(ApiOptions):
    """The servers to change with ``topic``, ``channel`` and ``node``, and the output format."""

    dry_run: bool = flag("Print the plan; change nothing.", own=True)
    json: bool = JSON


class LossOptions(ChangeOptions):
    """Options for changes that delete messages or hide them from consumers."""

    yes: bool = flag(
        "Do not ask for confirmation; needed without a terminal.",
        short="y",
        own=True,
        in_file=False,
    )


class TombstoneOptions(LossOptions):
    """Options of ``node tombstone``: it hides an nsqd on the given nsqlookupds."""

    lookupd_http_address: tuple[str, ...] = like(ApiOptions.lookupd_http_address, required=True)
    delete: bool = flag(
        "Also delete the topic on that nsqd, with its messages, as nsqadmin does.", own=True
    )


class TrimOptions(LossOptions):
    """Options of ``channel trim``: the age of old messages, and their archive."""

    older_than: float = duration(
        "Finish messages published longer ago than this.",
        0.0,
        minimum=0.001,
        own=True,
        required=True,
        in_file=False,
    )
    archive: str = path(
        "Directory for an archive of the messages, as of to-file --format json --gzip. Each "
        "message is archived before it is finished.",
        metavar="DIR",
        own=True,
    )
    timeout: float = like(TimeoutOptions.timeout, help="Timeout for finding the messages.")


class PruneOptions(LossOptions):
    """Options of ``topic prune``: how it is known what is idle, and what to delete of that."""

    watch_for: float = duration(
        "Watch for this time, at least a minute, and delete what was idle meanwhile.",
        0.0,
        own=True,
        in_file=False,
        default_note="never",
    )
    snapshot: tuple[str, ...] = paths(
        "File of doctor --save, or a quoted pattern; may be repeated.",
        metavar="FILE",
        own=True,
        required=True,
        instead="watch_for",
        excludes=("watch_for",),
    )
    idle: float = duration(
        "Delete what was idle for this time, by the snapshots.",
        30 * 86400.0,
        minimum=0.001,
        own=True,
        excludes=("watch_for",),
    )
    topic: tuple[str, ...] = texts(
        "Only this topic; may be repeated.",
        metavar="TOPIC",
        values="topic",
        own=True,
        default_note="all",
        excludes=("topic_pattern",),
    )
    topic_pattern: str = topic_pattern(
        "Only topics with names that match this regular expression, in Go's syntax."
    )
    with_messages: bool = flag(
        "Also delete what is idle and holds messages.", own=True, in_file=False
    )
    timeout: float = like(TimeoutOptions.timeout, help="Timeout for each look at the servers.")


class PruneChannelOptions(PruneOptions):
    """Options of ``channel prune``."""

    channel: str = channel_name("Only channels of this name.", own=True, default_note="all")


class DrainOptions(HttpsOptions):
    """Options of ``node drain``: how long to wait, and where to hide the nsqd first."""

    title = "Drain"

    evict: bool = flag(
        "Tombstone all topics of the nsqd first, to hide it from consumers and publishers with "
        "nsqlookupd.",
        own=True,
        needs="lookupd_http_address",
    )
    lookupd_http_address: tuple[str, ...] = ApiOptions.lookupd_http_address
    timeout: float = like(TimeoutOptions.timeout, default=300.0, own=True)
    json: bool = JSON


class DoctorOptions(ServerOptions, TimeoutOptions):
    """Options of ``doctor``: the topic and the servers to examine, and the findings to show."""

    title = "Source"

    topic: str = topic_name("Topic to examine.", own=True, default_note="the whole cluster")
    channel: str = channel_name("Channel to examine.", own=True, needs="topic")
    skip: tuple[str, ...] = texts(
        "Code of findings to leave out; may be repeated.", metavar="CODE", values="code", own=True
    )
    save: str = path(
        "Save what was seen of the whole cluster, for --compare and prune.",
        metavar="FILE",
        own=True,
        in_file=False,
        excludes=("topic",),
    )
    compare: str = path(
        "Say what has changed since this file of --save.",
        metavar="FILE",
        own=True,
        in_file=False,
        excludes=("topic",),
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd to examine; may be repeated.",
        default_note=HTTP_FOUND,
    )
    json: bool = JSON
