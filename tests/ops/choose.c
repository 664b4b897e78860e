/* choose.c: cases of penalty_set and choose. Pick p has the options p of the list below, so a
 * case of N picks tries N of them on each kind of row. P: where in the list it begins. The
 * rows take turns, as `act` says: 0: logits like a model's, deviation 3; 1: many ties,
 * multiples of 1/2; 2: all equal; -inf except for three; one large value; none (all -inf); a
 * NaN. Ids must be equal: with these seeds no draw lies where rounding decides. With S slots,
 * picks also have penalties, masks and forced ids, from a separate list, or none of them; K
 * ids are known late. */
#include <math.h>
#include <string.h>

#include "ops/case.h"

static const double options[][LT_CHOOSE_N_TOP + 1] = {
    /* temperature, top_k, top_p, min_p, (draw), n_top */
    {0, 0, 1, 0, 0, -1},       {1, 0, 1, 0, 0, -1},       {1, 0, 0.95, 0, 0, -1},
    {0.7, 40, 1, 0, 0, -1},    {1, 0, 1, 0.05, 0, -1},    {0, 0, 1, 0, 0, 0},
    {1.5, 0, 0.5, 0, 0, 5},    {1, 50, 0.9, 0.01, 0, 20}, {0.2, 0, 1, 0, 0, 0},
    {3, 0, 0.999, 0, 0, -1},   {1, 1, 1, 0, 0, 20},       {1, 0, 0, 0, 0, 1},
    {2, 256, 0.97, 0, 0, -1},  {1, 0, 0.8, 0.1, 0, 7},    {1, 1000, 1, 0, 0, -1},
    {0.01, 7, 0.9, 0, 0, -1},  {100, 0, 0.3, 0, 0, -1},   {1e-30, 0, 1, 0, 0, 2},
    {1e30, 3, 0.999, 0, 0, 3}, {1, 600, 0.6, 1, 0, -1},
};
enum { N_OPTIONS = (int)(sizeof options / sizeof options[0]) };

/* In addition, what a row's penalties and mask do. slot, mask and forced: none, or one. */
static const struct {
    double typical, repetition, frequency, presence;
    bool bans, slot, is_new, mask, forced;
} with[] = {
    {1, 1.3, 0, 0, false, true, true, false, false},
    {1, 1, 0.7, 0.3, true, true, true, false, false},
    {0.9, 1, 0, 0, false, false, false, false, false},
    {1, 1, 0, 0, false, false, false, true, false},
    {1, 1, 0, 0, false, false, false, false, false},
    {0.5, 0.8, -0.5, 1.5, false, true, false, true, false},
    {1, 1, 0, 0, true, true, false, false, false},
    {1, 1.1, 0.1, 0.1, true, true, true, true, false},
    {1, 1, 0, 2, false, true, true, false, true},
    {0, 1, 0, 0, false, false, false, true, false},
    {0.99, 1, 0, 0, false, false, false, true, true},
};
enum { N_WITH = (int)(sizeof with / sizeof with[0]) };

