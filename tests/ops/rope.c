/* rope.c: cases of rope. N: rotated columns (0: all D). The inverse is the backward pass: an
 * inverse case is built as one, from dy to dx. */
#include "ops/case.h"

static const lt_case cases[] = {
    {"smallest", LT_CASE_ALL, .R = 1, .H = 1, .D = 2, .P = 1},
    {"heads", LT_CASE_ALL, .R = 9, .H = 3, .D = 16, .P = 20},
    {"part of the head", LT_CASE_ALL, .R = 5, .H = 2, .D = 12, .N = 6, .P = 8},
    {"in place", LT_CASE_CHECK, .R = 11, .H = 5, .D = 30, .P = 64, .in_place = true},
    {"inverse", LT_CASE_CHECK | LT_CASE_GRAD, .R = 7, .H = 2, .D = 8, .P = 9, .inverse = true},
    {"inverse of part", LT_CASE_CHECK | LT_CASE_GRAD, .R = 4, .H = 1, .D = 10, .N = 4, .P = 9,
     .inverse = true},
    {"aligned", LT_CASE_CHECK, .R = 13, .H = 3, .D = 64, .P = 20, .aligned = true},
    {"apertus 60M", LT_CASE_BENCH, .R = 4096, .H = 8, .D = 64, .P = 4096},
    {"llama 8B", LT_CASE_BENCH, .R = 1024, .H = 32, .D = 128, .P = 8192},
};

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    const bool backward = c->inverse && !s->as_forward;
    lt_rope_args *a = (lt_rope_args *)s->args;
    lt_case_tensor *t;
    const int64_t n = c->N > 0 ? c->N : c->D;

    a->inverse = backward;
    t = c->in_place
            ? lt_setup_inout(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->H, c->D))
            : lt_setup_in(s, backward ? "dy" : "x", &a->x, s->act, LT_SHAPE(c->R, c->H, c->D));
    t = lt_setup_out(s, backward ? "dx" : "y", &a->y, s->act, LT_SHAPE(c->R, c->H, c->D));
    t->alias = c->in_place ? "x" : NULL;
    t = lt_setup_in(s, "positions", &a->positions, LT_I32, LT_SHAPE(c->R));
    t->fill = lt_fill_ids;
    t->fill_b = (double)c->P;
    t->source = backward ? "positions" : NULL;
    t = lt_setup_in(s, "table", &a->table, LT_F32, LT_SHAPE(c->P, n / 2, 2));
    t->fill = lt_fill_uniform;
    t->fill_a = -1.0;
    t->contiguous = true;
    t->source = backward ? "table" : NULL;
}

const lt_op_cases lt_cases_rope = {.op = LT_OP_rope,
                                   .forward = LT_OP_rope,
                                   LT_CASES(cases),
                                   .build = build,
                                   .f32 = {0x1p-22, 0x1p-23},
                                   .bf16 = {0x1p-8, 0x1p-22},
                                   .why = "two products and a sum in F32; BF16 one rounding"};
