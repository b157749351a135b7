"""Generated documents: ``python -m nsqtools.cli.docs`` writes manual pages and a picture."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.cli import cli
from nsqtools.cli.docs import guides, sections
from nsqtools.cli.docs.blocks import Verbatim, parse
from nsqtools.cli.docs.pages import command_page, guide_page
from nsqtools.cli.docs.roff import rendered
from nsqtools.cli.tree import walk

if TYPE_CHECKING:
    from collections.abc import Sequence
PICTURE = ".github/life.svg"
"""The picture of a message's life, made of the lines of the guide ``delivery``."""

_SIZE, _LINE, _MARGIN = 15, 19, 16
_STYLE = (
    f'text {{ font: {_SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", '
    "monospace; white-space: pre; fill: #c5c8c6 }"
)


def documents() -> dict[str, str]:
    """The text of every generated file, by its path in the checkout."""
    nodes = walk(cli)
    pages = [command_page(node, nodes) for node in nodes] + [guide_page(name) for name in guides()]
    found = {f"man/man{each.number}/{each.name}.{each.number}": rendered(each) for each in pages}
    title = "A message's life"
    (drawn,) = (
        block
        for block in parse(sections("delivery", "guides")[title])
        if isinstance(block, Verbatim)
    )
    return {**found, PICTURE: picture(title, drawn.lines)}


def picture(title: str, lines: Sequence[str]) -> str:
    """An SVG image of text: the lines in a font of fixed width, on a dark rectangle."""
    width = 2 * _MARGIN + round(max(map(len, lines)) * _SIZE * 0.61)
    height = 2 * _MARGIN + len(lines) * _LINE
    texts = [
        f'<text x="{_MARGIN}" y="{_MARGIN + number * _LINE - 4}" xml:space="preserve">'
        f"{escape(line, quote=False)}</text>"
        for number, line in enumerate(lines, 1)
        if line
    ]
    return "\n".join(
        (
            f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">',
            f"<title>{escape(title, quote=False)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#292929"/>',
            *texts,
            "</svg>\n",
        )
    )


def write(root: Path) -> None:
    """Write the documents into the checkout at ``root``, and remove its other manual pages."""
    wanted = documents()
    for path in (root / "man").rglob("*.[1-9]"):
        if path.relative_to(root).as_posix() not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[3])
