"""Finds the values of a command's options: flag, environment variable, profile, file.

Each source is a layer, highest precedence first: a mapping from the name of an option to its value
and origin. Options before the command, and the pairs of ``--consumer-opt`` and similar options, are
flags too. Within a layer, an option's own flag, variable or key precedes a pair. A value also
discards lower-precedence values of the options it excludes: ``--nsqd-tcp-address`` on the command
line does not contradict ``lookupd-http-address`` in the file.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from click.core import ParameterSource

from nsqtools.cli.configfile import NO_FILE, Source, load, shared_options
from nsqtools.cli.frame import SHARED_FLAGS
from nsqtools.cli.tree import command_names, contexts, file_options, groups_of, words
from nsqtools.config.connection import ClientConfig
from nsqtools.config.option import contradiction, flag_name
from nsqtools.config.pairs import PAIRS, ignored_pairs, pairs_key, parse_pairs
from nsqtools.config.program import ConfigFileOptions
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import click

    from nsqtools.cli.configfile import ConfigFile, Table
    from nsqtools.cli.tree import Groups
    from nsqtools.config.option import Option, Options


_SERVICE_LINK = re.compile(
    r"\w+?_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)",
    re.DOTALL,
)
"""The variables that Kubernetes sets in each container for each Service of its namespace."""


class ResolvedValue(NamedTuple):
    """A value and its place; ``origin`` is empty for a default."""

    value: Any
    source: Source
    origin: str


class SelectedFile(NamedTuple):
    """The configuration file and profile in use, and the values of --config and --profile."""

    file: ConfigFile | None
    profile: str | None
    values: Mapping[str, ResolvedValue]

    @classmethod
    def of(cls, ctx: click.Context) -> SelectedFile:
        """Read the file. Raises ConfigFileError for a bad or missing file, or a missing profile."""
        asked = Resolver(ctx, {"": ConfigFileOptions}).values("")
        file = load(asked["config"].value or None, asked["config"].origin)
        profile = asked["profile"].value or None
        if file:
            profile = file.choose(profile, asked["profile"].origin)
            if profile and not asked["profile"].value:
                origin = f"{file.name}: default_profile"
                asked["profile"] = ResolvedValue(profile, Source.FILE, origin)
        elif profile == NO_FILE:
            profile = None
        elif profile is not None:
            raise ConfigFileError(
                f"{asked['profile'].origin} {profile}: no configuration file is read"
            )
        asked["config"] = asked["config"]._replace(value=file.name if file else NO_FILE)
        return cls(file, profile, asked)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the file."""
        return self.file.warnings if self.file else []

    def tables(self, ctx: click.Context) -> list[Table]:
        """The checked tables for a command. Raises ConfigFileError for an unknown key or table."""
        if not self.file:
            return []
        self.file.check_top(command_names(ctx.find_root()))
        found = list(self.file.tables(words(ctx), self.profile))
        for table in found:
            for problem in table.unknown(*allowed(table, ctx)):
                raise ConfigFileError(problem)
        return found


