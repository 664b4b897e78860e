/* The engine against one session at a time: all families, greedily; then against itself, bit for
 * bit in deterministic mode: alone and among 64, from the prefix cache and without it, forked and
 * separate, preempted and not. */
#include "unit/serve/fleet.h"

#include <malloc.h>

#include "base/thread.h"
#include "lateen/tokenizer.h"
#include "serve/grammar/grammar.h"
#include "tensor/backend.h"

static const char *const families[] = {
    "model/gpt2",    "model/gpt2_scaled", "model/llama3",         "model/llama_bias",
    "model/qwen2",   "model/qwen3",       "model/gemma2",         "model/gemma3",
    "model/apertus", "model/mixtral",     "model/switch",         "model/phi3",
    "model/yarn",    "model/mistral",     "rope/longrope",        "rope/phi3",
    "model/olmo2",   "model/smollm3",     "model/granite",        "model/qwen3_moe",
    "model/phi4",    "model/gpt_oss",     "model/qwen3_moe_dense"};

static void families_agree_with_a_session(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        lt_model *m = NULL;
        char path[128];
        (void)snprintf(path, sizeof path, "tests/golden/%s", families[f]);
        must(lt_model_open(&m, path, NULL), path);
        engine_says_what_a_session_says(m, m, families[f]);
        lt_model_close(m);
    }
}

/* A prompt that continues a short text may be a long text itself: it must not use the pages of
 * the short one, in which keys are rotated differently. */
static void long_prompts_take_no_pages_of_short_texts(void **state) {
    enum { SHORT = 12, LONG = 20, END = 30 };
    static const char *const cases[] = {"longrope", "phi3"};
    (void)state;
    for (int c = 0; c < 2; c++) {
        static answer answers[3];
        lt_engine_options o = lt_engine_defaults();
        lt_request r = lt_request_defaults();
        lt_engine_stats stats;
        lt_model *m = NULL;
        lt_engine *e = NULL;
        char path[128];
        int32_t prompt[LONG];
        continuation want;
        (void)snprintf(path, sizeof path, "tests/golden/rope/%s", cases[c]);
        must(lt_model_open(&m, path, NULL), path);
        o.max_seq = 40;
        o.page_tokens = 16;
        must(lt_engine_open(&e, m, &o), path);
        fill_prompt(prompt, SHORT, lt_model_get_spec(m)->vocab_size, 77);
        r.sampling.temperature = 0;
        r.ignore_eos = true;
        r.prompt = prompt;
        for (int i = 0; i < 3; i++) { /* The last one finds what the second left. */
            r.n_prompt = i == 0 ? SHORT : LONG;
            r.max_tokens = END - r.n_prompt;
            send(e, &r, &answers[i]);
            receive_all(e, 1, 0);
            greedy_session(m, prompt, r.n_prompt, r.max_tokens, &want);
            assert_same(&answers[i].choices[0], &want, cases[c]);
            memcpy(prompt + SHORT, answers[0].choices[0].ids, (LONG - SHORT) * sizeof *prompt);
        }
        lt_engine_get_stats(e, &stats);
        /* phi3 ran the first one again, as a long text. */
        assert_int_equal(stats.cached_tokens, c == 0 ? 16 : 32);
        lt_engine_close(e);
        lt_model_close(m);
    }
}

