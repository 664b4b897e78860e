/* Drafts of an EAGLE-3 head and of layers of multi-token prediction: their logits against those
 * of the scripts in tools/ at each step of a draft; how many draft tokens a greedy text accepts,
 * place by place, against a simulation there; texts with and without drafts; the distribution of
 * sampled texts. On a CPU, on a simulated device that runs nothing before it is waited for, and
 * on a GPU if there is one. */
#include "unit/serve/draft_heads.h"
#include "unit/lazy_device.h"
#include "unit/serve/kinds.h"

enum { N_PAGES = 6, PAGE = 16 };

/* Where the tests run; NULL, at place 0: on a CPU. False: there is no such device. */
enum { PLACES = 4 };
static bool backend_of(int place, const lt_backend **out) {
    *out = place == 0 ? NULL : place == PLACES - 1 ? gpu_backend() : lazy_device(place == 2);
    return place == 0 || *out != NULL;
}

static void open_golden(golden *g, lt_dtype dtype) {
    open_golden_of(g, EAGLE_3, dtype, NULL);
}

/* ---- The head alone ---- */

/* Rows of one sequence in scattered pages. */
typedef struct {
    int32_t ids[64], positions[64], slots[64], hidden[64];
    int32_t table[N_PAGES], q_start[2], kv_len, out_row;
} sequence;

static lt_paged_forward_rows rows_of(sequence *s, const int32_t *tokens, int64_t first, int64_t n,
                                     bool wanted) {
    for (int64_t k = 0; k < n; k++) {
        const int64_t p = first + k;
        s->table[p / PAGE] = (int32_t)((p / PAGE * 5 + 3) % N_PAGES);
        s->ids[k] = tokens[p];
        s->positions[k] = (int32_t)p;
        s->slots[k] = s->hidden[k] = (int32_t)(s->table[p / PAGE] * PAGE + p % PAGE);
    }
    s->q_start[1] = (int32_t)n;
    s->kv_len = (int32_t)(first + n);
    s->out_row = (int32_t)(n - 1);
    return (lt_paged_forward_rows){.n_rows = n,
                                   .n_seqs = 1,
                                   .n_out = wanted,
                                   .q_max = n,
                                   .kv_max = first + n,
                                   .max_pages = N_PAGES,
                                   .ids = s->ids,
                                   .positions = s->positions,
                                   .slots = s->slots,
                                   .q_start = s->q_start,
                                   .kv_len = &s->kv_len,
                                   .table = s->table,
                                   .out_rows = &s->out_row};
}

/* Run the rows of a layer, whose tokens are one further on than those of the layer before. Rows
 * of the first call read the model's hidden states, those of later layers read the output of the
 * layer before for the same rows in the last call. */
static void run_head(lt_draft_pass *p, sequence *s, const int32_t *tokens, int64_t layer,
                     int64_t first, int64_t n, bool wanted) {
    const lt_paged_forward_rows w = rows_of(s, tokens + 1 + layer, first, n, wanted);
    for (int64_t k = 0; k < n && layer > 0; k++) {
        s->hidden[k] = (int32_t)(-1 - k);
    }
    must(lt_draft_pass_run(p, layer, &w, s->hidden), "a call of the head");
}

