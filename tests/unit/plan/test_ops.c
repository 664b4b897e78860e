/* ops.c worked out by hand: the shapes of every block's products, the bytes of casts, latent
 * attention, Mamba-2, experts, the transfers of tensor and context parallelism, kernels of
 * attention and the work of recomputation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "unit/plan/round_model.h"

/* ---- Products by their shapes ---- */

/* The same machine with memory so fast that it never limits a matrix product. */
static lt_plan_cluster compute_bound(void) {
    lt_plan_cluster c = plain();
    c.gpu.memory_gbps = 1e9;
    return c;
}

typedef struct {
    double m, n, k;
} shape;

/* One product each in the forward pass; two in the backward pass: dy times the weights, and x
 * times dy unless they are frozen. */
static double products_s(const lt_plan_cluster *c, const shape *s, size_t n, bool backward,
                         bool frozen) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!backward) {
            sum += lt_plan_gemm_s(c, s[i].m, s[i].n, s[i].k, LT_PLAN_BF16);
        } else {
            sum += lt_plan_gemm_s(c, s[i].m, s[i].k, s[i].n, LT_PLAN_BF16);
            sum += frozen ? 0 : lt_plan_gemm_s(c, s[i].k, s[i].n, s[i].m, LT_PLAN_BF16);
        }
    }
    return sum;
}

static void products_of_a_dense_layer(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    shape whole[] = {{tokens, (heads + 2 * kv_heads) * head, width},
                     {tokens, width, heads * head},
                     {tokens, 2 * ffn, width},
                     {tokens, width, ffn}};
    /* 8 ranks: 2 heads each, and one of 4 key heads, each of which two ranks have. */
    const shape eighth[] = {{tokens, (2 + 2) * head, width},
                            {tokens, width, 2 * head},
                            {tokens, 2 * ffn / 8, width},
                            {tokens, width, ffn / 8}};
    const shape apart[] = {{tokens, heads * head, width},
                           {tokens, kv_heads * head, width},
                           {tokens, kv_heads * head, width},
                           {tokens, width, heads * head},
                           {tokens, ffn, width},
                           {tokens, ffn, width},
                           {tokens, width, ffn}};
    (void)state;
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, whole, 4, false, false), 1e-12);
    near(lt_plan_backward_work(&j).gemm_s, layers * products_s(&c, whole, 4, true, false), 1e-12);
    near(lt_plan_forward_work(&j).tp_s + lt_plan_forward_work(&j).cp_s, 0, 0);
    l.tune = LT_PLAN_TUNE_LORA;
    near(lt_plan_backward_work(&j).gemm_s, layers * products_s(&c, whole, 4, true, true), 1e-12);
    l.tune = LT_PLAN_TUNE_ALL;
    l.tp = 8;
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, eighth, 4, false, false), 1e-12);
    l.tp = 1;
    c.stack.split_products = 1;
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, apart, 7, false, false), 1e-12);
    near(lt_plan_backward_work(&j).gemm_s, layers * products_s(&c, apart, 7, true, false), 1e-12);
    c.stack.split_products = 0;
    l.pp = 2;
    l.cp = 2; /* Half of the layers, half of the tokens. */
    for (size_t i = 0; i < 4; i++) {
        whole[i].m = tokens / 2;
    }
    near(lt_plan_forward_work(&j).gemm_s, layers / 2 * products_s(&c, whole, 4, false, false),
         1e-12);
}

/* A gradient in fp32 is read, added to and written: 8 bytes; in bf16, 4. */
static void gradients_of_weights_move_bytes(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double weights = width * ((2 * heads + 2 * kv_heads) * head + 3 * ffn);
    double narrow;
    (void)state;
    c.gpu.peak_tflops[LT_PLAN_BF16] = 1e9;
    narrow = lt_plan_backward_work(&j).gemm_s;
    l.fp32_grads = true;
    near(lt_plan_backward_work(&j).gemm_s - narrow, layers * weights * 4 / 1000e9, 1e-9);
}

/* MLA with ranks 48 and 40, heads of 32 + 16 for keys and 24 for values. */
static lt_plan_model latent_attention(void) {
    lt_plan_model m = dense();
    m.q_rank = 48;
    m.kv_rank = 40;
    m.nope_dim = 32;
    m.rope_dim = 16;
    m.v_dim = 24;
    return m;
}

