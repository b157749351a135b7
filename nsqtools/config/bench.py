"""Options of bench: the topic, the load and the output."""

from __future__ import annotations

from nsqtools.config.consuming import ServerOptions
from nsqtools.config.option import Options, duration, integer, like, size, topic_name, urls
from nsqtools.config.program import JSON
from nsqtools.config.publishing import RATE

_LARGEST_BATCH = 10_000
_MOST_CONNECTIONS = 100


class BenchServerOptions(ServerOptions):
    """The nsqds that a bench puts a load on."""

    title = "Target"

    nsqd_tcp_address: tuple[str, ...] = like(
        ServerOptions.nsqd_tcp_address, help="nsqd to put the load on; may be repeated."
    )
    lookupd_http_address: tuple[str, ...] = like(
        ServerOptions.lookupd_http_address,
        help="nsqlookupd whose nsqds all get the load; may be repeated.",
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, to create and delete the topic; may be repeated.",
        default_note="what nsqlookupd says, or the port after the TCP port",
    )


class BenchOptions(Options):
    """Options of each bench."""

    title = "Load"

    topic: str = topic_name(
        "Topic to create for the run, and to delete at its end.",
        default_note="nsqtools-bench- and a random number",
    )
    count: int = integer("Number of messages.", 0, short="n", default_note="no limit")
    duration: float = duration(
        "Stop after this time.", 0.0, default_note="10s, or no limit with --count"
    )
    size: int = size("Size of each message.", 200, minimum=16)
    batch: int = integer(
        "Maximum messages published in one command.", 200, minimum=1, maximum=_LARGEST_BATCH
    )
    json: bool = JSON


class PubBenchOptions(BenchOptions):
    """Options of ``bench pub``."""

    rate: float = RATE
    producers: int = integer(
        "Connections to each nsqd that publish.", 1, minimum=1, maximum=_MOST_CONNECTIONS
    )


class SubBenchOptions(BenchOptions):
    """Options of ``bench sub``."""

    count: int = like(BenchOptions.count, default=300_000, minimum=1, default_note="")
    duration: float = like(BenchOptions.duration, default_note="no limit")
    consumers: int = integer(
        "Connections to each nsqd that consume.", 1, minimum=1, maximum=_MOST_CONNECTIONS
    )


class EndToEndOptions(PubBenchOptions):
    """Options of ``bench e2e``."""

    consumers: int = SubBenchOptions.consumers
    rate: float = like(RATE, default=1000.0)
    batch: int = like(BenchOptions.batch, default=1)
