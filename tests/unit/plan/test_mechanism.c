/* The planner's mechanisms against numbers worked out by hand: the bytes of a routed token, the
 * exposed communication of tensor parallelism, products in 8 bits, the time lost to slow
 * launches, the work that recomputation repeats, and the reading of rows that do not state
 * these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/points.h"
#include "unit/plan/round.h"

/* 32 layers of width 4096, 32 heads of 128 and 8 key heads, gated feed-forward of 14336: Llama 3
 * 8B. */
static lt_plan_model llama3_8b(void) {
    return (lt_plan_model){.name = "dense",
                           .n_layers = 32,
                           .width = 4096,
                           .n_heads = 32,
                           .n_kv_heads = 8,
                           .head_dim = 128,
                           .ffn_width = 14336,
                           .vocab_size = 128256,
                           .max_seq = 8192,
                           .n_attn = 32,
                           .n_dense = 32,
                           .gated = true};
}

/* Eight ranks that divide the optimiser's state, with four micro-batches each. */
static lt_plan_layout sharded(void) {
    lt_plan_layout l = layout();
    l.dp = 8;
    l.accum = 4;
    l.zero = 1;
    return l;
}

static const double tokens = 8192, layers = 32, width = 4096;

/* ---- Experts ---- */

/* 64 ranks on 8 nodes, 1 GB of tokens per rank, 8 experts per token. */
static void a_token_crosses_to_a_node_once(void **state) {
    const lt_plan_cluster c = plain();
    /* The probability that a node holds one of the 8 experts: 0.656. */
    const double hit = 1.0 - pow(7.0 / 8.0, 8);
    (void)state;
    /* 7 other nodes, each of which is reached with that probability, over a NIC of 10 GB/s. */
    near(lt_plan_dispatch_s(&c, 1e9, 8, 0, 0, 64, 1), 7.0 * hit / 10.0, 1e-9);
    near(7.0 * hit / 10.0, 0.459474, 1e-5);
    /* Otherwise each of the 8 copies is sent, 7 of 8 to another node. */
    near(lt_plan_collective_s(&c, LT_PLAN_ALL_TO_ALL, 8e9, 64, 1), 8.0 * 7.0 / 8.0 / 10.0, 1e-9);
    /* On one node: 7 other GPUs over links of 100 GB/s. */
    near(lt_plan_dispatch_s(&c, 1e9, 8, 0, 0, 8, 1), 7.0 * hit / 100.0, 1e-9);
}

/* DeepSeek-V3: experts in 8 groups; those of a token come from 4 of them. A group is a node here,
 * so 4 (1 - (3/4)^8) nodes are reached, 7 of 8 remote. */
static void groups_of_experts_bound_the_nodes(void **state) {
    const lt_plan_cluster c = plain();
    const double reached = 4.0 * (1.0 - pow(0.75, 8));
    (void)state;
    near(lt_plan_dispatch_s(&c, 1e9, 8, 8, 4, 64, 1), reached * 7.0 / 8.0 / 10.0, 1e-9);
    near(reached * 7.0 / 8.0, 3.149605, 1e-6);
    /* 16 ranks on 2 nodes hold 4 groups each: 4 of 8 groups miss both with probability 4/8 3/7
     * 2/6 1/5 = 1/70. */
    {
        const double open = 2.0 * (1.0 - 1.0 / 70.0),
                     both = open * (1.0 - pow(1.0 - 1.0 / open, 8));
        near(lt_plan_dispatch_s(&c, 1e9, 8, 8, 4, 16, 1), both / 2.0 / 10.0, 1e-9);
    }
}

static lt_plan_model routed(void) {
    lt_plan_model m = llama3_8b();
    m.n_dense = 0;
    m.n_moe = 32;
    m.n_experts = 64;
    m.top_k = 8;
    m.expert_ffn_width = 1024;
    return m;
}

