/* Many sequences in pages against one session each: prompts in pieces, decoding, both mixed;
 * scattered pages, with separate places for each group of layers; padded to buckets; and recorded
 * as graphs by a device that keeps the arguments of ops, repeats them at each launch, and runs
 * nothing before it is waited for. */
#include "unit/model/adapters.h"

#include "model/infer/paged_forward.h"
#include "base/rng.h"
#include "unit/lazy_device.h"

/* ---- Sequences in pages ---- */

enum { N = 5, LEN = 24, PAGE = 16, MAX_PAGES = 2, V = 64, MAX_GROUPS = 3 };

/* A pick, kept longer than until the next call. */
typedef struct {
    int32_t id, rank, top_id[LT_CHOOSE_TOP];
    float logprob, top_logprob[LT_CHOOSE_TOP];
} kept_pick;

static void keep_picks(kept_pick *k, const lt_paged_forward_picks *c, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        k[i].id = c->id[i];
        k[i].rank = c->rank[i];
        k[i].logprob = c->logprob[i];
        memcpy(k[i].top_id, c->top_id + i * LT_CHOOSE_TOP, sizeof k[i].top_id);
        memcpy(k[i].top_logprob, c->top_logprob + i * LT_CHOOSE_TOP, sizeof k[i].top_logprob);
    }
}

/* It must be the most likely token of these logits. */
static void check_pick(const kept_pick *k, const float *logits, int n_top) {
    double sum = 0.0;
    for (int64_t v = 0; v < V; v++) {
        assert_true(logits[v] <= logits[k->id]);
        sum += exp((double)logits[v]);
    }
    assert_int_equal(k->rank, 0);
    assert_true(fabs((double)k->logprob - ((double)logits[k->id] - log(sum))) < 1e-4);
    for (int i = 0; i < n_top; i++) {
        const int32_t id = k->top_id[i];
        assert_true(i == 0 ? id == k->id : logits[id] <= logits[k->id]);
        assert_true(fabs((double)k->top_logprob[i] - ((double)logits[id] - log(sum))) < 1e-4);
    }
}

/* The pool's number of page p of sequence s in group g. The order is scrambled, so that mixed-up
 * pages are noticed. */
static int32_t page_of(int64_t s, int64_t p, int64_t g, int64_t n_groups) {
    return (int32_t)(((s * MAX_PAGES + p) * 3 % (N * MAX_PAGES)) * n_groups + (g + s) % n_groups);
}

/* A windowed group has no pages before the window: another sequence's pages are in their
 * place. */
static int32_t table_of(const lt_page_groups *of, int64_t s, int64_t p, int64_t g, int64_t first,
                        int64_t window) {
    const bool lost = of != NULL && g >= of->n_full && first - window + 1 >= (p + 1) * PAGE;
    return page_of(lost ? (s + 1) % N : s, p, g, of != NULL ? lt_page_groups_count(of) : 1);
}

