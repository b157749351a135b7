"""Warns of unknown variables with the prefix NSQTOOLS_."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsqtools.cli.configfile import shared_options
from nsqtools.cli.resolver import is_set, variables
from nsqtools.cli.tree import command_names, command_options, contexts, groups_of
from nsqtools.config.program import ConfigFileOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

_PREFIX = "NSQTOOLS_"
_PROGRAM = {"NSQTOOLS_DEBUG", "NSQTOOLS_PIPELINE_AUTH_SECRET"}


def warnings(ctx: click.Context) -> list[str]:
    """A line for each set variable unknown to all commands, with the nearest known variable.

    Commands besides the command of ``ctx`` are loaded only if needed: first the commands named in
    a variable, then, for a variable still unknown, all of them.
    """
    unknown = {name for name in os.environ if name.startswith(_PREFIX) and is_set(name)}
    own = _variables_of([ctx])
    unknown -= _PROGRAM | own | {_PREFIX + name.upper() for name in shared_options()}
    root = ctx.find_root()
    for name in command_names(root) if unknown else ():
        prefix = f"{_PREFIX}{name}_".replace("-", "_").upper()
        if any(each.startswith(prefix) for each in unknown):
            unknown -= _variables_of(contexts(root, [name]))
    if not unknown:
        return []
    all_variables = _variables_of(contexts(root))
    return [
        f"{name}: no such variable{_nearest(name, own) or _nearest(name, all_variables)}"
        for name in sorted(unknown - all_variables)
    ]


def _variables_of(all_of: Iterable[click.Context]) -> set[str]:
    """The variables of these commands."""
    return {
        variable
        for ctx in all_of
        if (groups := groups_of(ctx.command))
        for each in command_options({**groups, "": ConfigFileOptions})
        for variable in variables(ctx, each.name, shared=each.shared)
    }


def _nearest(name: str, variables: Iterable[str]) -> str:
    """The hint: the same name with a command added, or else the most similar name."""
    from difflib import get_close_matches

    rest = name[len(_PREFIX) :]
    names = sorted((each[len(_PREFIX) :] for each in variables), key=len)
    found = [each for each in names if each.endswith(f"_{rest}")]
    found = found or get_close_matches(rest, names, n=1)
    return f"; did you mean {_PREFIX}{found[0]}?" if found else ""