static void latent_attention_is_counted(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = latent_attention();
    const lt_plan_job j = {&m, &c, &l};
    shape low[] = {
        {tokens, 48, width},      {tokens, 40 + 16, width},        {tokens, width, heads * 24},
        {tokens, heads * 48, 48}, {tokens, heads * (32 + 24), 40}, {tokens, 2 * ffn, width},
        {tokens, width, ffn}};
    const shape full[] = {{tokens, heads * 48, width}, low[1], low[2], low[4], low[5], low[6]};
    const double core = 0.5 * heads * tokens * tokens * 2 * (48 + 24);
    lt_plan_work w = lt_plan_forward_work(&j);
    double flops = core;
    (void)state;
    for (size_t i = 0; i < 7; i++) {
        flops += 2 * low[i].m * low[i].n * low[i].k;
    }
    near(w.gemm_s, layers * products_s(&c, low, 7, false, false), 1e-12);
    near(w.flops, layers * flops, 1e-12);
    /* Blackwell: FlashAttention 2 reaches a fifth of the peak, with heads padded from 48 to
     * 64. */
    near(w.attention_s, layers * core / (1000e12 * 0.2 * 48 / 64), 1e-12);
    /* Norms 2 and 2, MLA's small kernels 6, activation 1; products 7; attention 1. The host
     * slices and joins the parts in the time of ten more kernels, backward of fifteen. */
    near(w.kernels, layers * (11 + 7 + 1), 1e-12);
    near(w.host_kernels, w.kernels + layers * 10, 1e-12);
    w = lt_plan_backward_work(&j);
    near(w.gemm_s, layers * products_s(&c, low, 7, true, false), 1e-12);
    near(w.kernels, layers * (11 * 1.5 + 14 + 1), 1e-12);
    near(w.host_kernels, w.kernels + layers * 15, 1e-12);
    c.stack.graph = LT_PLAN_PART_ATTENTION; /* The host launches only the feed-forward part. */
    near(lt_plan_forward_work(&j).host_kernels, layers * (2 + 2 + 1), 1e-12);
    c.stack.graph = LT_PLAN_PART_DENSE;
    near(lt_plan_forward_work(&j).host_kernels, layers * (2 + 6 + 5 + 1 + 10), 1e-12);
    c.stack.graph = 0;
    c.gpu.memory_gbps = 1000;
    near(lt_plan_forward_work(&j).elementwise_s,
         layers * tokens / 1000e9 * (20 * width + 4 * (48 + 40) + 8 * heads * 48 + 6 * ffn), 1e-12);
    m.q_rank = 0; /* Queries come from the full width. */
    c.gpu.memory_gbps = 1e9;
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, full, 6, false, false), 1e-12);
    near(lt_plan_forward_work(&j).kernels, layers * (11 + 6 + 1), 1e-12);
    m.q_rank = 48;
    m.max_seq = 2100; /* Rows that are not a multiple of a tile. */
    for (size_t i = 0; i < 7; i++) {
        low[i].m = 2100;
    }
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, low, 7, false, false), 1e-12);
}

/* Mamba-2: 32 heads of 16, a state of 8 in 4 groups. */
static void mamba_is_counted(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double d = 512, bc = 2 * 4 * 8;
    const shape s[] = {{tokens, 2 * d + bc + 32, width}, {tokens, width, d}},
                half[] = {{tokens, d + bc / 2 + 16, width}, {tokens, width, d / 2}};
    /* Chunks of 128: scores and outputs with state and head; states in and out. */
    const double scan = tokens * 32 * (2 * 128 * (8 + 16) + 4 * 8 * 16);
    lt_plan_work w;
    (void)state;
    m.n_attn = m.n_dense = 0;
    m.n_mamba = 4;
    m.mamba_heads = 32;
    m.mamba_dim = 16;
    m.mamba_state = 8;
    m.mamba_groups = 4;
    w = lt_plan_forward_work(&j);
    near(w.gemm_s, layers * products_s(&c, s, 2, false, false), 1e-12);
    near(w.attention_s, layers * scan / (1000e12 * 0.0225), 1e-12);
    near(w.flops, layers * (scan + 2 * tokens * width * (3 * d + bc + 32)), 1e-12);
    near(w.kernels, layers * (2 + 2 + 6), 1e-12);
    near(w.host_kernels, w.kernels, 1e-12);
    w = lt_plan_backward_work(&j);
    near(w.attention_s, 2.5 * layers * scan / (1000e12 * 0.0225), 1e-12);
    near(w.flops, 2 * layers * (scan + 2 * tokens * width * (3 * d + bc + 32)), 1e-12);
    c.stack.graph = LT_PLAN_PART_MAMBA;
    assert_true(lt_plan_forward_work(&j).host_kernels == 0);
    c.gpu.memory_gbps = 1000;
    near(lt_plan_forward_work(&j).elementwise_s,
         layers * tokens / 1000e9 * (10 * width + 4 * (d + bc) + 16 * d + 4 * bc), 1e-12);
    l.tp = 2;
    near(lt_plan_forward_work(&j).elementwise_s,
         layers * tokens / 1000e9 * (10 * width + (4 * (d + bc) + 16 * d + 4 * bc) / 2), 1e-12);
    l.sp = true; /* The norm has half of the tokens, too. */
    near(lt_plan_forward_work(&j).elementwise_s,
         layers * tokens / 1000e9 * (10 * width + 4 * (d + bc) + 16 * d + 4 * bc) / 2, 1e-12);
    c.gpu.memory_gbps = 1e9;
    near(lt_plan_forward_work(&j).gemm_s, layers * products_s(&c, half, 2, false, false), 1e-12);
    near(lt_plan_forward_work(&j).attention_s, layers * scan / 2 / (1000e12 * 0.0225), 1e-12);
}

/* ---- Casts ---- */