static void expert_traffic_is_two_trips_a_layer_and_pass(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = routed();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    const double bytes = tokens * width * 2.0; /* One copy of every token. */
    (void)state;
    l.ep = l.dp = 64;
    near(lt_plan_forward_work(&j).ep_s,
         layers * 2.0 * bytes * 7.0 * (1.0 - pow(7.0 / 8.0, 8)) / 10e9, 1e-9);
    near(lt_plan_backward_work(&j).ep_s, lt_plan_forward_work(&j).ep_s, 1e-12);
    c.stack.ep_copies = 1;
    near(lt_plan_forward_work(&j).ep_s, layers * 2.0 * 8.0 * bytes * 7.0 / 8.0 / 10e9, 1e-9);
}

static void latent_experts_and_predictors_count(void **state) {
    const lt_plan_cluster c = plain();
    lt_plan_model m = routed();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    double whole;
    (void)state;
    l.ep = l.dp = 64;
    whole = lt_plan_forward_work(&j).ep_s;
    m.mtp = 1; /* One more block. */
    near(lt_plan_forward_work(&j).ep_s, whole * 33.0 / 32.0, 1e-9);
    m.mtp = 0;
    m.latent = 1024; /* A quarter of the width is sent. */
    near(lt_plan_forward_work(&j).ep_s, whole / 4.0, 1e-9);
}

/* In the forward pass the host waits for the routed counts of each layer and starts later than
 * the GPU; in the backward pass it knows them. */
static void routed_counts_are_waited_for(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = routed();
    const lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work f, b;
    (void)state;
    c.stack.host_us = 1000;
    f = lt_plan_forward_work(&j);
    b = lt_plan_backward_work(&j);
    near(f.syncs, layers, 1e-12);
    near(b.syncs, layers, 1e-12);
    assert_true(f.stall_s > 0 && b.stall_s == 0);
    /* Without launches after the counts. */
    c.stack.graph = LT_PLAN_PART_ATTENTION | LT_PLAN_PART_ROUTER;
    near(lt_plan_forward_work(&j).stall_s, f.stall_s, 1e-9);
    c.stack.graph = LT_PLAN_PART_ALL;
    f = lt_plan_forward_work(&j);
    assert_true(f.syncs == 0 && f.stall_s == 0 && f.launch_s == 0);
}

/* ---- Tensor parallelism ---- */

static void tensor_parallel_traffic(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b(), moe = routed();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l}, je = {&moe, &c, &l};
    /* A gather, or a sum, over 8 ranks. */
    const double half = 7.0 / 8.0 * tokens * width * 2.0 / 100e9;
    (void)state;
    l.tp = 8;
    l.dp = 1;
    l.sp = true;
    near(lt_plan_forward_work(&j).tp_s, layers * 2.0 * 2.0 * half, 1e-9);
    near(lt_plan_backward_work(&j).tp_s, layers * 2.0 * 2.0 * half, 1e-9);
    /* Experts are not split: only communication around attention remains. A shared expert is
     * split. */
    near(lt_plan_forward_work(&je).tp_s, layers * 2.0 * half, 1e-9);
    /* In 8 bits the gathers halve, the sums stay in bf16; with a scale per row the cast cannot
     * come before. */
    c.stack.quantised_gather = 1;
    l.precision = LT_PLAN_FP8;
    near(lt_plan_forward_work(&j).tp_s, layers * 2.0 * 1.5 * half, 1e-9);
    l.precision = LT_PLAN_FP8ROW;
    near(lt_plan_forward_work(&j).tp_s, layers * 2.0 * 2.0 * half, 1e-9);
}

/* Even a transfer that may be hidden costs a share of its time (step.c); the rest is exposed
 * completely. */
static void exposed_tensor_parallel_time(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    double whole, part, hidden_cost;
    (void)state;
    c.gpu.link_gbps = 10000; /* So fast that the products can cover it. */
    l.tp = 8;
    l.dp = 1;
    l.sp = true;
    whole = lt_plan_step_estimate(&m, &c, &l).tp_comm;
    near(whole, 4.0 * layers * 2.0 * 2.0 * 2.0 * 7.0 / 8.0 * tokens * width * 2.0 / 10000e9, 1e-9);
    c.stack.tp_overlap = 1;
    hidden_cost = lt_plan_step_estimate(&m, &c, &l).tp_comm / whole;
    /* vTrain: collectives during training run 30 % slower. */
    assert_true(hidden_cost > 0.2 && hidden_cost < 0.5);
    c.stack.tp_overlap = 0.875;
    part = lt_plan_step_estimate(&m, &c, &l).tp_comm / whole;
    near(part, 0.125 + 0.875 * hidden_cost, 1e-9);
}

