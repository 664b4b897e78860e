/* The work of one micro-batch, counted by hand: the share of the peak that the shape of a product
 * allows, the bytes that each block moves, its products and its kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "unit/plan/round_model.h"

/* ---- One product ---- */

/* Tiles of 128 x 64 on 100 multiprocessors; a third of the idle part of the last wave is lost;
 * with a depth of 128 half of the time is the ramp. */
static void shapes_limit_the_share_of_the_peak(void **state) {
    static const struct {
        double m, n, k, share;
    } rows[] = {{12800, 64, 128, 0.5},      /* One full wave, half of it the ramp. */
                {12800, 64, 384, 0.75},     /* 384 / (384 + 128). */
                {6400, 64, 128, 0.5 * 0.5}, /* Half a wave. */
                {19200, 64, 128, 0.5 * (1 - 0.333 * (1 - 1.5 / 2))}, /* One and a half waves. */
                {12800, 63, 128, 0.5 * 63 / 64},                     /* Padding of columns, */
                {12799, 64, 128, 0.5 * 12799 / 12800},               /* and of rows. */
                {12801, 64, 128, 0.5 * 12801 / 12928 * (1 - 0.333 * (1 - 1.01 / 2))},
                {128, 64, 128, 0.01}, /* 0.01 x 0.5, but never below 1 %. */
                {128, 192, 128, 0.015}};
    lt_plan_cluster c = plain();
    (void)state;
    c.gpu.memory_gbps = 1e9;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        near(lt_plan_gemm_s(&c, rows[i].m, rows[i].n, rows[i].k, LT_PLAN_BF16),
             2 * rows[i].m * rows[i].n * rows[i].k / (1000e12 * rows[i].share), 1e-12);
    }
    c.stack.gemm = 0.8;
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_BF16),
         2.0 * 12800 * 64 * 128 / (1000e12 * 0.5 * 0.8), 1e-12);
}

static void narrow_types_have_their_peaks(void **state) {
    static const struct {
        lt_plan_precision p;
        double tflops;
    } rows[] = {{LT_PLAN_BF16, 1000},   {LT_PLAN_FP8, 1920},   {LT_PLAN_MXFP8, 1830},
                {LT_PLAN_FP8ROW, 1500}, {LT_PLAN_NVFP4, 3480}, {LT_PLAN_FP32, 500}};
    lt_plan_cluster c = plain();
    (void)state;
    c.gpu.memory_gbps = 1e9;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        near(lt_plan_gemm_s(&c, 12800, 64, 128, rows[i].p),
             2.0 * 12800 * 64 * 128 / (rows[i].tflops * 1e12 * 0.5), 1e-12);
    }
    c.gpu.peak_tflops[LT_PLAN_FP32] = 60; /* A figure of its own is used. */
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_FP32), 2.0 * 12800 * 64 * 128 / (60e12 * 0.5),
         1e-12);
    c.gpu.peak_tflops[LT_PLAN_NVFP4] = 3000; /* No faster than the chip. */
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_NVFP4),
         2.0 * 12800 * 64 * 128 / (3000e12 * 0.5), 1e-12);
    c.gpu.peak_tflops[LT_PLAN_FP8] = 0; /* Unknown: 8 bits are as fast as bf16. */
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_FP8), 2.0 * 12800 * 64 * 128 / (1000e12 * 0.5),
         1e-12);
}

/* Both operands are read and the product is written, in bf16. */
static void a_thin_product_waits_for_memory(void **state) {
    lt_plan_cluster c = plain();
    (void)state;
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_BF16),
         2.0 * (12800 * 128 + 128 * 64 + 12800 * 64) / 1000e9, 1e-12);
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_FP8),
         (12800 * 128 + 128 * 64 + 2.0 * 12800 * 64) / 1000e9, 1e-12);
    c.stack.memory = 0.5;
    near(lt_plan_gemm_s(&c, 12800, 64, 128, LT_PLAN_BF16),
         2.0 * 2.0 * (12800 * 128 + 128 * 64 + 12800 * 64) / 1000e9, 1e-12);
}

