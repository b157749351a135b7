"""What to-http sends where."""

from __future__ import annotations

import re
from typing import ClassVar

from nsqtools.config.consuming import StopOptions
from nsqtools.config.option import URL_SECRETS, Options, option, option_class, texts
from nsqtools.errors import ConfigError

_STATUS = re.compile("[1-5]([0-9]{2}(-[1-5][0-9]{2})?|[xX]{2})")


@option_class
class HttpOptions(Options):
    """What ``to-http`` sends where: nsq_to_http's names, and what it lacks."""

    title: ClassVar[str] = "Delivery"

    post: tuple[str, ...] = option(
        (),
        "text",
        "URL to POST each message to; may be repeated.",
        multiple=True,
        metavar="URL",
        hides=URL_SECRETS,
        excludes=("get",),
    )
    get: tuple[str, ...] = option(
        (),
        "text",
        "URL to GET for each message, which stands escaped for %s; may be repeated.",
        multiple=True,
        metavar="URL",
        hides=URL_SECRETS,
    )
    mode: str = option(
        "hostpool",
        "choice",
        "Which of several URLs gets a message: the next one of those that answer, the next one, "
        "more often a faster one, or all of them.",
        choices=("hostpool", "round-robin", "epsilon-greedy", "all"),
    )
    concurrency: int = option(
        100, "integer", "Most requests at a time.", minimum=1, maximum=10000, short="n"
    )
    endpoint_concurrency: int = option(
        0, "integer", "Most requests at a time to one URL; 0 for no limit.", minimum=0
    )
    rate: float = option(
        0.0,
        "number",
        "Most deliveries per second, of a message or of a batch; 0 for no limit.",
        minimum=0.0,
    )
    sample: float = option(
        1.0,
        "number",
        "Part of the messages to deliver; the others are finished at once.",
        minimum=0.0,
        maximum=1.0,
    )
    batch: int = option(
        1,
        "integer",
        "Most messages of a request, of which twice as many may be in flight.",
        minimum=1,
        maximum=10000,
        metavar="N",
    )
    batch_wait: float = option(
        0.2, "duration", "Longest wait for as many messages.", minimum=0.0, maximum=60.0
    )
    batch_format: str = option(
        "ndjson",
        "choice",
        "How messages share a body: one JSON text a line, a JSON array, or with four bytes of "
        "length, big-endian, before each.",
        choices=("ndjson", "json-array", "length-prefixed"),
    )
    header: tuple[str, ...] = texts(
        "Header of every request; may be repeated.",
        metavar="'NAME: VALUE'",
        hides=r"(?<=:).*",
        lines=True,
    )
    header_file: tuple[str, ...] = option(
        (),
        "path",
        "File of such headers, one a line, so that secrets stay off the command line; may be "
        "repeated.",
        multiple=True,
        metavar="FILE",
    )
    content_type: str = option(
        "",
        "text",
        "Content-Type of POSTs.",
        metavar="TYPE",
        default_note="application/octet-stream, or that of the batch format",
    )
    compress: str = option("none", "choice", "Compression of bodies.", choices=("none", "gzip"))
    sign_secret_file: str = option(
        "",
        "path",
        "File of a secret that requests are signed with as Standard Webhooks does; with several "
        "lines they have a signature of each.",
        metavar="FILE",
    )
    success_on: str = option(
        "2xx",
        "text",
        "Statuses that finish a message, as in 2xx,304 or 200-204.",
        metavar="STATUSES",
    )
    drop_on: str = option(
        "",
        "text",
        "Statuses that make it a dead letter at once; 410 only if it is named itself.",
        metavar="STATUSES",
    )
    retry_on: str = option(
        "",
        "text",
        "Exceptions from both; all other statuses are tried again, too.",
        metavar="STATUSES",
    )
    follow_redirects: bool = option(
        False,
        "flag",
        "Follow redirects that leave a request what it is: a POST 307 and 308. Else they are "
        "failures.",
    )
    http_client_connect_timeout: float = option(
        2.0, "duration", "Limit for a connection to be made.", minimum=0.001
    )
    http_client_request_timeout: float = option(
        20.0, "duration", "Limit for all of a request, from the connection on.", minimum=0.001
    )
    proxy: str = option(
        "",
        "text",
        "HTTP proxy, or none; that of the environment is not for this host.",
        metavar="URL",
        hides=URL_SECRETS,
        default_note="$http_proxy, $https_proxy and $no_proxy",
    )
    http_tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )
    http_tls_cert: str = option("", "path", "Client certificate for https (PEM).")
    http_tls_key: str = option("", "path", "Key of that certificate (PEM).")
    http_tls_insecure_skip_verify: bool = option(
        False, "flag", "Do not verify certificates of https."
    )
    status_every: int = option(
        0,
        "integer",
        "Tell counts and latencies of each URL on stderr, after so many requests and at the end.",
        minimum=0,
        default_note="never",
    )
    dry_run: bool = option(
        False,
        "flag",
        "Print requests for messages published from now on, and send and finish nothing.",
    )

    def validate(self) -> None:
        """What belongs together."""
        if bool(self.http_tls_cert) != bool(self.http_tls_key):
            raise ConfigError(
                "--http-tls-cert and --http-tls-key belong together: give both or neither"
            )
        for flag in ("success-on", "drop-on", "retry-on"):
            text = getattr(self, flag.replace("-", "_"))
            for word in map(str.strip, text.split(",") if text.strip() else ()):
                if not _STATUS.fullmatch(word):
                    raise ConfigError(
                        f"--{flag}: {word!r} is not a status: write 429, 200-204 or 5xx, with "
                        "commas between"
                    )
        if self.get and self.batch > 1:
            raise ConfigError("--batch: needs --post, as a request of --get has no body")

    def check_complete(self) -> None:
        """A URL is needed."""
        if not self.post and not self.get:
            raise ConfigError("--post or --get is required")


@option_class
class DeliveryStopOptions(StopOptions):
    """``-n`` is nsq_to_http's number of requests at a time."""

    count: int = option(
        0,
        "integer",
        "Stop after this many messages, all topics together.",
        minimum=0,
        default_note="no limit",
    )
