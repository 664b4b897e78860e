/* hash.c: cases of hash: N pieces, the i-th of K - i % M bytes, K bytes after the one before it.
 * The memory is I32, because floating types are F64 for the reference.
 * tests/unit/kernels/test_hash.c tests what the hash must detect. */
#include "ops/case.h"

#define ONE (1 << LT_F32) /* The type of activations does not matter. */
static const lt_case cases[] = {
    {"one byte", LT_CASE_CHECK, ONE, .N = 1, .K = 16, .M = 16},
    {"every end of a vector", LT_CASE_CHECK, ONE, .N = 40, .K = 1040, .M = 17},
    {"no multiple of 16", LT_CASE_CHECK, ONE, .N = 23, .K = 268, .M = 9},
    {"rounds of a block", LT_CASE_CHECK, ONE, .N = 3, .K = 3 * 32768 + 4096, .M = 4099},
    {"empty", LT_CASE_CHECK, ONE, .N = 21, .K = 32, .M = 33},
    {"pieces of 256 KB", LT_CASE_BENCH, ONE, .N = 4096, .K = 1 << 18, .M = 1},
};

static void fill_pieces(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        const int64_t less = i + 1 == t->shape[0] ? t->c->M - 1 : i % t->c->M;
        values[2 * i] = (double)(i * t->c->K);
        values[2 * i + 1] = (double)(t->c->K - less);
    }
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_hash_args *a = (lt_hash_args *)s->args;
    lt_case_tensor *x = lt_setup_in(s, "x", &a->x, LT_I32, LT_SHAPE(c->N * c->K / 4));
    x->fill = lt_fill_ids;
    x->fill_a = -0x1p31;
    x->fill_b = 0x1p31;
    lt_setup_in(s, "pieces", &a->pieces, LT_I64, LT_SHAPE(c->N, 2))->fill = fill_pieces;
    lt_setup_out(s, "out", &a->out, LT_I64, LT_SHAPE(c->N));
}

const lt_op_cases lt_cases_hash = {
    .op = LT_OP_hash, .forward = LT_OP_COUNT, LT_CASES(cases), .build = build, .why = "integers"};
