"""Delivery over HTTP as options describe it: endpoints, who chooses among them, and the sink."""

from __future__ import annotations

import os
import time
from random import Random
from typing import TYPE_CHECKING

from nsqtools.policy.endpoints import make_endpoints as make_choice
from nsqtools.policy.pace import Pace
from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.deadletters import Nowhere, make_dead_letters
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.courier import EachOf, OneOf
from nsqtools.sinks.http.dryrun import DryRun
from nsqtools.sinks.http.httpsink import HttpSink
from nsqtools.sinks.http.post import Post, post_letters
from nsqtools.sinks.http.signing import Signer
from nsqtools.sinks.stdout import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.config import DeadLetterOptions, HttpOptions
    from nsqtools.sinks.deadletters import Publish
    from nsqtools.sinks.http.courier import Courier
    from nsqtools.sinks.http.proxies import AnyTransport
    from nsqtools.sinks.http.requests import Endpoint

_STDOUT = 1


def make_sink(
    options: HttpOptions,
    dead: DeadLetterOptions,
    transport: AnyTransport,
    *,
    publish: Publish,
    on_close: Callable[[], Awaitable[None]],
) -> HttpSink:
    """The sink that delivers to the endpoints of the options; it connects nowhere yet.

    Dead letters for a topic go to ``publish``. With ``dry_run`` requests are printed on standard
    output. Raises ConfigError.
    """
    printed = DryRun(Output(_STDOUT, "standard output"), escape=os.isatty(_STDOUT))
    post = Post(
        _endpoints(options),
        printed if options.dry_run else transport,
        Statuses(options.success_on, options.drop_on, options.retry_on),
        timeout=options.http_client_request_timeout,
        wall=time.time,
        in_batches=options.batch > 1,
        follow_redirects=options.follow_redirects,
        status_every=0 if options.dry_run else options.status_every,
    )
    rng = Random()  # noqa: S311
    most = options.concurrency
    courier: Courier
    if options.mode == "all":
        courier = EachOf(post, most=most, rng=rng)
    else:
        choice = make_choice(options.mode, list(post.endpoints))
        courier = OneOf(post, choice, most=most, rng=rng)
    post_letter = post_letters(transport, options.http_client_request_timeout)
    dead_letters = make_dead_letters(dead, publish=publish, post=post_letter)
    return HttpSink(
        courier,
        Nowhere() if options.dry_run else dead_letters,
        Pace(options.rate),
        workers=options.concurrency,
        size=options.batch,
        wait=options.batch_wait,
        share=options.sample,
        rng=rng,
        on_close=on_close,
    )


def _endpoints(options: HttpOptions) -> list[Endpoint]:
    signer = Signer.from_file(options.sign_secret_file) if options.sign_secret_file else None
    return make_endpoints(
        post=options.post,
        get=options.get,
        headers=read_headers(options.header, options.header_file),
        content_type=options.content_type,
        batch_format=options.batch_format if options.batch > 1 else "",
        compress=options.compress == "gzip",
        signer=signer,
    )
