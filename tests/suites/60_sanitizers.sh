# Unit tests under AddressSanitizer with UndefinedBehaviorSanitizer (one build) and, those with threads, ThreadSanitizer. OpenMP's runtime is not built
# for ThreadSanitizer, so there parallel loops run on one thread and what is tested are our own threads (loader, page, bench, engine).
sanitized() { # mode, tests (a find pattern)
    local mode=$1 pattern=$2 program
    suite "build $mode" bash -c "make -s -j\$(nproc) MODE=$mode unit-programs && echo 'ok 1 - built'"
    for program in $(find "build/$mode/tests/unit" -type f -executable -name 'test_*' 2>/dev/null | grep -E "$pattern" | sort); do
        suite "$program" env ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
            OMP_WAIT_POLICY=passive OMP_NUM_THREADS="$([ "$mode" = tsan ] && echo 1 || echo 2)" "$program"
    done
}
sanitized asan .
sanitized tsan '(loader|test_tokenize|test_tokenizer|test_engine|test_engine_load)$'
suite "server, asan" env LATEEN=build/asan/lateen timeout 200 tests/e2e/serve.sh raw life
suite "server, tsan" env LATEEN=build/tsan/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 timeout 200 tests/e2e/serve.sh raw life
suite "load, asan" env LATEEN=build/asan/lateen BENCH=build/lateen timeout 200 tests/e2e/serve_load.sh 5 64
suite "load, tsan" env LATEEN=build/tsan/lateen BENCH=build/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 timeout 200 tests/e2e/serve_load.sh 5 64
suite "verbs with threads, tsan" env LATEEN=build/tsan/lateen tests/e2e/threads.sh
