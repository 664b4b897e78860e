/* drop.c: cases of dropout. R rows of C columns; T tokens in a row of the run; offset: columns
 * of the whole row before these; window: tokens of a piece, if the pieces are apart (ranks of
 * cp). */
#include "ops/case.h"

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .C = 1, .T = 1, .scale = 0.5f},
    {"odd", LT_CASE_CHECK, .R = 7, .C = 13, .T = 3, .scale = 0.25f},
    {"whole pieces", LT_CASE_CHECK, .R = 24, .C = 2064, .T = 8, .scale = 0.9f, .aligned = true},
    {"two pieces of a row", LT_CASE_CHECK, .R = 12, .C = 40, .T = 6, .window = 3, .scale = 0.5f,
     .accumulate = true},
    {"columns of a rank", LT_CASE_CHECK, .R = 9, .C = 64, .T = 4, .offset = 64.0f, .scale = 0.5f,
     .aligned = true, .accumulate = true},
    {"columns within a block", LT_CASE_CHECK, .R = 9, .C = 64, .T = 4, .offset = 31.0f,
     .scale = 0.5f, .aligned = true},
    {"llama-1b", LT_CASE_BENCH, .R = 16384, .C = 2048, .T = 4096, .scale = 0.1f},
    {"llama-1b, back", LT_CASE_BENCH, .R = 16384, .C = 2048, .T = 4096, .scale = 0.1f,
     .accumulate = true},
};

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_drop_args *a = (lt_drop_args *)s->args;
    *a = (lt_drop_args){.seed = 0x123456789abcdefu,
                        .stream = 0xfedcba9876543210u,
                        .first_row = 5000000000u,
                        .row_step = 3,
                        .seq = c->T,
                        .piece = c->window > 0 ? c->window : c->T,
                        .starts = {c->window, 5 * c->window},
                        .blocks = ((int64_t)c->offset + c->C + 40) / 4,
                        .column = (int64_t)c->offset,
                        .threshold = (uint32_t)((double)c->scale * 0x1p32),
                        .factor = 1.0f / (1.0f - c->scale),
                        .add = c->accumulate};
    if (c->accumulate) {
        lt_setup_inout(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->C));
    } else {
        lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->C));
    }
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
}

const lt_op_cases lt_cases_drop = {.op = LT_OP_drop,
                                   .forward = LT_OP_COUNT,
                                   LT_CASES(cases),
                                   .build = build,
                                   .f32 = {0x1p-22, 0x1p-22},
                                   .bf16 = {0x1p-8, 0x1p-8},
                                   .why = "a product and a sum; BF16 rounds once"};
