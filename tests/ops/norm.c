/* norm.c: cases of rmsnorm and layernorm, forward and backward. residual: x + add, stored to sum.
 * in_place: forward, sum is x's memory; backward, dx is dy's. accumulate: add_dx. shift: mean of
 * the inputs. Gains are F32 with a residual, else of x's type. */
#include "ops/case.h"

static const lt_case rms_cases[] = {
    {"one element", LT_CASE_CHECK, .R = 1, .C = 1},
    {"odd width", LT_CASE_ALL, .R = 5, .C = 13},
    {"residual", LT_CASE_ALL, .R = 4, .C = 24, .residual = true},
    {"residual in place", LT_CASE_CHECK, .R = 6, .C = 33, .residual = true, .in_place = true},
    {"per head", LT_CASE_ALL, .R = 3, .H = 2, .C = 16},
    {"gain offset", LT_CASE_ALL, .R = 3, .C = 10, .offset = 1},
    {"added dx", LT_CASE_CHECK | LT_CASE_GRAD, .R = 7, .C = 40, .residual = true,
     .accumulate = true},
    {"many rows", LT_CASE_CHECK, .R = 301, .C = 8},
    {"wide", LT_CASE_CHECK, .R = 3, .C = 1031},
    {"zero row", LT_CASE_CHECK, .R = 2, .C = 17, .extreme = true},
    {"aligned heads", LT_CASE_CHECK, .R = 37, .H = 3, .C = 64, .aligned = true},
    {"aligned", LT_CASE_CHECK, .R = 9, .C = 512, .residual = true, .aligned = true},
    {"aligned rows at once", LT_CASE_CHECK, .R = 901, .C = 256, .aligned = true},
    {"aligned, three pieces a lane", LT_CASE_CHECK, .R = 301, .C = 768, .aligned = true},
    {"aligned, three rows a turn", LT_CASE_CHECK, .R = 301, .C = 1024, .aligned = true},
    {"aligned wide", LT_CASE_CHECK, .R = 100, .C = 4096, .aligned = true},
    {"aligned wide, added dx", LT_CASE_CHECK, .R = 7, .C = 3080, .residual = true,
     .accumulate = true, .aligned = true},
    /* Part of a wider row (M): 1 measures this part's share of the mean, 2 uses the mean over all
     * parts. */
    {"part, measured", LT_CASE_CHECK, .R = 9, .C = 37, .M = 1, .offset = 1},
    {"part, measured, aligned", LT_CASE_CHECK, .R = 33, .C = 2056, .M = 1, .aligned = true},
    {"part, given", LT_CASE_CHECK, .R = 19, .C = 37, .M = 2, .offset = 1},
    {"part, given, aligned, added dx", LT_CASE_CHECK, .R = 40, .C = 2056, .M = 2, .aligned = true,
     .accumulate = true},
    {"part, given, in place", LT_CASE_CHECK, .R = 5, .C = 70, .M = 2, .in_place = true},
    {"apertus 60M", LT_CASE_BENCH, .R = 4096, .C = 512, .residual = true},
    {"llama 8B", LT_CASE_BENCH, .R = 1024, .C = 4096, .residual = true},
    {"qk norm", LT_CASE_BENCH, .R = 4096, .H = 8, .C = 64},
};

static const lt_case layer_cases[] = {
    {"one element", LT_CASE_CHECK, .R = 1, .C = 1},
    {"odd width", LT_CASE_ALL, .R = 5, .C = 13},
    {"residual", LT_CASE_ALL, .R = 4, .C = 24, .residual = true},
    {"residual in place", LT_CASE_CHECK, .R = 6, .C = 33, .residual = true, .in_place = true},
    {"far from zero", LT_CASE_CHECK, .R = 4, .C = 128, .shift = 8},
    {"added dx", LT_CASE_CHECK | LT_CASE_GRAD, .R = 7, .C = 40, .residual = true,
     .accumulate = true},
    {"many rows", LT_CASE_CHECK, .R = 301, .C = 8},
    {"wide", LT_CASE_CHECK, .R = 3, .C = 1031},
    {"constant row", LT_CASE_CHECK, .R = 2, .C = 17, .extreme = true},
    {"aligned", LT_CASE_CHECK, .R = 9, .C = 768, .residual = true, .aligned = true},
    {"aligned rows at once", LT_CASE_CHECK, .R = 901, .C = 256, .aligned = true},
    {"aligned wide", LT_CASE_CHECK, .R = 100, .C = 4096, .aligned = true},
    {"aligned wide, added dx", LT_CASE_CHECK, .R = 7, .C = 3080, .residual = true,
     .accumulate = true, .aligned = true},
    {"gpt2", LT_CASE_BENCH, .R = 1024, .C = 768, .residual = true},
};

