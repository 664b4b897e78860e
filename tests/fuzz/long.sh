#!/usr/bin/env bash
# A long run by hand: every fuzz target for N executions, in pieces, as many at once as there are cores. A crash is kept, and the piece continues with the
# executions that are left. FUZZ_OUT records what was done, so that the same command continues after a break. Prints a table, and exits with 1 if anything
# was found.
#   tests/fuzz/long.sh [N] [TARGET...]        N: executions of each target, default 10000000
#   FUZZ_BIN     folder of the fuzz_* programs      (build/fuzz)
#   FUZZ_OUT     corpora, logs and what was found   (build/fuzz/long)
#   FUZZ_JOBS    pieces at once                     (number of cores)
#   FUZZ_PIECES  pieces of each target              (4)
#   FUZZ_SECONDS stop after this many seconds, to continue later (none)
# SIGUSR1 to its process group stops it at once; the work is counted and can be continued.
set -u
stop=
trap 'stop=1' USR1
here=$(cd "$(dirname "$0")" && pwd)
total=${1:-10000000}
[ $# -gt 0 ] && shift
bin=$(realpath -m "${FUZZ_BIN:-$here/../../build/fuzz}") out=$(realpath -m "${FUZZ_OUT:-$here/../../build/fuzz/long}")
jobs=${FUZZ_JOBS:-$(nproc)} pieces=${FUZZ_PIECES:-4}
crashes_max=20 # Per piece: a bug that is hit at once must not fill the disk.
mkdir -p "$out/state"
# The folder with recipes/, which has the planner's tables.
cd "$here" && { [ -d recipes ] || cd ../..; } || exit 1
targets=("$@")
if [ $# -eq 0 ]; then
    for f in "$bin"/fuzz_*; do [ -x "$f" ] && [ -f "$f" ] && targets+=("${f##*/fuzz_}"); done
fi

left() { # seconds left of FUZZ_SECONDS
    echo $((${stop:+0 *} (${FUZZ_SECONDS:-1000000} - SECONDS)))
}

piece() { # target, number: its share of the executions; state file: executions seconds crashes
    local name=$1 i=$2 share=$((total / pieces)) n status started done=0 spent=0 found=0 args=()
    local corpus=$out/$name.$i.corpus state=$out/state/$name.$i last=$out/$name.$i.last
    trap 'stop=1' USR1 # A subshell does not inherit the trap.
    [ -f "$state" ] && read -r done spent found <"$state"
    mkdir -p "$corpus" "$out/$name.found"
    [ -d "$here/corpus/$name" ] && cp -n "$here/corpus/$name"/* "$corpus/" 2>/dev/null
    [ -f "$here/dict/$name.dict" ] && args+=(-dict="$here/dict/$name.dict")
    [ -f "$here/flags/$name" ] && args+=($(cat "$here/flags/$name"))
    while [ "$done" -lt "$share" ] && [ "$found" -lt "$crashes_max" ] && [ "$(left)" -gt 2 ]; do
        started=$SECONDS
        ASAN_OPTIONS=quarantine_size_mb=8:malloc_context_size=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
            "$bin/fuzz_$name" "${args[@]}" -runs=$((share - done)) -max_total_time="$(left)" -rss_limit_mb=4096 -malloc_limit_mb=4096 -timeout=30 \
            -print_final_stats=1 -artifact_prefix="$out/$name.found/" "$corpus" >"$last" 2>&1
        status=$?
        n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$last" | tail -1)
        [ -n "$n" ] || n=$(sed -nE 's/^#([0-9]+)[[:space:]].*/\1/p' "$last" | tail -1)
        done=$((done + ${n:-1})) spent=$((spent + SECONDS - started))
        if [ $status -ne 0 ]; then
            found=$((found + 1))
            tail -n 60 "$last" >>"$out/$name.log"
        fi
        echo "$done $spent $found" >"$state"
    done
}

echo "$total executions of each of ${#targets[@]} targets in $pieces pieces, $jobs at once; found inputs: $out/TARGET.found, logs: $out/TARGET.log"
for ((i = 0; i < pieces; i++)); do
    for name in "${targets[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        piece "$name" "$i" &
    done
done
while [ -n "$(jobs -rp)" ]; do wait; done
rm -rf /dev/shm/lateen-fuzz-??????
printf '%-16s %12s %14s %8s\n' target executions "exec/s a core" crashes
for name in "${targets[@]}"; do
    cat "$out/state/$name".* 2>/dev/null | awk -v name="$name" '{ d += $1; s += $2; c += $3 } END { printf "%-16s %12d %14d %8d\n", name, d, d / (s > 0 ? s : 1), c }'
done | tee "$out/table"
! awk '$4 > 0 { bad = 1 } END { exit !bad }' "$out/table"
