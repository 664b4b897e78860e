/* lora.c: cases of lora_add. E adapters of rank C; R rows, every fifth without one; K numbers in, N
 * out of each of S parts. weights: rows have scales. */
#include "ops/case.h"

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .K = 1, .N = 1, .E = 1, .C = 1, .S = 1},
    {"odd", LT_CASE_CHECK, .R = 7, .K = 13, .N = 5, .E = 3, .C = 3, .S = 2},
    {"scales", LT_CASE_CHECK, .R = 9, .K = 40, .N = 24, .E = 4, .C = 8, .S = 3, .weights = true},
    {"whole pieces", LT_CASE_CHECK, .R = 11, .K = 256, .N = 96, .E = 5, .C = 16, .S = 3,
     .aligned = true},
    {"long input", LT_CASE_CHECK, .R = 3, .K = 4160, .N = 264, .E = 2, .C = 4, .S = 1,
     .aligned = true, .weights = true},
    {"several blocks", LT_CASE_CHECK, .R = 2, .K = 32, .N = 2056, .E = 2, .C = 2, .S = 2,
     .aligned = true},
    {"llama-1b qkv", LT_CASE_BENCH, .R = 64, .K = 2048, .N = 1024, .E = 64, .C = 16, .S = 3},
    {"llama-1b down", LT_CASE_BENCH, .R = 64, .K = 8192, .N = 2048, .E = 64, .C = 16, .S = 1},
};

static void fill_places(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = i % 5 == 4 ? -1.0 : (double)lt_rng_below(r, (uint64_t)t->c->E);
    }
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_lora_add_args *a = (lt_lora_add_args *)s->args;
    lt_case_tensor *t;

    /* In y the parts stand in turn, in b the other way round. */
    a->n_parts = (int)c->S;
    for (int i = 0; i < a->n_parts; i++) {
        a->parts[i] = (lt_lora_add_part){i * c->N, (c->S - 1 - i) * c->N, c->N};
    }
    lt_setup_inout(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->S * c->N));
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->K));
    lt_setup_in(s, "a", &a->a, s->act, LT_SHAPE(c->E, c->S, c->C, c->K))->fill_b = 0.125;
    lt_setup_in(s, "b", &a->b, s->act, LT_SHAPE(c->E, c->C, c->S * c->N));
    t = lt_setup_in(s, "place", &a->place, LT_I32, LT_SHAPE(c->R));
    t->fill = fill_places;
    if (c->weights) {
        lt_setup_in(s, "scale", &a->scale, LT_F32, LT_SHAPE(c->R));
    }
    t = lt_setup_out(s, "u", &a->u, LT_F32, LT_SHAPE(c->R, c->S * c->C));
    t->role = LT_ROLE_SCRATCH;
    t->contiguous = true;
}

const lt_op_cases lt_cases_lora_add = {
    .op = LT_OP_lora_add,
    .forward = LT_OP_COUNT,
    LT_CASES(cases),
    .build = build,
    .f32 = {0x1p-18, 0x1p-17},
    .bf16 = {0x1p-8, 0x1p-8},
    .why = "two F32 sums, of at most 4160 and 16 terms that cancel; BF16 rounds y once"};
