"""Command lines of nsqtools as documents have them, parsed and not run."""

from __future__ import annotations

import shlex
from contextlib import suppress
from itertools import groupby

import click

from nsqtools.cli import cli
from nsqtools.cli.resolver import Resolver
from nsqtools.cli.tree import groups_of


def commands(line: str) -> list[list[str]]:
    """Arguments of every nsqtools in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts = groupby(lexer, lambda token: not set(token) <= set("();<>|&"))
    simple = [list(tokens) for is_command, tokens in parts if is_command]
    return [words[1:] for words in simple if words[0].rpartition("/")[2] == "nsqtools"]


def parse(args: list[str]) -> None:
    """Read a command line as nsqtools does, and run nothing; raises UsageError or ConfigError."""
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    command: click.Command = cli
    context: click.Context | None = None
    name = "nsqtools"
    while isinstance(command, click.Group) and args and not args[0].startswith("-"):
        context = click.Context(command, context, info_name=name)
        name, *args = args
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name}")
        command = found
    with (
        suppress(click.exceptions.Exit),  # of --help and --version
        command.make_context(name, args, parent=context) as made,
    ):
        Resolver(made, groups_of(command)).instances()