/* Casting takes this many bytes per element of x in the forward pass, of dy in the backward pass:
 * columns w, h d, w and f, or the outputs of the four products. */
static void casts_move_bytes(void **state) {
    static const struct {
        lt_plan_precision p;
        double bytes;
    } rows[] = {{LT_PLAN_FP32, 0},    {LT_PLAN_BF16, 0},    {LT_PLAN_FP8, 5},
                {LT_PLAN_MXFP8, 4.1}, {LT_PLAN_NVFP4, 5.8}, {LT_PLAN_FP8ROW, 6}};
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    const lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double in = 2 * width + heads * head + ffn,
                 out = (heads + 2 * kv_heads) * head + 2 * width + 2 * ffn;
    const lt_plan_work f = lt_plan_forward_work(&j), b = lt_plan_backward_work(&j);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double s = rows[i].bytes * layers * tokens / 1000e9, n = rows[i].bytes > 0 ? 4 : 0;
        l.precision = rows[i].p;
        near(lt_plan_forward_work(&j).elementwise_s, f.elementwise_s + s * in, 1e-12);
        near(lt_plan_backward_work(&j).elementwise_s, b.elementwise_s + s * out, 1e-12);
        near(lt_plan_forward_work(&j).kernels, f.kernels + layers * n, 1e-12);
        near(lt_plan_backward_work(&j).kernels, b.kernels + layers * n, 1e-12);
    }
    l.precision = LT_PLAN_FP8;
    c.stack.split_products = 1; /* In the forward pass the parts share one cast of x. */
    near(lt_plan_forward_work(&j).elementwise_s,
         f.elementwise_s + 5 * layers * tokens / 1000e9 * in, 1e-12);
    c.stack.split_products = 0;
    c.stack.wide_attention = 1; /* The products of attention stay in bf16. */
    near(lt_plan_forward_work(&j).elementwise_s,
         f.elementwise_s + 5 * layers * tokens / 1000e9 * (width + ffn), 1e-12);
    c.stack.wide_attention = 0;
    c.stack.wide_layers = 1; /* One of four layers stays in bf16. */
    near(lt_plan_forward_work(&j).elementwise_s, f.elementwise_s + 5 * 3 * tokens / 1000e9 * in,
         1e-12);
    l.precision = LT_PLAN_BF16;
    near(lt_plan_forward_work(&j).kernels, f.kernels, 1e-12);
}

/* Layers that stay in bf16 have products in bf16, here with 2,100 rows, which are padded
 * differently as rows and as columns. */
static void wide_layers_have_their_shapes(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    double bf16, fp8;
    (void)state;
    m.max_seq = 2100;
    bf16 = lt_plan_forward_work(&j).gemm_s;
    l.precision = LT_PLAN_FP8;
    fp8 = lt_plan_forward_work(&j).gemm_s;
    assert_true(fp8 < 0.6 * bf16);
    c.stack.wide_layers = 1;
    near(lt_plan_forward_work(&j).gemm_s, 0.75 * fp8 + 0.25 * bf16, 1e-12);
    c.stack.wide_layers = 9;
    near(lt_plan_forward_work(&j).gemm_s, bf16, 1e-12);
}

/* With 8 ranks that gather what is already cast, a rank casts an eighth (5 bytes), and makes the
 * transposed copy of the seven eighths that arrive (2 bytes): x of q, k, v and of up and gate in
 * the forward pass, dy of the other two in the backward pass. */
static void gathered_inputs_are_cast_before(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout(), wide = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l}, j0 = {&m, &c, &wide};
    const double gathered = 5.0 / 8 + 2 * 7.0 / 8, s = layers * tokens / 1000e9;
    (void)state;
    c.stack.quantised_gather = 1;
    l.tp = wide.tp = 8;
    l.sp = wide.sp = true;
    l.precision = LT_PLAN_FP8;
    near(lt_plan_forward_work(&j).elementwise_s - lt_plan_forward_work(&j0).elementwise_s,
         s * (gathered * 2 * width + 5 * (2 * head + ffn / 8)), 1e-9);
    near(lt_plan_backward_work(&j).elementwise_s - lt_plan_backward_work(&j0).elementwise_s,
         s * (gathered * 2 * width + 5 * (4 * head + 2 * ffn / 8)), 1e-9);
    l.precision = LT_PLAN_FP8ROW; /* With a scale per row it cannot be cast before. */
    near(lt_plan_forward_work(&j).elementwise_s - lt_plan_forward_work(&j0).elementwise_s,
         6 * s * (2 * width + 2 * head + ffn / 8), 1e-9);
    l.precision = LT_PLAN_FP8;
    l.sp = wide.sp = false; /* Nothing is gathered. */
    near(lt_plan_forward_work(&j).elementwise_s - lt_plan_forward_work(&j0).elementwise_s,
         5 * s * (2 * width + 2 * head + ffn / 8), 1e-9);
    l.sp = wide.sp = true;
    /* Two dense layers, two with experts in a narrower space. Nothing of the experts is split or
     * gathered, so their products, and those into the space and back, cast everything. */
    m.n_dense = m.n_moe = 2;
    m.n_experts = 16;
    m.top_k = 4;
    m.expert_ffn_width = 512;
    m.latent = 256;
    near(lt_plan_backward_work(&j).elementwise_s - lt_plan_backward_work(&j0).elementwise_s,
         s * (gathered * width + 5 * 4 * head) + s / 2 * (gathered * width + 5 * 2 * ffn / 8) +
             5 * s / 2 / 8 * (256 + width + 4 * (2 * 512 + 256)),
         1e-9);
    near(lt_plan_forward_work(&j).elementwise_s - lt_plan_forward_work(&j0).elementwise_s,
         s * (gathered * width + 5 * 2 * head) + s / 2 * (gathered * width + 5 * ffn / 8) +
             5 * s / 2 / 8 * (width + 256 + 4 * (256 + 512)),
         1e-9);
    m.n_dense = 0;
    m.n_moe = 4;
    near(lt_plan_backward_work(&j).elementwise_s - lt_plan_backward_work(&j0).elementwise_s,
         s * (gathered * width + 5 * 4 * head) + 5 * s / 8 * (256 + width + 4 * (2 * 512 + 256)),
         1e-9);
}

