/* attention.c: cases of attention_fwd and attention_bwd. T queries, S keys (0: T), H query and G
 * key heads (0: H). scale 0: 1 / sqrt(D). y_f16: keys and values in F16. kv_len: S, then S / 2, 1
 * and 0 keys by sequence, so that queries before the first key see nothing. doc_start: documents of
 * random lengths. */
#include <math.h>

#include "ops/case.h"

static const lt_case cases[] = {
    {"one", LT_CASE_ALL, .B = 1, .T = 1, .H = 1, .D = 1},
    {"full", LT_CASE_ALL, .B = 1, .T = 5, .H = 2, .D = 6},
    {"causal", LT_CASE_ALL, .B = 2, .T = 7, .H = 2, .D = 4, .causal = true},
    {"causal longer", LT_CASE_CHECK, .B = 1, .T = 131, .H = 2, .D = 40, .causal = true},
    {"grouped", LT_CASE_ALL, .B = 1, .T = 6, .H = 6, .G = 2, .D = 4, .causal = true},
    {"one key head", LT_CASE_CHECK, .B = 2, .T = 33, .H = 4, .G = 1, .D = 16, .causal = true},
    {"more keys than queries", LT_CASE_ALL, .B = 1, .T = 3, .S = 9, .H = 2, .D = 4, .causal = true},
    {"decode", LT_CASE_CHECK, .B = 3, .T = 1, .S = 77, .H = 4, .G = 2, .D = 32, .causal = true},
    {"cross", LT_CASE_CHECK | LT_CASE_GRAD, .B = 2, .T = 6, .S = 4, .H = 1, .D = 6},
    {"window", LT_CASE_ALL, .B = 1, .T = 9, .H = 2, .D = 4, .causal = true, .window = 3},
    {"window of one", LT_CASE_CHECK, .B = 1, .T = 20, .H = 1, .D = 8, .causal = true, .window = 1},
    {"window without causal", LT_CASE_CHECK | LT_CASE_GRAD, .B = 1, .T = 8, .H = 1, .D = 4,
     .window = 4},
    {"window over blocks", LT_CASE_CHECK, .B = 1, .T = 200, .H = 1, .D = 16, .causal = true,
     .window = 70},
    {"softcap", LT_CASE_ALL, .B = 1, .T = 6, .H = 2, .D = 4, .causal = true, .softcap = 2,
     .scale = 1},
    {"sinks", LT_CASE_ALL, .B = 1, .T = 5, .H = 4, .G = 2, .D = 4, .causal = true, .sinks = true},
    {"alibi", LT_CASE_ALL, .B = 1, .T = 6, .H = 3, .D = 4, .causal = true, .alibi = true},
    {"documents", LT_CASE_ALL, .B = 2, .T = 10, .H = 2, .D = 4, .causal = true, .doc_start = true},
    {"key lengths", LT_CASE_CHECK | LT_CASE_GRAD, .B = 4, .T = 4, .S = 10, .H = 2, .D = 4,
     .causal = true, .kv_len = true},
    {"key lengths, full", LT_CASE_CHECK | LT_CASE_GRAD, .B = 4, .T = 3, .S = 8, .H = 2, .D = 4,
     .kv_len = true},
    {"key lengths and sinks", LT_CASE_CHECK, .B = 4, .T = 9, .S = 9, .H = 2, .D = 8, .causal = true,
     .kv_len = true, .sinks = true},
    {"everything", LT_CASE_CHECK | LT_CASE_GRAD, .B = 2, .T = 12, .S = 20, .H = 4, .G = 2, .D = 8,
     .causal = true, .window = 7, .softcap = 5, .sinks = true, .alibi = true, .doc_start = true,
     .kv_len = true},
    {"large logits", LT_CASE_CHECK, .B = 1, .T = 40, .H = 2, .D = 16, .causal = true, .scale = 2},
    {"wide head", LT_CASE_CHECK, .B = 1, .T = 17, .H = 1, .D = 256, .causal = true},
    {"odd head", LT_CASE_CHECK, .B = 1, .T = 35, .H = 3, .D = 80, .causal = true},
    {"aligned", LT_CASE_CHECK, .B = 2, .T = 150, .H = 6, .G = 2, .D = 64, .causal = true,
     .aligned = true},
    {"aligned documents", LT_CASE_CHECK, .B = 1, .T = 200, .H = 4, .G = 2, .D = 128, .causal = true,
     .doc_start = true, .aligned = true},
    {"aligned window, sinks", LT_CASE_CHECK, .B = 1, .T = 190, .H = 2, .D = 64, .causal = true,
     .window = 50, .sinks = true, .aligned = true},
    /* A tile of queries that sees no key, and one that sees some; heads padded to 96. */
    {"aligned, few keys", LT_CASE_CHECK, .B = 1, .T = 200, .S = 67, .H = 2, .G = 1, .D = 72,
     .causal = true, .aligned = true},
    /* Maxima that grow by much from one block of keys to the next. */
    {"aligned, large logits", LT_CASE_CHECK, .B = 1, .T = 300, .H = 2, .D = 128, .causal = true,
     .scale = 0.5, .aligned = true},
    /* Consecutive steps of queries that see none of a consumer's keys; tiles of keys without any
     * step. */
    {"aligned, unseen keys", LT_CASE_CHECK, .B = 3, .T = 42, .S = 180, .H = 9, .G = 3, .D = 128,
     .causal = true, .window = 57, .aligned = true},
    /* So many keys per query that the backward pass runs once: sums of dQ in memory; with 128
     * columns, two blocks per tile. */
    {"aligned, many keys", LT_CASE_CHECK, .B = 1, .T = 130, .S = 900, .H = 1, .D = 64,
     .causal = true, .aligned = true},
    {"aligned, many keys, clusters", LT_CASE_CHECK, .B = 1, .T = 70, .S = 850, .H = 1, .D = 128,
     .causal = true, .aligned = true},
    {"aligned, many keys, full", LT_CASE_CHECK, .B = 1, .T = 65, .S = 800, .H = 1, .D = 128,
     .aligned = true},
    {"aligned, many keys, window", LT_CASE_CHECK, .B = 1, .T = 65, .S = 1000, .H = 1, .D = 128,
     .causal = true, .window = 850, .aligned = true},
    {"aligned wide head", LT_CASE_CHECK, .B = 1, .T = 70, .H = 2, .G = 1, .D = 192, .causal = true,
     .aligned = true},
    {"gpt2", LT_CASE_BENCH, .B = 4, .T = 256, .H = 12, .D = 64, .causal = true},
    {"gpt2 1024", LT_CASE_BENCH, .B = 1, .T = 1024, .H = 12, .D = 64, .causal = true},
    {"smollm2 grouped", LT_CASE_BENCH, .B = 1, .T = 1024, .H = 9, .G = 3, .D = 64, .causal = true},
    {"packed documents", LT_CASE_BENCH, .B = 1, .T = 1024, .H = 8, .G = 2, .D = 64, .causal = true,
     .doc_start = true},
    {"smollm2 decode", LT_CASE_BENCH, .B = 1, .T = 1, .S = 1024, .H = 9, .G = 3, .D = 64,
     .causal = true},
    /* Forward only. */
    {"F16 cache", LT_CASE_CHECK, 1 << LT_F32, .B = 2, .T = 40, .S = 90, .H = 6, .G = 2, .D = 24,
     .causal = true, .window = 60, .kv_len = true, .y_f16 = true},
    {"F16 cache, decode", LT_CASE_CHECK, 1 << LT_F32, .B = 3, .T = 1, .S = 200, .H = 4, .G = 2,
     .D = 40, .causal = true, .kv_len = true, .y_f16 = true},
};
enum { N_FORWARD = 2 };

