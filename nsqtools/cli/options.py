"""Command-line options out of the option classes of ``nsqtools.config``.

    @click.command("tail", cls=Command, examples=[("Print one", "nsqtools tail -n 1 --topic x")])
    @options(source=SourceOptions, consumer=(ConsumerConfig, {"max_in_flight": 2500}))
    def tail(*, source: SourceOptions, consumer: ConsumerConfig) -> int: ...

``nsqtools.cli.settings`` says where the values come from; click knows of flags and variables alone.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource, augment_usage_errors
from click.types import BoolParamType

from nsqtools import __version__
from nsqtools.cli.settings import Chosen, Settings, variables
from nsqtools.cli.spelling import gnu_spelling
from nsqtools.cli.tree import command_options
from nsqtools.config import FileOptions, LogOptions
from nsqtools.config.option import flag_name
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from nsqtools.cli.tree import CommandOption, Groups
    from nsqtools.config.option import Option, Options

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

R = TypeVar("R")

_version: Decorator = click.version_option(__version__, message="nsqtools %(version)s")

_LOG = "log"


class ValueType(click.ParamType[Any]):
    """Any kind of option: parsing, range and choices are the declaration's."""

    def __init__(self, declared: Option) -> None:
        self.declared = declared
        self.name = declared.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or click's error with the option's name before the reason."""
        if value == "" and not self.declared.values:  # an unset variable of a shell, perhaps
            self.fail("is empty: give a value, or leave the option out", param, ctx)
        try:
            return self.declared.parse(value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """The words of a variable, or its lines."""
        return rv.splitlines() if self.declared.lines else super().split_envvar_value(rv)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices, names that servers or the file know, or the shell's own files for a path."""
        from click.shell_completion import CompletionItem

        if self.declared.kind == "path":
            return [CompletionItem(incomplete, type="file")]
        choices = self.declared.choices
        if self.declared.values:
            from nsqtools.cli.values import names

            choices = names(self.declared.values, ctx)
        return [CompletionItem(c) for c in choices if c and c.startswith(incomplete)]


class FlagType(ValueType, BoolParamType):
    """A boolean; click allows ``--no-x`` only for its own type."""


class ConfigOption(click.Option):
    """A flag for one declared option. Its value is None when it was given nowhere."""

    def __init__(self, param_decls: Sequence[str], *, known: CommandOption, **attrs: Any) -> None:
        self.known = known
        declared = known.declared
        if declared.kind == "flag":
            attrs |= {"is_flag": True, "type": FlagType(declared)}
        elif declared.kind == "count":
            attrs |= {"count": True, "type": ValueType(declared)}
        else:
            attrs |= {"type": ValueType(declared), "metavar": declared.placeholder}
        super().__init__(
            param_decls, multiple=declared.multiple, help=declared.help, default=None, **attrs
        )

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Where the value stands that is wrong: flag or variable."""
        source = ctx.get_parameter_source(self.name) if ctx else None
        if source is ParameterSource.ENVIRONMENT:
            return next((name for name in self.envvar or () if os.environ.get(name)), self.name)
        return super().get_error_hint(ctx)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """``-n, --count N`` and ``Help.  [default: ...; range: ...]``."""
        names = sorted(self.opts, key=len)
        if self.secondary_opts:
            names[-1] = f"--[no-]{names[-1].removeprefix('--')}"
        spec = ", ".join(names)
        if not self.is_flag and not self.count:
            spec += f" {self.make_metavar(ctx)}"
        known = self.known
        facts = {"default": known.default_text, "range": known.range_text}
        notes = [f"{name}: {text}" for name, text in facts.items() if text]
        if known.declared.required and not known.declared.instead:
            notes.insert(0, "required")
        return spec, f"{self.help}  [{'; '.join(notes)}]" if notes else self.help or ""


class Command(click.Command):
    """A command of ``options``: sections in help, examples as data, Go's spelling of flags.

    ``examples`` are pairs of a sentence without its full stop and a command line. They, and more
    sections of the manual page, may also stand in the file ``docs/commands/GUIDE.txt``.
    """

    def __init__(
        self,
        *args: Any,
        guide: str = "",
        examples: Sequence[tuple[str, str]] = (),
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self._guide = guide
        self._examples = tuple(examples)

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a sentence and a command line."""
        if self._examples or not self._guide:
            return self._examples
        from nsqtools.cli.docs import examples

        return examples(self._guide)

    @property
    def notes(self) -> Mapping[str, str]:
        """More sections of the manual page, by title."""
        from nsqtools.cli.docs import EXAMPLES, sections

        found = sections(self._guide) if self._guide else {}
        return {title: text for title, text in found.items() if title != EXAMPLES}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse after the variables got their names and Go's spellings were made GNU's."""
        for param in self.params:
            if isinstance(param, ConfigOption):
                param.envvar = variables(ctx, param.name, shared=param.known.shared)
        return super().parse_args(ctx, gnu_spelling(ctx, args, self.get_params(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options under the titles of the classes that declare them."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and isinstance(param, click.Option):
                sections.setdefault(section_of(param), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """How variables are called, then the examples."""
        super().format_epilog(ctx, formatter)
        example = next((param for param in self.params if isinstance(param, ConfigOption)), None)
        if example:
            own = variables(ctx, example.name, shared=False)[0]
            with formatter.section("Environment"):
                formatter.write_text(
                    f"Each option has a variable, such as {own} for {example.opts[-1]}. An option "
                    "that commands share has one more for all of them, such as NSQTOOLS_VERBOSE."
                )
        _write_examples(formatter, self.examples)


class CommandGroup(click.Group):
    """A group whose help ends with an example of each of its commands."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first example of each command."""
        super().format_epilog(ctx, formatter)
        commands = (self.get_command(ctx, name) for name in self.list_commands(ctx))
        _write_examples(
            formatter, [each.examples[0] for each in commands if isinstance(each, Command)]
        )


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    """Examples, unbroken so that they can be copied."""
    if not examples:
        return
    with formatter.section("Examples"):
        for sentence, line in examples:
            formatter.write_text(f"{sentence}:")
            formatter.write(f"{'':{formatter.current_indent + 2}}{line}\n")


