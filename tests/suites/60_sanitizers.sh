# Unit tests under AddressSanitizer with UndefinedBehaviorSanitizer (one build) and, those with threads, ThreadSanitizer. OpenMP's runtime is not built
# for ThreadSanitizer, so there parallel loops run on one thread and what is tested are our own threads (loader, page, bench, engine).
# The two builds come first, so that the tests of both can run side by side; of those, the long ones first, so that none is left over at the end.
long='(train/test_device|test_ahead|test_engine|test_engine_load|test_tokenize|test_tokenizer_exact)$'
sanitized_names() { # tests (a pattern)
    find tests/unit -name 'test_*.c' | sed 's/\.c$//' | grep -E "$1" | sort
}
# What no test runs on this machine is linked from the release build: kernels of the instruction sets that are not this CPU's (optest alone runs them,
# and two tests that go through every set's norms and optimisers); the launchers of the GPU's kernels where there is no GPU.
never_run() { # objects, for BORROW
    local chosen isa file
    chosen=$(build/lateen doctor --no-measure --json | sed -n 's/.*"kernels": "\(.*\)".*/\1/p')
    for isa in portable avx2 avx512; do
        for file in src/kernels/cpu/isa/*.c; do
            case $chosen:$file in :* | "$isa:"* | */norm.c | */optim.c) ;; *) echo "${file%.c}.$isa.o" ;; esac
        done
    done
    [ -e /dev/nvidiactl ] || printf 'src/kernels/cuda/%s/%%.o\n' attention gemm ops sgemm
}
sanitized_build() { # mode, tests
    local mode=$1
    suite -t 1200 "build $mode" bash -c "make -s -j\$(nproc) MODE=$mode BORROW='$(never_run | tr '\n' ' ')' all $(sanitized_names "$2" | sed "s|^|build/$mode/|" | tr '\n' ' ') && printf 'ok 1 - built\n1..1\n'"
}
sanitized_run() { # mode, tests, threads of a parallel loop
    local mode=$1 program
    for program in $(sanitized_names "$2" | grep -E "$long") $(sanitized_names "$2" | grep -vE "$long"); do
        beside "build/$mode/$program" env ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
            OMP_WAIT_POLICY=passive OMP_NUM_THREADS="$3" "build/$mode/$program"
    done
}
with_threads='(loader|test_weights|test_tokenize|test_tokenizer|test_engine|test_engine_load|test_ahead|test_compile|test_refresh)$'
sanitized_build asan .
sanitized_build tsan "$with_threads"
sanitized_run tsan "$with_threads" 1
sanitized_run asan . 2
beside "server, asan" env LATEEN=build/asan/lateen tests/e2e/serve.sh raw life state
beside "server, tsan" env LATEEN=build/tsan/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve.sh raw life state
beside "load, asan" env LATEEN=build/asan/lateen BENCH=build/lateen tests/e2e/serve_load.sh 5 64
beside "load, tsan" env LATEEN=build/tsan/lateen BENCH=build/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve_load.sh 5 64
beside "verbs with threads, tsan" env LATEEN=build/tsan/lateen tests/e2e/threads.sh
