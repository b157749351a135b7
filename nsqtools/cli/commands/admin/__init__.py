"""``nsqtools topic``, ``channel`` and ``node``: changes on every server with the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from nsqtools.cli.options import Command, CommandGroup, argument, options
from nsqtools.config.admin import (
    ChangeOptions,
    DrainOptions,
    LossOptions,
    PruneChannelOptions,
    PruneOptions,
    TombstoneOptions,
    TrimOptions,
)
from nsqtools.config.connection import BatchConsumerConfig
from nsqtools.config.option import Option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.changes import Discard, Verb


class CommandRow(NamedTuple):
    """A command of a group. It asks for confirmation if it ``loses`` messages."""

    verb: Verb
    help: str
    example: str
    line: str
    loses: Discard | None = None


TOPIC = (
    CommandRow(
        "create",
        """Create a topic.

        The topic is created on the given nsqlookupds and nsqds. Other nsqds create it when
        somebody publishes to it. An existing topic does not change.""",
        "Make a topic known before anything is published",
        "nsqtools topic create events --lookupd-http-address 127.0.0.1:4161",
    ),
    CommandRow(
        "delete",
        """Delete a topic, with its channels and messages.

        nsqlookupds forget the topic first, then the nsqds drop it and disconnect its consumers.
        The next consumer or message creates it again.""",
        "Delete a topic that nobody publishes to",
        "nsqtools topic delete events --yes",
        loses="channels",
    ),
    CommandRow(
        "empty",
        """Discard the messages of a topic not yet taken by a channel.

        A topic has such messages while it is paused or has no channel. To discard the messages
        of a channel, use nsqtools channel empty.""",
        "Discard the messages of a paused topic",
        "nsqtools topic empty events --yes",
        loses="messages",
    ),
    CommandRow(
        "pause",
        """Pause a topic: its channels get no more messages.

        You can still publish to it: messages stay in the topic until you unpause it.""",
        "Keep new messages from the channels",
        "nsqtools topic pause events",
    ),
    CommandRow(
        "unpause",
        """Resume a paused topic: its channels get messages again.""",
        "Send messages to the channels again",
        "nsqtools topic unpause events",
    ),
)
CHANNEL = (
    CommandRow(
        "create",
        """Create a channel of an existing topic.

        The channel is created on the given nsqlookupds and on all nsqds of the topic. If an
        nsqd creates the topic later, it asks nsqlookupd and creates the channel too. An
        existing channel does not change.""",
        "Create a channel before its consumer comes, so that it misses nothing",
        "nsqtools channel create events archive",
    ),
    CommandRow(
        "delete",
        """Delete a channel, with its messages.

        nsqlookupds forget the channel first, then the nsqds drop it and disconnect its
        consumers. The next consumer creates it again, empty.""",
        "Delete a channel that nobody reads",
        "nsqtools channel delete events archive --yes",
        loses="channels",
    ),
    CommandRow(
        "empty",
        """Discard all messages of a channel.

        Messages in flight and deferred messages are discarded too. Consumers stay connected.""",
        "Discard the messages of a channel, and print the servers as JSON",
        "nsqtools channel empty events archive --yes --json",
        loses="messages",
    ),
    CommandRow(
        "pause",
        """Pause a channel.

        Its consumers get no more messages, and it fills.""",
        "Stop the delivery to its consumers",
        "nsqtools channel pause events archive",
    ),
    CommandRow(
        "unpause",
        """Resume a paused channel: its consumers get messages again.""",
        "Let its consumers get messages again",
        "nsqtools channel unpause events archive",
    ),
)

_ESSENTIAL = "lookupd_http_address nsqd_http_address timeout json dry_run"

_topic = argument("topic", Option("text", "A topic.", values="topic"))
_channel = argument("channel", Option("text", "A channel of the topic.", values="channel"))
_node = argument(
    "node",
    Option(
        "text",
        "The nsqd as nsqlookupd lists it: host:http-port, or the host name if it is unique.",
        values="node",
    ),
)


def _group(kind: str, rows: Sequence[CommandRow], about: str) -> click.Group:
    group = CommandGroup(kind, help=about)
    for row in rows:
        group.add_command(_command(kind, row))
    return group


def _examples(sentence: str, line: str) -> tuple[tuple[str, str], ...]:
    """The same command line with --dry-run, and the example."""
    dry = line.replace(" --yes", "").replace(" --json", "")
    return ("Show what would be done, and do nothing", f"{dry} --dry-run"), (sentence, line)


def _command(kind: str, row: CommandRow) -> click.Command:
    @options(options=LossOptions if row.loses else ChangeOptions)
    def run(*, topic: str, options: ChangeOptions, channel: str = "") -> None:
        from nsqtools.cli.commands.admin.change import change

        change(row.verb, topic, channel, options, loses=row.loses)

    if kind == "channel":
        run = _channel(run)
    decorate = click.command(
        row.verb,
        cls=Command,
        help=row.help,
        guide="loss" if row.loses else "change",
        examples=_examples(row.example, row.line),
        essential=f"{_ESSENTIAL} yes" if row.loses else _ESSENTIAL,
    )
    return decorate(_topic(run))


def _prune_examples(kind: str) -> tuple[tuple[str, str], ...]:
    lookupd = "--lookupd-http-address 127.0.0.1:4161"
    command = f"nsqtools {kind} prune {lookupd}"
    return (
        (
            "List what was idle for 30 days by snapshots, and what is kept",
            f"{command} --snapshot 'seen-*.json' --idle 30d --dry-run",
        ),
        ("Watch for ten minutes, then ask what to delete", f"{command} --watch-for 10m"),
    )


topic = _group(
    "topic",
    TOPIC,
    """Create, empty, pause, prune and delete topics.

    Changes are made on all nsqds of the topic and, where necessary, on all nsqlookupds. The
    given nsqlookupds and nsqds are asked for the nsqds of the topic.""",
)
channel = _group(
    "channel",
    CHANNEL,
    """Create, trim, empty, pause, prune and delete channels.

    Changes are made on all nsqds of the channel and, where necessary, on all nsqlookupds. The
    given nsqlookupds and nsqds are asked for the nsqds of the channel.""",
)


@channel.command("trim", essential=f"older_than archive {_ESSENTIAL} yes")
@_topic
@_channel
@options()
def trim(*, topic: str, channel: str, options: TrimOptions, config: BatchConsumerConfig) -> None:
    """Finish the old messages of a channel.

    channel trim receives the messages in the channel at its start, finishes those older than
    --older-than, and puts the others back, which costs each an attempt. If there are too many
    younger messages to hold until the end, the rest is deferred for 30 seconds. Messages already
    deferred, or in flight to others, are not trimmed.
    """
    from nsqtools.cli.commands.admin.trim import run

    run(topic, channel, options, config)


_PRUNE = "with_messages lookupd_http_address dry_run json yes"


@topic.command(
    "prune",
    essential=f"watch_for snapshot idle topic {_PRUNE}",
    examples=_prune_examples("topic"),
)
@options()
def prune_topics(*, options: PruneOptions) -> None:
    """Delete the topics that nobody uses.

    A topic is idle if nothing was published or consumed and no client was connected, by snapshots
    of doctor --save or while topic prune watched. Idle topics are deleted with their channels.
    Topics with messages are kept, and so are topics that may be in use.
    """
    from nsqtools.cli.commands.admin.prune import prune

    prune(options)


@channel.command(
    "prune",
    essential=f"watch_for snapshot idle topic channel {_PRUNE}",
    examples=_prune_examples("channel"),
)
@options()
def prune_channels(*, options: PruneChannelOptions) -> None:
    """Delete the channels that nobody uses.

    A channel is idle if nothing was published or consumed and no client was connected, by snapshots
    of doctor --save or while channel prune watched. Channels with messages are kept, and so are
    channels that may be in use.
    """
    from nsqtools.cli.commands.admin.prune import prune

    prune(options)


@click.group("node", cls=CommandGroup)
def node() -> None:
    """Hide an nsqd's topics, and wait until it is empty."""