/* ---- 8 and 4 bits ---- */

static void only_products_of_blocks_are_narrow(void **state) {
    const lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout wide = sharded(), narrow = sharded();
    const lt_plan_job a = {&m, &c, &wide}, b = {&m, &c, &narrow};
    /* x of the joined q k v (4096), of o (4096), of gate and up (4096), of down (14336). */
    const double cast = tokens * (3.0 * 4096 + 14336) * layers;
    double bytes, narrow_bytes;
    (void)state;
    narrow.precision = LT_PLAN_FP8;
    near(lt_plan_forward_work(&b).attention_s, lt_plan_forward_work(&a).attention_s, 1e-12);
    near(lt_plan_head_work(&b, false).gemm_s, lt_plan_head_work(&a, false).gemm_s, 1e-12);
    assert_true(lt_plan_forward_work(&b).gemm_s < 0.6 * lt_plan_forward_work(&a).gemm_s);
    assert_true(lt_plan_forward_work(&b).gemm_s > 0.5 * lt_plan_forward_work(&a).gemm_s);
    bytes = (lt_plan_forward_work(&b).elementwise_s - lt_plan_forward_work(&a).elementwise_s) *
            1000e9 / cast;
    /* A scale per tensor: read for the maximum, then read, and written in 8 bits once or twice: 2
     * + 2 + 1 to 2 + 2 + 2. */
    assert_true(bytes >= 4.9 && bytes <= 6.1);
    /* Blocks have their own maximum: read once, write both layouts and scales. */
    narrow.precision = LT_PLAN_MXFP8;
    narrow_bytes = (lt_plan_forward_work(&b).elementwise_s -
                    lt_plan_forward_work(&a).elementwise_s) *
                   1000e9 / cast;
    assert_true(narrow_bytes >= 3.9 && narrow_bytes <= 6.1);
}

static void recipes_keep_layers_wide(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    const double bf16 = lt_plan_forward_work(&j).gemm_s;
    double fp4;
    (void)state;
    l.precision = LT_PLAN_NVFP4;
    fp4 = lt_plan_forward_work(&j).gemm_s;
    assert_true(fp4 < 0.5 * bf16);
    c.stack.wide_layers = 8;
    near(lt_plan_forward_work(&j).gemm_s, 0.75 * fp4 + 0.25 * bf16, 1e-9);
    c.stack.wide_layers = 32;
    near(lt_plan_forward_work(&j).gemm_s, bf16, 1e-9);
}

static void head_sizes_pad_to_what_kernels_know(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    double at96, at85;
    (void)state;
    m.head_dim = 96;
    at96 = lt_plan_forward_work(&j).attention_s;
    m.head_dim = 85;
    at85 = lt_plan_forward_work(&j).attention_s;
    near(at85, at96, 1e-12);
    /* Plain products need no padding, but rows of 170 bytes leave the fast path. */
    c.stack.attention = LT_PLAN_ATTENTION_UNFUSED;
    c.gpu.memory_gbps = 1e9;
    m.head_dim = 88;
    at96 = lt_plan_forward_work(&j).attention_s;
    m.head_dim = 85;
    assert_true(lt_plan_forward_work(&j).attention_s > 1.5 * at96);
}

/* ---- The host ---- */

static void a_slow_host_is_waited_for(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    const lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work w;
    (void)state;
    c.stack.launch_us = 2;
    /* There is nothing to wait for, only the gaps between kernels. */
    w = lt_plan_forward_work(&j);
    near(w.launch_s, w.kernels * 2e-6, 1e-12);
    c.stack.host_us = 1e6;
    /* A second per launch: the pass takes as many seconds as it has launches. */
    w = lt_plan_forward_work(&j);
    near(w.launch_s + w.gemm_s + w.attention_s + w.elementwise_s, w.host_kernels, 1e-9);
    near(w.host_kernels, w.kernels, 1e-12);
    c.stack.graph = LT_PLAN_PART_ATTENTION;
    assert_true(lt_plan_forward_work(&j).host_kernels < 0.7 * w.host_kernels);
    c.stack.graph = LT_PLAN_PART_ALL;
    w = lt_plan_forward_work(&j);
    assert_true(w.host_kernels == 0);
    near(w.launch_s, w.kernels * 2e-6, 1e-12);
    c.stack.graph = 0;
    c.gpu.host_time = 1.5; /* A slower host. */
    w = lt_plan_forward_work(&j);
    near(w.launch_s + w.gemm_s + w.attention_s + w.elementwise_s, 1.5 * w.host_kernels, 1e-9);
}

