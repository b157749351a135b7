"""Generated documents: ``python -m nsqtools.cli.docs [--check] [ROOT]`` writes or compares them.

The documents are the manual pages in ``man/``. ``ROOT`` is the top of the checkout. With
``--check`` nothing is written: the names of files that differ are printed, and then the exit status
is 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.cli import cli
from nsqtools.cli.docs import guides
from nsqtools.cli.docs.manpages import guide_page, page
from nsqtools.cli.tree import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parents[3]


def documents() -> dict[str, str]:
    """The text of every generated file, by its name below the top of the checkout."""
    nodes = walk(cli)
    found = {f"man/man1/{node.page}.1": page(node, nodes) for node in nodes}
    return found | {f"man/man{name[-1]}/{name}": guide_page(name) for name in guides().values()}


def main(argv: Sequence[str]) -> int:
    """Write or compare the documents. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nsqtools.cli.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("root", nargs="?", type=Path, default=_ROOT, help="top of the checkout")
    given = parser.parse_args(argv)
    wanted = documents()
    paths = (path for path in (given.root / "man").rglob("*") if path.is_file())
    there = {path.relative_to(given.root).as_posix(): path.read_text("utf-8") for path in paths}
    changed = [name for name, text in wanted.items() if there.get(name) != text]
    gone = sorted(there.keys() - wanted.keys())
    for name in changed + gone:
        print(name)
    if given.check:
        return 1 if changed or gone else 0
    for name in changed:
        path = given.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    for name in gone:
        (given.root / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
