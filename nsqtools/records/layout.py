"""Formats of records in files and streams, and the syntax of delimiters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsqtools.errors import ConfigError

ESCAPE = r"\\x[0-9a-fA-F]{2}|\\.?"
"""A regular expression for one escape, valid or not."""
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\0": b"\0", "\\\\": b"\\"}
_TOKENS = re.compile(rf"{ESCAPE}|[^\\]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Layout:
    """The format of records in a file: ``format`` is in ``forms.FORMS``, ``delimiter`` is
    for ``raw``."""

    format: str = "raw"
    delimiter: bytes = b"\n"

    @classmethod
    def parse(cls, form: str, delimiter: str) -> Layout:
        """Return the layout for these values of options; raises ConfigError for the delimiter."""
        try:
            return cls(form, unescape(delimiter))
        except ConfigError as error:
            raise ConfigError(f"--delimiter: {error}") from None

    @classmethod
    def choose(
        cls, *, json: bool, length_prefix: bool, delimiter: str, null: bool = False
    ) -> Layout:
        """Return the layout for flags that exclude each other; raises ConfigError for the
        delimiter.
        """
        form = "json" if json else "length-prefixed" if length_prefix else "raw"
        return cls.parse(form, r"\0" if null else delimiter)


def unescape(text: str) -> bytes:
    r"""Return the bytes of a ``--delimiter``: UTF-8, with \n \t \r \0 \\ and \xNN.

    Raises ConfigError for any other escape, with its position, counted from 1.
    """
    return b"".join(literal(token) for token in _TOKENS.finditer(text))


def literal(token: re.Match[str]) -> bytes:
    """Return the bytes of a text without escapes, or of one escape; raises ConfigError."""
    text = token[0]
    if not text.startswith("\\"):
        return text.encode("utf-8", "surrogateescape")  # the original bytes of the command line
    if text in _ESCAPES:
        return _ESCAPES[text]
    if len(text) == 4:
        return bytes.fromhex(text[2:])
    raise ConfigError(
        f"unknown escape {text} at character {token.start() + 1}: "
        r"expected \n, \t, \r, \0, \\ or \xNN"
    )