static void fill_kv_len(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t n_keys = t->c->S > 0 ? t->c->S : t->c->T;
    const int64_t lengths[] = {n_keys, n_keys / 2, 1, 0};
    (void)r;
    for (int64_t b = 0; b < t->count; b++) {
        values[b] = (double)lengths[b % 4];
    }
}

/* The first token of each query's document: never after the query, and never decreasing. */
static void fill_doc_start(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t n_t = t->c->T, n_keys = t->c->S > 0 ? t->c->S : n_t;
    for (int64_t b = 0; b < t->c->B; b++) {
        int64_t start = 0;
        for (int64_t i = 0; i < n_t; i++) {
            if (lt_rng_below(r, (uint64_t)(n_t / 4 + 2)) == 0) {
                start = n_keys - n_t + i;
            }
            values[b * n_t + i] = (double)(start > 0 ? start : 0);
        }
    }
}

typedef lt_case_tensor *declare(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                                int n_dims, const int64_t *shape);

/* Declare the inputs of both passes, and their options. */
static void inputs(lt_setup *s, lt_attention_args *a, declare *in) {
    const lt_case *c = s->c;
    const int64_t n_keys = c->S > 0 ? c->S : c->T, g = c->G > 0 ? c->G : c->H;

    a->causal = c->causal;
    a->window = c->window;
    a->softcap = c->softcap;
    a->scale = c->scale != 0.0f ? c->scale : 1.0f / sqrtf((float)c->D);
    in(s, "q", &a->q, s->act, LT_SHAPE(c->B, c->T, c->H, c->D));
    in(s, "k", &a->k, c->y_f16 ? LT_F16 : s->act, LT_SHAPE(c->B, n_keys, g, c->D));
    in(s, "v", &a->v, c->y_f16 ? LT_F16 : s->act, LT_SHAPE(c->B, n_keys, g, c->D));
    if (c->kv_len) {
        in(s, "kv_len", &a->kv_len, LT_I32, LT_SHAPE(c->B))->fill = fill_kv_len;
    }
    if (c->doc_start) {
        in(s, "doc_start", &a->doc_start, LT_I32, LT_SHAPE(c->B, c->T))->fill = fill_doc_start;
    }
    if (c->alibi) {
        lt_case_tensor *t = in(s, "alibi", &a->alibi, LT_F32, LT_SHAPE(c->H));
        t->fill = lt_fill_uniform;
        t->fill_b = 0.5;
    }
    if (c->sinks) {
        in(s, "sinks", &a->sinks, LT_F32, LT_SHAPE(c->H));
    }
}

