/* Speculative decoding on a simulated device, and on a GPU if there is one: with drafts, an
 * engine that computes in a fixed order gives, bit for bit, the texts and log-probabilities that
 * it gives without, for all kinds of requests in one batch: sampled or not, with penalties,
 * biases, masks, grammars, budgets, several choices. So sampled texts also have the same
 * distribution. Drafts are copied, or made by a draft model that is always right, or by one that
 * is mostly wrong. */
#include "unit/serve/fleet.h"
#include "unit/serve/kinds.h"

#include "lateen/tokenizer.h"
#include "serve/grammar/grammar.h"
#include "unit/lazy_device.h"

enum { SEQ = 128, N = 2 * KINDS };

/* Texts that repeat themselves: prompts with few ids, and answers with few ids for every second
 * one. */
static lt_request repeating_request(int64_t i, int32_t *prompt, int32_t *allowed,
                                    int64_t vocab_size, const lt_grammar *grammar) {
    lt_request r = request_of(i, prompt, vocab_size, grammar);
    r.n_prompt = 20 + i % 13;
    for (int64_t k = 0; k < r.n_prompt; k++) {
        prompt[k] = (int32_t)(20 + (k * k + i) % 7);
    }
    r.max_tokens = 30 + i % 9;
    for (int k = 0; k < 4; k++) {
        allowed[k] = 20 + k;
    }
    if (r.min_tokens > 0) { /* These end while the text repeats itself. */
        r.min_tokens = 20;
    }
    if (i % 4 == 3 && r.grammar == NULL && r.think_end == NULL) {
        r.allowed = allowed;
        r.n_allowed = 2 + i % 3;
    }
    return r;
}

static void run(const lt_model *m, lt_engine_options o, const lt_grammar *grammar, answer *answers,
                lt_engine_stats *stats) {
    lt_engine *e = NULL;
    o.max_seq = SEQ;
    o.deterministic = true;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < N; i++) {
        int32_t prompt[64], allowed[4];
        const lt_request r = repeating_request(i, prompt, allowed, lt_model_get_spec(m)->vocab_size,
                                               grammar);
        send(e, &r, &answers[i]);
    }
    receive_all(e, N, 0);
    lt_engine_get_stats(e, stats);
    assert_no_page_held(e);
    lt_engine_close(e);
}

static void compare(const answer *got, const answer *want, const char *name) {
    for (int64_t i = 0; i < N; i++) {
        char what[80];
        (void)snprintf(what, sizeof what, "%s, request %lld, of kind %lld", name, (long long)i,
                       (long long)i % KINDS);
        assert_int_equal(got[i].n_prompt_told, want[i].n_prompt_told);
        for (int c = 0; c < FLEET_CHOICES; c++) {
            assert_equal(&got[i].choices[c], &want[i].choices[c], what);
        }
    }
}

typedef struct {
    const char *name;
    int draft; /* Index into the drafts below; 0: they are copied. */
    int64_t tokens, max_running, step_tokens, pages;
    int64_t drafted, accepted_percent; /* At least. */
} draft_case;

static const draft_case cases[] = {{"copied", 0, 4, 24, 80, 0, 100, 5},
                                   {"copied, as many as pay", 0, 0, 24, 80, 0, 0, 0},
                                   {"copied, one at a time", 0, 8, 1, 80, 0, 100, 5},
                                   {"copied, preempted", 0, 3, 24, 80, 40, 50, 5},
                                   {"by the model itself", 1, 3, 24, 80, 0, 100, 30},
                                   {"by another model", 2, 8, 7, 200, 0, 100, 0},
                                   {"by the model, as many as pay", 1, 0, 3, 80, 0, 0, 0}};

static void compare_drafts(const lt_model *m, const lt_model *other, const lt_grammar *grammar,
                           int every) {
    static answer want[N], got[N];
    const lt_model *drafts[] = {NULL, m, other};
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats stats;
    o.max_running = 24;
    o.step_tokens = 80;
    run(m, o, grammar, want, &stats);
    assert_int_equal(stats.drafted, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)every) {
        const draft_case *c = &cases[i];
        o.max_running = c->max_running;
        o.step_tokens = c->step_tokens;
        o.cache_bytes = c->pages > 0 ? bytes_of_pages(m, &o, c->pages) : 0;
        o.speculate = c->draft > 0 ? LT_SPECULATE_MODEL : LT_SPECULATE_NGRAM;
        o.draft = c->draft > 0 ? &drafts[c->draft] : NULL;
        o.draft_tokens = c->tokens;
        run(m, o, grammar, got, &stats);
        compare(got, want, c->name);
        assert_true((stats.preemptions > 0) == (c->pages > 0));
        if (stats.drafted < c->drafted ||
            100 * stats.accepted < c->accepted_percent * stats.drafted) {
            fail_msg("%s: %lld of %lld draft tokens accepted", c->name, (long long)stats.accepted,
                     (long long)stats.drafted);
        }
    }
}

/* On a device that runs nothing before it is waited for. */
static void drafts_change_no_bit(void **state) {
    (void)state;
    for (int graphs = 0; graphs < 2; graphs++) {
        lt_model *m = random_model_on(70, SEQ, LT_F32, 0.0f, lazy_device(graphs));
        lt_model *other = random_model_on(60, SEQ, LT_F32, 1.0f, lazy_device(graphs));
        compare_drafts(m, other, NULL, 1);
        lt_model_close(m);
        lt_model_close(other);
    }
}