/* ---- Blocks ---- */

/* Bytes of small kernels: two norms with their residuals, 20 per column of the width; RoPE, 4 per
 * column of queries and keys; the gated activation, 6 per column of the feed-forward part. */
static void bytes_of_small_kernels(void **state) {
    const lt_plan_cluster c = plain();
    const lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double columns = (heads + kv_heads) * head, s = layers * tokens / 1000e9;
    (void)state;
    near(lt_plan_forward_work(&j).elementwise_s, s * (20 * width + 4 * columns + 6 * ffn), 1e-12);
    near(lt_plan_backward_work(&j).elementwise_s, s * 2 * (20 * width + 4 * columns + 6 * ffn),
         1e-12);
    m.qk_norm = true;
    near(lt_plan_forward_work(&j).elementwise_s, s * (20 * width + 8 * columns + 6 * ffn), 1e-12);
    m.qk_norm = false;
    m.positions = 2048; /* Learned positions: no RoPE. */
    near(lt_plan_forward_work(&j).elementwise_s, s * (20 * width + 6 * ffn), 1e-12);
    m.dropout = true;
    near(lt_plan_forward_work(&j).elementwise_s, s * (24 * width + 6 * ffn), 1e-12);
    m.gated = false;
    near(lt_plan_forward_work(&j).elementwise_s, s * (24 * width + 4 * ffn), 1e-12);
    m.unfused_act = true;
    near(lt_plan_forward_work(&j).elementwise_s, s * (24 * width + 74 * ffn), 1e-12);
}

/* One product in the forward pass, two in the backward pass. Attention has one kernel each way;
 * small kernels count half as many again in the backward pass. */
static void kernels_are_counted(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    /* Norms 2 and 2, RoPE 2, activation 1; qkv, out, up and gate, down; attention. */
    near(lt_plan_forward_work(&j).kernels, layers * (7 + 4 + 1), 1e-12);
    near(lt_plan_backward_work(&j).kernels, layers * (7 * 1.5 + 2 * 4 + 1), 1e-12);
    c.stack.split_products = 1; /* q, k and v are separate, and gate and up. */
    near(lt_plan_forward_work(&j).kernels, layers * (7 + 7 + 1), 1e-12);
    /* Two sums of gradients after q, k and v, one after gate and up: 4 bytes per element. */
    near(lt_plan_backward_work(&j).elementwise_s,
         layers * tokens / 1000e9 *
             (2 * (20 * width + 4 * (heads + kv_heads) * head + 6 * ffn) + 3 * 4 * width),
         1e-12);
    c.stack.split_products = 0;
    c.stack.attention = LT_PLAN_ATTENTION_UNFUSED;
    near(lt_plan_forward_work(&j).kernels, layers * (7 + 4 + 5), 1e-12);
    c.stack.passes = 2; /* Small kernels run twice, and move their bytes twice. */
    near(lt_plan_forward_work(&j).kernels, layers * (14 + 4 + 5), 1e-12);
    near(lt_plan_forward_work(&j).elementwise_s,
         layers * tokens / 1000e9 * 2 * (20 * width + 4 * (heads + kv_heads) * head + 6 * ffn),
         1e-12);
}

static void operations_are_counted(void **state) {
    const lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double linear = 2 * tokens * width *
                          ((heads + 2 * kv_heads) * head + heads * head + 3 * ffn);
    const double causal = 0.5 * heads * tokens * tokens * 4 * head;
    (void)state;
    near(lt_plan_forward_work(&j).flops, layers * (linear + causal), 1e-12);
    near(lt_plan_backward_work(&j).flops, layers * (2 * linear + 2.5 * causal), 1e-12);
    /* In a quarter of the layers a query sees 256 keys instead of 1,024 on average. */
    m.window = 256;
    m.n_windowed = m.n_attn / 4;
    near(lt_plan_forward_work(&j).flops,
         layers * (linear + causal * (0.75 + 0.25 * 2 * 256 / 2048)), 1e-12);
    m.window = 4096;
    near(lt_plan_forward_work(&j).flops, layers * (linear + causal), 1e-12);
    l.pp = 3; /* The largest stage has two of four layers. */
    near(lt_plan_forward_work(&j).flops, layers / 2 * (linear + causal), 1e-12);
    l.pp = 1;
    l.tune = LT_PLAN_TUNE_LORA; /* In the backward pass, frozen weights need no gradients. */
    near(lt_plan_backward_work(&j).flops, layers * (linear + 2.5 * causal), 1e-12);
}

