# bash completion for nsqtools, for bash 4.4 or later

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
