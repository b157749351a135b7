"""Where a command's options get their values: flag, environment, profile, file, default.

Within one of these the option's own flag, variable or key is stronger than ``--consumer-opt`` or
its like. A value also silences weaker values of the options it excludes: ``--nsqd-tcp-address`` on
the command line is not at odds with a ``lookupd-http-address`` in the file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
from click.core import ParameterSource

from nsqtools.cli.configfile import NO_FILE, Source, load, shared_options
from nsqtools.cli.frame import SHARED_FLAGS
from nsqtools.cli.tree import contexts, file_options, groups_of, words
from nsqtools.config import ClientConfig, FileOptions
from nsqtools.config.option import flag_name
from nsqtools.config.pairs import PAIRS, ignored_pairs, pairs_key, parse_pairs
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsqtools.cli.configfile import ConfigFile, Table
    from nsqtools.cli.tree import Groups
    from nsqtools.config.option import Option, Options


class Setting(NamedTuple):
    """A value and where it was found; ``where`` is empty for a default."""

    value: Any
    source: Source
    where: str


def variables(ctx: click.Context, name: str, *, shared: bool) -> tuple[str, ...]:
    """Environment variables of an option: the command's own before the one all commands share."""
    own = "_".join(("NSQTOOLS", *words(ctx), name)).replace("-", "_").upper()
    return (own, f"NSQTOOLS_{name.upper()}") if shared else (own,)


class Chosen(NamedTuple):
    """The configuration file and the profile that a command line leads to, and how."""

    file: ConfigFile | None
    profile: str | None
    settings: Mapping[str, Setting]

    @classmethod
    def of(cls, ctx: click.Context) -> Chosen:
        """Read the file. Raises ConfigFileError if it is missing or wrong, or lacks the profile."""
        asked = Settings(ctx, {"": (FileOptions, {})}).of("")
        file = load(asked["config"].value or None, asked["config"].where)
        profile = asked["profile"].value or None
        if file:
            profile = file.choose(profile, asked["profile"].where)
            if profile and not asked["profile"].value:
                where = f"{file.name}: default_profile"
                asked["profile"] = Setting(profile, Source.FILE, where)
        elif profile == NO_FILE:
            profile = None
        elif profile is not None:
            raise ConfigFileError(
                f"{asked['profile'].where} {profile}: no configuration file is read"
            )
        asked["config"] = asked["config"]._replace(value=file.name if file else NO_FILE)
        return cls(file, profile, asked)

    @property
    def warnings(self) -> list[str]:
        """What is to be said of the file."""
        return self.file.warnings if self.file else []

    def tables(self, ctx: click.Context) -> list[Table]:
        """The tables for a command, each known to hold only what it may."""
        if not self.file:
            return []
        self.file.check_top(command_names(ctx.find_root()))
        found = list(self.file.tables(words(ctx), self.profile))
        for table in found:
            for problem in table.unknown(*allowed(table, ctx)):
                raise ConfigFileError(problem)
        return found


class Settings:
    """The options of a command, from its command line, the environment and ``tables``.

    With ``tables_only`` the first two are left out.
    """

    def __init__(
        self,
        ctx: click.Context,
        groups: Groups,
        tables: Sequence[Table] = (),
        *,
        tables_only: bool = False,
    ) -> None:
        self._ctx = ctx
        self._groups = groups
        self._tables = tables
        self._tables_only = tables_only

    def made(self, *, complete: bool = True) -> dict[str, Options]:
        """An instance of each class, by keyword.

        Raises ConfigError for what is contradictory or, if it is to be ``complete``, required and
        missing; ConfigFileError if that stands in the file.
        """
        made = {}
        for keyword, (cls, _) in self._groups.items():
            settings = self.of(keyword)
            try:
                made[keyword] = cls(**{name: setting.value for name, setting in settings.items()})
                if complete:
                    made[keyword].check_complete()
            except ConfigError as error:
                raise _blamed(error, settings) from None
        return made

    def of(self, keyword: str) -> dict[str, Setting]:
        """The settings of one option class, by field; defaults included.

        Raises ConfigError, or ConfigFileError for what stands in a table.
        """
        cls, presets = self._groups[keyword]
        settled: dict[str, Setting] = {}
        silenced: set[str] = set()
        for layer in self._layers(cls, self._tables):
            fresh = {n: s for n, s in layer.items() if n not in settled and n not in silenced}
            settled |= fresh
            for name in [name for name, setting in fresh.items() if setting.value]:
                excluded = _related(cls, name, "excludes")
                for other in excluded & fresh.keys():
                    if fresh[other].value:
                        raise _contradiction(name, other, fresh)
                silenced |= excluded | _related(cls, name, "outranks")
        found = {}
        for name, declared in cls.declared().items():
            default = presets.get(name, declared.default)
            if name in silenced and declared.multiple:
                default = ()
            found[name] = settled.get(name, Setting(default, Source.DEFAULT, ""))
        return found

    def _layers(self, cls: type[Options], tables: Sequence[Table]) -> Iterator[dict[str, Setting]]:
        pairs = pairs_key(cls)
        if not self._tables_only:
            for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
                given = {
                    name: self._given(name, shared=cls.shares(declared))
                    for name, declared in cls.declared().items()
                    if self._ctx.get_parameter_source(name) is source
                }
                if source is ParameterSource.ENVIRONMENT:
                    given |= self._flagless(cls)
                yield given
                if pairs and self._ctx.get_parameter_source(pairs) is source:
                    setting = self._given(pairs, shared=cls.shared)
                    values = parse_pairs(cls, setting.value, setting.where)
                    yield {name: setting._replace(value=value) for name, value in values.items()}
                if source is ParameterSource.COMMANDLINE:
                    yield self._before(cls)
        for table in tables:
            yield {
                name: Setting(table.value(name, declared), table.source, table.where)
                for name, declared in cls.declared().items()
                if name in table.values and (table.command or cls.shares(declared))
            }
            if pairs in table.values:
                values = table.pairs(cls, table.value(pairs, PAIRS))
                where = f"{table.where}: {cls.opt_flag}"
                yield {n: Setting(value, table.source, where) for n, value in values.items()}

    def _before(self, cls: type[Options]) -> dict[str, Setting]:
        """The flags that stand before the command."""
        values = self._ctx.meta.get(SHARED_FLAGS, {})
        return {
            name: Setting(values[name], Source.FLAG, f"--{flag_name(name)}")
            for name in values.keys() & cls.declared().keys()
        }

    def _given(self, name: str, *, shared: bool) -> Setting:
        """What click found for a flag, on the command line or in a variable."""
        value = self._ctx.params[name]
        if self._ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return Setting(value, Source.FLAG, f"--{flag_name(name)}")
        variable = set_variable(self._ctx, name, shared=shared)
        return Setting(value, Source.ENVIRONMENT, variable)

    def _flagless(self, cls: type[Options]) -> dict[str, Setting]:
        """What has no flag but a variable."""
        found = {}
        for name, declared in cls.declared().items():
            variable = set_variable(self._ctx, name, shared=cls.shares(declared))
            if declared.flag or not variable:
                continue
            text = os.environ[variable]
            try:
                value = (
                    tuple(map(declared.parse, text.split()))
                    if declared.multiple
                    else declared.parse(text)
                )
            except ConfigError as error:
                raise ConfigError(f"{variable}: {error}") from None
            found[name] = Setting(value, Source.ENVIRONMENT, variable)
        return found