static const float EPS = 1e-5f;

/* Rows of zeros, where only eps keeps 1 / sqrt finite. */
static void fill_zero(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = 0.0;
    }
}

static int64_t n_rows(const lt_case *c) {
    return c->R * (c->H > 0 ? c->H : 1);
}

/* The shape of x: (R, C), or (R, H, C) for per-head norms. */
static int x_dims(const lt_case *c, int64_t shape[3]) {
    shape[0] = c->R;
    shape[1] = c->H > 0 ? c->H : c->C;
    shape[2] = c->C;
    return c->H > 0 ? 3 : 2;
}

/* Declare x, add, sum and y of either norm. */
static void fwd_tensors(lt_setup *s, lt_tensor *x, lt_tensor *add, lt_tensor *sum, lt_tensor *y) {
    const lt_case *c = s->c;
    const bool share = c->in_place && !s->as_forward;
    int64_t shape[3];
    const int n = x_dims(c, shape);
    lt_case_tensor *t = share ? lt_setup_inout(s, "x", x, s->act, n, shape)
                              : lt_setup_in(s, "x", x, s->act, n, shape);
    t->fill = c->extreme ? fill_zero : c->residual ? lt_fill_grid : lt_fill_normal;
    t->fill_a = (double)c->shift;
    if (c->residual) {
        lt_setup_in(s, "add", add, s->act, n, shape)->fill = lt_fill_grid;
        t = lt_setup_out(s, "sum", sum, s->act, n, shape);
        t->alias = share ? "x" : NULL;
    }
    lt_setup_out(s, "y", y, s->act, n, shape);
}

/* Declare dy, x and dx of either norm. */
static void bwd_tensors(lt_setup *s, lt_tensor *dy, lt_tensor *x, lt_tensor *dx) {
    const lt_case *c = s->c;
    int64_t shape[3];
    const int n = x_dims(c, shape);
    lt_case_tensor *t = c->in_place ? lt_setup_inout(s, "dy", dy, s->act, n, shape)
                                    : lt_setup_in(s, "dy", dy, s->act, n, shape);
    t = lt_setup_same(s, "x", x, s->act, n, shape);
    t->source = c->residual ? "sum" : "x";
    t = c->accumulate ? lt_setup_grad(s, "dx", dx, s->act, n, shape)
                      : lt_setup_out(s, "dx", dx, s->act, n, shape);
    t->alias = c->in_place ? "dy" : NULL;
}

static lt_dtype gain_type(const lt_setup *s) {
    return s->c->residual ? LT_F32 : s->act;
}

static lt_case_tensor *row_stat(lt_setup *s, const char *name, lt_tensor *slot, bool backward) {
    lt_case_tensor *t = backward ? lt_setup_same(s, name, slot, LT_F32, LT_SHAPE(n_rows(s->c)))
                                 : lt_setup_out(s, name, slot, LT_F32, LT_SHAPE(n_rows(s->c)));
    t->contiguous = true;

    return t;
}

/* The backward pass of a part reads the forward pass of the whole norm. */
static void rms_fwd_part(lt_setup *s, lt_rmsnorm_args *a) {
    const lt_case *c = s->c;
    a->part = (lt_norm_part)c->M;
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
    lt_setup_in(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
    /* An op that only measures does not write y. */
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->C))->partial = a->part == LT_NORM_MEASURE;
    if (a->part == LT_NORM_MEASURE) {
        row_stat(s, "rstd", &a->rstd, false);
        return;
    }
    lt_case_tensor *t = lt_setup_inout(s, "rstd", &a->rstd, LT_F32, LT_SHAPE(c->R));
    t->contiguous = true;
    t->fill = lt_fill_ids; /* Means of squares. */
    t->fill_a = 1.0;
    t->fill_b = 5.0;
}

