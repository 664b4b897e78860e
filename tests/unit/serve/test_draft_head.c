/* Drafts of an EAGLE-3 head: its logits against PyTorch's at each step of a draft; how many draft
 * tokens a greedy text accepts, place by place, against a simulation in PyTorch; texts with and
 * without drafts; the distribution of drawn texts; heads that do not fit. On a CPU, on a simulated
 * device that runs nothing before it is waited for, and on a GPU where there is one.
 * (tools/make_draft_head_goldens.py) */
#define FLEET_CHOICES 128
#include "unit/serve/fleet.h"
#include "unit/serve/kinds.h"

#include <sys/stat.h>

#include "model/draft_head.h"
#include "model/safetensors.h"
#include "unit/lazy_device.h"

#define GOLDEN "tests/golden/draft_head"

enum { STEPS = 5, MOST = 4, N_PAGES = 6, PAGE = 16, MOST_TOKENS = 160 };

/* What the golden says, and the model and head that it is of. */
typedef struct {
    lt_model *model;
    lt_draft_head *head;
    lt_safetensors file;
    int32_t tokens[64], text[MOST_TOKENS], accepted_at[MOST], drafted;
    int64_t n_tokens, n_text; /* The last of tokens is the first of text. */
} golden;

static int64_t golden_ids(const golden *g, const char *name, int32_t *out) {
    const lt_safetensor *t = lt_safetensors_find(&g->file, name);
    assert_true(t != NULL && t->dtype == LT_I32);
    memcpy(out, t->data, t->bytes);
    return t->shape[0];
}

/* Where the tests run; NULL, of place 0: on a CPU. False: there is no such device. */
enum { PLACES = 4 };
static bool backend_of(int place, const lt_backend **out) {
    *out = place == 0 ? NULL : place == PLACES - 1 ? gpu_backend() : lazy_device(place == 2);
    return place == 0 || *out != NULL;
}

static void open_golden_on(golden *g, lt_dtype dtype, const lt_backend *backend) {
    *g = (golden){0};
    must(lt_model_open(&g->model, GOLDEN "/target",
                       &(lt_model_options){.dtype = dtype, .device = device_of(backend)}),
         "model");
    must(lt_draft_head_open(&g->head, g->model, GOLDEN "/head"), "head");
    must(lt_safetensors_open(&g->file, GOLDEN "/expected.safetensors"), "golden");
    g->n_tokens = golden_ids(g, "tokens", g->tokens);
    g->n_text = golden_ids(g, "text", g->text);
    assert_int_equal(golden_ids(g, "accepted_at", g->accepted_at), MOST);
    (void)golden_ids(g, "drafted", &g->drafted);
}

static void open_golden(golden *g, lt_dtype dtype) {
    open_golden_on(g, dtype, NULL);
}

