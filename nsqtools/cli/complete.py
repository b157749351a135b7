"""Answers a TAB press: reads the line up to the cursor and prints a line for each candidate."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem, split_arg_string

from nsqtools.cli.exits import PROGRAM, Exit, debugging
from nsqtools.cli.frame import Group
from nsqtools.cli.spelling import gnu_spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = "COMP_WORDS"
"""The variable with the typed line."""

TEXT = "COMP_TEXT"
"""The variable with bash's part of the word: bash also breaks words at = and :."""

_CURSOR = "\0"  # not in the line, because a variable cannot contain it


class Answer(NamedTuple):
    """Completions of the last word: ``kept`` stays, and an item replaces ``typed``."""

    kept: str
    typed: str
    items: Sequence[CompletionItem[str]]


_NOTHING = Answer("", "", ())


def answer(cli: click.Group, instruction: str) -> NoReturn:
    """Print the candidates for ``bash_complete``, ``zsh_complete`` or ``fish_complete`` and exit.

    ``$COMP_WORDS`` is the line up to the cursor, with its quotes. Each candidate is a line of three
    fields, separated by tabs: ``plain``, the replacement of the completed text, and a help text; or
    ``file``, the typed part of a file name, and the text before it. Errors are silent, because the
    shell would show them in the middle of the line.
    """
    shell, _, verb = instruction.partition("_")
    try:
        if verb == "complete":
            found = candidates(cli, os.environ.get(LINE, ""))
            sys.stdout.buffer.write(_text(found, _skipped(shell, found)))
            sys.stdout.flush()
    except Exception:
        if debugging():
            raise
    # Shutting down the interpreter would take a seventh of the time of a TAB press.
    os._exit(Exit.DONE)


def _skipped(shell: str, found: Answer) -> str:
    """The beginning of the word: the shell keeps it, so candidates must not repeat it."""
    if shell == "zsh":
        return found.kept  # the zsh script leaves it out
    text = os.environ.get(TEXT)
    if text is None:
        return ""
    word = found.kept + found.typed
    return word.removesuffix(split_arg_string(text + _CURSOR)[0].removesuffix(_CURSOR))


def _text(found: Answer, skipped: str) -> bytes:
    lines = []
    for item in found.items:
        if item.type == "plain":
            first = (found.kept + item.value).removeprefix(skipped)
            second = " ".join((item.help or "").split())
        else:
            first, second = found.typed, found.kept.removeprefix(skipped)
        lines.append(f"{item.type}\t{first}\t{second}\n")
    return "".join(lines).encode(errors="surrogateescape")


def candidates(cli: click.Group, line: str) -> Answer:
    """The completions of a line; its first word is the name of the program."""
    _, *words, word = split_arg_string(line + _CURSOR)
    word = word.removesuffix(_CURSOR)
    if words[:1] == ["help"]:
        found = _after(cli, words[1:], word, commands_only=True)
        return found if words[1:] else found._replace(items=[*found.items, *_guides(word)])
    found = _after(cli, words, word)
    if not words and "help".startswith(word):
        shown = CompletionItem("help", help="Show the options of a command.")
        found = found._replace(items=[*found.items, shown])
    return found


def _guides(word: str) -> list[CompletionItem[str]]:
    from nsqtools.cli.docs import guide_summaries

    about = {**guide_summaries(), "exit-codes": "Exit codes of all commands."}
    return [CompletionItem(name, help=about[name]) for name in about if name.startswith(word)]


def _after(
    cli: click.Group, words: Sequence[str], word: str, *, commands_only: bool = False
) -> Answer:
    found = _context(cli, words)
    if found is None:
        return _NOTHING
    ctx, args = found
    if isinstance(ctx.command, click.Group):
        return _of_group(ctx, args, word)
    return _NOTHING if commands_only else _of_command(ctx, args, word)


