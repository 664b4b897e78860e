# shellcheck shell=bash
# Builds and unit tests under sanitizers, for tests/suites/60_sanitizers.sh (a smoke test) and tests/long/sanitizers.sh (all of it). Modes: asan is
# AddressSanitizer with UndefinedBehaviorSanitizer, tsan is ThreadSanitizer. OpenMP's runtime is not built for ThreadSanitizer, so parallel loops run on
# one thread there, and only Lateen's own threads are tested (loader, page, bench, engine).
long_first='(train/test_device|test_ahead|test_engine|test_engine_load|test_tokenize|test_tokenizer|test_tokenizer_exact)$'
# The smoke test runs tests of rooms that read foreign input, except those that compute (the engine and its sampling, GPUs), and of sources that no fuzz target links;
# tests of Lateen's own threads; objects without instrumentation.
not_strangers='tokenize|tokenizer|tokenizer_exact|pick|ahead|draft|draft_device|draft_head|draft_lengths|draft_model|engine|engine_load|scheduler|launch'
not_strangers+='|adapters|background|beam|blend|coded_prompts|confidence|device|devices|families_gpu|guidance|health_work|narrow|page_host|refresh|scores|select|steering|warm|window'
not_strangers+='|agent|controller|environment|events|goldfish|lease|loader|make|memory|nodes|progress|sandbox|score|worker_pool'
smoke_strangers="^tests/unit/(base|data|platform|serve)/test_($(printf '%s\n' tests/unit/{base,data,platform,serve}/test_*.c | sed -E 's|.*/test_(.*)\.c|\1|' |
    grep -vxE "$not_strangers" | paste -sd '|'))$"
smoke_threads='(data/test_loader|test_engine_load|test_compile)$'
smoke_lent='src/kernels/%.o src/model/%.o src/tensor/%.o src/plan/%.o src/train/%.o src/cli/%.o src/align/%.o src/comm/%.o src/parallel/%.o src/platform/%.o tests/ops/%.o'
sanitized_names() { # tests (a pattern)
    find tests/unit -name 'test_*.c' | sed 's/\.c$//' | grep -E "$1" | sort
}
# mode, tests, objects taken from the release build (patterns of make); beside_done must follow
sanitized_build() {
    local mode=$1
    beside -t 1800 "build $mode" bash -c "make -s -j\$(nproc) MODE=$mode BORROW='$3' all $(sanitized_names "$2" | sed "s|^|build/$mode/|" | tr '\n' ' ') && printf 'ok 1 - built\n1..1\n'"
}
sanitized_run() { # mode, tests, threads of a parallel loop; long tests first, so that none runs alone at the end
    local mode=$1 program
    for program in $(sanitized_names "$2" | grep -E "$long_first") $(sanitized_names "$2" | grep -vE "$long_first"); do
        beside -t 900 "build/$mode/$program" env ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
            OMP_WAIT_POLICY=passive OMP_NUM_THREADS="$3" "build/$mode/$program"
    done
}