static void fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_attention_args *a = (lt_attention_args *)s->args;
    inputs(s, a, lt_setup_in);
    lt_setup_out(s, "out", &a->out, s->act, LT_SHAPE(c->B, c->T, c->H, c->D));
    if (s->as_forward || c->T > 1) { /* Decoding needs no lse. */
        lt_setup_out(s, "lse", &a->lse, LT_F32, LT_SHAPE(c->B, c->H, c->T))->contiguous = true;
    }
}

static void bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    const int64_t n_keys = c->S > 0 ? c->S : c->T, g = c->G > 0 ? c->G : c->H;
    lt_attention_bwd_args *a = (lt_attention_bwd_args *)s->args;
    lt_case_tensor *t;

    inputs(s, &a->fwd, lt_setup_same);
    lt_setup_same(s, "out", &a->fwd.out, s->act, LT_SHAPE(c->B, c->T, c->H, c->D));
    lt_setup_same(s, "lse", &a->fwd.lse, LT_F32, LT_SHAPE(c->B, c->H, c->T))->contiguous = true;
    lt_setup_in(s, "dout", &a->dout, s->act, LT_SHAPE(c->B, c->T, c->H, c->D));
    /* A query that sees one key has dq = dk = 0: the terms that cancel are about 1. */
    lt_setup_out(s, "dq", &a->dq, s->act, LT_SHAPE(c->B, c->T, c->H, c->D))->floor = 0.25;
    lt_setup_out(s, "dk", &a->dk, s->act, LT_SHAPE(c->B, n_keys, g, c->D))->floor = 0.25;
    lt_setup_out(s, "dv", &a->dv, s->act, LT_SHAPE(c->B, n_keys, g, c->D));
    if (c->sinks) {
        t = lt_setup_grad(s, "dsinks", &a->dsinks, LT_F32, LT_SHAPE(c->H));
        t->wide = true;
        t->floor = 0.25;
    }
    t = lt_setup_out(s, "delta", &a->delta, LT_F32, LT_SHAPE(c->B, c->H, c->T));
    t->role = LT_ROLE_SCRATCH;
    t->contiguous = true;
}

