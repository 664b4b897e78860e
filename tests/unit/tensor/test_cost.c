/* Costs worked out by hand in the comment at each number, not by the code of the formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/cost.h"

static char memory[1]; /* Tensors that exist point here; the data are never read. */

static void assert_cost(lt_cost got, double flops, double bytes) {
    assert_true(got.flops == flops);
    assert_true(got.bytes == bytes);
}

static void matmul_counts_multiply_adds(void **state) {
    lt_matmul_args a = {.y = lt_tensor_2d(memory, LT_F32, 2, 3),
                        .a = lt_tensor_2d(memory, LT_BF16, 2, 5),
                        .b = lt_tensor_2d(memory, LT_BF16, 5, 3)};
    (void)state;
    /* 2 * 3 sums of 5: 60 flops. 10 + 15 bf16, 6 floats: 20 + 30 + 24. */
    assert_cost(lt_op_cost(LT_OP_matmul, &a), 60, 74);
    a.bias = lt_tensor_1d(memory, LT_F32, 3);
    a.accumulate = true;
    /* 6 + 6 more flops; the bias of 12 bytes and y are read: 24 more bytes. */
    assert_cost(lt_op_cost(LT_OP_matmul, &a), 72, 110);
    a.trans_a = true;
    a.a = lt_tensor_2d(memory, LT_BF16, 5, 2);
    assert_cost(lt_op_cost(LT_OP_matmul, &a), 72, 110);
    assert_cost(lt_cost_matmul(1024, 3072, 768, 2, 2, 2), 4831838208.0,
                1572864.0 + 4718592.0 + 6291456.0);
}

static lt_attention_args attention(int64_t b, int64_t t, int64_t s, int64_t h, int64_t g,
                                   int64_t d) {
    return (lt_attention_args){.out = lt_tensor_4d(memory, LT_F32, b, t, h, d),
                               .q = lt_tensor_4d(memory, LT_F32, b, t, h, d),
                               .k = lt_tensor_4d(memory, LT_F32, b, s, g, d),
                               .v = lt_tensor_4d(memory, LT_F32, b, s, g, d),
                               .lse = lt_tensor_3d(memory, LT_F32, b, h, t),
                               .causal = true};
}

static void attention_counts_visible_pairs(void **state) {
    lt_attention_args a = attention(1, 4, 4, 2, 1, 8);
    lt_attention_bwd_args back;
    (void)state;
    /* 1 + 2 + 3 + 4 pairs, 2 heads, 4 * 8 + 5 flops. q, out 64 floats each, k, v 32 each, lse 8:
     * 200 floats. */
    assert_cost(lt_op_cost(LT_OP_attention_fwd, &a), 10 * 2 * 37, 800);
    back = (lt_attention_bwd_args){.fwd = a};
    /* 20 pairs * (80 + 6), delta 2 * 64. q, out, dout, dq 256, k, v, dk, dv 128, lse 8: 392
     * floats. */
    assert_cost(lt_op_cost(LT_OP_attention_bwd, &back), 20 * 86 + 128, 1568);
    a.lse.data = NULL;
    assert_cost(lt_op_cost(LT_OP_attention_fwd, &a), 740, 800 - 32);
    a.window = 2; /* 1 + 2 + 2 + 2. */
    assert_true(lt_op_cost(LT_OP_attention_fwd, &a).flops == 7 * 2 * 37);
    a.causal = false;
    a.window = 0;
    assert_true(lt_op_cost(LT_OP_attention_fwd, &a).flops == 16 * 2 * 37);
    a = attention(3, 2, 5, 1, 1, 1); /* Queries at positions 3 and 4: 4 + 5 pairs, three times. */
    assert_true(lt_op_cost(LT_OP_attention_fwd, &a).flops == 27 * 9);
}

static void norms_and_activations(void **state) {
    lt_rmsnorm_args r = {.y = lt_tensor_2d(memory, LT_BF16, 3, 10),
                         .x = lt_tensor_2d(memory, LT_BF16, 3, 10),
                         .gain = lt_tensor_1d(memory, LT_F32, 10),
                         .rstd = lt_tensor_1d(memory, LT_F32, 3)};
    lt_act_args act = {.y = lt_tensor_2d(memory, LT_F32, 3, 4),
                       .x = lt_tensor_2d(memory, LT_F32, 3, 8),
                       .kind = LT_ACT_SILU,
                       .gated = true};
    (void)state;
    /* 30 elements * 4, 3 rows * 3. x, y 60 bytes each, gain 40, rstd 12. */
    assert_cost(lt_op_cost(LT_OP_rmsnorm_fwd, &r), 129, 172);
    r.add = r.sum = r.x;
    assert_cost(lt_op_cost(LT_OP_rmsnorm_fwd, &r), 159, 292);
    /* negate, exp, plus one, divide, times up: 5 per element. 24 + 12 floats. */
    assert_cost(lt_op_cost(LT_OP_act_fwd, &act), 60, 144);
}

