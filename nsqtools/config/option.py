"""What an option is: its kind, range and help, and how its text becomes a value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_list, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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

C = TypeVar("C", bound="Options")

MASK = "********"
"""What is shown of a secret."""

_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
URL_SECRETS = r"(?<=//)[^/@]+(?=@)|(?<=\?)[^#]+"
"""What is secret in a URL: user and password, and the query."""
_ANY_PORT = 1  # whichever the option's default is
_LONGEST = 40  # characters of a number that is meant
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as ``1h30m``, ``500ms`` or ``0``; raises ConfigError."""
    text = text.strip()
    if text == "0":
        return 0.0
    total, end = 0.0, 0
    while len(text) < _LONGEST and (match := _DURATION.match(text, end)):
        total += float(match[1]) * _DURATION_UNITS[match[2]]
        end = match.end()
    if not text or end != len(text):
        raise ConfigError(f"{text!r} is not a duration: write it with units, as in 500ms or 1h30m")
    return total


def format_duration(seconds: float) -> str:
    """A short text that ``parse_duration`` reads as these seconds, to the nanosecond."""
    for unit, length in (("ns", 1e-6), ("us", 1e-3), ("ms", 1.0)):
        if 0 < seconds < length:
            return f"{round(seconds / _DURATION_UNITS[unit], 3):g}{unit}"
    text = ""
    for unit, length in (("h", 3600), ("m", 60)):
        count = int(seconds // length)
        seconds -= count * length
        text += f"{count}{unit}" if count else ""
    rest = f"{seconds:.9f}".rstrip("0").rstrip(".")
    return text if text and rest == "0" else f"{text}{rest}s"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 message``, ``2,000 messages``; the plural ends in s unless it is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def parse_size(text: str) -> int:
    """Bytes of ``64MiB`` (powers of 1024), ``64M`` (the same) or ``64MB`` (powers of 1000)."""
    match = _SIZE.fullmatch(text.strip())
    if text.strip() == "-1":
        return -1  # "none", where the minimum allows it
    if not match or len(text) > _LONGEST:
        raise ConfigError(f"{text!r} is not a size: write it as in 65536, 64KiB or 5MB")
    decimal = bool(match[2]) and match[3].lower() == "b"
    return int(float(match[1]) * (1000 if decimal else 1024) ** _SIZE_POWERS[match[2].lower()])


def format_size(count: int) -> str:
    """The shortest text that ``parse_size`` reads as this many bytes."""
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def _parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1" | "yes" | "on" | "t":
            return True
        case "false" | "0" | "no" | "off" | "f":
            return False
    raise ConfigError(f"{text!r} is not a boolean: write true or false")


_PARSERS: Mapping[Kind, Callable[[str], Any]] = {  # of others the text itself
    "flag": _parse_bool,
    "count": int,
    "integer": int,
    "number": float,
    "duration": parse_duration,
    "size": parse_size,
}


TYPES: Mapping[Kind, tuple[Any, str]] = {
    "flag": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "count": (int, "a whole number"),
    "size": (int, "a size"),
    "number": ((int, float), "a number"),
    "duration": ((int, float), "a number of seconds"),
}
"""The types of values, in words too; of the kinds that are not here it is a text."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option besides its name, type and default."""

    kind: Kind
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    multiple: bool = False
    short: str = ""
    metavar: str = ""
    flag: bool = True
    secret: bool = False
    hides: str = ""
    """A pattern of what is secret in a value that is not as a whole."""
    lines: bool = False
    """Whether several values are the lines of a variable, not its words."""
    alias: str = ""
    values: Values = ""
    """What the values name, where a server or the configuration file knows them: for TAB."""
    own: bool = False
    """Whether it is its command's own in a class whose options are shared."""
    required: bool = False
    in_file: bool = True
    excludes: tuple[str, ...] = ()
    """Options of the same class that contradict it; their weaker values give way to its own."""
    outranks: tuple[str, ...] = ()
    """Options of the same class that may stand beside it; weaker values of them, and of it, give
    way to stronger ones."""
    default_note: str = ""
    """What is taken without a value, where that depends on other things."""

    def parse(self, text: str) -> Any:
        """One value from its text; raises ConfigError without naming the option."""
        if self.values and not text:
            raise ConfigError(f"expected the name of a {self.values}, found nothing")
        try:
            value = _PARSERS.get(self.kind, str)(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not {TYPES[self.kind][1]}") from None
        if self.kind == "choice" and value.lower() in self.choices:
            value = value.lower()
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError if the value is not one of those that are allowed."""
        types, expected = TYPES.get(self.kind, (str, "a text"))
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
        if self.kind not in ("integer", "number", "duration", "size"):
            return
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
    def range(self) -> str:
        """``low to high``, ``at least low``, ``at most high``, or nothing."""
        low = None if self.minimum is None else self.show(self.minimum)
        high = None if self.maximum is None else self.show(self.maximum)
        if low is not None and high is not None:
            return f"{low} to {high}"
        if low is not None:
            return f"at least {low}"
        return f"at most {high}" if high is not None else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing when no known word is near."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def option(default: Any, kind: Kind, help: str, **rest: Any) -> Any:  # noqa: A002 - click's word
    """A dataclass field that is an option; ``rest`` as in Option."""
    return field(default=default, metadata={"option": Option(kind, help, **rest)})


def texts(help: str, *, metavar: str, **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of texts."""
    return option((), "text", help, multiple=True, metavar=metavar, **rest)


def addresses(help: str, *, default: tuple[str, ...] = (), **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of TCP addresses."""
    return option(default, "address", help, multiple=True, metavar="HOST:PORT", **rest)


def urls(help: str, *, default: tuple[str, ...] = (), **rest: Any) -> Any:  # noqa: A002
    """A repeatable option of HTTP addresses."""
    return option(default, "url", help, multiple=True, metavar="HOST:PORT", **rest)


def flag_name(name: str) -> str:
    """``max_in_flight`` to ``max-in-flight``."""
    return name.replace("_", "-")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_class(cls: type[C]) -> type[C]:
    """A frozen dataclass with slots and keywords only, whose methods are those of Options.

    To compile them anew for each class would take a fifth of the time of a TAB press.
    """
    decorate = dataclass(
        frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False, match_args=False
    )
    return decorate(cls)


@option_class
class Options:
    """Base of all option classes. Raises ConfigError when made with a value out of range."""

    title: ClassVar[str] = "Options"
    shared: ClassVar[bool] = False
    """Whether one environment variable, NSQTOOLS_<OPTION>, serves all commands."""
    opt_flag: ClassVar[str] = ""
    """The flag that takes go-nsq's ``name,value`` texts for this class, if it has one."""

    def __init__(self, **values: Any) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, values.pop(each.name, each.default))
        if values:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(values)}")
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if declared.multiple:
                check_list(f"--{flag_name(name)}", value, str)
            try:
                for each_value in value if declared.multiple else (value,):
                    declared.check(each_value)
            except ConfigError as error:
                raise ConfigError(f"--{flag_name(name)}: {error}") from None
        self.validate()

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.declared()}
        hidden = {name for name, each in self.declared().items() if each.secret and values[name]}
        shown = (f"{n}={MASK if n in hidden else repr(value)}" for n, value in values.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def validate(self) -> None:
        """Raise ConfigError if options contradict each other."""

    def check_complete(self) -> None:
        """Raise ConfigError if what a run needs is missing: not asked of a file that is checked."""

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Options by field name, in order of declaration."""
        return {f.name: f.metadata["option"] for f in fields(cls)}

    @classmethod
    def default(cls, name: str, presets: Mapping[str, Any]) -> Any:
        """The default of an option, for a command that has ``presets`` of its own."""
        return presets.get(name, cls.__dataclass_fields__[name].default)

    @classmethod
    def excluded_by(cls, name: str) -> set[str]:
        """The options that contradict one, whichever of them says so."""
        declared = cls.declared()
        return {n for n, each in declared.items() if name in each.excludes} | {
            *declared[name].excludes
        }

    @classmethod
    def silenced_by(cls, name: str) -> set[str]:
        """The options whose weaker values a value of this one makes void."""
        declared = cls.declared()
        beside = {n for n, each in declared.items() if name in each.outranks}
        return cls.excluded_by(name) | beside | {*declared[name].outranks}

    @classmethod
    def shares(cls, declared: Option) -> bool:
        """Whether an option of this class has a variable and a key for all commands."""
        return cls.shared and not declared.own

    @classmethod
    def pairs_option(cls) -> Option:
        """The option ``opt_flag``."""
        return Option(
            "text",
            "Set an option by go-nsq's name, with or without a flag; may be repeated.",
            multiple=True,
            metavar="NAME,VALUE",
        )

    @classmethod
    def parse_pairs(cls, pairs: Iterable[str], where: str) -> dict[str, Any]:
        """Values from go-nsq's ``name,value`` texts (``config_flag.go``); a bare name is true.

        Raises ConfigError for an unknown name, with the nearest known one; ``where`` begins it.
        """
        known = {}
        for name, declared in cls.declared().items():
            if not declared.multiple:
                known[name] = known[declared.alias or name] = (name, declared)
        values = {}
        for pair in pairs:
            given, comma, text = pair.partition(",")
            key = given.strip().replace("-", "_")
            if key not in known:
                name, equals, _ = given.partition("=")  # what follows may be a secret
                near = "; write it with a comma, as NAME,VALUE" if equals else nearest(key, known)
                raise ConfigError(f"{where}: unknown option {name!r}{near}")
            name, declared = known[key]
            try:
                values[name] = declared.parse(text if comma else "true")
            except ConfigError as error:
                raise ConfigError(f"{where} {given}: {error}") from None
        return values

    def with_values(self, **values: Any) -> Self:
        """A checked copy with some values replaced."""
        return replace(self, **values)