/* ---- Recomputation ---- */

static void modules_are_recomputed(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    lt_plan_work f = lt_plan_forward_work(&j), w;
    (void)state;
    l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
    /* Two norms per layer, 2 bytes read and 2 written per element. */
    l.again = LT_PLAN_AGAIN_NORM;
    w = lt_plan_recompute_work(&j);
    near(w.elementwise_s, layers * 2.0 * 4.0 * tokens * width / 1000e9, 1e-9);
    assert_true(w.gemm_s == 0 && w.attention_s == 0);
    l.again = LT_PLAN_AGAIN_CORE;
    w = lt_plan_recompute_work(&j);
    near(w.attention_s, f.attention_s, 1e-12);
    assert_true(w.gemm_s == 0);
    l.recompute = LT_PLAN_RECOMPUTE_FULL;
    l.again = 0;
    near(lt_plan_recompute_work(&j).gemm_s, f.gemm_s, 1e-12);
    l.again_layers = 5; /* Of the 32 layers of the stage. */
    near(lt_plan_recompute_work(&j).gemm_s, f.gemm_s * 5.0 / 32.0, 1e-12);
    l.pp = 4; /* 8 layers per stage in 2 chunks of 4: 2 layers of each chunk are half. */
    l.vpp = 2;
    l.again_layers = 2;
    near(lt_plan_recompute_work(&j).gemm_s, f.gemm_s / 4.0 / 2.0, 1e-9);
}

/* A chunk of uneven stages has as many layers as the fullest: 30 layers on 4 stages of 2 chunks
 * give 4 and fewer. */
static void the_fullest_chunk_counts(void **state) {
    const lt_plan_cluster c = plain();
    lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    m.n_layers = m.n_attn = m.n_dense = 30;
    l.pp = 4;
    l.vpp = 2;
    l.recompute = LT_PLAN_RECOMPUTE_FULL;
    l.again_layers = 2;
    near(lt_plan_recompute_work(&j).gemm_s, 0.5 * lt_plan_forward_work(&j).gemm_s, 1e-9);
}

/* torchtitan keeps every other product: k, o and w3 run again, 1024 + 4096 + 14336 of 2 (4096 +
 * 1024) + 3 14336 rows; and the gathers. */
static void every_other_product_is_recomputed(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    (void)state;
    c.stack.op_selective = 1;
    l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
    near(lt_plan_recompute_work(&j).gemm_s, lt_plan_forward_work(&j).gemm_s * 19456.0 / 53248.0,
         1e-9);
    l.tp = 8;
    l.dp = 1;
    l.sp = true;
    near(lt_plan_recompute_work(&j).tp_s, 0.5 * lt_plan_forward_work(&j).tp_s, 1e-9);
}

/* ---- The rest of a step ---- */

static void attention_flops(void **state) {
    lt_plan_cluster c = plain();
    lt_plan_model m = llama3_8b();
    const lt_plan_layout l = sharded();
    const lt_plan_job j = {&m, &c, &l};
    double forward;
    (void)state;
    c.gpu.peak_tflops[LT_PLAN_NVFP4] = 0; /* Hopper: FlashAttention 2 reaches 40 % of its peak. */
    forward = layers * 32.0 * tokens * tokens / 2.0 * 4.0 * 128.0 / (1000e12 * 0.40);
    near(lt_plan_forward_work(&j).attention_s, forward, 1e-9);
    /* Five products instead of two, at four fifths of the rate. */
    near(lt_plan_backward_work(&j).attention_s, forward * 2.5 / 0.8, 1e-9);
    /* In every other layer a token sees 1024 of its 4096 keys on average. */
    m.window = 1024, m.n_windowed = m.n_attn / 2;
    near(lt_plan_forward_work(&j).attention_s, forward * (0.5 + 0.5 * 0.25), 1e-9);
}