#define ATTENTION_WHY                                                                              \
    "F32 logits up to 40: exp carries 40 * 2^-24; sums of 200. BF16: probabilities and their "     \
    "gradients may be "                                                                            \
    "rounded to BF16 before the second product, the result rounds once"
const lt_op_cases lt_cases_attention_fwd = {.op = LT_OP_attention_fwd,
                                            .forward = LT_OP_COUNT,
                                            LT_CASES(cases),
                                            .build = fwd_build,
                                            .f32 = {0x1p-18, 0x1p-18},
                                            .bf16 = {0x1p-7, 0x1p-8},
                                            .why = ATTENTION_WHY};
const lt_op_cases lt_cases_attention_bwd = {.op = LT_OP_attention_bwd,
                                            .forward = LT_OP_attention_fwd,
                                            .cases = cases,
                                            .n_cases = (int)(sizeof cases / sizeof *cases) -
                                                       N_FORWARD,
                                            .build = bwd_build,
                                            .f32 = {0x1p-17, 0x1p-17},
                                            .bf16 = {0x1p-7, 0x1p-7},
                                            .why = ATTENTION_WHY};

static const lt_case merge_cases[] = {
    {"one row", LT_CASE_CHECK, .B = 1, .T = 1, .H = 1, .D = 5},
    {"joined", LT_CASE_CHECK, .B = 2, .T = 7, .H = 3, .D = 64},
    {"the first", LT_CASE_CHECK, .B = 2, .T = 5, .H = 2, .D = 33, .inverse = true},
    {"with sinks", LT_CASE_CHECK, .B = 1, .T = 6, .H = 4, .D = 16, .sinks = true},
    {"the first, with sinks", LT_CASE_CHECK, .B = 1, .T = 3, .H = 4, .D = 16, .sinks = true,
     .inverse = true},
    {"rows without keys", LT_CASE_CHECK, .B = 2, .T = 9, .H = 2, .D = 24, .extreme = true},
    {"rows without keys, the first", LT_CASE_CHECK, .B = 2, .T = 9, .H = 2, .D = 24,
     .extreme = true, .inverse = true},
    {"rows without keys, with sinks", LT_CASE_CHECK, .B = 2, .T = 9, .H = 2, .D = 24,
     .extreme = true, .sinks = true},
    {"a ring's step", LT_CASE_BENCH, .B = 1, .T = 2048, .H = 16, .D = 128},
};

/* Every n-th row has seen no key. */
static void fill_unseen(double *values, const lt_case_tensor *t, lt_rng *r, int64_t n) {
    lt_fill_normal(values, t, r);
    for (int64_t i = 0; t->c->extreme && i < t->count; i += n) {
        values[i] = -INFINITY;
    }
}

static void fill_lse(double *values, const lt_case_tensor *t, lt_rng *r) {
    fill_unseen(values, t, r, 2);
}

static void fill_part_lse(double *values, const lt_case_tensor *t, lt_rng *r) {
    fill_unseen(values, t, r, 3);
}

