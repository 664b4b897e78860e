/* optimiser.c: cases of adamw, ademamix, lion and muon. grad_scale 0 stands for 1 here; copy:
 * with the BF16 copy of p. extreme: zero gradients and moments. b_type: type of the moments, and of
 * Muon's products; P: place of the first element. */
#include <math.h>

#include "ops/case.h"

#define F32_ONLY (1 << LT_F32)

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, F32_ONLY, .N = 1, .step = 1},
    {"first step", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .N = 37, .step = 1, .extreme = true},
    {"later, clipped", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .N = 29, .step = 10,
     .grad_scale = 0.25f},
    {"with copy", LT_CASE_CHECK, F32_ONLY, .N = 1001, .step = 1000, .copy = true},
    {"late", LT_CASE_CHECK, F32_ONLY, .N = 4097, .step = 1000000},
    {"from memory", LT_CASE_CHECK, F32_ONLY, .N = 131, .step = 1, .y_f32 = true},
    {"from memory, skipped", LT_CASE_CHECK, F32_ONLY, .N = 7, .step = 1, .y_f32 = true,
     .inverse = true},
    {"16M parameters", LT_CASE_BENCH, F32_ONLY, .N = 16 << 20, .step = 100, .copy = true},
};

/* adamw and ademamix. */
static const lt_case two_type_cases[] = {
    {"one", LT_CASE_CHECK, F32_ONLY, .N = 1, .step = 1},
    {"first step", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .N = 37, .step = 1, .extreme = true},
    {"later, clipped", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .N = 29, .step = 10,
     .grad_scale = 0.25f},
    {"with copy", LT_CASE_CHECK, F32_ONLY, .N = 1001, .step = 1000, .copy = true},
    {"late", LT_CASE_CHECK, F32_ONLY, .N = 4097, .step = 1000000},
    {"from memory", LT_CASE_CHECK, F32_ONLY, .N = 131, .step = 1, .y_f32 = true},
    {"from memory, skipped", LT_CASE_CHECK, F32_ONLY, .N = 7, .step = 1, .y_f32 = true,
     .inverse = true},
    {"bf16 moments, one", LT_CASE_CHECK, F32_ONLY, .N = 1, .step = 1, .b_type = LT_BF16},
    {"bf16 moments, first step", LT_CASE_CHECK, F32_ONLY, .N = 37, .step = 1, .extreme = true,
     .b_type = LT_BF16},
    {"bf16 moments, with copy", LT_CASE_CHECK, F32_ONLY, .N = 1001, .step = 1000, .copy = true,
     .P = 0xFFFFFFF0, .b_type = LT_BF16}, /* Positions cross 2^32. */
    {"bf16 moments, pieces", LT_CASE_CHECK, F32_ONLY, .N = 4096, .step = 1 << 24, .P = 12,
     .grad_scale = 0.5f, .aligned = true, .b_type = LT_BF16},
    {"bf16 moments, from memory", LT_CASE_CHECK, F32_ONLY, .N = 131, .step = 1, .y_f32 = true,
     .b_type = LT_BF16},
    {"16M parameters", LT_CASE_BENCH, F32_ONLY, .N = 16 << 20, .step = 100, .copy = true},
    {"16M parameters, bf16 moments", LT_CASE_BENCH, F32_ONLY, .N = 16 << 20, .step = 100,
     .copy = true, .b_type = LT_BF16},
};

static const lt_case muon_cases[] = {
    {"one", LT_CASE_CHECK, F32_ONLY, .M = 1, .N = 1, .step = 5},
    {"square", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .M = 8, .N = 8, .step = 5,
     .normalise = true},
    {"wide", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .M = 5, .N = 13, .step = 5,
     .normalise = true},
    {"tall, clipped", LT_CASE_CHECK | LT_CASE_GOLDEN, F32_ONLY, .M = 14, .N = 6, .step = 5,
     .grad_scale = 0.5f},
    {"with copy", LT_CASE_CHECK, F32_ONLY, .M = 33, .N = 65, .step = 5, .copy = true,
     .normalise = true},
    {"from memory", LT_CASE_CHECK, F32_ONLY, .M = 9, .N = 7, .step = 5, .y_f32 = true},
    {"zero gradient", LT_CASE_CHECK, F32_ONLY, .M = 4, .N = 6, .step = 5, .extreme = true},
    {"bf16 products, square", LT_CASE_CHECK, F32_ONLY, .M = 8, .N = 8, .step = 5, .b_type = LT_BF16,
     .normalise = true},
    {"bf16 products, wide", LT_CASE_CHECK, F32_ONLY, .M = 24, .N = 72, .step = 5, .b_type = LT_BF16,
     .normalise = true},
    {"bf16 products, tall", LT_CASE_CHECK, F32_ONLY, .M = 104, .N = 40, .step = 4,
     .b_type = LT_BF16, .copy = true},
    {"bf16 products, odd sides", LT_CASE_CHECK, F32_ONLY, .M = 33, .N = 65, .step = 5,
     .b_type = LT_BF16, .y_f32 = true, .normalise = true},
    {"bf16 products, zero gradient", LT_CASE_CHECK, F32_ONLY, .M = 8, .N = 16, .step = 5,
     .b_type = LT_BF16, .extreme = true},
    {"gpt2 fc", LT_CASE_BENCH, F32_ONLY, .M = 3072, .N = 768, .step = 5, .normalise = true},
    {"gpt2 fc, bf16 products", LT_CASE_BENCH, F32_ONLY, .M = 3072, .N = 768, .step = 5,
     .b_type = LT_BF16, .normalise = true},
    {"llama-1b up, bf16 products", LT_CASE_BENCH, F32_ONLY, .M = 8192, .N = 2048, .step = 5,
     .b_type = LT_BF16, .normalise = true},
};