static void rms_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_rmsnorm_args *a = (lt_rmsnorm_args *)s->args;
    a->eps = EPS;
    a->gain_offset = c->offset;
    if (c->M > 0 && !s->as_forward) {
        rms_fwd_part(s, a);
        return;
    }
    fwd_tensors(s, &a->x, &a->add, &a->sum, &a->y);
    lt_setup_in(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
    if (s->as_forward || !c->in_place) { /* The in-place case also runs without rstd. */
        row_stat(s, "rstd", &a->rstd, false);
    }
}

static void rms_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_rmsnorm_bwd_args *a = (lt_rmsnorm_bwd_args *)s->args;
    a->gain_offset = c->offset;
    a->add_dx = c->accumulate;
    a->part = (lt_norm_part)c->M;
    if (a->part == LT_NORM_MEASURE) {
        lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, c->C));
        lt_setup_same(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
        lt_setup_same(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
        row_stat(s, "rstd", &a->rstd, true);
        lt_setup_out(s, "mean", &a->mean, LT_F32, LT_SHAPE(c->R))->contiguous = true;
        return;
    }
    if (a->part == LT_NORM_GIVEN) {
        lt_setup_in(s, "mean", &a->mean, LT_F32, LT_SHAPE(c->R))->contiguous = true;
    }
    bwd_tensors(s, &a->dy, &a->x, &a->dx);
    lt_setup_same(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
    row_stat(s, "rstd", &a->rstd, true);
    lt_setup_grad(s, "dgain", &a->dgain, LT_F32, LT_SHAPE(c->C));
}

static void layer_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_layernorm_args *a = (lt_layernorm_args *)s->args;
    a->eps = EPS;
    fwd_tensors(s, &a->x, &a->add, &a->sum, &a->y);
    lt_setup_in(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
    lt_setup_in(s, "bias", &a->bias, gain_type(s), LT_SHAPE(c->C));
    if (s->as_forward || !c->in_place) {
        row_stat(s, "mean", &a->mean, false);
        row_stat(s, "rstd", &a->rstd, false);
    }
}

static void layer_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_layernorm_bwd_args *a = (lt_layernorm_bwd_args *)s->args;
    a->add_dx = c->accumulate;
    bwd_tensors(s, &a->dy, &a->x, &a->dx);
    lt_setup_same(s, "gain", &a->gain, gain_type(s), LT_SHAPE(c->C));
    row_stat(s, "mean", &a->mean, true);
    row_stat(s, "rstd", &a->rstd, true);
    lt_setup_grad(s, "dgain", &a->dgain, LT_F32, LT_SHAPE(c->C));
    lt_setup_grad(s, "dbias", &a->dbias, LT_F32, LT_SHAPE(c->C));
}

#define NORM_TOLERANCE                                                                             \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0x1p-8, 0x1p-16},                                          \
    .why = "F32 sums of about 1000 terms, one rsqrt; BF16 one rounding (residual sums are exact "  \
           "by choice of inputs)"

const lt_op_cases lt_cases_rmsnorm_fwd = {.op = LT_OP_rmsnorm_fwd,
                                          .forward = LT_OP_COUNT,
                                          LT_CASES(rms_cases),
                                          .build = rms_fwd_build,
                                          NORM_TOLERANCE};
const lt_op_cases lt_cases_rmsnorm_bwd = {.op = LT_OP_rmsnorm_bwd,
                                          .forward = LT_OP_rmsnorm_fwd,
                                          LT_CASES(rms_cases),
                                          .build = rms_bwd_build,
                                          NORM_TOLERANCE};
const lt_op_cases lt_cases_layernorm_fwd = {.op = LT_OP_layernorm_fwd,
                                            .forward = LT_OP_COUNT,
                                            LT_CASES(layer_cases),
                                            .build = layer_fwd_build,
                                            NORM_TOLERANCE};
const lt_op_cases lt_cases_layernorm_bwd = {.op = LT_OP_layernorm_bwd,
                                            .forward = LT_OP_layernorm_fwd,
                                            LT_CASES(layer_cases),
                                            .build = layer_bwd_build,
                                            NORM_TOLERANCE};
