"""``nsqtools topic``: topics made, emptied, paused and deleted wherever they are."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, CommandGroup, ValueType, options
from nsqtools.config import ChangeOptions, LossOptions
from nsqtools.config.option import Option

TOPIC = Option("text", "A topic.", values="topic")


@click.group("topic", cls=CommandGroup)
def topic() -> None:
    """Make, empty, pause and delete topics.

    That is done on all nsqds that have the topic, and where it applies on all nsqlookupds. Who has
    it is asked of the nsqlookupds and nsqds that are given.
    """


@topic.command(
    "create",
    cls=Command,
    examples=(
        (
            "Make a topic known before anything is published",
            "nsqtools topic create events --lookupd-http-address 127.0.0.1:4161",
        ),
    ),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@options(where=ChangeOptions)
def create(*, topic: str, where: ChangeOptions) -> int:
    """Make a topic.

    It is made on the nsqlookupds and on the nsqds that are given; other nsqds make it when
    something is published to it. One that is there is left as it is.
    """
    from nsqtools.cli.administering import change

    return change("create", topic, "", where)


@topic.command(
    "delete",
    cls=Command,
    examples=(
        (
            "See what would be asked of whom",
            "nsqtools topic delete events --dry-run",
        ),
        ("Delete a topic without being asked", "nsqtools topic delete events --yes"),
    ),
    guide="loss",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@options(where=LossOptions)
def delete(*, topic: str, where: LossOptions) -> int:
    """Delete a topic, with its channels and messages.

    nsqlookupds forget it first, then the nsqds drop it and hang up on its consumers. A consumer
    that comes back, or a message that is published, makes it again.
    """
    from nsqtools.cli.administering import change

    return change("delete", topic, "", where)


@topic.command(
    "empty",
    cls=Command,
    examples=(("Drop what no channel has taken", "nsqtools topic empty events --yes"),),
    guide="loss",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@options(where=LossOptions)
def empty(*, topic: str, where: LossOptions) -> int:
    """Drop the messages no channel has taken yet.

    There are such while a topic is paused or has no channel. A channel is emptied with
    nsqtools channel empty.
    """
    from nsqtools.cli.administering import change

    return change("empty", topic, "", where)


@topic.command(
    "pause",
    cls=Command,
    examples=(("Keep what is published away from the channels", "nsqtools topic pause events"),),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@options(where=ChangeOptions)
def pause(*, topic: str, where: ChangeOptions) -> int:
    """Keep what is published to a topic away from its channels.

    Publishing goes on; messages stay in the topic until it is unpaused.
    """
    from nsqtools.cli.administering import change

    return change("pause", topic, "", where)


@topic.command(
    "unpause",
    cls=Command,
    examples=(("Let messages through to the channels again", "nsqtools topic unpause events"),),
    guide="change",
)
@click.argument("topic", type=ValueType(TOPIC), help=TOPIC.help)
@options(where=ChangeOptions)
def unpause(*, topic: str, where: ChangeOptions) -> int:
    """Give the channels of a topic what was kept from them."""
    from nsqtools.cli.administering import change

    return change("unpause", topic, "", where)
