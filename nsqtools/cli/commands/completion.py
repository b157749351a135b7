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
        ("Enable completion in bash, in ~/.bashrc", "source <(nsqtools completion bash)"),
        ("In zsh, in ~/.zshrc after compinit", "source <(nsqtools completion zsh)"),
        ("In fish, in ~/.config/fish/config.fish", "nsqtools completion fish | source"),
    ),
)
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), help="The shell.")
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    TAB then completes commands, options and values. Topics and channels come from nsqlookupd or
    nsqd, if they answer within 0.3 s. You need this if nsqtools was installed with pipx
    or uv, or in a virtual environment; other packages put the scripts where shells look for them.
    bash must be 4.4 or later.
    """
    click.echo(script(shell), nl=False)
