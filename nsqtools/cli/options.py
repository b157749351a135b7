"""Command-line options, made from the option classes of ``nsqtools.config``.

    @click.command("tail", cls=Command, examples=[("Print one", "nsqtools tail -n 1 --topic x")])
    @options()
    def tail(*, source: SourceOptions, config: BatchConsumerConfig) -> int: ...

click only parses flags; ``nsqtools.cli.resolver`` adds values from all other places.
"""

from __future__ import annotations

import inspect
import os
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource, augment_usage_errors
from click.types import BoolParamType

from nsqtools import __version__
from nsqtools.cli.frame import Context, Group, brief_help, description, write_examples
from nsqtools.cli.resolver import Resolver, SelectedFile, named, variables
from nsqtools.cli.spelling import gnu_spelling
from nsqtools.cli.tree import command_options, words
from nsqtools.config.connection import ClientConfig, ConsumerConfig, ProducerConfig
from nsqtools.config.option import Options, flag_name
from nsqtools.config.program import ConfigFileOptions, LogOptions
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from nsqtools.cli.tree import CommandOption, Groups
    from nsqtools.config.option import Option

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

R = TypeVar("R")

_version: Decorator = click.version_option(__version__, message="nsqtools %(version)s")

_LOG = "log"

_SHARED = (ConsumerConfig, ProducerConfig, ClientConfig, LogOptions, ConfigFileOptions)
_OTHERS = "Other options"
_LAST = [*(cls.title for cls in _SHARED), _OTHERS]
"""The headings after those of a command's own options."""


class ValueType(click.ParamType[Any]):
    """The type of any option; the declaration has parser, range and choices."""

    def __init__(self, declared: Option) -> None:
        self.declared = declared
        self.name = declared.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or click's error with the option's name before the reason."""
        if value == "" and not self.declared.values:  # perhaps from an unset shell variable
            self.fail("is empty: give a value, or leave the option out", param, ctx)
        try:
            return self.declared.parse(value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices, names from servers or the file, or for a path the shell's own files."""
        from click.shell_completion import CompletionItem

        if self.declared.kind == "path":
            return [CompletionItem(incomplete, type="file")]
        if self.declared.values == "decoder" and ":" in incomplete:
            return [CompletionItem(incomplete.partition(":")[2], type="file")]
        choices = self.declared.choices
        if self.declared.values:
            from nsqtools.cli.values import names

            choices = names(self.declared.values, ctx)
        return [CompletionItem(c) for c in choices if c and c.startswith(incomplete)]


class FlagType(ValueType, BoolParamType):
    """A boolean of click's own type: click allows ``--no-x`` for no other."""


class DeclaredFlag(click.Option):
    """A flag for one declared option. Its value is None if the flag is not given."""

    def __init__(
        self, param_decls: Sequence[str], *, command_option: CommandOption, **attrs: Any
    ) -> None:
        self.command_option = command_option
        declared = command_option.declared
        if declared.kind == "flag":
            attrs |= {"is_flag": True, "type": FlagType(declared)}
        elif declared.kind == "count":
            attrs |= {"count": True, "type": ValueType(declared)}
        else:
            attrs |= {"type": ValueType(declared), "metavar": declared.placeholder}
        attrs["hidden"] = not declared.is_listed
        super().__init__(
            param_decls, multiple=declared.multiple, help=declared.help, default=None, **attrs
        )

    @property
    def listed_names(self) -> list[str]:
        """The names for help, the short one first, without the alias."""
        alias = f"--{flag_name(self.command_option.declared.alias)}"
        return sorted((name for name in self.opts if name != alias), key=len)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """``-n, --count N`` and ``Help.  [default: ...; range: ...]``."""
        names = self.listed_names
        if self.secondary_opts:
            names[-1] = f"--[no-]{names[-1].removeprefix('--')}"
        spec = ", ".join(names)
        if not self.is_flag and not self.count:
            spec += f" {self.make_metavar(ctx)}"
        return spec, self._described(range=self.command_option.range_text)

    def brief_record(self, ctx: click.Context) -> tuple[str, str]:
        """Like ``get_help_record``, without the range and ``--no-``."""
        spec, _ = self.get_help_record(ctx)
        return spec.replace("--[no-]", "--"), self._described()

    def _described(self, **facts: str) -> str:
        """The help, then in brackets: ``required``, the default and these facts."""
        facts = {"default": self.command_option.default_text, **facts}
        notes = [f"{name}: {text}" for name, text in facts.items() if text]
        if self.command_option.declared.required and not self.command_option.declared.instead:
            notes.insert(0, "required")
        return f"{self.help}  [{'; '.join(notes)}]" if notes else self.help or ""