/* Causal attention on Blackwell: TFLOP/s that cuDNN measured with heads of 128 and 192
 * (cudnn-frontend, benchmark/sdpa_benchmark_training/results, 15 June 2026). */
static void attention_on_blackwell_is_as_measured(void **state) {
    static const struct {
        double fp4, tokens, head, forward, backward;
    } rows[] = {{10000, 4096, 128, 1342, 1155},  {10000, 8192, 128, 1527, 1273},
                {10000, 16384, 128, 1599, 1389}, {10000, 4096, 192, 1405, 1064},
                {10000, 8192, 192, 1578, 1053},  {15000, 4096, 128, 1799, 1254},
                {15000, 8192, 128, 1977, 1447},  {15000, 16384, 128, 2053, 1523},
                {15000, 4096, 192, 1659, 1150},  {15000, 8192, 192, 1897, 1299}};
    lt_plan_cluster c = plain();
    const lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    c.stack.attention = LT_PLAN_ATTENTION_FLASH3;
    c.gpu.peak_tflops[LT_PLAN_BF16] = 2500;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double flops;
        m.max_seq = (int64_t)rows[i].tokens;
        m.head_dim = (int64_t)rows[i].head;
        c.gpu.peak_tflops[LT_PLAN_NVFP4] = rows[i].fp4;
        flops = layers * heads * rows[i].tokens * rows[i].tokens * 2 * rows[i].head;
        near(lt_plan_forward_work(&j).attention_s, flops / (rows[i].forward * 1e12), 0.09);
        near(lt_plan_backward_work(&j).attention_s, 2.5 * flops / (rows[i].backward * 1e12), 0.15);
    }
    /* In 8 bits: 2,258 and 1,136 with heads of 128 on GB300, 2,523 and 1,540. */
    m.max_seq = 4096;
    c.stack.narrow_attention = 1;
    for (int wide = 0; wide < 2; wide++) {
        const double head_dim = wide ? 192 : 128,
                     flops = layers * heads * 4096.0 * 4096 * 2 * head_dim;
        m.head_dim = (int64_t)head_dim;
        near(lt_plan_forward_work(&j).attention_s, flops / (wide ? 2523e12 : 2258e12), 0.09);
        near(lt_plan_backward_work(&j).attention_s, 2.5 * flops / (wide ? 1540e12 : 1136e12), 0.09);
    }
    m.head_dim = 64; /* As many exponentials as with 128, and there is no kernel in 8 bits. */
    c.stack.narrow_attention = 0;
    {
        const double half = lt_plan_forward_work(&j).attention_s;
        m.head_dim = 128;
        near(half, lt_plan_forward_work(&j).attention_s, 1e-12);
    }
}

