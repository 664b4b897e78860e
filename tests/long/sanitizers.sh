# All unit tests under AddressSanitizer with UndefinedBehaviorSanitizer, those with threads under ThreadSanitizer, and the server, copies, the mirror and the shard cache with both.
. tests/sanitized.sh
# Objects that no test runs on this machine are linked from the release build: kernels of instruction sets that are not this CPU's (only optest runs them,
# and two tests that go through every set's norms and optimisers), and the launchers of GPU kernels where there is no GPU.
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
# Objects that make test's smoke test took from the release build must be built again, with instrumentation.
rm -f build/asan/liblateen.a build/asan/lateen build/tsan/liblateen.a build/tsan/lateen
with_threads='(loader|test_weights|test_tokenize|test_tokenizer|test_engine|test_engine_load|test_ahead|test_compile|test_refresh|test_devices)$'
sanitized_build asan . "$(never_run | tr '\n' ' ')"
sanitized_build tsan "$with_threads" "$(never_run | tr '\n' ' ')"
beside_done
sanitized_run tsan "$with_threads" 1
sanitized_run asan . 2
for what in "raw life" abuse safe state; do
    beside -t 900 "server, asan: $what" env LATEEN=build/asan/lateen tests/e2e/serve.sh $what
done
beside -t 900 "server, tsan" env LATEEN=build/tsan/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve.sh raw life
beside -t 900 "load, asan" env LATEEN=build/asan/lateen BENCH=build/lateen tests/e2e/serve_load.sh 5 64
beside -t 900 "load, tsan" env LATEEN=build/tsan/lateen BENCH=build/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve_load.sh 5 64
beside -t 900 "copies, asan" python3 tests/e2e/copies.py build/asan/lateen 20
beside -t 900 "copies, tsan" env TSAN_OPTIONS=halt_on_error=1 python3 tests/e2e/copies.py build/tsan/lateen 20
beside -t 900 "mirror, asan" python3 tests/e2e/mirror.py build/asan/lateen
beside -t 900 "mirror, tsan" env TSAN_OPTIONS=halt_on_error=1 python3 tests/e2e/mirror.py build/tsan/lateen
beside -t 900 "shards, asan" python3 tests/e2e/shards.py build/asan/lateen all
beside -t 900 "shards, tsan" env TSAN_OPTIONS=halt_on_error=1 python3 tests/e2e/shards.py build/tsan/lateen all
beside -t 900 "verbs with threads, tsan" env LATEEN=build/tsan/lateen tests/e2e/threads.sh
