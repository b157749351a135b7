"""Go's spelling of flags, converted to GNU's, so that scripts for the Go tools keep working."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def gnu_spelling(
    ctx: click.Context, args: Sequence[str], params: Iterable[click.Parameter]
) -> list[str]:
    """The arguments, with the spellings of Go's ``flag`` package converted for click.

    These are ``-topic x``, ``-topic=x``, ``--n 5``, ``-n=5`` and ``--gzip=true``. Values, arguments
    after ``--``, and bundles of short options such as ``-qn5`` are not changed. Raises
    click.BadParameter for ``--gzip=maybe``.
    """
    known = {
        spelling: param
        for param in params
        if isinstance(param, click.Option)
        for spelling in (*param.opts, *param.secondary_opts)
    }
    out: list[str] = []
    rest = list(reversed(args))
    while rest:
        arg = rest.pop()
        ends = not ctx.allow_interspersed_args and (arg == "-" or not arg.startswith("-"))
        if arg == "--" or ends:
            return [*out, arg, *reversed(rest)]
        given, equals, value = arg.partition("=")
        name = _known_spelling(given, known)
        if name is None:
            out.append(arg)
            waits = _bundle_waits(ctx, given, known) and not equals
        elif _takes_value(known[name]):
            out += [name, value] if equals else [name]
            waits = not equals
        else:
            out.append(_flag(ctx, known[name], name, value) if equals else name)
            waits = False
        if waits and rest:
            out.append(rest.pop())
    return out


def _known_spelling(given: str, known: Mapping[str, click.Option]) -> str | None:
    if not given.startswith("-"):
        return None
    bare = given[2:] if given.startswith("--") else given[1:]
    if f"--{bare}" in known:
        return f"--{bare}"
    return f"-{bare}" if len(bare) == 1 and f"-{bare}" in known else None


def _takes_value(param: click.Option) -> bool:
    return not param.is_flag and not param.count


def _bundle_waits(ctx: click.Context, given: str, known: Mapping[str, click.Option]) -> bool:
    """Whether this is a bundle of short options whose last one takes the next argument.

    Raises NoSuchOption for ``-verison``, as click would take it for a bundle and complain about
    ``-e``, and for ``-nsqd-tcp-addres``, which would be ``-n`` with a value.
    """
    if not given.startswith("-") or given.startswith("--"):
        return False
    for position, letter in enumerate(given[1:], 1):
        param = known.get(f"-{letter}")
        if param and not _takes_value(param):
            continue
        if len(given) > 2 and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(f"-{given}", known, cutoff=0.8 if param else 0.6)
            if not param or any(name.startswith(f"--{letter}") for name in near):
                raise click.NoSuchOption(given, possibilities=near, ctx=ctx)
        return param is not None and position == len(given) - 1
    return False


def _flag(ctx: click.Context, param: click.Option, name: str, value: str) -> str:
    """``--x`` or ``--no-x`` for ``--x=true`` or ``--x=false``."""
    if not param.secondary_opts or ctx.resilient_parsing:
        return f"{name}={value}"  # click says that it takes no value
    wanted = bool(param.type.convert(value, param, ctx))
    if name in param.secondary_opts:
        wanted = not wanted
    return param.opts[-1] if wanted else param.secondary_opts[-1]
