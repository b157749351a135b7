"""What relay sends where."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import Options, addresses, option, option_class, texts, urls
from nsqtools.errors import ConfigError


@option_class
class RelayOptions(Options):
    """What ``relay`` sends where: nsq_to_nsq's names, and what it lacks."""

    title: ClassVar[str] = "Destination and rules"

    destination_nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to publish to; may be repeated.",
        required=True,
    )
    destination_nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of such an nsqd, by which a loop is noticed; may be repeated.",
        default_note="the port after the TCP port",
    )
    destination_topic: str = option(
        "",
        "text",
        "Topic to publish to.",
        metavar="TOPIC",
        values="topic",
        default_note="the name of the topic that is consumed",
        excludes=("map",),
    )
    map: tuple[str, ...] = texts(
        "Name of the destination topic by that of the topic, which REGEX matches as a whole; "
        "TEMPLATE has \\1 and \\g<name>. May be repeated: the first match counts.",
        metavar="REGEX=TEMPLATE",
        lines=True,
    )
    require_json_field: str = option(
        "", "text", "Relay only JSON objects that have this field.", metavar="FIELD"
    )
    require_json_value: str = option(
        "",
        "text",
        "Relay only those in which the field has this value: text, number, true, false or null.",
        metavar="VALUE",
    )
    whitelist_json_field: tuple[str, ...] = texts(
        "Relay only this field of JSON objects, as it is written; may be repeated.", metavar="FIELD"
    )
    where: str = option(
        "",
        "text",
        "Relay only JSON of which this jq expression is neither false nor null.",
        metavar="JQ",
    )
    set: tuple[str, ...] = texts(
        "Edit JSON by this jq expression, such as '.seen = true'; may be repeated.",
        metavar="JQ",
        lines=True,
    )
    pass_invalid: bool = option(
        False,
        "flag",
        "Relay what is not JSON as it is; else it is a dead letter or, without a place for those, "
        "goes back to nsqd.",
    )
    defer: float = option(
        0.0,
        "duration",
        "Let the destination deliver only after this time.",
        minimum=0.0,
        maximum=3600.0,
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    status_every: int = option(
        0,
        "integer",
        "Tell the counts of each topic on stderr, after so many messages, at most once a second, "
        "and at the end.",
        minimum=0,
        default_note="never, but at the end with --until-empty",
    )

    def validate(self) -> None:
        """A value is one of a field."""
        if self.require_json_value and not self.require_json_field:
            raise ConfigError("--require-json-value: needs --require-json-field")