class Resolver:
    """Resolves the options of a command from its command line, the environment and ``tables``.

    With ``tables_only``, it ignores the command line and the environment.
    """

    def __init__(
        self,
        ctx: click.Context,
        groups: Groups,
        tables: Sequence[Table] = (),
        *,
        tables_only: bool = False,
    ) -> None:
        self.ignored: list[str] = []
        """A note for each option or pair without effect, accepted for the sake of the Go tools."""
        self._ctx = ctx
        self._groups = groups
        self._tables = tables
        self._tables_only = tables_only

    def instances(self, *, complete: bool = True) -> dict[str, Options]:
        """An instance of each class, by keyword.

        Raises ConfigError for contradictory options and, with ``complete``, for missing required
        options; ConfigFileError if all options at fault are set in the file.
        """
        made = {}
        for keyword, cls in self._groups.items():
            values = self.values(keyword)
            try:
                made[keyword] = cls(**{name: each.value for name, each in values.items()})
                if complete:
                    made[keyword].check_complete()
            except ConfigError as error:
                raise _located(error, values) from None
        return made

    def values(self, keyword: str) -> dict[str, ResolvedValue]:
        """The values of one option class, by name; defaults included.

        Raises ConfigError, or ConfigFileError for a value in a table.
        """
        cls = self._groups[keyword]
        resolved: dict[str, ResolvedValue] = {}
        discarded: set[str] = set()
        for layer in self._layers(cls):
            fresh = {n: v for n, v in layer.items() if n not in resolved and n not in discarded}
            resolved |= fresh
            for name in [name for name, each in fresh.items() if each.value]:
                excluded = _related(cls, name, "excludes")
                for other in excluded & fresh.keys():
                    if fresh[other].value:
                        one, two = sorted((name, other), key=list(fresh).index)
                        raise _located(contradiction(one, two), fresh)
                discarded |= excluded | _related(cls, name, "outranks")
        found = {}
        for name, declared in cls.declared().items():
            if declared.unused and name in resolved:
                origin = resolved[name].origin
                self.ignored.append(f"{origin}: ignored, as this command does not use it")
            is_none = name in discarded and declared.multiple
            default = ResolvedValue(() if is_none else declared.default, Source.DEFAULT, "")
            found[name] = resolved.get(name, default)
        return found

    def is_default(self, keyword: str, name: str) -> bool:
        """Whether an option is set nowhere."""
        return self.values(keyword)[name].source is Source.DEFAULT

    def _layers(self, cls: type[Options]) -> Iterator[dict[str, ResolvedValue]]:
        if not self._tables_only:
            yield from self._flags(cls)
            yield from self._variables(cls)
        for table in self._tables:
            yield from self._of_table(cls, table)

    def _flags(self, cls: type[Options]) -> Iterator[dict[str, ResolvedValue]]:
        """Flags of the command, then pairs, then flags before the command."""
        flags = {
            name: ResolvedValue(value, Source.FLAG, f"--{flag_name(name)}")
            for name, value in self._ctx.params.items()
            if self._ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        yield {name: flags[name] for name in cls.declared() if name in flags}
        if pairs := flags.get(pairs_key(cls)):
            yield self._pairs(cls, pairs)
        before = self._ctx.meta.get(SHARED_FLAGS, {})
        yield {
            name: ResolvedValue(before[name], Source.FLAG, f"--{flag_name(name)}")
            for name in before.keys() & cls.declared().keys()
        }

    def _variables(self, cls: type[Options]) -> Iterator[dict[str, ResolvedValue]]:
        found = {}
        for name, declared in cls.declared().items():
            if variable := self._variable(name, shared=cls.shares(declared)):
                found[name] = _from_variable(variable, declared)
        yield found
        if (pairs := pairs_key(cls)) and (variable := self._variable(pairs, shared=cls.shared)):
            yield self._pairs(cls, _from_variable(variable, PAIRS))

    def _variable(self, name: str, *, shared: bool) -> str:
        """The variable giving a value to an option; empty if all are unset."""
        names = variables(self._ctx, name, shared=shared)
        return next(filter(is_set, names), "")

    def _of_table(self, cls: type[Options], table: Table) -> Iterator[dict[str, ResolvedValue]]:
        yield {
            name: ResolvedValue(table.value(name, declared), table.source, table.name)
            for name, declared in cls.declared().items()
            if name in table.values and (table.command or cls.shares(declared))
        }
        if (pairs := pairs_key(cls)) in table.values:
            origin = f"{table.name}: {cls.opt_flag}"
            yield self._pairs(cls, ResolvedValue(table.value(pairs, PAIRS), table.source, origin))

    def _pairs(self, cls: type[Options], pairs: ResolvedValue) -> dict[str, ResolvedValue]:
        """The values set by pairs. Raises ConfigError or ConfigFileError."""
        if names := ignored_pairs(cls, pairs.value):
            self.ignored.append(
                f"{pairs.origin}: ignored, as a producer does not use it: {', '.join(names)}"
            )
        try:
            values = parse_pairs(cls, pairs.value, pairs.origin)
        except ConfigError as error:
            if pairs.source in (Source.FILE, Source.PROFILE):
                raise ConfigFileError(str(error)) from None
            raise
        return {name: pairs._replace(value=value) for name, value in values.items()}


def _from_variable(variable: str, declared: Option) -> ResolvedValue:
    """The value of a set variable; a repeatable option takes each word, or each line."""
    text = os.environ[variable]
    try:
        if declared.multiple:
            texts = text.splitlines() if declared.lines else text.split()
            return ResolvedValue(tuple(map(declared.parse, texts)), Source.ENVIRONMENT, variable)
        return ResolvedValue(declared.parse(text), Source.ENVIRONMENT, variable)
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None


def is_set(variable: str) -> bool:
    """Whether a variable has a value that somebody gave: Services of Kubernetes set some too."""
    text = os.environ.get(variable)
    return bool(text) and not _SERVICE_LINK.fullmatch(f"{variable}={text}")


def variables(ctx: click.Context, name: str, *, shared: bool) -> tuple[str, ...]:
    """Environment variables of an option: the command's own, then the variable for all commands."""
    own = "_".join(("NSQTOOLS", *words(ctx), name)).replace("-", "_").upper()
    return (own, f"NSQTOOLS_{name.upper()}") if shared else (own,)


def named(options: Options, ctx: click.Context) -> Options:
    """Put the command into the user agent, to tell commands apart in nsqadmin."""
    if not isinstance(options, ClientConfig):
        return options
    usual = options.declared()["user_agent"].default
    if options.user_agent != usual:
        return options
    return options.with_values(user_agent=f"{usual} ({' '.join(words(ctx))})")


def _related(cls: type[Options], name: str, relation: Literal["excludes", "outranks"]) -> set[str]:
    """The options in this relation to an option, in either direction."""
    declared = cls.declared()
    named_by = {other for other, each in declared.items() if name in getattr(each, relation)}
    return named_by | {*getattr(declared[name], relation)}


def _located(error: ConfigError, values: Mapping[str, ResolvedValue]) -> ConfigError:
    """The error with its options named as the user wrote them, and with the table, if any."""
    named = [(name, values[name]) for name in error.options if name in values]
    settings = [each for _, each in named if each.source is not Source.DEFAULT]
    in_file = bool(settings) and all(
        each.source in (Source.FILE, Source.PROFILE) for each in settings
    )
    text = str(error)
    for name, each in named:
        written = f"--{flag_name(name)}"
        if in_file:
            written = flag_name(name)
        elif each.source is Source.ENVIRONMENT:
            written = each.origin
        text = re.sub(rf"--{flag_name(name)}(?![\w-])", written, text)
    return ConfigFileError(f"{settings[0].origin}: {text}") if in_file else ConfigError(text)


def allowed(table: Table, ctx: click.Context) -> tuple[dict[str, Option], list[str]]:
    """The options and the command tables allowed in a table, for the command of a context."""
    if not table.command:
        top = command_names(ctx.find_root()) if table.source is Source.PROFILE else []
        return shared_options(), top
    while len(words(ctx)) > len(table.command):
        assert ctx.parent
        ctx = ctx.parent
    options: dict[str, Option] = {}
    for below in contexts(ctx):
        for name, each in file_options(groups_of(below.command)).items():
            options[name] = each.declared
    return options, command_names(ctx)
