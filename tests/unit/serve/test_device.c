/* Tokens chosen on a GPU, skipped without one: the engine there gives the output of the engine on
 * the CPU from the same weights in F32, request by request, with all kinds of requests in one
 * batch; and no request copies a row of logits to the host. The core cases (device.h) are all
 * kinds on one model, and half of the kinds on the others; of the types of keys, the one with the
 * fewest bits; one engine that has run all kinds of steps before the requests. */
#include "unit/serve/fleet.h"
#include "unit/serve/kinds.h"

#include "lateen/tokenizer.h"
#include "serve/grammar/grammar.h"
#include "tensor/backend.h"
#include "tensor/ops.h"

static const lt_backend *gpu;
static lt_backend counting; /* The GPU's, but its downloads are counted. */
static int64_t n_downloaded;

static lt_err count_download(lt_queue *q, void *dst, const void *src, size_t bytes) {
    n_downloaded += (int64_t)bytes;
    return gpu->download(q, dst, src, bytes);
}

static bool no_gpu(void) {
    if (gpu == NULL) {
        gpu = gpu_backend();
    }
    if (gpu != NULL) {
        counting = *gpu;
        counting.download = count_download;
    }
    return gpu == NULL;
}

enum { SEQ = 96 };

/* An engine on the GPU has run all kinds of steps before its first request. */
static bool warmed;

static void run(const lt_model *m, lt_dtype keys, lt_dtype values, int64_t n,
                const lt_grammar *grammar, answer *answers) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    int64_t n_compiled;
    o.max_running = 24;
    o.warm = core_only() && warmed ? LT_WARM_NONE : LT_WARM_ALL;
    warmed = warmed || m->backend == &counting;
    o.max_seq = SEQ;
    o.cache_dtype = keys;
    o.value_dtype = values;
    o.step_tokens = 80;
    n_compiled = counting.n_compiled(device_of(gpu));
    must(lt_engine_open(&e, m, &o), "engine");
    /* A preload leaves at most one. */
    assert_in_range(counting.n_compiled(device_of(gpu)) - n_compiled, 0, 1);
    for (int64_t i = 0; i < n; i++) {
        int32_t prompt[64];
        const lt_request r = request_of(i, prompt, lt_model_get_spec(m)->vocab_size, grammar);
        send(e, &r, &answers[i]);
    }
    receive_all(e, n, 0);
    lt_engine_close(e);
}

static void compare(const answer *got, const answer *want, int64_t i) {
    char what[48];
    (void)snprintf(what, sizeof what, "request %lld, of kind %lld", (long long)i,
                   (long long)i % KINDS);
    assert_int_equal(got->n_prompt_told, want->n_prompt_told);
    for (int64_t k = 0; k < want->n_prompt_told; k++) {
        assert_true(!(fabsf(got->prompt_logprobs[k] - want->prompt_logprobs[k]) > 1e-3f));
    }
    for (int s = 0; s < FLEET_CHOICES; s++) {
        const continuation *a = &got->choices[s], *b = &want->choices[s];
        assert_same(a, b, what);
        for (int64_t k = 0; k < a->n; k++) {
            if (fabsf(a->logprobs[k] - b->logprobs[k]) > 1e-3f || a->tops[k] != b->tops[k]) {
                fail_msg("%s, token %lld: log-probability %.6f, not %.6f, or others likely", what,
                         (long long)k, (double)a->logprobs[k], (double)b->logprobs[k]);
            }
        }
    }
}

static void compare_models(lt_model *on_gpu, lt_model *on_cpu, int64_t n, const lt_grammar *g) {
    static answer got[2 * KINDS], want[2 * KINDS];
    run(on_cpu, LT_DTYPE_COUNT, LT_DTYPE_COUNT, n, g, want);
    run(on_gpu, LT_DTYPE_COUNT, LT_DTYPE_COUNT, n, g, got);
    for (int64_t i = 0; i < n; i++) {
        compare(&got[i], &want[i], i);
    }
    lt_model_close(on_gpu);
    lt_model_close(on_cpu);
}

static int64_t requests(int64_t n) {
    return core_only() ? KINDS / 2 : n;
}

static void all_kinds_in_one_batch(void **state) {
    (void)state;
    if (no_gpu()) {
        skip();
    }
    for (int i = 0; i < 3; i++) { /* The second has a softcap, the third two blocks per row. */
        const int64_t V = i == 2 ? 16500 : 700;
        const float softcap = i == 1 ? 5.0f : 0.0f;
        compare_models(random_model_on(V, SEQ, LT_F32, softcap, &counting),
                       random_model_on(V, SEQ, LT_F32, softcap, NULL),
                       i == 0 ? 2 * KINDS : requests(i == 1 ? 2 * KINDS : KINDS), NULL);
    }
}

/* Keys and values of 8 or 4 bits: a key at the border of two codes may be rounded to the other
 * one, so not all tokens need be those of the CPU. */