static void fill_zero(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = 0.0;
    }
}

static float grad_scale(const lt_case *c) {
    return c->grad_scale != 0.0f ? c->grad_scale : 1.0f;
}

/* The numbers that a recorded graph would read, in cases named "from memory" (y_f32). */
static void fill_now(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double list[LT_OPTIM_NOW_COUNT] = {0.02, 0.5, 0.4, 0.3, 3.0, 0.99, 0.0, 77.0};
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = list[i];
    }
    values[LT_OPTIM_SKIP] = t->c->inverse ? 1.0 : 0.0;
}
static void now(lt_setup *s, lt_tensor *slot) {
    if (s->c->y_f32) {
        lt_setup_in(s, "now", slot, LT_F32, LT_SHAPE(LT_OPTIM_NOW_COUNT))->fill = fill_now;
    }
}

/* Declare p, g, and a moment that may be zero at the first step. */
static void param(lt_setup *s, lt_tensor *p, lt_tensor *g, lt_tensor *copy) {
    const int64_t n = s->c->N;
    lt_setup_inout(s, "p", p, LT_F32, LT_SHAPE(n));
    lt_setup_in(s, "g", g, LT_F32, LT_SHAPE(n))->fill = lt_fill_normal;
    if (s->c->copy) {
        lt_setup_out(s, "copy", copy, LT_BF16, LT_SHAPE(n));
    }
}

static void moment(lt_setup *s, const char *name, lt_tensor *slot, bool positive) {
    const lt_dtype dtype = s->c->b_type != 0 ? (lt_dtype)s->c->b_type : LT_F32;
    lt_case_tensor *t = lt_setup_inout(s, name, slot, dtype, LT_SHAPE(s->c->N));
    t->fill = s->c->extreme ? fill_zero : positive ? lt_fill_uniform : lt_fill_normal;
}

static void adamw_build(lt_setup *s) {
    lt_adamw_args *a = (lt_adamw_args *)s->args;
    *a = (lt_adamw_args){.lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .decay = 0.1f,
                         .grad_scale = grad_scale(s->c),
                         .step = s->c->step,
                         .first = s->c->P,
                         .seed = 1234};
    param(s, &a->p, &a->g, &a->copy);
    now(s, &a->now);
    moment(s, "m", &a->m, false);
    moment(s, "v", &a->v, true);
}

static void ademamix_build(lt_setup *s) {
    lt_ademamix_args *a = (lt_ademamix_args *)s->args;
    *a = (lt_ademamix_args){.lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.999f,
                            .beta3 = 0.9999f,
                            .alpha = 8.0f,
                            .eps = 1e-8f,
                            .decay = 0.1f,
                            .grad_scale = grad_scale(s->c),
                            .step = s->c->step,
                            .first = s->c->P,
                            .seed = 1234};
    param(s, &a->p, &a->g, &a->copy);
    now(s, &a->now);
    moment(s, "m1", &a->m1, false);
    moment(s, "m2", &a->m2, false);
    moment(s, "v", &a->v, true);
}

static void lion_build(lt_setup *s) {
    lt_lion_args *a = (lt_lion_args *)s->args;
    *a = (lt_lion_args){
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .decay = 0.1f, .grad_scale = grad_scale(s->c)};
    param(s, &a->p, &a->g, &a->copy);
    now(s, &a->now);
    moment(s, "m", &a->m, false);
}