static const lt_case cases[] = {
    {"one id", LT_CASE_CHECK, 1 << LT_F32, .R = 1, .V = 1, .N = 20},
    {"two ids", LT_CASE_CHECK, 1 << LT_F32, .R = 3, .V = 2, .N = 40},
    {"few ids, picks share rows", LT_CASE_CHECK, 1 << LT_F32, .R = 7, .V = 31, .N = 60},
    {"all options", LT_CASE_CHECK | LT_CASE_GOLDEN, 1 << LT_F32, .R = 4, .V = 40, .N = 20},
    {"a thousand", LT_CASE_CHECK, 1 << LT_F32, .R = 5, .V = 1000, .N = 40},
    {"ties", LT_CASE_CHECK, 1 << LT_F32, .R = 5, .V = 4099, .N = 40, .act = 1},
    {"extremes", LT_CASE_CHECK, 1 << LT_F32, .R = 6, .V = 2500, .N = 60, .act = 2},
    {"softcap", LT_CASE_CHECK, 1 << LT_F32, .R = 4, .V = 700, .N = 20, .softcap = 8},
    {"two slices", LT_CASE_CHECK, 1 << LT_F32, .R = 3, .V = 20000, .N = 7, .shift = 6},
    {"two slices, ties", LT_CASE_CHECK, 1 << LT_F32, .R = 3, .V = 20001, .N = 7, .shift = 1,
     .act = 1},
    {"two slices, extremes", LT_CASE_CHECK, 1 << LT_F32, .R = 6, .V = 20000, .N = 7, .shift = 12,
     .act = 2},
    {"four slices", LT_CASE_CHECK, 1 << LT_F32, .R = 2, .V = 40001, .N = 3, .shift = 7},
    {"eight slices", LT_CASE_CHECK, 1 << LT_F32, .R = 1, .V = 70000, .N = 1, .shift = 7},
    {"eight slices, nucleus", LT_CASE_CHECK, 1 << LT_F32, .R = 1, .V = 70000, .N = 1, .shift = 9},
    {"read again", LT_CASE_CHECK, 1 << LT_F32, .R = 2, .V = 17000, .N = 20},
    {"penalties", LT_CASE_CHECK, 1 << LT_F32, .R = 5, .V = 1000, .N = 44, .S = 44, .K = 6},
    {"penalties, few ids", LT_CASE_CHECK, 1 << LT_F32, .R = 5, .V = 37, .N = 44, .S = 50, .K = 6},
    {"penalties, ties", LT_CASE_CHECK, 1 << LT_F32, .R = 5, .V = 4099, .N = 44, .S = 44, .K = 3,
     .act = 1},
    {"penalties, extremes", LT_CASE_CHECK, 1 << LT_F32, .R = 6, .V = 2500, .N = 66, .S = 66, .K = 3,
     .act = 2},
    {"penalties, softcap", LT_CASE_CHECK, 1 << LT_F32, .R = 4, .V = 700, .N = 22, .S = 22, .K = 3,
     .softcap = 8},
    {"penalties, two slices", LT_CASE_CHECK, 1 << LT_F32, .R = 3, .V = 20000, .N = 7, .S = 7,
     .K = 2},
    {"penalties, four slices", LT_CASE_CHECK, 1 << LT_F32, .R = 2, .V = 40001, .N = 3, .S = 3,
     .K = 2, .shift = 5},
    /* The only typical id weighs less than a tenth of the best, and min-p is relative to it. */
    {"penalties, min-p behind typical", LT_CASE_CHECK, 1 << LT_F32, .R = 1, .V = 20000, .N = 1,
     .S = 1, .K = 1, .shift = 53},
    {"penalties, read again", LT_CASE_CHECK, 1 << LT_F32, .R = 2, .V = 17000, .N = 22, .S = 22,
     .K = 2},
    {"llama 3, one", LT_CASE_BENCH, 1 << LT_F32, .R = 1, .V = 128256, .N = 1, .shift = 2},
    {"llama 3, eight", LT_CASE_BENCH, 1 << LT_F32, .R = 8, .V = 128256, .N = 8},
};

static double extreme_value(int64_t row, int64_t col, int64_t n, double x) {
    switch (row % 6) {
    case 0:
        return -7.0;
    case 1:
        return col == 0 || col == n / 2 || col == n - 1 ? x : -INFINITY;
    case 2:
        return col == n / 3 ? 3e4 : 100.0 * x;
    case 3:
        return -INFINITY;
    case 4:
        return col == n - 1 ? NAN : x;
    default:
        return col % 2 == 0 ? 0.0 : -0.0;
    }
}

static void fill_logits(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t n = t->c->V;
    for (int64_t i = 0; i < t->count; i++) {
        const double x = 3.0 * lt_rng_normal(r);
        values[i] = t->c->act == 0   ? x
                    : t->c->act == 1 ? floor(2.0 * x) / 2.0
                                     : extreme_value(i / n, i % n, n, x);
    }
}

