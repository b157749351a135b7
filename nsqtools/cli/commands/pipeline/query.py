"""The queries of ``pipeline sql``."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import select
import stat
import termios
from datetime import UTC, date, datetime
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.commands.pipeline.preflight import check_inputs, locked
from nsqtools.cli.commands.pipeline.run import Run
from nsqtools.cli.commands.pipeline.sources import (
    connection_options,
    layout,
    schema_text,
    servers,
    source_options,
)
from nsqtools.cli.commands.pipeline.stream import Places, StreamJob
from nsqtools.cli.commands.pipeline.views import StepView
from nsqtools.cli.output import print_rows
from nsqtools.cli.remotes import beside_producer
from nsqtools.config.connection import without_waiting
from nsqtools.config.lake import result_format
from nsqtools.errors import ConfigError
from nsqtools.records.bodies.decoders import Decoding
from nsqtools.spark.executors import packages_of
from nsqtools.spark.jobs.batches import LakeOutput
from nsqtools.spark.jobs.sql import (
    ArchivesSettings,
    Destination,
    Query,
    StreamSettings,
    explain,
    query_archives,
    query_stream,
)
from nsqtools.spark.jobs.streams import Stream
from nsqtools.stores.places import below, local
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from nsqtools.cli.commands.pipeline.run import PipelineJob
    from nsqtools.config.connection import ProducerConfig
    from nsqtools.config.consuming import MetricsOptions
    from nsqtools.config.lake import (
        InputOptions,
        QueryBodyOptions,
        QueryOptions,
        QuerySourceOptions,
        SparkOptions,
        StreamConfig,
        StreamOptions,
    )

log = logging.getLogger(__name__)

_ROWS = 1000  # per table on a terminal
_GOES = 100  # milliseconds for a reader with enough rows to close the pipe


def sql(
    *,
    source: QuerySourceOptions,
    asked: QueryOptions,
    inputs: InputOptions,
    bodies: QueryBodyOptions,
    stream: StreamOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    target: ProducerConfig,
    config: StreamConfig,
) -> None:
    """Run a query over archives, or a streaming query over topics."""
    query, goal = _query(asked, bodies), _target(asked, source, spark, target)
    prints = result_format(asked) == "console"
    decoders = [query.decode.package] if query.decode and query.decode.package else []
    if inputs.input:
        archives = ArchivesSettings(query, goal, inputs.input, layout(inputs), source.topic)
        check_inputs(inputs.input)
        if asked.explain:
            _explain(archives, spark, metrics)
            return
        with locked(stream.lock):
            work = partial(query_archives, settings=archives)
            packages = [*packages_of(goal.sink, places=[asked.output]), *decoders]
            _once(work, spark, metrics, packages, prints=prints)
        return
    _check_stream(source, asked, stream)
    with TemporaryDirectory(prefix="nsqtools-sql-") as scratch:
        places, more = Places.of(stream, asked.output, asked.catalog), {}
        if prints and not stream.checkpoint:
            places = Places("", scratch, _kept(source, stream.staging))
            more = {"streamName": "console"}
        named = source_options(
            source, stream, beside_producer(config), master=spark.master, staging=places.staging
        )
        trigger = stream.trigger if stream.continuous else None
        settings = StreamSettings(
            query, goal, more | named, Stream(places.checkpoint, trigger, asked.output_mode)
        )
        if asked.explain:
            _explain(settings, spark, metrics)
            return
        StreamJob(
            partial(query_stream, settings=settings),
            settings.source,
            places,
            settings.stamp,
            stream,
            spark,
            metrics,
            prints=prints,
            sink=goal.sink,
            packages=decoders,
        ).run()


def _check_stream(source: QuerySourceOptions, asked: QueryOptions, stream: StreamOptions) -> None:
    """Raise ConfigError for options that a query over topics lacks or does not support."""
    for name in ("topic", "channel"):
        if not getattr(source, name):
            raise ConfigError(f"--{name} is required, unless --input names archives")
    if result_format(asked) == "topic" and not stream.checkpoint:
        raise ConfigError("--checkpoint is required with --format topic")
    if asked.output and asked.output_mode != "append":
        raise ConfigError(
            f"--output-mode {asked.output_mode}: rows in files cannot be changed: use append, with "
            "--watermark for aggregations"
        )


def _kept(source: QuerySourceOptions, staging: str) -> str:
    """The staging of a query without a checkpoint: the same directory for the same channel."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # the XDG Base Directory Specification ignores relative paths
        home = os.path.expanduser("~/.local/state")
    path = local(staging or below(home, "nsqtools"))
    if path is None:  # no lock could exclude another run
        raise ConfigError(f"--checkpoint is required with --staging {staging}")
    of = json.dumps([sorted(set(source.topic)), source.channel, servers(source)])
    return str(path / f"sql-{hashlib.sha256(of.encode()).hexdigest()[:16]}")