static void muon_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_muon_args *a = (lt_muon_args *)s->args;
    lt_case_tensor *t;

    *a = (lt_muon_args){.lr = 0.1f,
                        .momentum = 0.95f,
                        .decay = 0.1f,
                        .scale = 0.5f,
                        .grad_scale = grad_scale(c),
                        .steps = c->step,
                        .nesterov = c->normalise,
                        .products = c->b_type};
    /* Operands are rounded by up to 2^-9 of themselves, and five steps multiply that. */
    const double slack = c->b_type == LT_BF16 ? 96 : 0;
    lt_setup_inout(s, "p", &a->p, LT_F32, LT_SHAPE(c->M, c->N))->slack = slack;
    lt_setup_in(s, "g", &a->g, LT_F32, LT_SHAPE(c->M, c->N))->fill = c->extreme ? fill_zero
                                                                                : lt_fill_normal;
    lt_setup_inout(s, "m", &a->m, LT_F32, LT_SHAPE(c->M, c->N))->fill = c->extreme ? fill_zero
                                                                                   : lt_fill_normal;
    if (c->copy) {
        lt_setup_out(s, "copy", &a->copy, LT_BF16, LT_SHAPE(c->M, c->N))->slack = slack;
    }
    now(s, &a->now);
    t = lt_setup_out(s, "scratch", &a->scratch, LT_F32,
                     LT_SHAPE(lt_muon_scratch_count(c->M, c->N)));
    t->role = LT_ROLE_SCRATCH;
    for (int i = 0; i < s->n_tensors; i++) {
        s->tensors[i].contiguous = true;
    }
}

#define TWO_TYPE_TOLERANCE                                                                         \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0x1p-7, 0x1p-20},                                          \
    .why = "about ten F32 operations an element; 1 - beta^step may be rounded to F32; the copy "   \
           "rounds once, a BF16 moment at random: less than one unit, 2^-7"
#define STEP_TOLERANCE                                                                             \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0x1p-8, 0x1p-20},                                          \
    .why = "about ten F32 operations an element; 1 - beta^step may be rounded to F32; the copy "   \
           "rounds once"
const lt_op_cases lt_cases_adamw = {.op = LT_OP_adamw,
                                    .forward = LT_OP_COUNT,
                                    LT_CASES(two_type_cases),
                                    .build = adamw_build,
                                    TWO_TYPE_TOLERANCE};
const lt_op_cases lt_cases_ademamix = {.op = LT_OP_ademamix,
                                       .forward = LT_OP_COUNT,
                                       LT_CASES(two_type_cases),
                                       .build = ademamix_build,
                                       TWO_TYPE_TOLERANCE};
const lt_op_cases lt_cases_lion = {
    .op = LT_OP_lion, .forward = LT_OP_COUNT, LT_CASES(cases), .build = lion_build, STEP_TOLERANCE};
const lt_op_cases lt_cases_muon = {.op = LT_OP_muon,
                                   .forward = LT_OP_COUNT,
                                   LT_CASES(muon_cases),
                                   .build = muon_build,
                                   .f32 = {0x1p-18, 0x1p-18},
                                   .bf16 = {0x1p-8, 0x1p-17},
                                   .why = "five Newton-Schulz steps in F32 multiply a relative "
                                          "error by up to 3.4 each, times lr scale = 0.05"};

static const lt_case clip_cases[] = {
    {"below", LT_CASE_CHECK, F32_ONLY, .scale = 0.5f, .beta = 1000},
    {"clipped", LT_CASE_CHECK, F32_ONLY, .scale = 0.25f, .beta = 1},
    {"no clipping", LT_CASE_CHECK, F32_ONLY, .scale = 1},
    {"not finite", LT_CASE_CHECK, F32_ONLY, .scale = 1, .extreme = true},
};

static void fill_sumsq(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    values[0] = t->c->extreme ? (double)INFINITY : 1234.5;
}

static void clip_build(lt_setup *s) {
    lt_clip_args *a = (lt_clip_args *)s->args;
    a->scale = s->c->scale;
    a->max_norm = s->c->beta;
    lt_setup_inout(s, "now", &a->now, LT_F32, LT_SHAPE(LT_OPTIM_NOW_COUNT))->fill = fill_now;
    lt_setup_in(s, "sumsq", &a->sumsq, LT_F64, LT_SHAPE(1))->fill = fill_sumsq;
    s->tensors[1].contiguous = true; /* A double is aligned to 8 bytes. */
    lt_setup_out(s, "norm", &a->norm, LT_F32, LT_SHAPE(1));
}

const lt_op_cases lt_cases_clip = {.op = LT_OP_clip,
                                   .forward = LT_OP_COUNT,
                                   LT_CASES(clip_cases),
                                   .build = clip_build,
                                   .f32 = {0x1p-22, 0.0},
                                   .bf16 = {0.0, 0.0},
                                   .why = "a root and a division in double, one rounding"};
