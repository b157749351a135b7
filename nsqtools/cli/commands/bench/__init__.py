"""``nsqtools bench``: load on a cluster, with rates and latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import CommandGroup, options
from nsqtools.config.bench import (
    BenchServerOptions,
    EndToEndOptions,
    PubBenchOptions,
    SubBenchOptions,
)
from nsqtools.config.connection import BatchConsumerConfig, ConsumerConfig, ProducerConfig

if TYPE_CHECKING:
    from nsqtools.config.bench import BenchOptions

_ESSENTIAL = "nsqd_tcp_address lookupd_http_address topic count duration size"


@click.group("bench", cls=CommandGroup)
def bench() -> None:
    """Measure the speed of publishing and consuming.

    Each run creates a topic of its own and deletes it at the end. Unless --rate limits the run, it
    loads the nsqds and their disks as much as it can.
    """


@bench.command(
    "pub",
    guide="bench",
    essential=f"{_ESSENTIAL} rate batch producers json",
    examples=(
        ("Publish for ten seconds as fast as nsqd takes it", "nsqtools bench pub"),
        ("The latency of 5,000 single messages/s", "nsqtools bench pub --rate 5000 --batch 1"),
    ),
)
@options()
def pub(*, servers: BenchServerOptions, load: PubBenchOptions, config: ProducerConfig) -> None:
    """Measure publishing: messages per second, and the time until nsqd answers OK.

    Nobody consumes the messages. nsqd writes the messages beyond its memory queue to disk.
    """
    _run(servers, load, config)


@bench.command(
    "sub",
    guide="bench",
    essential=f"{_ESSENTIAL} consumers max_in_flight json",
    examples=(
        ("Publish 300,000 messages, then consume them", "nsqtools bench sub"),
        ("A million, by four connections", "nsqtools bench sub -n 1000000 --consumers 4"),
    ),
)
@options()
def sub(
    *,
    servers: BenchServerOptions,
    load: SubBenchOptions,
    target: ProducerConfig,
    config: BatchConsumerConfig,
) -> None:
    """Measure consuming: messages per second from a full channel.

    Filling the topic at the start is not measured.
    """
    _run(servers, load, target, config)


@bench.command(
    "e2e",
    guide="bench",
    essential=f"{_ESSENTIAL} rate batch producers consumers json",
    examples=(
        ("The latency from publisher to consumer at 1,000 messages/s", "nsqtools bench e2e"),
        (
            "The same at 50,000 messages/s for a minute, as JSON",
            "nsqtools bench e2e --rate 50000 --batch 100 --duration 1m --json",
        ),
    ),
)
@options()
def e2e(
    *,
    servers: BenchServerOptions,
    load: EndToEndOptions,
    target: ProducerConfig,
    config: BatchConsumerConfig,
) -> None:
    """Measure the time from publishing a message until its consumer has it.

    Producers and consumers run at the same time. With --rate 0 messages are published as fast as
    nsqd takes them; if consumers are slower, the latency is mostly time in nsqd's queue.
    """
    _run(servers, load, target, config)


def _run(
    servers: BenchServerOptions,
    load: BenchOptions,
    target: ProducerConfig,
    config: ConsumerConfig | None = None,
) -> None:
    """Measure and print. Raises UsageError if nsqd would refuse messages of this size."""

    from nsqtools.cli.commands.bench.run import BenchRun
    from nsqtools.cli.remotes import beside_producer, with_secret
    from nsqtools.config.units import format_size
    from nsqtools.tasks import run_loop

    if load.size > target.max_msg_size:
        limit = format_size(target.max_msg_size)
        raise click.UsageError(f"--size: over --max-msg-size {limit}: raise it if nsqd's is higher")
    target = with_secret(target)
    if config:
        config = beside_producer(config).with_values(
            auth_secret=target.auth_secret, auth_secret_file=""
        )
    run_loop(BenchRun(servers, load, target, config).run())
