/* moe.c: cases of the mixture-of-experts ops. E experts, K chosen. extreme: logits with few
 * distinct values, so that ties decide. */
#include "ops/case.h"

#define F32_ONLY (1 << LT_F32)

static const lt_case route_cases[] = {
    {"one expert", LT_CASE_CHECK, F32_ONLY, .R = 3, .E = 1, .K = 1},
    {"switch", LT_CASE_ALL, F32_ONLY, .R = 12, .E = 4, .K = 1, .aux_coef = 0.5f, .z_coef = 0.25f},
    {"mixtral", LT_CASE_ALL, F32_ONLY, .R = 11, .E = 8, .K = 2, .normalise = true, .aux_coef = 0.5f,
     .z_coef = 0.125f},
    {"top 2 as they are", LT_CASE_ALL, F32_ONLY, .R = 9, .E = 6, .K = 2, .aux_coef = 0.5f},
    {"capacity", LT_CASE_CHECK | LT_CASE_GRAD, F32_ONLY, .R = 20, .E = 4, .K = 2, .capacity = 6,
     .normalise = true, .aux_coef = 1},
    {"capacity of one", LT_CASE_CHECK | LT_CASE_GRAD, F32_ONLY, .R = 10, .E = 3, .K = 1,
     .capacity = 1},
    {"all experts", LT_CASE_CHECK | LT_CASE_GRAD, F32_ONLY, .R = 5, .E = 3, .K = 3,
     .normalise = true, .z_coef = 1},
    {"ties", LT_CASE_CHECK, F32_ONLY, .R = 33, .E = 7, .K = 3, .normalise = true, .extreme = true,
     .aux_coef = 1},
    {"many rows", LT_CASE_CHECK, F32_ONLY, .R = 515, .E = 16, .K = 4, .normalise = true,
     .capacity = 100, .aux_coef = 1},
    {"few rows", LT_CASE_CHECK, F32_ONLY, .R = 8, .E = 40, .K = 6, .normalise = true,
     .extreme = true},
    {"few rows, as many assignments as threads", LT_CASE_CHECK, F32_ONLY, .R = 8, .E = 700,
     .K = 32},
    {"a row, most experts", LT_CASE_CHECK, F32_ONLY, .R = 1, .E = 1024, .K = 64, .normalise = true},
    {"few rows, capacity", LT_CASE_CHECK, F32_ONLY, .R = 7, .E = 3, .K = 2, .capacity = 3},
    {"few rows, aux", LT_CASE_CHECK, F32_ONLY, .R = 6, .E = 5, .K = 2, .aux_coef = 1},
    {"128 experts, a row", LT_CASE_BENCH, F32_ONLY, .R = 1, .E = 128, .K = 8, .normalise = true},
    {"mixtral 4096", LT_CASE_BENCH, F32_ONLY, .R = 4096, .E = 8, .K = 2, .normalise = true},
    {"64 experts", LT_CASE_BENCH, F32_ONLY, .R = 4096, .E = 64, .K = 8, .normalise = true},
};

static void fill_ties(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = 0.5 * (double)lt_rng_below(r, 3);
    }
}

static void route_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_route_args *a = (lt_moe_route_args *)s->args;
    a->capacity = c->capacity;
    a->normalise = c->normalise;
    lt_setup_in(s, "logits", &a->logits, LT_F32, LT_SHAPE(c->R, c->E))->fill = c->extreme
                                                                                   ? fill_ties
                                                                                   : lt_fill_normal;
    lt_setup_out(s, "probs", &a->probs, LT_F32, LT_SHAPE(c->R, c->E));
    lt_setup_out(s, "experts", &a->experts, LT_I32, LT_SHAPE(c->R, c->K));
    lt_setup_out(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R, c->K));
    lt_setup_out(s, "slot_row", &a->slot_row, LT_I32, LT_SHAPE(c->R * c->K))->contiguous = true;
    lt_setup_out(s, "expert_start", &a->expert_start, LT_I32, LT_SHAPE(c->E + 1))->contiguous =
        true;
    if (c->aux_coef != 0.0f || c->z_coef != 0.0f || s->as_forward) {
        lt_setup_out(s, "aux", &a->aux, LT_F32, LT_SHAPE(2));
    }
}