static void sharded_state_is_gathered_and_stepped(void **state) {
    lt_plan_cluster c = plain();
    const lt_plan_model m = llama3_8b();
    lt_plan_layout l = sharded();
    const double params = lt_plan_model_params(&m).total;
    /* Reducing 2-byte gradients costs as much. */
    const double gather = params * 2.0 * 7.0 / 8.0 / 100e9;
    lt_plan_time t;
    (void)state;
    c.stack.dp_overlap = 0;
    t = lt_plan_step_estimate(&m, &c, &l); /* ZeRO-1: once per step. */
    near(t.dp_comm, 2.0 * gather, 1e-9);
    near(t.optimiser, params / 8.0 * 34.0 / 1000e9, 1e-9);
    l.precision = LT_PLAN_FP8; /* Weights in 8 bits, if the software gathers those. */
    near(lt_plan_step_estimate(&m, &c, &l).dp_comm, 2.0 * gather, 1e-9);
    c.stack.quantised_params = 1;
    near(lt_plan_step_estimate(&m, &c, &l).dp_comm, 1.5 * gather, 1e-9);
    l.precision = LT_PLAN_MXFP8; /* Blocks are cast after the gather. */
    near(lt_plan_step_estimate(&m, &c, &l).dp_comm, 2.0 * gather, 1e-9);
    l.precision = LT_PLAN_BF16;
    l.bf16_moments = true; /* Two moments read and written in 2 bytes instead of 4. */
    near(lt_plan_step_estimate(&m, &c, &l).optimiser, params / 8.0 * 26.0 / 1000e9, 1e-9);
    l.zero = 3; /* For each of 4 micro-batches, gathered twice and reduced once. */
    t = lt_plan_step_estimate(&m, &c, &l);
    near(t.dp_comm, 4.0 * 3.0 * gather, 1e-9);
    near(t.comm_total_s, 4.0 * 3.0 * gather, 1e-9);
    assert_true(t.straggler == 0); /* One node. */
    l.dp = 4;                      /* Context parallelism shards the state, too. */
    l.cp = 2;
    l.zero = 1;
    l.bf16_moments = false;
    near(lt_plan_step_estimate(&m, &c, &l).optimiser, params / 8.0 * 34.0 / 1000e9, 1e-9);
    l.cp = 1;
    l.dp = 16;
    t = lt_plan_step_estimate(&m, &c, &l);
    near(t.straggler, 0.01 * (t.step_s - t.straggler), 1e-9);
}

/* ---- Pipelines ---- */

/* Narayanan 2021: the bubble is (p - 1) / (v m) of the ideal time. */
static void the_interleaved_bubble(void **state) {
    lt_plan_pipeline p = {.stages = 8,
                          .chunks = 4,
                          .micros = 32,
                          .schedule = LT_PLAN_INTERLEAVED,
                          .forward_s = 1,
                          .backward_s = 2};
    double s = 0;
    (void)state;
    assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_OK);
    near(s / (32.0 * 3.0) - 1.0, 7.0 / (4.0 * 32.0), 1e-9);
    p.chunks = 1;
    p.schedule = LT_PLAN_ONE_F_ONE_B;
    assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_OK);
    near(s / (32.0 * 3.0) - 1.0, 7.0 / 32.0, 1e-9);
}

/* ---- Rows ---- */

static lt_point_job job_of(const char *text) {
    lt_points p;
    lt_point_job j;
    char why[LT_PLAN_TEXT_BYTES];
    assert_int_equal(lt_points_parse(&p, text, strlen(text), "t.csv"), LT_OK);
    if (!lt_point_job_make(&j, &p.rows[0], why)) {
        fail_msg("left out: %s", why);
    }
    lt_points_free(&p);
    return j;
}

#define HEAD                                                                                       \
    "id,group,model,gpu,gpus,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,tp,pp,vpp,dp,ep,"      \
    "micro_batch,global_batch_seqs,precision,tokens_s_gpu,tflops_gpu,mfu_pct,hfu_pct,source,"      \
    "note\n"

