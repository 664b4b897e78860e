# A smoke test of the sanitizers. AddressSanitizer with UndefinedBehaviorSanitizer: a second of
# every fuzz target, or 2,000 runs if they take less, and the unit tests of code that reads
# foreign input in base, data, platform and serve, all from the same objects, built by clang
# without optimisation. ThreadSanitizer: Lateen's own threads. Tests that mostly compute are left
# out, and everything else, including the engine of serve, is linked from the release build,
# without instrumentation. tests/long/sanitizers.sh covers all of them; tests/long/fuzz.sh: a
# minute of each target, optimised. 05_build.sh has built all of it.
. tests/sanitized.sh
fuzz_rows() {
    local target n=0
    . tests/tap.sh
    for target in tests/fuzz/fuzz_*.c; do
        target=${target#tests/fuzz/fuzz_}
        grep -q "^| ${target%.c} | " tests/fuzz/README.md || { echo "# no row: ${target%.c}"; n=$((n + 1)); }
    done
    say "every fuzz target has a row in tests/fuzz/README.md" "$n"
    finish
}
export -f fuzz_rows
beside "fuzz targets in docs" bash -c fuzz_rows
sanitized_run tsan "$smoke_threads" 1
beside "load, tsan" env LATEEN=build/tsan/lateen BENCH=build/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve_load.sh 3 32
if command -v clang >/dev/null; then
    beside "server, asan" env LATEEN=build/fuzz-quick/lateen tests/e2e/serve.sh raw
    sanitized_run fuzz-quick "$smoke_strangers" 2
    for target in tests/fuzz/fuzz_*.c; do
        name=${target#tests/fuzz/fuzz_}
        beside "fuzz ${name%.c}" env FUZZ_MODE=fuzz-quick tests/fuzz/smoke.sh "${name%.c}" "${FUZZ_SECONDS:-1}" -runs=2000
    done
else
    skipped "fuzz targets, and unit tests under asan" "no clang"
fi
