/* embed.c: cases of embed_fwd and embed_bwd. */
#include "ops/case.h"

static const lt_case cases[] = {
    {"one row", LT_CASE_ALL, .R = 1, .C = 1, .V = 1, .scale = 1},
    {"repeated ids", LT_CASE_ALL, .R = 19, .C = 13, .V = 4, .scale = 1},
    {"scaled, positions", LT_CASE_ALL, .R = 12, .C = 8, .V = 30, .P = 5, .positions = true,
     .scale = 2.5f},
    {"wide", LT_CASE_CHECK, .R = 7, .C = 515, .V = 100, .scale = 1},
    {"long runs", LT_CASE_CHECK, .R = 113, .C = 1032, .V = 3, .scale = 1},
    {"many ids", LT_CASE_CHECK, .R = 2100, .C = 8, .V = 70000, .scale = 1},
    {"many rows", LT_CASE_CHECK, .R = 66000, .C = 1, .V = 30000, .scale = 1},
    {"gpt2", LT_CASE_BENCH, .R = 1024, .C = 768, .V = 50304, .P = 1024, .positions = true,
     .scale = 1},
    {"apertus 8M", LT_CASE_BENCH, .R = 4096, .C = 256, .V = 8192, .scale = 1},
    /* Rows of a larger table, from id S on, and ids on both its sides. */
    {"part", LT_CASE_CHECK, .R = 40, .C = 13, .V = 9, .S = 11, .scale = 1},
    {"part, positions", LT_CASE_CHECK, .R = 66, .C = 70, .V = 8, .S = 3, .P = 5, .positions = true,
     .scale = 0.5f},
    {"part, few rows of it", LT_CASE_CHECK, .R = 21, .C = 8, .V = 2, .S = 60, .scale = 1},
    /* Forward only: tables in blocks; K ids that another op chose. */
    {"Q4_0", LT_CASE_CHECK, 1 << LT_F32, .R = 21, .C = 96, .V = 12, .b_type = LT_Q4_0, .scale = 1},
    {"Q6_K, scaled", LT_CASE_CHECK, 1 << LT_F32, .R = 9, .C = 512, .V = 7, .b_type = LT_Q6_K,
     .scale = 2.5f},
    {"Q8_0, positions", LT_CASE_CHECK, 1 << LT_F32, .R = 21, .C = 320, .V = 12, .P = 5,
     .positions = true, .b_type = LT_Q8_0, .scale = 1.5f},
    {"Q5_1, part, positions", LT_CASE_CHECK, 1 << LT_F32, .R = 40, .C = 64, .V = 9, .S = 11, .P = 7,
     .positions = true, .b_type = LT_Q5_1, .scale = 1},
    {"late ids", LT_CASE_CHECK, .R = 29, .C = 72, .V = 40, .K = 9, .scale = 1},
    {"late ids, positions", LT_CASE_CHECK, .R = 40, .C = 13, .V = 3, .P = 8, .K = 5,
     .positions = true, .scale = 0.5f},
};
enum { N_FORWARD = 6 };

static void fwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_embed_args *a = (lt_embed_args *)s->args;
    lt_case_tensor *t;
    a->scale = c->scale;
    a->part = c->S > 0;
    a->first = c->S;
    t = lt_setup_in(s, "table", &a->table, c->b_type != 0 ? (lt_dtype)c->b_type : s->act,
                    LT_SHAPE(c->V, c->C));
    t->contiguous = t->contiguous || c->b_type != 0;
    t = lt_setup_in(s, "ids", &a->ids, LT_I32, LT_SHAPE(c->R));
    t->fill = lt_fill_ids;
    t->fill_a = (double)-c->K;
    t->fill_b = (double)(c->V + 2 * c->S);
    if (c->K > 0) {
        t = lt_setup_in(s, "late", &a->late, LT_I32, LT_SHAPE(c->K));
        t->fill = lt_fill_ids;
        t->fill_a = -3.0; /* No id was chosen. */
        t->fill_b = (double)c->V;
    }
    if (c->positions) {
        lt_setup_in(s, "pos_table", &a->pos_table, s->act, LT_SHAPE(c->P, c->C));
        t = lt_setup_in(s, "positions", &a->positions, LT_I32, LT_SHAPE(c->R));
        t->fill = lt_fill_count;
        t->fill_b = (double)c->P;
    }
    lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->R, c->C));
}

static void bwd_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_embed_bwd_args *a = (lt_embed_bwd_args *)s->args;
    a->scale = c->scale;
    a->part = c->S > 0;
    a->first = c->S;
    lt_setup_in(s, "dy", &a->dy, s->act, LT_SHAPE(c->R, c->C));
    lt_setup_same(s, "ids", &a->ids, LT_I32, LT_SHAPE(c->R));
    lt_setup_grad(s, "dtable", &a->dtable, LT_F32, LT_SHAPE(c->V, c->C));
    if (c->positions) {
        lt_setup_same(s, "positions", &a->positions, LT_I32, LT_SHAPE(c->R));
        lt_setup_grad(s, "dpos_table", &a->dpos_table, LT_F32, LT_SHAPE(c->P, c->C));
    }
}

const lt_op_cases lt_cases_embed_fwd = {.op = LT_OP_embed_fwd,
                                        .forward = LT_OP_COUNT,
                                        LT_CASES(cases),
                                        .build = fwd_build,
                                        .f32 = {0x1p-22, 0x1p-23},
                                        .bf16 = {0x1p-8, 0x1p-22},
                                        .why = "one product and one sum in F32; BF16 one rounding"};
const lt_op_cases lt_cases_embed_bwd = {.op = LT_OP_embed_bwd,
                                        .forward = LT_OP_embed_fwd,
                                        .cases = cases,
                                        .n_cases = (int)(sizeof cases / sizeof *cases) - N_FORWARD,
                                        .build = bwd_build,
                                        .f32 = {0x1p-21, 0x1p-20},
                                        .bf16 = {0x1p-21, 0x1p-20},
                                        .why = "F32 sums of up to 20 rows; inputs are exact"};
