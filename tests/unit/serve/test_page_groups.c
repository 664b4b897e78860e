/* Models in which some layers have a sliding window: with a group of pages for each kind of layer
 * the engine gives, bit for bit in deterministic mode, the output that it gives when it keeps all
 * pages, and that of a session; a sequence holds what the formula allows; the prefix cache finds
 * what it may, and nothing else; a saved file does not depend on the groups. */
#define FLEET_CHOICES 4
#include "unit/serve/fleet.h"

/* Of six layers the third and the last see all tokens: one group of them, two of the others. For
 * the longest text, 16 sets of pages, the former hold 16 pages, and the latter 9 each: (24 + 64)
 * / 16 + 3. */
enum { WINDOW = 24, PAGE = 16, STEP = 64, GROUPS = 3, MOST = 16 + 2 * 9, ALL = 16 };
enum { N_PROMPT = 150, N_NEW = 90, VOCAB = 300, N = 4 };

static lt_model *model_of(lt_dtype dtype, const lt_backend *backend) {
    const lt_model_spec spec = {.family = LT_FAMILY_MISTRAL,
                                .n_layers = 6,
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
                                .window = WINDOW,
                                .window_every = 3,
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

typedef struct {
    int64_t pages;     /* 0: as many as four sequences can need. */
    bool whole, draft; /* draft: n-grams. */
    lt_dtype cache;    /* LT_DTYPE_COUNT: that of the model. */
} kind;

static const kind large = {0, false, false, LT_DTYPE_COUNT};

static lt_engine *engine_of(const lt_model *m, kind k) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_running = 4;
    o.page_tokens = PAGE;
    o.step_tokens = STEP;
    o.deterministic = true;
    o.whole_pages = k.whole;
    o.cache_dtype = o.value_dtype = k.cache;
    o.speculate = k.draft ? LT_SPECULATE_NGRAM : LT_SPECULATE_NONE;
    o.draft_tokens = k.draft ? 6 : 0;
    o.draft_branches = k.draft ? 3 : 0;
    o.cache_bytes = k.pages > 0 ? bytes_of_pages(m, &o, k.pages) : 0;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static lt_request request_of(const int32_t *prompt, int64_t n_prompt, int64_t n_new) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = n_new;
    r.ignore_eos = true;
    r.logprobs = 0;
    r.sampling.temperature = 0;
    return r;
}

static int32_t prompts[N][N_PROMPT];

/* Four texts at once. The last repeats itself, so that its drafts are often right; the third has
 * four choices. */
static void run_four(const lt_model *m, kind k, answer *answers) {
    lt_engine *e = engine_of(m, k);
    for (int i = 0; i < N; i++) {
        lt_request r = request_of(prompts[i], N_PROMPT - 40 * i, N_NEW);
        fill_prompt(prompts[i], N_PROMPT, VOCAB, (uint64_t)i);
        for (int64_t p = 6; p < N_PROMPT && i == N - 1; p++) {
            prompts[i][p] = prompts[i][p - 6];
        }
        if (i == 2) {
            r.n_choices = FLEET_CHOICES;
            r.sampling.temperature = 1.0;
            r.sampling.seed = 5;
        }
        send(e, &r, &answers[i]);
    }
    receive_all(e, N, 0);
    assert_no_page_held(e);
    lt_engine_close(e);
}

static void assert_all_equal(const answer *a, const answer *b, const char *what) {
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < (i == 2 ? FLEET_CHOICES : 1); k++) {
            assert_equal(&a[i].choices[k], &b[i].choices[k], what);
        }
    }
}

/* The pages that are held follow the formula; without groups, or if groups save nothing, these
 * are all. */
static void memory_follows_the_formula(void **state) {
    static const struct {
        kind k;
        int64_t max_seq, groups, windowed, layers, most;
    } rows[] = {
        {{0, false, false, LT_DTYPE_COUNT}, 256, GROUPS, 2, 2, MOST},
        {{0, true, false, LT_DTYPE_COUNT}, 256, 1, 0, 6, ALL},
        {{MOST, false, false, LT_DTYPE_COUNT}, 256, GROUPS, 2, 2, MOST},
        /* 12 + 2 x 9, and 3 x 8 pages. */
        {{30, false, false, LT_DTYPE_COUNT}, 192, GROUPS, 2, 2, 30},
        {{26, false, false, LT_DTYPE_COUNT}, 128, GROUPS, 2, 2, 24},
    };
    lt_model *m = model_of(LT_F32, NULL);
    const int64_t layer_bytes = 2 * PAGE * 2 * 64 * 4;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_engine *e = engine_of(m, rows[i].k);
        lt_engine_cache c;
        lt_engine_get_cache(e, &c);
        assert_int_equal(c.groups, rows[i].groups);
        assert_int_equal(c.windowed_groups, rows[i].windowed);
        assert_int_equal(c.window, rows[i].windowed > 0 ? WINDOW : 0);
        assert_int_equal(c.page_layers, rows[i].layers);
        assert_int_equal(c.page_bytes, rows[i].layers * layer_bytes);
        assert_int_equal(c.max_seq, rows[i].max_seq);
        assert_int_equal(c.most_pages, rows[i].most);
        assert_int_equal(c.pages, rows[i].k.pages > 0 ? rows[i].k.pages : N * rows[i].most);
        lt_engine_close(e);
    }
    lt_model_close(m);
}