/* stories260K among other requests: equal to llama2.c's own test, to the byte. */
static void stories_equal_to_the_byte(void **state) {
    enum { OTHERS = 20, LEN = 200 };
    static const char folder[] = "tests/golden/stories260k/";
    static answer answers[OTHERS + 1];
    char path[128], want[4096], text[4096] = "";
    size_t used = 0, n_want;
    lt_tokenizer *t = NULL;
    lt_tokenizer_stream *out = NULL;
    lt_model *m = NULL;
    lt_engine *e = NULL;
    lt_request r = lt_request_defaults();
    const char *piece;
    size_t bytes;
    FILE *f;
    (void)state;
    (void)snprintf(path, sizeof path, "%sexpected_greedy_200.txt", folder);
    f = fopen(path, "r");
    assert_non_null(f);
    n_want = fread(want, 1, sizeof want, f);
    (void)fclose(f);
    while (n_want > 0 && want[n_want - 1] == '\n') {
        n_want--;
    }
    (void)snprintf(path, sizeof path, "%sstories260K.bin", folder);
    must(lt_model_open(&m, path, NULL), path);
    (void)snprintf(path, sizeof path, "%stok512.bin", folder);
    must(lt_tokenizer_open(&t, path, NULL), path);
    must(lt_tokenizer_stream_open(&out, t, true), path);
    must(lt_engine_open(&e, m, NULL), "engine");
    for (int32_t i = 0; i <= OTHERS; i++) {
        const int32_t prompt[] = {1, 300 + i};
        r.prompt = prompt;
        r.n_prompt = i == OTHERS / 2 ? 1 : 2;
        r.max_tokens = LEN;
        r.sampling.temperature = i % 3 == 0 ? 0.9 : 0;
        send(e, &r, &answers[i]);
    }
    receive_all(e, OTHERS + 1, 0);
    for (int64_t i = 0; i < answers[OTHERS / 2].choices[0].n; i++) {
        must(lt_tokenizer_stream_put(out, (uint32_t)answers[OTHERS / 2].choices[0].ids[i], &piece,
                                     &bytes),
             "token");
        memcpy(text + used, piece, bytes);
        used += bytes;
    }
    assert_true(used == n_want || (used > n_want && answers[OTHERS / 2].choices[0].n == LEN));
    assert_memory_equal(text, want, n_want);
    lt_tokenizer_stream_close(out);
    lt_tokenizer_close(t);
    lt_engine_close(e);
    lt_model_close(m);
}

/* Every choice of every seed follows the grammar, which leaves room for thinking if there is any,
 * and for the tokens that a budget forces; a request without a grammar is not affected. */
static void grammars_are_followed(void **state) {
    enum { N = 12 };
    static const char folder[] = "tests/golden/stories260k/";
    static const char *const rules[] = {"(Tom|Lily)( and (Tom|Lily))* (ran|sat)[.!]",
                                        "(.|\n)*(ran|sat)[.!]"};
    static answer answers[N + 1];
    char path[128];
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    lt_grammar *g[2] = {NULL};
    lt_model *m = NULL;
    lt_engine *e = NULL;
    lt_request r = lt_request_defaults();
    const int32_t prompt[] = {1, 300}, end[] = {400, 401};
    (void)state;
    (void)snprintf(path, sizeof path, "%sstories260K.bin", folder);
    must(lt_model_open(&m, path, NULL), path);
    (void)snprintf(path, sizeof path, "%stok512.bin", folder);
    must(lt_tokenizer_open(&t, path, NULL), path);
    must(lt_grammar_vocab_open(&v, t, NULL, 0), "vocabulary");
    for (int i = 0; i < 2; i++) {
        must(lt_grammar_open(&g[i], v, LT_GRAMMAR_REGEX, rules[i], strlen(rules[i])), rules[i]);
    }
    must(lt_engine_open(&e, m, NULL), "engine");
    r.prompt = prompt;
    r.n_prompt = 2;
    r.max_tokens = 120;
    r.n_choices = 3;
    for (int i = 0; i <= N; i++) {
        r.grammar = i < N ? g[i % 2] : NULL;
        r.sampling.seed = (uint64_t)i;
        r.think_end = end;
        r.n_think_end = i % 2 == 0 ? 0 : 2;
        r.think_budget = i % 2 == 0 ? -1 : 5;
        send(e, &r, &answers[i]);
    }
    receive_all(e, N + 1, 0);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 3; k++) {
            const continuation *c = &answers[i].choices[k];
            lt_grammar_state *s = NULL;
            must(lt_grammar_state_open(&s, g[i % 2]), "state");
            for (int64_t at = 0; at < c->n; at++) {
                must(lt_grammar_accept(s, c->ids[at]), "a token against the grammar");
            }
            assert_true(c->finish == LT_FINISH_GRAMMAR || c->finish == LT_FINISH_EOS ||
                        c->finish == LT_FINISH_LENGTH);
            assert_true(c->finish != LT_FINISH_GRAMMAR || lt_grammar_done(s));
            assert_true(i % 2 == 0 || memcmp(c->ids + 5, end, sizeof end) == 0);
            lt_grammar_state_close(s);
        }
    }
    lt_engine_close(e);
    lt_grammar_close(g[0]);
    lt_grammar_close(g[1]);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
    lt_model_close(m);
}

