/* matmul.c: cases of matmul, matmul_pack and colsum. Packed weights are checked through the
 * products that use them. */
#include "ops/case.h"

static const lt_case matmul_cases[] = {
    {"one by one", LT_CASE_ALL, .M = 1, .N = 1, .K = 1},
    {"row times matrix", LT_CASE_CHECK, .M = 1, .N = 37, .K = 65, .trans_b = true},
    {"odd sizes", LT_CASE_CHECK | LT_CASE_GOLDEN, .M = 7, .N = 13, .K = 9},
    {"linear layer", LT_CASE_CHECK | LT_CASE_GOLDEN, .M = 5, .N = 11, .K = 8, .trans_b = true,
     .bias = true},
    {"weight gradient", LT_CASE_CHECK, .M = 33, .N = 17, .K = 50, .trans_a = true,
     .accumulate = true, .y_f32 = true},
    {"both transposed", LT_CASE_CHECK | LT_CASE_GOLDEN, .M = 6, .N = 4, .K = 10, .trans_a = true,
     .trans_b = true},
    {"accumulate with bias", LT_CASE_CHECK, .M = 9, .N = 16, .K = 31, .bias = true,
     .accumulate = true},
    {"tiles and edges", LT_CASE_CHECK, .M = 65, .N = 129, .K = 257, .trans_b = true},
    {"long sum", LT_CASE_CHECK, .M = 3, .N = 5, .K = 2048, .trans_b = true, .y_f32 = true},
    {"packed", LT_CASE_CHECK, .M = 48, .N = 96, .K = 64, .trans_b = true, .packed = true},
    {"packed odd, bias", LT_CASE_CHECK, .M = 5, .N = 33, .K = 19, .trans_b = true, .packed = true,
     .bias = true},
    {"packed plain", LT_CASE_CHECK, .M = 12, .N = 24, .K = 40, .packed = true},
    {"half inputs", LT_CASE_CHECK, 1 << LT_F16, .M = 8, .N = 8, .K = 24, .trans_b = true,
     .y_f32 = true},
    {"aligned linear", LT_CASE_CHECK, .M = 136, .N = 200, .K = 264, .trans_b = true, .bias = true,
     .aligned = true},
    {"aligned few rows, long sum", LT_CASE_CHECK, 1 << LT_BF16, .M = 5, .N = 64, .K = 12288,
     .trans_b = true, .aligned = true},
    {"aligned few rows", LT_CASE_CHECK, .M = 5, .N = 72, .K = 128, .trans_b = true,
     .aligned = true},
    {"aligned 16 rows, bias", LT_CASE_CHECK, .M = 16, .N = 130, .K = 136, .trans_b = true,
     .bias = true, .aligned = true},
    {"aligned 40 rows", LT_CASE_CHECK, .M = 40, .N = 200, .K = 1032, .trans_b = true,
     .accumulate = true, .bias = true, .y_f32 = true, .aligned = true},
    {"aligned 64 rows, deep", LT_CASE_CHECK, .M = 64, .N = 72, .K = 2048, .trans_b = true,
     .aligned = true},
    {"aligned deep input gradient", LT_CASE_CHECK, .M = 40, .N = 48, .K = 2048, .aligned = true},
    {"aligned input gradient", LT_CASE_CHECK, .M = 72, .N = 136, .K = 200, .accumulate = true,
     .aligned = true},
    {"aligned weight gradient", LT_CASE_CHECK, .M = 136, .N = 72, .K = 200, .trans_a = true,
     .accumulate = true, .y_f32 = true, .aligned = true},
    {"aligned deep weight gradient", LT_CASE_CHECK, .M = 64, .N = 64, .K = 1024, .trans_a = true,
     .accumulate = true, .y_f32 = true, .aligned = true},
    {"tall linear", LT_CASE_CHECK, .M = 2100, .N = 40, .K = 33, .trans_b = true},
    {"tall weight gradient", LT_CASE_CHECK, .M = 2200, .N = 40, .K = 70, .trans_a = true,
     .accumulate = true, .y_f32 = true},
    {"tall and wide weight gradient", LT_CASE_CHECK, .M = 2100, .N = 540, .K = 20, .trans_a = true,
     .accumulate = true, .y_f32 = true},
    {"Q4_0", LT_CASE_CHECK, 1 << LT_F32, .M = 3, .N = 37, .K = 96, .b_type = LT_Q4_0,
     .trans_b = true, .packed = true},
    {"Q4_1, bias", LT_CASE_CHECK, 1 << LT_F32, .M = 1, .N = 16, .K = 64, .b_type = LT_Q4_1,
     .trans_b = true, .packed = true, .bias = true},
    {"Q5_0", LT_CASE_CHECK, 1 << LT_F32, .M = 9, .N = 33, .K = 32, .b_type = LT_Q5_0,
     .trans_b = true, .packed = true},
    {"Q5_1", LT_CASE_CHECK, 1 << LT_F32, .M = 8, .N = 5, .K = 160, .b_type = LT_Q5_1,
     .trans_b = true, .packed = true},
    {"Q8_0, accumulate", LT_CASE_CHECK, 1 << LT_F32, .M = 17, .N = 48, .K = 128, .b_type = LT_Q8_0,
     .trans_b = true, .packed = true, .accumulate = true},
    {"Q4_K", LT_CASE_CHECK, 1 << LT_F32, .M = 2, .N = 20, .K = 512, .b_type = LT_Q4_K,
     .trans_b = true, .packed = true},
    {"Q5_K", LT_CASE_CHECK, 1 << LT_F32, .M = 1, .N = 17, .K = 256, .b_type = LT_Q5_K,
     .trans_b = true, .packed = true},
    {"Q6_K, bias", LT_CASE_CHECK, 1 << LT_F32, .M = 5, .N = 40, .K = 256, .b_type = LT_Q6_K,
     .trans_b = true, .packed = true, .bias = true},
    {"Q4_K not packed", LT_CASE_CHECK, 1 << LT_F32, .M = 2, .N = 3, .K = 256, .b_type = LT_Q4_K,
     .trans_b = true},
    {"gpt2 qkv", LT_CASE_BENCH, .M = 1024, .N = 2304, .K = 768, .trans_b = true},
    {"gpt2 fc", LT_CASE_BENCH, .M = 1024, .N = 3072, .K = 768, .trans_b = true, .bias = true},
    {"gpt2 fc dx", LT_CASE_BENCH, .M = 1024, .N = 768, .K = 3072},
    {"gpt2 fc dW", LT_CASE_BENCH, .M = 3072, .N = 768, .K = 1024, .trans_a = true,
     .accumulate = true, .y_f32 = true},
    {"gpt2 logits chunk", LT_CASE_BENCH, .M = 128, .N = 50304, .K = 768, .trans_b = true},
    {"gpt2 fc packed", LT_CASE_BENCH, .M = 1024, .N = 3072, .K = 768, .trans_b = true,
     .packed = true},
    {"smollm2 decode fc", LT_CASE_BENCH, .M = 1, .N = 1536, .K = 576, .trans_b = true},
    {"smollm2 decode logits", LT_CASE_BENCH, .M = 1, .N = 49152, .K = 576, .trans_b = true},
};

