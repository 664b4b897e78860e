# A second of every fuzz target under ASan and UBSan, or 10,000 runs, if they take less; built without optimisation. tests/long/fuzz.sh: a minute, optimised.
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
suite "fuzz targets in docs" bash -c fuzz_rows
if command -v clang >/dev/null; then
    suite -t 1200 "build fuzz targets" bash -c 'make -s -j"$(nproc)" fuzz FUZZ_MODE=fuzz-quick && printf "ok 1 - built\n1..1\n"'
    for target in tests/fuzz/fuzz_*.c; do
        name=${target#tests/fuzz/fuzz_}
        beside "fuzz ${name%.c}" env FUZZ_MODE=fuzz-quick tests/fuzz/smoke.sh "${name%.c}" "${FUZZ_SECONDS:-1}" -runs=10000
    done
else
    skipped "fuzz targets" "no clang"
fi