static void losses_and_optimisers(void **state) {
    lt_xent_args x = {.logits = lt_tensor_2d(memory, LT_BF16, 2, 100),
                      .labels = lt_tensor_1d(memory, LT_I32, 2),
                      .loss = lt_tensor_1d(memory, LT_F32, 2),
                      .grad_scale = 1.0f};
    const lt_distill_args d = {.logits = lt_tensor_2d(memory, LT_BF16, 2, 100),
                               .labels = lt_tensor_1d(memory, LT_I32, 2),
                               .loss = lt_tensor_1d(memory, LT_F32, 2),
                               .ids = lt_tensor_2d(memory, LT_I32, 2, 3),
                               .logp = lt_tensor_2d(memory, LT_F32, 2, 3),
                               .grad_scale = 1.0f};
    const lt_lora_add_args l = {.y = lt_tensor_2d(memory, LT_BF16, 4, 10),
                                .x = lt_tensor_2d(memory, LT_BF16, 4, 8),
                                .a = lt_tensor_4d(memory, LT_BF16, 3, 1, 2, 8),
                                .b = lt_tensor_3d(memory, LT_BF16, 3, 2, 5),
                                .u = lt_tensor_2d(memory, LT_F32, 4, 2),
                                .place = lt_tensor_1d(memory, LT_I32, 4),
                                .n_parts = 1,
                                .parts = {{3, 0, 5}}};
    const lt_lora_scale_args ls = {.y = lt_tensor_2d(memory, LT_BF16, 4, 10),
                                   .factor = lt_tensor_2d(memory, LT_F32, 3, 10),
                                   .offset = lt_tensor_2d(memory, LT_F32, 3, 10),
                                   .place = lt_tensor_1d(memory, LT_I32, 4)};
    const lt_matmul_lora_args p = {.base = {.y = lt_tensor_2d(memory, LT_BF16, 4, 6),
                                            .a = lt_tensor_2d(memory, LT_BF16, 4, 10),
                                            .b = lt_tensor_2d(memory, LT_BF16, 6, 10),
                                            .trans_b = true},
                                   .u = lt_tensor_2d(memory, LT_BF16, 4, 4),
                                   .v = lt_tensor_2d(memory, LT_BF16, 6, 2),
                                   .n_parts = 2,
                                   .parts = {{0, 0, 3}, {3, 3, 3}}};
    lt_drop_args o = {.y = lt_tensor_2d(memory, LT_BF16, 4, 10),
                      .x = lt_tensor_2d(memory, LT_BF16, 4, 10)};
    const lt_gather_rows_args u = {.y = lt_tensor_2d(memory, LT_BF16, 4, 10),
                                   .x = lt_tensor_2d(memory, LT_BF16, 9, 10),
                                   .index = lt_tensor_1d(memory, LT_I32, 7),
                                   .start = lt_tensor_1d(memory, LT_I32, 5)};
    const lt_hash_args h = {.out = lt_tensor_1d(memory, LT_I64, 3),
                            .pieces = lt_tensor_2d(memory, LT_I64, 3, 2),
                            .x = lt_tensor_1d(memory, LT_I32, 10)};
    const lt_sum_args t = {
        .y = lt_tensor_1d(memory, LT_BF16, 9),
        .part = lt_tensor_1d(memory, LT_F32, 9),
        .x = {lt_tensor_1d(memory, LT_BF16, 9), lt_tensor_1d(memory, LT_BF16, 9)},
        .n = 2};
    lt_adamw_args a = {.p = lt_tensor_1d(memory, LT_F32, 7),
                       .g = lt_tensor_1d(memory, LT_F32, 7),
                       .m = lt_tensor_1d(memory, LT_F32, 7),
                       .v = lt_tensor_1d(memory, LT_F32, 7),
                       .copy = lt_tensor_1d(memory, LT_BF16, 7)};
    (void)state;
    /* 200 logits * (4 + 3); read and written 800 bytes, labels 8, loss 8. */
    assert_cost(lt_op_cost(LT_OP_xent, &x), 1400, 816);
    x.grad_scale = 0.0f;
    assert_cost(lt_op_cost(LT_OP_xent, &x), 800, 416);
    /* 200 logits * (7 + 4); 400 bytes twice, the teacher's words 2 * 3 * 8, labels 8, loss 8. */
    assert_cost(lt_op_cost(LT_OP_distill, &d), 2200, 864);
    /* 2 * 4 rows * (16 + 10); three adapters of 26 bf16, x 64, u twice 32, places 16, y 2 * 40. */
    assert_cost(lt_op_cost(LT_OP_lora_add, &l), 208, 380);
    /* 2 * 40; y twice 80, factors and offsets 120 each, places 16. */
    assert_cost(lt_op_cost(LT_OP_lora_scale, &ls), 80, 416);
    /* 2 * 4 * 6 * (10 + 2); y 48, a 80, b 120, u 32, v 24. */
    assert_cost(lt_op_cost(LT_OP_matmul_lora, &p), 576, 304);
    /* 2 per element, 80 bytes twice; 3 per element, with y twice. */
    assert_cost(lt_op_cost(LT_OP_drop, &o), 80, 160);
    o.add = true;
    assert_cost(lt_op_cost(LT_OP_drop, &o), 120, 240);
    /* Two sums of 9; 18 bytes three times, 36. */
    assert_cost(lt_op_cost(LT_OP_sum, &t), 18, 90);
    /* 7 rows of 10 are read for 4 sums; 140 bytes, 80 of y, 28 of the index, 20 of the starts. */
    assert_cost(lt_op_cost(LT_OP_gather_rows, &u), 30, 268);
    /* 40 bytes, three pieces of two numbers, three hashes. */
    assert_cost(lt_op_cost(LT_OP_hash, &h), 0, 112);
    /* 16 per element; g, and p, m, v twice: 7 * 4 * 7 bytes; copy 14. */
    assert_cost(lt_op_cost(LT_OP_adamw, &a), 112, 210);
}