/* In 16 bits, heads of 64 have other kernels. */
static void drafts_change_no_bit_on_a_gpu(void **state) {
    const lt_backend *gpu = gpu_backend();
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    for (int d = 0; d < 2; d++) {
        const lt_dtype dtype = d == 0 ? LT_F32 : LT_BF16;
        lt_model *m = random_model_of(70, SEQ, d == 0 ? 16 : 64, dtype, 0.0f, gpu);
        lt_model *other = random_model_of(60, SEQ, d == 0 ? 16 : 64, dtype, 1.0f, gpu);
        compare_drafts(m, other, NULL, 2);
        lt_model_close(m);
        lt_model_close(other);
    }
}

/* ---- Branches: texts with few ids, which continued in several ways before ---- */

enum { TEXTS = 12, IDS = 8 };

static const struct {
    const char *name;
    int64_t tokens, branches, max_running, step_tokens, pages;
} branch_cases[] = {{"two", 3, 2, 6, 120, 0},
                    {"four, one text at a time", 8, 4, 1, 80, 0},
                    {"three, preempted", 3, 3, 12, 200, 40},
                    {"as many as pay", 0, 0, 4, 120, 0}};

static void run_few_ids(const lt_model *m, lt_engine_options o, answer *answers,
                        lt_engine_stats *stats) {
    lt_engine *e = NULL;
    o.max_seq = SEQ;
    o.deterministic = true;
    must(lt_engine_open(&e, m, &o), "engine");
    for (int64_t i = 0; i < TEXTS; i++) {
        int32_t prompt[64];
        lt_request r = lt_request_defaults();
        r.prompt = prompt;
        r.n_prompt = 30 + 3 * i;
        fill_prompt(prompt, r.n_prompt, IDS, (uint64_t)i);
        r.max_tokens = 40;
        r.ignore_eos = true;
        r.n_choices = 1 + i % 3;
        r.logprobs = (int)(i % 4);
        r.sampling.seed = (uint64_t)i;
        r.sampling.temperature = (double)(i % 4) / 3;
        r.sampling.top_p = i % 2 == 0 ? 0.9 : 1.0;
        r.sampling.frequency = i % 5 == 4 ? 0.2 : 0; /* These have drafts, and no branches. */
        send(e, &r, &answers[i]);
    }
    receive_all(e, TEXTS, 0);
    lt_engine_get_stats(e, stats);
    assert_no_page_held(e);
    lt_engine_close(e);
}

static void compare_branches(const lt_model *m, int every) {
    static answer want[TEXTS], got[TEXTS];
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats stats;
    run_few_ids(m, o, want, &stats);
    o.speculate = LT_SPECULATE_NGRAM;
    for (size_t i = 0; i < sizeof branch_cases / sizeof *branch_cases; i += (size_t)every) {
        o.draft_tokens = branch_cases[i].tokens;
        o.draft_branches = branch_cases[i].branches;
        o.max_running = branch_cases[i].max_running;
        o.step_tokens = branch_cases[i].step_tokens;
        o.cache_bytes = branch_cases[i].pages > 0 ? bytes_of_pages(m, &o, branch_cases[i].pages)
                                                  : 0;
        run_few_ids(m, o, got, &stats);
        for (int k = 0; k < TEXTS; k++) {
            for (int c = 0; c <= k % 3; c++) {
                assert_equal(&got[k].choices[c], &want[k].choices[c], branch_cases[i].name);
            }
        }
        assert_true((stats.preemptions > 0) == (branch_cases[i].pages > 0));
        if (branch_cases[i].branches > 1 &&
            (stats.branches < 100 || stats.branch_accepted < stats.branches / 10)) {
            fail_msg("%s: %lld branches, %lld of their %lld tokens accepted", branch_cases[i].name,
                     (long long)stats.branches, (long long)stats.branch_accepted,
                     (long long)stats.branch_drafted);
        }
    }
}

static void branches_change_no_bit(void **state) {
    const lt_backend *gpu = gpu_backend();
    (void)state;
    for (int place = 0; place < (gpu != NULL ? 3 : 2); place++) {
        lt_model *m = random_model_on(IDS, SEQ, LT_F32, 0.0f,
                                      place < 2 ? lazy_device(place == 1) : gpu);
        compare_branches(m, place < 2 ? 1 : 2);
        lt_model_close(m);
    }
}

static void branches_of_a_draft_model_are_refused(void **state) {
    lt_model *m = random_model_on(IDS, SEQ, LT_F32, 0.0f, lazy_device(true));
    const lt_model *draft = m;
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    (void)state;
    o.max_seq = SEQ;
    o.speculate = LT_SPECULATE_MODEL;
    o.draft = &draft;
    o.draft_branches = 2;
    assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "2 drafts of a text in a step"));
    lt_model_close(m);
}

static void grammars_hold_in_drafts(void **state) {
    static const char rule[] = "(Tom|Lily)( and (Tom|Lily))* (ran|sat)[.!]";
    static const char folder[] = "tests/golden/stories260k/";
    char path[128];
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    lt_model *m = NULL;
    (void)state;
    (void)snprintf(path, sizeof path, "%sstories260K.bin", folder);
    must(lt_model_open(&m, path, &(lt_model_options){.device = device_of(lazy_device(true))}),
         path);
    (void)snprintf(path, sizeof path, "%stok512.bin", folder);
    must(lt_tokenizer_open(&t, path, NULL), path);
    must(lt_grammar_vocab_open(&v, t, NULL, 0), "vocabulary");
    must(lt_grammar_open(&g, v, LT_GRAMMAR_REGEX, rule, sizeof rule - 1), rule);
    compare_drafts(m, m, g, 1);
    lt_grammar_close(g);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_no_bit),
        cmocka_unit_test(drafts_change_no_bit_on_a_gpu),
        cmocka_unit_test(grammars_hold_in_drafts),
        cmocka_unit_test(branches_change_no_bit),
        cmocka_unit_test(branches_of_a_draft_model_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
