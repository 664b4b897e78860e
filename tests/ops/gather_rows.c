/* gather_rows.c: cases of gather_rows: N rows of C columns, each the sum of up to K of M rows; K
 * 0: one row each, without `start`. */
#include "ops/case.h"

#define TYPES (1 << LT_F32 | 1 << LT_BF16)
static const lt_case cases[] = {
    {"copies", LT_CASE_CHECK, TYPES, .N = 13, .M = 9, .C = 5},
    {"copies, wide", LT_CASE_CHECK, TYPES, .N = 40, .M = 17, .C = 2304, .aligned = true},
    {"sums", LT_CASE_CHECK, TYPES, .N = 21, .M = 30, .C = 67, .K = 5},
    {"sums of whole pieces", LT_CASE_CHECK, TYPES, .N = 9, .M = 80, .C = 256, .K = 16,
     .aligned = true},
    {"columns of wider rows", LT_CASE_CHECK, TYPES, .N = 12, .M = 12, .C = 64, .K = 2},
    {"llama-1b, prompts to copies", LT_CASE_BENCH, TYPES, .N = 12288, .M = 10248, .C = 3072,
     .aligned = true},
    {"llama-1b, gradients of copies", LT_CASE_BENCH, TYPES, .N = 10248, .M = 12288, .C = 3072,
     .K = 2, .aligned = true},
};

/* Rows begin at multiples of K, but every third sum is empty: its terms belong to the next
 * row. */
static void starts(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t from = i % 3 == 1 && i + 1 < t->count ? i - 1 : i;
        values[i] = (double)(from * t->c->K);
    }
}

/* Any row, or, one time in five, none. */
static void indices(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = lt_rng_below(r, 5) == 0 ? -1.0 : (double)lt_rng_below(r, (uint64_t)t->c->M);
    }
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_gather_rows_args *a = (lt_gather_rows_args *)s->args;
    const int64_t n = c->K > 0 ? c->N * c->K : c->N;
    lt_setup_in(s, "index", &a->index, LT_I32, LT_SHAPE(n))->fill = indices;
    if (c->K > 0) {
        lt_setup_in(s, "start", &a->start, LT_I32, LT_SHAPE(c->N + 1))->fill = starts;
    }
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->M, c->C));
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->N, c->C));
}

const lt_op_cases lt_cases_gather_rows = {
    .op = LT_OP_gather_rows,
    .forward = LT_OP_COUNT,
    LT_CASES(cases),
    .build = build,
    .f32 = {0x1p-21, 0x1p-21},
    .bf16 = {0x1p-8, 0x1p-18},
    .why = "copies are exact; at most 32 terms are added in F32, and BF16 rounds once"};