/* ---- deterministic mode ---- */

enum { V = 300, MANY = 64, SEQ = 160 };

static lt_request some_request(int64_t i, int32_t *prompt, const lt_model *m) {
    const lt_model_spec *spec = lt_model_get_spec(m);
    const int64_t most = (spec->max_seq < 64 ? spec->max_seq : spec->max_seq < SEQ ? 64 : SEQ) - 1;
    lt_request r = lt_request_defaults();
    r.n_prompt = 1 + i * 7 % (most < 60 ? most - 8 : 50);
    /* Some begin alike. */
    fill_prompt(prompt, r.n_prompt, spec->vocab_size, (uint64_t)(i % 5 == 0 ? 5 : i));
    r.prompt = prompt;
    r.max_tokens = 5 + i * 11 % 60;
    r.max_tokens = r.max_tokens < most - r.n_prompt ? r.max_tokens : most - r.n_prompt;
    r.logprobs = 0;
    r.ignore_eos = i % 2 == 0;
    r.sampling = (lt_sampling){.temperature = i % 4 == 0 ? 0 : 0.6 + (double)(i % 3) / 3,
                               .top_k = i % 3 == 0 ? 40 : 0,
                               .top_p = i % 5 == 0 ? 0.9 : 1.0,
                               .typical_p = i % 7 == 0 ? 0.95 : 1.0,
                               .min_p = i % 6 == 0 ? 0.02 : 0,
                               .repetition = i % 8 == 0 ? 1.1 : 1.0,
                               .seed = (uint64_t)i};
    return r;
}

/* Each request alone, without a prefix cache. */
static void run_alone(const lt_model *m, continuation *out, lt_engine_options o) {
    static answer a;
    lt_engine *e = NULL;
    o.prefix_cache = false;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < MANY; i++) {
        int32_t prompt[64];
        const lt_request r = some_request(i, prompt, m);
        send(e, &r, &a);
        receive_all(e, 1, 0);
        out[i] = a.choices[0];
    }
    lt_engine_close(e);
}

static void run_together(const lt_model *m, const continuation *want, lt_engine_options o,
                         const char *what, lt_engine_stats *stats) {
    static answer answers[2 * MANY];
    lt_engine *e = NULL;
    must(lt_engine_open(&e, m, &o), "engine");
    /* Each twice: the second finds the pages of the first. */
    for (int64_t i = 0; i < 2 * MANY; i++) {
        int32_t prompt[64];
        const lt_request r = some_request(i % MANY, prompt, m);
        send(e, &r, &answers[i]);
    }
    receive_all(e, 2 * MANY, 0);
    for (int64_t i = 0; i < 2 * MANY; i++) {
        assert_equal(&answers[i].choices[0], &want[i % MANY], what);
    }
    lt_engine_get_stats(e, stats);
    assert_int_equal(stats->pages_used, 0);
    lt_engine_close(e);
}

static lt_engine_options deterministic(void) {
    lt_engine_options o = lt_engine_defaults();
    o.deterministic = true;
    o.max_running = MANY;
    o.max_seq = SEQ;
    o.step_tokens = 128;
    return o;
}

static void other_requests_change_nothing(void **state) {
    const lt_dtype dtypes[] = {LT_F32, LT_BF16};
    static continuation want[MANY];
    (void)state;
    for (int d = 0; d < 2; d++) {
        lt_model *m = random_model(V, SEQ, dtypes[d]);
        lt_engine_options o = deterministic();
        lt_engine_stats stats;
        run_alone(m, want, o);
        run_together(m, want, o, "64 together", &stats);
        assert_true(stats.cached_tokens > 0);
        o.step_tokens = 70;
        o.max_running = 23;
        run_together(m, want, o, "23 together, prompts in pieces", &stats);
        o = deterministic();
        o.cache_bytes = 2 * 2 * 2 * 16 * (dtypes[d] == LT_F32 ? 4 : 2) * 16 * 14;
        run_together(m, want, o, "14 pages, preempted", &stats);
        assert_true(stats.preemptions > 0 && stats.pages == 14);
        lt_model_close(m);
    }
}

