"""Text in mdoc(7), the language of manual pages that mandoc and groff both render.

Prose and arguments of macros are escaped. A page is a list of lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDTH = 78  # of a source line; mandoc -Tlint objects to more than 80

_SPECIAL = {
    "\\": r"\e",
    "'": r"\(aq",  # unescaped, these four are typographic quotes and accents
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
}
_HYPHENS = re.compile("-+")
_OPTION = re.compile(r"(?<!\w)-[a-zA-Z0-9_-]*")  # or a lone dash, but not that of big-endian
_NAME = re.compile(r"^-|^nsq|-\w+-|[/_{}$=\\.:]\w")  # of a file or an option: never hyphenated
_SENTENCE_END = re.compile(r"""[.!?]['")\]]*$""")
_MACRO = re.compile(r"%?[A-Z][A-Za-z0-9]{1,2}$")
_ENTRY = re.compile(r"^(\S.*\n)((?:[ \t]+.*(?:\n|\Z))+)", re.MULTILINE)
_VERBATIM = " " * 4
_DELIMITERS = frozenset(".,:;()[]?!|")


def escape(text: str, *, literal: bool = False) -> str:
    """Text that is rendered unchanged, for the middle of a line.

    Hyphens are rendered as ``-``, not as U+2010, at the start of a word, as in options, and
    everywhere in ``literal`` text.
    """
    hyphens = _HYPHENS if literal else _OPTION
    shown, end = "", 0
    for match in hyphens.finditer(text):
        shown += "".join(map(_escaped, text[end : match.start()])) + match[0].replace("-", r"\-")
        end = match.end()
    return shown + "".join(map(_escaped, text[end:]))


def _escaped(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char.isascii():
        return char if char.isprintable() else rf"\e{char.encode('unicode_escape').decode()[1:]}"
    return rf"\[u{ord(char):04X}]"


def prose(text: str, *, literal: bool = False) -> list[str]:
    """Filled text. Each sentence begins a line, as mdoc(7) requires."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        shown = escape(word, literal=literal)
        if literal or _NAME.search(word):
            shown = rf"\%{shown}"
        if line and len(line) + 1 + len(shown) > _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {shown}" if line else _guarded(shown)
        if _SENTENCE_END.search(word):
            lines.append(line)
            line = ""
    return [*lines, line] if line else lines


def _guarded(line: str) -> str:
    """The line, escaped if it would be taken for a macro."""
    return rf"\&{line}" if line.startswith((".", "'")) else line


def verbatim(lines: Iterable[str]) -> list[str]:
    """Unfilled, indented text, such as command lines to copy."""
    shown = (_guarded(escape(line.expandtabs(), literal=True)) for line in lines)
    return [".Bd -literal -offset indent", *shown, ".Ed"]


def argument(text: str) -> str:
    """One argument of a macro, escaped so that it is not taken for a macro or punctuation."""
    shown = escape(text, literal=True).replace('"', r"\(dq")
    if not text or text in _DELIMITERS or _MACRO.match(text):
        shown = rf"\&{shown}"
    return f'"{shown}"' if " " in shown else shown


def macro(name: str, *args: str) -> str:
    """A macro line."""
    return " ".join([f".{name}", *map(argument, args)])


def xr(pages: Iterable[tuple[str, int]]) -> list[str]:
    """References to pages by name and section, separated by commas."""
    lines = [f".Xr {name} {section}" for name, section in pages]
    return [*(f"{line} ," for line in lines[:-1]), *lines[-1:]]


def paragraphs(text: str) -> list[str]:
    """A docstring or a text of ``docs``: blocks separated by blank lines.

    Lines indented by four spaces stay unfilled. A block of lines at the margin, each with indented
    lines below it, is a list of terms and explanations.
    """
    lines: list[str] = []
    for block in _blocks(text.strip("\n")):
        entries = _ENTRY.findall(block)
        if block.startswith(_VERBATIM):
            lines += verbatim(line.removeprefix(_VERBATIM) for line in block.split("\n"))
        elif "".join(map("".join, entries)) == block:
            lines += listed([(_term(term), prose(body)) for term, body in entries])
        else:
            lines += [".Pp", *prose(block)] if lines else prose(block)
    return lines


def _blocks(text: str) -> list[str]:
    """The blocks between blank lines; adjacent unfilled blocks are joined."""
    blocks: list[str] = []
    for block in filter(None, re.split(r"\n[ \t]*\n", text)):
        if blocks and blocks[-1].startswith(_VERBATIM) and block.startswith(_VERBATIM):
            blocks[-1] += f"\n\n{block}"
        else:
            blocks.append(block)
    return blocks


def _term(text: str) -> str:
    return " ".join(map(argument, text.split()))


def listed(items: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """A list of terms, as written after ``.It``, with their explanations."""
    if not items:
        return []
    return [
        ".Bl -tag -width Ds",
        *(line for term, body in items for line in (f".It {term}", *body)),
        ".El",
    ]