static void a_recipe_supplies_what_the_page_lacks(void **state) {
    lt_point_job j = job_of(
        HEAD "a,megatron-bridge,LLAMA3_70B [Pre-Training Performance],DGX-GB300,64,80,8192,64,8,"
             "28672,128256,8192,1,4,,16,,1,256,MXFP8,4800,,,,26.02 NeMo Container,\n");
    (void)state;
    assert_int_equal(j.query.vpp, 5); /* v0.3.0: virtual_pipeline_model_parallel_size=5. */
    assert_int_equal(j.query.recompute, LT_PLAN_RECOMPUTE_NONE);
    j = job_of(HEAD
               "a,megatron-bridge,DeepSeekV3 [Pre-Training Performance],DGX-GB200,256,,,,,,,4096,1,"
               "4,4,64,64,1,4096,MXFP8,4900,,,,26.06 NeMo Container,\n");
    assert_int_equal(j.cluster.stack.graph, LT_PLAN_PART_ALL);
    assert_true(j.cluster.stack.ep_overlap > 0.9 && j.cluster.stack.ep_copies == 0);
    assert_int_equal(j.query.again, LT_PLAN_AGAIN_MLA_UP);
    assert_int_equal(j.model.route_limit, 4);
    assert_true(j.cluster.stack.narrow_attention == 0);
    j = job_of(HEAD
               "a,megatron-bridge,DeepSeekV3 [Pre-Training Performance],DGX-GB300,256,,,,,,,4096,1,"
               "2,8,128,32,1,4096,MXFP8,6000,,,,26.06 NeMo Container,\n");
    assert_true(j.cluster.stack.narrow_attention == 1); /* fp8_dot_product_attention=True. */
    j = job_of(HEAD
               "a,megatron-bridge,DeepSeekV3 [Pre-Training Performance],DGX-GB200,256,,,,,,,4096,1,"
               "4,4,64,64,1,4096,MXFP8,4000,,,,26.04 NeMo Container,\n");
    assert_int_equal(j.cluster.stack.graph, LT_PLAN_PART_ATTENTION | LT_PLAN_PART_ROUTER);
    assert_true(j.cluster.stack.ep_overlap == 0); /* Two releases earlier it was not hidden. */
    j = job_of(HEAD
               "a,megatron-bridge,DeepSeekV3 [Pre-Training Performance],DGX-GB200,256,,,,,,,4096,1,"
               "4,4,64,64,1,4096,MXFP8,4000,,,,26.04.01 NeMo Container,\n");
    assert_int_equal(j.cluster.stack.graph, LT_PLAN_PART_ATTENTION | LT_PLAN_PART_ROUTER);
    /* 4,096 sequences of as many tokens. */
    near(j.measured_s, 4096.0 * 4096.0 / (4000.0 * 256.0), 1e-12);
}

static void a_schedule_may_stand_in_the_name(void **state) {
    const lt_point_job j = job_of(
        HEAD "a,torchtitan,Llama 3.1 405B 3D Interleaved 1F1B,H100,512,126,16384,128,8,53248,"
             "128256,8192,8,8,,8,,,256,fp8 linear,100,,,,torchtitan 2024,local batch 32\n");
    (void)state;
    assert_int_equal(j.query.vpp, 2);
    assert_int_equal(j.query.micro, 4);
}

static void utilisations_are_read(void **state) {
    static const char row[] = "g,M,A100-80GB,8,24,2048,16,16,8192,50304,2048,1,1,,8,,1,64,bf16,,,";
    char text[1024];
    lt_point_job j;
    (void)state;
    snprintf(text, sizeof text, HEAD "a,%s50,,s,\n", row);
    j = job_of(text);
    /* Half of 312 TFLOP/s at 6 N + 12 l h s per token, N without the input embedding. */
    near(j.measured_s,
         lt_plan_model_flops(&j.model, LT_PLAN_FLOPS_MODEL_FULL, 2048) * 64 * 2048 /
             (0.5 * 312e12 * 8),
         1e-12);
    assert_non_null(strstr(j.measure, "MFU"));
    snprintf(text, sizeof text, HEAD "a,%s,60,s,\n", row);
    j = job_of(text); /* It counts recomputation: SC'21's equation. */
    near(j.measured_s,
         lt_plan_model_flops(&j.model, LT_PLAN_FLOPS_MEGATRON_HARDWARE, 2048) * 64 * 2048 /
             (0.6 * 312e12 * 8),
         1e-12);
    assert_non_null(strstr(j.measure, "HFU"));
}

