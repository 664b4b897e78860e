/* lora.c: cases of matmul_lora and lora_scale, below, and of lora_add. E adapters of rank C; R
 * rows, every fifth without an adapter; K inputs, and N outputs of each of S parts. weights: rows
 * have scales. */
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

    /* In y the parts are in order, in b in reverse order. */
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

/* R rows of N columns, E places. bias: with offsets. */
static const lt_case scale_cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .N = 1, .E = 1},
    {"odd", LT_CASE_CHECK, .R = 7, .N = 13, .E = 3, .bias = true},
    {"wide", LT_CASE_CHECK, .R = 21, .N = 2056, .E = 4, .aligned = true},
    {"offsets", LT_CASE_CHECK, .R = 6, .N = 1024, .E = 2, .bias = true, .aligned = true},
    {"llama-1b qkv", LT_CASE_BENCH, .R = 64, .N = 3072, .E = 64},
};

static void scale_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_lora_scale_args *a = (lt_lora_scale_args *)s->args;
    lt_setup_inout(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->N));
    lt_setup_in(s, "factor", &a->factor, LT_F32, LT_SHAPE(c->E, c->N));
    if (c->bias) {
        lt_setup_in(s, "offset", &a->offset, LT_F32, LT_SHAPE(c->E, c->N));
    }
    lt_setup_in(s, "place", &a->place, LT_I32, LT_SHAPE(c->R))->fill = fill_places;
}

const lt_op_cases lt_cases_lora_scale = {
    .op = LT_OP_lora_scale,
    .forward = LT_OP_COUNT,
    LT_CASES(scale_cases),
    .build = scale_build,
    .f32 = {0x1p-23, 0x1p-23},
    .bf16 = {0x1p-8, 0x1p-8},
    .why = "one product and one sum in F32; BF16 rounds y once"};

/* M rows, K inputs, and N outputs of each of S parts of rank R; trans_b: as forward, else as
 * backward, with one part. weights: the second part has no adapter. */
static const lt_case product_cases[] = {
    {"odd", LT_CASE_CHECK, .M = 7, .N = 5, .K = 13, .R = 3, .S = 2, .trans_b = true},
    {"back", LT_CASE_CHECK, .M = 9, .N = 12, .K = 20, .R = 4, .S = 1, .accumulate = true},
    {"qkv", LT_CASE_CHECK, .M = 136, .N = 256, .K = 72, .R = 8, .S = 3, .trans_b = true,
     .bias = true, .aligned = true},
    {"one part, odd columns", LT_CASE_CHECK, .M = 200, .N = 264, .K = 136, .R = 16, .S = 1,
     .trans_b = true, .aligned = true},
    {"large rank", LT_CASE_CHECK, .M = 136, .N = 256, .K = 64, .R = 136, .S = 1, .trans_b = true,
     .aligned = true},
    {"back through parts", LT_CASE_CHECK, .M = 200, .N = 136, .K = 264, .R = 24, .S = 1,
     .aligned = true},
    {"back, onto dx", LT_CASE_CHECK, .M = 72, .N = 136, .K = 200, .R = 80, .S = 1,
     .accumulate = true, .aligned = true},
    {"two of three", LT_CASE_CHECK, .M = 136, .N = 256, .K = 64, .R = 8, .S = 3, .trans_b = true,
     .weights = true, .aligned = true},
    {"llama-1b qkv", LT_CASE_BENCH, .M = 16384, .N = 1024, .K = 2048, .R = 16, .S = 3,
     .trans_b = true},
    {"llama-1b gate, up", LT_CASE_BENCH, .M = 16384, .N = 8192, .K = 2048, .R = 16, .S = 2,
     .trans_b = true},
    {"llama-1b gate, up, back", LT_CASE_BENCH, .M = 16384, .N = 2048, .K = 16384, .R = 32, .S = 1},
};

static void product_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_lora_args *a = (lt_matmul_lora_args *)s->args;
    lt_matmul_args *m = &a->base;
    const int64_t rows_b = c->trans_b ? c->S * c->N : c->K, cols_b = c->trans_b ? c->K : c->N;

    /* In y the parts are in order, in v in reverse order; weights: the second part has no
     * adapter. */
    for (int64_t i = 0; i < c->S; i++) {
        if (!c->weights || i != 1) {
            a->parts[a->n_parts++] = (lt_lora_add_part){i * c->N, (c->S - 1 - i) * c->N, c->N};
        }
    }
    m->trans_b = c->trans_b;
    m->accumulate = c->accumulate;
    if (c->accumulate) {
        lt_setup_inout(s, "y", &m->y, s->act, LT_SHAPE(c->M, c->S * c->N));
    } else {
        lt_setup_out(s, "y", &m->y, s->act, LT_SHAPE(c->M, c->S * c->N));
    }
    lt_setup_in(s, "a", &m->a, s->act, LT_SHAPE(c->M, c->K))->fill_b = 0.25;
    lt_setup_in(s, "b", &m->b, s->act, LT_SHAPE(rows_b, cols_b));
    if (c->bias) {
        lt_setup_in(s, "bias", &m->bias, s->act, LT_SHAPE(c->S * c->N));
    }
    lt_setup_in(s, "u", &a->u, s->act, LT_SHAPE(c->M, a->n_parts * c->R))->fill_b = 0.25;
    lt_setup_in(s, "v", &a->v, s->act,
                LT_SHAPE(c->trans_b ? c->S * c->N : c->R, c->trans_b ? c->R : c->N));
}

const lt_op_cases lt_cases_matmul_lora = {
    .op = LT_OP_matmul_lora,
    .forward = LT_OP_COUNT,
    LT_CASES(product_cases),
    .build = product_build,
    .f32 = {0x1p-19, 0x1p-18},
    .bf16 = {0x1p-6, 0x1p-7},
    .why = "F32 sums of 264 and 136 products; BF16 rounds y once, or once for each product"};
