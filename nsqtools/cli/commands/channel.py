"""``nsqtools channel``: channels made, emptied, paused and deleted wherever they are."""

from __future__ import annotations

import click

from nsqtools.cli.commands.topic import TOPIC
from nsqtools.cli.options import Command, CommandGroup, ValueType, options
from nsqtools.config import ChangeOptions, LossOptions
from nsqtools.config.option import Option

CHANNEL = Option("text", "A channel of it.", values="channel")


@click.group("channel", cls=CommandGroup)
def channel() -> None:
    """Make, empty, pause and delete channels.

    That is done on all nsqds that have the channel, and where it applies on all nsqlookupds. Who
    has it is asked of the nsqlookupds and nsqds that are given.
    """


@channel.command(
    "create",
    cls=Command,
    examples=(
        (
            "Make a channel before its consumer comes, so that it misses nothing",
            "nsqtools channel create events archive",
        ),
    ),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("channel", type=ValueType(CHANNEL), help="A name for a channel of it.")
@options(where=ChangeOptions)
def create(*, topic: str, channel: str, where: ChangeOptions) -> int:
    """Make a channel of a topic that is there.

    It is made on the nsqlookupds that are given, and on all nsqds that have the topic; an nsqd that
    makes the topic later asks nsqlookupd and makes the channel too. One that is there is left as it
    is.
    """
    from nsqtools.cli.administering import change

    return change("create", topic, channel, where)


@channel.command(
    "delete",
    cls=Command,
    examples=(
        ("Delete a channel that nobody reads", "nsqtools channel delete events archive --yes"),
    ),
    guide="loss",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("channel", type=ValueType(CHANNEL), help=CHANNEL.help)
@options(where=LossOptions)
def delete(*, topic: str, channel: str, where: LossOptions) -> int:
    """Delete a channel, with its messages.

    nsqlookupds forget it first, then the nsqds drop it and hang up on its consumers. A consumer
    that comes back makes it again, empty.
    """
    from nsqtools.cli.administering import change

    return change("delete", topic, channel, where)


@channel.command(
    "empty",
    cls=Command,
    examples=(
        (
            "Drop what waits in a channel, and say as JSON who did",
            "nsqtools channel empty events archive --yes --json",
        ),
    ),
    guide="loss",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("channel", type=ValueType(CHANNEL), help=CHANNEL.help)
@options(where=LossOptions)
def empty(*, topic: str, channel: str, where: LossOptions) -> int:
    """Drop the messages of a channel, those in flight and deferred too.

    Its consumers stay connected.
    """
    from nsqtools.cli.administering import change

    return change("empty", topic, channel, where)


@channel.command(
    "pause",
    cls=Command,
    examples=(("Let a channel fill up", "nsqtools channel pause events archive"),),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("channel", type=ValueType(CHANNEL), help=CHANNEL.help)
@options(where=ChangeOptions)
def pause(*, topic: str, channel: str, where: ChangeOptions) -> int:
    """Deliver nothing of a channel, which goes on filling, until it is unpaused."""
    from nsqtools.cli.administering import change

    return change("pause", topic, channel, where)


@channel.command(
    "unpause",
    cls=Command,
    examples=(("Deliver again", "nsqtools channel unpause events archive"),),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@click.argument("channel", type=ValueType(CHANNEL), help=CHANNEL.help)
@options(where=ChangeOptions)
def unpause(*, topic: str, channel: str, where: ChangeOptions) -> int:
    """Deliver the messages of a channel again."""
    from nsqtools.cli.administering import change

    return change("unpause", topic, channel, where)
