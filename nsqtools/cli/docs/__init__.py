"""Documents: the prose of help, guides and manual pages, and its renderers.

The prose is Markdown: ``commands/`` has examples and sections for the page of each command,
``guides/`` whole pages, ``shared/`` text included by several of them, and ``completions/`` the
scripts for shells. A file is read only when its text is needed.

A line ``## Title`` begins a section, and ``%include NAME`` stands for ``shared/NAME.md``.
``nsqtools.cli.docs.blocks`` lists the supported parts of Markdown.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = os.path.dirname(__file__)
_INCLUDE = re.compile(r"^%include (\S+)\n", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)

SCRIPTS = {"bash": "nsqtools.bash", "zsh": "_nsqtools", "fish": "nsqtools.fish"}
"""The files of completion scripts, by shell, with the names required by the shells."""

EXAMPLES = "Examples"
"""The section of a command's examples: sentences with a colon, each above a command line."""


@cache
def sections(name: str, folder: str = "commands") -> Mapping[str, str]:
    """The Markdown of each section of a file, by title; empty if the file does not exist.

    Text above the first section has an empty title.
    """
    if not os.path.exists(os.path.join(_HERE, folder, f"{name}.md")):
        return {}
    parts = ["", *_SECTION.split(_read(f"{folder}/{name}"))]
    return {title: text.strip("\n") for title, text in zip(parts[::2], parts[1::2], strict=True)}


def examples(name: str) -> tuple[tuple[str, str], ...]:
    """The examples of a command's file, as pairs of a sentence and a command line."""
    blocks = [*filter(None, sections(name).get(EXAMPLES, "").split("\n\n"))]
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return tuple((sentence.removesuffix(":"), line.strip()) for sentence, line in pairs)


def guides() -> list[str]:
    """The names of the guides, such as ``delivery``."""
    names = (name.removesuffix(".md") for name in os.listdir(os.path.join(_HERE, "guides")))
    return sorted(names, key=lambda name: (name == "toml", name))


def guide_summaries() -> dict[str, str]:
    """A line about each guide, by its name: the heading of its file."""
    return {name: f"{sections(name, 'guides')[''].removeprefix('# ')}." for name in guides()}


def script(shell: str) -> str:
    """The completion script of a shell; ``completions/`` of the checkout links to these files."""
    return _text("completions", SCRIPTS[shell])


def _read(name: str) -> str:
    """The text of a file, with its includes."""
    return _INCLUDE.sub(lambda match: _read(f"shared/{match[1]}"), _text(f"{name}.md"))


def _text(*path: str) -> str:
    with open(os.path.join(_HERE, *path), encoding="utf-8") as file:
        return file.read()
