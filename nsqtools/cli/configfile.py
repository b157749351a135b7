"""The configuration file: its place, its tables and keys, and their values.

    default_profile = "prod"

    [defaults]                  # options shared by commands
    log-format = "json"

    [tail]                      # options of one command
    max-in-flight = 500

    [profile.prod]              # as [defaults], when this profile is chosen
    lookupd-http-address = ["10.0.0.1:4161", "10.0.0.2:4161"]

    [profile.prod.tail]         # as [tail]

Keys are the names of flags, with dashes or underscores. Every error is a ConfigFileError: one line
naming the file, the table and the key.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from nsqtools.config import option_classes
from nsqtools.config.connection import without_waiting
from nsqtools.config.option import KINDS, MASK, flag_name
from nsqtools.config.pairs import PAIRS, pair_name, pairs_key, parse_pairs
from nsqtools.config.units import format_size, nearest
from nsqtools.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsqtools.config.option import Option, Options

NO_FILE = "none"
"""The value of ``--config`` for no file, and of ``--profile`` for no profile."""

_DEFAULT_PROFILE = "default_profile"
_TOP_TABLES = ("defaults", "profile")
_MAX_SIZE = 1 << 20  # bytes
_NOT_CLOSED = (
    "Illegal character '\\n'",
    "Unterminated string",
    *(f"Expected {end!r}" for end in ("'", "'''")),
)


class Source(StrEnum):
    """Where a value comes from, highest precedence first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    PROFILE = "profile"
    FILE = "file"
    DEFAULT = "default"


class Table(NamedTuple):
    """One table.

    ``command`` has the words of the table's command; it is empty for a table shared by commands.
    Errors begin with ``name``. Keys are spelled as parameters, and paths are relative to
    ``folder``.
    """

    source: Source
    command: tuple[str, ...]
    name: str
    values: Mapping[str, Any]
    folder: str

    def value(self, key: str, declared: Option) -> Any:
        """The checked value of a key.

        A repeatable option also accepts a single value.
        """
        value = self.values[key]
        try:
            if isinstance(value, dict):
                raise ConfigError("expected a value, found a table")
            if not isinstance(value, list):
                found = self._convert(value, declared)
                return (found,) if declared.multiple else found
            if not declared.multiple:
                raise ConfigError("expected one value, found a list")
            return tuple(self._convert(item, declared) for item in value)
        except ConfigError as error:
            raise ConfigFileError(f"{self.name}: {flag_name(key)}: {error}") from None

    def _convert(self, value: Any, declared: Option) -> Any:
        found = convert(declared, value)
        if declared.kind == "path" and found not in ("", "-") and "://" not in found:
            return os.path.join(self.folder, os.path.expanduser(found))
        return found

    def problems(
        self,
        options: Mapping[str, Option],
        commands: Iterable[str],
        classes: Iterable[type[Options]],
    ) -> Iterator[str]:
        """A line for each problem. ``classes`` check the pairs of ``--consumer-opt``."""
        yield from self.unknown(options, commands)
        for key in self.values:
            if key not in options:
                continue
            try:
                value = self.value(key, options[key])
                for cls in classes:
                    if pairs_key(cls) == key:
                        parse_pairs(cls, value, f"{self.name}: {cls.opt_flag}")
            except ConfigError as error:
                yield str(error)

    def unknown(self, options: Iterable[str], commands: Iterable[str]) -> Iterator[str]:
        """A line for each key other than a known option or the table of a command."""
        tables = list(commands)
        for key, value in self.values.items():
            name = flag_name(key)
            if isinstance(value, dict):
                if name not in tables and key not in options:
                    yield f"{self.name}: unknown table {name!r}{nearest(name, tables)}"
            elif name in tables:
                yield f"{self.name}: {name}: expected a table, found {_toml(value)}"
            elif key not in options:
                yield f"{self.name}: unknown key {name!r}{self._hint(name, options)}"

    def _hint(self, name: str, options: Iterable[str]) -> str:
        near = nearest(name, map(flag_name, options))
        declared = {each for cls in option_classes() for each in cls.declared()}
        if not near and not self.command and name.replace("-", "_") in declared:
            return ": shared options belong in [defaults], others in the table of a command"
        return near


