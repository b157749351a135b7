"""The command line. This module loads only click, since each TAB press starts a process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from nsqtools import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


class LazyCommand(NamedTuple):
    """A command that is not loaded yet: its heading, a sentence of help, and its module."""

    section: str
    help: str
    module: str = ""
    """Where it is, unless in a module of ``nsqtools.cli.commands`` that has its name."""


_ADMIN = "nsqtools.cli.commands.admin"

COMMANDS = {
    "tail": LazyCommand("Consume", "Print the messages of a topic."),
    "to-file": LazyCommand("Consume", "Archive topics in files."),
    "to-http": LazyCommand("Consume", "Deliver messages to HTTP endpoints."),
    "relay": LazyCommand("Consume", "Relay topics to topics of another nsqd."),
    "pipeline": LazyCommand("Consume", "Archive, merge, replay and query topics, with Spark."),
    "pub": LazyCommand("Publish", "Publish messages to a topic."),
    "stats": LazyCommand("Look", "Report depths, rates and consumers of topics and channels."),
    "verify": LazyCommand("Look", "Check archives and manifests."),
    "lookup": LazyCommand("Look", "List topics, channels and nsqds that nsqlookupd knows."),
    "doctor": LazyCommand("Look", "Find out why a consumer sees nothing."),
    "topic": LazyCommand("Administer", "Create, empty, pause and delete topics.", _ADMIN),
    "channel": LazyCommand("Administer", "Create, empty, pause and delete channels.", _ADMIN),
    "node": LazyCommand("Administer", "Hide an nsqd from the consumers of a topic.", _ADMIN),
    "demo": LazyCommand("Try out", "Show the main commands at work on an embedded nsqd."),
    "sandbox": LazyCommand("Try out", "Run an embedded nsqd and nsqlookupd, in memory."),
    "config": LazyCommand("Set up", "Show, check or create a configuration file."),
    "completion": LazyCommand("Set up", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """A group that lists its commands from a table and imports only the one that runs."""

    def __init__(self, *, table: dict[str, LazyCommand], **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if the table has none of that name."""
        if cmd_name not in self.table:
            return None
        from importlib import import_module

        name = cmd_name.replace("-", "_")
        module = self.table[cmd_name].module or f"nsqtools.cli.commands.{name}"
        command: click.Command = getattr(import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``help tail`` as ``tail --help``, print guides, and know Go's ``-version``."""
        if args[:1] == ["help"]:
            if args[1:] and args[1] not in self.table and not ctx.resilient_parsing:
                _show_guide(ctx, args[1])
            args = [*args[1:], "--help"]
        elif args[:1] in (["-version"], ["-help"]):
            args = [f"-{args[0]}", *args[1:]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does, and suggest names of the table for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.table, ctx=ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands before the options of the program."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

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
        """Commands that begin with this text, with their help from the table."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.table.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _show_guide(ctx: click.Context, topic: str) -> None:
    """Print a guide and end the command, if there is one about the topic."""
    from nsqtools.cli.docs import guide

    if text := guide(topic):
        click.echo(text)
        ctx.exit()


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="nsqtools",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'nsqtools help COMMAND' shows the options of a command, with examples, and "
    "'nsqtools help toml' the configuration file.",
)
@click.version_option(__version__, prog_name="nsqtools", message="%(prog)s %(version)s")
def cli() -> None:
    """The command line for NSQ: tail, archive, publish and look up topics."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; ``argv`` is without the program's name."""
    from nsqtools.cli.exits import run

    sys.exit(run(cli, sys.argv[1:] if argv is None else argv))
