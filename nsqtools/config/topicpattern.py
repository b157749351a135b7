"""Patterns for topic names, in the syntax of Go's ``regexp``, which is RE2's."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from nsqtools.names import TopicPattern

_DIFFERENT = "[:", "{,"
"""What Python reads in another way, without an error: ``[[:alpha:]]`` and ``x{,2}``."""
_LOOKAROUND = re.compile(r"\(\?<?[=!]")


def compiled(pattern: str) -> TopicPattern:
    """Return a pattern whose ``search`` finds in a topic name what Go's ``MatchString`` finds.

    RE2 has no lookaround, as in ``^(?!test)``: such a pattern is read as Python's, and without RE2
    each pattern that means the same there. Raises ConfigError.
    """
    try:
        import re2  # a library in C++, which not every system has
    except ImportError:
        return _of_python(pattern, advice="; pip install 'nsqtools[re2]' adds all of Go's syntax")
    options = re2.Options()
    options.log_errors = False  # to stderr
    try:
        found: TopicPattern = re2.compile(pattern, options)
    except re2.error as error:
        if _LOOKAROUND.search(pattern):
            return _of_python(pattern)
        raise _invalid(pattern, error.args[0].decode(errors="replace")) from None
    except UnicodeError:
        raise _invalid(pattern, "not UTF-8") from None
    return found


def _of_python(pattern: str, advice: str = "") -> TopicPattern:
    if different := [each for each in _DIFFERENT if each in pattern]:
        raise _invalid(pattern, f"{different[0]} means something else to Python{advice}")
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            return re.compile(pattern)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise _invalid(pattern, f"{error}{advice}") from None


def _invalid(pattern: str, reason: str) -> ConfigError:
    return ConfigError(f"{pattern!r} is not a valid regular expression: {reason}")
