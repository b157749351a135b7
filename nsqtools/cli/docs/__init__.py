"""Documents: the prose of help and manual pages, and the generators of the pages.

The prose is in text files: ``commands/`` has examples and sections for the page of each command,
``guides/`` whole pages, ``shared/`` text that several of them include, and ``completions/`` the
scripts for shells. They are read only when shown.

A line ``# TITLE`` begins a section, and ``%include NAME`` stands for ``shared/NAME.txt``. Blank
lines separate paragraphs. A line with indented lines below it is a term with its explanation. Lines
indented by four spaces are shown unchanged.
"""

from __future__ import annotations

import os
import re
from functools import cache
from textwrap import fill
from typing import TYPE_CHECKING

from nsqtools.cli.frame import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = os.path.dirname(__file__)
_INCLUDE = re.compile(r"^%include (\S+)\n", re.MULTILINE)
_TITLE = re.compile(r"^# (.+)\n", re.MULTILINE)
_PARAGRAPH = re.compile(r"^( {0,2})\S.*(?:\n\1\S.*)*", re.MULTILINE)
_WIDEST = 100

SCRIPTS = {"bash": "nsqtools.bash", "zsh": "_nsqtools", "fish": "nsqtools.fish"}
"""The files of completion scripts, by shell, with the names that the shells require."""

EXAMPLES = "EXAMPLES"
"""The section of a command's examples: sentences without full stops, each above a command line."""


@cache
def sections(name: str, folder: str = "commands") -> Mapping[str, str]:
    """The text of each section of a file, by title; none if there is no such file."""
    if not os.path.exists(os.path.join(_HERE, folder, f"{name}.txt")):
        return {}
    _, *parts = _TITLE.split(_read(f"{folder}/{name}"))
    return {title: text.strip("\n") for title, text in zip(parts[::2], parts[1::2], strict=True)}


def examples(name: str) -> tuple[tuple[str, str], ...]:
    """The examples of a command's file, as pairs of a sentence and a command line."""
    blocks = filter(None, sections(name).get(EXAMPLES, "").split("\n\n"))
    pairs = (block.split("\n") for block in blocks)
    return tuple((sentence, line.strip()) for sentence, line in pairs)


def guides() -> dict[str, str]:
    """The names of the files in ``guides/`` by topic, such as ``pipeline``."""
    names = sorted(name.removesuffix(".txt") for name in os.listdir(os.path.join(_HERE, "guides")))
    return {name.removeprefix("nsqtools").rpartition(".")[0].strip("-."): name for name in names}


def guide(topic: str) -> str:
    """The text of a guide as ``nsqtools help TOPIC`` prints it; empty for an unknown topic.

    Its prose is wrapped for the terminal.
    """
    name = guides().get(topic)
    texts = sections(name, "guides") if name else {}
    text = "\n\n".join(f"{title}\n\n{text}" for title, text in texts.items())
    width = min(columns(), _WIDEST)
    return _PARAGRAPH.sub(lambda match: _filled(match[0], match[1], width), text)


def _filled(text: str, indent: str, width: int) -> str:
    return fill(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def guide_summaries() -> dict[str, str]:
    """A line about each guide, by its topic."""
    texts = {topic: sections(name, "guides")["NAME"] for topic, name in guides().items()}
    return {topic: f"{text[0].upper()}{text[1:]}." for topic, text in texts.items()}


def script(shell: str) -> str:
    """The completion script of a shell; ``completions/`` of the checkout links to these files."""
    return _text("completions", SCRIPTS[shell])


def _read(name: str) -> str:
    """The text of a file, with what it includes."""
    return _INCLUDE.sub(lambda match: _read(f"shared/{match[1]}"), _text(f"{name}.txt"))


def _text(*path: str) -> str:
    with open(os.path.join(_HERE, *path), encoding="utf-8") as file:
        return file.read()
