"""A page for its renderers: sections of blocks, with text in spans.

Blocks are made of these parts of Markdown: paragraphs, headings, indented and fenced code, lists
and tables. A list item ``TERM: explanation`` becomes an entry. A table becomes a list; the first
cell of each row is the term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markdown_it.tree import SyntaxTreeNode


class Span(NamedTuple):
    """A piece of text: prose, typed or printed text, or a value to fill in."""

    text: str
    kind: Literal["prose", "code", "value"] = "prose"


Spans = tuple[Span, ...]


class Paragraph(NamedTuple):
    """Text to wrap."""

    spans: Spans


class Verbatim(NamedTuple):
    """Lines to keep, such as command lines to copy."""

    lines: tuple[str, ...]


class ListItem(NamedTuple):
    """A term and its explanation; an item without a term has a ``mark`` instead."""

    term: Spans
    body: tuple[Block, ...]
    mark: str = ""


class ItemList(NamedTuple):
    """A list."""

    items: tuple[ListItem, ...]


class Heading(NamedTuple):
    """A title within a section."""

    title: str


Block = Paragraph | Verbatim | ItemList | Heading


class Page(NamedTuple):
    """A manual page: ``name`` and ``number`` as in ``name(number)``, one sentence, sections."""

    name: str
    number: int
    summary: str
    sections: Mapping[str, Sequence[Block]]


def plain(text: str) -> Paragraph:
    """A paragraph of plain text, without Markdown."""
    return Paragraph((Span(" ".join(text.split())),))


def paragraphs(text: str) -> list[Block]:
    """The paragraphs of plain text, such as a docstring."""
    return [plain(each) for each in text.split("\n\n") if each.strip()]


def parse(markdown: str) -> list[Block]:
    """The blocks of a section in Markdown."""
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    parser = MarkdownIt("commonmark").enable("table")
    return _blocks(SyntaxTreeNode(parser.parse(markdown)).children)


def _blocks(nodes: Sequence[SyntaxTreeNode]) -> list[Block]:
    found: list[Block] = []
    for node in nodes:
        if node.type in ("code_block", "fence"):
            found.append(Verbatim(tuple(node.content.rstrip("\n").split("\n"))))
        elif node.type == "paragraph":
            found.append(Paragraph(_spans(node.children[0].children)))
        elif node.type == "heading":
            found.append(Heading("".join(each.text for each in _spans(node.children[0].children))))
        elif node.type == "bullet_list":
            items = tuple(_item(item, "-") for item in node.children)
            if len({each.mark for each in items}) > 1:
                raise ValueError(f"a list of items with and without terms: {items[0]}")
            found.append(ItemList(items))
        elif node.type == "ordered_list":
            numbered = enumerate(node.children, 1)
            found.append(ItemList(tuple(_item(item, f"{number}.") for number, item in numbered)))
        elif node.type == "table":
            found.append(_table(node))
        else:
            raise ValueError(f"no renderer knows {node.type}: {node.to_tokens()[0].map}")
    return found


def _item(item: SyntaxTreeNode, mark: str) -> ListItem:
    """An item of a list; in a list with bullets the text up to the first colon is its term."""
    first, *others = _blocks(item.children)
    if isinstance(first, Paragraph) and mark == "-":
        for number, (text, kind) in enumerate(first.spans):
            before, colon, after = text.partition(": ")
            if colon and kind == "prose":
                term = (*first.spans[:number], Span(before))
                body = (Span(after), *first.spans[number + 1 :])
                return ListItem(_filled(term), (Paragraph(_filled(body)), *others))
    return ListItem((), (first, *others), mark)


def _table(table: SyntaxTreeNode) -> ItemList:
    """A row becomes an entry: its first cell is the term, other cells begin with their headers."""
    head, body = table.children
    headers = ["".join(each.text for each in spans) for spans in _cells(head.children[0])]
    return ItemList(
        tuple(
            ListItem(
                term,
                tuple(
                    Paragraph((Span(f"{header}: "), *cell))
                    for header, cell in zip(headers[1:], cells, strict=True)
                    if cell
                ),
            )
            for term, *cells in map(_cells, body.children)
        )
    )


def _cells(row: SyntaxTreeNode) -> list[Spans]:
    return [_spans(cell.children[0].children) for cell in row.children]


def _spans(nodes: Sequence[SyntaxTreeNode]) -> Spans:
    found: list[Span] = []
    for node in nodes:
        if node.type == "code_inline":
            found.append(Span(node.content, "code"))
        elif node.type == "em":
            found.append(Span("".join(each.content for each in node.children), "value"))
        elif node.type in ("strong", "link"):
            found += _spans(node.children)
        elif node.type == "softbreak":
            found.append(Span(" "))
        elif node.type == "text":
            found.append(Span(node.content))
        else:
            raise ValueError(f"no renderer knows {node.type}: {node.content!r}")
    return _filled(found)


def _filled(spans: Sequence[Span]) -> Spans:
    """The spans with text; adjacent prose is joined."""
    found: list[Span] = []
    for each in spans:
        if found and found[-1].kind == each.kind == "prose":
            found[-1] = Span(found[-1].text + each.text)
        elif each.text:
            found.append(each)
    return tuple(found)