/* ---- Experts ---- */

static lt_plan_model routed(void) {
    lt_plan_model m = dense();
    m.n_dense = 0;
    m.n_moe = 4;
    m.n_experts = 16;
    m.top_k = 4;
    m.expert_ffn_width = 512;
    return m;
}

/* 16 experts as one grouped product: 512 rows each, 64 tiles of 128 x 64 for 1,024 columns. */
static void grouped_products_fill_waves_together(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = routed();
    const lt_plan_job j = {&m, &c, &l};
    const shape rest[] = {{tokens, (heads + 2 * kv_heads) * head, width},
                          {tokens, width, heads * head},
                          {tokens, 16, width}};
    const double up = 16 * 2.0 * 512 * 1024 * 1024 /
                      (1000e12 * (1 - 0.333 * (1 - 10.24 / 11)) * 1024 / (1024 + 128)),
                 down = 16 * 2.0 * 512 * 1024 * 512 /
                        (1000e12 * (1 - 0.333 * (1 - 10.24 / 11)) * 512 / (512 + 128));
    (void)state;
    near(lt_plan_forward_work(&j).gemm_s,
         layers * (products_s(&c, rest, 3, false, false) + up + down), 1e-12);
    m.mtp = 1; /* One more block. */
    near(lt_plan_forward_work(&j).gemm_s, 5 * (products_s(&c, rest, 3, false, false) + up + down),
         1e-12);
}

/* Blackwell's fused kernel in mxfp8: no casts before grouped products, 0.55 of the traffic of
 * copies, two kernels around it, and a host that need not know the counts. */
static void a_fused_kernel_takes_the_experts(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = routed();
    const lt_plan_job j = {&m, &c, &l};
    const double attention = 10 * width + 4 * (heads + kv_heads) * head +
                             4.1 * (width + heads * head),
                 route = 10 * width + 12 * 16, s = layers * tokens / 1000e9;
    lt_plan_work w;
    (void)state;
    l.precision = LT_PLAN_MXFP8;
    near(lt_plan_forward_work(&j).elementwise_s,
         s * (attention + route + 4 * (14 * width + 6 * 512 + 4.1 * (width + 512))), 1e-12);
    c.stack.moe_fused = 1;
    w = lt_plan_forward_work(&j);
    near(w.elementwise_s, s * (attention + route + 4 * (0.55 * 14 * width + 6 * 512)), 1e-12);
    /* Attention 7 and 2 casts; norm 2, router 1 and 3.4; products 2, activation 1, copies 2. */
    near(w.kernels, layers * (7 + 2 + 2 + 1 + 3.4 + 2 + 1 + 2), 1e-12);
    near(w.host_kernels, w.kernels, 1e-12);
    assert_true(w.syncs == 0);
    m.unfused_act = true; /* An early release has no kernel for such an activation: 10 kernels. */
    near(lt_plan_forward_work(&j).syncs, layers, 1e-12);
    near(lt_plan_forward_work(&j).elementwise_s,
         s * (attention + route + 4 * (14 * width + 74 * 512 + 4.1 * (width + 512))), 1e-12);
    c.stack.moe_fused = 2;
    near(lt_plan_forward_work(&j).elementwise_s,
         s * (attention + route + 4 * 0.55 * (14 * width + 74 * 512)), 1e-12);
    near(lt_plan_forward_work(&j).kernels, layers * (7 + 2 + 2 + 1 + 3.4 + 2 + 10 + 2), 1e-12);
    m.n_mamba = 1; /* Not in hybrid models, */
    near(lt_plan_forward_work(&j).syncs, layers, 1e-12);
    m.n_mamba = 0;
    l.precision = LT_PLAN_FP8; /* nor in other types, */
    near(lt_plan_forward_work(&j).syncs, layers, 1e-12);
    l.precision = LT_PLAN_MXFP8;
    c.gpu.peak_tflops[LT_PLAN_NVFP4] = 0; /* nor before Blackwell. */
    near(lt_plan_forward_work(&j).syncs, layers, 1e-12);
}