static void gathers_count_touched_rows(void **state) {
    lt_embed_args e = {.y = lt_tensor_2d(memory, LT_F32, 5, 8),
                       .table = lt_tensor_2d(memory, LT_F32, 3, 8),
                       .ids = lt_tensor_1d(memory, LT_I32, 5),
                       .scale = 1.0f};
    (void)state;
    /* 40 products by scale. y 160, ids 20, the 3 rows of the table: 96. */
    assert_cost(lt_op_cost(LT_OP_embed_fwd, &e), 40, 276);
    e.table = lt_tensor_2d(memory, LT_F32, 1000, 8); /* Now it reads 5 rows: 160. */
    assert_cost(lt_op_cost(LT_OP_embed_fwd, &e), 40, 340);
}

static void experts_count_routed_rows(void **state) {
    const lt_moe_combine_bwd_args a = {.dx = lt_tensor_2d(memory, LT_F32, 10, 8),
                                       .dweights = lt_tensor_2d(memory, LT_F32, 5, 2),
                                       .x = lt_tensor_2d(memory, LT_F32, 10, 8),
                                       .dy = lt_tensor_2d(memory, LT_F32, 5, 8),
                                       .weights = lt_tensor_2d(memory, LT_F32, 5, 2),
                                       .slot_row = lt_tensor_1d(memory, LT_I32, 10)};
    (void)state;
    /* Of 10 routed rows of 8 columns: the gradient of the weight, a product and a sum, and dx. */
    assert_true(lt_op_cost(LT_OP_moe_combine_bwd, &a).flops == 240);
}

static void muon_counts_its_products(void **state) {
    const lt_muon_args a = {.p = lt_tensor_2d(memory, LT_F32, 4, 3),
                            .g = lt_tensor_2d(memory, LT_F32, 4, 3),
                            .m = lt_tensor_2d(memory, LT_F32, 4, 3),
                            .steps = 2};
    (void)state;
    /* S 3, L 4, one iteration: 4 * 36 + 2 * 27 + 3 * 9 + 2 * 12 = 249; 2 iterations and 11 * 12.
     * g once, p and m twice: 5 * 48 bytes. */
    assert_cost(lt_op_cost(LT_OP_muon, &a), 630, 240);
    assert_int_equal(lt_muon_scratch_count(4, 3), 2 * 12 + 2 * 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_counts_multiply_adds),
        cmocka_unit_test(attention_counts_visible_pairs),
        cmocka_unit_test(norms_and_activations),
        cmocka_unit_test(losses_and_optimisers),
        cmocka_unit_test(gathers_count_touched_rows),
        cmocka_unit_test(experts_count_routed_rows),
        cmocka_unit_test(muon_counts_its_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
