"""``nsqtools config``: show the values of options, check a file, print a file to start from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from nsqtools.cli.configfile import Source, load
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.options import CommandGroup, DeclaredFlag, argument, options
from nsqtools.cli.output import print_json, print_rows
from nsqtools.cli.resolver import Resolver, SelectedFile, allowed
from nsqtools.cli.tree import command_names, contexts, groups_of, words
from nsqtools.config import option_classes
from nsqtools.config.option import Option, flag_name
from nsqtools.config.program import ConfigFileOptions, ShowOptions
from nsqtools.config.units import nearest
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.cli.configfile import ConfigFile
    from nsqtools.cli.resolver import ResolvedValue


@click.group("config", cls=CommandGroup)
def config() -> None:
    """Show, check or create a configuration file.

    The file has shared options in [defaults], options of one command in a table with its name, and
    both again below [profile.NAME]. nsqtools.toml(5) describes it.
    """


_CHANGED = "--changed"
"""An option of ``show`` allowed after the command: no command has an option of this name."""


class OptionRow(NamedTuple):
    """One option of one command."""

    command: str
    option: str
    value: Any
    source: Source
    where: str


@config.command(
    "show",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=(
        ("Where each value of tail comes from", "nsqtools config show tail"),
        ("What a command line would do", "nsqtools config show tail --topic events -n 5"),
        ("What was changed, for all commands", "nsqtools config show --changed"),
    ),
    essential="changed json config profile verbose quiet",
)
@click.argument(
    "command_line",
    metavar="[COMMAND [OPTIONS]]",
    nargs=-1,
    type=click.UNPROCESSED,
    help="A command, with options to try; by default all commands. --changed may follow it.",
)
@options()
@click.pass_context
def show(
    ctx: click.Context, *, form: ShowOptions, file: ConfigFileOptions, command_line: tuple[str, ...]
) -> None:
    """Print the value of every option and where it comes from.

    The columns are option, value, source (flag, environment, profile, file or default) and the
    place in the source. Without a command the first column is the command. Secrets are masked.
    """
    import logging  # not needed at a TAB press

    root = ctx.find_root()
    changed = form.changed or _CHANGED in command_line
    command_line = tuple(word for word in command_line if word != _CHANGED)
    targets: list[tuple[click.Context, Sequence[str]]] = (
        [_find(root, command_line)]
        if command_line
        else [(each, ()) for each in contexts(root) if groups_of(each.command)]
    )
    rows: list[OptionRow] = []
    warnings: dict[str, None] = {}
    for target, args in targets:
        parsed = _parsed(target, [*_flags(ctx, file), *args])
        selected = SelectedFile.of(parsed)
        warnings |= dict.fromkeys(selected.warnings)
        rows += _rows(parsed, selected, changed=changed)
    if changed and not command_line:  # the same file and profile for all
        rows = [row for row in rows if row.option not in ConfigFileOptions.declared()]
    for warning in warnings:
        logging.getLogger(__name__).warning(warning)
    if form.json:
        print_json([row._asdict() for row in rows])
        return
    header = [name for name in OptionRow._fields if name != "command" or not command_line]
    print_rows(header, [[_text(getattr(row, name)) for name in header] for row in rows])


def _flags(ctx: click.Context, file: ConfigFileOptions) -> list[str]:
    """The --config and --profile of ``show``, as flags for the shown command."""
    return [
        word
        for name, value in (("config", file.config), ("profile", file.profile))
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for word in (f"--{name}", value)
    ]


def _find(root: click.Context, command_line: Sequence[str]) -> tuple[click.Context, Sequence[str]]:
    """The context of the command named by the words, and the remaining words."""
    ctx, rest = root, list(command_line)
    while isinstance(ctx.command, click.Group) and rest:
        name = rest.pop(0)
        command = ctx.command.get_command(ctx, name)
        if command is None:
            near = nearest(name, ctx.command.list_commands(ctx))
            raise click.UsageError(f"no such command {name!r}{near}", click.get_current_context())
        ctx = click.Context(command, parent=ctx, info_name=name)
    if not groups_of(ctx.command):
        raise click.UsageError(
            f"{' '.join(words(ctx))}: has no options to show", click.get_current_context()
        )
    return ctx, rest


def _parsed(ctx: click.Context, args: list[str]) -> click.Context:
    """The context of a parsed command line, without the command's positional arguments."""
    shadow = copy.copy(ctx.command)
    shadow.params = [param for param in shadow.params if isinstance(param, DeclaredFlag)]
    shadow.allow_extra_args = True
    return shadow.make_context(ctx.info_name, args, parent=ctx.parent)


