# A short run of every fuzz target under ASan and UBSan. Sourced by tests/run.sh.
if command -v clang >/dev/null; then
    suite "build fuzz targets" bash -c 'make -s -j"$(nproc)" fuzz && echo "ok 1 - built"'
    for target in tests/fuzz/fuzz_*.c; do
        name=${target#tests/fuzz/fuzz_}
        beside "fuzz ${name%.c}" tests/fuzz/smoke.sh "${name%.c}" "${FUZZ_SECONDS:-2}"
    done
else
    suite "fuzz targets" echo "ok 1 - fuzz # SKIP no clang"
fi