/* When the GPU has nothing left, the host launches what follows the counts: per layer 2 (1 + 0.34
 * x 15) + 2 x 15 x 0.12 + 1 + 6 + 11 times the time of a kernel; what the GPU computes meanwhile
 * is not lost. */
static void the_host_launches_experts_late(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = routed();
    const lt_plan_job j = {&m, &c, &l};
    const double behind = 2 * (1 + 0.34 * 15) + 2 * 15 * 0.12 + 1 + 6 + 11;
    lt_plan_work w;
    (void)state;
    c.gpu.peak_tflops[LT_PLAN_BF16] = 1e12;
    c.gpu.memory_gbps = 1e15;
    c.stack.host_us = 1000;
    w = lt_plan_forward_work(&j);
    near(w.stall_s, layers * behind * 1e-3, 1e-6);
    /* Here all launches together take longer, and each wait costs a round trip of 60 us. */
    near(w.launch_s, layers * 60e-6 + w.host_kernels * 1e-3, 1e-6);
    assert_true(lt_plan_backward_work(&j).stall_s == 0);
    near(lt_plan_backward_work(&j).syncs, layers, 1e-12);
    c.stack.launch_blocking = 1; /* The two take turns (step.c). */
    assert_true(lt_plan_forward_work(&j).launch_s == 0);
    c.stack.launch_blocking = 0;
    /* 2 experts per rank: one more launch of each product; meanwhile the copies are sent. */
    l.ep = 8;
    w = lt_plan_forward_work(&j);
    near(w.stall_s, layers * (2 * (1 + 0.34) + 2 * 0.12 + 1 + 6 + 11) * 1e-3 - w.ep_s, 1e-6);
    assert_true(w.ep_s > 0);
    c.stack.graph = LT_PLAN_PART_ALL;
    assert_true(lt_plan_forward_work(&j).syncs == 0 && lt_plan_forward_work(&j).stall_s == 0);
}

/* ---- Communication ---- */

/* A gather and a sum around attention and around the feed-forward part. Experts are not split,
 * and need none of their own, unless one is shared or the sequence is not scattered. */
static void tensor_parallel_blocks(void **state) {
    static const struct {
        bool moe, shared, sp;
        double blocks;
    } rows[] = {{false, false, true, 2}, {false, false, false, 2}, {true, false, true, 1},
                {true, true, true, 2},   {true, false, false, 2},  {true, true, false, 2}};
    const lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    const double half = 7.0 / 8 * tokens * width * 2 / 100e9;
    (void)state;
    l.tp = 8;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_plan_model m = rows[i].moe ? routed() : dense();
        const lt_plan_job j = {&m, &c, &l};
        m.shared_ffn_width = rows[i].shared ? 256 : 0;
        l.sp = rows[i].sp;
        near(lt_plan_forward_work(&j).tp_s, layers * rows[i].blocks * 2 * half, 1e-9);
        near(lt_plan_forward_work(&j).tp_gather_s, layers * rows[i].blocks * half, 1e-9);
    }
}

/* The ranks of a sequence gather keys and values, 2 bytes each; in the backward pass their
 * gradients are summed as well. MLA gathers those of all heads. */
static void context_parallel_bytes(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const double kv = tokens * 2 * 2 * kv_heads * head;
    const double causal = 0.5 * heads * tokens * tokens * 4 * head;
    const double flops = 2 * tokens * width * ((2 * heads + 2 * kv_heads) * head + 3 * ffn);
    (void)state;
    l.cp = 8;
    near(lt_plan_forward_work(&j).cp_s, layers * 7 / 8 * kv / 100e9, 1e-9);
    near(lt_plan_backward_work(&j).cp_s, layers * 2 * 7 / 8 * kv / 100e9, 1e-9);
    l.cp = 4;
    l.tp = 2; /* Each rank has half of the key heads. */
    near(lt_plan_forward_work(&j).cp_s, layers * 3 / 4 * kv / 2 / 100e9, 1e-9);
    m = latent_attention();
    near(lt_plan_forward_work(&j).cp_s,
         layers * 3 / 4 * tokens * 2 * heads * (32 + 16 + 24) / 2 / 100e9, 1e-9);
    l.tp = 1;
    m = dense();
    near(lt_plan_forward_work(&j).flops, layers * (flops + causal) / 4, 1e-12);
    c.stack.cp_balance = 0; /* Under the mask the last of four ranks has 7/4 of the mean. */
    near(lt_plan_forward_work(&j).flops, layers * (flops + 1.75 * causal) / 4, 1e-12);
    c.stack.attention = LT_PLAN_ATTENTION_UNFUSED; /* It does not use the mask. */
    near(lt_plan_forward_work(&j).flops, layers * (flops + 2 * causal) / 4, 1e-12);
}

/* ---- Kernels of attention ---- */

/* The share of the bf16 peak on Ampere, Hopper and Blackwell (chips without 8 bits, without 4
 * bits, with both), and the head size with which a kernel computes. */