static void keys_of_few_bits(void **state) {
    static const lt_dtype caches[][2] = {{LT_F8_E4M3, LT_F8_E4M3}, {LT_Q8_0, LT_Q8_0},
                                         {LT_Q4_0, LT_Q4_0},       {LT_F8_E4M3, LT_Q4_0},
                                         {LT_Q8_0, LT_Q4_0},       {LT_F32, LT_Q8_0}};
    static answer got[2 * KINDS], want[2 * KINDS];
    lt_model *on_gpu, *on_cpu;
    (void)state;
    if (no_gpu()) {
        skip();
    }
    on_gpu = random_model_of(700, SEQ, 32, LT_F32, 0.0f, &counting);
    on_cpu = random_model_of(700, SEQ, 32, LT_F32, 0.0f, NULL);
    for (size_t c = core_only() ? 2 : 0; c < sizeof caches / sizeof *caches; c++) {
        const int64_t n = requests(2 * KINDS);
        int64_t same = 0, tokens = 0;
        run(on_cpu, caches[c][0], caches[c][1], n, NULL, want);
        run(on_gpu, caches[c][0], caches[c][1], n, NULL, got);
        for (int64_t i = 0; i < n; i++) {
            for (int s = 0; s < FLEET_CHOICES; s++) {
                const continuation *a = &got[i].choices[s], *b = &want[i].choices[s];
                for (int64_t k = 0; k < a->n && k < b->n && a->ids[k] == b->ids[k]; k++) {
                    same += fabsf(a->logprobs[k] - b->logprobs[k]) <= 1e-3f;
                }
                tokens += b->n;
            }
        }
        print_message("# %s, %s: %lld of %lld tokens are those of the CPU\n",
                      lt_dtype_name(caches[c][0]), lt_dtype_name(caches[c][1]), (long long)same,
                      (long long)tokens);
        assert_true(tokens > 100 && same * 10 >= tokens * 9);
    }
    lt_model_close(on_gpu);
    lt_model_close(on_cpu);
}

static void grammars_beside_others(void **state) {
    static const char folder[] = "tests/golden/stories260k/";
    static const char rule[] = "(Tom|Lily)( and (Tom|Lily))* (ran|sat)[.!]";
    char path[128];
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    lt_model *on_gpu = NULL, *on_cpu = NULL;
    (void)state;
    (void)snprintf(path, sizeof path, "%sstories260K.bin", folder);
    if (no_gpu()) {
        skip();
    }
    must(lt_model_open(&on_gpu, path, &(lt_model_options){.device = device_of(&counting)}), path);
    must(lt_model_open(&on_cpu, path, NULL), path);
    (void)snprintf(path, sizeof path, "%stok512.bin", folder);
    must(lt_tokenizer_open(&t, path, NULL), path);
    must(lt_grammar_vocab_open(&v, t, NULL, 0), "vocabulary");
    must(lt_grammar_open(&g, v, LT_GRAMMAR_REGEX, rule, sizeof rule - 1), rule);
    compare_models(on_gpu, on_cpu, requests(2 * KINDS), g);
    lt_grammar_close(g);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
}

/* Whatever is requested, a row brings only some bytes, and steps stay ahead; but a request with
 * more biases than a penalty state can hold brings its logits, and only those. */
static void no_row_is_copied_to_the_host(void **state) {
    enum { V = 2000, N = 6, MANY = LT_PENALTY_BIASES };
    static answer answers[N];
    static lt_logit_bias many[MANY];
    lt_model *m;
    (void)state;
    if (no_gpu()) {
        skip();
    }
    for (int32_t i = 0; i < MANY; i++) {
        many[i] = (lt_logit_bias){i, 1.0f};
    }
    m = random_model_on(V, SEQ, LT_F32, 0.0f, &counting);
    for (int on_host = 0; on_host < 2; on_host++) {
        lt_engine_options o = lt_engine_defaults();
        lt_engine *e = NULL;
        lt_engine_stats stats;
        int64_t n_host = 0;
        o.max_running = 8;
        o.max_seq = SEQ;
        must(lt_engine_open(&e, m, &o), "engine");
        n_downloaded = 0;
        for (int64_t i = 0; i < N; i++) {
            int32_t prompt[4] = {5, 6, 7, (int32_t)i};
            lt_request r = lt_request_defaults();
            r.prompt = prompt;
            r.n_prompt = 4;
            r.max_tokens = 20;
            r.min_tokens = i == 5 ? 9 : 0;
            r.ignore_eos = true;
            r.sampling.temperature = i % 2 == 0 ? 0.0 : 1.0;
            r.sampling.top_p = i % 3 == 0 ? 0.9 : 1.0;
            r.sampling.presence = i == 3 ? 0.5 : 0.0;
            r.sampling.repetition = i == 2 ? 1.2 : 1.0;
            r.sampling.typical_p = i == 1 ? 0.7 : 1.0;
            r.sampling.bias = many;
            r.sampling.n_bias = on_host > 0 && i == 3 ? MANY : i == 4 ? 5 : 0;
            send(e, &r, &answers[i]);
        }
        receive_all(e, N, 0);
        lt_engine_get_stats(e, &stats);
        lt_engine_close(e);
        n_host = on_host > 0 ? answers[3].choices[0].n : 0;
        assert_int_equal(answers[3].choices[0].n, 20);
        assert_in_range(n_downloaded, n_host * V * 4, n_host * V * 4 + 40 * 8 * 12);
        assert_true(on_host > 0 || stats.steps_ahead >= 19);
    }
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_in_one_batch),
        cmocka_unit_test(keys_of_few_bits),
        cmocka_unit_test(grammars_beside_others),
        cmocka_unit_test(no_row_is_copied_to_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