static void merge_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_attention_merge_args *a = (lt_attention_merge_args *)s->args;
    const int64_t out[] = {c->B, c->T, c->H, c->D}, lse[] = {c->B, c->H, c->T};
    a->first = c->inverse;
    if (a->first) {
        lt_setup_out(s, "out", &a->out, LT_F32, 4, out)->wide = true;
        lt_setup_out(s, "lse", &a->lse, LT_F32, 3, lse);
    } else {
        lt_setup_inout(s, "out", &a->out, LT_F32, 4, out);
        lt_setup_inout(s, "lse", &a->lse, LT_F32, 3, lse)->fill = fill_lse;
    }
    lt_setup_in(s, "part", &a->part, s->act, 4, out);
    lt_setup_in(s, "part_lse", &a->part_lse, LT_F32, 3, lse)->fill = fill_part_lse;
    if (c->sinks) {
        lt_setup_in(s, "sinks", &a->sinks, LT_F32, LT_SHAPE(c->H));
    }
}

/* Queries of rank R of P, from query N on; keys of rank S; pieces of C tokens. */
static const lt_case starts_cases[] = {
    {"own keys, documents", LT_CASE_CHECK, .B = 2, .T = 10, .C = 5, .P = 2, .R = 1, .S = 1,
     .doc_start = true},
    {"keys of a rank before", LT_CASE_CHECK, .B = 3, .T = 6, .C = 3, .P = 3, .R = 2, .S = 0,
     .doc_start = true},
    {"keys of a rank behind, window, second half", LT_CASE_CHECK, .B = 1, .T = 4, .C = 4, .N = 4,
     .P = 4, .R = 0, .S = 3, .window = 5},
    {"documents and window", LT_CASE_CHECK, .B = 2, .T = 300, .C = 150, .P = 2, .R = 1, .S = 0,
     .doc_start = true, .window = 411},
    {"second half, documents and window", LT_CASE_CHECK, .B = 3, .T = 7, .C = 7, .N = 7, .P = 2,
     .R = 0, .S = 1, .doc_start = true, .window = 9},
    {"neither", LT_CASE_CHECK, .B = 1, .T = 4, .C = 2, .P = 2, .R = 1, .S = 0},
    {"a ring's step", LT_CASE_BENCH, .B = 1, .T = 32768, .C = 16384, .P = 4, .R = 3, .S = 1,
     .doc_start = true},
};

/* Positions in the whole sequence, never after the query: documents may begin anywhere before
 * it. */
static void fill_starts(double *values, const lt_case_tensor *t, lt_rng *r) {
    const lt_case *c = t->c;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t own = c->N + i % c->T, piece = own < c->C ? c->R : 2 * c->P - 1 - c->R;
        values[i] = (double)lt_rng_below(r, (uint64_t)(piece * c->C + own % c->C + 1));
    }
}

static void starts_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_attention_starts_args *a = (lt_attention_starts_args *)s->args;
    const int last = 2 * (int)c->P - 1;
    a->window = c->window;
    a->piece = c->C;
    a->q_first = c->N;
    a->q_piece[0] = (int)c->R, a->q_piece[1] = last - (int)c->R;
    a->k_piece[0] = (int)c->S, a->k_piece[1] = last - (int)c->S;
    lt_setup_out(s, "y", &a->y, LT_I32, LT_SHAPE(c->B, c->T));
    if (c->doc_start) {
        lt_setup_in(s, "doc_start", &a->doc_start, LT_I32, LT_SHAPE(c->B, c->T))->fill =
            fill_starts;
    }
}

const lt_op_cases lt_cases_attention_starts = {.op = LT_OP_attention_starts,
                                               .forward = LT_OP_COUNT,
                                               LT_CASES(starts_cases),
                                               .build = starts_build,
                                               .why = "whole numbers"};

const lt_op_cases lt_cases_attention_merge = {
    .op = LT_OP_attention_merge,
    .forward = LT_OP_COUNT,
    LT_CASES(merge_cases),
    .build = merge_build,
    .f32 = {0x1p-20, 0x1p-20},
    .bf16 = {0x1p-20, 0x1p-20},
    .why = "three exponentials and a sum in F32; part is read as it is"};