static void route_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_route_bwd_args *a = (lt_moe_route_bwd_args *)s->args;
    a->aux_coef = c->aux_coef;
    a->z_coef = c->z_coef;
    a->normalise = c->normalise;
    lt_setup_same(s, "logits", &a->logits, LT_F32, LT_SHAPE(c->R, c->E));
    lt_setup_same(s, "probs", &a->probs, LT_F32, LT_SHAPE(c->R, c->E));
    lt_setup_same(s, "experts", &a->experts, LT_I32, LT_SHAPE(c->R, c->K));
    lt_setup_same(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R, c->K));
    lt_setup_same(s, "expert_start", &a->expert_start, LT_I32, LT_SHAPE(c->E + 1))->contiguous =
        true;
    lt_setup_in(s, "dweights", &a->dweights, LT_F32, LT_SHAPE(c->R, c->K));
    lt_setup_out(s, "dlogits", &a->dlogits, LT_F32, LT_SHAPE(c->R, c->E));
}

/* <dweights, weights> plus the two auxiliary losses. */
static double route_objective(const lt_setup *f, const lt_setup *b) {
    const double *w = lt_setup_find(f, "weights")->slot->data,
                 *aux = lt_setup_find(f, "aux")->slot->data;
    const double *dw = lt_setup_find(b, "dweights")->slot->data;
    double sum = (double)f->c->aux_coef * aux[0] + (double)f->c->z_coef * aux[1];
    for (int64_t i = 0; i < f->c->R * f->c->K; i++) {
        sum += dw[i] * w[i];
    }
    return sum;
}

#define ROUTE_TOLERANCE                                                                            \
    .f32 = {0x1p-20, 0x1p-20}, .bf16 = {0.0, 0.0},                                                 \
    .why = "F32 softmax over at most 64 experts; means over 515 rows"
const lt_op_cases lt_cases_moe_route_fwd = {.op = LT_OP_moe_route_fwd,
                                            .forward = LT_OP_COUNT,
                                            LT_CASES(route_cases),
                                            .build = route_fwd_build,
                                            ROUTE_TOLERANCE};
const lt_op_cases lt_cases_moe_route_bwd = {.op = LT_OP_moe_route_bwd,
                                            .forward = LT_OP_moe_route_fwd,
                                            LT_CASES(route_cases),
                                            .build = route_bwd_build,
                                            .objective = route_objective,
                                            ROUTE_TOLERANCE};

static const lt_case row_cases[] = {
    {"one", LT_CASE_ALL, .R = 1, .C = 1, .E = 1, .K = 1},
    {"top 1", LT_CASE_ALL, .R = 9, .C = 7, .E = 3, .K = 1},
    {"top 2", LT_CASE_ALL, .R = 8, .C = 12, .E = 4, .K = 2},
    {"dropped", LT_CASE_ALL, .R = 10, .C = 6, .E = 3, .K = 2, .capacity = 5},
    {"added dx", LT_CASE_CHECK | LT_CASE_GRAD, .R = 6, .C = 9, .E = 4, .K = 2, .accumulate = true},
    {"wide", LT_CASE_CHECK, .R = 17, .C = 515, .E = 8, .K = 3},
    {"mixtral 60M", LT_CASE_BENCH, .R = 4096, .C = 512, .E = 8, .K = 2},
};

/* A routing that depends on the case alone, so that slot_row and expert_start agree: assignment i
 * chooses expert mix(i) mod E. Calls back in slot order. */
static int64_t expert_of(const lt_case *c, int64_t i) {
    return (int64_t)(lt_rng_mix((uint64_t)(i + 11)) % (uint64_t)c->E);
}

static void fill_slots(double *slots, double *starts, const lt_case *c) {
    const int64_t n = c->R * c->K;
    int64_t slot = 0, dropped = n;
    /* 0: count the kept ones; 1: place them. Dropped ones follow at the end, in order. */
    for (int64_t pass = 0; pass < 2; pass++) {
        int64_t n_dropped = 0;
        slot = 0;
        for (int64_t e = 0; e < c->E; e++) {
            int64_t kept = 0;
            starts[e] = (double)slot;
            for (int64_t i = 0; i < n; i++) {
                if (expert_of(c, i) == e && (c->capacity == 0 || kept < c->capacity)) {
                    slots[slot++] = (double)i;
                    kept++;
                } else if (expert_of(c, i) == e && pass == 1) {
                    slots[dropped + n_dropped++] = (double)i;
                }
            }
        }
        dropped = slot;
    }
    starts[c->E] = (double)slot;
}

#define MAX_SLOTS 8192
static void fill_slot_row(double *values, const lt_case_tensor *t, lt_rng *r) {
    double starts[65];
    (void)r;
    fill_slots(values, starts, t->c);
}

static void fill_expert_start(double *values, const lt_case_tensor *t, lt_rng *r) {
    static double slots[MAX_SLOTS];
    (void)r;
    fill_slots(slots, values, t->c);
}

