"""What an option is: its kind, range and help, and how its text becomes a value.

A class of options is a concern. An option is declared where the class has it::

    class StopOptions(Options):
        title = "When to stop"
        count: int = integer("Stop after this many messages.", 0, short="n")

Several classes may have an option: they extend a class that has it, or name one declaration. The
class whose default or help is another says so with ``like``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
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

from nsqtools.config.units import (
    format_duration,
    format_size,
    nearest,
    parse_duration,
    parse_size,
)
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
"""An address is HOST:PORT or HOST; a url may have a scheme before it and a path behind."""

Values = Literal["", "topic", "channel", "node", "profile"]

MASK = "********"
"""What is shown of a secret."""

URL_SECRETS = r"(?<=//)[^/@]+(?=@)|(?<=\?)[^#]+"
"""What is secret in a URL: user and password, and the query."""
_ANY_PORT = 1  # whichever the option's default is


def _parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1" | "yes" | "on" | "t":
            return True
        case "false" | "0" | "no" | "off" | "f":
            return False
    raise ConfigError(f"{text!r} is not a boolean: write true or false")


class ValueKind(NamedTuple):
    """What the values of a kind are: ``expected`` says their types in words."""

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
    "integer": ValueKind("N", int, int, "a whole number"),
    "number": ValueKind("NUMBER", float, (int, float), "a number"),
    "duration": ValueKind("DURATION", parse_duration, (int, float), "a number of seconds"),
    "size": ValueKind("SIZE", parse_size, int, "a size"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option besides its name and type."""

    kind: Kind
    help: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    multiple: bool = False
    short: str = ""
    metavar: str = ""
    flag: bool = True
    secret: bool = False
    hides: str = ""
    """A pattern of the secret part of a value that is not secret as a whole."""
    lines: bool = False
    """Whether several values are the lines of a variable, not its words."""
    alias: str = ""
    """Another name, for its flag if it has one, and among go-nsq's."""
    values: Values = ""
    """What the values name, where a server or the configuration file knows them: for TAB."""
    own: bool = False
    """Whether it is its command's own in a class whose options are shared."""
    required: bool = False
    instead: str = ""
    """The option of the same class that does instead of a required one."""
    in_file: bool = True
    excludes: tuple[str, ...] = ()
    """Options of the same class that contradict it; their weaker values give way to its own."""
    outranks: tuple[str, ...] = ()
    """Options of the same class that may stand beside it; weaker values of them, and of it, give
    way to stronger ones."""
    needs: str = ""
    """The option of the same class without which it has no meaning."""
    default_note: str = ""
    """What is taken without a value, where that depends on other things."""
    rule: Callable[[Any], object] | None = None
    """Raises ConfigError for a value that kind and range allow and that cannot be."""

    def parse(self, text: str) -> Any:
        """One value from its text; raises ConfigError without naming the option."""
        if self.values and not text:
            raise ConfigError(f"expected the name of a {self.values}, found nothing")
        try:
            value = KINDS[self.kind].parse(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not {KINDS[self.kind].expected}") from None
        if self.kind == "choice" and value.lower() in self.choices:
            value = value.lower()
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError if the value is not one of those that are allowed."""
        types, expected = KINDS[self.kind].types, KINDS[self.kind].expected
        if not isinstance(value, types) or isinstance(value, bool) != (types is bool):
            raise ConfigError(f"expected {expected}, found {type(value).__name__}")
        if self.choices and value not in self.choices:
            near = nearest(str(value), self.choices)
            known = ", ".join(filter(None, self.choices))
            raise ConfigError(f"{value!r} is not one of {known}{near}")
        if self.values in ("topic", "channel") and value:
            check_name(self.values, value)
        if self.kind in ("address", "url") and value:
            _, _, place = value.rpartition("://") if self.kind == "url" else ("", "", value)
            Address.parse(re.split("[/?]", place)[0] if self.kind == "url" else place, _ANY_PORT)
        if self.kind in ("integer", "number", "duration", "size"):
            self._check_range(value)
        if self.rule and value != self.default:
            self.rule(value)

    def _check_range(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        # Said this way nan is out of range too.
        within = (low is None or value >= low) and (high is None or value <= high)
        if not within or value == float("inf"):
            raise ConfigError(f"{self.show(value)} is out of range: expected {self.range}")

    def show(self, value: Any) -> str:
        """The value as a user would write it; a secret is masked."""
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
    def placeholder(self) -> str:
        """What stands for a value in help: ``HOST:PORT``, ``[text|json]``, ``N``."""
        if self.metavar:
            return self.metavar
        choices = "|".join(filter(None, self.choices))
        return f"[{choices}]" if choices else KINDS[self.kind].placeholder

    @property
    def range(self) -> str:
        """``low to high``, ``at least low``, ``at most high``, or nothing."""
        bounds = self.minimum, self.maximum
        low, high = ("" if bound is None else self.show(bound) for bound in bounds)
        if low and high:
            return f"{low} to {high}"
        return f"at least {low}" if low else high and f"at most {high}"


def like(declared: Any, **changes: Any) -> Any:
    """An option as another class has it, ``Class.name``, with some things said anew."""
    return replace(declared, **changes)


def option(kind: Kind, help: str, default: Any, **rest: Any) -> Any:  # noqa: A002 - click's word
    """An option of any kind; ``rest``, here and below, as in Option."""
    return Option(kind, help, default, **rest)


def flag(help: str, *, default: bool = False, **rest: Any) -> Any:  # noqa: A002
    """Something to switch on or off."""
    return Option("flag", help, default, **rest)


def text(help: str, default: str = "", **rest: Any) -> Any:  # noqa: A002
    """A text, with ``metavar`` TEXT unless it says better."""
    return Option("text", help, default, **rest)


def texts(help: str, **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of texts."""
    return Option("text", help, (), multiple=True, **rest)


def topic_name(help: str, **rest: Any) -> Any:  # noqa: A002
    """The name of a topic."""
    return text(help, metavar="TOPIC", values="topic", **rest)


def channel_name(help: str, **rest: Any) -> Any:  # noqa: A002
    """The name of a channel."""
    return text(help, metavar="CHANNEL", values="channel", **rest)


def path(help: str, default: str = "", **rest: Any) -> Any:  # noqa: A002
    """A file or a directory."""
    return Option("path", help, default, **rest)


def paths(help: str, **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of files or directories."""
    return Option("path", help, (), multiple=True, **rest)


def addresses(help: str, *default: str, **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of TCP addresses."""
    return Option("address", help, default, multiple=True, **rest)


def urls(help: str, *default: str, **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of HTTP addresses."""
    return Option("url", help, default, multiple=True, **rest)


def choice(help: str, *choices: str, **rest: Any) -> Any:  # noqa: A002
    """One of a few words, the first unless there is a ``default``."""
    return Option("choice", help, rest.pop("default", choices[0]), choices=choices, **rest)


def integer(help: str, default: int, **rest: Any) -> Any:  # noqa: A002
    """A whole number, at least 0 unless ``minimum`` says otherwise; so are those below."""
    return Option("integer", help, default, **{"minimum": 0, **rest})


def number(help: str, default: float, **rest: Any) -> Any:  # noqa: A002
    """A number."""
    return Option("number", help, default, **{"minimum": 0.0, **rest})


def duration(help: str, default: float, **rest: Any) -> Any:  # noqa: A002
    """A time in seconds."""
    return Option("duration", help, default, **{"minimum": 0.0, **rest})


def size(help: str, default: int, **rest: Any) -> Any:  # noqa: A002
    """A number of bytes."""
    return Option("size", help, default, **{"minimum": 0, **rest})


def flag_name(name: str) -> str:
    """``max_in_flight`` to ``max-in-flight``."""
    return name.replace("_", "-")


CLASSES: list[type[Options]] = []
"""All classes of options there are: each adds itself as it is defined, so none can be forgotten."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """Base of all option classes. Raises ConfigError when made with a value out of range.

    An instance cannot be changed.
    """

    title: ClassVar[str] = ""
    """The heading of its options in help; without, that of the class that extends it."""
    shared: ClassVar[bool] = False
    """Whether one environment variable, NSQTOOLS_<OPTION>, serves all commands."""
    opt_flag: ClassVar[str] = ""
    """The flag that takes go-nsq's ``name,value`` texts for this class, if it has one."""
    _declared: ClassVar[dict[str, Option]] = {}

    def __init_subclass__(cls) -> None:
        cls._declared = {}
        for each in cls.__mro__:
            for name, value in vars(each).items():
                if isinstance(value, Option):
                    cls._declared.setdefault(name, value)
        CLASSES.append(cls)

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - self.declared():
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}")
        for name, declared in self.declared().items():
            value = vars(self)[name] = values.get(name, declared.default)
            if declared.multiple:
                check_list(f"--{flag_name(name)}", value, str)
            try:
                for each in value if declared.multiple else (value,):
                    declared.check(each)
            except ConfigError as error:
                raise ConfigError(f"--{flag_name(name)}: {error}") from None
        for name, declared in self.declared().items():
            for other in filter(self._is_given, declared.excludes):
                if self._is_given(name):
                    both = f"--{flag_name(name)} and --{flag_name(other)}"
                    raise ConfigError(f"{both} exclude each other: choose one")
        self.validate()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is never changed: {name}")

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
        """Raise ConfigError if what a run needs is missing: not asked of a file that is checked."""
        for name, declared in self.declared().items():
            instead = declared.instead
            if declared.required and not (
                getattr(self, name) or (instead and getattr(self, instead))
            ):
                more = f"or --{flag_name(instead)}" if instead else declared.placeholder
                raise ConfigError(f"--{flag_name(name)} {more}".rstrip() + " is required")
            if declared.needs and self._is_given(name) and not getattr(self, declared.needs):
                raise ConfigError(f"--{flag_name(name)}: needs --{flag_name(declared.needs)}")

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Options by name, those of the class itself before those of its bases."""
        return cls._declared

    @classmethod
    def spelled(cls, name: str) -> str:
        """How a command line sets an option: by its flag, or by the one that takes pairs."""
        if cls.declared()[name].flag or not cls.opt_flag:
            return f"--{flag_name(name)}"
        return f"--{cls.opt_flag} {name}"

    @classmethod
    def shares(cls, declared: Option) -> bool:
        """Whether an option of this class has a variable and a key for all commands."""
        return cls.shared and not declared.own

    def with_values(self, **values: Any) -> Self:
        """A checked copy with some values replaced."""
        return type(self)(**{**vars(self), **values})
