"""The commands of pipeline, in more than 400 lines: a table in two places is two tables."""

from __future__ import annotations

import re
from typing import ClassVar

from nsqtools.config.connection import ClientConfig
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import Options, addresses, flag_name, option, option_class, texts, urls
from nsqtools.errors import ConfigError
from nsqtools.names import is_ephemeral

_MASTER = r"local(\[\s*(\d+|\*)\s*(,\s*\d+\s*)?\])?|local-cluster\[[\d\s,]+\]|(spark|k8s)://.+|yarn"
"""As Spark's own SparkContext.scala, and the two cluster managers that come with it."""


@option_class
class SparkOptions(Options):
    """The Spark that a pipeline runs in."""

    title: ClassVar[str] = "Spark"
    shared: ClassVar[bool] = True

    master: str = option(
        "local[*]",
        "text",
        "Where Spark runs: local[N] with N threads of this machine, local[*] with one for each of "
        "its cores, spark://HOST:PORT, yarn or k8s://URL.",
        metavar="URL",
    )
    conf: tuple[str, ...] = texts(
        "Property of Spark, such as spark.driver.memory=2g; may be repeated.",
        metavar="KEY=VALUE",
        lines=True,
    )
    spark_log: str = option(
        "",
        "path",
        "File that is appended to with what Spark, Java and Python workers say.",
        metavar="FILE",
        default_note="it is discarded",
    )

    def validate(self) -> None:
        """The master has a form that Spark knows, and a property has a name."""
        if not re.fullmatch(_MASTER, self.master):
            raise ConfigError(
                f"--master {self.master}: expected local, local[N], local[*], spark://HOST:PORT, "
                "yarn or k8s://URL"
            )
        for text in self.conf:
            name, equals, _ = text.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"--conf {text!r}: expected KEY=VALUE")

    @property
    def properties(self) -> dict[str, str]:
        """``conf`` by name; the last one counts."""
        pairs = (text.partition("=") for text in self.conf)
        return {name.strip(): value for name, _, value in pairs}


@option_class
class StreamSourceOptions(SourceOptions):
    """Where a pipeline reads; messages wait there between its batches, so the channel must stay."""

    channel: str = option(
        "",
        "text",
        "Channel to consume it on.",
        metavar="CHANNEL",
        values="channel",
        own=True,
        required=True,
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of each --nsqd-tcp-address, in their order, which tells how much waits; may "
        "be repeated.",
        own=True,
        default_note="what nsqlookupd says, or the port after the TCP port",
    )

    def validate(self) -> None:
        """HTTP addresses have their TCP addresses, and names stay when nobody consumes them."""
        count = len(self.nsqd_http_address)
        if count and self.lookupd_http_address:
            raise ConfigError("--nsqd-http-address: nsqlookupd tells them; give one of the two")
        if count and count != len(self.nsqd_tcp_address):
            raise ConfigError(
                f"--nsqd-http-address: there are {count}, for {len(self.nsqd_tcp_address)} of "
                "--nsqd-tcp-address: give one for each, in their order"
            )
        for kind, names in (("topic", self.topic), ("channel", (self.channel,))):
            for name in filter(is_ephemeral, names):
                raise ConfigError(
                    f"--{kind} {name}: it is gone, with its messages, whenever nobody consumes "
                    "it, as between two batches: name another"
                )


@option_class
class QuerySourceOptions(StreamSourceOptions):
    """Where ``pipeline sql`` reads, unless it reads archives."""

    topic: tuple[str, ...] = texts(
        "Topic to consume; may be repeated.", metavar="TOPIC", values="topic", own=True
    )
    channel: str = option(
        "", "text", "Channel to consume it on.", metavar="CHANNEL", values="channel", own=True
    )


