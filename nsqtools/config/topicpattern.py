"""Patterns for topic names, in the syntax of Go's ``regexp``, which is RE2's."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from nsqtools.names import TopicPattern

_LOOKAROUND = re.compile(r"\(\?<?[=!]")


def compiled(pattern: str) -> TopicPattern:
    """Return a pattern whose ``search`` finds in a topic name what Go's ``MatchString`` finds.

    RE2 has no lookaround, as in ``^(?!test)``: such a pattern is read as Python's. Raises
    ConfigError.
    """
    import re2  # a library in C++, for this option alone

    options = re2.Options()
    options.log_errors = False  # to stderr
    try:
        found: TopicPattern = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
    except UnicodeError:
        reason = "not UTF-8"
    else:
        return found
    if _LOOKAROUND.search(pattern):
        try:
            with warnings.catch_warnings(action="error", category=FutureWarning):
                return re.compile(pattern, re.ASCII)
        except (re.error, FutureWarning, OverflowError, RecursionError) as error:
            reason = str(error)
    raise ConfigError(f"{pattern!r} is not a valid regular expression of Go: {reason}")