class Command(click.Command):
    """A command of ``options``: sections in help, examples as data, Go's spelling of flags.

    ``examples`` are pairs of a sentence without its full stop and a command line. The file
    ``docs/commands/GUIDE.md`` may hold them instead, with more sections of the manual page;
    ``guide`` is by default the name of the command.

    ``essential`` names the options for ``-h``, separated by spaces; leave it out if the whole help
    fits on one screen. Raises TypeError for an unknown option.
    """

    context_class = Context

    def __init__(
        self,
        *args: Any,
        guide: str = "",
        examples: Sequence[tuple[str, str]] = (),
        essential: str = "",
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self.help = self.help or description(self.callback)
        self._guide = guide or self.name or ""
        self._examples = tuple(examples)
        self.essential = tuple(essential.split())
        if unknown := {*self.essential} - {param.name for param in self.params}:
            raise TypeError(f"{self.name} has no option {', '.join(sorted(unknown))}")
        if essential:
            self.params.append(brief_help("Show one screen of help and exit."))

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a sentence and a command line."""
        from nsqtools.cli.docs import examples

        return self._examples or examples(self._guide)

    @property
    def notes(self) -> Mapping[str, str]:
        """More sections of the manual page, by title."""
        from nsqtools.cli.docs import EXAMPLES, sections

        found = sections(self._guide)
        return {title: text for title, text in found.items() if title != EXAMPLES}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Convert Go's spellings to GNU's, then parse."""
        takes_none = not any(isinstance(param, click.Argument) for param in self.params)
        ctx.allow_extra_args |= takes_none  # refused below, with a hint
        with augment_usage_errors(ctx):
            try:
                rest = super().parse_args(ctx, gnu_spelling(ctx, args, self.get_params(ctx)))
            except click.NoSuchOption as error:
                raise self._as_argument(ctx, error) from None
        if rest and takes_none and not ctx.resilient_parsing and not self.allow_extra_args:
            raise click.UsageError(f"takes no arguments{self._hint(ctx, rest)}", ctx)
        return rest

    def _as_argument(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """The error for an unknown option, with a hint if it names an argument of this command."""
        name = error.option_name.lstrip("-").replace("-", "_")
        arguments = [each for each in self.params if isinstance(each, click.Argument)]
        if name not in {each.name for each in arguments}:
            return error
        shown = " ".join([ctx.command_path, *(each.make_metavar(ctx) for each in arguments)])
        return click.UsageError(
            f"No such option {error.option_name!r}. Give it as an argument: {shown}", ctx
        )

    def _hint(self, ctx: click.Context, words: Sequence[str]) -> str:
        """``--topic WORD`` for words likely meant as topics, or else the words."""
        topic = next((param for param in self.params if param.name == "topic"), None)
        is_flag = ctx.get_parameter_source("topic") is ParameterSource.COMMANDLINE
        if not isinstance(topic, DeclaredFlag) or is_flag:
            return f": {' '.join(words)}"
        try:
            meant = [str(topic.command_option.declared.parse(word)) for word in words]
        except ConfigError:
            return f": {' '.join(words)}"
        if not topic.multiple:
            meant = meant[:1]
        return f"; did you mean {' '.join(f'--topic {name}' for name in meant)}?"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options under the titles of their declaring classes, shared options last."""
        params = self.get_params(ctx)
        options = [each for each in params if isinstance(each, click.Option) and not each.hidden]
        for title, members in by_section(options).items():
            records = [each.get_help_record(ctx) for each in members]
            with formatter.section(title):
                formatter.write_dl(list(filter(None, records)))

    def format_brief(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one screen of help: the essential options and two examples."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_arguments(ctx, formatter)
        params = {param.name: param for param in self.params}
        options = [params[name] for name in self.essential]
        with formatter.section("Options"):
            formatter.write_dl(
                [each.brief_record(ctx) for each in options if isinstance(each, DeclaredFlag)]
            )
        write_examples(formatter, self.examples[:2])
        formatter.write_paragraph()
        formatter.write_text(
            f"--help shows all options, 'nsqtools help {' '.join(words(ctx))}' the whole reference."
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names of variables, then the examples."""
        super().format_epilog(ctx, formatter)
        example = next((param for param in self.params if isinstance(param, DeclaredFlag)), None)
        if example:
            own = variables(ctx, example.name, shared=False)[0]
            with formatter.section("Environment"):
                formatter.write_text(
                    f"Each option has a variable, such as {own} for {example.opts[-1]}. An option "
                    "that commands share has one more for all of them, such as NSQTOOLS_VERBOSE."
                )
        write_examples(formatter, self.examples)


class SharedFlags(Command):
    """The shared options of all commands, given before the command."""

    def take(self, ctx: click.Context, args: list[str]) -> tuple[dict[str, Any], list[str]]:
        """The values of the options at the beginning of ``args``, and the other arguments.

        ``ctx`` is the context of the group receiving the arguments. Raises click.UsageError.
        """
        params = self.get_params(ctx)
        parsed, rest, _ = self.make_parser(ctx).parse_args(gnu_spelling(ctx, args, params))
        values = {}
        for param in params:
            if param.name not in parsed:
                continue
            if isinstance(param, DeclaredFlag):
                values[param.name] = param.type_cast_value(ctx, parsed[param.name])
            else:  # such as --version: prints and ends the run
                rest = [param.opts[-1]]
        return values, rest


@cache
def shared_flags() -> SharedFlags:
    """The only instance of SharedFlags."""
    names = " ".join([*LogOptions.declared(), *ConfigFileOptions.declared()])
    made: SharedFlags = click.command(cls=SharedFlags, essential=names)(options()(lambda: None))
    return made


class CommandGroup(Group):
    """A group; its help ends with an example of each of its commands."""

    command_class = Command

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        _version(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first example of each command."""
        super().format_epilog(ctx, formatter)
        commands = (self.get_command(ctx, name) for name in self.list_commands(ctx))
        write_examples(
            formatter, [each.examples[0] for each in commands if isinstance(each, Command)]
        )


def section_of(option: click.Option) -> str:
    """The heading of an option in help and in manual pages."""
    return option.command_option.section if isinstance(option, DeclaredFlag) else _OTHERS


def by_section(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """The options of a command under their headings: its own, then shared options."""
    found: dict[str, list[click.Option]] = {}
    for each in options:
        found.setdefault(section_of(each), []).append(each)
    return {title: found[title] for title in sorted(found, key=_rank)}


def _rank(title: str) -> int:
    return _LAST.index(title) if title in _LAST else -1


def argument(name: str, declared: Option, **attrs: Any) -> Decorator:
    """A positional argument with the kind and the help of its declaration."""
    return click.argument(name, type=ValueType(declared), help=declared.help, **attrs)


def options(
    **groups: type[Options],
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Pass a command an instance of each option class annotating one of its parameters.

    ``keyword=Class`` gives the class of a parameter without such an annotation. A command with a
    default of its own needs an option class of its own. Two classes declaring an option of the same
    name share its flag. A contradiction between options is a usage error. Every command also gets
    the flags of LogOptions and ConfigFileOptions, handled here; a command with ConfigFileOptions
    among its classes handles the file itself. The command finds its Resolver in ``ctx.obj``.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        bound = _bound(function, groups)
        reads_file = ConfigFileOptions not in bound.values()
        flags: dict[str, CommandOption] = {}
        for each in command_options({**bound, "": ConfigFileOptions}):
            if each.declared.flag:
                flags.setdefault(each.name, each)

        @wraps(function)
        def command(**params: Any) -> R:
            ctx = click.get_current_context()
            try:
                selected = SelectedFile.of(ctx) if reads_file else None
                ctx.obj = resolver = Resolver(ctx, bound, selected.tables(ctx) if selected else ())
                made = resolver.instances()
            except ConfigFileError:
                raise
            except ConfigError as error:
                text = "; ".join([str(error), *_unknown_variables(ctx)])
                raise click.UsageError(text, ctx) from None
            from nsqtools.cli.logs import configure

            log = made.pop(_LOG)
            assert isinstance(log, LogOptions)
            warnings = [*(selected.warnings if selected else ()), *_unknown_variables(ctx)]
            configure(log, warnings, resolver.ignored)
            made = {keyword: named(each, ctx) for keyword, each in made.items()}
            own = {name: value for name, value in params.items() if name not in flags}
            with augment_usage_errors(ctx):
                return function(**made, **own)

        command.option_groups = bound  # type: ignore[attr-defined]
        _version(command)
        for each in reversed(flags.values()):  # click lists the last option first
            click.option(*_declarations(each), cls=DeclaredFlag, command_option=each)(command)
        return command

    return decorate


def _bound(function: Callable[..., Any], groups: Mapping[str, type[Options]]) -> Groups:
    """The classes of a command's parameters; logging comes last."""
    kinds: dict[str, Any] = {**inspect.get_annotations(function, eval_str=True), **groups}
    return {
        keyword: cls
        for keyword, cls in {**kinds, _LOG: LogOptions}.items()
        if isinstance(cls, type) and issubclass(cls, Options)
    }


def _unknown_variables(ctx: click.Context) -> Sequence[str]:
    """A warning for each unknown variable with our prefix."""
    if not any(name.startswith("NSQTOOLS_") for name in os.environ):
        return ()
    from nsqtools.cli.environment import warnings

    return warnings(ctx)


def _declarations(option: CommandOption) -> list[str]:
    """The names of an option for click: ``keep``, ``-k``, ``--keep/--no-keep``."""
    short = [f"-{option.declared.short}"] if option.declared.short else []
    alias = [f"--{flag_name(option.declared.alias)}"] if option.declared.alias else []
    opposite = f"/--no-{option.key}" if option.declared.kind == "flag" else ""
    return [option.name, *short, *alias, f"--{option.key}{opposite}"]