def _rows(ctx: click.Context, selected: SelectedFile, *, changed: bool) -> Iterator[OptionRow]:
    """The options of a command: all, or only those with other values than the defaults."""
    groups = groups_of(ctx.command)
    resolver = Resolver(ctx, groups, selected.tables(ctx))
    found: dict[str, tuple[Option, ResolvedValue]] = {}
    for keyword, cls in groups.items():
        for name, resolved in resolver.values(keyword).items():
            found.setdefault(name, (cls.declared()[name], resolved))
    for name, resolved in selected.values.items():
        found.setdefault(name, (ConfigFileOptions.declared()[name], resolved))
    for name, (declared, (value, source, origin)) in found.items():
        if source is Source.DEFAULT and (changed or not declared.is_listed):
            continue
        if changed and value == declared.default:
            continue
        yield OptionRow(
            command=" ".join(words(ctx)),
            option=flag_name(name),
            value=_shown(declared, value),
            source=source,
            where=origin,
        )


def _shown(declared: Option, value: Any) -> Any:
    """The value as written in TOML; a secret is masked."""
    if declared.multiple:
        return [declared.show(each) for each in value]
    text = declared.show(value)
    return text if declared.kind in ("duration", "size") or isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@config.command(
    "check",
    examples=(
        ("Check the file that commands read", "nsqtools config check"),
        ("Check another file", "nsqtools config check nsqtools.toml"),
    ),
)
@argument(
    "file",
    Option("path", "A configuration file, by default the file of all commands."),
    required=False,
)
@options()
@click.pass_context
def check(ctx: click.Context, *, file: str | None, selection: ConfigFileOptions) -> None:
    """Check every table and profile of a configuration file.

    Each problem is a line on standard error; the exit status is then 2.
    """
    import logging

    found = load(file or selection.config or None, "" if file else "--config")
    if not found:
        raise ConfigFileError("there is no configuration file to check: name one")
    log = logging.getLogger(__name__)
    for warning in found.warnings:
        log.warning(warning)
    problems = dict.fromkeys(_problems(ctx.find_root(), found, selection.profile or None))
    for problem in problems:
        log.error(problem)
    if problems:
        raise Ended(Exit.USAGE)
    click.echo(f"{found.name}: ok")


def _problems(root: click.Context, file: ConfigFile, profile: str | None) -> Iterator[str]:
    try:
        file.check_top(command_names(root))
        file.choose(profile, "--profile")
    except ConfigFileError as error:
        yield str(error)
        return
    commands = [each for each in contexts(root) if not isinstance(each.command, click.Group)]
    for ctx in commands:
        for each in (None, *file.profiles):
            yield from _problems_of(ctx, file, each)


def _problems_of(ctx: click.Context, file: ConfigFile, profile: str | None) -> Iterator[str]:
    """Problems with the options of a command: bad values or, if all are good, bad combinations."""
    groups = groups_of(ctx.command)
    classes = [*groups.values()]
    try:
        tables = list(file.tables(words(ctx), profile))
        found = [
            problem
            for table in tables
            for problem in table.problems(
                *allowed(table, ctx), classes if table.command else option_classes()
            )
        ]
        yield from found
        if not found:
            Resolver(ctx, groups, tables, tables_only=True).instances(complete=False)
    except ConfigError as error:
        yield str(error)


@config.command(
    "init",
    examples=(
        ("Begin a file, to be named with --config", "nsqtools config init > nsqtools.toml"),
        ("Look for an option", "nsqtools config init | grep -B 1 requeue"),
    ),
)
@click.pass_context
def init(ctx: click.Context) -> None:
    """Print a configuration file, all commented out.

    It begins with the ten settings most users need. Every other option follows, with its default.
    """
    from nsqtools.cli.docs.starter import starting_file

    click.echo(starting_file(ctx.find_root()), nl=False)