static void small_pool_on(const lt_backend *backend) {
    static answer answers[N];
    lt_model *m = model_of(LT_F32, backend), *judge = model_of(LT_F32, NULL);
    run_four(m, (kind){MOST, false, false, LT_DTYPE_COUNT}, answers);
    for (int i = 0; i < N; i++) {
        continuation want;
        greedy_session(judge, prompts[i], N_PROMPT - 40 * i, N_NEW, &want);
        if (i != 2) {
            assert_same(&answers[i].choices[0], &want, "a text in a small pool");
        }
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

/* With groups, in a small and in a large pool, and without: forks, drafts, preempted texts, and
 * keys and values in few bits. */
static void groups_change_no_bit(void **state) {
    static answer whole[N], groups[N];
    static const lt_dtype types[] = {LT_DTYPE_COUNT, LT_Q8_0, LT_F8_E4M3};
    const bool gpu = gpu_backend() != NULL;
    lt_model *m = model_of(gpu ? LT_BF16 : LT_F32, gpu ? gpu_backend() : NULL);
    (void)state;
    for (size_t i = 0; i < 3 && (i == 0 || !core_only()); i++) {
        run_four(m, (kind){0, true, false, types[i]}, whole);
        run_four(m, (kind){0, false, false, types[i]}, groups);
        assert_all_equal(whole, groups, "in a large pool");
        run_four(m, (kind){MOST, false, false, types[i]}, groups);
        assert_all_equal(whole, groups, "in a small pool");
    }
    run_four(m, (kind){0, true, false, LT_DTYPE_COUNT}, whole);
    run_four(m, (kind){MOST, false, true, LT_DTYPE_COUNT}, groups);
    assert_all_equal(whole, groups, "with drafts in a small pool");
    assert_true(groups[N - 1].drafted > 0);
    lt_model_close(m);
}

/* How many pages does a text of 240 tokens hold at most while it is written? Fifteen sets: 15
 * pages of the layers that see all tokens, and 5 of each other group; not 45. It may end before
 * it is observed. */
static void a_stream_holds_its_window(void **state) {
    static int32_t prompt[N_PROMPT];
    static answer a;
    lt_model *m = model_of(LT_F32, NULL);
    lt_engine *e = engine_of(m, large);
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
    assert_true(most <= 15 + 2 * (WINDOW / PAGE + 3));
    lt_engine_close(e);
    lt_model_close(m);
}

static int64_t ask(lt_engine *e, const int32_t *prompt, int64_t n, answer *a) {
    const lt_request r = request_of(prompt, n, 8);
    send(e, &r, a);
    receive_all(e, 1, 0);
    return a->cached_tokens;
}

static void beginnings_are_shared_if_all_groups_have_them(void **state) {
    static int32_t prompt[N_PROMPT], others[N_PROMPT];
    static answer first, again, other;
    lt_model *m = model_of(LT_F32, NULL);
    lt_engine *e = engine_of(m, large),
              *small = engine_of(m, (kind){MOST, false, false, LT_DTYPE_COUNT}),
              *whole = engine_of(m, (kind){0, true, false, LT_DTYPE_COUNT});
    (void)state;
    fill_prompt(prompt, N_PROMPT, VOCAB, 1);
    fill_prompt(others, N_PROMPT, VOCAB, 2);
    assert_int_equal(ask(whole, prompt, N_PROMPT, &first), 0);
    assert_int_equal(ask(e, prompt, N_PROMPT, &other), 0);
    assert_int_equal(ask(e, prompt, N_PROMPT, &again), 144);
    assert_equal(&first.choices[0], &other.choices[0], "computed");
    assert_equal(&first.choices[0], &again.choices[0], "from the cache");
    /* A shorter text: its window is there, too. */
    assert_int_equal(ask(e, prompt, 100, &other), 96);
    /* In a small pool the pages before the window are gone; those in it suffice. */
    assert_int_equal(ask(small, prompt, N_PROMPT, &other), 0);
    assert_int_equal(ask(small, prompt, N_PROMPT, &again), 144);
    assert_equal(&first.choices[0], &again.choices[0], "from a small cache");
    /* Its windowed pages are evicted first; those of the longer text may be there without those
     * of the shorter one. */
    (void)ask(small, others, 100, &other);
    assert_int_equal(ask(small, prompt, 100, &other), 0);
    /* Another first token: the last window has the same tokens, but not the same keys. */
    prompt[0] ^= 1;
    assert_int_equal(ask(whole, prompt, N_PROMPT, &first), 0);
    assert_int_equal(ask(e, prompt, N_PROMPT, &other), 0);
    assert_equal(&first.choices[0], &other.choices[0], "another beginning");
    lt_engine_close(whole);
    lt_engine_close(small);
    lt_engine_close(e);
    lt_model_close(m);
}

/* A file has the keys and values of all layers of a text, so an engine with whole pages writes
 * it, and one with groups reads it. */
static void files_do_not_depend_on_groups(void **state) {
    static int32_t prompt[N_PROMPT];
    static answer first, again;
    char path[] = "/tmp/lateen-test-groups-XXXXXX";
    const int fd = mkstemp(path);
    lt_model *m = model_of(LT_F32, NULL);
    lt_engine *e = engine_of(m, large),
              *whole = engine_of(m, (kind){0, true, false, LT_DTYPE_COUNT});
    lt_engine_kept kept;
    (void)state;
    assert_true(fd >= 0);
    fill_prompt(prompt, N_PROMPT, VOCAB, 1);
    (void)ask(whole, prompt, N_PROMPT, &first);
    must(lt_engine_save(whole, path, 0, prompt, N_PROMPT, &kept), "save");
    assert_int_equal(kept.tokens, 144);
    must(lt_engine_restore(e, path, 0, &kept), "restore");
    assert_int_equal(kept.tokens, 144);
    assert_int_equal(ask(e, prompt, N_PROMPT, &again), 144);
    assert_equal(&first.choices[0], &again.choices[0], "from a file");
    assert_int_equal(ask(e, prompt, 60, &again), 48); /* All of it is there. */
    assert_int_equal(lt_engine_save(e, path, 0, prompt, N_PROMPT, &kept), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "its first 112 lie behind the model's window"));
    must(lt_engine_erase(e, 0, prompt, N_PROMPT, &kept), "erase");
    assert_int_equal(kept.tokens, 144);
    assert_int_equal(ask(e, prompt, N_PROMPT, &again), 0);
    lt_engine_close(whole);
    lt_engine_close(e);
    lt_model_close(m);
    close(fd);
    unlink(path);
}

/* Models written by transformers, with windows of 7 tokens; sessions have been compared with its
 * logits (test_session.c, test_paged_forward.c). */
static void models_of_the_families(void **state) {
    static const char *const names[] = {"gemma2", "gemma3", "gpt_oss"};
    static answer answers[N];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        lt_engine_options o = lt_engine_defaults();
        lt_model *m = NULL;
        lt_engine *e = NULL;
        lt_engine_cache c;
        snprintf(path, sizeof path, "tests/golden/model/%s", names[i]);
        must(lt_model_open(&m, path, &(lt_model_options){.dtype = LT_F32}), path);
        o.max_running = 4;
        o.step_tokens = 12;
        o.max_seq = 160;
        o.deterministic = true;
        o.cache_bytes = bytes_of_pages(m, &o, 24);
        must(lt_engine_open(&e, m, &o), path);
        lt_engine_get_cache(e, &c);
        assert_true(c.groups == 3 && c.windowed_groups == 2 && c.window == 7);
        for (int k = 0; k < N; k++) {
            const lt_request r = request_of(prompts[k], 60 - 10 * k, 40);
            fill_prompt(prompts[k], N_PROMPT, lt_model_get_spec(m)->vocab_size, (uint64_t)k);
            send(e, &r, &answers[k]);
        }
        receive_all(e, N, 0);
        for (int k = 0; k < N; k++) {
            continuation want;
            greedy_session(m, prompts[k], 60 - 10 * k, 40, &want);
            assert_same(&answers[k].choices[0], &want, names[i]);
        }
        lt_engine_close(e);
        lt_model_close(m);
    }
}

