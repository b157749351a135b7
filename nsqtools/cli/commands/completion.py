"""``nsqtools completion``: what makes a shell ask us at each TAB.

The scripts know no command and no option, so they seldom change; what they ask is in ``cli.tab``.
"""

from __future__ import annotations

import click

from nsqtools.cli.options import Command

_BASH = r"""# bash completion for nsqtools, for bash 4.4 or later

_nsqtools() {
    local kind text rest file program=${1/#\~\//$HOME/} words=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    while IFS=$'\t' read -r kind text rest; do
        if [[ $kind == plain ]]; then
            # Within quotes the text stands for itself.
            [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || printf -v text %q "$text"
            COMPREPLY+=("$text")
        elif [[ -z $rest ]]; then
            compopt -o default
        else # COMP_WORDBREAKS lacks '=': readline would look for a file of the option's name
            compopt -o nospace
            while read -r file; do
                [[ -d $file ]] && file+=/
                printf -v file %q "$file"
                COMPREPLY+=("$rest$file")
            done < <(compgen -f -- "$text")
        fi
    done < <(COMP_WORDS=$words COMP_TEXT=$2 _NSQTOOLS_COMPLETE=bash_complete "$program" 2>/dev/null)
}

complete -o nosort -F _nsqtools nsqtools
"""

_ZSH = r"""#compdef nsqtools

_nsqtools() {
    local kind text rest line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
    local -a found
    [[ $PREFIX == -*=* ]] && compset -P 1 '*='
    while IFS=$'\t' read -r kind text rest; do
        if [[ $kind == plain ]]; then
            found+=("${text//:/\\:}${rest:+:$rest}")
        else
            _files && return
        fi
    done < <(COMP_WORDS=$line _NSQTOOLS_COMPLETE=zsh_complete ${(Q)~words[1]} 2>/dev/null)
    _describe -V -t nsqtools nsqtools found
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _nsqtools "$@"
else
    compdef _nsqtools nsqtools
fi
"""

_FISH = r"""# fish completion for nsqtools

function __nsqtools_complete
    set -l program (commandline -cpo | string replace -r '^~/' $HOME/)[1]
    set -lx COMP_WORDS (commandline -cp)
    set -lx _NSQTOOLS_COMPLETE fish_complete
    for line in (command $program 2>/dev/null)
        set -l fields (string split \t -- $line)
        if test $fields[1] = plain
            printf '%s\t%s\n' $fields[2] $fields[3]
        else
            set -l typed (commandline -ct)
            test -n "$fields[3]" && set typed (string replace -r '^[^=]*=' '' -- $typed)
            printf '%s\n' $fields[3](complete -C"'' $typed")
        end
    end
end

complete --command nsqtools --no-files --keep-order --arguments '(__nsqtools_complete)'
"""

_SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_FILES = {"bash": "nsqtools.bash", "zsh": "_nsqtools", "fish": "nsqtools.fish"}


def scripts() -> dict[str, str]:
    """The scripts by the names of their files below ``completions/``."""
    return {_FILES[shell]: text for shell, text in _SHELLS.items()}


@click.command(
    "completion",
    cls=Command,
    examples=(
        ("Complete in this fish", "nsqtools completion fish | source"),
        ("Complete in each bash, from ~/.bashrc", "source <(nsqtools completion bash)"),
        ("Complete in each zsh, from ~/.zshrc after compinit", "source <(nsqtools completion zsh)"),
    ),
)
@click.argument("shell", type=click.Choice(tuple(_SHELLS)), help="The shell that is to complete.")
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    With it TAB completes commands, options and their values; topics and channels are those that
    nsqlookupd or nsqd names within 0.3 s. Where the package put the scripts where shells look for
    them, TAB works already. bash has to be 4.4 or later.
    """
    click.echo(_SHELLS[shell], nl=False)