/* Requests whose texts have few different tokens, so that they repeat themselves. */
static void run_repeating(const lt_model *m, lt_engine_options o, answer *out,
                          lt_engine_stats *stats) {
    enum { N = 24 };
    lt_engine *e = NULL;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < N; i++) {
        int32_t prompt[64], allowed[] = {30, 31, 32, 33};
        lt_request r = some_request(i, prompt, m);
        r.allowed = allowed;
        r.n_allowed = 1 + i % 4;
        r.max_tokens = 40 + i;
        r.n_choices = 1 + i % 3;
        r.ignore_eos = i % 5 != 0;
        r.stop_ids = &allowed[3];
        r.n_stop_ids = i % 2;
        send(e, &r, &out[i]);
    }
    receive_all(e, N, 0);
    lt_engine_get_stats(e, stats);
    assert_int_equal(stats->pages_used, 0);
    lt_engine_close(e);
    for (int i = 0; i < N; i++) {
        assert_true(out[i].choices[0].n > 0);
    }
}

/* Speculation changes no bit: alone and together, with penalties, several choices, stops; in
 * pieces, preempted. */
static void speculation_changes_nothing(void **state) {
    static answer want[24], got[24];
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_model *other = random_model_on(V, SEQ, LT_F32, 1.0f, NULL);
    lt_engine_options o = deterministic();
    lt_engine_stats stats;
    (void)state;
    run_repeating(m, o, want, &stats);
    assert_int_equal(stats.drafted, 0);
    /* The last of each 5 reads more rows than logits are read at a time. */
    for (int i = 0; i < 30; i++) {
        const int kind = i % 5;
        const int kind_of = i / 5 % 3;
        const bool branches = i >= 15;
        /* The model itself, or one that knows nothing. */
        const lt_model *draft = kind_of < 2 ? m : other;
        o.speculate = kind_of == 0 ? LT_SPECULATE_NGRAM : LT_SPECULATE_MODEL;
        o.draft = kind_of == 0 ? NULL : &draft;
        o.draft_branches = !branches ? 1 : kind == 2 ? 0 : kind == 1 ? 2 : 4;
        /* 0: as the measured times suggest. */
        o.draft_tokens = kind == 2 ? 0 : kind == 4 ? 8 : 2 + kind;
        o.max_running = kind == 0 ? 1 : kind == 1 ? 3 : 40;
        o.step_tokens = kind == 1 ? 9 : kind == 4 ? 512 : 128;
        o.cache_bytes = kind == 3 ? (kind_of == 0 ? 1 : 2) * 2 * 2 * 2 * 16 * 4 * 16 * 14 : 0;
        run_repeating(m, o, got, &stats);
        for (int k = 0; k < 24; k++) {
            for (int c = 0; c <= k % 3; c++) {
                assert_equal(&got[k].choices[c], &want[k].choices[c], "with drafts");
            }
        }
        assert_true(kind == 2 || (stats.drafted > 1000 && stats.accepted > 500));
        assert_true(stats.accepted <= stats.drafted && (stats.preemptions > 0) == (kind == 3));
        assert_true(kind_of != 1 || branches || kind == 2 ||
                    stats.accepted > stats.drafted * 8 / 10);
        assert_true(kind == 2 || branches == (stats.branches > 0));
        assert_true(stats.branch_accepted <= stats.branch_drafted);
    }
    lt_model_close(m);
    lt_model_close(other);
}

/* Keys and values of 8 and 4 bits: alone and together, in pieces and preempted, forked, with
 * drafts. */