@option_class
class StreamConfig(ClientConfig):
    """The connections of a pipeline's source: of a consumer's options those that Spark leaves."""

    title: ClassVar[str] = "Consumer options"
    opt_flag: ClassVar[str] = "consumer-opt"

    max_in_flight: int = option(
        5_000,
        "integer",
        "Most messages in flight from an nsqd, of each topic and for each of --connections.",
        minimum=1,
    )
    max_in_flight_bytes: int = option(
        64 << 20, "size", "Most bytes of bodies in flight, by their mean size.", minimum=1
    )
    msg_timeout: float = option(
        0.0,
        "duration",
        "nsqd delivers a message again after this time; 0 for its own default.",
        minimum=0.0,
    )

    lookupd_poll_timeout: float = option(
        60.0, "duration", "Limit for an answer of nsqlookupd.", minimum=0.001, flag=False
    )
    lookupd_authorization: bool = option(
        True, "flag", "Send the AUTH secret to nsqlookupd as a bearer token.", flag=False
    )
    auth_secret_env: str = option(
        "",
        "text",
        "Environment variable of Spark's executors that holds the AUTH secret.",
        metavar="NAME",
        flag=False,
        excludes=("auth_secret", "auth_secret_file"),
    )

    def validate(self) -> None:
        """As the base's, and what only a consumer negotiates."""
        ClientConfig.validate(self)
        if 0 < self.msg_timeout < 1:
            raise ConfigError("--msg-timeout: nsqd takes 0, for its own, or at least 1s")


@option_class
class StreamOptions(Options):
    """How a stream is cut into batches, and where its state is."""

    title: ClassVar[str] = "Batches"

    continuous: bool = option(
        False, "flag", "Go on until a signal; else stop when all is done that waited at the start."
    )
    trigger: float = option(
        5.0, "duration", "Time between batches of --continuous.", minimum=0.0, maximum=86400.0
    )
    max_per_trigger: int = option(
        500_000, "integer", "Most messages of a batch; 0 for no limit.", minimum=0, metavar="N"
    )
    connections: int = option(
        2,
        "integer",
        "Tasks that receive from an nsqd at the same time, each over connections of its own.",
        minimum=1,
        maximum=256,
        metavar="N",
    )
    checkpoint: str = option(
        "",
        "path",
        "Directory, or URL of one, of Spark's state: a run goes on where the last one ended.",
        metavar="DIR",
        default_note="_nsqtools/checkpoint in the output",
    )
    staging: str = option(
        "",
        "path",
        "Directory of messages that were received, until their batch is done; all executors must "
        "see it.",
        metavar="DIR",
        default_note="_nsqtools/staging in the output",
    )
    lock: str = option(
        "", "path", "File to lock, so that one such command runs at a time.", metavar="FILE"
    )


@option_class
class BodyOptions(Options):
    """What is in messages."""

    title: ClassVar[str] = "Bodies"

    schema: str = option(
        "",
        "text",
        "Columns of bodies that are JSON objects, as in SQL: 'user INT, at TIMESTAMP'; or a file "
        "of them, or of Spark's JSON for them.",
        metavar="COLUMNS",
    )


@option_class
class LakeOptions(Options):
    """What ``pipeline archive`` writes."""

    title: ClassVar[str] = "Archive"

    output: str = option(
        "",
        "path",
        "Directory, or URL of one, to write to, in DIR/date=*/hour=*/batch=*.",
        metavar="DIR",
        required=True,
    )
    format: str = option(
        "parquet",
        "choice",
        "Format of files; delta needs its package, by --conf.",
        choices=("parquet", "json", "delta"),
    )
    where: str = option(
        "",
        "text",
        "Write only messages of which this SQL condition is true; the others are finished, too.",
        metavar="SQL",
    )
    select: str = option(
        "",
        "text",
        "Columns to write, as in SQL: 'user, upper(name) AS name'.",
        metavar="SQL",
        default_note="all",
    )


@option_class
class InputOptions(Options):
    """Archives that a pipeline reads."""

    title: ClassVar[str] = "Input"

    input: tuple[str, ...] = option(
        (),
        "path",
        "Archive to read: a file, or a directory of pipeline archive, pipeline compact or to-file; "
        "may be repeated.",
        multiple=True,
        metavar="PATH",
        required=True,
    )
    input_format: str = option(
        "",
        "choice",
        "How records stand in files of to-file, as its --format.",
        choices=("", "raw", "json", "length-prefixed"),
        default_note="there are none",
    )
    delimiter: str = option(
        "\\n",
        "text",
        "Bytes after each body of raw files: text, \\n, \\t, \\0, \\xNN.",
        metavar="BYTES",
    )

    def validate(self) -> None:
        """A delimiter stands in raw files alone."""
        if self.delimiter != "\\n" and self.input_format != "raw":
            raise ConfigError("--delimiter: needs --input-format raw")
        if not self.delimiter:
            raise ConfigError("--delimiter: empty, records could not be told apart")