/* Features that need pages of all layers have them. */
static void other_features_keep_all_pages(void **state) {
    lt_model *m = model_of(LT_F32, NULL);
    char folder[] = "/tmp/lateen-test-groups-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 3; i++) {
        lt_engine_options o = lt_engine_defaults();
        const lt_model *beside = m;
        lt_engine *e = NULL;
        lt_engine_cache c;
        o.max_running = 2;
        o.page_tokens = PAGE;
        o.step_tokens = STEP;
        o.disk = i == 0 ? folder : NULL;
        o.disk_bytes = i == 0 ? 1 << 20 : 0;
        o.draft = i == 1 ? &beside : NULL;
        o.speculate = i == 1 ? LT_SPECULATE_MODEL : LT_SPECULATE_NONE;
        o.beside = i == 2 ? &beside : NULL;
        o.n_beside = i == 2;
        must(lt_engine_open(&e, m, &o), "engine");
        lt_engine_get_cache(e, &c);
        assert_int_equal(c.groups, 1);
        assert_int_equal(c.window, 0);
        assert_int_equal(c.page_layers, 6);
        assert_int_equal(c.most_pages, ALL);
        lt_engine_close(e);
    }
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_follows_the_formula),
        cmocka_unit_test(long_texts_fit_small_pools),
        cmocka_unit_test(groups_change_no_bit),
        cmocka_unit_test(a_stream_holds_its_window),
        cmocka_unit_test(beginnings_are_shared_if_all_groups_have_them),
        cmocka_unit_test(files_do_not_depend_on_groups),
        cmocka_unit_test(models_of_the_families),
        cmocka_unit_test(other_features_keep_all_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
