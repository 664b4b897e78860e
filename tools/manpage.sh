#!/usr/bin/env bash
# Make the man page from the program's own help: tools/manpage.sh PROGRAM > lateen.1
set -eu
lateen=$1
escape() { sed -e 's/\\/\\\\/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"; }
version=$("$lateen" --version | cut -d' ' -f2)
cat <<HEAD
.TH LATEEN 1 "" "lateen $version" "User Commands"
.SH NAME
lateen \- the whole life of a language model in one program
.SH SYNOPSIS
.B lateen
.I verb
[options]
.SH DESCRIPTION
Tokenise, pretrain, evaluate, generate and serve language models on a CPU or a GPU. Each verb explains itself with \-\-help.
Exit status: 0 done, 1 failed, 2 wrong usage.
HEAD
for verb in $("$lateen" completion verbs); do
    help=$("$lateen" "$verb" --help 2>/dev/null) || continue
    [ -n "$help" ] || continue
    printf '.SH LATEEN %s\n.nf\n' "$(echo "$verb" | tr a-z A-Z)"
    echo "$help" | escape
    printf '.fi\n'
done
cat <<TAIL
.SH ENVIRONMENT
.TP
.B OMP_NUM_THREADS
threads of the kernels
.TP
.B LATEEN_ISA
portable, avx2 or avx512: the largest instruction set to use
.TP
.B LATEEN_LOG
error, warn, info or debug
.TP
.B LATEEN_CACHE_DIR
where compiled GPU kernels and tuned choices are kept
TAIL
