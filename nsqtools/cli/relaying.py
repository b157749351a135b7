"""Relaying as the options of ``relay`` describe it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nsqtools.cli.cluster import addresses, with_secret
from nsqtools.cli.postbox import Postbox, check_dead_letter_topic
from nsqtools.engine.producer import Producer
from nsqtools.policy.pace import Pace
from nsqtools.sinks.deadletters import make_dead_letters
from nsqtools.sinks.relay.filter import destinations, find_loops, make_filter
from nsqtools.sinks.relay.sink import RelaySink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsqtools.config import (
        ConsumerConfig,
        DeadLetterOptions,
        ProducerConfig,
        RelayOptions,
        SourceOptions,
        StopOptions,
    )
    from nsqtools.engine.loops import LoopGuard
    from nsqtools.sinks.deadletters import Post

_AHEAD = 10.0
"""Seconds that messages may wait here for their turn when there is a rate."""
_POST_TIMEOUT = 20.0


def relay_sink(
    source: SourceOptions,
    options: RelayOptions,
    dead: DeadLetterOptions,
    stop: StopOptions,
    config: ConsumerConfig,
    target: ProducerConfig,
) -> RelaySink:
    """The sink that relays these topics; raises ConfigError, having connected nowhere."""
    config, target = with_secret(config), with_secret(target)
    goals = destinations(source.topic, destination=options.destination_topic, maps=options.map)
    check_dead_letter_topic(source, dead)
    rules = make_filter(
        require_field=options.require_json_field,
        require_value=options.require_json_value,
        whitelist=options.whitelist_json_field,
        pass_invalid=options.pass_invalid,
        where=options.where,
        edits=options.set,
    )
    postbox = Postbox(source, config)
    post, close_post = _poster() if dead.dead_letter_url else (None, None)

    async def close() -> None:
        await postbox.close()
        if close_post:
            await close_post()

    producer = Producer(addresses(options.destination_nsqd_tcp_address), target)
    return RelaySink(
        producer,
        goals,
        rules,
        make_dead_letters(dead, publish=postbox.publish, post=post),
        guard=_guard(goals, source, options, stop, config, target),
        defer=options.defer or None,
        pace=Pace(options.rate),
        status_every=options.status_every,
        is_away=lambda: not producer.is_connected,
        on_close=close,
    )


def slowed(config: ConsumerConfig, options: RelayOptions) -> ConsumerConfig:
    """With a rate: no more in flight than soon have their turn."""
    if not options.rate:
        return config
    most = max(1, math.ceil(options.rate * _AHEAD))
    return config.with_values(max_in_flight=min(config.max_in_flight, most))


def _guard(
    goals: Mapping[str, str],
    source: SourceOptions,
    options: RelayOptions,
    stop: StopOptions,
    config: ConsumerConfig,
    target: ProducerConfig,
) -> LoopGuard | None:
    """Who looks whether source and destination are one, if that would be a loop."""
    loops = find_loops(goals)
    if not loops:
        return None
    from nsqtools.engine.loops import LoopGuard, Side

    lookupds = source.lookupd_http_address
    return LoopGuard(
        loops,
        Side(
            config,
            () if lookupds else addresses(source.nsqd_tcp_address),
            lookupds,
            stop.nsqd_http_address,
        ),
        Side(
            target,
            addresses(options.destination_nsqd_tcp_address),
            http=options.destination_nsqd_http_address,
        ),
    )


def _poster() -> tuple[Post, Callable[[], Awaitable[None]]]:
    """Who POSTs dead letters, and how that is closed."""
    from nsqtools.cli.delivering import make_transport  # loads httpx
    from nsqtools.config import HttpOptions
    from nsqtools.sinks.http.post import post_letters

    transport = make_transport(HttpOptions())
    return post_letters(transport, _POST_TIMEOUT), transport.aclose
