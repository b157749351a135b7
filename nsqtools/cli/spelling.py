"""Converts Go's spelling of flags to GNU's, so scripts for the Go tools keep working."""

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
    params_by_spelling = {
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
        flag, equals, value = arg.partition("=")
        name = _spelling_of(flag, params_by_spelling)
        if name is None:
            out.append(arg)
            waits = _bundle_waits(ctx, flag, params_by_spelling) and not equals
        elif _takes_value(params_by_spelling[name]):
            out += [name, value] if equals else [name]
            waits = not equals
        else:
            out.append(_flag(ctx, params_by_spelling[name], name, value) if equals else name)
            waits = False
        if waits and rest:
            out.append(rest.pop())
    return out


def _spelling_of(flag: str, params_by_spelling: Mapping[str, click.Option]) -> str | None:
    if not flag.startswith("-"):
        return None
    bare = flag[2:] if flag.startswith("--") else flag[1:]
    if f"--{bare}" in params_by_spelling:
        return f"--{bare}"
    return f"-{bare}" if len(bare) == 1 and f"-{bare}" in params_by_spelling else None


def _takes_value(param: click.Option) -> bool:
    return not param.is_flag and not param.count


def _bundle_waits(
    ctx: click.Context, flag: str, params_by_spelling: Mapping[str, click.Option]
) -> bool:
    """Whether this is a bundle of short options, and the last option takes the next argument.

    Raises NoSuchOption for misspelt long options with one dash. click would take ``-verison`` for
    a bundle and complain about ``-e``, and ``-nsqd-tcp-addres`` for ``-n`` with a value.
    """
    if not flag.startswith("-") or flag.startswith("--"):
        return False
    for position, letter in enumerate(flag[1:], 1):
        param = params_by_spelling.get(f"-{letter}")
        if param and not _takes_value(param):
            continue
        if len(flag) > 2 and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(f"-{flag}", params_by_spelling, cutoff=0.8 if param else 0.6)
            if not param or any(name.startswith(f"--{letter}") for name in near):
                raise click.NoSuchOption(flag, possibilities=near, ctx=ctx)
        return param is not None and position == len(flag) - 1
    return False


def _flag(ctx: click.Context, param: click.Option, name: str, value: str) -> str:
    """``--x`` or ``--no-x`` for ``--x=true`` or ``--x=false``."""
    if not param.secondary_opts or ctx.resilient_parsing:
        return f"{name}={value}"  # click refuses the value
    is_on = bool(param.type.convert(value, param, ctx))
    if name in param.secondary_opts:
        is_on = not is_on
    return param.opts[-1] if is_on else param.secondary_opts[-1]
