"""Options of to-http."""

from __future__ import annotations

import re

from nsqtools.config.admin import CONNECT_TIMEOUT
from nsqtools.config.connection import CHOICE, ConsumerConfig, check_pair
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import (
    NO_LIMIT,
    URL_SECRETS,
    Options,
    choice,
    duration,
    flag,
    integer,
    like,
    number,
    path,
    paths,
    text,
    texts,
)
from nsqtools.errors import ConfigError

_STATUS = re.compile("[1-5]([0-9]{2}(-[1-5][0-9]{2})?|[xX]{2})")


def _statuses(value: str) -> None:
    for word in map(str.strip, value.split(",") if value.strip() else ()):
        if not _STATUS.fullmatch(word):
            raise ConfigError(
                f"{word!r} is not a status: expected 429, 200-204 or 5xx, separated by commas"
            )


class HttpSourceOptions(SourceOptions):
    """The topics and the channel consumed by ``to-http``."""

    topic: tuple[str, ...] = SourceOptions.topic
    channel: str = like(SourceOptions.channel, default="nsq_to_http")


class HttpConsumerConfig(ConsumerConfig):
    """ConsumerConfig of ``to-http``: its messages stay in flight until a response comes."""

    max_in_flight: int = like(ConsumerConfig.max_in_flight, default=200)


class HttpOptions(Options):
    """Options of ``to-http``. Options of nsq_to_http keep their names."""

    title = "Delivery"

    post: tuple[str, ...] = texts(
        "URL to POST each message to; may be repeated.",
        metavar="URL",
        hides=URL_SECRETS,
        required=True,
        instead="get",
        excludes=("get",),
    )
    get: tuple[str, ...] = texts(
        "URL to GET for each message, with %s for the escaped body; may be repeated.",
        metavar="URL",
        hides=URL_SECRETS,
    )
    mode: str = choice(
        CHOICE,
        *("round-robin", "hostpool", "all"),
        default="hostpool",
        other_choices=("epsilon-greedy",),
    )
    concurrency: int = integer(
        "Maximum concurrent requests.", 100, minimum=1, maximum=10000, short="n"
    )
    workers: int = integer(
        "Processes to share --concurrency, --max-in-flight and --rate.", 1, minimum=1, maximum=256
    )
    rate: float = number("Maximum requests per second.", 0.0, default_note=NO_LIMIT)
    sample: float = number(
        "Fraction of messages to deliver; the others are finished at once.",
        1.0,
        maximum=1.0,
        hidden=True,
    )
    batch: int = integer(
        "Maximum messages in a request; twice as many may be in flight. Not with --get.",
        1,
        minimum=1,
        maximum=10000,
        excludes=("get",),
    )
    batch_wait: float = duration("Maximum wait for a batch to fill.", 0.2, maximum=60.0)
    batch_format: str = choice(
        "Body of a batch: one JSON text per line, a JSON array, or a 4-byte big-endian length "
        "before each message.",
        *("ndjson", "json-array", "length-prefixed"),
    )
    header: tuple[str, ...] = texts(
        "Header for every request, as in 'Name: value'; may be repeated.",
        metavar="'NAME: VALUE'",
        hides=r"(?<=:).*",
        lines=True,
    )
    header_file: tuple[str, ...] = paths(
        "File of headers, one per line, to keep secrets off the command line; may be repeated.",
        metavar="FILE",
    )
    content_type: str = text(
        "Content-Type of POST requests.",
        metavar="TYPE",
        default_note="application/octet-stream, or the type of --batch-format",
        excludes=("get",),
    )
    compress: str = choice("Compression of request bodies.", "none", "gzip", excludes=("get",))
    sign_secret_file: str = path(
        "File of secrets, one per line, to sign requests with as Standard Webhooks describes; each "
        "secret adds a signature.",
        metavar="FILE",
        excludes=("get",),
    )
    success_on: str = text(
        "Statuses of success, such as 2xx,304 or 200-204: the message is finished.",
        "2xx",
        metavar="STATUSES",
        rule=_statuses,
    )
    drop_on: str = text(
        "Statuses of permanent failure: the message is a dead letter at once. 4xx does not include "
        "410; list it explicitly.",
        metavar="STATUSES",
        rule=_statuses,
    )
    retry_on: str = text(
        "Statuses to retry even if --success-on or --drop-on lists them. Statuses in no list are "
        "retried, too.",
        metavar="STATUSES",
        rule=_statuses,
    )
    follow_redirects: bool = flag(
        "Follow redirects with the same method and body: for a POST, 307 and 308. Otherwise a "
        "redirect is a failure."
    )
    http_client_connect_timeout: float = CONNECT_TIMEOUT
    http_client_request_timeout: float = duration(
        "Timeout for a whole request, connecting included.", 20.0, minimum=0.001
    )
    proxy: str = text(
        "HTTP proxy, or none for no proxy. Proxies of the environment are not used for this host.",
        metavar="URL",
        hides=URL_SECRETS,
        default_note="$http_proxy, $https_proxy and $no_proxy",
    )
    http_tls_root_ca_file: str = path(
        "CA certificates to trust for https instead of the system's (PEM file)."
    )
    http_tls_cert: str = path("Client certificate for https (PEM file).")
    http_tls_key: str = path("Key of the client certificate for https (PEM file).")
    http_tls_insecure_skip_verify: bool = flag("Do not verify the certificates of https servers.")
    status_every: int = integer(
        "Log counts and latencies per URL every this many requests, and at the end.",
        0,
        default_note="never",
    )

    def validate(self) -> None:
        """Raise ConfigError for a certificate without its key, or the reverse."""
        check_pair(self, "http_tls_cert", "http_tls_key")