/* Sequences run in steps of this many rows each. of NULL: all layers are one group. */
static void run_steps(lt_paged_forward *f, const lt_page_groups *of, int64_t window,
                      const int32_t *tokens, const int64_t *n_rows, int64_t *done, float *logits) {
    static int32_t ids[N * LEN], positions[N * LEN], slots[MAX_GROUPS * N * LEN], out_rows[N];
    int32_t q_start[N + 1] = {0}, kv_len[N], table[MAX_GROUPS * N * MAX_PAGES];
    const int64_t n_groups = of != NULL ? lt_page_groups_count(of) : 1;
    int64_t all_rows = 0, all_seqs = 0;
    lt_paged_forward_rows w = {.ids = ids,
                               .positions = positions,
                               .slots = slots,
                               .q_start = q_start,
                               .kv_len = kv_len,
                               .table = table,
                               .out_rows = out_rows,
                               .max_pages = MAX_PAGES};
    /* Two of them are known late. */
    static const bool choose[N] = {true, true, false, true, false},
                      late[N] = {false, false, true, false, true};
    double how[N][LT_CHOOSE_HOW_COUNT];
    float *const *found;
    lt_paged_forward_picks best;
    kept_pick kept[N], more[2];
    int64_t which[N];
    for (int64_t s = 0; s < N; s++) {
        all_rows += n_rows[s];
        all_seqs += n_rows[s] > 0;
    }
    for (int64_t s = 0; s < N; s++) {
        const int64_t n = w.n_seqs;
        if (n_rows[s] == 0) {
            continue;
        }
        for (int64_t i = 0; i < n_groups * MAX_PAGES; i++) {
            const int64_t g = i / MAX_PAGES, p = i % MAX_PAGES;
            table[(g * all_seqs + n) * MAX_PAGES + p] = table_of(of, s, p, g, done[s], window);
        }
        for (int64_t k = 0; k < n_rows[s]; k++) {
            const int64_t at = done[s] + k;
            ids[w.n_rows] = tokens[s * LEN + at];
            positions[w.n_rows] = (int32_t)(at + lt_paged_forward_rope_rows(f, LEN));
            for (int64_t g = 0; g < n_groups; g++) {
                slots[g * all_rows + w.n_rows] =
                    (int32_t)(page_of(s, at / PAGE, g, n_groups) * PAGE + at % PAGE);
            }
            w.n_rows++;
        }
        done[s] += n_rows[s];
        kv_len[n] = (int32_t)done[s];
        q_start[n + 1] = (int32_t)w.n_rows;
        out_rows[n] = (int32_t)w.n_rows - 1;
        w.q_max = n_rows[s] > w.q_max ? n_rows[s] : w.q_max;
        w.kv_max = done[s] > w.kv_max ? done[s] : w.kv_max;
        which[w.n_seqs++] = s;
    }
    w.n_out = w.n_seqs;
    w.n_choose = w.n_seqs;
    w.choose = choose;
    w.how = how[0];
    for (int64_t n = 0; n < N; n++) {
        memcpy(how[n], (double[]){0, 0, 1, 0, 0, n % 2 == 0 ? 0 : 3, LT_CHOOSE_PLAIN},
               sizeof how[n]);
    }
    must(lt_paged_forward_run(f, &w), "run");
    must(lt_paged_forward_choose_late(f, 0, w.n_out, late, how[0], NULL, 0), "late picks");
    must(lt_paged_forward_read_picks(f, 0, w.n_out, &best), "picks");
    keep_picks(kept, &best, w.n_out);
    must(
        lt_paged_forward_choose_more(f, 2, (int32_t[]){(int32_t)w.n_seqs - 1, 0}, how[0], 0, &best),
        "more");
    keep_picks(more, &best, 2);
    must(lt_paged_forward_logits(f, 0, w.n_out, NULL, &found), "logits");
    for (int64_t n = 0; n < w.n_seqs; n++) {
        check_pick(&kept[n], found[n], n % 2 == 0 ? 0 : 3);
    }
    check_pick(&more[0], found[w.n_seqs - 1], 0);
    check_pick(&more[1], found[0], 3);
    for (int64_t n = 0; n < w.n_seqs; n++) {
        memcpy(logits + which[n] * V, found[n], V * sizeof *logits);
    }
}

static void check_groups(const golden *g, lt_dtype cache, bool pad, const lt_page_groups *of) {
    static const int64_t steps[][N] = {
        {5, 0, 7, 1, 0}, {1, 9, 1, 1, 3},   {1, 1, 1, 1, 1}, {1, 0, 1, 0, 1}, {9, 1, 0, 4, 1},
        {1, 1, 1, 1, 1}, {0, 0, 0, 12, 16}, {1, 1, 1, 1, 0}, {1, 1, 1, 0, 1}, {1, 1, 1, 0, 0}};
    static float all[N][LEN * V], logits[N * V];
    const double tolerance = cache == LT_F16 ? 5e-3 : 2e-5;
    int32_t tokens[N * LEN];
    int64_t done[N] = {0};
    lt_paged_forward *f = NULL;
    const int64_t n_groups = of != NULL ? lt_page_groups_count(of) : 1,
                  window = lt_model_get_spec(g->model)->window;
    for (int s = 0; s < N; s++) {
        lt_session *one = NULL;
        for (int i = 0; i < LEN; i++) {
            tokens[s * LEN + i] = (int32_t)((s * 17 + i * 31 + i * i) % V);
        }
        must(lt_session_open(&one, g->model, 1, LEN), g->name);
        must(lt_session_eval_all(one, 0, tokens + s * LEN, LEN, all[s]), g->name);
        lt_session_close(one);
    }
    must(lt_paged_forward_open(&f, g->model,
                               &(lt_paged_forward_options){.max_rows = 40,
                                                           .max_seqs = N,
                                                           .max_out = N,
                                                           .out_rows = N,
                                                           .max_seq = LEN,
                                                           .n_pages = N * MAX_PAGES * n_groups,
                                                           .groups = of,
                                                           .page_tokens = PAGE,
                                                           .max_pages = MAX_PAGES,
                                                           .cache_dtype = cache,
                                                           .value_dtype = cache,
                                                           .pad = pad}),
         g->name);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        run_steps(f, of, window, tokens, steps[i], done, logits);
        for (int s = 0; s < N; s++) {
            if (steps[i][s] > 0) {
                const double d = distance(logits + s * V, all[s] + (done[s] - 1) * V, V);
                if (!(d < tolerance)) {
                    fail_msg("%s: sequence %d, step %zu: logits differ by %.3g", g->name, s, i, d);
                }
            }
        }
    }
    lt_paged_forward_close(f);
}

