"""Patterns for topic names: regular expressions as Go's ``regexp`` reads them, for Python.

Only few characters occur in a name. So a character, a class or a dot becomes the set of those that
it matches, with the flags where it stands, and the expression made for Python has no other class,
no flag and no group that captures. Lookaround, which Go lacks, is Python's. What else differs from
Go's syntax is an error.
"""

from __future__ import annotations

import re
import string
import unicodedata
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_LETTERS, _DIGITS = string.ascii_letters, string.digits
_ALL = frozenset(f"{_LETTERS}{_DIGITS}._-#")  # the last one in #ephemeral
_MOST = 1000
"""Maximum number of repetitions, as in Go."""
_MAX_DEPTH = 100
_LAST = 0x10FFFF
_NEVER = "(?!)"

_POSIX = {
    "alnum": _LETTERS + _DIGITS,
    "alpha": _LETTERS,
    "ascii": "".join(_ALL),
    "blank": "",
    "cntrl": "",
    "digit": _DIGITS,
    "graph": "".join(_ALL),
    "lower": string.ascii_lowercase,
    "print": "".join(_ALL),
    "punct": "._-#",
    "space": "",
    "upper": string.ascii_uppercase,
    "word": _LETTERS + _DIGITS + "_",
    "xdigit": string.hexdigits,
}
_PERL = {"d": _DIGITS, "s": "", "w": _LETTERS + _DIGITS + "_"}
_CONTROL = dict(zip("afnrtv", "\a\f\n\r\t\v", strict=True))
_CATEGORIES = (
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So"
)
_PROPERTIES = {
    **{
        name: "".join(each for each in _ALL if unicodedata.category(each).startswith(name))
        for name in f"{_CATEGORIES} Z Zl Zp Zs".split()
    },
    "Any": "".join(_ALL),
    "Common": _DIGITS + "._-#",
    "Latin": _LETTERS,
}
r"""What \p{...} may name; no other script occurs in names."""