static void coded_caches_change_no_bit(void **state) {
    static const struct {
        lt_dtype keys, values;
        int64_t page_bytes; /* 16 tokens of 2 layers with 2 heads of 32 dimensions. */
    } caches[] = {{LT_F8_E4M3, LT_DTYPE_COUNT, 64 * (32 + 32)},
                  {LT_Q8_0, LT_Q4_0, 64 * (34 + 18)},
                  {LT_F32, LT_Q8_0, 64 * (128 + 34)},
                  {LT_Q4_0, LT_DTYPE_COUNT, 64 * (18 + 18)}};
    static continuation want[MANY];
    static answer plain[24], drafted[24];
    lt_model *m = random_model_of(V, SEQ, 32, LT_F32, 0.0f, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        lt_engine_options o = deterministic();
        lt_engine_stats stats;
        o.cache_dtype = caches[i].keys;
        o.value_dtype = caches[i].values;
        run_alone(m, want, o);
        o.cache_bytes = caches[i].page_bytes * 14;
        run_together(m, want, o, "14 pages, preempted", &stats);
        assert_true(stats.preemptions > 0 && stats.cached_tokens > 0 && stats.pages == 14);
        run_repeating(m, o, plain, &stats);
        o.cache_bytes = 0;
        o.speculate = LT_SPECULATE_NGRAM;
        o.draft_tokens = 4;
        run_repeating(m, o, drafted, &stats);
        assert_true(stats.accepted > 0);
        for (int k = 0; k < 24; k++) {
            for (int c = 0; c <= k % 3; c++) {
                assert_equal(&drafted[k].choices[c], &plain[k].choices[c], "with drafts");
            }
        }
    }
    lt_model_close(m);
}

static void caches_that_do_not_fit_are_refused(void **state) {
    static const lt_dtype bad[] = {LT_Q8_0, LT_Q4_0, LT_F8_E5M2, LT_Q4_K, LT_F64};
    lt_model *m = random_model(V, SEQ, LT_F32); /* Heads of 16. */
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lt_engine_options o = lt_engine_defaults();
        lt_engine *e = NULL;
        o.value_dtype = bad[i];
        assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), lt_dtype_name(bad[i])));
        assert_null(e);
    }
    lt_model_close(m);
}

/* Windows, experts, learned positions. */
static void other_requests_change_nothing_in_any_family(void **state) {
    static continuation want[MANY];
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        lt_model *m = NULL;
        lt_engine_options o = deterministic();
        lt_engine_stats stats;
        char path[128];
        (void)snprintf(path, sizeof path, "tests/golden/%s", families[f]);
        must(lt_model_open(&m, path, NULL), path);
        o.max_seq = lt_model_get_spec(m)->max_seq < 64 ? lt_model_get_spec(m)->max_seq : 64;
        run_alone(m, want, o);
        run_together(m, want, o, families[f], &stats);
        lt_model_close(m);
    }
}

__attribute__((unused)) static void threads_change_nothing(void **state) {
    static continuation want[MANY];
    lt_model *m = random_model(V, SEQ, LT_F32);
    const int before = lt_thread_count();
    lt_engine_stats stats;
    (void)state;
    lt_thread_set_count(1);
    run_alone(m, want, deterministic());
    lt_thread_set_count(3);
    run_together(m, want, deterministic(), "3 threads", &stats);
    lt_thread_set_count(before);
    lt_model_close(m);
}

/* ---- forks ---- */

static void choices_are_separate_requests(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine_options o = deterministic();
    (void)state;
    for (int max_running = 2; max_running <= 8; max_running += 6) {
        static answer together, again;
        lt_engine *e = NULL;
        int32_t prompt[64];
        lt_request r = some_request(9, prompt, m);
        o.max_running = max_running;
        must(lt_engine_open(&e, m, &o), "engine");
        r.n_choices = FLEET_CHOICES;
        r.n_prompt = 37;
        r.max_tokens = 40;
        fill_prompt(prompt, 37, V, 3);
        send(e, &r, &together);
        receive_all(e, 1, 0);
        send(e, &r, &again);
        receive_all(e, 1, 0);
        for (int i = 0; i < FLEET_CHOICES; i++) {
            assert_equal(&together.choices[i], &again.choices[i], "the same request again");
            assert_true(together.choices[i].n > 0);
            for (int k = 0; k < i; k++) {
                assert_true(memcmp(together.choices[i].ids, together.choices[k].ids,
                                   20 * sizeof(int32_t)) != 0);
            }
        }
        r.n_choices = 1; /* The first choice is what a single request gives. */
        send(e, &r, &again);
        receive_all(e, 1, 0);
        assert_equal(&together.choices[0], &again.choices[0], "choice 0 and a single request");
        lt_engine_close(e);
    }
    lt_model_close(m);
}

