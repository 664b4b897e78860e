/* elementwise.c: cases of add, cast and sumsq. */
#include <math.h>

#include "ops/case.h"

static const lt_case add_cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .C = 1, .alpha = 1, .beta = 1},
    {"sum", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 7, .C = 19, .alpha = 1, .beta = 1},
    {"weighted in place", LT_CASE_CHECK, .R = 5, .C = 300, .alpha = 0.75f, .beta = -2,
     .in_place = true},
    {"scale only", LT_CASE_CHECK, .R = 3, .C = 33, .alpha = -0.5f},
    {"into F32", LT_CASE_CHECK, .R = 4, .C = 21, .alpha = 1, .beta = 1, .y_f32 = true},
    {"four dimensions", LT_CASE_CHECK, .B = 2, .T = 3, .H = 2, .D = 5, .alpha = 1, .beta = 0.5f},
    {"gpt2 residual", LT_CASE_BENCH, .R = 1024, .C = 768, .alpha = 1, .beta = 1, .in_place = true},
};

static void add_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_add_args *a = (lt_add_args *)s->args;
    const int64_t four[] = {c->B, c->T, c->H, c->D}, two[] = {c->R, c->C};
    const int n = c->B > 0 ? 4 : 2;
    const int64_t *shape = c->B > 0 ? four : two;
    lt_case_tensor *t;

    a->alpha = c->alpha;
    a->beta = c->beta;
    t = c->in_place ? lt_setup_inout(s, "a", &a->a, s->act, n, shape)
                    : lt_setup_in(s, "a", &a->a, s->act, n, shape);
    if (c->beta != 0.0f) {
        lt_setup_in(s, "b", &a->b, s->act, n, shape);
    }
    t = lt_setup_out(s, "y", &a->y, c->y_f32 ? LT_F32 : s->act, n, shape);
    t->alias = c->in_place ? "a" : NULL;
}

const lt_op_cases lt_cases_add = {.op = LT_OP_add,
                                  .forward = LT_OP_COUNT,
                                  LT_CASES(add_cases),
                                  .build = add_build,
                                  .f32 = {0x1p-22, 0x1p-23},
                                  .bf16 = {0x1p-8, 0x1p-22},
                                  .why = "two products and a sum in F32; BF16 one rounding"};

#define FLOATS (1 << LT_F32 | 1 << LT_BF16 | 1 << LT_F16)
static const lt_case cast_cases[] = {
    {"to BF16", LT_CASE_CHECK, FLOATS, .R = 5, .C = 131},
    {"to F32", LT_CASE_CHECK, FLOATS, .R = 5, .C = 131, .y_f32 = true},
    {"to F16", LT_CASE_CHECK, FLOATS, .R = 5, .C = 131, .y_f16 = true},
    {"edges to BF16", LT_CASE_CHECK, FLOATS, .R = 3, .C = 16, .extreme = true},
    {"edges to F32", LT_CASE_CHECK, FLOATS, .R = 3, .C = 16, .extreme = true, .y_f32 = true},
    {"edges to F16", LT_CASE_CHECK, FLOATS, .R = 3, .C = 16, .extreme = true, .y_f16 = true},
    {"gradients to BF16", LT_CASE_BENCH, 1 << LT_F32, .R = 1, .C = 8 << 20},
    {"weights to F32", LT_CASE_BENCH, 1 << LT_BF16, .R = 1, .C = 8 << 20, .y_f32 = true},
};

static void fill_edges(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double list[] = {0.0,           -0.0,          INFINITY,     -INFINITY,
                                  1.0,           -1.0,          1.0 + 0x1p-8, 1.0 + 0x3p-9,
                                  1.0 + 0x1p-11, 1.0 + 0x3p-12, 0x1p-14,      1000.5,
                                  -1000.25,      65504.0,       3.0,          0.1};
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = list[i % (int64_t)(sizeof list / sizeof *list)];
    }
}

static void cast_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_cast_args *a = (lt_cast_args *)s->args;
    lt_case_tensor *t = lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
    t->fill = c->extreme ? fill_edges : lt_fill_normal;
    lt_setup_out(s, "y", &a->y,
                 c->y_f32   ? LT_F32
                 : c->y_f16 ? LT_F16
                            : LT_BF16,
                 LT_SHAPE(c->R, c->C));
}

const lt_op_cases lt_cases_cast = {.op = LT_OP_cast,
                                   .forward = LT_OP_COUNT,
                                   LT_CASES(cast_cases),
                                   .build = cast_build,
                                   .exact = true,
                                   .why = "widening is exact, narrowing rounds to nearest even"};

static const lt_case sumsq_cases[] = {
    {"one", LT_CASE_CHECK, 1 << LT_F32, .N = 1},
    {"odd", LT_CASE_CHECK | LT_CASE_GOLDEN, 1 << LT_F32, .N = 103},
    {"added", LT_CASE_CHECK, 1 << LT_F32, .N = 4099, .accumulate = true},
    {"long", LT_CASE_CHECK, 1 << LT_F32, .N = 100003},
    {"NaN shows", LT_CASE_CHECK, 1 << LT_F32, .N = 5003, .extreme = true},
    {"gradient", LT_CASE_BENCH, 1 << LT_F32, .N = 16 << 20},
};

/* One NaN among ordinary numbers. */
static void fill_nan(double *values, const lt_case_tensor *t, lt_rng *r) {
    lt_fill_normal(values, t, r);
    values[t->count / 2] = (double)NAN;
}

static void sumsq_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_sumsq_args *a = (lt_sumsq_args *)s->args;
    a->accumulate = c->accumulate;
    lt_setup_in(s, "x", &a->x, LT_F32, LT_SHAPE(c->N))->fill = c->extreme ? fill_nan
                                                                          : lt_fill_normal;
    if (c->accumulate) {
        lt_setup_grad(s, "out", &a->out, LT_F64, LT_SHAPE(1));
    } else {
        lt_setup_out(s, "out", &a->out, LT_F64, LT_SHAPE(1))->may_be_nan = c->extreme;
    }
}

const lt_op_cases lt_cases_sumsq = {
    .op = LT_OP_sumsq,
    .forward = LT_OP_COUNT,
    LT_CASES(sumsq_cases),
    .build = sumsq_build,
    .f32 = {0x1p-20, 0.0},
    .bf16 = {0.0, 0.0},
    .why = "squares may be summed in F32 within a block of a few thousand; blocks in F64"};
