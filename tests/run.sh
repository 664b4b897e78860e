#!/usr/bin/env bash
# Run tests and print one closing line "N passed, N failed[, N skipped]".
#   tests/run.sh unit    the unit test programs of one build ($BUILD, default build)
#   tests/run.sh all     unit tests, every script tests/*/*.sh that is a suite, sanitizer builds, lint
# A test program or suite speaks TAP: lines "ok N - name", "not ok N - name", "ok N # SKIP why".
# A program that dies without a "not ok" counts as one failure.
set -u
cd "$(dirname "$0")/.."
# Threads that wait sleep: on a machine that does other work too, spinning at barriers takes 100 times the time of small tests.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

suite() { # name, command...
    local name=$1 start=$SECONDS ok bad skip status
    shift
    CMOCKA_MESSAGE_OUTPUT=TAP "$@" >"$log" 2>&1
    status=$?
    skip=$(grep -Eci '^(not )?ok .*# *skip' "$log") # cmocka says "not ok N # SKIP name".
    ok=$(($(grep -c '^ok ' "$log") + $(grep -Eci '^not ok .*# *skip' "$log")))
    bad=$(($(grep -c '^not ok ' "$log") - $(grep -Eci '^not ok .*# *skip' "$log")))
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$status" -eq 0 ] && [ "$ok" -eq 0 ] && [ "$bad" -eq 0 ]; then bad=1; echo "no test ran" >>"$log"; fi
    passed=$((passed + ok - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-52s %4d passed %3d failed %3d skipped %4d s\n' "$name" $((ok - skip)) "$bad" "$skip" $((SECONDS - start))
    grep -Ei '^(not )?ok .*# *skip' "$log" | sed 's/^/    /'
    if [ "$bad" -ne 0 ]; then sed 's/^/    /' "$log" | tail -n 60; fi
}

unit_programs() { # build folder
    local program
    for program in $(find "$1/tests/unit" -type f -executable -name 'test_*' | sort); do suite "$program" "$program"; done
}

case ${1:-all} in
unit) unit_programs "${BUILD:-build}" ;;
all)
    for part in tests/suites/*.sh; do . "$part"; done
    ;;
*) echo "usage: tests/run.sh unit|all" >&2; exit 2 ;;
esac
if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