typedef lt_case_tensor *declare(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                                int n_dims, const int64_t *shape);

static void slot_tensors(lt_setup *s, lt_tensor *slot_row, lt_tensor *expert_start, declare *in) {
    const lt_case *c = s->c;
    lt_case_tensor *t = in(s, "slot_row", slot_row, LT_I32, LT_SHAPE(c->R * c->K));
    t->fill = fill_slot_row;
    t->contiguous = true;
    t = in(s, "expert_start", expert_start, LT_I32, LT_SHAPE(c->E + 1));
    t->fill = fill_expert_start;
    t->contiguous = true;
}

static void gather_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_gather_args *a = (lt_moe_gather_args *)s->args;
    a->top_k = c->K;
    slot_tensors(s, &a->slot_row, &a->expert_start, lt_setup_in);
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R * c->K, c->C))->partial = true;
}

static void gather_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_gather_bwd_args *a = (lt_moe_gather_bwd_args *)s->args;
    a->top_k = c->K;
    a->add_dx = c->accumulate;
    slot_tensors(s, &a->slot_row, &a->expert_start, lt_setup_same);
    lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R * c->K, c->C));
    if (c->accumulate) {
        lt_setup_grad(s, "dx", &a->dx, s->act, LT_SHAPE(c->R, c->C));
    } else {
        lt_setup_out(s, "dx", &a->dx, s->act, LT_SHAPE(c->R, c->C));
    }
}

static void combine_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_combine_args *a = (lt_moe_combine_args *)s->args;
    slot_tensors(s, &a->slot_row, &a->expert_start, lt_setup_in);
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R * c->K, c->C));
    lt_setup_in(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R, c->K));
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->C));
}

static void combine_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_combine_bwd_args *a = (lt_moe_combine_bwd_args *)s->args;
    slot_tensors(s, &a->slot_row, &a->expert_start, lt_setup_same);
    lt_setup_same(s, "x", &a->x, s->act, LT_SHAPE(c->R * c->K, c->C));
    lt_setup_same(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R, c->K));
    lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, c->C));
    lt_setup_out(s, "dx", &a->dx, s->act, LT_SHAPE(c->R * c->K, c->C))->partial = true;
    lt_setup_out(s, "dweights", &a->dweights, LT_F32, LT_SHAPE(c->R, c->K));
}

static const lt_case bias_cases[] = {
    {"one", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 1, .C = 1, .E = 1, .K = 1},
    {"rows", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 20, .C = 13, .E = 4, .K = 2},
    {"dropped", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 10, .C = 6, .E = 3, .K = 2, .capacity = 5},
    {"more experts than rows", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 3, .C = 24, .E = 16, .K = 1},
    {"wide", LT_CASE_CHECK, .R = 70, .C = 515, .E = 8, .K = 3},
    {"aligned", LT_CASE_CHECK, .R = 100, .C = 1096, .E = 5, .K = 2, .aligned = true},
    {"gpt-oss up", LT_CASE_BENCH, .R = 1024, .C = 5760, .E = 32, .K = 4},
};

static void bias_fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_bias_args *a = (lt_moe_bias_args *)s->args;
    lt_case_tensor *t = lt_setup_in(s, "expert_start", &a->expert_start, LT_I32,
                                    LT_SHAPE(c->E + 1));
    t->fill = fill_expert_start;
    t->contiguous = true;
    lt_setup_in(s, "bias", &a->bias, s->act, LT_SHAPE(c->E, c->C));
    lt_setup_grad(s, "y", &a->y, s->act, LT_SHAPE(c->R * c->K, c->C));
}

static void bias_bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_moe_bias_bwd_args *a = (lt_moe_bias_bwd_args *)s->args;
    lt_case_tensor *t = lt_setup_in(s, "expert_start", &a->expert_start, LT_I32,
                                    LT_SHAPE(c->E + 1));
    t->fill = fill_expert_start;
    t->contiguous = true;
    lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R * c->K, c->C));
    lt_setup_grad(s, "dbias", &a->dbias, LT_F32, LT_SHAPE(c->E, c->C));
}

#define ROWS_TOLERANCE                                                                             \
    .f32 = {0x1p-21, 0x1p-21}, .bf16 = {0x1p-8, 0x1p-18},                                          \
    .why =                                                                                         \
        "copies are exact; sums of K products, and dot products of 515, in F32; BF16 one rounding"
const lt_op_cases lt_cases_moe_gather_fwd = {.op = LT_OP_moe_gather_fwd,
                                             .forward = LT_OP_COUNT,
                                             LT_CASES(row_cases),
                                             .build = gather_fwd_build,
                                             ROWS_TOLERANCE};