def section_of(option: click.Option) -> str:
    """The heading of an option in help and in manual pages."""
    return option.known.section if isinstance(option, ConfigOption) else "Other options"


def argument(name: str, declared: Option, **attrs: Any) -> Decorator:
    """A positional argument of a declared kind, whose help is the declaration's."""
    return click.argument(name, type=ValueType(declared), help=declared.help, **attrs)


def options(
    **groups: type[Options] | tuple[type[Options], Mapping[str, Any]],
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command one instance of each class, by keyword, made of its settings.

    ``(Class, {"field": value})`` replaces defaults for this command. Where two classes declare an
    option of the same name it is one flag that serves both. A contradiction between options is a
    usage error. Every command also gets the flags of LogOptions and FileOptions, which are dealt
    with here; one that has FileOptions among its classes deals with the file itself.
    """
    bound: Groups = {
        keyword: group if isinstance(group, tuple) else (group, {})
        for keyword, group in (*groups.items(), (_LOG, LogOptions))
    }

    reads_file = FileOptions not in (cls for cls, _ in bound.values())
    flags: dict[str, CommandOption] = {}
    for each in command_options({**bound, "": (FileOptions, {})}):
        if each.declared.flag:
            flags.setdefault(each.name, each)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def command(**params: Any) -> R:
            ctx = click.get_current_context()
            try:
                chosen = Chosen.of(ctx) if reads_file else None
                made = Settings(ctx, bound, chosen.tables(ctx) if chosen else ()).made()
            except ConfigFileError:
                raise
            except ConfigError as error:
                raise click.UsageError(str(error), ctx) from None
            from nsqtools.cli.logs import configure

            log = made.pop(_LOG)
            assert isinstance(log, LogOptions)
            configure(log, [*(chosen.warnings if chosen else ()), *_unknown_variables(ctx)])
            own = {name: value for name, value in params.items() if name not in flags}
            with augment_usage_errors(ctx):
                return function(**made, **own)

        command.option_groups = bound  # type: ignore[attr-defined]
        _version(command)
        for each in reversed(flags.values()):  # click lists the last one first
            click.option(*_declarations(each), cls=ConfigOption, known=each)(command)
        return command

    return decorate


def _unknown_variables(ctx: click.Context) -> Sequence[str]:
    """A warning for each variable that looks like ours and is not."""
    if not any(name.startswith("NSQTOOLS_") for name in os.environ):
        return ()
    from nsqtools.cli.environment import warnings

    return warnings(ctx)


def _declarations(known: CommandOption) -> list[str]:
    """What click wants to know of an option's names: ``keep``, ``-k``, ``--keep/--no-keep``."""
    short = [f"-{known.declared.short}"] if known.declared.short else []
    alias = [f"--{flag_name(known.declared.alias)}"] if known.declared.alias else []
    opposite = f"/--no-{known.key}" if known.declared.kind == "flag" else ""
    return [known.name, *short, *alias, f"--{known.key}{opposite}"]
