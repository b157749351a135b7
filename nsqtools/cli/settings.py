"""Where a command's options get their values: flag, environment, profile, file, default.

Within one of these the option's own flag, variable or key is stronger than ``--consumer-opt`` or
its like. A value also silences weaker values of the options it excludes: ``--nsqd-tcp-address`` on
the command line is not at odds with a ``lookupd-http-address`` in the file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from nsqtools.cli.configfile import NO_FILE, Source, load, pairs_key, shared_options
from nsqtools.config import FileOptions
from nsqtools.config.option import Option, Options, flag_name
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsqtools.cli.configfile import ConfigFile, Table

    Groups = Mapping[str, tuple[type[Options], Mapping[str, Any]]]
    """Of a command: option classes by keyword, each with the command's own defaults."""


class Setting(NamedTuple):
    """A value and where it was found; ``where`` is empty for a default."""

    value: Any
    source: Source
    where: str


def words(ctx: click.Context) -> tuple[str, ...]:
    """The command as it is typed after the program's name, such as ``("lookup", "topics")``."""
    found: list[str] = []
    while ctx.parent is not None:
        found.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return tuple(found)


def variables(ctx: click.Context, name: str, *, shared: bool) -> tuple[str, ...]:
    """Environment variables of an option: the command's own before the one all commands share."""
    path = words(ctx) or (ctx.command.name or "",)
    own = "_".join(("NSQTOOLS", *path, name)).replace("-", "_").upper()
    return (own, f"NSQTOOLS_{name.upper()}") if shared else (own,)


def known_options(groups: Groups) -> dict[str, Option]:
    """The options of a command by parameter: what may stand in its table of the file."""
    known: dict[str, Option] = {}
    for cls, _ in groups.values():
        for name, declared in cls.declared().items():
            known.setdefault(name, declared)
        if cls.opt_flag:
            known.setdefault(pairs_key(cls), cls.pairs_option())
    return {name: declared for name, declared in known.items() if declared.in_file}


def groups_of(command: click.Command) -> Groups:
    """The option classes of a command made with ``nsqtools.cli.options``, or none."""
    return getattr(command.callback, "option_groups", {})


