"""Options of the pipeline commands."""

from __future__ import annotations

import re

from nsqtools.config.connection import ClientConfig, ConsumerConfig
from nsqtools.config.consuming import HTTP_FOUND, SourceOptions
from nsqtools.config.option import (
    USER_INFO,
    Options,
    addresses,
    choice,
    duration,
    flag,
    flag_name,
    integer,
    like,
    path,
    paths,
    size,
    text,
    texts,
    topic_name,
    urls,
)
from nsqtools.config.program import LOCK
from nsqtools.config.publishing import RATE
from nsqtools.config.records import DECODE, DELIMITER, FORMATS
from nsqtools.config.units import TIME, parse_time
from nsqtools.errors import ConfigError
from nsqtools.names import is_ephemeral

_MASTER = r"local(\[\s*(\d+|\*)\s*(,\s*\d+\s*)?\])?|local-cluster\[[\d\s,]+\]|(spark|k8s)://.+|yarn"
"""The masters of Spark's SparkContext.scala, and the cluster managers shipped with Spark."""

OUTPUT = path("Directory or URL to write to.", metavar="DIR", hides=USER_INFO, required=True)
CATALOG = text(
    "Catalog of the table with --format iceberg, as pyiceberg's configuration names it; --output is"
    " NAMESPACE.TABLE.",
    metavar="NAME",
)
EVOLVE = flag("Add new columns of the messages to the table; with --format delta or iceberg.")


def _master(value: str) -> None:
    if not re.fullmatch(_MASTER, value):
        raise ConfigError(
            f"{value!r} is not a Spark master: expected local, local[N], local[*], "
            "spark://HOST:PORT, yarn or k8s://URL"
        )


def _property(value: str) -> None:
    name, equals, _ = value.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{value!r} is not a Spark property: expected KEY=VALUE")


def _lasting(value: str) -> None:
    if is_ephemeral(value):
        raise ConfigError(
            f"{value} is ephemeral: nsqd deletes it, with its messages, when it has no "
            "consumer, as between two batches; choose a name without #ephemeral"
        )


class SparkOptions(Options):
    """Options of the Spark session."""

    title = "Spark"
    shared = True

    master: str = text(
        "Where Spark runs: local[N] with N threads on this machine, local[*] with one per"
        " core, spark://HOST:PORT, yarn or k8s://URL.",
        metavar="URL",
        default_note="the master of spark-submit, or local[*]",
        rule=_master,
    )
    conf: tuple[str, ...] = texts(
        "Spark property, such as spark.driver.memory=2g; may be repeated.",
        metavar="KEY=VALUE",
        lines=True,
        hides=r"(?i)(?:(?<=key=)|(?<=secret=)|(?<=password=)|(?<=token=)).+",
        rule=_property,
    )
    spark_log: str = path(
        "File for the log of Spark, Java and the Python workers.",
        metavar="FILE",
        default_note="no file",
    )


class StreamSourceOptions(SourceOptions):
    """The topics and the channel consumed by a pipeline.

    The channel must not be ephemeral: messages wait in it between batches.
    """

    topic: tuple[str, ...] = like(SourceOptions.topic, rule=_lasting)
    channel: str = like(SourceOptions.channel, required=True, rule=_lasting)
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of each --nsqd-tcp-address, in the same order, to query its depth; may be "
        "repeated.",
        own=True,
        default_note=HTTP_FOUND,
    )

    def validate(self) -> None:
        """Raise ConfigError unless each HTTP address has its TCP address."""
        count = len(self.nsqd_http_address)
        if count and self.lookupd_http_address:
            raise ConfigError(
                "--nsqd-http-address and --lookupd-http-address exclude each other: nsqlookupd "
                "lists the HTTP addresses",
                options=("nsqd_http_address", "lookupd_http_address"),
            )
        if count and count != len(self.nsqd_tcp_address):
            raise ConfigError(
                f"--nsqd-http-address is given {count} times and --nsqd-tcp-address "
                f"{len(self.nsqd_tcp_address)} times: give one for each, in the same order",
                options=("nsqd_http_address", "nsqd_tcp_address"),
            )


class QuerySourceOptions(StreamSourceOptions):
    """The topics and the channel consumed by ``pipeline sql``, unless it reads archives."""

    topic: tuple[str, ...] = like(StreamSourceOptions.topic, required=False)
    channel: str = like(StreamSourceOptions.channel, required=False)