/* The logits: one product; 8 bytes per logit each way, and two products in the backward pass. */
static void head_and_embedding(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    near(lt_plan_head_work(&j, false).flops, 2 * tokens * width * vocab, 1e-12);
    near(lt_plan_head_work(&j, true).flops, 4 * tokens * width * vocab, 1e-12);
    near(lt_plan_head_work(&j, false).elementwise_s, 8 * tokens * vocab / 1000e9, 1e-12);
    near(lt_plan_head_work(&j, true).elementwise_s, 16 * tokens * vocab / 1000e9, 1e-12);
    near(lt_plan_head_work(&j, false).kernels, 1 + 4, 1e-12);
    near(lt_plan_head_work(&j, true).kernels, 2 + 4 * 1.5, 1e-12);
    assert_true(lt_plan_head_work(&j, false).tp_s == 0);
    l.tp = 8; /* Each rank has an eighth of the vocabulary; the sums of 8 ranks go over links. */
    near(lt_plan_head_work(&j, false).flops, 2 * tokens * width * vocab / 8, 1e-12);
    near(lt_plan_head_work(&j, false).tp_s, 2 * 7.0 / 8.0 * tokens * width * 2 / 100e9, 1e-9);
    l.tp = 1;
    m.mtp = 1; /* A predictor of one more token has a head, too. */
    near(lt_plan_head_work(&j, false).flops, 2 * 2 * tokens * width * vocab, 1e-12);
    near(lt_plan_embed_work(&j, false).elementwise_s, 4 * tokens * width / 1000e9, 1e-12);
    near(lt_plan_embed_work(&j, true).elementwise_s, 8 * tokens * width / 1000e9, 1e-12);
    near(lt_plan_embed_work(&j, false).kernels, 2, 1e-12);
    l.cp = 2;
    near(lt_plan_embed_work(&j, false).elementwise_s, 2 * tokens * width / 1000e9, 1e-12);
}

/* 16 experts of width 512, 4 per token, and a shared one of 256; a router in bf16. */
static void experts_are_counted(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double k = 4, experts = 16, f = 512, shared = 256;
    const double attention_flops = 2 * tokens * width *
                                       ((heads + 2 * kv_heads) * head + heads * head) +
                                   0.5 * heads * tokens * tokens * 4 * head;
    const double attention_bytes = 10 * width + 4 * (heads + kv_heads) * head;
    lt_plan_work w;
    (void)state;
    m.n_dense = 0;
    m.n_moe = 4;
    m.n_experts = 16;
    m.top_k = 4;
    m.expert_ffn_width = 512;
    w = lt_plan_forward_work(&j);
    near(w.flops,
         layers * (attention_flops + 2 * tokens * width * experts + 6 * tokens * k * width * f),
         1e-12);
    /* Norm 10 per column of the width, scores and top-k 12 per expert, copies 14 per column,
     * activations 6. */
    near(w.elementwise_s,
         layers * tokens / 1000e9 *
             (attention_bytes + 10 * width + 12 * experts + k * (14 * width + 6 * f)),
         1e-12);
    /* Attention 4, 2 and 1; norm 2, router 1 and 3.4; two grouped products of 16 experts, 0.34 of
     * each of which does not overlap; activation 1, permutation 6. */
    near(w.kernels, layers * (7 + 2 + 1 + 3.4 + 2 * (1 + 0.34 * 15) + 1 + 6), 1e-12);
    near(w.syncs, layers, 1e-12);
    /* The host launches the part of each expert, 0.12 of a kernel's time, and 11 more per
     * layer. */
    near(w.host_kernels, w.kernels + layers * (2 * 15 * 0.12 + 11), 1e-12);
    assert_true(w.ep_s == 0);
    m.shared_ffn_width = 256;
    near(lt_plan_forward_work(&j).flops - w.flops, layers * 6 * tokens * width * shared, 1e-9);
    near(lt_plan_forward_work(&j).kernels - w.kernels, layers * 3, 1e-9);
    m.shared_ffn_width = 0;
    m.latent = 256; /* Experts in a narrower space: two products into it and back. */
    near(lt_plan_forward_work(&j).flops,
         layers * (attention_flops + 2 * tokens * width * experts + 2 * 2 * tokens * width * 256 +
                   6 * tokens * k * 256 * f),
         1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes_limit_the_share_of_the_peak),
                                       cmocka_unit_test(narrow_types_have_their_peaks),
                                       cmocka_unit_test(a_thin_product_waits_for_memory),
                                       cmocka_unit_test(bytes_of_small_kernels),
                                       cmocka_unit_test(kernels_are_counted),
                                       cmocka_unit_test(attention_on_blackwell_is_as_measured),
                                       cmocka_unit_test(operations_are_counted),
                                       cmocka_unit_test(head_and_embedding),
                                       cmocka_unit_test(experts_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