static void close_golden(golden *g) {
    lt_safetensors_close(&g->file);
    lt_draft_head_close(g->head);
    lt_model_close(g->model);
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

/* The prompt runs in two pieces on both sides, cut at other places. */
static void compare_logits(lt_dtype dtype, const lt_backend *backend, double most) {
    golden g;
    sequence s = {0};
    lt_paged_forward *f = NULL;
    lt_draft_pass *p = NULL;
    int32_t drafts[STEPS];
    const lt_safetensor *t;
    int64_t N, Vd;
    double worst = 0;
    open_golden_on(&g, dtype, backend);
    N = g.n_tokens - 1;
    Vd = lt_draft_head_vocab(g.head);
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
    for (int64_t first = 0, n = 5; first < N; first += n, n = N - first) {
        const lt_paged_forward_rows w = rows_of(&s, g.tokens + 1, first, n, first + n == N);
        must(lt_draft_pass_run(p, &w, s.hidden), "head");
    }
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
        best = drafts[step];
        if (step + 1 < STEPS) {
            g.tokens[g.n_tokens + step] = best;
            const lt_paged_forward_rows w = rows_of(&s, g.tokens + 1, N + step, 1, true);
            s.hidden[0] = -1; /* Of the wanted row of the call before. */
            must(lt_draft_pass_run(p, &w, s.hidden), "a draft token");
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
static void logits_are_pytorchs(void **state) {
    const lt_backend *b;
    (void)state;
    for (int place = 0; place < PLACES; place++) {
        if (backend_of(place, &b)) {
            compare_logits(LT_F32, b, 1e-4);
        }
    }
    if (backend_of(PLACES - 1, &b)) {
        compare_logits(LT_BF16, b, 0.2);
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

static void compare_acceptance(const lt_backend *backend) {
    static answer a;
    golden g;
    lt_engine_options o;
    lt_request r = lt_request_defaults();
    lt_engine_stats stats;
    lt_engine *e = NULL;
    const lt_draft_head *head;
    open_golden_on(&g, LT_F32, backend);
    head = g.head;
    o = options_of(&head, MOST);
    o.ahead = false; /* Else a device has queued the second token when the first is known. */
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

static void a_greedy_text_accepts_what_pytorch_says(void **state) {
    const lt_backend *b;
    (void)state;
    for (int place = 0; place < PLACES; place++) {
        if (backend_of(place, &b)) {
            compare_acceptance(b);
        }
    }
}

/* Prompts that are read in pieces, end at the end of a page, share pages and have several choices
 * keep their bits; page by page in a small cache, and where the engine itself chooses lengths. */
enum { TEXTS = 6, PROMPT = 150, CHOICES = 3, TOKENS = 60 };

static void compare_texts(lt_dtype dtype, const lt_backend *backend) {
    static answer plain[TEXTS], drafted[TEXTS];
    static int32_t prompt[TEXTS][PROMPT];
    /* Emulated, long texts take long. */
    const bool gpu = backend != NULL && backend == gpu_backend();
    const int64_t n_prompt = gpu ? 40 : PROMPT, whole = gpu ? 32 : 128;
    golden g;
    open_golden_on(&g, dtype, backend);
    for (int i = 0; i < TEXTS; i++) {
        fill_prompt(prompt[i], n_prompt, 80, 5);
        prompt[i][n_prompt / 2] = i % 3 == 2 ? 7 : prompt[i][n_prompt / 2];
    }
    for (int pass = 0; pass < 4; pass += 1 + (gpu && pass > 0)) {
        const lt_draft_head *head = g.head;
        lt_engine_options o = options_of(pass > 0 ? &head : NULL, pass == 3 ? 0 : 3);
        lt_engine_stats stats;
        lt_engine *e = NULL;
        o.deterministic = true;
        o.cache_bytes = pass == 2 ? 1 << 19 : 0;
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
    for (int place = 0; place < PLACES; place++) {
        if (backend_of(place, &b)) {
            compare_texts(LT_F32, b);
        }
    }
    if (backend_of(PLACES - 1, &b)) {
        compare_texts(LT_BF16, b);
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

/* On a device all draws are those without drafts, of all kinds of requests in one batch. */
static void all_kinds_are_those_without_drafts(void **state) {
    static answer want[KINDS_SENT], got[KINDS_SENT];
    (void)state;
    for (int place = 1; place < PLACES; place++) {
        const lt_backend *b;
        golden g;
        lt_engine_stats stats;
        const lt_draft_head *head;
        if (!backend_of(place, &b)) {
            continue;
        }
        open_golden_on(&g, LT_F32, b);
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
        /* Nine in a hundred; drawn with other random numbers than the text, two in a hundred. */
        if (stats.drafted < 5000 || 100 * stats.accepted < 6 * stats.drafted) {
            fail_msg("%lld of %lld draft tokens accepted", (long long)stats.accepted,
                     (long long)stats.drafted);
        }
        close_golden(&g);
    }
}

/* What the head knows is more than what the text repeats. */
static void drawn_texts_accept_more_than_copies(void **state) {
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

/* 0.9999 quantile of chi-square (Wilson and Hilferty). */
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

/* The first token is the model's draw, the second the draft's, accepted or replaced. */
static void texts_have_the_models_distribution(void **state) {
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
    (void)state;
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
    o.max_running = 14; /* Their prompts fit the first call of the head. */
    o.max_waiting = 2048;
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

/* ---- Heads that do not fit ---- */

static char folder[] = "/tmp/lateen-draft-head-XXXXXX";

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A change of the golden head: a key of config.json, a tensor that is left out or renamed, a number
 * of a map, rows that are missing. */
typedef struct {
    const char *key, *value;    /* JSON; value NULL: none */
    const char *drop, *renamed; /* renamed NULL: none */
    const char *map;            /* d2t or t2d */
    int64_t at, number;
    const char *cut; /* A tensor that loses its last row. */
    lt_err err;
    const char *message;
} fault;

static void write_faulty(const golden *g, const fault *f) {
    lt_safetensors file;
    static lt_safetensor_out out[32];
    static lt_safetensor_memory memory[32];
    static int64_t d2t[64];
    static char t2d[128], path[256];
    json_t *config;
    char *text;
    size_t n = 0;
    (void)g;
    must(lt_json_load(&config, GOLDEN "/head/config.json", 1 << 16), "config");
    if (f->key != NULL) {
        (void)json_object_set_new(config, f->key, json_loads(f->value, JSON_DECODE_ANY, NULL));
    }
    text = json_dumps(config, 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_text(path, text);
    free(text);
    json_decref(config);
    must(lt_safetensors_open(&file, GOLDEN "/head/model.safetensors"), "head");
    for (size_t i = 0; i < file.n_tensors; i++) {
        const lt_safetensor *t = &file.tensors[i];
        const bool dropped = f->drop != NULL && strcmp(f->drop, t->name) == 0;
        lt_safetensor_out *o = &out[n];
        if (dropped && f->renamed == NULL) {
            continue;
        }
        memory[n] = (lt_safetensor_memory){t->data, lt_dtype_bytes(t->dtype)};
        *o = (lt_safetensor_out){.name = dropped ? f->renamed : t->name,
                                 .dtype = t->dtype,
                                 .n_dims = t->n_dims,
                                 .fill = lt_safetensor_fill_memory,
                                 .ctx = &memory[n]};
        memcpy(o->shape, t->shape, sizeof o->shape);
        if (f->map != NULL && strcmp(f->map, t->name) == 0) {
            const bool ids = t->dtype == LT_I64;
            assert_true(t->bytes <= (ids ? sizeof d2t : sizeof t2d));
            memory[n].data = ids ? (void *)d2t : (void *)t2d;
            memcpy(ids ? (void *)d2t : (void *)t2d, t->data, t->bytes);
            if (ids) {
                d2t[f->at] = f->number;
            } else {
                t2d[f->at] = (char)f->number;
            }
        }
        o->shape[0] -= f->cut != NULL && strcmp(f->cut, t->name) == 0;
        n++;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(lt_safetensors_write(path, out, n, NULL, NULL), "a head");
    lt_safetensors_close(&file);
}

static void heads_that_do_not_fit_are_refused(void **state) {
    static const fault faults[] = {
        {.key = "architectures",
         .value = "[\"LlamaForCausalLM\"]",
         .err = LT_ERR_UNSUPPORTED,
         .message = "architecture LlamaForCausalLM; a draft head is"},
        {.key = "num_nextn_predict_layers",
         .value = "1",
         .err = LT_ERR_UNSUPPORTED,
         .message = "multi-token prediction"},
        {.drop = "fc.weight",
         .renamed = "model.layers.61.eh_proj.weight",
         .err = LT_ERR_UNSUPPORTED,
         .message = "of a head of multi-token prediction"},
        {.drop = "norm.weight",
         .renamed = "norm2.weight",
         .err = LT_ERR_UNSUPPORTED,
         .message = "tensor norm2.weight is none of an EAGLE-3 head"},
        {.key = "num_hidden_layers",
         .value = "2",
         .err = LT_ERR_UNSUPPORTED,
         .message = "num_hidden_layers is 2"},
        {.key = "attention_bias", .value = "true", .err = LT_ERR_UNSUPPORTED, .message = "biases"},
        {.key = "norm_before_residual",
         .value = "true",
         .err = LT_ERR_UNSUPPORTED,
         .message = "before its norm"},
        {.key = "hidden_size",
         .value = "64",
         .err = LT_ERR_UNSUPPORTED,
         .message = "has width 64; the served model has width 32 and 80 tokens"},
        {.key = "target_hidden_size",
         .value = "48",
         .err = LT_ERR_UNSUPPORTED,
         .message = "for a model of width 48"},
        {.key = "vocab_size",
         .value = "96",
         .err = LT_ERR_UNSUPPORTED,
         .message = "with 96 tokens"},
        {.key = "draft_vocab_size",
         .value = "81",
         .err = LT_ERR_FORMAT,
         .message = "draft_vocab_size is 81; it may be 1 to vocab_size, 80"},
        {.key = "draft_vocab_size",
         .value = "40",
         .err = LT_ERR_FORMAT,
         .message = "lm_head.weight is 48 x 32; by config.json it is 40 x 32"},
        {.key = "intermediate_size",
         .value = "64",
         .err = LT_ERR_FORMAT,
         .message = "gate_proj.weight is 48 x 32; by config.json it is 64 x 32"},
        {.key = "eagle_config",
         .value = "{\"eagle_aux_hidden_state_layer_ids\": [1, 3, 6]}",
         .err = LT_ERR_UNSUPPORTED,
         .message = "is [1,3,6]; the hidden states that enter layers 2, "
                    "4 and 5 are read"},
        {.drop = "midlayer.hidden_norm.weight",
         .err = LT_ERR_FORMAT,
         .message = "a tensor is missing: midlayer.hidden_norm.weight"},
        {.drop = "d2t",
         .err = LT_ERR_FORMAT,
         .message = "d2t is missing: the head has 48 of the 80 tokens"},
        {.cut = "fc.weight",
         .err = LT_ERR_FORMAT,
         .message = "fc.weight is 31 x 96; by config.json it is 32 x 96"},
        {.map = "d2t",
         .at = 5,
         .number = 75,
         .err = LT_ERR_FORMAT,
         .message = "d2t[5] is 75: token 5 + 75 is none of the 80"},
        {.map = "d2t", .at = 5, .number = -6, .err = LT_ERR_FORMAT, .message = "d2t[5] is -6"},
        {.map = "d2t", .at = 47, .number = INT64_MAX, .err = LT_ERR_FORMAT, .message = "d2t[47]"},
        {.cut = "t2d", .err = LT_ERR_FORMAT, .message = "t2d has 79 elements"}};
    golden g;
    lt_draft_head *h = NULL;
    char path[256];
    (void)state;
    open_golden(&g, LT_F32);
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_faulty(&g, &faults[i]);
        if (lt_draft_head_open(&h, g.model, folder) != faults[i].err ||
            strstr(lt_error_message(), faults[i].message) == NULL) {
            fail_msg("'%s' is not '%s'", lt_error_message(), faults[i].message);
        }
    }
    for (int at = 0; at < 80; at += 79) { /* One that t2d has and d2t has not, or the reverse. */
        const lt_safetensor *t;
        lt_safetensors head;
        must(lt_safetensors_open(&head, GOLDEN "/head/model.safetensors"), "head");
        t = lt_safetensors_find(&head, "t2d");
        write_faulty(&g, &(fault){.map = "t2d", .at = at, .number = t->data[at] == 0});
        lt_safetensors_close(&head);
        assert_int_equal(lt_draft_head_open(&h, g.model, folder), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), "t2d and d2t disagree about token"));
    }
    /* What may be: the layers said as what leaves those before, and no t2d. */
    write_faulty(&g, &(fault){.key = "eagle_config",
                              .value = "{\"eagle_aux_hidden_state_layer_ids\": [1, 3, 4]}",
                              .drop = "t2d"});
    must(lt_draft_head_open(&h, g.model, folder), "a head without t2d");
    lt_draft_head_close(h);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lt_draft_head_open(&h, g.model, folder), LT_ERR_NOT_FOUND);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    close_golden(&g);
}

static void what_cannot_be_is_refused(void **state) {
    golden g;
    lt_draft_head *h = NULL;
    const lt_draft_head *head;
    lt_engine *e = NULL;
    lt_engine_options o = lt_engine_defaults();
    lt_model *small = random_model(80, 64, LT_F32);
    (void)state;
    open_golden(&g, LT_F32);
    head = g.head;
    o.max_seq = 64;
    o.speculate = LT_SPECULATE_HEAD;
    assert_int_equal(lt_engine_open(&e, g.model, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "there is no draft head"));
    o.speculate = LT_SPECULATE_NGRAM;
    o.head = &head;
    assert_int_equal(lt_engine_open(&e, g.model, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "a draft head, but other drafts"));
    assert_int_equal(lt_draft_head_open(&h, small, GOLDEN "/head"), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "the served model has width 64 and 80 tokens"));
    lt_model_close(small);
    close_golden(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_pytorchs),
                                       cmocka_unit_test(a_greedy_text_accepts_what_pytorch_says),
                                       cmocka_unit_test(texts_are_those_without_drafts),
                                       cmocka_unit_test(all_kinds_are_those_without_drafts),
                                       cmocka_unit_test(drawn_texts_accept_more_than_copies),
                                       cmocka_unit_test(texts_have_the_models_distribution),
                                       cmocka_unit_test(heads_that_do_not_fit_are_refused),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
