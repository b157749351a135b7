"""Generated documents: ``python -m nsqtools.cli.docs`` writes the manual pages in ``man/``."""

# size: the program that is run, apart from what it writes

from __future__ import annotations

from pathlib import Path

from nsqtools.cli import cli
from nsqtools.cli.docs import guides
from nsqtools.cli.docs.pages import command_page, guide_page
from nsqtools.cli.docs.roff import rendered
from nsqtools.cli.tree import walk


def documents() -> dict[str, str]:
    """The text of every generated file, by its name below the top of the checkout."""
    nodes = walk(cli)
    pages = [command_page(node, nodes) for node in nodes] + [guide_page(name) for name in guides()]
    return {f"man/man{each.number}/{each.name}.{each.number}": rendered(each) for each in pages}


def write(root: Path) -> None:
    """Write the documents below this top of a checkout, and remove other manual pages there."""
    wanted = documents()
    for path in (root / "man").rglob("*.[1-9]"):
        if path.relative_to(root).as_posix() not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[3])
