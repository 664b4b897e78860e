#!/usr/bin/env bash
# Run one fuzz target for some seconds, from its seeds, in a scratch folder; print one TAP line.
#   tests/fuzz/smoke.sh NAME SECONDS [more libFuzzer flags]      FUZZ_MODE: which build runs (fuzz; rules.mk)
set -u
cd "$(dirname "$0")/../.."
name=$1 seconds=$2 mode=${FUZZ_MODE:-fuzz}
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
seeds=tests/fuzz/corpus/$name
mkdir "$scratch/corpus"
[ -f tests/fuzz/dict/"$name".dict ] && set -- "$@" -dict=tests/fuzz/dict/"$name".dict
[ -f tests/fuzz/flags/"$name" ] && set -- "$@" $(cat tests/fuzz/flags/"$name")
[ -d "$seeds" ] && cp "$seeds"/* "$scratch/corpus/"
if LSAN_OPTIONS=exitcode=77 build/$mode/fuzz_"$name" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$scratch/" "$@" "$scratch/corpus" >"$scratch/log" 2>&1; then
    echo "ok - fuzz $name, $(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/log") executions"
else
    echo "not ok - fuzz $name"
    tail -n 40 "$scratch/log" | sed 's/^/# /'
    for crash in "$scratch"/crash-* "$scratch"/timeout-* "$scratch"/oom-* "$scratch"/leak-*; do
        [ -f "$crash" ] && { mkdir -p build/fuzz/found && cp "$crash" build/fuzz/found/ && echo "# kept build/fuzz/found/$(basename "$crash")"; }
    done
    echo 1..1
    exit 1
fi
echo 1..1
