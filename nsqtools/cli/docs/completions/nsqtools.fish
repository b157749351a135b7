# fish completion for nsqtools

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