/* The prompt runs in two pieces on both sides, cut at different places. */
static void compare_logits(int format, lt_dtype dtype, const lt_backend *backend, double most) {
    golden g;
    sequence s = {0};
    lt_paged_forward *f = NULL;
    lt_draft_pass *p = NULL;
    int32_t drafts[STEPS];
    const lt_safetensor *t;
    int64_t N, Vd, n_layers, from;
    double worst = 0;
    open_golden_of(&g, format, dtype, backend);
    N = g.n_tokens - 1;
    Vd = lt_draft_head_vocab(g.head);
    n_layers = lt_draft_head_layers(g.head);
    t = lt_safetensors_find(&g.file, "logits");
    assert_true(t->shape[0] == STEPS && t->shape[1] == Vd);
    assert_int_equal(golden_ids(&g, "drafts", drafts), STEPS);
    must(lt_draft_pass_open(&p, g.head,
                            &(lt_draft_pass_options){.target_rows = 64,
                                                     .max_rows = 64,
                                                     .max_seqs = 1,
                                                     .max_out = 1,
                                                     .max_seq = N_PAGES * PAGE,
                                                     .n_pages = N_PAGES,
                                                     .page_tokens = PAGE,
                                                     .cache_dtype = dtype,
                                                     .value_dtype = dtype}),
         "pass");
    must(lt_paged_forward_open(&f, g.model,
                               &(lt_paged_forward_options){.max_rows = 64,
                                                           .max_seqs = 1,
                                                           .max_out = 1,
                                                           .out_rows = 1,
                                                           .max_seq = N_PAGES * PAGE,
                                                           .n_pages = N_PAGES,
                                                           .page_tokens = PAGE,
                                                           .max_pages = N_PAGES,
                                                           .cache_dtype = dtype,
                                                           .value_dtype = dtype,
                                                           .listener = p}),
         "forward");
    for (int64_t first = 0, n = 13; first < N; first += n, n = N - first) {
        const lt_paged_forward_rows w = rows_of(&s, g.tokens, first, n, true);
        must(lt_paged_forward_run(f, &w), "model");
    }
    from = 5;
    for (int64_t layer = 0; layer < n_layers; layer++) {
        run_head(p, &s, g.tokens, layer, 0, from, false);
    }
    run_head(p, &s, g.tokens, 0, from, N - from, true);
    for (int step = 0; step < STEPS; step++) {
        const float *want = (const float *)(const void *)t->data + step * Vd;
        float *wide = calloc((size_t)lt_model_get_spec(g.model)->vocab_size, sizeof *wide);
        const float *logits;
        int32_t best = 0;
        must(lt_draft_pass_logits(p, &logits), "logits");
        for (int64_t i = 0; i < Vd; i++) {
            float x;
            memcpy(&x, &want[i], sizeof x);
            worst = fmax(worst, fabs((double)logits[i] - (double)x));
        }
        lt_draft_head_widen(g.head, logits, wide);
        for (int32_t id = 0; id < lt_model_get_spec(g.model)->vocab_size; id++) {
            best = wide[id] > wide[best] ? id : best;
        }
        free(wide);
        assert_true(dtype != LT_F32 || best == drafts[step]);
        g.tokens[g.n_tokens + step] = drafts[step];
        if (step + 1 < n_layers) {
            run_head(p, &s, g.tokens, step + 1, from, N - from, true);
        } else if (step + 1 < STEPS) { /* One row, after the last of the previous call. */
            const int64_t n = step + 1 == n_layers ? N - from : 1, row = N + step + 1 - n_layers;
            const lt_paged_forward_rows w = rows_of(&s, g.tokens + n_layers, row, 1, true);
            s.hidden[0] = (int32_t)-n;
            must(lt_draft_pass_run(p, n_layers - 1, &w, s.hidden), "a draft token");
        }
    }
    if (!(worst < most)) {
        fail_msg("logits differ by %.2e", worst);
    }
    lt_paged_forward_close(f);
    lt_draft_pass_close(p);
    close_golden(&g);
}

/* BF16 rounds states, keys and activations of the model's eight layers and of the head's; the
 * largest logit is 4. */
static void logits_are_those_of_pytorch(void **state) {
    const lt_backend *b;
    (void)state;
    for (int i = 0; i < PLACES * FORMATS; i++) {
        if (backend_of(i / FORMATS, &b)) {
            compare_logits(i % FORMATS, LT_F32, b, 1e-4);
        }
    }
    if (backend_of(PLACES - 1, &b)) {
        compare_logits(EAGLE_3, LT_BF16, b, 0.2);
        compare_logits(OWN_LAYER, LT_BF16, b, 0.2);
        compare_logits(OWN_LAYERS, LT_BF16, b, 0.2);
    }
}