static void matmul_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_args *a = (lt_matmul_args *)s->args;
    const lt_dtype y = c->y_f32 ? LT_F32 : s->act;

    a->trans_a = c->trans_a;
    a->trans_b = c->trans_b;
    a->accumulate = c->accumulate;
    lt_setup_in(s, "a", &a->a, s->act, 2,
                (const int64_t[]){c->trans_a ? c->K : c->M, c->trans_a ? c->M : c->K});
    lt_case_tensor *b = lt_setup_in(
        s, "b", &a->b, c->b_type > 0 ? (lt_dtype)c->b_type : s->act, 2,
        (const int64_t[]){c->trans_b ? c->N : c->K, c->trans_b ? c->K : c->N});
    b->contiguous = c->b_type > 0; /* Rows of blocks are contiguous. */
    if (c->bias) {
        lt_setup_in(s, "bias", &a->bias, c->accumulate ? LT_F32 : s->act, LT_SHAPE(c->N));
    }
    if (c->accumulate) {
        lt_setup_grad(s, "y", &a->y, y, LT_SHAPE(c->M, c->N));
    } else {
        lt_setup_out(s, "y", &a->y, y, LT_SHAPE(c->M, c->N));
    }
}

const lt_op_cases lt_cases_matmul = {
    .op = LT_OP_matmul,
    .forward = LT_OP_COUNT,
    LT_CASES(matmul_cases),
    .build = matmul_build,
    .f32 = {0x1p-21, 0x1p-19},
    .bf16 = {0x1p-8, 0x1p-16},
    .why = "F32 sums of up to 2048 products: 2^-24 sqrt(K) of the largest sum, with room for any "
           "order; BF16 one rounding"};

static const lt_case pack_cases[] = {
    {"gpt2 fc", LT_CASE_BENCH, .N = 3072, .K = 768, .trans_b = true},
    {"gpt2 logits", LT_CASE_BENCH, .N = 50304, .K = 768, .trans_b = true},
};

static void pack_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_pack_args *a = (lt_matmul_pack_args *)s->args;
    a->trans_b = c->trans_b;
    lt_setup_in(s, "b", &a->b, s->act, 2,
                (const int64_t[]){c->trans_b ? c->N : c->K, c->trans_b ? c->K : c->N});
}

const lt_op_cases lt_cases_matmul_pack = {
    .op = LT_OP_matmul_pack,
    .forward = LT_OP_COUNT,
    LT_CASES(pack_cases),
    .build = pack_build,
    .why = "a private layout: checked through matmul's packed cases"};

static const lt_case colsum_cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .C = 1},
    {"odd", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 13, .C = 37},
    {"tall", LT_CASE_CHECK, .R = 1000, .C = 5},
    {"wide", LT_CASE_CHECK, .R = 3, .C = 1025},
    {"gpt2 fc bias", LT_CASE_BENCH, .R = 1024, .C = 3072},
};