const lt_op_cases lt_cases_moe_gather_bwd = {.op = LT_OP_moe_gather_bwd,
                                             .forward = LT_OP_moe_gather_fwd,
                                             LT_CASES(row_cases),
                                             .build = gather_bwd_build,
                                             ROWS_TOLERANCE};
const lt_op_cases lt_cases_moe_combine_fwd = {.op = LT_OP_moe_combine_fwd,
                                              .forward = LT_OP_COUNT,
                                              LT_CASES(row_cases),
                                              .build = combine_fwd_build,
                                              ROWS_TOLERANCE};
const lt_op_cases lt_cases_moe_combine_bwd = {.op = LT_OP_moe_combine_bwd,
                                              .forward = LT_OP_moe_combine_fwd,
                                              LT_CASES(row_cases),
                                              .build = combine_bwd_build,
                                              ROWS_TOLERANCE};

const lt_op_cases lt_cases_moe_bias_fwd = {.op = LT_OP_moe_bias_fwd,
                                           .forward = LT_OP_COUNT,
                                           LT_CASES(bias_cases),
                                           .build = bias_fwd_build,
                                           ROWS_TOLERANCE};
const lt_op_cases lt_cases_moe_bias_bwd = {.op = LT_OP_moe_bias_bwd,
                                           .forward = LT_OP_COUNT,
                                           LT_CASES(bias_cases),
                                           .build = bias_bwd_build,
                                           ROWS_TOLERANCE};

/* R rows in expert order, C the width of a, F that of y (or of b, for weights: y_f32). */
static const lt_case grouped_cases[] = {
    {"one expert", LT_CASE_CHECK, .R = 5, .C = 7, .F = 3, .E = 1, .K = 1, .trans_b = true},
    {"rows", LT_CASE_CHECK, .R = 50, .C = 24, .F = 17, .E = 4, .K = 1},
    {"rows, transposed", LT_CASE_CHECK, .R = 50, .C = 24, .F = 17, .E = 4, .K = 1, .trans_b = true},
    {"rows, dropped", LT_CASE_CHECK, .R = 40, .C = 16, .F = 8, .E = 5, .K = 1, .capacity = 6,
     .trans_b = true},
    {"rows, added", LT_CASE_CHECK, .R = 30, .C = 9, .F = 8, .E = 3, .K = 1, .accumulate = true},
    {"more experts than rows", LT_CASE_CHECK, .R = 3, .C = 16, .F = 24, .E = 16, .K = 1,
     .trans_b = true},
    {"a row or two each, few terms, added", LT_CASE_CHECK, .R = 24, .C = 16, .F = 150, .E = 20,
     .K = 1, .accumulate = true},
    {"Q4_0", LT_CASE_CHECK, 1 << LT_F32, .R = 40, .C = 96, .F = 48, .E = 5, .K = 1,
     .b_type = LT_Q4_0, .trans_b = true, .packed = true},
    {"Q4_K, a row or two each", LT_CASE_CHECK, 1 << LT_F32, .R = 12, .C = 512, .F = 32, .E = 9,
     .K = 1, .b_type = LT_Q4_K, .trans_b = true, .packed = true},
    {"Q8_0 not packed, added", LT_CASE_CHECK, 1 << LT_F32, .R = 30, .C = 64, .F = 17, .E = 4,
     .K = 1, .b_type = LT_Q8_0, .trans_b = true, .accumulate = true},
    {"BF16 beside F32", LT_CASE_CHECK, 1 << LT_F32, .R = 30, .C = 33, .F = 17, .E = 4, .K = 1,
     .b_type = LT_BF16, .trans_b = true},
    {"weights", LT_CASE_CHECK, .R = 70, .C = 12, .F = 19, .E = 4, .K = 1, .y_f32 = true,
     .accumulate = true},
    {"weights, dropped", LT_CASE_CHECK, .R = 60, .C = 16, .F = 8, .E = 5, .K = 1, .capacity = 7,
     .y_f32 = true, .accumulate = true},
    {"weights, empty experts", LT_CASE_CHECK, .R = 6, .C = 8, .F = 8, .E = 9, .K = 1, .y_f32 = true,
     .accumulate = true},
    {"weights, stored, empty experts", LT_CASE_CHECK, .R = 6, .C = 8, .F = 8, .E = 9, .K = 1,
     .y_f32 = true},
    {"aligned weights, stored, empty experts", LT_CASE_CHECK, .R = 4, .C = 136, .F = 264, .E = 7,
     .K = 1, .y_f32 = true, .aligned = true},
    {"aligned weights, stored", LT_CASE_CHECK, .R = 500, .C = 136, .F = 264, .E = 3, .K = 1,
     .y_f32 = true, .aligned = true},
    {"aligned rows", LT_CASE_CHECK, .R = 700, .C = 136, .F = 200, .E = 5, .K = 1, .trans_b = true,
     .aligned = true},
    {"aligned rows, plain", LT_CASE_CHECK, .R = 700, .C = 72, .F = 136, .E = 3, .K = 1,
     .aligned = true},
    {"aligned weights", LT_CASE_CHECK, .R = 700, .C = 136, .F = 264, .E = 5, .K = 1, .y_f32 = true,
     .accumulate = true, .aligned = true},
    {"aligned, dropped", LT_CASE_CHECK, .R = 300, .C = 64, .F = 64, .E = 7, .K = 1, .capacity = 33,
     .trans_b = true, .aligned = true},
    {"few rows", LT_CASE_CHECK, .R = 3, .C = 264, .F = 70, .E = 5, .K = 1, .trans_b = true,
     .aligned = true},
    {"few rows, dropped", LT_CASE_CHECK, .R = 13, .C = 72, .F = 19, .E = 4, .K = 1, .capacity = 3,
     .trans_b = true, .aligned = true},
    {"few rows, more experts than lanes", LT_CASE_CHECK, .R = 61, .C = 1032, .F = 9, .E = 40,
     .K = 1, .trans_b = true, .accumulate = true, .aligned = true},
    {"few rows, one expert", LT_CASE_CHECK, .R = 7, .C = 16, .F = 33, .E = 1, .K = 1,
     .trans_b = true, .aligned = true},
    {"mixtral 8 x 1B up, 2 rows", LT_CASE_BENCH, .R = 2, .C = 2048, .F = 4096, .E = 8, .K = 1,
     .trans_b = true, .aligned = true},
    {"mixtral 8 x 1B up, 16 rows", LT_CASE_BENCH, .R = 16, .C = 2048, .F = 4096, .E = 8, .K = 1,
     .trans_b = true, .aligned = true},
    {"mixtral 8 x 1B up, 64 rows", LT_CASE_BENCH, .R = 64, .C = 2048, .F = 4096, .E = 8, .K = 1,
     .trans_b = true, .aligned = true},
    {"128 experts, 64 rows", LT_CASE_BENCH, .R = 64, .C = 2048, .F = 1536, .E = 128, .K = 1,
     .trans_b = true, .aligned = true},
    {"mixtral 60M up", LT_CASE_BENCH, .R = 4096, .C = 512, .F = 2048, .E = 8, .K = 1,
     .trans_b = true},
};