class StreamConfig(ClientConfig):
    """Connections of a pipeline. Spark takes the place of the other consumer options."""

    title = ConsumerConfig.title
    opt_flag = ConsumerConfig.opt_flag

    max_in_flight: int = like(
        ConsumerConfig.max_in_flight,
        default=5_000,
        minimum=1,
        help="Maximum messages in flight per task.",
    )
    max_in_flight_bytes: int = ConsumerConfig.max_in_flight_bytes
    msg_timeout: float = ConsumerConfig.msg_timeout
    lookupd_poll_timeout: float = ConsumerConfig.lookupd_poll_timeout
    lookupd_authorization: bool = ConsumerConfig.lookupd_authorization
    auth_secret_env: str = text(
        "Environment variable with the AUTH secret, on Spark's executors.",
        metavar="NAME",
        flag=False,
        excludes=("auth_secret", "auth_secret_file"),
    )


class StreamOptions(Options):
    """How a stream is divided into batches, and where its state is stored."""

    title = "Batches"

    continuous: bool = flag(
        "Run until a signal, instead of stopping after the messages waiting at the start."
    )
    trigger: float = duration("Time between batches, with --continuous.", 5.0, maximum=86400.0)
    max_per_trigger: int = integer(
        "Maximum messages per batch; 0 for all waiting messages.", 500_000
    )
    connections: int = integer(
        "Maximum connections per topic and nsqd, each in a task of its own.",
        2,
        minimum=1,
        maximum=256,
    )
    checkpoint: str = path(
        "Directory or URL for the state of the stream: a run continues where the last run ended.",
        metavar="DIR",
        default_note="_nsqtools/checkpoint in the output",
    )
    staging: str = path(
        "Directory or URL for received messages until their batch is done, for all executors.",
        metavar="DIR",
        default_note="_nsqtools/staging in the output",
    )
    lock: str = LOCK


class BodyOptions(Options):
    """The format of message bodies."""

    title = "Bodies"

    schema: str = text(
        "Columns of JSON bodies, as in SQL, such as 'user INT, at TIMESTAMP'; or a file "
        "with them, or with Spark's JSON schema.",
        metavar="COLUMNS",
        excludes=("infer",),
    )
    infer: str = path(
        "Sample of JSON bodies, to infer their columns from: an archive, or a file with one body "
        "per line, as tail prints. -v logs the columns; nsqtools-spark(7) lists the types.",
        metavar="SAMPLE",
    )


class QueryBodyOptions(BodyOptions):
    """The format of message bodies in ``pipeline sql``."""

    decode: str = like(
        DECODE,
        help="Decode bodies to JSON in the column decoded, where --schema and --infer find the "
        "fields: msgpack, avro:SCHEMA, protobuf:DESCRIPTOR#TYPE or cmd:PROGRAM.",
    )


class LakeOptions(Options):
    """Options of ``pipeline archive``."""

    title = "Archive"

    output: str = OUTPUT
    partition_by: str = choice(
        "Directories below date and hour, for queries of few topics among many.",
        *("", "topic"),
        default_note="none",
    )
    format: str = choice(
        "Format of files, or of a table.",
        *("parquet", "json", "delta", "iceberg"),
    )
    catalog: str = CATALOG
    evolve: bool = EVOLVE
    where: str = text(
        "Write only messages for which this SQL condition is true; finish the others, too.",
        metavar="SQL",
    )
    select: str = text(
        "Columns to write, as in SQL, such as 'user, upper(name) AS name'.",
        metavar="SQL",
        default_note="all",
    )
    check: bool = flag(
        "Check topics, Java, Spark's libraries, staging and output; consume nothing.",
        in_file=False,
    )

    def validate(self) -> None:
        """Raise ConfigError if an option of tables has no table."""
        _check_table(self.format, self.catalog, evolve=self.evolve)


class InputOptions(Options):
    """The archives read by a pipeline."""

    title = "Input"

    input: tuple[str, ...] = paths(
        "Archive or table: a path, a pattern or a URL; may be repeated.",
        required=True,
    )
    input_format: str = choice(
        "Format of records in files of to-file, as its --format.",
        *("", *FORMATS),
        default_note="Parquet files only",
    )
    delimiter: str = DELIMITER

    def validate(self) -> None:
        """Raise ConfigError for a delimiter with an input format other than raw."""
        if self.delimiter != "\\n" and self.input_format != "raw":
            text = "--delimiter needs --input-format raw"
            raise ConfigError(text, options=("delimiter", "input_format"))