/* A text that was stopped after any number of tokens and is continued has the tokens of one that
 * was not: sampling, penalties, bad sequences, thinking and its budget, min_tokens and max_tokens
 * continue where they were. */
static void continued_texts_are_the_same(void **state) {
    enum { N = 20, LEN = 30, CHOICES = 3 };
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    static answer whole, rest;
    int32_t prompt[N + LEN], end[] = {250, 251, 252}, bad[2];
    const int64_t bad_ends[] = {2};
    lt_engine_options o = deterministic();
    lt_request r = lt_request_defaults();
    (void)state;
    must(lt_engine_open(&e, m, &o), "engine");
    fill_prompt(prompt, N, V, 5);
    r.prompt = prompt;
    r.n_prompt = N;
    r.n_choices = CHOICES;
    r.max_tokens = LEN;
    r.min_tokens = LEN - 3;
    r.logprobs = 2;
    r.sampling.temperature = 0.7;
    r.sampling.frequency = 0.4;
    r.sampling.presence = 0.3;
    r.sampling.seed = 11;
    send(e, &r, &whole); /* Its text without a ban shows what to ban. */
    receive_all(e, 1, 0);
    memcpy(bad, whole.choices[0].ids + 3, sizeof bad);
    r.bad = bad;
    r.bad_ends = bad_ends;
    r.n_bad = 1;
    r.think_end = end;
    r.n_think_end = 3;
    r.think_budget = 10;
    send(e, &r, &whole);
    receive_all(e, 1, 0);
    assert_memory_equal(whole.choices[0].ids + 10, end, sizeof end);
    for (int c = 0; c < CHOICES; c++) {
        const continuation *all = &whole.choices[c];
        for (int64_t k = 0; k < all->n; k++) {
            const continuation *more = &rest.choices[0];
            lt_request one = r;
            memcpy(prompt + N, all->ids, (size_t)k * sizeof *prompt);
            one.n_prompt = N + k;
            one.n_given = k;
            one.first_choice = c;
            one.n_choices = 1;
            send(e, &one, &rest);
            receive_all(e, 1, 0);
            assert_int_equal(more->n, all->n - k);
            assert_int_equal(more->finish, all->finish);
            assert_memory_equal(more->ids, all->ids + k, (size_t)more->n * sizeof *more->ids);
            assert_memory_equal(more->logprobs, all->logprobs + k,
                                (size_t)more->n * sizeof *more->logprobs);
        }
    }
    lt_engine_close(e);
    lt_model_close(m);
}

/* ---- what requests may ask for ---- */

static void log_probabilities_of_prompts(void **state) {
    enum { N = 45 };
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    static float logits[N * V];
    static answer a;
    int32_t prompt[N];
    lt_session *s = NULL;
    lt_engine_options o = deterministic();
    lt_request r = lt_request_defaults();
    (void)state;
    fill_prompt(prompt, N, V, 1);
    o.max_running = 4;
    o.step_tokens = 16;
    must(lt_engine_open(&e, m, &o), "engine");
    r.prompt = prompt;
    r.n_prompt = N;
    r.prompt_logprobs = 3;
    r.max_tokens = 4;
    /* The cache must not hide the rows of the prompt. */
    for (int again = 0; again < 2; again++) {
        send(e, &r, &a);
        receive_all(e, 1, 0);
        assert_int_equal(a.n_prompt_told, N);
    }
    must(lt_session_open(&s, m, 1, N), "session");
    must(lt_session_eval_all(s, 0, prompt, N, logits), "prompt");
    for (int i = 1; i < N; i++) {
        double sum = 0;
        for (int v = 0; v < V; v++) {
            sum += exp((double)logits[(i - 1) * V + v]);
        }
        assert_true(fabs((double)a.prompt_logprobs[i] -
                         ((double)logits[(i - 1) * V + prompt[i]] - log(sum))) < 1e-4);
    }
    lt_session_close(s);
    lt_engine_close(e);
    lt_model_close(m);
}

