/* choose.c: cases of choose. Pick p has options p of the list below, so a case of N picks tries N of them on each kind of row. P (shift: where the list
 * begins). Rows in turn, as `act` says: 0: logits as a model's, deviation 3; 1: many ties, multiples of 1/2; 2: all equal; -inf but for three; one large value;
 * none (all -inf); a NaN. Ids must be equal: no draw of these seeds lies where rounding decides. */
#include <math.h>

#include "ops/case.h"

static const double options[][LT_CHOOSE_HOW_COUNT] = {
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

static void fill_how(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t pick = i / LT_CHOOSE_HOW_COUNT + (int64_t)t->c->shift;
        const int64_t field = i % LT_CHOOSE_HOW_COUNT;
        values[i] = field == LT_CHOOSE_DRAW ? lt_rng_uniform(r) : options[pick % N_OPTIONS][field];
    }
}

/* Every seventh of many picks is idle. */
static void fill_rows(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = i % 7 == 6 && t->count > 7 ? -1.0 : (double)(i % t->c->R);
    }
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
    lt_setup_out(s, "id", &a->id, LT_I32, LT_SHAPE(c->N));
    lt_setup_out(s, "logprob", &a->logprob, LT_F32, LT_SHAPE(c->N));
    lt_setup_out(s, "rank", &a->rank, LT_I32, LT_SHAPE(c->N));
    lt_setup_out(s, "top_id", &a->top_id, LT_I32, LT_SHAPE(c->N, LT_CHOOSE_TOP))->contiguous = true;
    lt_setup_out(s, "top_logprob", &a->top_logprob, LT_F32, LT_SHAPE(c->N, LT_CHOOSE_TOP))
        ->contiguous = true;
}

const lt_op_cases lt_cases_choose = {
    .op = LT_OP_choose,
    .forward = LT_OP_COUNT,
    LT_CASES(cases),
    .build = build,
    .f32 = {0x1p-18, 0x1p-20},
    .why = "log of a sum of 4099 exponentials in F32; large logits cancel"};
