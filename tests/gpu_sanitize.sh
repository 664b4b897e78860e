#!/usr/bin/env bash
# Run the cases of every op on a GPU under compute-sanitizer, several ops at once; prints TAP. Run by hand; it takes some minutes of an H100.
#   tests/gpu_sanitize.sh [memcheck|racecheck|initcheck]... [op...]
# cuBLASLt's kernels are left out, because their faults cannot be fixed here. racecheck leaves out attention's kernels for Hopper: it does not understand mbarriers, and reports a race
# between a consumer's reading of its tile's place, or of log-sum-exps, and the next write, although a barrier of the ring separates them.
set -u
cd "$(dirname "$0")/.." || exit
export optest=${OPTEST:-build/optest} logs=${LOGS:-build/sanitize} seconds=${SANITIZE_SECONDS:-600}
mkdir -p "$logs"
tools=() ops=()
for word in "$@"; do
    case $word in
    memcheck | racecheck | initcheck) tools+=("$word") ;;
    *) ops+=("$word") ;;
    esac
done
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck initcheck)
[ ${#ops[@]} -gt 0 ] || mapfile -t ops < <(sed -n '/define LT_OP_MAP/,/^$/s/.*X(\([a-z_]*\),.*/\1/p' src/tensor/ops.h)

one() { # tool op: ok if the cases passed and the tool found nothing
    local log=$logs/$1-$2.log rc name skip=()
    for name in cublas cutlass nvjet gemmk1 gemv2 splitKreduce; do
        skip+=(--kernel-name-exclude "kernel_substring=$name")
    done
    for name in fwd bwd bwd_dq bwd_wide; do
        [ "$1" != racecheck ] || skip+=(--kernel-name-exclude "kernel_substring=attn_${name}_sm90")
    done
    timeout "$seconds" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 "${skip[@]}" \
        "$optest" --check --backend cuda --op "$2" >"$log" 2>&1
    rc=$?
    if [ $rc = 0 ]; then
        echo "ok - $1 $2: $(grep -E 'passed' "$log" | tail -1)"
    elif grep -q 'nothing ran' "$log"; then
        echo "ok - $1 $2 # SKIP no cases"
    else
        echo "not ok - $1 $2 (exit $rc): $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1), see $log"
    fi
}
export -f one
for tool in "${tools[@]}"; do
    printf "$tool %s\n" "${ops[@]}"
done | xargs -P "${JOBS:-8}" -L 1 bash -c "one \$1 \$2" _ | tee "$logs/tap"
! grep -q '^not ok' "$logs/tap"