/* Option of pick p, except the draw. */
static double how_of(const lt_case *c, int64_t p, int64_t field) {
    static const double plain[LT_CHOOSE_HOW_COUNT] = {0, 0, 1, 0, 0, -1, LT_CHOOSE_PLAIN};
    const int64_t i = (p + (int64_t)c->shift) % N_WITH;
    if (field <= LT_CHOOSE_N_TOP) {
        return options[(p + (int64_t)c->shift) % N_OPTIONS][field];
    }
    if (c->S == 0) {
        return plain[field];
    }
    switch (field) {
    /* At 1e30 all ids are equally likely, and rounding would decide which are typical. */
    case LT_CHOOSE_TYPICAL:
        return options[(p + (int64_t)c->shift) % N_OPTIONS][LT_CHOOSE_TEMPERATURE] > 1e6
                   ? 1.0
                   : with[i].typical;
    case LT_CHOOSE_REPETITION:
        return with[i].repetition;
    case LT_CHOOSE_FREQUENCY:
        return with[i].frequency;
    case LT_CHOOSE_PRESENCE:
        return with[i].presence;
    case LT_CHOOSE_BANS:
        return with[i].bans ? 1.0 : 0.0;
    case LT_CHOOSE_SLOT: /* In an order different from that of the picks. */
        return with[i].slot ? (double)(c->S - 1 - p) : -1.0;
    case LT_CHOOSE_NEW:
        return !with[i].is_new ? (double)LT_CHOOSE_NO_NEW
               : p % 2 == 0    ? (double)(p * 7919 % c->V)
                               : (double)(-1 - p % c->K);
    case LT_CHOOSE_MASK:
        return with[i].mask ? (double)(p % c->N) : -1.0;
    default:
        return with[i].forced ? (double)(p * 31 % c->V) : -1.0;
    }
}

static void fill_how(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t field = i % LT_CHOOSE_HOW_COUNT;
        values[i] = field == LT_CHOOSE_DRAW ? lt_rng_uniform(r)
                                            : how_of(t->c, i / LT_CHOOSE_HOW_COUNT, field);
    }
}

/* Of many picks every seventh is idle; with penalties, every eleventh is absent. */
static void fill_rows(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = t->c->S > 0 && i % 11 == 10  ? LT_CHOOSE_SKIP
                    : i % 7 == 6 && t->count > 7 ? -1.0
                                                 : (double)(i % t->c->R);
    }
}

static int32_t bits_of(float x) {
    int32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

/* A fifth of the ids has a penalty word, of any kind; biases are numbers that F32 must round. */
static void fill_penalties(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t V = t->c->V, width = V + LT_PENALTY_BIASES;
    for (int64_t i = 0; i < t->count; i++) {
        int32_t penalty = 0;
        if (i % width >= V) {
            values[i] = (double)bits_of((float)lt_rng_normal(r));
            continue;
        }
        if (lt_rng_below(r, 5) == 0) {
            penalty = (int32_t)lt_rng_below(r, 5);
            penalty |= lt_rng_below(r, 3) == 0 ? LT_PENALTY_PROMPT : 0;
            penalty |= lt_rng_below(r, 9) == 0 ? LT_PENALTY_END : 0;
            penalty |= lt_rng_below(r, 4) == 0
                           ? (int32_t)lt_rng_below(r, LT_PENALTY_BIASES) << LT_PENALTY_BIAS_SHIFT
                           : 0;
        }
        values[i] = (double)penalty;
    }
}

static void fill_masks(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const uint64_t any = lt_rng_below(r, 4);
        values[i] = any == 0 ? -1.0 : any == 1 ? 0.0 : (double)(int32_t)lt_rng_below(r, 1u << 31);
    }
}

static void build_penalties(lt_setup *s, lt_choose_args *a) {
    const lt_case *c = s->c;
    lt_case_tensor *t = lt_setup_inout(s, "penalties", &a->penalties, LT_I32,
                                       LT_SHAPE(c->S, c->V + LT_PENALTY_BIASES));
    t->fill = fill_penalties;
    lt_setup_in(s, "masks", &a->masks, LT_I32, LT_SHAPE(c->N, (c->V + 31) / 32))->fill = fill_masks;
    t = lt_setup_in(s, "late", &a->late, LT_I32, LT_SHAPE(c->K));
    t->fill = lt_fill_ids;
    t->fill_a = -3.0; /* No id was chosen. */
    t->fill_b = (double)c->V;
}

