"""The HTTP sink as options describe it: endpoints, the choice among them, and the sink."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from nsqtools.clock import wall
from nsqtools.policy.endpoints import make_endpoints as make_choice
from nsqtools.policy.pace import Pace
from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.courier import EachOf, OneOf
from nsqtools.sinks.http.httpsink import HttpSink
from nsqtools.sinks.http.post import Post
from nsqtools.sinks.http.proxies import proxies_for
from nsqtools.sinks.http.signing import Signer
from nsqtools.sinks.http.transport import REST_TIMEOUT, Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from nsqtools.config.http import HttpOptions
    from nsqtools.sinks.deadletters import DeadLetters
    from nsqtools.sinks.http.courier import Courier


def make_sink(
    options: HttpOptions,
    dead_letters: DeadLetters,
    context: SSLContext,
    *,
    longest_delay: float,
    explain: Callable[[BaseException], str],
) -> HttpSink:
    """Return the sink for these options; it does not connect yet.

    An endpoint may ask for a retry after at most ``longest_delay`` seconds. ``explain`` turns the
    error of a connection into text. Raises ConfigError.
    """
    request_timeout = options.http_client_request_timeout
    transport = Transport(
        context,
        connect_timeout=options.http_client_connect_timeout,
        rest_timeout=min(REST_TIMEOUT, request_timeout / 4),
        proxy_of=proxies_for(options.proxy, [*options.post, *options.get]),
        explain=explain,
    )
    post = Post(
        make_endpoints(
            post=options.post,
            get=options.get,
            headers=read_headers(options.header, options.header_file),
            content_type=options.content_type,
            batch_format=options.batch_format if options.batch > 1 else "",
            compress=options.compress == "gzip",
            signer=Signer.from_file(options.sign_secret_file) if options.sign_secret_file else None,
        ),
        transport,
        Statuses(options.success_on, options.drop_on, options.retry_on),
        timeout=request_timeout,
        longest_delay=longest_delay,
        wall=wall,
        follow_redirects=options.follow_redirects,
        status_every=options.status_every,
    )
    rng = Random()  # noqa: S311
    courier: Courier
    if options.mode == "all":
        courier = EachOf(post, rng=rng)
    else:
        choice = make_choice(options.mode, list(post.endpoints))
        courier = OneOf(post, choice, rng=rng)
    return HttpSink(
        courier,
        dead_letters,
        Pace(options.rate),
        workers=options.concurrency,
        size=options.batch,
        wait=options.batch_wait,
        share=options.sample,
    )