def _explain(
    settings: StreamSettings | ArchivesSettings, spark: SparkOptions, metrics: MetricsOptions
) -> None:
    def work(spark: Any, *, stop: threading.Event, report: object) -> None:
        click.echo(explain(spark, settings, stop=stop).strip())

    _once(work, spark, metrics, packages_of(), prints=True)


def _once(
    work: PipelineJob,
    spark: SparkOptions,
    metrics: MetricsOptions,
    packages: Sequence[str],
    *,
    prints: bool,
) -> None:
    async def run() -> None:
        running = Run(spark, metrics, StepView(), packages=packages, prints=prints)
        await running.until_done(work, if_stopped="stopped before the query was done")

    run_loop(run())


def _query(asked: QueryOptions, bodies: QueryBodyOptions) -> Query:
    text = asked.query
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8-sig", opener=without_waiting) as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise ConfigError(f"--query {asked.query}: {reason}") from error
    return Query(
        text.strip().rstrip(";"),
        schema_text(bodies.schema),
        bodies.infer,
        asked.timestamp,
        asked.watermark,
        _decoding(bodies.decode),
    )


def _decoding(spec: str) -> Decoding | None:
    """The decoder of ``--decode``; raises ConfigError if it cannot be made here."""
    if not spec:
        return None
    decoding = Decoding.read(spec)
    decoding.make()
    return decoding


def _target(
    asked: QueryOptions, source: QuerySourceOptions, spark: SparkOptions, target: ProducerConfig
) -> Destination:
    if result_format(asked) == "console":
        return Destination(show=_show)
    if asked.output:
        output = LakeOutput(asked.output, result_format(asked), asked.catalog, asked.evolve)
        output.open()
        return Destination(output)
    sink = {"topic": asked.destination_topic, **connection_options(target, spark.master)}
    if asked.destination_nsqd_tcp_address:
        sink["nsqd.tcp.addresses"] = ",".join(asked.destination_nsqd_tcp_address)
    else:
        sink |= servers(source)
    return Destination(sink=sink)


def _show(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    """Print rows, on a terminal as tables of up to a thousand."""
    while some := list(islice(rows, _ROWS)):
        print_rows(columns, [[_text(value) for value in row] for row in some])
    if stat.S_ISFIFO(os.fstat(1).st_mode):
        _await_reader()


def _await_reader() -> None:
    """Wait until the reader of the pipe has read everything.

    Raises BrokenPipeError if the reader closes the pipe first, as head does.
    """
    poll = select.poll()
    poll.register(1, 0)
    unread = True
    while unread:
        unread = any(fcntl.ioctl(1, termios.FIONREAD, bytes(4)))
        if poll.poll(_GOES):
            raise BrokenPipeError


def _text(value: Any) -> str:
    """A value of a row as text; times are in UTC."""
    match value:
        case None:
            return ""
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bool():
            return str(value).lower()
        case dict() | list() | tuple():
            return json.dumps(_plain(value))
    return str(value)


def _plain(value: Any) -> Any:
    """The value in JSON's types; rows become objects."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else _text(value)
