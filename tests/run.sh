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
passed=0 failed=0 skipped=0 cpu_ms=0
names=() reported=0 # Of suites in the order of their start; how many have been counted and printed.
work=$(mktemp -d)
trap 'kill $(jobs -pr) 2>/dev/null; rm -rf "$work"' EXIT

# A suite is counted and printed in the order of its start, whenever it ends; the output of one that fails is shown.
#   suite NAME COMMAND...    by itself, when all before it have ended: builds, and what is timed or takes all cores
#   beside NAME COMMAND...   next to other such ones, as many as there are cores: what takes one core, or sleeps
suite() {
    beside_done
    names+=("$1")
    run_numbered $((${#names[@]} - 1)) "${@:2}"
    report
}

beside() {
    while [ "$(jobs -pr | wc -l)" -ge "$slots" ]; do wait -n; done
    report
    names+=("$1")
    run_numbered $((${#names[@]} - 1)) "${@:2}" </dev/null &
}

beside_done() {
    wait
    report
}
slots=$(nproc)

run_numbered() { # number, command...: its output in NUMBER.log; then status, seconds and those of CPU (user, system) in NUMBER.end, at once
    local n=$1 status TIMEFORMAT='%3R %3U %3S'
    shift
    { time CMOCKA_MESSAGE_OUTPUT=TAP "$@" >"$work/$n.log" 2>&1; } 2>"$work/$n.time"
    status=$?
    echo "$status $(cat "$work/$n.time")" >"$work/$n.new"
    mv "$work/$n.new" "$work/$n.end"
}

report() { # Those that have ended, up to the first that has not.
    while [ "$reported" -lt ${#names[@]} ] && [ -f "$work/$reported.end" ]; do
        count "${names[$reported]}" "$work/$reported.log" $(cat "$work/$reported.end")
        rm -f "$work/$reported".*
        reported=$((reported + 1))
    done
}

count() { # name, log, status, seconds, of CPU: user, system
    local name=$1 log=$2 status=$3 ms=$((10#${4/[.,]/})) cpu=$((10#${5/[.,]/} + 10#${6/[.,]/})) ok bad skip
    cpu_ms=$((cpu_ms + cpu))
    skip=$(grep -Eci '^(not )?ok .*# *skip' "$log") # cmocka says "not ok N # SKIP name".
    ok=$(($(grep -c '^ok ' "$log") + $(grep -Eci '^not ok .*# *skip' "$log")))
    bad=$(($(grep -c '^not ok ' "$log") - $(grep -Eci '^not ok .*# *skip' "$log")))
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$status" -eq 0 ] && [ "$ok" -eq 0 ] && [ "$bad" -eq 0 ]; then bad=1; echo "no test ran" >>"$log"; fi
    passed=$((passed + ok - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-52s %4d passed %3d failed %3d skipped %4d s, CPU %3d.%d s\n' "$name" $((ok - skip)) "$bad" "$skip" $((ms / 1000)) $((cpu / 1000)) $((cpu / 100 % 10))
    grep -Ei '^(not )?ok .*# *skip' "$log" | sed 's/^/    /'
    if [ "$bad" -ne 0 ]; then sed 's/^/    /' "$log" | tail -n 60; fi
}

unit_programs() { # build folder
    local program
    for program in $(find "$1/tests/unit" -type f -executable -name 'test_*' | sort); do beside "$program" "$program"; done
}

case ${1:-all} in
unit) unit_programs "${BUILD:-build}" ;;
all)
    for part in tests/suites/*.sh; do . "$part"; done
    ;;
*) echo "usage: tests/run.sh unit|all" >&2; exit 2 ;;
esac
beside_done
for name in "${names[@]:$reported}"; do # Killed together with the shell that was to say how it ended.
    echo "$name: did not end"
    failed=$((failed + 1))
done
echo "$SECONDS s in all, CPU $((cpu_ms / 1000)) s"
if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
