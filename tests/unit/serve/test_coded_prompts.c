/* Prompts over keys and values of 8 and 4 bits on a GPU: the kernel for prompts, which reads a
 * copy in 16 bits, gives the results of the one for a fixed order, which reads the codes. Skipped
 * without a GPU; the two differ only on Hopper (LATEEN_EMU_CAPABILITY=90 on the emulated GPU). */
#include "unit/serve/texts.h"

enum { TEXTS = 4 };

/* The most likely token after a text. */
static void first_of(lt_engine *e, uint64_t text, answer *a) {
    int32_t prompt[PROMPT];
    lt_request r;
    fill_prompt(prompt, PROMPT, V, text);
    r = text_request(prompt);
    r.max_tokens = 1;
    r.logprobs = 1;
    r.sampling.temperature = 0.0f;
    send(e, &r, a);
    receive_all(e, 1, 0);
}

static void answers_of(const lt_model *m, lt_dtype cache, bool fixed_order, answer *out) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.deterministic = fixed_order;
    o.max_running = 8;
    o.max_seq = SEQ;
    o.cache_dtype = cache;
    must(lt_engine_open(&e, m, &o), "engine");
    for (uint64_t text = 0; text < TEXTS; text++) {
        first_of(e, text, &out[text]);
    }
    lt_engine_close(e);
}

static void both_kernels_agree_on_prompts(void **state) {
    static const lt_dtype caches[] = {LT_BF16, LT_F8_E4M3, LT_Q8_0, LT_Q4_0};
    static answer got[TEXTS], want[TEXTS];
    lt_model *m;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    m = random_model_of(V, SEQ, 64, LT_BF16, 0.0f, gpu_backend());
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        answers_of(m, caches[c], true, want);
        answers_of(m, caches[c], false, got);
        float apart = 0.0f;
        for (int t = 0; t < TEXTS; t++) {
            const continuation *a = &got[t].choices[0], *b = &want[t].choices[0];
            assert_true(a->n == 1 && b->n == 1 && b->logprobs[0] < 0.0f);
            apart += fabsf(a->logprobs[0] - b->logprobs[0]) / TEXTS;
        }
        print_message("# %s: %.4f apart\n", lt_dtype_name(caches[c]), (double)apart);
        assert_true(apart <= 0.1f); /* A few keys may get a neighbouring code. */
    }
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_kernels_agree_on_prompts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