static void a_source_that_contradicts_itself_is_flagged(void **state) {
    static const char row[] = "g,M,H100,8,32,4096,32,8,14336,128256,8192,1,1,,8,,1,64,bf16,10000,";
    char text[1024];
    (void)state;
    snprintf(text, sizeof text, HEAD "a,%s%s,,,s,\n", row, "515");
    /* 51.5 GFLOP per token: 6 N and half of attention. */
    assert_string_equal(job_of(text).flag, "");
    snprintf(text, sizeof text, HEAD "a,%s%s,,,s,\n", row, "1030");
    assert_non_null(strstr(job_of(text).flag, "tokens/s"));
}

static void run_words(void **state) {
    lt_plan_run r;
    (void)state;
    assert_int_equal(
        lt_plan_run_parse(&r,
                          "graph:attn+router pp:4x5 mb:2 hybridep overlap attn8 again:moe_act+mlp"),
        LT_OK);
    assert_true(r.dedupe && r.overlap && !r.fsdp && r.narrow_attention);
    assert_int_equal(r.graph, LT_PLAN_PART_ATTENTION | LT_PLAN_PART_ROUTER);
    assert_int_equal(r.again, LT_PLAN_AGAIN_MOE_ACT | LT_PLAN_AGAIN_DENSE);
    assert_int_equal(r.pp, 4);
    assert_int_equal(r.vpp, 5);
    assert_int_equal(r.micro, 2);
    assert_int_equal(lt_plan_run_parse(&r, "plain"), LT_OK);
    assert_int_equal(lt_plan_run_parse(&r, "graph:attn hybirdep"), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "hybirdep"));
    assert_int_equal(lt_plan_run_parse(&r, "again:moe_acts"), LT_ERR_FORMAT);
}

/* FNV-1a of "s|a0" and "s|a1", modulo 3, computed by another program. */
static void the_held_out_third_is_a_rule(void **state) {
    lt_points p;
    static const char text[] = "id,source,model,gpu,gpus\na0,s,M,G,1\na1,s,M,G,1\n";
    (void)state;
    assert_int_equal(lt_points_parse(&p, text, sizeof text - 1, "t.csv"), LT_OK);
    assert_false(lt_point_held_out(&p.rows[0]));
    assert_true(lt_point_held_out(&p.rows[1]));
    lt_points_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_crosses_to_a_node_once),
        cmocka_unit_test(groups_of_experts_bound_the_nodes),
        cmocka_unit_test(expert_traffic_is_two_trips_a_layer_and_pass),
        cmocka_unit_test(latent_experts_and_predictors_count),
        cmocka_unit_test(routed_counts_are_waited_for),
        cmocka_unit_test(tensor_parallel_traffic),
        cmocka_unit_test(exposed_tensor_parallel_time),
        cmocka_unit_test(only_products_of_blocks_are_narrow),
        cmocka_unit_test(recipes_keep_layers_wide),
        cmocka_unit_test(head_sizes_pad_to_what_kernels_know),
        cmocka_unit_test(a_slow_host_is_waited_for),
        cmocka_unit_test(modules_are_recomputed),
        cmocka_unit_test(the_fullest_chunk_counts),
        cmocka_unit_test(every_other_product_is_recomputed),
        cmocka_unit_test(attention_flops),
        cmocka_unit_test(sharded_state_is_gathered_and_stepped),
        cmocka_unit_test(the_interleaved_bubble),
        cmocka_unit_test(a_recipe_supplies_what_the_page_lacks),
        cmocka_unit_test(a_schedule_may_stand_in_the_name),
        cmocka_unit_test(utilisations_are_read),
        cmocka_unit_test(a_source_that_contradicts_itself_is_flagged),
        cmocka_unit_test(run_words),
        cmocka_unit_test(the_held_out_third_is_a_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
