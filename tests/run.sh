#!/usr/bin/env bash
# Run tests and print one closing line "N passed, N failed[, N skipped]".
#   tests/run.sh unit          the unit test programs of one build ($BUILD, default build)
#   tests/run.sh all | long    the suites of tests/suites (make test), of tests/long (make test-long)
#   tests/run.sh FOLDER        the suites of another folder: its *.sh are sourced in the order of their names
# A test program or suite writes TAP: lines "ok N - name", "not ok N - name", "ok N # SKIP why". It shows that it ran to its end by one plan "1..N",
# first or last, that equals the number of its results, or, if it does not count them, by "# end" as its last line. A program that neither fails nor
# runs to its end counts as one failure, whatever its exit status; so does a failing status without a "not ok".
# Every suite has a deadline. A suite that misses it is killed with all its children, counts as a failure, and the last lines of its output are shown.
#   DEADLINE_FACTOR    a whole number that multiplies all deadlines, for slow or busy machines (1)
set -u
cd "$(dirname "$0")/.."
# Threads that wait sleep: on a machine that does other work too, spinning at barriers takes 100 times the time of small tests.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# Every training measures the peak of its device for the rate that it reports, which took half of the time of small ones. tests/e2e/train_decides.py and test_peak measure it.
export LATEEN_PEAK_GFLOPS=${LATEEN_PEAK_GFLOPS:-1000}
factor=${DEADLINE_FACTOR:-1}
case $factor in '' | *[!0-9]* | 0*) echo "tests/run.sh: DEADLINE_FACTOR '$factor' is not a whole number from 1" >&2; exit 2 ;; esac
# Seconds that the suites of `make test` may take together, on two cores; if they take more, the
# end of the output says so.
budget_s=900
deadline_s=300
passed=0 failed=0 skipped=0 cpu_ms=0
names=() limits=() reported=0 # Of suites in the order of their start; how many have been counted and printed.
waiting=()                    # Suites that sleep and are not yet started: their words, quoted.
declare -A sleeper            # By the process of a suite that sleeps.
work=$(mktemp -d)
# Every process of a suite inherits LATEEN_SUITE=$mark$number, by which it is found, whatever its
# parent or its group is now.
# A runner within a suite appends its own mark to that of the suite.
mark="${LATEEN_SUITE:-};$$."
trap 'end_processes "$mark"; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

end_processes() { # the prefix of their marks
    local files round
    for round in 1 2 3 4 5; do # Again, for processes that were just being started.
        files=$(grep -lzsE "^LATEEN_SUITE=${1//./\\.}" /proc/[0-9]*/environ)
        if [ -z "$files" ]; then return; fi
        kill -KILL $(sed -E 's|/proc/([0-9]+)/.*|\1|' <<<"$files") 2>/dev/null
    done
}

# A suite is counted and printed in the order of its start, whenever it ends; the output of one that fails is shown.
#   suite [-t S] NAME COMMAND...    alone, when all earlier ones have ended: what is timed or takes all cores
#   skipped NAME WHY                instead of one that this machine cannot run
#   beside [-t S] NAME COMMAND...   at the same time as other such ones, one more than there are cores, because each sometimes sleeps: what takes one core
#   beside_done                     waits until all of these have ended: after builds
#   waits [-t S] NAME COMMAND...    at the same time as all of the above, two at once: what mostly sleeps, so that it takes no core from them
# -t S: its deadline in seconds, if it needs another than the usual one.
suite() {
    beside_done
    start "$@"
    beside_done
}

beside() {
    until_fewer "$slots"
    start "$@"
    report # After the start, so that no core is idle meanwhile.
}

waits() {
    waiting+=("$(printf '%q ' "$@")")
    start_waiting
}

until_fewer() { # number: of suites that compute
    while start_waiting && [ "$n_computing" -ge "$1" ]; do wait -n; done
}

count_running() { # n_computing, n_sleeping; not in a pipeline, where the shell does not know its jobs
    local pid
    n_computing=0 n_sleeping=0
    for pid in $(jobs -pr); do
        if [ -n "${sleeper[$pid]-}" ]; then n_sleeping=$((n_sleeping + 1)); else n_computing=$((n_computing + 1)); fi
    done
}