def convert(declared: Option, value: Any) -> Any:
    """The checked form of a value in TOML. Raises ConfigError without the name."""
    kind, is_text = KINDS[declared.kind], isinstance(value, str)
    if declared.kind == "duration" or (declared.kind == "size" and is_text):
        if not is_text:
            raise ConfigError(f'expected a duration in quotes, such as "30s", found {_toml(value)}')
        return declared.parse(value)
    if not isinstance(value, kind.types) or isinstance(value, bool) != (kind.types is bool):
        if kind.types is str:
            found = MASK if declared.secret else _toml(value)
            raise ConfigError(f"{found} is not text: write it in quotes")
        quotes = ", without quotes" if is_text else ""
        raise ConfigError(f"expected {kind.expected}{quotes}, found {_toml(value)}")
    declared.check(value)
    return value


def _toml(value: Any) -> str:
    """A value as written in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "a list"
    return repr(value) if isinstance(value, str) else str(value)


def shared_options() -> dict[str, Option]:
    """Options allowed in [defaults] and profiles: each has one variable for all commands."""
    found = {}
    for cls in option_classes():
        if cls.opt_flag and cls.shared:
            found[pairs_key(cls)] = PAIRS
        found |= {name: each for name, each in cls.declared().items() if cls.shares(each)}
    return {name: each for name, each in found.items() if each.in_file}


class ConfigFile:
    """The contents of a file.

    Errors call the file ``name``. With ``is_public``, users other than the owner may read the file.
    """

    def __init__(self, name: str, data: Mapping[str, Any], *, is_public: bool) -> None:
        self.name = name
        self.is_public = is_public
        self._data = self._spelled(data, "")
        self._folder = os.path.dirname(os.path.abspath(os.path.expanduser(name)))

    @property
    def warnings(self) -> list[str]:
        """A warning if the file holds a secret and others may read it."""
        if self.is_public and _holds_secret(self._data):
            return [f"{self.name} holds a secret and may be read by others: chmod 600 it"]
        return []

    @property
    def profiles(self) -> list[str]:
        """Names of profiles, in the order of the file."""
        profiles = self._data.get("profile", {})
        return list(profiles) if isinstance(profiles, dict) else []

    def choose(self, profile: str | None, asked_by: str) -> str | None:
        """The requested profile, or else ``default_profile``; None if ``none`` was requested.

        Raises ConfigFileError for a missing profile; ``asked_by`` names the source of the request.
        """
        if profile == NO_FILE:
            return None
        if profile is None:
            profile = self._data.get(_DEFAULT_PROFILE)
            if profile is None:
                return None
            asked_by = f"{self.name}: default_profile"
            if not isinstance(profile, str):
                raise ConfigFileError(f"{asked_by}: {profile!r} is not text: write it in quotes")
        if profile not in self.profiles:
            near = nearest(profile, self.profiles)
            hint = near or f"; it has {', '.join(self.profiles)}" if self.profiles else ""
            raise ConfigFileError(f"{asked_by} {profile}: {self.name} has no such profile{hint}")
        return profile

    def check_top(self, commands: Iterable[str]) -> None:
        """Raise ConfigFileError for an unknown key or table at the top level."""
        top = Table(Source.FILE, (), self.name, self._data, self._folder)
        for problem in top.unknown((_DEFAULT_PROFILE,), (*_TOP_TABLES, *commands)):
            raise ConfigFileError(problem)
        profiles = self._table(self._data.get("profile", {}), (), "profile", Source.PROFILE)
        for problem in profiles.unknown((), map(flag_name, self.profiles)):
            raise ConfigFileError(problem)

    def tables(self, command: Sequence[str], profile: str | None) -> Iterator[Table]:
        """The tables of a command, highest precedence first.

        Call ``check_top`` before. Raises ConfigFileError for a key in two spellings.
        """
        if profile is not None:
            name = f"profile.{profile}"
            top = self._spelled(self._data["profile"][profile], name)
            yield from self._own(top, command, f"{name}.", Source.PROFILE)
            yield self._table(top, (), name, Source.PROFILE)
        yield from self._own(self._data, command, "", Source.FILE)
        defaults = self._spelled(self._data.get("defaults", {}), "defaults")
        yield self._table(defaults, (), "defaults", Source.FILE)

    def _own(
        self, node: Mapping[str, Any], command: Sequence[str], prefix: str, source: Source
    ) -> list[Table]:
        """Tables of a command and its groups, the command's own first."""
        found: list[Table] = []
        for depth, word in enumerate(command, 1):
            values = node.get(word.replace("-", "_"))
            if not isinstance(values, dict):
                break  # no such table, or an option named like a command
            name = prefix + ".".join(command[:depth])
            node = self._spelled(values, name)
            found.insert(0, self._table(node, tuple(command[:depth]), name, source))
        return found

    def _table(
        self, values: Mapping[str, Any], command: tuple[str, ...], name: str, source: Source
    ) -> Table:
        return Table(source, command, f"{self.name}: [{name}]", values, self._folder)

    def _spelled(self, values: Mapping[str, Any], table: str) -> dict[str, Any]:
        """The values of a table by parameter. Raises ConfigFileError for a key in two spellings."""
        spelled: dict[str, Any] = {}
        for key, value in values.items():
            parameter = key.replace("-", "_")
            if parameter in spelled:
                place = f"{self.name}: [{table}]" if table else self.name
                twice = f"{flag_name(key)!r} is given twice, in two spellings"
                raise ConfigFileError(f"{place}: {twice}")
            spelled[parameter] = value
        return spelled


