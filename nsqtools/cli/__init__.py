"""The command line. This module loads only click, since each TAB press starts a process."""

# size: modules shared by all commands; each loads on demand

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from nsqtools import __version__
from nsqtools.cli.frame import Group, brief_help

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class LazyCommand(NamedTuple):
    """A command not yet loaded: its heading, a sentence of help, and its module."""

    section: str
    help: str
    module: str = ""
    """Its full name, unless it is ``nsqtools.cli.commands.NAME``."""


_ADMIN = "nsqtools.cli.commands.admin"

COMMANDS = {
    "tail": LazyCommand("Consume", "Print the messages of a topic."),
    "to-file": LazyCommand("Consume", "Archive topics in files."),
    "to-http": LazyCommand("Consume", "Deliver messages to HTTP endpoints."),
    "relay": LazyCommand("Consume", "Relay topics to topics of another nsqd."),
    "redrive": LazyCommand("Consume", "Publish dead letters again, from a topic or from files."),
    "pipeline": LazyCommand("Consume", "Archive, merge, replay and query topics, with Spark."),
    "pub": LazyCommand("Publish", "Publish messages to a topic."),
    "stats": LazyCommand("Look", "Report depths, rates and consumers of topics and channels."),
    "ui": LazyCommand("Look", "Show the cluster in a browser."),
    "bench": LazyCommand("Look", "Measure the speed of publishing and consuming."),
    "verify": LazyCommand("Look", "Check archives, manifests, and whole directories of to-file."),
    "lookup": LazyCommand("Look", "List the topics, channels and nsqds of nsqlookupd."),
    "doctor": LazyCommand("Look", "Find faults of a cluster, or why a consumer sees nothing."),
    "topic": LazyCommand("Administer", "Create, empty, pause, prune and delete topics.", _ADMIN),
    "channel": LazyCommand(
        "Administer", "Create, trim, empty, pause, prune and delete channels.", _ADMIN
    ),
    "node": LazyCommand("Administer", "Hide an nsqd's topics, and wait until it is empty.", _ADMIN),
    "queue": LazyCommand("Administer", "List, read and append to nsqd's disk queues."),
    "demo": LazyCommand("Try out", "Show the main commands at work on an embedded nsqd."),
    "sandbox": LazyCommand("Try out", "Run an embedded nsqd and nsqlookupd, in memory."),
    "config": LazyCommand("Set up", "Show, check or create a configuration file."),
    "completion": LazyCommand("Set up", "Print the completion script of a shell."),
}

_REPLACED = {"to_nsq": "pub", "nsq_to_nsq": "relay"}
"""The commands replacing Go tools of quite different names, by tool."""


class LazyGroup(Group):
    """Lists commands from a table, and imports a command only when it is needed."""

    def __init__(self, *, table: dict[str, LazyCommand], **attrs: object) -> None:
        super().__init__(**attrs)
        self.table = table
        self.params.append(brief_help("Show one screen of help and exit."))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if unknown."""
        if cmd_name not in self.table:
            return None
        from importlib import import_module

        name = cmd_name.replace("-", "_")
        module = self.table[cmd_name].module or f"nsqtools.cli.commands.{name}"
        command: click.Command = getattr(import_module(module), name)
        return command

    def take_shared(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also take ``help``: ``help NAME`` shows a page, ``help`` alone means ``--help``."""
        args = super().take_shared(ctx, args)
        if args[:1] != ["help"]:
            return args
        if args[1:] and not ctx.resilient_parsing:
            self._help(ctx, args[1:])
        return [*args[1:], "--help"]

    def _help(self, ctx: click.Context, topic: list[str]) -> None:
        """Show a manual page or a guide, and exit."""
        from nsqtools.cli.docs import guides
        from nsqtools.cli.docs.pages import page
        from nsqtools.cli.docs.terminal import show

        found = page(ctx, [word for word in topic if word not in ("-h", "--help")])
        if not found:
            raise self._unknown(ctx, " ".join(topic), [*guides(), "exit-codes"])
        show(found)
        ctx.exit()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; an error suggests similar names of the table."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise self._unknown(ctx, error.command_name) from None

    def _unknown(
        self, ctx: click.Context, name: str, guides: Iterable[str] = ()
    ) -> click.UsageError:
        """The error for an unknown command or guide, with the most similar known name."""
        if name in _REPLACED:
            near = _REPLACED[name]
            return click.UsageError(f"No such command {name!r}. Did you mean {near!r}?", ctx)
        names = sorted({*self.table, *guides})
        error = click.exceptions.NoSuchCommand(name, possibilities=names, ctx=ctx)
        if guides and not error.possibilities:
            listed = ", ".join(guides)
            return click.UsageError(
                f"no help for {name!r}: name a command or a guide: {listed}", ctx
            )
        return error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands and the guides before the options of the program."""
        from nsqtools.cli.docs import guide_summaries

        self.format_commands(ctx, formatter)
        with formatter.section("Guides"):
            formatter.write_dl(list(guide_summaries().items()))
        click.Command.format_options(self, ctx, formatter)

    def format_brief(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage, the commands, and where to find more help."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_commands(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands under the headings of their sections, in one column."""
        width = max(map(len, self.table), default=0)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.table.items():
            sections.setdefault(entry.section, []).append((name.ljust(width), entry.help))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Commands beginning with this text, with their help from the table."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.table.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="nsqtools",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="For more: 'nsqtools COMMAND -h', 'nsqtools help COMMAND' or 'help exit-codes'.",
)
@click.version_option(__version__, prog_name="nsqtools", message="%(prog)s %(version)s")
def cli() -> None:
    """The command line for NSQ: tail, archive, publish and look up topics.

    -v, -q, --log-format, --config and --profile may also precede the command.
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; ``argv`` is without the program's name."""
    from nsqtools.cli.exits import run

    sys.exit(run(cli, sys.argv[1:] if argv is None else argv))
