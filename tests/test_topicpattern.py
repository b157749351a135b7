"""Patterns for topic names mean what they mean in Go: each row was tried with Go's regexp."""

import contextlib
import re
import sys

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

_REFUSED = r"\1 \8 \e \Z \pX [[:foo:]] a** a{1001} a{2,1} *a (a a) [a [z-a] (?x)a (?>a) (?!a"
REFUSED = [*_REFUSED.split(), "(?!a)[[a]", "\udcff"]


@pytest.mark.parametrize("pattern", FOUND)
def test_a_pattern_finds_what_go_finds(pattern: str) -> None:
    found = compiled(pattern)
    assert [name for name in NAMES if found.search(name)] == FOUND[pattern].split()


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_go_does_not_know_is_an_error_and_not_another_meaning(pattern: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(pattern))):
        compiled(pattern)


@pytest.mark.parametrize(("pattern", "found"), [("^(?!a)", "Z"), ("(?<=-)x", "pat-1-x")])
def test_lookaround_is_that_of_python(pattern: str, found: str) -> None:
    assert compiled(pattern).search(found)
    assert not compiled(pattern).search("a")


def test_without_re2_a_pattern_means_the_same_or_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    same = 0
    for pattern, found in FOUND.items():
        with contextlib.suppress(ConfigError):
            python = compiled(pattern)
            assert [name for name in NAMES if python.search(name)] == found.split(), pattern
            same += 1
    assert same > 15
    with pytest.raises(ConfigError, match=r"nsqtools\[re2\]"):
        compiled("[[:alpha:]]")