/* ---- In the engine ---- */

static lt_engine_options options_of(const lt_draft_head *const *head, int64_t draft_tokens) {
    lt_engine_options o = lt_engine_defaults();
    o.max_seq = 240;
    o.speculate = head != NULL ? LT_SPECULATE_HEAD : LT_SPECULATE_NONE;
    o.head = head;
    o.draft_tokens = head != NULL ? draft_tokens : 0;
    return o;
}

static void compare_acceptance(int format, const lt_backend *backend) {
    static answer a;
    golden g;
    lt_engine_options o;
    lt_request r = lt_request_defaults();
    lt_engine_stats stats;
    lt_engine *e = NULL;
    const lt_draft_head *head;
    open_golden_of(&g, format, LT_F32, backend);
    head = g.head;
    o = options_of(&head, MOST);
    o.ahead = false; /* Otherwise a device has queued the second token when the first is known. */
    must(lt_engine_open(&e, g.model, &o), "engine");
    r.prompt = g.tokens;
    r.n_prompt = g.n_tokens - 1;
    r.max_tokens = g.n_text;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    send(e, &r, &a);
    receive_all(e, 1, 0);
    lt_engine_get_stats(e, &stats);
    assert_int_equal(a.choices[0].n, g.n_text);
    assert_memory_equal(a.choices[0].ids, g.text, (size_t)g.n_text * sizeof *g.text);
    assert_int_equal(stats.drafted, g.drafted);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(stats.accepted_at[i], g.accepted_at[i]);
    }
    assert_true(stats.accepted_at[0] > 0 && stats.accepted_at[1] > 0);
    lt_engine_close(e);
    close_golden(&g);
}

static void a_greedy_text_accepts_as_many_as_in_pytorch(void **state) {
    const lt_backend *b;
    (void)state;
    for (int i = 0; i < PLACES * FORMATS; i++) {
        if (backend_of(i / FORMATS, &b)) {
            compare_acceptance(i % FORMATS, b);
        }
    }
}

/* Prompts that are read in pieces, end at the end of a page, share pages and have several
 * choices keep their bits; page by page in a small cache, and also if the engine itself chooses
 * lengths. */
enum { GREEDY = 3, CHOICES = 3 };

/* Greedy texts of several prompts, requests [first, end) at once. */
static void run_greedy(const golden *g, int first, int end, int64_t n_choices, answer *answers) {
    const lt_draft_head *head = g->head;
    lt_engine_options o = options_of(&head, MOST);
    lt_engine *e = NULL;
    o.deterministic = true;
    o.ahead = false;
    must(lt_engine_open(&e, g->model, &o), "engine");
    for (int i = first; i < end; i++) {
        int32_t prompt[64];
        lt_request r = lt_request_defaults();
        memcpy(prompt, g->tokens, (size_t)g->n_tokens * sizeof *prompt);
        prompt[0] += i;
        r.prompt = prompt;
        r.n_prompt = g->n_tokens - 1;
        r.n_choices = n_choices;
        r.max_tokens = 60;
        r.ignore_eos = true;
        r.sampling.temperature = 0;
        send(e, &r, &answers[i]);
    }
    receive_all(e, end - first, 0);
    lt_engine_close(e);
}

/* Each row of a call continues with its own hidden state: with another's it would accept less. A
 * text that forks continues with a copy of what the head keeps for the last page. */