static void grouped_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_grouped_args *a = (lt_matmul_grouped_args *)s->args;
    lt_case_tensor *t;
    a->weights = c->y_f32;
    a->trans_b = c->trans_b;
    a->accumulate = c->accumulate;
    t = lt_setup_in(s, "expert_start", &a->expert_start, LT_I32, LT_SHAPE(c->E + 1));
    t->fill = fill_expert_start;
    t->contiguous = true;
    lt_setup_in(s, "a", &a->a, s->act, LT_SHAPE(c->R, c->C));
    if (a->weights) {
        lt_setup_in(s, "b", &a->b, s->act, LT_SHAPE(c->R, c->F));
        if (c->accumulate) {
            lt_setup_grad(s, "y", &a->y, LT_F32, LT_SHAPE(c->E, c->C, c->F));
        } else {
            lt_setup_out(s, "y", &a->y, LT_F32, LT_SHAPE(c->E, c->C, c->F));
        }
        return;
    }
    lt_setup_in(s, "b", &a->b, c->b_type > 0 ? (lt_dtype)c->b_type : s->act, 3,
                (const int64_t[]){c->E, c->trans_b ? c->F : c->C, c->trans_b ? c->C : c->F})
        ->contiguous = c->b_type > 0;
    if (c->accumulate) {
        lt_setup_grad(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->F));
    } else {
        lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->F))->partial = true;
    }
}

const lt_op_cases lt_cases_matmul_grouped = {
    .op = LT_OP_matmul_grouped,
    .forward = LT_OP_COUNT,
    LT_CASES(grouped_cases),
    .build = grouped_build,
    .f32 = {0x1p-21, 0x1p-19},
    .bf16 = {0x1p-8, 0x1p-16},
    .why = "F32 sums of up to 700 products in any order; BF16 one rounding"};