@node.command(
    "tombstone",
    guide="loss",
    essential=f"{_ESSENTIAL} yes delete",
    examples=_examples(
        "Hide an nsqd from consumers of a topic",
        "nsqtools node tombstone events 127.0.0.1:4151 --lookupd-http-address 127.0.0.1:4161",
    ),
)
@_topic
@_node
@options()
def tombstone(*, topic: str, node: str, options: TombstoneOptions) -> None:
    """Hide an nsqd from the consumers of a topic.

    All given nsqlookupds leave the nsqd out of their answers for this topic until the tombstone
    expires, by default after 45 seconds. Until then, publish elsewhere and delete the topic on the
    nsqd, or use --delete. Connected consumers stay connected.
    """
    from nsqtools.cli.commands.admin.change import hide

    hide(topic, node, options)


@node.command("drain", essential="evict lookupd_http_address timeout json")
@argument("nsqd", Option("url", "HTTP address of the nsqd.", values="node"))
@options()
def drain(*, nsqd: str, options: DrainOptions) -> None:
    """Wait until an nsqd has drained.

    An nsqd has drained when nothing was published to it for two seconds, and it has no message
    queued, in flight or deferred. A warning names everything unable to drain: channels without
    consumers, topics without channels, and paused topics and channels. The exit status is 4 if
    --timeout ends the wait.
    """
    from nsqtools.cli.commands.admin.drain import wait

    wait(nsqd, options)