static void embeddings_have_length_one(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    static answer a, b;
    int32_t prompt[64];
    lt_engine_options o = deterministic();
    lt_request r = lt_request_defaults();
    double square = 0;
    (void)state;
    fill_prompt(prompt, 64, V, 1);
    r.prompt = prompt;
    r.n_prompt = 60;
    r.embed = true;
    r.max_tokens = 0;
    o.max_running = 2;
    o.step_tokens = 9;
    must(lt_engine_open(&e, m, &o), "engine");
    send(e, &r, &a);
    receive_all(e, 1, 64);
    lt_engine_close(e);
    o.step_tokens = 200;
    must(lt_engine_open(&e, m, &o), "engine");
    send(e, &r, &b);
    receive_all(e, 1, 64);
    for (int i = 0; i < 64; i++) {
        square += (double)(a.embedding[i] * a.embedding[i]);
        assert_true(a.embedding[i] == b.embedding[i]);
    }
    assert_true(fabs(square - 1.0) < 1e-5);
    assert_int_equal(a.choices[0].finish, LT_FINISH_LENGTH);
    lt_engine_close(e);
    lt_model_close(m);
}

static void thinking_ends_on_time(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    static answer a;
    int32_t prompt[8], end[] = {250, 251, 252};
    lt_request r = lt_request_defaults();
    (void)state;
    fill_prompt(prompt, 8, V, 1);
    must(lt_engine_open(&e, m, NULL), "engine");
    r.prompt = prompt;
    r.n_prompt = 8;
    r.max_tokens = 20;
    r.min_tokens = 20;
    r.think_end = end;
    r.n_think_end = 3;
    r.think_budget = 10;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.choices[0].n, 20);
    assert_memory_equal(a.choices[0].ids + 10, end, sizeof end);
    lt_engine_close(e);
    lt_model_close(m);
}

static void endings(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    static answer free_run, a;
    int32_t prompt[8], stop;
    lt_request r = lt_request_defaults();
    (void)state;
    fill_prompt(prompt, 8, V, 1);
    must(lt_engine_open(&e, m, NULL), "engine");
    r.prompt = prompt;
    r.n_prompt = 8;
    r.max_tokens = 20;
    r.ignore_eos = true;
    r.sampling.seed = 5;
    send(e, &r, &free_run);
    receive_all(e, 1, 0);
    assert_int_equal(free_run.choices[0].finish, LT_FINISH_LENGTH);
    stop = free_run.choices[0].ids[6];
    r.stop_ids = &stop;
    r.n_stop_ids = 1;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.choices[0].finish, LT_FINISH_STOP_ID);
    assert_true(a.choices[0].n <= 7 && a.choices[0].ids[a.choices[0].n - 1] == stop);
    r.min_tokens = 20; /* The ending cannot be chosen before. */
    send(e, &r, &a);
    receive_all(e, 1, 0);
    assert_int_equal(a.choices[0].n, 20);
    assert_int_equal(a.choices[0].finish, LT_FINISH_LENGTH);
    lt_engine_close(e);
    lt_model_close(m);
}

/* The model's list of ends, and one given to the engine: each id ends a text, none before
 * min_tokens, none with ignore_eos unless it is requested. */
