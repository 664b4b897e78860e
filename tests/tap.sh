# shellcheck shell=bash
# Report results as TAP; sourced by end-to-end scripts, which end with `finish`.
n=0 bad=0
say() { # name, 0 if it passed, what to show if not
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; else
        echo "not ok $n - $1"
        bad=1
        if [ -n "${3:-}" ]; then echo "  # $3"; fi
    fi
}
skip() { # name, why
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}
# Results of another program that prints TAP, among this script's own; the program must match its own plan.
within() { # command...
    local log status results failed plan
    log=$(mktemp)
    "$@" | tee "$log" | sed -uE '/^1\.\.[0-9]+$/d'
    status=${PIPESTATUS[0]}
    results=$(grep -cE '^(not )?ok ' "$log")
    failed=$(grep -c '^not ok ' "$log")
    plan=$(sed -nE 's/^1\.\.([0-9]+)$/\1/p' "$log" | tr '\n' ' ')
    rm -f "$log"
    n=$((n + results))
    if [ "$failed" -gt 0 ]; then bad=1; elif [ "$status" -ne 0 ] || [ "$plan" != "$results " ]; then
        say "$1 ${2:-}: all of it" 1 "ended with $status after $results results, planned: ${plan:-none}"
    fi
}
finish() {
    echo "1..$n"
    exit "$bad"
}
