#!/usr/bin/env bash
# Run the checks of attention, with repeats that must be bit-identical, in several processes on one GPU at once. Each process is interrupted at arbitrary points, which reveals code that is
# right only by its timing. Run by hand; it takes some minutes of an H100.
#   tests/gpu_crowd.sh [processes [rounds]]
set -u
cd "$(dirname "$0")/.." || exit
lateen=${LATEEN:-build/lateen} processes=${1:-6} rounds=${2:-3} logs=$(mktemp -d) failed=0
trap 'rm -rf "$logs"' EXIT
for round in $(seq "$rounds"); do
    pids=()
    for i in $(seq "$processes"); do
        "$lateen" bench kernels --op attention --check >"$logs/$round-$i" 2>&1 &
        pids+=($!)
    done
    for i in $(seq "$processes"); do
        if ! wait "${pids[i - 1]}"; then
            failed=$((failed + 1))
            echo "round $round, process $i:"
            tail -n 5 "$logs/$round-$i" | sed 's/^/    /'
        fi
    done
done
echo "$((processes * rounds - failed)) passed, $failed failed"
[ "$failed" = 0 ]
