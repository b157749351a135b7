"""``nsqtools node``: what is done to one nsqd of a cluster."""

from __future__ import annotations

import click

from nsqtools.cli.commands.topic import TOPIC
from nsqtools.cli.options import Command, CommandGroup, ValueType, options
from nsqtools.config import TombstoneOptions
from nsqtools.config.option import Option

NODE = Option(
    "text",
    "The nsqd, as nsqlookupd lists it: host:http-port, or a host name if it is its alone.",
    values="node",
)


@click.group("node", cls=CommandGroup)
def node() -> None:
    """Take an nsqd out of a topic."""


@node.command(
    "tombstone",
    cls=Command,
    examples=(
        (
            "Let no consumer find a topic on an nsqd any more",
            "nsqtools node tombstone events 127.0.0.1:4151 --lookupd-http-address 127.0.0.1:4161",
        ),
    ),
    guide="loss",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("node", type=ValueType(NODE), help=NODE.help)
@options(where=TombstoneOptions)
def tombstone(*, topic: str, node: str, where: TombstoneOptions) -> int:
    """Hide an nsqd from those who look a topic up.

    All given nsqlookupds leave it out of their answers for this topic until the tombstone lapses:
    45 seconds unless they are told otherwise. In that time publishers are to go elsewhere and the
    topic be deleted on that nsqd, which --delete does at once. Consumers that are connected to it
    stay connected.
    """
    from nsqtools.cli.administering import tombstone

    return tombstone(topic, node, where)
