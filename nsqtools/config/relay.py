"""Options of relay."""

from __future__ import annotations

from nsqtools.config.connection import ProducerConfig
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import Options, addresses, integer, like, text, texts, topic_name, urls
from nsqtools.config.publishing import DEFER, RATE
from nsqtools.config.records import DECODE
from nsqtools.errors import ConfigError

DESTINATION_NSQD = addresses("nsqd to publish to; may be repeated.", required=True)


class RelaySourceOptions(SourceOptions):
    """The topics and the channel consumed by ``relay``."""

    topic: tuple[str, ...] = SourceOptions.topic
    channel: str = like(SourceOptions.channel, default="nsq_to_nsq")


class DestinationConfig(ProducerConfig):
    """ProducerConfig of ``relay``: it avoids failing destinations, as nsq_to_nsq does."""

    mode: str = like(ProducerConfig.mode, default="hostpool")


class RelayOptions(Options):
    """Options of ``relay``. Options of nsq_to_nsq keep their names."""

    title = "Destination and rules"

    destination_nsqd_tcp_address: tuple[str, ...] = DESTINATION_NSQD
    destination_nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of a destination nsqd, to detect loops; may be repeated.",
        default_note="the port after the TCP port",
    )
    destination_topic: str = topic_name(
        "Topic to publish to.",
        default_note="the same name",
        excludes=("map",),
    )
    map: tuple[str, ...] = texts(
        "Destination topic of the topics whose whole name matches REGEX. TEMPLATE may have \\1 "
        "and \\g<name>. May be repeated: the first match counts.",
        metavar="REGEX=TEMPLATE",
        lines=True,
    )
    require_json_field: str = text("Relay only JSON objects with this field.", metavar="FIELD")
    require_json_value: str = text(
        "Relay only JSON objects with this value of --require-json-field: text, number, true, "
        "false or null.",
        metavar="VALUE",
        needs="require_json_field",
    )
    whitelist_json_field: tuple[str, ...] = texts(
        "Keep only this field of JSON objects; may be repeated.", metavar="FIELD"
    )
    where: str = text(
        "Relay only JSON messages for which this jq expression is neither false nor null.",
        metavar="JQ",
    )
    set: tuple[str, ...] = texts(
        "Edit messages with this jq expression, such as '.seen = true'; may be repeated.",
        metavar="JQ",
        lines=True,
    )
    decode: str = like(
        DECODE,
        help="Decode bodies to JSON for the rules: msgpack, avro:SCHEMA, protobuf:DESCRIPTOR#TYPE "
        "or cmd:PROGRAM. Conditions leave the body as it is.",
    )
    defer: float = DEFER
    rate: float = RATE
    status_every: int = integer(
        "Log counts per topic every this many messages, at most once a second, and at the end.",
        0,
        default_note="never, but at the end with --until-empty",
    )

    def validate(self) -> None:
        """Raise ConfigError for a decoder without a rule that uses it."""
        rules = ("require_json_field", "whitelist_json_field", "where", "set")
        if self.decode and not any(getattr(self, name) for name in rules):
            text = "--decode needs a rule for the decoded bodies, such as --where or --set"
            raise ConfigError(text, options=("decode",))