static void check(const golden *g, lt_dtype cache, bool pad) {
    check_groups(g, cache, pad, NULL);
}

/* Models in which some layers have a window of 7 tokens. */
static void groups_hold_what_a_session_holds(void **state) {
    static const struct {
        const char *name;
        int64_t n_full, n_windowed, n_places;
    } rows[] = {
        {"gemma3", 1, 2, 1}, {"gpt_oss", 1, 2, 1}, {"gpt_oss_mxfp4", 1, 1, 1}, {"gemma2", 1, 2, 1}};
    (void)state;
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        const lt_backend *backends[] = {lt_backend_ref(), lt_backend_cpu(), lazy_device(true)};
        lt_page_groups of;
        golden g;
        golden_open(&g, rows[i / 3].name, backends[i % 3], LT_F32);
        lt_page_groups_choose(&of, lt_model_get_spec(g.model), 100, 4);
        assert_int_equal(of.n_full, rows[i / 3].n_full);
        assert_int_equal(of.n_windowed, rows[i / 3].n_windowed);
        assert_int_equal(of.n_places, rows[i / 3].n_places);
        check_groups(&g, LT_F32, false, &of);
        check_groups(&g, LT_F32, true, &of);
        golden_close(&g);
    }
}

static void pages_hold_what_a_session_holds(void **state) {
    const lt_backend *(*const backends[])(void) = {lt_backend_ref, lt_backend_cpu};
    (void)state;
    for (int i = 0; i < 2 * N_GOLDEN_CASES; i++) {
        golden g;
        golden_open(&g, golden_cases[i / 2], backends[i % 2](), LT_F32);
        check(&g, LT_F32, false);
        check(&g, LT_F32, true);
        if (i % 2 == 1) {
            check(&g, LT_F16, false);
        }
        golden_close(&g);
    }
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        golden g;
        golden_open(&g, golden_cases[i], lazy_device(true), LT_F32);
        lazy.n_launched = 0;
        check(&g, LT_F32, false);
        assert_true(lazy.n_launched >= 2); /* The same bucket is launched again and again. */
        golden_close(&g);
    }
}

/* A model with adapters computes with them here as in a session, also when recorded. */
static void with_adapters(void **state) {
    static const char *const names[] = {"llama3", "gpt2", "apertus"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        golden g;
        lt_lora *l = NULL;
        golden_open(&g, names[i / 2], i % 2 == 0 ? lt_backend_cpu() : lazy_device(true), LT_F32);
        must(lt_lora_open(&l, g.model, &adapters_of_all, 1), g.name);
        fill(l);
        check(&g, LT_F32, i % 2 == 0);
        lt_lora_close(l);
        golden_close(&g);
    }
}

enum { FEW = 9, FEW_SEQS = 16, FEW_MOST = 64 };

/* A call with n sequences of 1 to FEW rows, at most FEW_MOST rows in all, one of which has
 * several. Its keys are not written. */
static void run_few(lt_paged_forward *f, lt_rng *rng, int64_t n) {
    static const int32_t zeros[FEW_MOST + FEW_SEQS * MAX_PAGES];
    int32_t positions[FEW_MOST], slots[FEW_MOST], out_rows[FEW_MOST], kv_len[FEW_SEQS],
        q_start[FEW_SEQS + 1] = {0};
    lt_paged_forward_picks picks;
    int64_t rows = 0, longest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t room = FEW_MOST - rows - (n - 1 - i);
        int64_t own = i == 0 ? 2 + (int64_t)lt_rng_below(rng, FEW - 1)
                             : 1 + (int64_t)lt_rng_below(rng, FEW);
        own = own < room ? own : room;
        for (int64_t k = 0; k < own; k++, rows++) {
            positions[rows] = (int32_t)k;
            slots[rows] = -1;
            out_rows[rows] = (int32_t)rows;
        }
        longest = own > longest ? own : longest;
        kv_len[i] = (int32_t)own;
        q_start[i + 1] = (int32_t)rows;
    }
    must(lt_paged_forward_run(f, &(lt_paged_forward_rows){.n_rows = rows,
                                                          .n_seqs = n,
                                                          .n_out = rows,
                                                          .q_max = longest,
                                                          .kv_max = longest,
                                                          .max_pages = 1,
                                                          .ids = zeros,
                                                          .positions = positions,
                                                          .slots = slots,
                                                          .q_start = q_start,
                                                          .kv_len = kv_len,
                                                          .table = zeros,
                                                          .out_rows = out_rows}),
         "run");
    must(lt_paged_forward_read_picks(f, 0, rows, &picks), "picks");
    if (!lt_paged_forward_usual(f)) {
        fail_msg("%lld sequences, %lld rows, %lld of one: not recorded", (long long)n,
                 (long long)rows, (long long)longest);
    }
}