def _of_group(ctx: click.Context, args: list[str], word: str) -> Answer:
    """Commands, or the shared options before a command and their values."""
    if args or word.startswith("-"):
        from nsqtools.cli.options import shared_flags

        before = shared_flags().make_context(
            ctx.info_name, list(args), ctx.parent, resilient_parsing=True
        )
        param, _ = _receiver(before, args, word)
        if word.startswith("-") or isinstance(param, click.Option):
            return _of_command(before, args, word)
    return Answer("", word, ctx.command.shell_complete(ctx, word))


def _context(cli: click.Group, words: Sequence[str]) -> tuple[click.Context, list[str]] | None:
    """The context and the arguments of the command named by the words; None if unknown.

    The arguments of a group are the options before a command. Errors in the words are ignored.
    """
    command: click.Command | None = cli
    name, rest = PROGRAM, list(words)
    parent: click.Context | None = None
    while isinstance(command, click.Group):
        parent = command.make_context(name, [], parent, resilient_parsing=True)
        options, rest = rest, _behind_shared(parent, rest)
        if not rest:
            return parent, options
        name = rest.pop(0)
        command = command.get_command(parent, name)
    if command is None:
        return None
    return _with(command, name, rest, parent), rest


def _with(
    command: click.Command, name: str | None, args: Sequence[str], parent: click.Context | None
) -> click.Context:
    return command.make_context(
        name, list(args), parent, resilient_parsing=True, ignore_unknown_options=True
    )


def _behind_shared(ctx: click.Context, words: list[str]) -> list[str]:
    """The words after the shared options before a command."""
    with suppress(click.UsageError):
        if isinstance(ctx.command, Group):
            words = ctx.command.take_shared(ctx, words)
    return [] if words[:1] and words[0].startswith("-") else words


def _of_command(ctx: click.Context, args: list[str], word: str) -> Answer:
    """Values of the option or argument at the cursor, or names of options."""
    dashed, after_dashes = word.startswith("-"), "--" in args
    joined = dashed and "=" in word and not after_dashes
    param, text = _receiver(ctx, args, word if joined or not dashed else "")
    if isinstance(param, click.Argument) and not ctx.allow_interspersed_args:
        # The argument is itself a command line, as in ``config show``.
        line = ctx.params[param.name] or ()
        root = ctx.find_root().command
        if isinstance(root, click.Group) and (line or not dashed):
            return _after(root, line, word)
    if isinstance(param, click.Option):
        if not joined:  # an option without its value stops the parser before the arguments
            ctx = _with(ctx.command, ctx.info_name, args[:-1], ctx.parent)
        typed = text if joined else word
        items = param.shell_complete(ctx, typed)
        if [item.type for item in items] == ["file"]:
            typed = items[0].value  # the file may follow other text, as in avro:FILE
        return Answer(word.removesuffix(typed), typed, items)
    if dashed and not after_dashes:
        return Answer("", word, _options(ctx, word))
    items = param.shell_complete(ctx, word) if param else []
    if not word and not items and not after_dashes:
        items = _options(ctx, "--")
    return Answer("", word, items)


def _receiver(
    ctx: click.Context, args: Sequence[str], word: str
) -> tuple[click.Parameter | None, str]:
    """The parameter to receive the word as the next argument, and its part of the word."""
    params = ctx.command.get_params(ctx)
    spelt = gnu_spelling(ctx, [*args, word + _CURSOR], params)
    opts, _, _ = ctx.command.make_parser(ctx).parse_args(spelt)
    for param in params:
        value = opts.get(param.name)
        last = value[-1] if isinstance(value, (list, tuple)) and value else value
        if isinstance(last, str) and last.endswith(_CURSOR):
            return param, last.removesuffix(_CURSOR)
    return None, ""


def _options(ctx: click.Context, word: str) -> list[CompletionItem[str]]:
    """Options beginning with this word; after a single dash in Go's spelling."""
    items = ctx.command.shell_complete(ctx, word)
    if not word.startswith("--n"):  # --no-OPTION would double the list
        items = [item for item in items if not item.value.startswith("--no-")]
    if len(word) > 1 and not word.startswith("--"):
        items += [
            CompletionItem(item.value.removeprefix("-"), help=item.help)
            for item in ctx.command.shell_complete(ctx, f"-{word}")
        ]
    return items