static void texts_accept_together_what_they_accept_alone(void **state) {
    static answer alone[GREEDY], together[GREEDY], forked;
    const lt_backend *b;
    (void)state;
    for (int i = 0; i < (PLACES - 1) * FORMATS; i++) {
        golden g;
        int64_t accepted = 0;
        assert_true(backend_of(i / FORMATS, &b));
        open_golden_of(&g, i % FORMATS, LT_F32, b);
        for (int k = 0; k < GREEDY; k++) {
            run_greedy(&g, k, k + 1, 1, alone);
            accepted += alone[k].accepted;
        }
        run_greedy(&g, 0, GREEDY, 1, together);
        run_greedy(&g, 0, 1, CHOICES, &forked);
        assert_true(accepted > 10 * GREEDY);
        for (int k = 0; k < GREEDY; k++) {
            assert_same(&together[k].choices[0], &alone[k].choices[0], "a text");
            assert_int_equal(together[k].drafted, alone[k].drafted);
            assert_int_equal(together[k].accepted, alone[k].accepted);
        }
        assert_int_equal(forked.drafted, CHOICES * alone[0].drafted);
        assert_int_equal(forked.accepted, CHOICES * alone[0].accepted);
        close_golden(&g);
    }
}

/* The text continues after `n` tokens of the golden one, with drafts of at most `most` tokens;
 * then n_received answers are received. */
static void go_on(lt_engine *e, const golden *g, int64_t n, int64_t most, int64_t n_received,
                  answer *a) {
    int32_t prompt[64 + MOST_TOKENS];
    lt_request r = lt_request_defaults();
    memcpy(prompt, g->tokens, (size_t)(g->n_tokens - 1) * sizeof *prompt);
    memcpy(prompt + g->n_tokens - 1, g->text, (size_t)n * sizeof *prompt);
    r.prompt = prompt;
    r.n_prompt = g->n_tokens - 1 + n;
    r.max_tokens = g->n_text - n;
    r.ignore_eos = true;
    r.most_drafts = most;
    r.sampling.temperature = 0;
    send(e, &r, a);
    if (n_received > 0) {
        receive_all(e, n_received, 0);
    }
}

/* Short drafts leave pages in which all layers have run the text: a request that finds them
 * accepts what it accepts after drafts that all layers made. */
static void short_drafts_run_all_layers(void **state) {
    static answer before, want, got;
    const lt_backend *b;
    (void)state;
    for (int i = 0; i < (PLACES - 1) * MOST; i++) {
        const int most = MOST - i % MOST;
        golden g;
        const lt_draft_head *head;
        lt_engine_options o;
        lt_engine *e = NULL;
        assert_true(backend_of(i / MOST, &b));
        open_golden_of(&g, OWN_LAYERS, LT_F32, b);
        head = g.head;
        o = options_of(&head, MOST);
        o.ahead = false;
        must(lt_engine_open(&e, g.model, &o), "engine");
        go_on(e, &g, 0, most, 1, &before);
        go_on(e, &g, g.n_text - 40, MOST, 1, most == MOST ? &want : &got);
        lt_engine_close(e);
        assert_true(want.cached_tokens > 64 && want.accepted > 10 && before.accepted > 20);
        if (most < MOST) {
            assert_same(&got.choices[0], &want.choices[0], "a text");
            assert_int_equal(got.cached_tokens, want.cached_tokens);
            assert_int_equal(got.drafted, want.drafted);
            assert_int_equal(got.accepted, want.accepted);
        }
        close_golden(&g);
    }
}

/* A text whose end is in a page that another text also has leaves what the head has run there:
 * the other one accepts what it accepts alone. */
static void an_end_in_a_page_of_another_text_changes_nothing(void **state) {
    static answer first, alone, beside, shorter;
    enum { GIVEN = 80, SHORT = 33 }; /* One token more than two pages. */
    (void)state;
    for (int two = 0; two < 2; two++) {
        golden g;
        const lt_draft_head *head;
        lt_engine_options o;
        lt_engine *e = NULL;
        open_golden_of(&g, OWN_LAYERS, LT_F32, NULL);
        head = g.head;
        o = options_of(&head, MOST);
        o.ahead = false;
        must(lt_engine_open(&e, g.model, &o), "engine");
        go_on(e, &g, GIVEN, MOST, 1, &first);
        go_on(e, &g, GIVEN, MOST, !two, two ? &beside : &alone);
        if (two) {
            go_on(e, &g, SHORT - (g.n_tokens - 1), MOST, 2, &shorter);
        }
        lt_engine_close(e);
        close_golden(&g);
    }
    assert_int_equal(shorter.cached_tokens, SHORT - 1);
    assert_true(alone.cached_tokens > SHORT && alone.drafted > 10);
    assert_int_equal(beside.drafted, alone.drafted);
    assert_int_equal(beside.accepted, alone.accepted);
}