def may_be_read_by_others(file: IO[Any]) -> bool:
    """Whether the mode of an open file gives users other than its owner any access."""
    return bool(os.fstat(file.fileno()).st_mode & 0o077)


def _holds_secret(data: Mapping[str, Any]) -> bool:
    """Whether this table or a table in it holds a secret, under its own key or in a pair."""
    secrets = {
        name for cls in option_classes() for name, each in cls.declared().items() if each.secret
    }
    pairs = {pairs_key(cls) for cls in option_classes()}
    tables = [data]
    while tables:
        for key, value in tables.pop().items():
            name = key.replace("-", "_")
            if isinstance(value, dict):
                tables.append(value)
                continue
            texts = value if isinstance(value, list) else [value]
            in_pairs = {pair_name(str(text)) for text in texts} if name in pairs else set()
            if value and secrets & {name, *in_pairs}:
                return True
    return False


def search_path() -> list[str]:
    """Files to look for without --config; the first existing file is used."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # ignored, as the XDG Base Directory Specification requires
        home = os.path.expanduser("~/.config")
    return [os.path.join(folder, "nsqtools", "config.toml") for folder in (home, "/etc")]


def load(path: str | None, asked_by: str = "--config") -> ConfigFile | None:
    """Read the requested file, or else the first in the search path; None if no file exists.

    Raises ConfigFileError if the requested file is missing, or if a file cannot be read or is not
    TOML. ``asked_by`` names the source of the request in errors; it may be empty.
    """
    if path == NO_FILE:
        return None
    if path is not None:
        return _load(path, asked_by)
    place = next((place for place in search_path() if os.path.exists(place)), None)
    return _load(place, "configuration file") if place else None


def _load(path: str, asked_by: str) -> ConfigFile:
    import tomllib

    try:
        with open(os.path.expanduser(path), "rb", opener=without_waiting) as file:
            is_public = may_be_read_by_others(file)
            data = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise ConfigFileError(f"{asked_by} {path}: {error.strerror}".lstrip()) from None
    if len(data) > _MAX_SIZE:
        raise ConfigFileError(f"{path}: over {format_size(_MAX_SIZE)}: not a configuration file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        return ConfigFile(path, tomllib.loads(text), is_public=is_public)
    except RecursionError:
        raise ConfigFileError(f"{path}: nested too deeply") from None
    except ValueError as error:  # from tomllib, or for a number with thousands of digits
        raise ConfigFileError(f"{path}: {_plain(str(error))}") from None


def _plain(text: str) -> str:
    """A message of tomllib, with the position first."""
    found = re.fullmatch(r"(.*) \(at (line \d+), column \d+\)|(.*) \(at end of document\)", text)
    if not found:
        return text
    reason = found[1] or found[3]
    if reason in _NOT_CLOSED:
        reason = "a text in quotes is not closed"
    return f"{found[2] or 'end of the file'}: {reason[0].lower()}{reason[1:]}"