/* The result of an absent pick is left unchanged. */
static void build_results(lt_setup *s, lt_choose_args *a) {
    const int64_t n = s->c->N;
    lt_case_tensor *(*result)(lt_setup *, const char *, lt_tensor *, lt_dtype, int,
                              const int64_t *) = s->c->S > 0 ? lt_setup_inout : lt_setup_out;
    result(s, "id", &a->id, LT_I32, LT_SHAPE(n))->fill = fill_rows;
    result(s, "logprob", &a->logprob, LT_F32, LT_SHAPE(n));
    result(s, "rank", &a->rank, LT_I32, LT_SHAPE(n))->fill = fill_rows;
    lt_case_tensor *t = result(s, "top_id", &a->top_id, LT_I32, LT_SHAPE(n, LT_CHOOSE_TOP));
    t->fill = fill_rows;
    t->contiguous = true;
    result(s, "top_logprob", &a->top_logprob, LT_F32, LT_SHAPE(n, LT_CHOOSE_TOP))->contiguous =
        true;
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_choose_args *a = (lt_choose_args *)s->args;
    a->softcap = c->softcap;
    lt_setup_in(s, "logits", &a->logits, LT_F32, LT_SHAPE(c->R, c->V))->fill = fill_logits;
    lt_setup_in(s, "rows", &a->rows, LT_I32, LT_SHAPE(c->N))->fill = fill_rows;
    lt_case_tensor *t = lt_setup_in(s, "how", &a->how, LT_F64, LT_SHAPE(c->N, LT_CHOOSE_HOW_COUNT));
    t->fill = fill_how;
    t->contiguous = true;
    if (c->S > 0) {
        build_penalties(s, a);
    }
    build_results(s, a);
}

const lt_op_cases lt_cases_choose = {
    .op = LT_OP_choose,
    .forward = LT_OP_COUNT,
    LT_CASES(cases),
    .build = build,
    .f32 = {0x1p-18, 0x1p-20},
    .why = "log of a sum of 4099 exponentials in F32; large logits cancel"};

/* ---- penalty_set ---- */

static const lt_case penalty_set_cases[] = {
    {"one row", LT_CASE_CHECK, 1 << LT_F32, .V = 9, .S = 1, .N = 1, .E = 4},
    {"some of many", LT_CASE_CHECK, 1 << LT_F32, .V = 1000, .S = 12, .N = 7, .E = 900},
    {"none", LT_CASE_CHECK, 1 << LT_F32, .V = 50, .S = 3, .N = 2, .E = 0},
    {"llama 3, eight", LT_CASE_BENCH, 1 << LT_F32, .V = 128256, .S = 8, .N = 8, .E = 500},
};

static void fill_slots(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = (double)(i * 5 % t->c->S);
    }
}

/* Up to E edits per row. */
static void fill_starts(double *values, const lt_case_tensor *t, lt_rng *r) {
    values[0] = 0.0;
    for (int64_t i = 1; i < t->count; i++) {
        values[i] = values[i - 1] + (double)lt_rng_below(r, (uint64_t)t->c->E + 1);
    }
}

/* Of E consecutive edits no two have the same place. */
static void fill_edits(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t width = t->c->V + LT_PENALTY_BIASES;
    for (int64_t i = 0; i < t->count / 2; i++) {
        values[2 * i] = (double)(i * (width - 1) % width);
        values[2 * i + 1] = (double)(int32_t)lt_rng_below(r, 1u << 31);
    }
}

static void penalty_set_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_penalty_set_args *a = (lt_penalty_set_args *)s->args;
    lt_setup_inout(s, "penalties", &a->penalties, LT_I32, LT_SHAPE(c->S, c->V + LT_PENALTY_BIASES))
        ->fill = fill_masks;
    lt_case_tensor *t = lt_setup_in(s, "slots", &a->slots, LT_I32, LT_SHAPE(c->N));
    t->fill = fill_slots;
    t->contiguous = true;
    t = lt_setup_in(s, "starts", &a->starts, LT_I32, LT_SHAPE(c->N + 1));
    t->fill = fill_starts;
    t->contiguous = true;
    t = lt_setup_in(s, "edits", &a->edits, LT_I32, LT_SHAPE(c->N * c->E + 1, 2));
    t->fill = fill_edits;
    t->contiguous = true;
}

const lt_op_cases lt_cases_penalty_set = {.op = LT_OP_penalty_set,
                                          .forward = LT_OP_COUNT,
                                          LT_CASES(penalty_set_cases),
                                          .build = penalty_set_build,
                                          .exact = true,
                                          .why = "integers"};