start_waiting() {
    count_running
    while [ ${#waiting[@]} -gt 0 ] && [ "$n_sleeping" -lt 2 ]; do
        eval "start ${waiting[0]}"
        sleeper[$!]=1
        waiting=("${waiting[@]:1}")
        count_running
    done
}

start() { # [-t seconds] name, command...
    local limit=$deadline_s
    if [ "$1" = -t ]; then limit=$2; shift 2; fi
    names+=("$1")
    limits+=($((limit * factor)))
    run_numbered $((${#names[@]} - 1)) "${@:2}" </dev/null &
}

skipped() { # name, why: a suite that this machine cannot run
    beside "$1" printf 'ok 1 - %s # SKIP %s\n1..1\n' "$1" "$2"
}

beside_done() {
    until_fewer 1
    report
}
slots=$(($(nproc) + 1))

run_numbered() { # number, command...: its output in NUMBER.log; then status, seconds and those of CPU (user, system) in NUMBER.end, at once
    local n=$1 limit=${limits[$1]} status TIMEFORMAT='%3R %3U %3S' began=$SECONDS
    shift
    # TERM first, so that a script's trap can clean up; processes of any group that still run five
    # seconds later are killed.
    { time LATEEN_SUITE="$mark$n;" CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "$limit" "$@" >"$work/$n.log" 2>&1; } 2>"$work/$n.time"
    status=$?
    if [ $((SECONDS - began)) -ge "$limit" ] && [ "$status" -ge 124 ]; then
        status=late
        end_processes "$mark$n;"
    fi
    echo "$status $(tail -n 1 "$work/$n.time")" >"$work/$n.new"
    mv "$work/$n.new" "$work/$n.end"
}

report() { # The suites that have ended, up to the first that has not.
    while [ "$reported" -lt ${#names[@]} ] && [ -f "$work/$reported.end" ]; do
        count "${names[$reported]}" "$work/$reported.log" $(<"$work/$reported.end") "${limits[$reported]}"
        rm -f "$work/$reported".*
        reported=$((reported + 1))
    done
}

tally() { # log: results that passed, failed, were skipped; 1 if its last line is "# end"; the plans
    awk '{ end = $0 == "# end" }
        tolower($0) ~ /^(not )?ok .*# *skip/ { skip++; next } # cmocka says "not ok N # SKIP name".
        /^ok / { ok++ }
        /^not ok / { bad++ }
        /^1\.\.[0-9]+[ \t]*(#.*)?$/ { plans = plans " " substr($1, 4) + 0 }
        END { print ok + 0, bad + 0, skip + 0, end + 0 plans }' "$1"
}

why_incomplete() { # status, number of results, 1 if it ends with "# end", plans: false and the reason if this is not the whole output of a suite that passes
    local status=$1 n=$2 end=$3 plans=$4
    if [ "$status" -ne 0 ]; then echo "ended with status $status, but no test failed"
    elif [ "$n" -eq 0 ]; then echo "no test ran"
    elif [ -z "$plans" ]; then
        [ "$end" = 1 ] && return
        echo "stopped early: $n results, then neither a plan (1..$n) nor '# end' as the last line"
    elif [ "$plans" != "$n" ]; then echo "stopped early or lost results: $n results, planned: $plans"
    else return 0; fi
    return 1
}

reasons() { # log: each test that failed, with up to four of the lines that its program wrote about it ("# ...", below it)
    awk '/^not ok / && tolower($0) !~ /# *skip/ { print; about = 4; next }
        /^#/ && about > 0 { print; about--; next }
        { about = 0 }' "$1"
}

count() { # name, log, status, seconds, of CPU: user, system; deadline
    local name=$1 log=$2 status=$3 ms=$((10#${4/[.,]/})) cpu=$((10#${5/[.,]/} + 10#${6/[.,]/})) ok bad skip end plans
    cpu_ms=$((cpu_ms + cpu))
    read -r ok bad skip end plans < <(tally "$log")
    if [ "$3" = late ]; then
        bad=$((bad + 1))
        echo "$name missed its deadline of $7 s and was ended with all its children (DEADLINE_FACTOR=$factor); above: its last lines" >>"$log"
    elif [ "$bad" -eq 0 ]; then why_incomplete "$status" $((ok + skip)) "$end" "$plans" >"$log.why" || { bad=1; cat "$log.why" >>"$log"; }
    fi
    echo "$ms $cpu $name" >>"$work/times"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-52s %4d passed %3d failed %3d skipped %4d s, CPU %3d.%d s\n' "$name" "$ok" "$bad" "$skip" $((ms / 1000)) $((cpu / 1000)) $((cpu / 100 % 10))
    if [ "$skip" -ne 0 ]; then grep -Ei '^(not )?ok .*# *skip' "$log" | sed 's/^/    /'; fi
    if [ "$bad" -ne 0 ]; then
        sed 's/^/    /' "$log" | tail -n 60
        { echo "    $name"; reasons "$log" | head -n 30 | sed 's/^/        /'; tail -n 3 "$log" | sed 's/^/        | /'; } >>"$work/failures"
    fi
}

unit_programs() { # build folder
    local program
    for program in $(find "$1/tests/unit" -type f -executable -name 'test_*' | sort); do beside "$program" "$program"; done
}

suites_of() { # folder
    local part
    for part in "$1"/*.sh; do . "$part"; done
}

case ${1:-all} in
unit) unit_programs "${BUILD:-build}" ;;
all) suites_of tests/suites ;;
long) suites_of tests/long ;;
*)
    if [ ! -d "$1" ]; then echo "usage: tests/run.sh unit|all|long|FOLDER" >&2; exit 2; fi
    suites_of "$1" ;;
esac
while start_waiting && [ $((n_computing + n_sleeping)) -gt 0 ]; do wait -n; done
report
for name in "${names[@]:$reported}"; do # It was killed together with the shell that would have recorded its end.
    echo "$name: did not end"
    failed=$((failed + 1))
done
most() { # column of "$work/times": 1: time, 2: CPU time
    sort -k "$1,$1nr" "$work/times" | head -n 10 | while read -r -a row; do
        printf '%7d s  %s\n' $((row[$1 - 1] / 1000)) "${row[*]:2}"
    done
}
echo "the most CPU time:"
most 2
echo "the slowest:"
most 1
if [ -f "$work/failures" ]; then # Repeated at the end: a reader of a long log may see only its last lines.
    echo "failed:"
    cat "$work/failures"
fi
echo "$SECONDS s in all, CPU $((cpu_ms / 1000)) s"
if [ "${1:-all}" = all ] && [ "$SECONDS" -gt "$budget_s" ]; then echo "more than the $budget_s s that make test should take: move what is slow to tests/long (tests/README.md)"; fi
if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
