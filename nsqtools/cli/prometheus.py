"""Metrics over HTTP in Prometheus' formats, while a command runs.

Each scrape reads the values in the event loop, so counting needs no lock. A thread formats them, so
a scrape of many topics does not delay messages.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from nsqtools import __version__
from nsqtools.errors import UnreachableError
from nsqtools.metrics import Metric, Sample, of_fields

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
    )

    from prometheus_client.metrics_core import Metric as Family

    from nsqtools.engine.totals import ConsumerStats
    from nsqtools.names import Address
    from nsqtools.net.http.server import Request, Response

    Collect = Callable[[], Iterable[Metric] | Awaitable[Iterable[Metric]]]

log = logging.getLogger(__name__)

_PATHS = ("/metrics", "/")
_METHODS = ("GET", "HEAD")


_OF_CONSUMERS = (
    ("received", "messages_received_total", "Messages that nsqd delivered."),
    ("received_bytes", "received_bytes_total", "Bytes of the bodies of these messages."),
    ("finished", "messages_finished_total", "Messages that were finished, lost ones included."),
    ("requeued", "messages_requeued_total", "Messages that were requeued."),
    ("touched", "messages_touched_total", "Messages touched, to extend their timeout."),
    ("given_up", "messages_given_up_total", "Messages given up after --max-attempts."),
    (
        "too_late",
        "messages_timed_out_total",
        "Messages that timed out before they were finished or requeued.",
    ),
    ("in_flight", "messages_in_flight", "Messages in flight."),
    ("connections", "connections", "Connections to nsqd."),
    ("connected", "connections_opened_total", "Connections to nsqd that were opened."),
    ("backoff_level", "backoff_level", "Backoff level; above 0 messages are received slowly."),
)


def of_consumers(stats: Mapping[str, ConsumerStats], channel: str) -> Iterator[Metric]:
    """The counters of a channel's consumers, by topic."""
    found = [({"topic": topic, "channel": channel}, each) for topic, each in stats.items()]
    return of_fields("nsqtools_", _OF_CONSUMERS, found)


_BUILD = Metric(
    "nsqtools_build_info", "gauge", "The version.", [Sample({"version": __version__}, 1)]
)


@asynccontextmanager
async def served(
    address: Address | None, collect: Collect, option: str = "--metrics-address"
) -> AsyncIterator[Address | None]:
    """Serve the metrics from ``collect``, called in the event loop; yields the address in use.

    ``collect`` may return an awaitable. UnreachableError becomes the response 503. Without an
    address, nothing is served or loaded. Raises ConfigError, naming ``option``, if the address
    cannot be used.
    """
    if address is None:
        yield None
        return
    import prometheus_client  # noqa: F401 - now, not at the first scrape

    from nsqtools.net.http.server import serve
    from nsqtools.net.tcp import cannot_listen

    try:
        server = await serve(partial(_answer, collect), *address)
    except (OSError, ValueError) as error:
        raise cannot_listen(option, address, error) from error
    try:
        log.info("metrics are at http://%s/metrics", server.address)
        yield server.address
    finally:
        await server.stop()


async def _answer(collect: Collect, request: Request) -> Response:
    from nsqtools.net.http.server import TEXT, Response

    if request.path not in _PATHS:
        return Response(404, b"metrics are at /metrics\n", TEXT)
    if request.method not in _METHODS:
        return Response(405, headers=(("Allow", ", ".join(_METHODS)),))
    try:
        found = collect()
        metrics = await found if isawaitable(found) else found
    except UnreachableError as error:
        return Response(503, f"{error}\n".encode(), TEXT)
    accepted = request.headers.get("accept", "")
    body, content_type = await asyncio.to_thread(render, [_BUILD, *metrics], accepted)
    return Response(200, body, content_type)


def render(metrics: Iterable[Metric], accepted: str = "") -> tuple[bytes, str]:
    """The text in the client's preferred format, and its content type.

    It includes metrics of this process, like Prometheus' own libraries.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accepted)
    return encode(registry), content_type


class _Collector:
    """The metrics as a collector of prometheus_client."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """Called once for each scrape."""
        from prometheus_client.core import Metric as Family

        for name, kind, text, samples in self._metrics:
            family = Family(name.removesuffix("_total"), text, kind)
            full = f"{family.name}_total" if kind == "counter" else name
            for labels, value in samples:
                family.add_sample(full, dict(labels), value)
            yield family
