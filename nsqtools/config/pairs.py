"""``name,value`` texts as in go-nsq, for options with and without a flag (``config_flag.go``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.config.option import Option
from nsqtools.config.units import nearest
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqtools.config.option import Options

PAIRS = Option(
    "text",
    "Set an option by its name in go-nsq, even an option without a flag; may be repeated.",
    (),
    multiple=True,
    metavar="NAME,VALUE",
)
"""The option for these pairs. Its flag is the ``opt_flag`` of the class."""


def pairs_key(cls: type[Options]) -> str:
    """Return the parameter name of the option for pairs, or an empty text if the class has none."""
    return cls.opt_flag.replace("-", "_")


def pair_name(pair: str) -> str:
    """Return the name of the option in a pair."""
    return pair.partition(",")[0].strip().replace("-", "_")


def ignored_pairs(cls: type[Options], pairs: Iterable[str]) -> list[str]:
    """Return the names of accepted pairs without effect."""
    return [name for name in map(pair_name, pairs) if name in cls.ignored]


def parse_pairs(cls: type[Options], pairs: Iterable[str], where: str) -> dict[str, Any]:
    """Return the values set by pairs. A name without a value means true.

    Values of ``cls.ignored`` are checked, but not returned. Raises ConfigError, beginning with
    ``where``, for an unknown name or an invalid value.
    """
    known = {name: (name, declared) for name, declared in cls.ignored.items()}
    for name, declared in cls.declared().items():
        if not declared.multiple:
            known[name] = known[declared.alias or name] = (name, declared)
    values = {}
    for pair in pairs:
        given, comma, text = pair.partition(",")
        key = pair_name(pair)
        if key not in known:
            name, equals, _ = given.partition("=")  # the text after = may be a secret
            near = "; write it with a comma, as NAME,VALUE" if equals else nearest(key, known)
            raise ConfigError(f"{where}: unknown option {name!r}{near}")
        name, declared = known[key]
        try:
            values[name] = declared.parse(text if comma else "true")
        except ConfigError as error:
            raise ConfigError(f"{where} {given}: {error}") from None
    return {name: value for name, value in values.items() if name not in cls.ignored}