enum { TEXTS = 6, PROMPT = 150, TOKENS = 60 };

static void compare_texts(int format, lt_dtype dtype, const lt_backend *backend) {
    static answer plain[TEXTS], drafted[TEXTS];
    static int32_t prompt[TEXTS][PROMPT];
    /* With emulation, long texts take long. */
    const bool gpu = backend != NULL && backend == gpu_backend();
    const int64_t n_prompt = gpu ? 40 : PROMPT, whole = gpu ? 32 : 128;
    golden g;
    open_golden_of(&g, format, dtype, backend);
    for (int i = 0; i < TEXTS; i++) {
        fill_prompt(prompt[i], n_prompt, 80, 5);
        prompt[i][n_prompt / 2] = i % 3 == 2 ? 7 : prompt[i][n_prompt / 2];
    }
    const int n_passes = backend == NULL ? 5 : 4; /* The last pass has branches. */
    for (int pass = 0; pass < n_passes; pass += 1 + (gpu && pass > 0)) {
        const lt_draft_head *head = g.head;
        lt_engine_options o = options_of(pass > 0 ? &head : NULL, pass == 3 ? 0 : 3);
        lt_engine_stats stats;
        lt_engine *e = NULL;
        o.deterministic = true;
        o.cache_bytes = pass == 2 ? 1 << 19 : 0;
        o.draft_branches = pass == 4 ? 3 : 0;
        must(lt_engine_open(&e, g.model, &o), "engine");
        for (int i = 0; i < TEXTS; i++) {
            lt_request r = lt_request_defaults();
            r.prompt = prompt[i];
            r.n_prompt = i < 3 ? n_prompt : whole - (i == 4);
            r.n_choices = CHOICES;
            r.max_tokens = gpu ? TOKENS / 4 : TOKENS;
            r.ignore_eos = true;
            r.sampling.seed = (uint64_t)i;
            send(e, &r, pass == 0 ? &plain[i] : &drafted[i]);
        }
        receive_all(e, TEXTS, 0);
        lt_engine_get_stats(e, &stats);
        assert_true(pass == 0 || pass == 3 || stats.drafted > TEXTS * CHOICES * (gpu ? 5 : 20));
        assert_true((pass == 4) == (stats.branches > TEXTS));
        assert_true(pass != 4 || stats.branch_accepted > TEXTS);
        assert_no_page_held(e);
        lt_engine_close(e);
        for (int i = 0; i < TEXTS && pass > 0; i++) {
            for (int c = 0; c < CHOICES; c++) {
                assert_equal(&drafted[i].choices[c], &plain[i].choices[c], "a text");
            }
        }
    }
    close_golden(&g);
}

static void texts_are_those_without_drafts(void **state) {
    const lt_backend *b;
    (void)state;
    for (int i = 0; i < PLACES * FORMATS; i++) {
        if (backend_of(i / FORMATS, &b)) {
            compare_texts(i % FORMATS, LT_F32, b);
        }
    }
    if (backend_of(PLACES - 1, &b)) {
        compare_texts(EAGLE_3, LT_BF16, b);
    }
}

enum { KINDS_SENT = 2 * KINDS };

