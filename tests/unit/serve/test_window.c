/* Models in which all layers have a sliding window: the engine gives the output of a session,
 * which keeps all keys; a sequence fits in a pool much smaller than itself; the prefix cache
 * finds what it may, and nothing else. */
#include "unit/serve/fleet.h"

enum { WINDOW = 24, PAGE = 16, STEP = 64, MOST = 9 /* pages of a sequence: (24 + 64) / 16 + 3 */ };
enum { N_PROMPT = 150, N_NEW = 90, VOCAB = 300 };

static lt_model *model_of(int64_t window, int64_t window_every, lt_dtype dtype,
                          const lt_backend *backend) {
    const lt_model_spec spec = {.family = LT_FAMILY_MISTRAL,
                                .n_layers = 2,
                                .width = 64,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 64, /* So that the GPU's fast kernels apply. */
                                .ffn_width = 96,
                                .vocab_size = VOCAB,
                                .max_seq = 256,
                                .norm_eps = 1e-5f,
                                .act = 2, /* SiLU. */
                                .gated = true,
                                .embed_scale = 1.0f,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .window = window,
                                .window_every = window_every,
                                .bos_id = 1,
                                .eos = {.ids = {2}, .n = 1},
                                .pad_id = -1,
                                .init_std = 0.15f};
    lt_model *m = NULL;
    must(lt_model_create(&m, &spec,
                         &(lt_model_options){.dtype = dtype, .device = device_of(backend)}, 7),
         "model");
    return m;
}

/* pages 0: as many as four sequences can need. */
static lt_engine *engine_of(const lt_model *m, int64_t pages) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_running = 4;
    o.page_tokens = PAGE;
    o.step_tokens = STEP;
    o.deterministic = true;
    o.cache_bytes = pages > 0 ? bytes_of_pages(m, &o, pages) : 0;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static lt_request request_of(const int32_t *prompt, int64_t n_prompt, int64_t n_new) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = n_new;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    return r;
}

enum { N = 4 };
static int32_t prompts[N][N_PROMPT];

/* Four texts at once, in a pool of this many pages. */
static void run_four(const lt_model *m, int64_t pages, answer *answers) {
    lt_engine *e = engine_of(m, pages);
    lt_engine_cache c;
    lt_engine_stats stats;
    lt_engine_get_cache(e, &c);
    assert_int_equal(c.window, WINDOW);
    assert_int_equal(c.pages, pages > 0 ? pages : N * MOST);
    assert_int_equal(c.most_pages, MOST);
    assert_int_equal(c.max_seq, 256);
    for (int i = 0; i < N; i++) {
        const lt_request r = request_of(prompts[i], N_PROMPT - 40 * i, N_NEW);
        fill_prompt(prompts[i], N_PROMPT, VOCAB, (uint64_t)i);
        send(e, &r, &answers[i]);
    }
    receive_all(e, N, 0);
    assert_no_page_held(e);
    lt_engine_get_stats(e, &stats);
    assert_true(stats.pages_cached <= c.pages);
    lt_engine_close(e);
}

static void small_pool_on(const lt_backend *backend) {
    static answer answers[N];
    lt_model *m = model_of(WINDOW, 0, LT_F32, backend), *judge = model_of(WINDOW, 0, LT_F32, NULL);
    run_four(m, MOST, answers);
    for (int i = 0; i < N; i++) {
        continuation want;
        greedy_session(judge, prompts[i], N_PROMPT - 40 * i, N_NEW, &want);
        assert_same(&answers[i].choices[0], &want, "a text in a small pool");
    }
    lt_model_close(judge);
    lt_model_close(m);
}

/* The pool is as large as one sequence needs; four that run together preempt each other. */
static void long_texts_fit_small_pools(void **state) {
    (void)state;
    small_pool_on(NULL);
    if (gpu_backend() != NULL) {
        small_pool_on(gpu_backend());
    }
}

/* A GPU's kernels read tiles of keys that include pages which were given back. These have others'
 * keys in a small pool, and mostly their own in a large one: the bits are the same. */
static void pages_given_back_do_not_matter(void **state) {
    static answer small[N], large[N];
    lt_model *m = gpu_backend() != NULL ? model_of(WINDOW, 0, LT_BF16, gpu_backend())
                                        : model_of(WINDOW, 0, LT_F32, NULL);
    (void)state;
    run_four(m, MOST, small);
    run_four(m, 0, large);
    for (int i = 0; i < N; i++) {
        assert_equal(&small[i].choices[0], &large[i].choices[0], "in a small and in a large pool");
    }
    lt_model_close(m);
}

/* How many pages does a text of 240 tokens, 15 pages, hold at most while it is written? It may
 * end before it is observed. */
