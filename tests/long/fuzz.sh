# A minute of every fuzz target under ASan and UBSan (make test: a second of each). Longer, and counted in executions: tests/fuzz/long.sh.
if command -v clang >/dev/null; then
    suite -t 1200 "build fuzz targets" bash -c 'make -s -j"$(nproc)" fuzz && printf "ok 1 - built\n1..1\n"'
    for target in tests/fuzz/fuzz_*.c; do
        name=${target#tests/fuzz/fuzz_}
        beside -t $((${FUZZ_SECONDS:-60} + 120)) "fuzz ${name%.c}" tests/fuzz/smoke.sh "${name%.c}" "${FUZZ_SECONDS:-60}"
    done
else
    skipped "fuzz targets" "no clang"
fi
