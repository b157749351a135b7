"""Options of bench: the topic, the load and the output."""

from __future__ import annotations

from nsqtools.config.consuming import HTTP_FOUND, ServerOptions, StopOptions
from nsqtools.config.option import NO_LIMIT, Options, integer, like, size, topic_name, urls
from nsqtools.config.program import JSON
from nsqtools.config.publishing import RATE

_LARGEST_BATCH = 10_000
_MOST_CONNECTIONS = 100


class BenchServerOptions(ServerOptions):
    """The nsqds to put under load."""

    title = "Target"

    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, to create and delete the topic; may be repeated.",
        default_note=HTTP_FOUND,
    )


class BenchOptions(Options):
    """Options of each bench."""

    title = "Load"

    topic: str = topic_name(
        "Topic to create, and to delete at the end.",
        default_note="nsqtools-bench- and a random number",
    )
    count: int = StopOptions.count
    duration: float = like(StopOptions.max_duration, default_note="10s, or no limit with --count")
    size: int = size("Size of each message.", 200, minimum=16)
    batch: int = integer("Maximum messages per command.", 200, minimum=1, maximum=_LARGEST_BATCH)
    json: bool = JSON


class PubBenchOptions(BenchOptions):
    """Options of ``bench pub``."""

    rate: float = RATE
    producers: int = integer(
        "Publishing connections to each nsqd.", 1, minimum=1, maximum=_MOST_CONNECTIONS
    )


class SubBenchOptions(BenchOptions):
    """Options of ``bench sub``."""

    count: int = like(BenchOptions.count, default=300_000, minimum=1, default_note="")
    duration: float = like(BenchOptions.duration, default_note=NO_LIMIT)
    consumers: int = integer(
        "Consuming connections to each nsqd.", 1, minimum=1, maximum=_MOST_CONNECTIONS
    )


class EndToEndOptions(PubBenchOptions):
    """Options of ``bench e2e``."""

    consumers: int = SubBenchOptions.consumers
    rate: float = like(RATE, default=1000.0, default_note="")
    batch: int = like(BenchOptions.batch, default=1)