static void every_end_counts(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine_options o = lt_engine_defaults();
    static answer free_run, a;
    int32_t prompt[8];
    lt_request r = lt_request_defaults();
    (void)state;
    fill_prompt(prompt, 8, V, 1);
    r.prompt = prompt;
    r.n_prompt = 8;
    r.max_tokens = 20;
    r.sampling.seed = 5;
    for (int given = 0; given < 2; given++) {
        lt_engine *e = NULL;
        lt_ends *const ends = given ? &o.ends : &m->spec.eos;
        must(lt_engine_open(&e, m, NULL), "engine");
        r.ignore_eos = true;
        r.min_tokens = 0;
        r.n_stop_ids = 0;
        send(e, &r, &free_run);
        receive_all(e, 1, 0);
        lt_engine_close(e);
        *ends = (lt_ends){.n = 0};
        for (int64_t i = 6; i < 12; i++) {
            assert_true(lt_ends_add(ends, free_run.choices[0].ids[i]));
        }
        must(lt_engine_open(&e, m, &o), "engine");
        send(e, &r, &a); /* Ignored: the same text. */
        receive_all(e, 1, 0);
        assert_memory_equal(a.choices[0].ids, free_run.choices[0].ids, 20 * sizeof(int32_t));
        r.stop_ids = &ends->ids[ends->n - 1];
        r.n_stop_ids = 1;
        send(e, &r, &a); /* Requested by name, although the others are ignored. */
        receive_all(e, 1, 0);
        assert_int_equal(a.choices[0].finish, LT_FINISH_STOP_ID);
        r.ignore_eos = false;
        r.n_stop_ids = 0;
        send(e, &r, &a);
        receive_all(e, 1, 0);
        assert_int_equal(a.choices[0].finish, LT_FINISH_EOS);
        assert_true(a.choices[0].n <= 7);
        assert_true(lt_ends_has(ends, a.choices[0].ids[a.choices[0].n - 1]));
        r.min_tokens = 20;
        send(e, &r, &a);
        receive_all(e, 1, 0);
        assert_int_equal(a.choices[0].finish, LT_FINISH_LENGTH);
        for (int i = 0; i < 20; i++) {
            assert_false(lt_ends_has(ends, a.choices[0].ids[i]));
        }
        lt_engine_close(e);
    }
    lt_model_close(m);
}

static void impossible_requests_are_refused(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e = NULL;
    uint64_t id;
    int32_t prompt[8] = {5, 6, 7, 8, 9, 10, 11, 12};
    lt_request good = lt_request_defaults(), r;
    (void)state;
    must(lt_engine_open(&e, m, NULL), "engine");
    good.prompt = prompt;
    good.n_prompt = 8;
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        r = good;                                                                                  \
        change;                                                                                    \
        assert_int_equal(lt_engine_submit(e, &r, NULL, &id), LT_ERR_ARG);                          \
    } while (0)
    REFUSED(r.n_prompt = 0);
    REFUSED(r.max_tokens = 0);
    REFUSED(r.max_tokens = SEQ);
    REFUSED(r.max_tokens = INT64_MAX);
    REFUSED(r.min_tokens = 17);
    REFUSED(r.n_choices = 0);
    REFUSED(r.logprobs = 21);
    REFUSED(r.sampling.temperature = -1);
    REFUSED(r.sampling.temperature = (double)NAN);
    REFUSED(r.sampling.top_p = 1.5);
    REFUSED(r.sampling.repetition = 0);
    REFUSED(r.think_budget = 5);
    REFUSED(r.n_given = 8);
    REFUSED(r.n_given = -1);
    REFUSED((r.n_given = 4, r.max_tokens = 4));
    REFUSED((r.n_given = 4, r.prompt_logprobs = 0));
    REFUSED(r.first_choice = -1);
    prompt[3] = V;
    REFUSED((void)0);
    prompt[3] = -1;
    REFUSED((void)0);
    lt_engine_close(e);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_agree_with_a_session),
        cmocka_unit_test(long_prompts_take_no_pages_of_short_texts),
        cmocka_unit_test(stories_equal_to_the_byte),
        cmocka_unit_test(grammars_are_followed),
        cmocka_unit_test(other_requests_change_nothing),
        cmocka_unit_test(speculation_changes_nothing),
        cmocka_unit_test(coded_caches_change_no_bit),
        cmocka_unit_test(caches_that_do_not_fit_are_refused),
        cmocka_unit_test(other_requests_change_nothing_in_any_family),
#if !defined(__SANITIZE_THREAD__) /* OpenMP's runtime is not built for ThreadSanitizer. */
        cmocka_unit_test(threads_change_nothing),
#endif
        cmocka_unit_test(choices_are_separate_requests),
        cmocka_unit_test(continued_texts_are_the_same),
        cmocka_unit_test(log_probabilities_of_prompts),
        cmocka_unit_test(embeddings_have_length_one),
        cmocka_unit_test(thinking_ends_on_time),
        cmocka_unit_test(endings),
        cmocka_unit_test(every_end_counts),
        cmocka_unit_test(impossible_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
