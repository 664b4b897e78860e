# A smoke test of the sanitizers: rooms that read foreign input (base, data, platform, serve) under AddressSanitizer with UndefinedBehaviorSanitizer, and Lateen's own
# threads under ThreadSanitizer. Tests that mostly compute are left out. All other rooms are linked from the release build, without instrumentation.
# tests/long/sanitizers.sh covers all of them, and 60_fuzz.sh runs the parsers, those of tokenizers too, under AddressSanitizer.
. tests/sanitized.sh
lent='src/kernels/%.o src/model/%.o src/tensor/%.o src/plan/%.o src/train/%.o src/cli/%.o src/align/%.o src/comm/%.o src/parallel/%.o tests/ops/%.o'
strangers="^tests/unit/(base|data|platform|serve)/test_($(printf '%s\n' tests/unit/{base,data,platform,serve}/test_*.c | sed -E 's|.*/test_(.*)\.c|\1|' |
    grep -vxE 'tokenize|tokenizer|tokenizer_exact|pick|ahead|draft|draft_device|draft_head|draft_model|engine|engine_load|scheduler|launch' | paste -sd '|'))$"
own_threads='(data/test_loader|test_engine_load|test_compile)$'
sanitized_build asan "$strangers" "$lent"
sanitized_build tsan "$own_threads" "$lent src/platform/%.o"
sanitized_run tsan "$own_threads" 1
sanitized_run asan "$strangers" 2
beside "server, asan" env LATEEN=build/asan/lateen tests/e2e/serve.sh raw
beside "load, tsan" env LATEEN=build/tsan/lateen BENCH=build/lateen OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 tests/e2e/serve_load.sh 3 32
