"""Declaration of options: kind, range and help, and the conversion of texts to values.

Each class of options covers one concern and declares its options as fields::

    class StopOptions(Options):
        title = "When to stop"
        count: int = integer("Stop after this many messages.", 0, short="n")

To share an option, a class extends the declaring class, or refers to the declaration. ``like``
changes parts of a declaration, such as default or help.
"""

from __future__ import annotations

import re
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    dataclass_transform,
)

from nsqtools.config.topicpattern import compiled
from nsqtools.config.units import format_duration, format_size, nearest, parse_duration, parse_size
from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_list, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal[
    "text",
    "path",
    "address",
    "url",
    "flag",
    "integer",
    "number",
    "duration",
    "size",
    "choice",
    "count",
]
"""An ``address`` is HOST:PORT or HOST. A ``url`` may also have a scheme and a path."""

Values = Literal["", "topic", "channel", "node", "profile", "code", "decoder"]

MASK = "********"
"""Shown instead of a secret."""

USER_INFO = r"(?<=//)[^/@:]+:[^/@]+(?=@)"
"""The name and password in the URL of a store."""
URL_SECRETS = r"(?<=//)[^/@]+(?=@)|(?<=\?)[^#]+"
"""The secret parts of a URL: user and password, and the query."""
_NUMBERS = ("integer", "number", "duration", "size")
_ANY_PORT = 1  # any default port: only the syntax is checked


def _parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1" | "yes" | "on" | "t":
            return True
        case "false" | "0" | "no" | "off" | "f":
            return False
    raise ConfigError(f"{text!r} is not a boolean: write true or false")


def _parse_integer(text: str) -> int:
    """Return a decimal or, like Go's flags, a hexadecimal number; raises ValueError."""
    return int(text, 16 if text.strip().lower().startswith("0x") else 10)


class ValueKind(NamedTuple):
    """The type of the values of a kind; ``expected`` describes them in error messages."""

    placeholder: str
    parse: Callable[[str], Any] = str
    types: Any = str
    expected: str = "a text"


KINDS: Mapping[Kind, ValueKind] = {
    "text": ValueKind("TEXT"),
    "path": ValueKind("PATH"),
    "address": ValueKind("HOST:PORT"),
    "url": ValueKind("HOST:PORT"),
    "choice": ValueKind(""),
    "flag": ValueKind("", _parse_bool, bool, "true or false"),
    "count": ValueKind("", int, int, "a whole number"),
    "integer": ValueKind("N", _parse_integer, int, "a whole number"),
    "number": ValueKind("NUMBER", float, (int, float), "a number"),
    "duration": ValueKind("DURATION", parse_duration, (int, float), "a number of seconds"),
    "size": ValueKind("SIZE", parse_size, int, "a size"),
}