static void attention_kernels(void **state) {
    static const struct {
        lt_plan_attention kernel;
        double shares[3];
        struct {
            int64_t size;
            double padded;
        } heads[10];
    } rows[] = {
        {LT_PLAN_ATTENTION_FLASH1,
         {0.37, 0.20, 0.12},
         {{8, 16},
          {16, 16},
          {17, 32},
          {32, 32},
          {48, 64},
          {64, 64},
          {80, 128},
          {128, 128},
          {160, 160}}},
        {LT_PLAN_ATTENTION_FLASH2,
         {0.62, 0.40, 0.20},
         {{16, 32},
          {64, 64},
          {80, 96},
          {96, 96},
          {100, 128},
          {160, 160},
          {192, 192},
          {224, 224},
          {256, 256},
          {288, 288}}},
        {LT_PLAN_ATTENTION_FLASH3, /* On Blackwell: attention_on_blackwell_is_as_measured. */
         {0.62, 0.60, 0},
         {{32, 64},
          {64, 64},
          {80, 96},
          {96, 96},
          {128, 128},
          {160, 192},
          {192, 192},
          {224, 256},
          {256, 256}}},
        /* Plain products; rows of 12 bytes and 2 more leave the fast path. */
        {LT_PLAN_ATTENTION_UNFUSED, {0.60, 0.45, 0.40}, {{64, 64}, {8, 8}, {7, 14}, {4, 8}}}};
    lt_plan_cluster c = compute_bound();
    const lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    c.gpu.memory_gbps = 1e15;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double pairs = (rows[i].kernel == LT_PLAN_ATTENTION_UNFUSED ? 1 : 0.5) * heads *
                             tokens * tokens,
                     back = rows[i].kernel == LT_PLAN_ATTENTION_UNFUSED ? 2 : 2.5;
        c.stack.attention = rows[i].kernel;
        for (int chip = 0; chip < 3; chip++) {
            c.gpu.peak_tflops[LT_PLAN_FP8] = chip > 0 ? 2000 : 0;
            c.gpu.peak_tflops[LT_PLAN_NVFP4] = chip > 1 ? 4000 : 0;
            for (int h = 0; h < 10 && rows[i].heads[h].size > 0 && rows[i].shares[chip] > 0; h++) {
                const double s = layers * pairs * 4 * rows[i].heads[h].padded /
                                 (1000e12 * rows[i].shares[chip]);
                m.head_dim = rows[i].heads[h].size;
                near(lt_plan_forward_work(&j).attention_s, s, 1e-6);
                near(lt_plan_backward_work(&j).attention_s, s * back / 0.8, 1e-6);
            }
        }
    }
    /* Scores, softmax and dropout of plain products go through memory: 11 and 15 bytes per
     * pair. */
    m.head_dim = 64;
    c.gpu.memory_gbps = 1000;
    c.gpu.peak_tflops[LT_PLAN_BF16] = 1e12;
    near(lt_plan_forward_work(&j).attention_s, layers * heads * tokens * tokens * 11 / 1000e9,
         1e-6);
    near(lt_plan_backward_work(&j).attention_s, layers * heads * tokens * tokens * 15 / 1000e9,
         1e-6);
}

/* ---- Recomputation ---- */

