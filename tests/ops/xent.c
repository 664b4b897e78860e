/* xent.c: cases of xent. Every third label is ignored if there are enough rows. grad_scale 0:
 * only the loss. extreme: large, equal and -inf logits. It is its own backward op: the gradient
 * replaces the logits. */
#include <math.h>

#include "ops/case.h"

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .V = 1, .grad_scale = 1},
    {"loss only", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 7, .V = 13},
    {"gradient", LT_CASE_ALL, .R = 6, .V = 11, .grad_scale = 0.25f},
    {"softcap", LT_CASE_ALL, .R = 5, .V = 17, .grad_scale = 1, .softcap = 3},
    {"z loss", LT_CASE_ALL, .R = 5, .V = 9, .grad_scale = 1, .z_coef = 0.125f},
    {"softcap and z loss", LT_CASE_CHECK | LT_CASE_GRAD, .R = 4, .V = 10, .grad_scale = 0.5f,
     .softcap = 4, .z_coef = 0.01f},
    {"weights", LT_CASE_ALL, .R = 7, .V = 12, .grad_scale = 0.5f, .weights = true},
    {"weights, softcap and z loss", LT_CASE_ALL, .R = 5, .V = 9, .grad_scale = 1, .softcap = 4,
     .z_coef = 0.125f, .weights = true},
    {"weights, an SM holds two rows", LT_CASE_CHECK, .R = 33, .V = 10008, .grad_scale = 1,
     .weights = true},
    {"wide", LT_CASE_CHECK, .R = 3, .V = 4099, .grad_scale = 1},
    {"many rows", LT_CASE_CHECK, .R = 133, .V = 31, .grad_scale = 1},
    {"an SM holds two rows", LT_CASE_CHECK, .R = 33, .V = 10008, .grad_scale = 1, .z_coef = 0.125f},
    {"an SM holds one row", LT_CASE_CHECK, .R = 17, .V = 49160, .grad_scale = 0.5f},
    {"partly in registers", LT_CASE_CHECK, .R = 15, .V = 99992, .grad_scale = 1},
    {"extreme", LT_CASE_CHECK, .R = 9, .V = 20, .grad_scale = 1, .extreme = true},
    /* Part of a vocabulary in P parts, from id S on: the facts that the other parts need (M), and
     * the results from the facts of all parts. */
    {"of a part", LT_CASE_CHECK, .R = 7, .V = 13, .S = 26, .P = 3, .M = 1, .softcap = 3},
    {"of a part, -inf throughout", LT_CASE_CHECK, .R = 9, .V = 2100, .P = 2, .M = 1,
     .extreme = true},
    {"part, loss only", LT_CASE_CHECK, .R = 7, .V = 13, .S = 26, .P = 4},
    {"part", LT_CASE_CHECK, .R = 8, .V = 1030, .S = 1030, .P = 3, .grad_scale = 0.5f,
     .z_coef = 0.125f},
    {"first part, softcap, weights", LT_CASE_CHECK, .R = 33, .V = 20, .P = 2, .grad_scale = 1,
     .softcap = 4, .weights = true},
    {"gpt2 chunk", LT_CASE_BENCH, .R = 128, .V = 50304, .grad_scale = 1},
    {"gpt2 chunk, loss only", LT_CASE_BENCH, .R = 128, .V = 50304},
    {"apertus 8M", LT_CASE_BENCH, .R = 1024, .V = 8192, .grad_scale = 1},
};

/* Some labels are the first and the last id of a vocabulary or its part. */
static void fill_labels(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t n = t->c->V * (t->c->P > 0 ? t->c->P : 1);
        values[i] = i % 6 == 1   ? (double)t->c->S
                    : i % 6 == 4 ? (double)(t->c->S + t->c->V - 1)
                    : i % 3 == 2 ? -1.0
                                 : (double)lt_rng_below(r, (uint64_t)n);
        if (t->c->extreme) {
            values[i] = i % 3 == 2 ? -1.0 : (double)(t->c->V / 2); /* A logit that is never -inf. */
        }
    }
}

/* The rows take turns: deviation 100; all equal; -inf except in the middle. */
static void fill_extreme(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t n = t->c->V;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t row = i / n, col = i % n;
        const double x = lt_rng_normal(r);
        values[i] = row % 4 == 0   ? 100.0 * x
                    : row % 4 == 1 ? -7.0
                    : row % 4 == 3 ? 1e4 + x
                    : col == n / 2 ? x
                                   : -INFINITY;
    }
}