class Option(NamedTuple):  # a data class takes five times as long at each start
    """Everything about an option except its name."""

    kind: Kind
    help: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    other_choices: tuple[str, ...] = ()
    """Choices of the Go tools. Commands accept them, but no help lists them."""
    multiple: bool = False
    short: str = ""
    metavar: str = ""
    flag: bool = True
    secret: bool = False
    hides: str = ""
    """A pattern of the secret part of an otherwise public value."""
    lines: bool = False
    """Whether line ends, not spaces, separate the values in an environment variable."""
    alias: str = ""
    """Another name: for the flag, if any, and in go-nsq's pairs. No help lists it."""
    hidden: bool = False
    """Whether commands accept the option but no help lists it."""
    unused: bool = False
    """Whether the option is hidden and has no effect; if it is set, -v says so."""
    values: Values = ""
    """What the values name on servers or in the configuration file, for shell completion."""
    own: bool = False
    """Whether the option belongs to its command alone, although its class is shared."""
    required: bool = False
    instead: str = ""
    """An option of the same class that may be given instead of this required option."""
    in_file: bool = True
    excludes: tuple[str, ...] = ()
    """Options of the same class that exclude this option; the higher precedence counts."""
    outranks: tuple[str, ...] = ()
    """Options of the same class; a value of higher precedence disables this option."""
    needs: str = ""
    """An option of the same class that this option requires."""
    default_note: str = ""
    """Description of a default depending on other things."""
    rule: Callable[[Any], object] | None = None
    """Raises ConfigError for an unusable value within the range."""

    def parse(self, text: str) -> Any:
        """Convert the text of one value. Raises ConfigError, without the option's name."""
        if self.values and not text:
            raise ConfigError(f"expected the name of a {self.values}, found an empty text")
        try:
            value = KINDS[self.kind].parse(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not {KINDS[self.kind].expected}") from None
        if self.kind == "choice" and value.lower() in self._accepted:
            value = value.lower()
        self.check(value)
        if self.kind in _NUMBERS:
            self._check_range(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError for an invalid value; the default is valid even if out of range."""
        types, expected = KINDS[self.kind].types, KINDS[self.kind].expected
        if not isinstance(value, types) or isinstance(value, bool) != (types is bool):
            raise ConfigError(f"expected {expected}, found {type(value).__name__}")
        if self.choices and value not in self._accepted:
            known = " or ".join(filter(None, self.choices))
            raise ConfigError(f"{value!r}: expected {known}{nearest(str(value), self.choices)}")
        if self.values in ("topic", "channel") and value:
            check_name(self.values, value)
        if self.kind in ("address", "url") and value:
            _, _, place = value.rpartition("://") if self.kind == "url" else ("", "", value)
            Address.parse(re.split("[/?]", place)[0] if self.kind == "url" else place, _ANY_PORT)
        if self.kind in _NUMBERS and value != self.default:
            self._check_range(value)
        if self.rule and value != self.default:
            self.rule(value)

    def _check_range(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        if not abs(value) < float("inf"):  # true for NaN, too
            raise ConfigError(f"{value} is out of range: expected a finite number")
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(f"{self.show(value)} is out of range: expected {self.range}")

    def show(self, value: Any) -> str:
        """Return the value as a user would write it, with secrets masked."""
        if self.secret and value:
            return MASK
        match self.kind:
            case "duration":
                return format_duration(value)
            case "size":
                return format_size(value)
            case "flag":
                return str(value).lower()
            case "number":
                return f"{value:g}"
        return re.sub(self.hides, MASK, str(value)) if self.hides else str(value)

    @property
    def _accepted(self) -> tuple[str, ...]:
        return (*self.choices, *self.other_choices)

    @property
    def is_listed(self) -> bool:
        """Whether help, manual pages and the starting file show the option."""
        return not (self.hidden or self.unused)

    @property
    def placeholder(self) -> str:
        """The placeholder of the value in help: ``HOST:PORT``, ``[text|json]``, ``N``."""
        if self.metavar:
            return self.metavar
        choices = "|".join(filter(None, self.choices))
        return f"[{choices}]" if choices else KINDS[self.kind].placeholder

    @property
    def range(self) -> str:
        """The range in words: ``low to high``, ``at least low``, or empty."""
        bounds = self.minimum, self.maximum
        low, high = ("" if bound is None else self.show(bound) for bound in bounds)
        if low and high:
            return f"{low} to {high}"
        return f"at least {low}" if low else ""


NO_LIMIT = "no limit"
"""The ``default_note`` of an option for which 0 is no limit."""


def like(declared: Any, **changes: Any) -> Any:
    """Return a copy of another class's option, ``Class.name``, with some fields changed."""
    return declared._replace(**changes)


def option(kind: Kind, help: str, default: Any, **rest: Any) -> Any:  # noqa: A002 - click's word
    """Declare an option of any kind; ``rest``, here and below, are further fields of Option."""
    return Option(kind, help, default, **rest)


def flag(help: str, *, default: bool = False, **rest: Any) -> Any:  # noqa: A002
    """Declare an on/off option."""
    return Option("flag", help, default, **rest)


def text(help: str, default: str = "", **rest: Any) -> Any:  # noqa: A002
    """Declare a text option."""
    return Option("text", help, default, **rest)


def texts(help: str, **rest: Any) -> Any:  # noqa: A002
    """Declare a repeatable text option."""
    return Option("text", help, (), multiple=True, **rest)


def topic_name(help: str, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for the name of a topic."""
    return text(help, metavar="TOPIC", values="topic", **rest)


def topic_pattern(help: str, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a pattern of names of topics."""
    return text(help, metavar="REGEX", own=True, rule=_regular_expression, **rest)


def channel_name(help: str, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for the name of a channel."""
    return text(help, metavar="CHANNEL", values="channel", **rest)


def path(help: str, default: str = "", **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a file or directory."""
    return Option("path", help, default, **rest)


def paths(help: str, **rest: Any) -> Any:  # noqa: A002
    """Declare a repeatable option for files or directories."""
    return Option("path", help, (), multiple=True, **rest)


def addresses(help: str, *default: str, **rest: Any) -> Any:  # noqa: A002
    """Declare a repeatable option for TCP addresses."""
    return Option("address", help, default, multiple=True, **rest)


def urls(help: str, *default: str, **rest: Any) -> Any:  # noqa: A002
    """Declare a repeatable option for HTTP addresses."""
    return Option("url", help, default, multiple=True, **rest)


def choice(help: str, *choices: str, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for one of some words. Without ``default``, the first is the default."""
    return Option("choice", help, rest.pop("default", choices[0]), choices=choices, **rest)


def integer(help: str, default: int, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a whole number. Here and below, the minimum is 0 by default."""
    return Option("integer", help, default, **{"minimum": 0, **rest})


def number(help: str, default: float, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a number."""
    return Option("number", help, default, **{"minimum": 0.0, **rest})


def duration(help: str, default: float, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a time in seconds."""
    return Option("duration", help, default, **{"minimum": 0.0, **rest})


def size(help: str, default: int, **rest: Any) -> Any:  # noqa: A002
    """Declare an option for a number of bytes."""
    return Option("size", help, default, **{"minimum": 0, **rest})


def _regular_expression(value: str) -> None:
    compiled(value)


def flag_name(name: str) -> str:
    """Return the name of the flag: ``max_in_flight`` becomes ``max-in-flight``."""
    return name.replace("_", "-")


def contradiction(one: str, two: str) -> ConfigError:
    """Return the error for two options that exclude each other."""
    both = f"--{flag_name(one)} and --{flag_name(two)}"
    return ConfigError(f"{both} exclude each other: choose one", options=(one, two))


CLASSES: list[type[Options]] = []
"""All classes of options. Each class adds itself when it is defined."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """Base of all option classes, immutable; raises ConfigError for invalid values."""

    title: ClassVar[str] = ""
    """Heading of the options in help; if empty, the heading of the subclass."""
    shared: ClassVar[bool] = False
    """Whether all commands share one environment variable, NSQTOOLS_<OPTION>, for each option."""
    opt_flag: ClassVar[str] = ""
    """The flag for ``name,value`` texts with go-nsq's names, if the class has one."""
    ignored: ClassVar[dict[str, Option]] = {}
    """Options by name that these texts may set without effect. Their values are checked."""
    _declared: ClassVar[dict[str, Option]] = {}

    def __init_subclass__(cls) -> None:
        cls._declared = {}
        for each in cls.__mro__:
            for name, value in vars(each).items():
                if isinstance(value, Option):
                    cls._declared.setdefault(name, value)
        CLASSES.append(cls)

    def __init__(self, **values: Any) -> None:
        for name in values.keys() - (known := self.declared()):
            raise TypeError(f"{type(self).__name__} has no option {name!r}{nearest(name, known)}")
        for name, declared in self.declared().items():
            value = vars(self)[name] = values.get(name, declared.default)
            if declared.multiple:
                check_list(name, value, str)
            try:
                for each in value if declared.multiple else (value,):
                    declared.check(each)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}", options=(name,)) from None
        for name, declared in self.declared().items():
            for other in filter(self._is_given, declared.excludes):
                if self._is_given(name):
                    raise contradiction(name, other)
        self.validate()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be set")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __repr__(self) -> str:
        hidden = {name for name, each in self.declared().items() if each.secret}
        shown = (
            f"{name}={MASK if value and name in hidden else repr(value)}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def _is_given(self, name: str) -> bool:
        value = getattr(self, name)
        return bool(value) and value != self.declared()[name].default

    def validate(self) -> None:
        """Raise ConfigError if options contradict each other."""

    def check_complete(self) -> None:
        """Raise ConfigError if an option needed for a run is missing; a file may omit it."""
        for name, declared in self.declared().items():
            instead = declared.instead
            given = getattr(self, name) or (instead and getattr(self, instead))
            if declared.required and not given:
                more = f"or --{flag_name(instead)}" if instead else declared.placeholder
                text = f"--{flag_name(name)} {more}".rstrip() + " is required"
                raise ConfigError(text, options=(name, instead) if instead else (name,))
            if declared.needs and self._is_given(name) and not getattr(self, declared.needs):
                text = f"--{flag_name(name)}: needs --{flag_name(declared.needs)}"
                raise ConfigError(text, options=(name,))

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Return the options by name; a class's own options hide the options of its bases."""
        return cls._declared

    @classmethod
    def spelled(cls, name: str) -> str:
        """Return how a command line sets an option: its flag, or the pairs' flag and its name."""
        if cls.declared()[name].flag or not cls.opt_flag:
            return f"--{flag_name(name)}"
        return f"--{cls.opt_flag} {name}"

    @classmethod
    def shares(cls, declared: Option) -> bool:
        """Whether all commands share the environment variable and TOML key of this option."""
        return cls.shared and not declared.own

    def with_values(self, **values: Any) -> Self:
        """Return a checked copy with some values replaced."""
        return type(self)(**{**vars(self), **values})