@option_class
class QueryInputOptions(InputOptions):
    """Archives that ``pipeline sql`` reads, unless it consumes topics."""

    input: tuple[str, ...] = option(
        (),
        "path",
        "Archive to read instead of topics: a file, or a directory of pipeline archive, pipeline "
        "compact or to-file; may be repeated.",
        multiple=True,
        metavar="PATH",
    )


@option_class
class QueryOptions(Options):
    """What ``pipeline sql`` does."""

    title: ClassVar[str] = "Query"

    query: str = option(
        "",
        "text",
        "SELECT from the table nsq, or @FILE to read it from a file.",
        metavar="SQL",
        required=True,
    )
    watermark: float = option(
        0.0,
        "duration",
        "Longest that a message may come late, by its timestamp, to be in its window.",
        minimum=0.0,
        default_note="no limit",
    )
    format: str = option(
        "",
        "choice",
        "Where the result goes: files, a table on standard output, or a topic.",
        choices=("", "parquet", "json", "console", "topic"),
        default_note="parquet with --output, topic with --destination-topic, else console",
    )
    output: str = option("", "path", "Directory, or URL of one, for files.", metavar="DIR")
    output_mode: str = option(
        "append",
        "choice",
        "Which rows of a streaming aggregation to write after a batch: those that are final, those "
        "that changed, or all.",
        choices=("append", "update", "complete"),
    )
    destination_topic: str = option(
        "",
        "text",
        "Topic for the column body, or without one for rows as JSON objects.",
        metavar="TOPIC",
        values="topic",
        excludes=("output",),
    )
    destination_nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd of that topic; may be repeated.",
        default_note="those of --nsqd-tcp-address",
    )
    explain: bool = option(False, "flag", "Print Spark's plan, and consume nothing.")

    @property
    def kind(self) -> str:
        """Where the result goes: ``parquet``, ``json``, ``console`` or ``topic``."""
        if self.format:
            return self.format
        return "parquet" if self.output else "topic" if self.destination_topic else "console"

    def validate(self) -> None:
        """A format and a place belong together."""
        wanted = {"parquet": "output", "json": "output", "topic": "destination_topic"}
        need = wanted.get(self.kind, "")
        for name in ("output", "destination_topic"):
            given = bool(getattr(self, name))
            if given and name != need:
                raise ConfigError(f"--{flag_name(name)}: --format {self.kind} has no use for it")
            if not given and name == need:
                raise ConfigError(f"--format {self.kind}: needs --{flag_name(name)}")


@option_class
class CompactOptions(Options):
    """What ``pipeline compact`` writes."""

    title: ClassVar[str] = "Compaction"

    output: str = option(
        "",
        "path",
        "Directory to write to, in DIR/date=*/hour=*; what was compacted before stays in it.",
        metavar="DIR",
        required=True,
    )
    older_than: float = option(
        0.0,
        "duration",
        "Leave files of --input for a later run that were changed in this time.",
        minimum=0.0,
    )
    file_size: int = option(
        256 << 20, "size", "Bodies of a file, before compression.", minimum=1 << 20
    )
    delete_inputs: bool = option(
        False, "flag", "Delete files of --input once the files made of them were read again."
    )


@option_class
class ReplayOptions(Options):
    """What ``pipeline replay`` publishes, and how."""

    title: ClassVar[str] = "Replay"

    where: str = option(
        "",
        "text",
        "Publish only messages of which this SQL condition is true.",
        metavar="SQL",
    )
    order_by: str = option(
        "",
        "text",
        "Columns to order by, with commas between, such as timestamp, or timestamp DESC.",
        metavar="COLUMNS",
        default_note="by nothing in particular",
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    staging: str = option(
        "",
        "path",
        "Directory of the chosen messages, and of how far they are published.",
        metavar="DIR",
        default_note="_nsqtools/replay-TOPIC in the first --input",
    )
    lock: str = option(
        "", "path", "File to lock, so that one such command runs at a time.", metavar="FILE"
    )
