"""``nsqtools completion``: scripts that make a shell call nsqtools at each TAB.

They contain no names of commands or options, so they seldom change: ``cli.complete`` answers them.
"""

# size: each command has a file of its own

from __future__ import annotations

import click

from nsqtools.cli.docs import SCRIPTS, script
from nsqtools.cli.options import Command


@click.command(
    "completion",
    cls=Command,
    examples=(
        ("Complete in this fish", "nsqtools completion fish | source"),
        ("Complete in each bash, from ~/.bashrc", "source <(nsqtools completion bash)"),
        ("Complete in each zsh, from ~/.zshrc after compinit", "source <(nsqtools completion zsh)"),
    ),
)
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), help="The shell.")
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    TAB then completes commands, options and values. Topics and channels come from nsqlookupd or
    nsqd, if they answer within 0.3 s. This is needed after pipx and uv, and in virtual
    environments; other packages put the scripts where shells look for them. bash must be 4.4 or
    later.
    """
    click.echo(script(shell), nl=False)