/* Facts that P parts of V ids each may have written; the largest logits of the first rows are
 * equal. */
static void fill_parts(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t rows = t->c->R;
    for (int64_t i = 0; i < t->c->P * rows; i++) {
        const double hit = lt_rng_normal(r);
        double *part = values + i * LT_XENT_PART;
        part[LT_XENT_MAX] = i % rows < 3 ? 2.0 : 2.0 + 0.25 * lt_rng_normal(r);
        part[LT_XENT_SUM] = 1.0 + (double)lt_rng_below(r, 64) / 64.0;
        part[LT_XENT_HIT] = i / rows == 1 ? hit : 0.0;
        part[LT_XENT_BEST] = (double)(i / rows * t->c->V + i % t->c->V);
    }
}

static void build_parts(lt_setup *s, lt_xent_args *a) {
    const lt_case *c = s->c;
    a->first = c->S;
    if (c->M > 0) {
        lt_setup_out(s, "part", &a->part, LT_F32, LT_SHAPE(c->R, LT_XENT_PART))->contiguous = true;
    } else {
        lt_case_tensor *t = lt_setup_in(s, "parts", &a->parts, LT_F32,
                                        LT_SHAPE(c->P, c->R, LT_XENT_PART));
        t->fill = fill_parts;
        t->contiguous = true;
    }
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_xent_args *a = (lt_xent_args *)s->args;
    const bool grad = c->grad_scale != 0.0f && !s->as_forward;
    lt_case_tensor *t;

    a->grad_scale = grad ? c->grad_scale : 0.0f;
    a->softcap = c->softcap;
    a->z_coef = c->z_coef;
    t = grad ? lt_setup_inout(s, "logits", &a->logits, s->act, LT_SHAPE(c->R, c->V))
             : lt_setup_in(s, "logits", &a->logits, s->act, LT_SHAPE(c->R, c->V));
    t->fill = c->extreme ? fill_extreme : lt_fill_normal;
    t->fill_b = 3.0;
    t->grad_of = grad ? "logits" : NULL;
    t->source = grad ? "logits" : NULL;
    t = lt_setup_in(s, "labels", &a->labels, LT_I32, LT_SHAPE(c->R));
    t->fill = fill_labels;
    t->source = grad ? "labels" : NULL;
    if (c->weights) {
        t = lt_setup_in(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R));
        t->source = grad ? "weights" : NULL;
    }
    if (c->P > 0) {
        build_parts(s, a);
    }
    if (c->M > 0) {
        return;
    }
    lt_setup_out(s, "loss", &a->loss, LT_F32, LT_SHAPE(c->R));
    lt_setup_out(s, "lse", &a->lse, LT_F32, LT_SHAPE(c->R));
    lt_setup_out(s, "best", &a->best, LT_I32, LT_SHAPE(c->R));
}

/* grad_scale * sum over counted rows of weight * (loss + z_coef lse^2). */
static double objective(const lt_setup *f, const lt_setup *b) {
    const double *loss = lt_setup_find(f, "loss")->slot->data,
                 *lse = lt_setup_find(f, "lse")->slot->data;
    const int32_t *labels = lt_setup_find(f, "labels")->slot->data;
    const double *weights = f->c->weights ? lt_setup_find(f, "weights")->slot->data : NULL;
    double sum = 0.0;
    for (int64_t r = 0; r < f->c->R; r++) {
        if (labels[r] >= 0) {
            sum += (weights != NULL ? weights[r] : 1.0) *
                   (loss[r] + (double)f->c->z_coef * lse[r] * lse[r]);
        }
    }
    (void)b;
    return sum * (double)f->c->grad_scale;
}

const lt_op_cases lt_cases_xent = {
    .op = LT_OP_xent,
    .forward = LT_OP_xent,
    LT_CASES(cases),
    .build = build,
    .objective = objective,
    .f32 = {0x1p-18, 0x1p-20},
    .bf16 = {0x1p-8, 0x1p-16},
    .why = "exp of differences up to 40 in F32, sums of 4099; BF16 rounds the gradient once"};