/* After the warm-up no step that verifies drafts has to be recorded. */
static void steps_of_few_rows_are_warmed(void **state) {
    golden g;
    lt_paged_forward *f = NULL;
    lt_rng rng = {.seed = 1};
    bool more = true;
    (void)state;
    golden_open(&g, "llama3", lazy_device(true), LT_F32);
    must(lt_paged_forward_open(&f, g.model,
                               &(lt_paged_forward_options){.max_rows = FEW_MOST,
                                                           .max_seqs = FEW_SEQS,
                                                           .max_out = FEW_MOST,
                                                           .out_rows = FEW_MOST,
                                                           .max_seq = LEN,
                                                           .n_pages = MAX_PAGES,
                                                           .page_tokens = PAGE,
                                                           .max_pages = MAX_PAGES,
                                                           .few_rows = FEW,
                                                           .few_most = FEW_MOST,
                                                           .cache_dtype = LT_F32,
                                                           .value_dtype = LT_F32}),
         "forward");
    for (int64_t i = 0; more; i++) {
        must(lt_paged_forward_warm(f, i, &more), "warm");
    }
    for (int i = 0; i < 400; i++) {
        run_few(f, &rng, 1 + i % FEW_SEQS);
    }
    lt_paged_forward_close(f);
    golden_close(&g);
}

/* Options of a call of one row, for texts of max_seq tokens on that many pages. */
static lt_paged_forward_options one_row(int64_t max_seq, int64_t n_pages) {
    return (lt_paged_forward_options){.max_rows = 1,
                                      .max_seqs = 1,
                                      .max_out = 1,
                                      .out_rows = 1,
                                      .max_seq = max_seq,
                                      .n_pages = n_pages,
                                      .page_tokens = PAGE,
                                      .max_pages = n_pages,
                                      .cache_dtype = LT_F32,
                                      .value_dtype = LT_F32};
}

static void expect_open(const lt_model *m, lt_paged_forward_options o, lt_err want,
                        const char *what) {
    lt_paged_forward *f = NULL;
    const lt_err err = lt_paged_forward_open(&f, m, &o);
    if (err != want) {
        fail_msg("%s: %d, not %d: %s", what, (int)err, (int)want, lt_error_message());
    }
    lt_paged_forward_close(f);
}

/* Texts as long as the model can read are served, longer ones are refused where it has no positions
 * for them; and sizes that contradict each other. */
static void lengths_and_sizes_are_checked(void **state) {
    static const struct {
        const char *path;
        lt_err longer;
    } models[] = {{"tests/golden/model/gpt2", LT_ERR_ARG},
                  {"tests/golden/rope/dynamic", LT_ERR_UNSUPPORTED},
                  {"tests/golden/model/llama3", LT_OK}};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        lt_model *m = NULL;
        lt_paged_forward_options o;
        must(lt_model_open(
                 &m, models[i].path,
                 &(lt_model_options){.dtype = LT_F32, .device = device_of(lt_backend_cpu())}),
             models[i].path);
        const int64_t most = m->spec.max_seq, pages = most / PAGE + 1;
        expect_open(m, one_row(most, pages), LT_OK, models[i].path);
        expect_open(m, one_row(most + 1, pages), models[i].longer, models[i].path);
        expect_open(m, one_row(PAGE, 1), LT_OK, "a page that holds the text exactly");
        expect_open(m, one_row(PAGE + 1, 1), LT_ERR_ARG, "a token more than the page holds");
        o = one_row(PAGE, 1);
        o.page_tokens = 24;
        expect_open(m, o, LT_ERR_ARG, "pages of 24 tokens");
        o = one_row(PAGE, 1);
        o.max_rows = 0;
        expect_open(m, o, LT_ERR_ARG, "no rows");
        o = one_row(PAGE, 1);
        o.out_rows = 0;
        expect_open(m, o, LT_ERR_ARG, "no rows of logits");
        lt_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_hold_what_a_session_holds),
        cmocka_unit_test(groups_hold_what_a_session_holds),
        cmocka_unit_test(with_adapters),
        cmocka_unit_test(steps_of_few_rows_are_warmed),
        cmocka_unit_test(lengths_and_sizes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