def tell_ignored(groups: Groups, params: Mapping[str, Any]) -> None:
    """Log the pairs that are accepted for the Go tools' sake and set nothing."""
    import logging

    for cls, _ in groups.values():
        if cls.ignored and (names := ignored_pairs(cls, params.get(pairs_key(cls)) or ())):
            text = "--%s: ignored, as a producer does not use it: %s"
            logging.getLogger(__name__).info(text, cls.opt_flag, ", ".join(names))


def named(options: Options, ctx: click.Context) -> Options:
    """Put the command into the user agent, so that nsqadmin tells commands apart."""
    if not isinstance(options, ClientConfig):
        return options
    usual = options.declared()["user_agent"].default
    if options.user_agent != usual:
        return options
    return options.with_values(user_agent=f"{usual} ({' '.join(words(ctx))})")


def is_default(ctx: click.Context, keyword: str, name: str) -> bool:
    """Whether nobody set this option of the running command, in any place."""
    chosen = Chosen.of(ctx)
    settings = Settings(ctx, groups_of(ctx.command), chosen.tables(ctx)).of(keyword)
    return settings[name].source is Source.DEFAULT


def set_variable(ctx: click.Context, name: str, *, shared: bool) -> str:
    """The variable that is set for an option, or nothing."""
    return next((v for v in variables(ctx, name, shared=shared) if os.environ.get(v)), "")


def _related(cls: type[Options], name: str, relation: Literal["excludes", "outranks"]) -> set[str]:
    """The options that one excludes, or outranks, whichever of the two says so."""
    declared = cls.declared()
    named_by = {other for other, each in declared.items() if name in getattr(each, relation)}
    return named_by | {*getattr(declared[name], relation)}


def _contradiction(name: str, other: str, layer: Mapping[str, Setting]) -> ConfigError:
    """The error for two options in one place that exclude each other."""
    setting = layer[name]
    one, two = sorted((name, other), key=list(layer).index)
    if setting.source in (Source.FILE, Source.PROFILE):
        both = f"{flag_name(one)} and {flag_name(two)}"
        return ConfigFileError(f"{setting.where}: {both} exclude each other: choose one")
    both = f"{layer[one].where} and {layer[two].where}"
    return ConfigError(f"{both} exclude each other: choose one")


def _blamed(error: ConfigError, settings: Mapping[str, Setting]) -> ConfigError:
    """The error of an option class, with its place if all it names stands in the file."""
    text = str(error)
    named = [s for name, s in settings.items() if name in text or flag_name(name) in text]
    given = [setting for setting in named if setting.source is not Source.DEFAULT]
    if given and all(setting.source in (Source.FILE, Source.PROFILE) for setting in given):
        return ConfigFileError(f"{given[0].where}: {text}")
    return error


def allowed(table: Table, ctx: click.Context) -> tuple[dict[str, Option], list[str]]:
    """What may stand in a table, for the command of a context: options, and tables of commands."""
    if not table.command:
        top = command_names(ctx.find_root()) if table.source is Source.PROFILE else []
        return shared_options(), top
    while len(words(ctx)) > len(table.command):
        assert ctx.parent
        ctx = ctx.parent
    known: dict[str, Option] = {}
    for below in contexts(ctx):
        for name, each in file_options(groups_of(below.command)).items():
            known[name] = each.declared
    return known, command_names(ctx)


def command_names(ctx: click.Context) -> list[str]:
    """The sub-commands of a context's command, none if it is no group."""
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
