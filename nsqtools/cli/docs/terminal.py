"""A page as text for a terminal."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import click

from nsqtools.cli.docs.blocks import Heading, ItemList, Paragraph, Verbatim
from nsqtools.cli.frame import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.cli.docs.blocks import Block, Page, Spans

_INDENT = "  "
_WIDEST = 100


def show(page: Page) -> None:
    """Print a page; on a terminal through a pager."""
    click.echo_via_pager(rendered(page, min(columns(), _WIDEST)) + "\n")


def rendered(page: Page, width: int) -> str:
    """The text: prose wrapped at this width, headings and terms in bold."""
    lines = [_wrapped(f"{page.name} - {page.summary}", "", "", width)]
    for title, blocks in page.sections.items():
        if blocks:
            lines += ["", click.style(title.upper(), bold=True), *_lines(blocks, "", width)]
    return "\n".join(lines)


def _lines(blocks: Sequence[Block], indent: str, width: int) -> Iterator[str]:
    """The lines of blocks, with an empty line between them."""
    for number, block in enumerate(blocks):
        yield from [""] if number else []
        match block:
            case Paragraph(spans):
                yield _wrapped(_text(spans), indent, indent, width)
            case Verbatim(lines):
                yield from (f"{indent}{_INDENT * 2}{line}".rstrip() for line in lines)
            case Heading(title):
                yield click.style(f"{indent}{title}", bold=True)
            case ItemList(items):
                for item in items:
                    yield from _item(item.term, item.mark, item.body, indent, width)


def _item(term: Spans, mark: str, body: Sequence[Block], indent: str, width: int) -> Iterator[str]:
    """A term with its explanation below, or a mark with the explanation to its right."""
    below = indent + " " * (len(mark) + 1 if mark else len(_INDENT))
    first = f"{indent}{mark} " if mark else below
    if not mark:
        yield click.style(_wrapped(_text(term), indent, indent, width), bold=True)
    for number, block in enumerate(body):
        if isinstance(block, Paragraph):  # a paragraph of an item needs no empty line before it
            yield _wrapped(_text(block.spans), below if number else first, below, width)
        else:
            yield from _lines([block], below, width)


def _text(spans: Spans) -> str:
    return "".join(each.text for each in spans)


def _wrapped(text: str, first: str, indent: str, width: int) -> str:
    return fill(
        " ".join(text.split()),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
