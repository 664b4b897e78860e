/* act.c: cases of act_fwd and act_bwd: every activation, plain and gated. extreme: values at
 * which exp overflows or a branch changes. in_place: dx in x's memory. */
#include "ops/case.h"

/* One row of cases for an activation. */
#define ACT_CASES(fn, name)                                                                        \
    {name, LT_CASE_ALL, .act = LT_ACT_##fn, .R = 5, .F = 13},                                      \
        {name " gated", LT_CASE_ALL, .act = LT_ACT_##fn, .R = 4, .F = 9, .gated = true},           \
        {name " in place", LT_CASE_CHECK, .act = LT_ACT_##fn, .R = 3, .F = 130, .in_place = true}, \
        {name " gated in place", LT_CASE_CHECK, .act = LT_ACT_##fn, .R = 7, .F = 33,               \
         .in_place = true,       .gated = true},                                                   \
    {                                                                                              \
        name " extreme", LT_CASE_CHECK, .act = LT_ACT_##fn, .R = 2, .F = 24, .extreme = true       \
    }

static const lt_case cases[] = {
    ACT_CASES(GELU_TANH, "gelu tanh"),
    ACT_CASES(GELU, "gelu"),
    ACT_CASES(SILU, "silu"),
    ACT_CASES(RELU, "relu"),
    ACT_CASES(RELU2, "relu squared"),
    ACT_CASES(XIELU, "xielu"),
    {"clamped swiglu", LT_CASE_ALL, .act = LT_ACT_SWIGLU_CLAMPED, .R = 4, .F = 9, .gated = true},
    {"clamped swiglu in place", LT_CASE_CHECK, .act = LT_ACT_SWIGLU_CLAMPED, .R = 7, .F = 33,
     .in_place = true, .gated = true},
    {"clamped swiglu extreme", LT_CASE_CHECK, .act = LT_ACT_SWIGLU_CLAMPED, .R = 2, .F = 24,
     .extreme = true, .gated = true},
    {"aligned clamped swiglu", LT_CASE_CHECK, .act = LT_ACT_SWIGLU_CLAMPED, .R = 5, .F = 64,
     .gated = true, .aligned = true},
    {"aligned", LT_CASE_CHECK, .act = LT_ACT_GELU_TANH, .R = 5, .F = 64, .aligned = true},
    {"over dy", LT_CASE_CHECK, .act = LT_ACT_GELU_TANH, .R = 3, .F = 130, .over_dy = true},
    {"aligned, over dy", LT_CASE_CHECK, .act = LT_ACT_GELU_TANH, .R = 5, .F = 64, .over_dy = true,
     .aligned = true},
    {"aligned gated", LT_CASE_CHECK, .act = LT_ACT_SILU, .R = 5, .F = 64, .gated = true,
     .aligned = true},
    {"xielu, several turns a block", LT_CASE_CHECK, .act = LT_ACT_XIELU, .R = 300, .F = 2056,
     .aligned = true},
    {"gpt2 gelu", LT_CASE_BENCH, .act = LT_ACT_GELU_TANH, .R = 1024, .F = 3072},
    {"llama swiglu", LT_CASE_BENCH, .act = LT_ACT_SILU, .R = 1024, .F = 2048, .gated = true},
    {"apertus xielu", LT_CASE_BENCH, .act = LT_ACT_XIELU, .R = 4096, .F = 2048},
};

/* For the clamped SwiGLU: the alpha of gpt_oss, and a limit that half of the values exceed. */
#define ALPHA 1.702f
#define LIMIT 0.75f

static void fill_extreme(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double list[] = {0.0,   -0.0, 1e-8,  -1e-8, -1e-6,  -2e-6, 1e-30, -1e-30,
                                  1.0,   -1.0, 9.0,   -9.0,  -14.0,  20.0,  -20.0, 50.0,
                                  -50.0, 88.0, -88.0, 100.0, -100.0, 1e4,   -1e4,  0.5};
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = list[i % (int64_t)(sizeof list / sizeof *list)];
    }
    (void)r;
}

static void describe_x(lt_case_tensor *t, const lt_case *c) {
    t->fill = c->extreme ? fill_extreme : lt_fill_away; /* Away from the kink at 0. */
    t->fill_a = 0.01;
    t->fill_b = 1.5;
}

static void fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_act_args *a = (lt_act_args *)s->args;
    a->kind = (lt_act_kind)c->act;
    a->gated = c->gated;
    a->alpha = ALPHA;
    a->limit = LIMIT;
    describe_x(lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->gated ? 2 * c->F : c->F)), c);
    if (a->kind == LT_ACT_XIELU) {
        lt_setup_in(s, "xielu_params", &a->xielu_params, LT_F32, LT_SHAPE(2));
    }
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->F));
}

static void bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_act_bwd_args *a = (lt_act_bwd_args *)s->args;
    const int64_t width = c->gated ? 2 * c->F : c->F;
    lt_case_tensor *t;

    a->kind = (lt_act_kind)c->act;
    a->gated = c->gated;
    a->alpha = ALPHA;
    a->limit = LIMIT;
    t = lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, c->F));
    t->role = c->over_dy ? LT_ROLE_INOUT : LT_ROLE_IN;
    t = lt_setup_same(s, "x", &a->x, s->act, LT_SHAPE(c->R, width));
    t->role = c->in_place ? LT_ROLE_INOUT : LT_ROLE_IN;
    t = lt_setup_out(s, "dx", &a->dx, s->act, LT_SHAPE(c->R, width));
    t->alias = c->in_place ? "x" : c->over_dy ? "dy" : NULL;
    if (a->kind == LT_ACT_XIELU) {
        lt_setup_same(s, "xielu_params", &a->xielu_params, LT_F32, LT_SHAPE(2));
        lt_setup_grad(s, "dxielu_params", &a->dxielu_params, LT_F32, LT_SHAPE(2));
    }
}

#define ACT_TOLERANCE                                                                              \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0x1p-8, 0x1p-16},                                          \
    .why = "F32 with exp, tanh and erf to a few units in the last place; tails are judged "        \
           "against the largest value"

const lt_op_cases lt_cases_act_fwd = {.op = LT_OP_act_fwd,
                                      .forward = LT_OP_COUNT,
                                      LT_CASES(cases),
                                      .build = fwd_build,
                                      ACT_TOLERANCE};
const lt_op_cases lt_cases_act_bwd = {.op = LT_OP_act_bwd,
                                      .forward = LT_OP_act_fwd,
                                      LT_CASES(cases),
                                      .build = bwd_build,
                                      ACT_TOLERANCE};