class QueryInputOptions(InputOptions):
    """The archives read by ``pipeline sql``, unless it consumes topics."""

    input: tuple[str, ...] = like(
        InputOptions.input,
        required=False,
    )


class QueryOptions(Options):
    """Options of ``pipeline sql``."""

    title = "Query"

    query: str = text(
        "SELECT statement on the table nsq, or on tables with the names of topics. @FILE reads it "
        "from a file.",
        metavar="SQL",
        required=True,
    )
    watermark: float = duration(
        "Maximum lateness of a message, by its --timestamp, to count in its window or join.",
        0.0,
        default_note="no limit",
    )
    timestamp: str = text(
        "Column of the bodies with the time of the event, for --watermark.",
        "timestamp",
        metavar="COLUMN",
        default_note="timestamp, the time of publishing",
        needs="watermark",
    )
    format: str = choice(
        "Format of the result: files, a table of Delta Lake or Iceberg, text on standard output, "
        "or messages of a topic.",
        *("", "parquet", "json", "delta", "iceberg", "console", "topic"),
        default_note="parquet with --output, topic with --destination-topic, else console",
    )
    output: str = like(OUTPUT, required=False)
    catalog: str = CATALOG
    evolve: bool = EVOLVE
    output_mode: str = choice(
        "Rows of a streaming aggregation to write after each batch: final rows, changed rows, or "
        "all rows.",
        *("append", "update", "complete"),
    )
    destination_topic: str = topic_name(
        "Topic to publish to.",
        excludes=("output",),
    )
    destination_nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to publish to; may be repeated.", default_note="the nsqds of --nsqd-tcp-address"
    )
    explain: bool = flag("Print Spark's plan and consume nothing.")

    def validate(self) -> None:
        """Raise ConfigError if ``format`` and destination do not fit together."""
        kind = result_format(self)
        _check_table(kind, self.catalog, evolve=self.evolve)
        wanted = {"console": "", "topic": "destination_topic"}
        need = wanted.get(kind, "output")
        for name in ("output", "destination_topic"):
            given = bool(getattr(self, name))
            if given and name != need:
                text = f"--{flag_name(name)} cannot be used with --format {kind}"
                raise ConfigError(text, options=(name, "format"))
            if not given and name == need:
                text = f"--format {kind} needs --{flag_name(name)}"
                raise ConfigError(text, options=("format",))


def _check_table(form: str, catalog: str, *, evolve: bool) -> None:
    if evolve and form not in ("delta", "iceberg"):
        text = "--evolve needs --format delta or --format iceberg"
        raise ConfigError(text, options=("evolve", "format"))
    if catalog and form != "iceberg":
        raise ConfigError("--catalog needs --format iceberg", options=("catalog", "format"))
    if form == "iceberg" and not catalog:
        raise ConfigError("--format iceberg needs --catalog", options=("format", "catalog"))


def result_format(asked: QueryOptions) -> str:
    """Return the format, of which one without ``format`` follows from the destination."""
    if asked.format:
        return asked.format
    return "parquet" if asked.output else "topic" if asked.destination_topic else "console"


class CompactOptions(Options):
    """Options of ``pipeline compact``."""

    title = "Compaction"

    output: str = like(OUTPUT, required=False, default_note="none, for tables")
    since: str = text(
        f"Read files of --input from this hour on: {TIME}",
        metavar="TIME",
        default_note="all",
        rule=parse_time,
    )
    until: str = text(
        f"Read files of --input from before this hour: {TIME}",
        metavar="TIME",
        default_note="all",
        rule=parse_time,
    )
    older_than: float = duration(
        "Skip files of --input changed within this time; a later run takes them.", 0.0
    )
    file_size: int = size(
        "Bytes of bodies per file and task, before compression; of a table, bytes per file.",
        256 << 20,
        minimum=1 << 20,
    )
    delete_inputs: bool = flag("Delete files of --input after the new files were read back.")
    dry_run: bool = flag("Print the plan; change nothing.")


class ReplayOptions(Options):
    """Options of ``pipeline replay``."""

    title = "Replay"

    where: str = text("Publish only messages for which this SQL condition is true.", metavar="SQL")
    order_by: str = text(
        "Columns to order by, separated by commas, such as timestamp or 'timestamp DESC'.",
        metavar="COLUMNS",
        default_note="any order",
    )
    rate: float = RATE
    staging: str = path(
        "Directory or URL for the selected messages and the progress; all executors must see it.",
        metavar="DIR",
        default_note="_nsqtools/replay-TOPIC in the first --input",
    )
    lock: str = LOCK