_COUNTS = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}")
_NAMED = re.compile(r"\(\?P?<\w+>", re.ASCII)
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_LOOKS = re.compile(r"\(\?<?[=!]")
_CLASS = re.compile(r"\[:(\^?)(.*?):\]", re.DOTALL)
_PROPERTY = re.compile(r"\\([pP])(?:\{(\^?)([^}]*)\}|([^{]))", re.DOTALL)
_CHARACTER = re.compile(
    r"\\(?:x\{(?P<braced>[0-9A-Fa-f]+)\}|x(?P<hex>[0-9A-Fa-f]{2})|(?P<octal>0[0-7]{0,2}|[1-7][0-7]{1,2})"
    r"|(?P<control>[afnrtv])|(?P<self>[\x00-/:-@\[-`{-\x7f]))"
)
_FOLDED = {"\u017f": "s", "\u212a": "k"}
"""Characters that are equal to a letter of a name but for their case."""


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern whose ``search`` finds in a topic name what Go's ``MatchString`` finds.

    Raises ConfigError with the faulty part.
    """
    parser = _Parser(pattern)
    text = parser.alternatives(fold=False)
    if parser.rest:
        raise parser.error("an unexpected )")
    try:
        return re.compile(text, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise parser.error(str(error)) from None


def _expression(characters: AbstractSet[str]) -> str:
    """Return an expression for one of these characters."""
    if len(characters) < 2:
        return re.escape("".join(characters)) or _NEVER
    found = "".join(sorted(characters - {"-"}))
    for run in (string.ascii_uppercase, string.ascii_lowercase, _DIGITS):
        found = found.replace(run, f"{run[0]}-{run[-1]}")
    return f"[{found}{'-' * ('-' in characters)}]" if characters != _ALL else "."


def _with_cases(characters: AbstractSet[str]) -> AbstractSet[str]:
    return characters | {each.swapcase() for each in characters}


def _between(low: str, high: str, *, fold: bool) -> AbstractSet[str]:
    """Return the characters of names in a range."""
    found = {each for each in _ALL if low <= each <= high}
    if not fold:
        return found
    return _with_cases(found | {to for each, to in _FOLDED.items() if low <= each <= high})


class _Parser:
    """Reads an expression from its beginning to its end, as Go's ``regexp/syntax`` does.

    ``rest`` is not read yet. With ``fold``, the case of letters does not matter.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = self.rest = pattern
        self._repeated_at = ""  # the rest behind the last repetition
        self._depth = 0

    def error(self, what: str) -> ConfigError:
        """Return the error for an expression with this fault."""
        return ConfigError(
            f"{self._pattern!r} is not a valid regular expression: {what}; the syntax is Go's"
        )

    def alternatives(self, *, fold: bool) -> str:
        """Read alternatives up to a closing parenthesis, and return them for Python."""
        branches: list[list[str]] = [[]]
        while self.rest and self.rest[0] != ")":
            flags = _FLAGS.match(self.rest)
            if self.rest[0] == "|":
                self._take(1)
                branches.append([])
            elif flags and flags[3] == ")":
                self._take(flags.end())
                fold = _fold_after(flags, fold=fold)
            elif self.rest.startswith(r"\Q"):
                quoted, _, self.rest = self.rest[2:].partition(r"\E")
                branches[-1] += [_expression(_between(c, c, fold=fold)) for c in quoted]
            elif self.rest[0] in "*+?" or _COUNTS.match(self.rest):
                self._repeat(branches[-1])
            else:
                branches[-1].append(self._atom(fold=fold))
        return "|".join(map("".join, branches))

    def _take(self, count: int) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def _repeat(self, atoms: list[str]) -> None:
        """Repeat the last atom; whether as often as possible does not matter for a match."""
        counts = _COUNTS.match(self.rest)
        again = bool(self._repeated_at) and self.rest == self._repeated_at
        sign = self._take(counts.end() if counts else 1)
        if not atoms:
            raise self.error(f"nothing to repeat before {sign}")
        if again:
            raise self.error(f"a repetition of a repetition, {sign}")
        if counts:
            least, most = int(counts[1]), int(counts[3] or counts[1])
            if max(least, most) > _MOST or least > most:
                raise self.error(f"{sign}: expected at most {_MOST} repetitions, in order")
        if self.rest.startswith("?"):
            self._take(1)
        self._repeated_at = self.rest
        atoms[-1] = f"(?:{atoms[-1]}){sign}"

    def _atom(self, *, fold: bool) -> str:
        match self.rest[0]:
            case "(":
                return self._group(fold=fold)
            case "[":
                return _expression(self._class(fold=fold))
            case "\\":
                return self._escape(fold=fold)
            case "." | "^" | "$":
                return {".": ".", "^": r"\A", "$": r"\Z"}[self._take(1)]
        char = self._take(1)
        return _expression(_between(char, char, fold=fold))

    def _group(self, *, fold: bool) -> str:
        """Read a group: it captures nothing, as only the match counts."""
        opening = "(?:"
        if look := _LOOKS.match(self.rest):
            opening = self._take(look.end())
        elif named := _NAMED.match(self.rest):
            self._take(named.end())
        elif flags := _FLAGS.match(self.rest):
            self._take(flags.end())
            fold = _fold_after(flags, fold=fold)
        elif self.rest.startswith("(?"):
            raise self.error(f"an unknown kind of group, {self.rest[:4]}")
        else:
            self._take(1)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} groups in groups")
        inside = self.alternatives(fold=fold)
        self._depth -= 1
        if not self._take(1):
            raise self.error("a missing )")
        return f"{opening}{inside})"

    def _escape(self, *, fold: bool) -> str:
        r"""Read an escape outside of a class; \Z is Python's."""
        char = self.rest[1:2]
        if char in ("A", "b", "B", "z", "Z"):
            self._take(2)
            return rf"\{char}" if char != "z" else r"\Z"
        named = self._named_class(fold=fold)
        if named is None:
            char = self._character()
            named = _between(char, char, fold=fold)
        return _expression(named)

    def _class(self, *, fold: bool) -> AbstractSet[str]:
        """Read a class in brackets."""
        self._take(1)
        is_negated = self.rest.startswith("^")
        self._take(is_negated)
        found: set[str] = set()
        is_first = True
        while is_first or not self.rest.startswith("]"):
            is_first = False
            named = self._named_class(fold=fold, is_inside=True)
            if named is None:
                low = high = self._character()
                if self.rest[:1] == "-" and self.rest[1:2] not in ("", "]"):
                    self._take(1)
                    high = self._character()
                if high < low:
                    raise self.error(f"the range {low}-{high} is out of order")
                named = _between(low, high, fold=fold)
            found |= named
        self._take(1)
        return _ALL - found if is_negated else found

    def _named_class(self, *, fold: bool, is_inside: bool = False) -> AbstractSet[str] | None:
        r"""Read [:alpha:], \pL or \d; return None if there is none."""
        is_negated, name, known = False, "", _POSIX
        if is_inside and (posix := _CLASS.match(self.rest)):
            is_negated, name = bool(posix[1]), posix[2]
            taken = self._take(posix.end())
        elif unicode := _PROPERTY.match(self.rest):
            is_negated, name = (
                (unicode[1] == "P") != bool(unicode[2]),
                unicode[3] or unicode[4] or "",
            )
            taken, known = self._take(unicode.end()), _PROPERTIES
        elif self.rest[:1] == "\\" and self.rest[1:2].lower() in _PERL:
            is_negated, name = self.rest[1].isupper(), self.rest[1].lower()
            taken, known = self._take(2), _PERL
        else:
            return None
        if name not in known:
            raise self.error(f"{taken} is unknown, or no character of a topic's name is in it")
        found: AbstractSet[str] = frozenset(known[name])
        found = _with_cases(found) if fold else found
        return _ALL - found if is_negated else found

    def _character(self) -> str:
        """Read a character or an escape for one."""
        if not self.rest:
            raise self.error("a missing ]")
        if self.rest[0] != "\\":
            return self._take(1)
        escape = _CHARACTER.match(self.rest)
        if not escape:
            raise self.error(f"the unknown escape {self.rest[:2]}")
        self._take(escape.end())
        match escape.lastgroup, escape[escape.lastgroup or 0]:
            case "control", text:
                return _CONTROL[text]
            case "self", text:
                return text
            case kind, text:
                value = int(text, 8 if kind == "octal" else 16)
                if value > _LAST:
                    raise self.error(f"{escape[0]} is no character")
                return chr(value)


def _fold_after(flags: re.Match[str], *, fold: bool) -> bool:
    return (fold or "i" in flags[1]) and "i" not in (flags[2] or "")