static void colsum_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_colsum_args *a = (lt_colsum_args *)s->args;
    lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
    lt_setup_grad(s, "y", &a->y, LT_F32, LT_SHAPE(c->C));
}

const lt_op_cases lt_cases_colsum = {.op = LT_OP_colsum,
                                     .forward = LT_OP_COUNT,
                                     LT_CASES(colsum_cases),
                                     .build = colsum_build,
                                     .f32 = {0x1p-21, 0x1p-19},
                                     .bf16 = {0x1p-21, 0x1p-19},
                                     .why = "F32 sums of up to 1000 rows; inputs are exact"};

/* inverse: the backward pass. */
static const lt_case act_cases[] = {
    {"gelu", LT_CASE_CHECK, .M = 5, .N = 24, .K = 16, .trans_b = true, .bias = true},
    {"silu", LT_CASE_CHECK, .M = 7, .N = 9, .K = 11, .act = LT_ACT_SILU},
    {"gelu back", LT_CASE_CHECK, .M = 5, .N = 24, .K = 16, .inverse = true},
    {"relu squared back, in place", LT_CASE_CHECK, .M = 6, .N = 20, .K = 8, .act = LT_ACT_RELU2,
     .inverse = true, .in_place = true},
    {"aligned gelu", LT_CASE_CHECK, .M = 200, .N = 264, .K = 136, .trans_b = true, .bias = true,
     .aligned = true},
    {"aligned silu", LT_CASE_CHECK, .M = 136, .N = 72, .K = 64, .trans_b = true, .aligned = true,
     .act = LT_ACT_SILU},
    {"aligned gelu back, in place", LT_CASE_CHECK, .M = 200, .N = 264, .K = 136, .inverse = true,
     .in_place = true, .aligned = true},
    {"aligned gelu back", LT_CASE_CHECK, .M = 72, .N = 136, .K = 200, .inverse = true,
     .aligned = true},
    {"aligned gelu back, over d", LT_CASE_CHECK, .M = 328, .N = 136, .K = 72, .inverse = true,
     .over_dy = true, .aligned = true},
    {"aligned relu squared", LT_CASE_CHECK, .M = 136, .N = 72, .K = 64, .trans_b = true,
     .aligned = true, .act = LT_ACT_RELU2},
    {"aligned relu squared back", LT_CASE_CHECK, .M = 72, .N = 136, .K = 64, .inverse = true,
     .aligned = true, .act = LT_ACT_RELU2},
    {"aligned silu back, in place", LT_CASE_CHECK, .M = 72, .N = 136, .K = 64, .inverse = true,
     .in_place = true, .aligned = true, .act = LT_ACT_SILU},
    {"relu squared back, over d", LT_CASE_CHECK, .M = 6, .N = 20, .K = 8, .act = LT_ACT_RELU2,
     .inverse = true, .over_dy = true},
    {"gpt2 fc", LT_CASE_BENCH, .M = 1024, .N = 3072, .K = 768, .trans_b = true, .bias = true},
};

static void act_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_act_args *a = (lt_matmul_act_args *)s->args;
    lt_case_tensor *t;
    a->trans_b = c->trans_b;
    a->backward = c->inverse;
    a->kind = (lt_act_kind)c->act;
    lt_setup_in(s, "a", &a->a, s->act, LT_SHAPE(c->M, c->K))->fill_b = 0.25;
    lt_setup_in(s, "b", &a->b, s->act, 2,
                (const int64_t[]){c->trans_b ? c->N : c->K, c->trans_b ? c->K : c->N});
    if (c->bias) {
        lt_setup_in(s, "bias", &a->bias, s->act, LT_SHAPE(c->N));
    }
    if (!c->inverse) {
        lt_setup_out(s, "x", &a->x, s->act, LT_SHAPE(c->M, c->N));
        lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->M, c->N));
        return;
    }
    t = lt_setup_out(s, "d", &a->d, s->act, LT_SHAPE(c->M, c->N));
    t->role = c->over_dy ? LT_ROLE_OUT : LT_ROLE_SCRATCH;
    t = c->in_place ? lt_setup_inout(s, "x", &a->x, s->act, LT_SHAPE(c->M, c->N))
                    : lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->M, c->N));
    t = lt_setup_out(s, "y", &a->y, s->act, LT_SHAPE(c->M, c->N));
    t->alias = c->in_place ? "x" : c->over_dy ? "d" : NULL;
}

const lt_op_cases lt_cases_matmul_act = {.op = LT_OP_matmul_act,
                                         .forward = LT_OP_COUNT,
                                         LT_CASES(act_cases),
                                         .build = act_build,
                                         .f32 = {0x1p-19, 0x1p-18},
                                         .bf16 = {0x1p-6, 0x1p-8},
                                         .why = "F32 sums of 264 products; BF16 rounds the product "
                                                "before the function, whose slope is up to 1.2 "
                                                "(relu squared: 2 x), and its result"};