static void run_kinds(const golden *g, const lt_draft_head *const *head, answer *answers,
                      lt_engine_stats *stats) {
    lt_engine_options o = options_of(head, 3);
    lt_engine *e = NULL;
    o.deterministic = true;
    o.max_running = 20;
    o.step_tokens = 50;
    must(lt_engine_open(&e, g->model, &o), "engine");
    for (int64_t i = 0; i < KINDS_SENT; i++) {
        int32_t prompt[64];
        const lt_request r = request_of(i, prompt, 80, NULL);
        send(e, &r, &answers[i]);
    }
    receive_all(e, KINDS_SENT, 0);
    lt_engine_get_stats(e, stats);
    assert_no_page_held(e);
    lt_engine_close(e);
}

/* On a device all samples are those without drafts, for all kinds of requests in one batch. A GPU
 * verifies drafts of a head like those of a model (test_draft_device.c). */
static void all_kinds_are_those_without_drafts(void **state) {
    static answer want[KINDS_SENT], got[KINDS_SENT];
    (void)state;
    for (int place = 1; place < PLACES - 1; place++) {
        const lt_backend *b;
        golden g;
        lt_engine_stats stats;
        const lt_draft_head *head;
        assert_true(backend_of(place, &b));
        open_golden_of(&g, EAGLE_3, LT_F32, b);
        head = g.head;
        run_kinds(&g, NULL, want, &stats);
        run_kinds(&g, &head, got, &stats);
        for (int64_t i = 0; i < KINDS_SENT; i++) {
            char what[80];
            (void)snprintf(what, sizeof what, "place %d, request %lld", place, (long long)i);
            for (int c = 0; c < 4; c++) {
                assert_equal(&got[i].choices[c], &want[i].choices[c], what);
            }
        }
        /* Nine in a hundred; sampled with other random numbers than the text, two in a
         * hundred. */
        if (stats.drafted < 5000 || 100 * stats.accepted < 6 * stats.drafted) {
            fail_msg("%lld of %lld draft tokens accepted", (long long)stats.accepted,
                     (long long)stats.drafted);
        }
        close_golden(&g);
    }
}

/* The head knows more than what the text repeats. */
static void sampled_texts_accept_more_than_copies(void **state) {
    enum { N = 8 };
    static answer a[N];
    golden g;
    double rate[2];
    (void)state;
    open_golden(&g, LT_F32);
    for (int by = 0; by < 2; by++) {
        const lt_draft_head *head = g.head;
        lt_engine_options o = options_of(&head, 1);
        lt_engine_stats stats;
        lt_engine *e = NULL;
        o.speculate = by == 0 ? LT_SPECULATE_NGRAM : LT_SPECULATE_HEAD;
        o.head = by == 0 ? NULL : &head;
        must(lt_engine_open(&e, g.model, &o), "engine");
        for (int i = 0; i < N; i++) {
            lt_request r = lt_request_defaults();
            r.prompt = g.tokens;
            r.n_prompt = g.n_tokens - 1;
            r.n_choices = 4;
            r.max_tokens = 150;
            r.ignore_eos = true;
            r.sampling.seed = (uint64_t)i;
            send(e, &r, &a[i]);
        }
        receive_all(e, N, 0);
        lt_engine_get_stats(e, &stats);
        assert_true(stats.drafted > 100);
        rate[by] = (double)stats.accepted / (double)stats.drafted;
        lt_engine_close(e);
    }
    if (!(rate[1] > 1.5 * rate[0])) {
        fail_msg("%.3f of the head's draft tokens are accepted, %.3f of copied ones", rate[1],
                 rate[0]);
    }
    close_golden(&g);
}

/* ---- Drawn texts ---- */

enum { CELLS = 80 * 80, DRAWS = 12 * 1024, AT_ONCE = 4 };

/* The 0.9999 quantile of chi-square (Wilson and Hilferty). */
static double most_chi_square(int degrees) {
    const double root = 1 - 2.0 / (9 * degrees) + 3.72 * sqrt(2.0 / (9 * degrees));
    return degrees * root * root * root;
}

static void softmax(const float *logits, int64_t n, double *p) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        p[i] = exp((double)logits[i]);
        sum += p[i];
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] /= sum;
    }
}

