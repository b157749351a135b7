"""Patterns for topic names mean what they mean in Go: each row was tried with Go's regexp."""

import re
from itertools import product

import pytest

from nsqtools.config.topicpattern import compiled
from nsqtools.errors import ConfigError

_NAMES = "a Z k S 7 _ - . ab aB a-b a.b pat-a-x pat-1-x Order-1 x#ephemeral"
NAMES = _NAMES.split()

# Go's syntax, in the order of its documentation: the pattern, and the names that it finds
FOUND = {
    "a.b": "a-b a.b",
    "^[ak]$": "a k",
    "^[^ak]$": "Z S 7 _ - .",
    "^[]a]$": "a",
    "^[a-]$": "a -",
    r"^\d$": "7",
    r"^\D$": "a Z k S _ - .",
    r"\s": "",
    r"^\S$": "a Z k S 7 _ - .",
    r"^\W$": "- .",
    "pat-[[:alpha:]]-x": "pat-a-x",
    "^[[:^alpha:]]$": "7 _ - .",
    "^[^[:space:][:alpha:]]$": "7 _ - .",
    "^[[:word:]-]$": "a Z k S 7 _ -",
    r"pat-\pN": "pat-1-x",
    r"^\PL$": "7 _ - .",
    r"^\p{Lu}$": "Z S",
    r"^\P{^Ll}$": "a k",
    r"^\p{Latin}$": "a Z k S",
    r"^[\pN\p{Pd}]$": "7 -",
    "^a|Z": "a Z ab aB a-b a.b",
    "^ab??$": "a ab",
    "^.{3}$": "a-b a.b",
    "^.{2,3}?$": "ab aB a-b a.b",
    "x{,2}": "",
    "(?P<n>ab)|(?<m>Z)": "Z ab",
    "(?i)AB": "ab aB",
    "^a(?i)b$": "ab aB",
    "^(?i:A)b$": "ab",
    "^(?i)a(?-i)b$": "ab",
    "^(a(?i)b|z)$": "Z ab aB",
    "(?i)^[^s]$": "a Z k 7 _ - .",
    "(?i)^[[:^lower:]]$": "7 _ - .",
    "(?i)^\u017f$": "S",
    "(?U)^a.*?b$": "ab a-b a.b",
    "(?ms)^a$": "a",
    r"\Aa\z": "a",
    r"a\b.": "a-b a.b pat-a-x",
    r"^a\B.": "ab aB",
    r"\a|\f|\n|\x{10FFFF}": "",
    r"^\141$|^\x5A$|^\x{6B}$": "a Z k",
    r"^\Qa.\Eb$": "a.b",
    r"^\Q.": ".",
    r"\#": "x#ephemeral",
    "^*7": "7",
}

_REFUSED = (
    r"\C \1 \8 \e \G \E [\b] [\Q] \p{Greek} \pX [[:foo:]] \x6 \x{110000} a** a++ a{2}{3} a{1001} "
    r"a{2,1} *a (a a) [a [[:alpha:] [z-a] (?x)a (?>a) (?#a) (?P=n) (?P>n) (?-) a\ "
)
REFUSED = _REFUSED.split()

LOOKS = [("^(?!a)", "Z"), ("(?<=-)x", "pat-1-x"), (r"^Z\Z", "Z")]


@pytest.mark.parametrize("pattern", FOUND)
def test_a_pattern_finds_what_go_finds(pattern: str) -> None:
    found = compiled(pattern)
    assert [name for name in NAMES if found.search(name)] == FOUND[pattern].split()


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_go_does_not_know_is_an_error_and_not_another_meaning(pattern: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(pattern))):
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "found"), [("^(?!a)", "Z"), ("(?<=-)x", "pat-1-x"), (r"^Z\Z", "Z")]
)
def test_lookaround_and_the_end_of_python_are_understood(pattern: str, found: str) -> None:
    assert compiled(pattern).search(found)
    assert not compiled(pattern).search("a")


def test_common_syntax_means_the_same_in_python() -> None:
    parts = "a", "b?", "[ab]+", "(a|b)", ".", "^", "$", r"\w", r"\.", "(?:ab)*", "x{2}", "-"
    for pattern in map("".join, product(parts, repeat=3)):
        if "^*" not in pattern:
            python = re.compile(pattern)
            mine = compiled(pattern)
            assert all(bool(mine.search(n)) == bool(python.search(n)) for n in NAMES), pattern