static void a_stream_holds_its_window(void **state) {
    static int32_t prompt[N_PROMPT];
    static answer a;
    lt_model *m = model_of(WINDOW, 0, LT_F32, NULL);
    lt_engine *e = engine_of(m, 0);
    const lt_request r = request_of(prompt, N_PROMPT, N_NEW);
    lt_engine_stats stats;
    int64_t most = 0;
    (void)state;
    fill_prompt(prompt, N_PROMPT, VOCAB, 1);
    send(e, &r, &a);
    while (receive(e, 0) == 0) {
        lt_engine_get_stats(e, &stats);
        if (a.n_tokens > 1) { /* The last piece of the prompt still held more. */
            most = stats.pages_used > most ? stats.pages_used : most;
        }
    }
    assert_true(most <= WINDOW / PAGE + 3);
    lt_engine_close(e);
    lt_model_close(m);
}

static int64_t ask(lt_engine *e, const int32_t *prompt, int64_t n, answer *a) {
    const lt_request r = request_of(prompt, n, 8);
    send(e, &r, a);
    receive_all(e, 1, 0);
    return a->cached_tokens;
}

static void beginnings_are_shared_if_their_window_is_there(void **state) {
    static int32_t prompt[N_PROMPT];
    static answer first, again, other;
    lt_model *m = model_of(WINDOW, 0, LT_F32, NULL);
    lt_engine *e = engine_of(m, 0), *small = engine_of(m, MOST);
    continuation want;
    (void)state;
    fill_prompt(prompt, N_PROMPT, VOCAB, 1);
    greedy_session(m, prompt, N_PROMPT, 8, &want);
    assert_int_equal(ask(e, prompt, N_PROMPT, &first), 0);
    assert_int_equal(ask(e, prompt, N_PROMPT, &again), 144);
    /* A shorter text: its own window is there, too. */
    assert_int_equal(ask(e, prompt, 100, &other), 96);
    assert_same(&first.choices[0], &want, "computed");
    assert_same(&again.choices[0], &want, "from the cache");
    /* In a small pool the pages before the window are gone; those in it suffice. */
    assert_int_equal(ask(small, prompt, N_PROMPT, &first), 0);
    assert_int_equal(ask(small, prompt, N_PROMPT, &again), 144);
    assert_same(&again.choices[0], &want, "from a small cache");
    assert_int_equal(ask(small, prompt, 20, &other), 0);
    /* Another first token: the last window has the same tokens, but not the same keys. */
    prompt[0] ^= 1;
    greedy_session(m, prompt, N_PROMPT, 8, &want);
    assert_int_equal(ask(e, prompt, N_PROMPT, &other), 0);
    assert_same(&other.choices[0], &want, "another beginning");
    lt_engine_close(small);
    lt_engine_close(e);
    lt_model_close(m);
}

/* A layer that sees all tokens needs all pages; so does a window as long as the text, which hides
 * nothing. (In test_page_groups.c only some layers see all.) */
static void other_models_keep_all_pages(void **state) {
    const int64_t kinds[][2] = {{256, 2}, {256, 0}, {0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        lt_model *m = model_of(kinds[i][0], kinds[i][1], LT_F32, NULL);
        lt_engine *e = engine_of(m, MOST);
        lt_engine_cache c;
        lt_engine_get_cache(e, &c);
        assert_int_equal(c.window, 0);
        assert_int_equal(c.max_seq, MOST * PAGE);
        lt_engine_close(e);
        lt_model_close(m);
    }
}

/* A file of pages begins with the first token. */
static void texts_longer_than_their_window_are_not_saved(void **state) {
    static int32_t prompt[N_PROMPT];
    static answer a;
    lt_model *m = model_of(WINDOW, 0, LT_F32, NULL);
    lt_engine *e = engine_of(m, 0);
    lt_engine_kept kept;
    (void)state;
    fill_prompt(prompt, N_PROMPT, VOCAB, 1);
    (void)ask(e, prompt, N_PROMPT, &a);
    assert_int_equal(lt_engine_save(e, "/nowhere/pages", 0, prompt, N_PROMPT, &kept),
                     LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "its first 112 lie behind the model's window"));
    assert_int_equal(lt_engine_erase(e, 0, prompt, N_PROMPT, &kept), LT_OK);
    assert_int_equal(kept.tokens, 144);
    assert_int_equal(ask(e, prompt, N_PROMPT, &a), 0);
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_texts_fit_small_pools),
        cmocka_unit_test(pages_given_back_do_not_matter),
        cmocka_unit_test(a_stream_holds_its_window),
        cmocka_unit_test(beginnings_are_shared_if_their_window_is_there),
        cmocka_unit_test(other_models_keep_all_pages),
        cmocka_unit_test(texts_longer_than_their_window_are_not_saved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