/* The first token is sampled by the model; the second is the draft's, or that of a branch, or one
 * that replaces them. */
static void texts_have_the_distribution(int64_t branches) {
    static answer answers[AT_ONCE];
    static double law[CELLS], first[80], second[80];
    static float logits[80];
    static int64_t counts[CELLS];
    golden g;
    lt_engine_options o;
    lt_engine_stats stats;
    lt_engine *e = NULL;
    lt_session *s = NULL;
    const lt_draft_head *head;
    double x = 0, rest = 0, n_rest = 0;
    int degrees = -1;
    memset(counts, 0, sizeof counts);
    open_golden(&g, LT_F32);
    head = g.head;
    must(lt_session_open(&s, g.model, 1, 64), "session");
    for (int32_t id = 0; id < 80; id++) {
        lt_session_truncate(s, 0, 0);
        must(lt_session_eval(s, 0, g.tokens, 8, logits), "logits");
        softmax(logits, 80, first);
        must(lt_session_eval(s, 0, &id, 1, logits), "logits");
        softmax(logits, 80, second);
        for (int k = 0; k < 80; k++) {
            law[id * 80 + k] = first[id] * second[k];
        }
    }
    lt_session_close(s);
    o = options_of(&head, 1);
    o.max_seq = 32;
    o.max_running = 14; /* Their prompts fit in the first call of the head. */
    o.max_waiting = 2048;
    o.draft_branches = branches;
    must(lt_engine_open(&e, g.model, &o), "engine");
    for (int k = 0; k < DRAWS / FLEET_CHOICES; k += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            lt_request r = lt_request_defaults();
            r.prompt = g.tokens;
            r.n_prompt = 8;
            r.n_choices = FLEET_CHOICES;
            r.max_tokens = 3; /* A draft of one token is followed by another one. */
            r.ignore_eos = true;
            r.sampling.seed = (uint64_t)(k + i);
            send(e, &r, &answers[i]);
        }
        receive_all(e, AT_ONCE, 0);
        for (int c = 0; c < AT_ONCE * FLEET_CHOICES; c++) {
            const int32_t *t = answers[c / FLEET_CHOICES].choices[c % FLEET_CHOICES].ids;
            counts[t[0] * 80 + t[1]]++;
        }
    }
    lt_engine_get_stats(e, &stats);
    lt_engine_close(e);
    assert_true(stats.drafted > DRAWS * 9 / 10 && stats.accepted > DRAWS / 20);
    assert_true((branches > 1) == (stats.branch_accepted > DRAWS / 50));
    for (int c = 0; c < CELLS; c++) {
        const double expected = law[c] * DRAWS, off = (double)counts[c] - expected;
        x += expected >= 5 ? off * off / expected : 0;
        degrees += expected >= 5;
        rest += expected >= 5 ? 0 : expected;
        n_rest += expected >= 5 ? 0 : (double)counts[c];
    }
    x += rest >= 5 ? (n_rest - rest) * (n_rest - rest) / rest : 0;
    degrees += rest >= 5;
    if (degrees < 50 || x > most_chi_square(degrees)) {
        fail_msg("chi-square %.1f of %d degrees", x, degrees);
    }
    close_golden(&g);
}

static void texts_have_the_distribution_of_the_model(void **state) {
    (void)state;
    texts_have_the_distribution(1);
    texts_have_the_distribution(3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_pytorch),
        cmocka_unit_test(a_greedy_text_accepts_as_many_as_in_pytorch),
        cmocka_unit_test(texts_accept_together_what_they_accept_alone),
        cmocka_unit_test(short_drafts_run_all_layers),
        cmocka_unit_test(an_end_in_a_page_of_another_text_changes_nothing),
        cmocka_unit_test(texts_are_those_without_drafts),
        cmocka_unit_test(all_kinds_are_those_without_drafts),
        cmocka_unit_test(sampled_texts_accept_more_than_copies),
        cmocka_unit_test(texts_have_the_distribution_of_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