static void modules_that_are_recomputed(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    lt_plan_model m = latent_attention();
    const lt_plan_job j = {&m, &c, &l};
    const shape up[] = {{tokens, heads * 48, 48}, {tokens, heads * (32 + 24), 40}};
    const shape wide[] = {{tokens, 2 * ffn, width}, {tokens, width, ffn}};
    const shape shared[] = {{tokens, 2 * 256, width}, {tokens, width, 256}};
    lt_plan_work w;
    (void)state;
    w = lt_plan_recompute_work(&j); /* No module. */
    assert_true(w.gemm_s == 0 && w.elementwise_s == 0 && w.attention_s == 0 && w.kernels == 0);
    l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
    l.again = LT_PLAN_AGAIN_MLA_UP;
    w = lt_plan_recompute_work(&j);
    near(w.gemm_s, layers * products_s(&c, up, 2, false, false), 1e-12);
    near(w.kernels, layers * (2 + 6), 1e-12);
    l.again = LT_PLAN_AGAIN_CORE;
    w = lt_plan_recompute_work(&j);
    near(w.attention_s, lt_plan_forward_work(&j).attention_s, 1e-12);
    near(w.flops, layers * heads * tokens * tokens * (48 + 24), 1e-12);
    near(w.kernels, layers, 1e-12);
    m.kv_rank = 1; /* The sizes of heads stay those of MLA. */
    near(lt_plan_recompute_work(&j).flops, w.flops, 1e-12);
    l.again = LT_PLAN_AGAIN_DENSE;
    w = lt_plan_recompute_work(&j);
    near(w.gemm_s, layers * products_s(&c, wide, 2, false, false), 1e-12);
    near(w.kernels, layers * 3, 1e-12);
    l.tp = 2;
    near(lt_plan_recompute_work(&j).flops, layers * 6 * tokens * width * ffn / 2, 1e-12);
    l.tp = 1;
    m = dense(); /* It has no latent vectors. */
    l.again = LT_PLAN_AGAIN_MLA_UP | LT_PLAN_AGAIN_MOE | LT_PLAN_AGAIN_SHARED;
    assert_true(lt_plan_recompute_work(&j).kernels == 0);
    m = routed();
    l.again = LT_PLAN_AGAIN_SHARED | LT_PLAN_AGAIN_DENSE; /* It has neither. */
    assert_true(lt_plan_recompute_work(&j).kernels == 0);
    m.shared_ffn_width = 256;
    near(lt_plan_recompute_work(&j).gemm_s, layers * products_s(&c, shared, 2, false, false),
         1e-12);
    l.again = LT_PLAN_AGAIN_MOE; /* Router, experts, shared expert. */
    near(lt_plan_recompute_work(&j).flops,
         layers * 2 * tokens * width * (16 + 3 * 4 * 512 + 3 * 256), 1e-12);
    m.mtp = 1;
    near(lt_plan_recompute_work(&j).flops,
         (layers + 1) * 2 * tokens * width * (16 + 3 * 4 * 512 + 3 * 256), 1e-12);
    m.mtp = 0;
    l.again = LT_PLAN_AGAIN_MOE_ACT;
    c.gpu.memory_gbps = 1000;
    near(lt_plan_recompute_work(&j).elementwise_s, layers * tokens * 4 * 6 * 512 / 1000e9, 1e-12);
    l.tp = 2; /* Tokens are sent from the scattered sequence. */
    near(lt_plan_recompute_work(&j).elementwise_s, layers * tokens / 2 * 4 * 6 * 512 / 1000e9,
         1e-12);
    l.again = LT_PLAN_AGAIN_NORM; /* Two norms per layer, 2 bytes in and out. */
    near(lt_plan_recompute_work(&j).elementwise_s, layers * 2 * tokens * 4 * width / 1000e9, 1e-12);
    l.sp = true;
    near(lt_plan_recompute_work(&j).elementwise_s, layers * tokens * 4 * width / 1000e9, 1e-12);
    c.stack.launch_us = 1;
    near(lt_plan_recompute_work(&j).launch_s, layers * 2e-6, 1e-12);
}

/* A module that a CUDA graph holds needs no launch by the host when it is recomputed, either. */
static void graphs_hold_recomputed_modules(void **state) {
    static const struct {
        unsigned again, graph;
        int kind; /* 0: dense, 1: routed, 2: latent attention. */
        double left;
    } rows[] = {{LT_PLAN_AGAIN_CORE, LT_PLAN_PART_ATTENTION, 0, 0},
                {LT_PLAN_AGAIN_CORE, LT_PLAN_PART_DENSE, 0, 4},
                {LT_PLAN_AGAIN_DENSE, LT_PLAN_PART_DENSE, 0, 0},
                {LT_PLAN_AGAIN_DENSE, LT_PLAN_PART_ATTENTION, 0, 4 * 3},
                /* The other norm of a layer. */
                {LT_PLAN_AGAIN_NORM, LT_PLAN_PART_ATTENTION, 0, 4},
                {LT_PLAN_AGAIN_NORM, LT_PLAN_PART_ATTENTION | LT_PLAN_PART_ROUTER, 1, 0},
                {LT_PLAN_AGAIN_MLA_UP, LT_PLAN_PART_ATTENTION, 2, 0},
                {LT_PLAN_AGAIN_MLA_UP, LT_PLAN_PART_ROUTER, 2, 4 * (2 + 6 + 10)},
                {LT_PLAN_AGAIN_MOE_ACT, LT_PLAN_PART_ROUTER, 1, 4},
                {LT_PLAN_AGAIN_MOE_ACT, LT_PLAN_PART_ALL, 1, 0}};
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    (void)state;
    l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_plan_model m = rows[i].kind == 0   ? dense()
                                : rows[i].kind == 1 ? routed()
                                                    : latent_attention();
        const lt_plan_job j = {&m, &c, &l};
        l.again = rows[i].again;
        c.stack.graph = rows[i].graph;
        near(lt_plan_recompute_work(&j).host_kernels, rows[i].left, 1e-12);
        assert_true(lt_plan_recompute_work(&j).kernels > 0);
    }
}

/* If recomputation stops early, the last product of a block and the sum that follows it do not
 * run again: w (2 h + 2 g + 2 f) of w (2 h + 2 g + 3 f), and of two gathers and two sums one sum
 * less. */
static void recomputation_stops_before_the_last_product(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    const lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work all, w;
    (void)state;
    l.recompute = LT_PLAN_RECOMPUTE_FULL;
    all = lt_plan_recompute_work(&j);
    c.stack.early_stop = 1;
    w = lt_plan_recompute_work(&j);
    near(all.flops - w.flops, layers * 2 * tokens * width * ffn, 1e-12);
    near(all.gemm_s - w.gemm_s,
         layers * products_s(&c, (const shape[]){{tokens, width, ffn}}, 1, false, false), 1e-9);
    near(all.kernels - w.kernels, layers, 1e-12);
    near(w.attention_s, all.attention_s, 1e-12);
    l.tp = 4;
    l.sp = true;
    w = lt_plan_recompute_work(&j);
    c.stack.early_stop = 0;
    near(w.tp_s, lt_plan_recompute_work(&j).tp_s * 3 / 4, 1e-12);
}

