/* sum.c: cases of the op sum. K is the number of terms, C the elements of each; with accumulate
 * an F32 part is added, too. */
#include "ops/case.h"

#define TYPES (1 << LT_F32 | 1 << LT_BF16)
static const lt_case cases[] = {
    {"one term", LT_CASE_CHECK, TYPES, .C = 5, .K = 1},
    {"three", LT_CASE_CHECK, TYPES, .C = 1003, .K = 3},
    {"whole pieces", LT_CASE_CHECK, TYPES, .C = 4096, .K = 4, .aligned = true},
    {"into F32", LT_CASE_CHECK, TYPES, .C = 4096, .K = 5, .aligned = true, .y_f32 = true},
    {"a part, into F32", LT_CASE_CHECK, TYPES, .C = 777, .K = 16, .accumulate = true,
     .y_f32 = true},
    {"a part", LT_CASE_CHECK, TYPES, .C = 2048, .K = 2, .aligned = true, .accumulate = true},
    {"in place", LT_CASE_CHECK, TYPES, .C = 2048, .K = 4, .aligned = true, .in_place = true},
    {"piece of four ranks", LT_CASE_BENCH, TYPES, .C = 3 << 20, .K = 4, .aligned = true},
};

static void build(lt_setup *s) {
    static const char *const names[] = {"x0", "x1", "x2",  "x3",  "x4",  "x5",  "x6",  "x7",
                                        "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15"};
    const lt_case *c = s->c;
    lt_sum_args *a = (lt_sum_args *)s->args;
    lt_case_tensor *y;
    a->n = (int)c->K;
    for (int k = 0; k < a->n; k++) {
        if (c->in_place && k == 1) {
            lt_setup_inout(s, names[k], &a->x[k], s->act, LT_SHAPE(c->C));
        } else {
            lt_setup_in(s, names[k], &a->x[k], s->act, LT_SHAPE(c->C));
        }
    }
    if (c->accumulate) {
        lt_setup_in(s, "part", &a->part, LT_F32, LT_SHAPE(c->C));
    }
    y = lt_setup_out(s, "y", &a->y, c->y_f32 ? LT_F32 : s->act, LT_SHAPE(c->C));
    y->alias = c->in_place ? "x1" : NULL;
}

const lt_op_cases lt_cases_sum = {.op = LT_OP_sum,
                                  .forward = LT_OP_COUNT,
                                  LT_CASES(cases),
                                  .build = build,
                                  .f32 = {0x1p-22, 0x1p-22},
                                  .bf16 = {0x1p-8, 0x1p-20},
                                  .why = "at most 16 sums in F32, in one order; BF16 rounds once"};