class Settings:
    """The options of one command line, resolved. Raises ConfigFileError for a wrong file.

    A command that has FileOptions among its classes deals with the file itself: none is read.
    """

    def __init__(self, ctx: click.Context, groups: Groups) -> None:
        self._ctx = ctx
        self._groups = groups
        self._known = known_options(groups)
        self._asked = self._resolve(FileOptions, {}, ())
        asked = FileOptions(**{name: setting.value for name, setting in self._asked.items()})
        self.file: ConfigFile | None = None
        self.profile: str | None = None
        self.warnings: list[str] = []
        if FileOptions not in (cls for cls, _ in groups.values()):
            self.file = load(asked.config or None, self._asked["config"].where)
            self.profile = self._profile(next(iter(asked.profile), None))
        self._tables = list(self._read_tables()) if self.file else []

    def of(self, keyword: str) -> dict[str, Setting]:
        """The settings of one option class, by field; defaults included."""
        cls, presets = self._groups[keyword]
        return self._resolve(cls, presets, self._tables)

    def made(self) -> dict[str, Options]:
        """An instance of each class, by keyword; raises ConfigError for what is contradictory."""
        return {
            keyword: cls(**{name: setting.value for name, setting in self.of(keyword).items()})
            for keyword, (cls, _) in self._groups.items()
        }

    def chosen(self) -> dict[str, Setting]:
        """The file and the profile in use, as settings of FileOptions."""
        found = dict(self._asked)
        name, profile = self.file.name if self.file else NO_FILE, self.profile or ""
        found["config"] = found["config"]._replace(value=name)
        if profile and not found["profile"].value:
            found["profile"] = Setting((profile,), Source.FILE, f"{name}: default_profile")
        return found

    def _profile(self, asked: str | None) -> str | None:
        where = self._asked["profile"].where
        if self.file:
            return self.file.choose(asked, where)
        if asked is not None:
            raise ConfigFileError(f"{where} {asked}: no configuration file is read")
        return None

    def _read_tables(self) -> Iterator[Table]:
        """The tables of this command, each known to hold only what it may."""
        assert self.file
        self.file.check_top(command_names(self._ctx.find_root()))
        for table in self.file.tables(words(self._ctx), self.profile):
            for problem in table.unknown(*allowed(table, self._ctx)):
                raise ConfigFileError(problem)
            if self.file.is_public and table.holds_secret(self._known):
                text = f"{self.file.name} holds a secret and may be read by others: chmod 600 it"
                self.warnings = [text]
            yield table

    def _resolve(
        self, cls: type[Options], presets: Mapping[str, Any], tables: Sequence[Table]
    ) -> dict[str, Setting]:
        declared = cls.declared()
        settled: dict[str, Setting] = {}
        silenced: set[str] = set()
        for layer in self._layers(cls, tables):
            fresh = {n: s for n, s in layer.items() if n not in settled and n not in silenced}
            settled |= fresh
            for name, setting in fresh.items():
                if setting.value:
                    silenced.update(declared[name].excludes)
        fields = cls.__dataclass_fields__
        for name in declared:
            default = presets.get(name, fields[name].default)
            settled.setdefault(name, Setting(default, Source.DEFAULT, ""))
        return {name: settled[name] for name in declared}

    def _layers(self, cls: type[Options], tables: Sequence[Table]) -> Iterator[dict[str, Setting]]:
        pairs = pairs_key(cls)
        yield self._flags(cls, ParameterSource.COMMANDLINE)
        yield self._pairs(cls, pairs, ParameterSource.COMMANDLINE)
        yield self._flags(cls, ParameterSource.ENVIRONMENT) | self._flagless(cls)
        yield self._pairs(cls, pairs, ParameterSource.ENVIRONMENT)
        for table in tables:
            yield {
                name: Setting(table.value(name, declared), table.source, table.where)
                for name, declared in cls.declared().items()
                if name in table.values
            }
            if pairs in table.values:
                given = table.pairs(cls, table.value(pairs, cls.pairs_option()))
                where = f"{table.where}: {cls.opt_flag}"
                yield {n: Setting(value, table.source, where) for n, value in given.items()}

    def _flags(self, cls: type[Options], source: ParameterSource) -> dict[str, Setting]:
        return {
            name: self._given(cls, name, declared, self._ctx.params[name])
            for name, declared in cls.declared().items()
            if declared.flag and self._ctx.get_parameter_source(name) is source
        }

    def _given(self, cls: type[Options], name: str, declared: Option, value: Any) -> Setting:
        if self._ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return Setting(value, Source.FLAG, f"--{flag_name(name)}")
        variable = _set_variable(self._ctx, name, shared=cls.shares(declared))
        return Setting(value, Source.ENVIRONMENT, variable)

    def _pairs(self, cls: type[Options], name: str, source: ParameterSource) -> dict[str, Setting]:
        if not name or self._ctx.get_parameter_source(name) is not source:
            return {}
        where = self._given(cls, name, cls.pairs_option(), ()).where
        given = cls.parse_pairs(self._ctx.params[name], where)
        kind = Source.FLAG if source is ParameterSource.COMMANDLINE else Source.ENVIRONMENT
        return {key: Setting(value, kind, where) for key, value in given.items()}

    def _flagless(self, cls: type[Options]) -> dict[str, Setting]:
        """What has no flag but a variable."""
        found = {}
        for name, declared in cls.declared().items():
            variable = _set_variable(self._ctx, name, shared=cls.shares(declared))
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


def _set_variable(ctx: click.Context, name: str, *, shared: bool) -> str:
    """The variable that is set for an option, or nothing."""
    return next((v for v in variables(ctx, name, shared=shared) if os.environ.get(v)), "")


def allowed(table: Table, ctx: click.Context) -> tuple[dict[str, Option], list[str]]:
    """What may stand in a table, for the command of a context: options, and tables of commands."""
    if not table.command:
        top = command_names(ctx.find_root()) if table.source is Source.PROFILE else []
        return shared_options(), top
    while len(words(ctx)) > len(table.command):
        assert ctx.parent
        ctx = ctx.parent
    return _known_below(ctx), command_names(ctx)


def command_names(ctx: click.Context) -> list[str]:
    """The sub-commands of a context's command, none if it is no group."""
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


def _known_below(ctx: click.Context) -> dict[str, Option]:
    """The options of a command; of a group, those of all its commands."""
    if not isinstance(ctx.command, click.Group):
        return known_options(groups_of(ctx.command))
    found: dict[str, Option] = {}
    for name in ctx.command.list_commands(ctx):
        command = ctx.command.get_command(ctx, name)
        if command:
            found |= known_options(groups_of(command))
    return found
