# Bash completion for lateen, installed as share/bash-completion/completions/lateen. It asks the program itself for its verbs and flags.
_lateen() {
    local word=${COMP_WORDS[COMP_CWORD]} lateen=${COMP_WORDS[0]} verb=${COMP_WORDS[1]-}
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$lateen" completion verbs) --help --version --verbose --log-json" -- "$word")
    elif [[ $word == --* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$lateen" completion flags "$verb") --help --verbose --log-json" -- "$word")
    else
        local before=${COMP_WORDS[COMP_CWORD - 1]}
        mapfile -t COMPREPLY < <(compgen -W "$("$lateen" completion values "$verb" "$before")" -- "$word")
        [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _lateen lateen