/* If no module is named: norms and activations, 0.6 of the time of small kernels, or, if the
 * scores go through memory, attention. */
static void the_default_of_selective_recomputation(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work w, f = lt_plan_forward_work(&j);
    (void)state;
    l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
    w = lt_plan_recompute_work(&j);
    near(w.elementwise_s, 0.6 * f.elementwise_s, 1e-12);
    assert_true(w.gemm_s == 0 && w.attention_s == 0 && w.tp_s == 0);
    c.stack.op_selective = 1; /* k, o and w3: 256 + 1024 + 4096 of 2 (256 + 1024) + 3 x 4096. */
    near(lt_plan_recompute_work(&j).gemm_s, f.gemm_s * 5376 / 14848, 1e-12);
    m.n_dense = 3; /* Only if all layers are dense. */
    assert_true(lt_plan_recompute_work(&j).gemm_s == 0);
    m.n_dense = 4;
    c.stack.attention = LT_PLAN_ATTENTION_UNFUSED;
    w = lt_plan_recompute_work(&j);
    near(w.attention_s, lt_plan_forward_work(&j).attention_s, 1e-12);
    assert_true(w.elementwise_s == 0);
}

/* Layers that are computed again repeat their share of the forward pass. */
static void a_share_of_the_layers_is_recomputed(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_layout l = layout();
    lt_plan_model m = routed();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work f, w;
    (void)state;
    c.stack.host_us = 100;
    c.stack.launch_us = 2;
    l.cp = l.tp = 2;
    l.ep = 4;
    f = lt_plan_forward_work(&j);
    l.recompute = LT_PLAN_RECOMPUTE_FULL;
    w = lt_plan_recompute_work(&j);
    assert_memory_equal(&w, &f, sizeof w);
    l.again_layers = 9; /* More than there are. */
    w = lt_plan_recompute_work(&j);
    near(w.launch_s, f.launch_s, 1e-12);
    near(w.flops, f.flops, 1e-12);
    l.again_layers = 1;
    w = lt_plan_recompute_work(&j);
    {
        const double got[] = {w.gemm_s,  w.attention_s,  w.elementwise_s, w.launch_s,
                              w.tp_s,    w.cp_s,         w.ep_s,          w.flops,
                              w.kernels, w.host_kernels, w.syncs,         w.stall_s};
        const double all[] = {f.gemm_s,  f.attention_s,  f.elementwise_s, f.launch_s,
                              f.tp_s,    f.cp_s,         f.ep_s,          f.flops,
                              f.kernels, f.host_kernels, f.syncs,         f.stall_s};
        for (size_t i = 0; i < sizeof got / sizeof *got; i++) {
            assert_true(all[i] > 0);
            near(got[i], all[i] / 4, 1e-12);
        }
    }
}

/* The logits stay in bf16 in every recipe; in fp32 they are wider. */
static void the_head_stays_wide(void **state) {
    lt_plan_cluster c = compute_bound();
    lt_plan_layout l = layout();
    const lt_plan_model m = dense();
    const lt_plan_job j = {&m, &c, &l};
    const shape s = {tokens, vocab, width};
    (void)state;
    for (int p = 0; p < LT_PLAN_PRECISION_COUNT; p++) {
        l.precision = (lt_plan_precision)p;
        near(lt_plan_head_work(&j, false).gemm_s,
             (p == LT_PLAN_FP32 ? 2 : 1) * products_s(&c, &s, 1, false, false), 1e-12);
        near(lt_plan_head_work(&j, true).gemm_s,
             (p == LT_PLAN_FP32 ? 2 : 1) * products_s(&c, &s, 1, true, false), 1e-12);
    }
    l.cp = 2;
    near(lt_plan_head_work(&j, false).flops, tokens * width * vocab, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_a_dense_layer),
        cmocka_unit_test(gradients_of_weights_move_bytes),
        cmocka_unit_test(latent_attention_is_counted),
        cmocka_unit_test(mamba_is_counted),
        cmocka_unit_test(casts_move_bytes),
        cmocka_unit_test(wide_layers_have_their_shapes),
        cmocka_unit_test(gathered_inputs_are_cast_before),
        cmocka_unit_test(grouped_products_fill_waves_together),
        cmocka_unit_test(a_fused_kernel_takes_the_experts),
        cmocka_unit_test(the_host_launches_experts_late),
        cmocka_unit_test(tensor_parallel_blocks),
        cmocka_unit_test(context_parallel_bytes),
        cmocka_unit_test(attention_kernels),
        cmocka_unit_test(modules_that_are_recomputed),
        cmocka_unit_test(graphs_hold_recomputed_modules),
        cmocka_unit_test(recomputation_stops_before_the_last_product),
        cmocka_unit_test(the_default_of_selective_recomputation),
        cmocka_unit_test(a_share_of_the_layers_is_recomputed),
        cmocka_unit_test(the_head_stays_wide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
