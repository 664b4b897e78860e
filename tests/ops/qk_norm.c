/* qk_norm.c: cases of qk_norm, forward and backward. H query heads, G key heads. N: rotated
 * columns (0: all D). in_place: backward, dx is dy's memory. positions: those of packed
 * documents, which begin again at 0; else any. Gains are F32 with `residual`, else of x's
 * type. */
#include "ops/case.h"

static const lt_case cases[] = {
    {"smallest", LT_CASE_CHECK | LT_CASE_GRAD, .R = 1, .H = 1, .G = 1, .D = 4, .P = 1},
    {"grouped heads", LT_CASE_CHECK | LT_CASE_GRAD, .R = 9, .H = 6, .G = 2, .D = 16, .P = 20},
    {"odd pairs", LT_CASE_CHECK | LT_CASE_GRAD, .R = 7, .H = 3, .G = 1, .D = 30, .P = 64,
     .residual = true},
    {"part of the head", LT_CASE_CHECK | LT_CASE_GRAD, .R = 5, .H = 2, .G = 2, .D = 13, .N = 6,
     .P = 8},
    {"gain offset", LT_CASE_CHECK | LT_CASE_GRAD, .R = 3, .H = 2, .G = 1, .D = 10, .P = 4,
     .offset = 1},
    {"in place", LT_CASE_CHECK, .R = 11, .H = 5, .G = 1, .D = 24, .P = 64, .in_place = true},
    {"no keys", LT_CASE_CHECK, .R = 5, .H = 3, .D = 16, .P = 9},
    {"aligned, documents", LT_CASE_CHECK, .R = 61, .H = 4, .G = 2, .D = 64, .P = 64,
     .positions = true, .aligned = true},
    {"aligned, F32 gains, in place", LT_CASE_CHECK, .R = 133, .H = 3, .G = 3, .D = 128, .P = 200,
     .residual = true, .in_place = true, .aligned = true},
    {"aligned, narrow", LT_CASE_CHECK, .R = 40, .H = 2, .G = 1, .D = 32, .P = 64, .offset = 1,
     .aligned = true},
    {"aligned, wide", LT_CASE_CHECK, .R = 21, .H = 4, .G = 1, .D = 256, .P = 64, .aligned = true},
    {"aligned, many rows", LT_CASE_CHECK, .R = 1201, .H = 4, .G = 1, .D = 64, .P = 1201,
     .aligned = true},
    {"apertus 300M", LT_CASE_BENCH, .R = 4096, .H = 16, .G = 4, .D = 64, .P = 4096},
    {"qwen3 8B", LT_CASE_BENCH, .R = 1024, .H = 32, .G = 8, .D = 128, .P = 4096},
};

static const float EPS = 1e-5f;

/* Positions of packed documents: 0 .. P / 3, then from 0 again. */
static void fill_documents(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = (double)(i % (t->c->P / 3));
    }
}

/* Angles, gains and positions: new for the forward pass, the same ones for the backward pass. */
static void shared_inputs(lt_setup *s, lt_tensor *positions, lt_tensor *table, lt_tensor *q_gain,
                          lt_tensor *k_gain, bool backward) {
    const lt_case *c = s->c;
    const int64_t n = c->N > 0 ? c->N : c->D;
    const lt_dtype gain = c->residual ? LT_F32 : s->act;
    lt_case_tensor *t = lt_setup_in(s, "positions", positions, LT_I32, LT_SHAPE(c->R));
    t->fill = c->positions ? fill_documents : lt_fill_ids;
    t->fill_b = (double)c->P;
    t->source = backward ? "positions" : NULL;
    t = lt_setup_in(s, "table", table, LT_F32, LT_SHAPE(c->P, n / 2, 2));
    t->fill = lt_fill_uniform;
    t->fill_a = -1.0;
    t->contiguous = true;
    t->source = backward ? "table" : NULL;
    lt_setup_in(s, "q_gain", q_gain, gain, LT_SHAPE(c->D))->source = backward ? "q_gain" : NULL;
    lt_setup_in(s, "k_gain", k_gain, gain, LT_SHAPE(c->D))->source = backward ? "k_gain" : NULL;
}

static void fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    const int64_t heads = c->H + c->G;
    lt_qk_norm_args *a = (lt_qk_norm_args *)s->args;
    a->eps = EPS;
    a->gain_offset = c->offset;
    a->n_q = c->H;
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, heads, c->D));
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, heads, c->D));
    shared_inputs(s, &a->positions, &a->table, &a->q_gain, &a->k_gain, false);
    if (s->as_forward || !c->in_place) { /* The in-place case also runs without rstd. */
        lt_setup_out(s, "rstd", &a->rstd, LT_F32, LT_SHAPE(c->R * heads))->contiguous = true;
    }
}

static void bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    const int64_t heads = c->H + c->G;
    lt_qk_norm_bwd_args *a = (lt_qk_norm_bwd_args *)s->args;
    lt_case_tensor *t;
    a->gain_offset = c->offset;
    a->n_q = c->H;
    t = c->in_place ? lt_setup_inout(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, heads, c->D))
                    : lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, heads, c->D));
    lt_setup_same(s, "x", &a->x, s->act, LT_SHAPE(c->R, heads, c->D));
    t = lt_setup_out(s, "dx", &a->dx, s->act, LT_SHAPE(c->R, heads, c->D));
    t->alias = c->in_place ? "dy" : NULL;
    shared_inputs(s, &a->positions, &a->table, &a->q_gain, &a->k_gain, true);
    lt_setup_same(s, "rstd", &a->rstd, LT_F32, LT_SHAPE(c->R * heads))->contiguous = true;
    lt_setup_grad(s, "dq_gain", &a->dq_gain, LT_F32, LT_SHAPE(c->D));
    lt_setup_grad(s, "dk_gain", &a->dk_gain, LT_F32, LT_SHAPE(c->D));
}

#define TOLERANCE                                                                                  \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0x1p-8, 0x1p-16},                                          \
    .why = "as rmsnorm, and a rotation in F32; BF16 one rounding"

const lt_op_cases lt_cases_qk_norm_fwd = {.op = LT_OP_qk_norm_fwd,
                                          .forward = LT_OP_COUNT,
                                          LT_CASES(cases),
                                          .build = fwd_build,
                                          TOLERANCE};
const lt_op_cases lt_cases_qk_norm_bwd = {.op = LT_OP_qk_norm_bwd,
                                          .forward = LT_OP_qk_norm_fwd,
                                          LT_CASES(cases),
                                          .build = bwd_build,
                                          TOLERANCE};
