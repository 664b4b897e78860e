/* ops.c: the time of one micro-batch's work on one GPU, op by op: a roofline whose ceilings depend on size.
 *
 *     product   t = flops / (peak * gemm * shape(m, n, k)), or its bytes over memory bandwidth if that is longer
 *               shape = share of the tiles that is not padding * share of the last wave that is busy * k / (k + K_RAMP)
 *     attention t = pairs * 4 d / (peak * core efficiency of the kernel family on this head size)
 *     the rest  t = bytes / (memory bandwidth * memory)       bytes of fused kernels * the stack's `passes`
 *     launch    a block that keeps the GPU busy for less than its kernels take to launch waits for the host
 *
 * gemm, memory (and network, in collective.c) are the stack's three fitted efficiencies; every other constant here is one for all
 * stacks. Quantised products (fp8, mxfp8, nvfp4) pay for casting their inputs, through memory. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"
#include "tensor/cost.h"

/* Chosen once on the published rows (docs/plan/validation.md), the same for every stack and GPU. */
#define K_RAMP         128.0 /* Depth at which a product's inner loop is half of its time ramp. */
#define WAVE_LOSS      0.333 /* Share of the last wave's idle part that nothing else fills. */
#define FP4_SHARE      0.90  /* Of the layers' products that run in fp4; the rest stays wider. */
#define GROUP_KERNELS  0.34  /* Kernels per expert of a grouped product, beyond the first. */
#define ROUTER_KERNELS 3.4
#define PERMUTE_BYTES                                                                              \
    11.2 /* Per element of every routed copy, forward: dispatch, un-permute, weigh. */
#define UNFUSED_ACT_BYTES                                                                          \
    74.0                    /* Per element of an activation in small kernels and fp32; fused: 6. */
#define GRAPH_LAUNCH_US 4.0 /* Around a kernel inside a CUDA graph of the whole step. */
#define FUSED_SHARE                                                                                \
    0.7 /* Of permutation and activation traffic that the fused expert kernel leaves. */
#define SYNC_S     40e-6 /* The host learns the token counts of each MoE layer. */
#define SCAN_SHARE 0.02  /* Of the bf16 peak that Mamba-2's chunked scan reaches. */

/* Bytes of casting that show, per element of a quantised product's input: most of it hides in the kernel before. */
static const double cast_bytes[LT_PLAN_PRECISION_COUNT] = {0, 0, 1.84, 0.22, 5.7, 6.0};

static double peak_of(const lt_plan_cluster *c, lt_plan_precision p) {
    const double *peak = c->gpu.peak_tflops;
    const double bf16 = peak[LT_PLAN_BF16];
    if (p == LT_PLAN_FP32) {
        return (peak[LT_PLAN_FP32] > 0 ? peak[LT_PLAN_FP32] : bf16 / 2.0) *
               1e12; /* TF32 by default. */
    }
    return (peak[p] > 0 ? peak[p] : bf16) * 1e12 * (p == LT_PLAN_NVFP4 ? FP4_SHARE : 1.0);
}

/* What tiles leave of a product: padding at the edges, the idle part of the last wave, and the ramp of the inner loop. The library
 * picks among many tile shapes, so its smallest good one (128 x 64) quantises. */
static double shape_efficiency(const lt_plan_cluster *c, double m, double n, double k,
                               double groups) {
    const double tiles = ceil(m / 128.0) * ceil(n / 64.0), fill = m * n / (tiles * 128.0 * 64.0);
    const double waves = groups * tiles / (double)c->gpu.sms;
    const double busy = waves < 1 ? waves : 1.0 - WAVE_LOSS * (1.0 - waves / ceil(waves));
    return lt_plan_max(0.01, fill * busy * k / (k + K_RAMP));
}

static double group_s(const lt_plan_cluster *c, double m, double n, double k, double groups,
                      lt_plan_precision p, double out_bytes) {
    const double in = lt_plan_precision_bytes(p);
    const lt_cost one = lt_cost_matmul(m, n, k, in, in, out_bytes);
    const double bytes = groups * one.bytes;
    const double compute = groups * one.flops /
                           (peak_of(c, p) * c->stack.gemm * shape_efficiency(c, m, n, k, groups));
    return lt_plan_max(compute, bytes / (c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory));
}

double lt_plan_gemm_s(const lt_plan_cluster *c, double m, double n, double k, lt_plan_precision p) {
    return group_s(c, m, n, k, 1.0, p, 2.0);
}

/* Since its release 26.06 Megatron-Bridge runs mxfp8 experts on Blackwell as one fused grouped kernel (products, activation, casts) and the step
 * as one CUDA graph, without telling the host the token counts; 26.06.01
 * lost it for the clamped activation of GPT-OSS (release notes of v0.5.1). Not its Mamba hybrids. */
static bool experts_fused(const lt_plan_job *j) {
    return j->c->stack.moe_fused >= (j->m->unfused_act ? 2 : 1) && j->m->n_moe > 0 &&
           j->m->n_mamba == 0 && j->l->precision == LT_PLAN_MXFP8 &&
           j->c->gpu.peak_tflops[LT_PLAN_NVFP4] > 0;
}

typedef struct {
    const lt_plan_job *j;
    lt_plan_work w;
    bool backward, lora;
    bool fused;   /* experts_fused */
    double count; /* Blocks of this kind on the stage. */
} tally;

/* A linear layer y (m, n) = x (m, k) W: forward, or backward's two products. */
static void linear(tally *t, double m, double n, double k, double groups) {
    const lt_plan_cluster *c = t->j->c;
    const lt_plan_precision p = t->j->l->precision;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    const double group_kernels = t->fused ? 0.0 : GROUP_KERNELS;
    if (m <= 0 || n <= 0 || k <= 0) {
        return;
    }
    if (!t->backward) {
        t->w.gemm_s += t->count * group_s(c, m, n, k, groups, p, 2.0);
        t->w.flops += t->count * groups * 2.0 * m * n * k;
        t->w.kernels += t->count * (1 + group_kernels * (groups - 1));
    } else {
        t->w.gemm_s += t->count * group_s(c, m, k, n, groups, p, 2.0);
        if (!t->lora) {
            t->w.gemm_s += t->count *
                           group_s(c, k, n, m, groups, p, t->j->l->fp32_grads ? 8.0 : 2.0);
        }
        t->w.flops += t->count * groups * (t->lora ? 2.0 : 4.0) * m * n * k;
        t->w.kernels += 2.0 * t->count * (1 + group_kernels * (groups - 1));
    }
    if (p > LT_PLAN_BF16 &&
        !(t->fused && groups > 1)) { /* Cast x going forward, dy going backward. */
        t->w.elementwise_s += t->count * groups * cast_bytes[p] * m * (t->backward ? n : k) / mem;
        t->w.kernels += t->count;
    }
}

/* bytes per token of fused elementwise traffic. */
static void stream(tally *t, double tokens, double bytes, double kernels) {
    const lt_plan_cluster *c = t->j->c;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    t->w.elementwise_s += t->count * tokens * bytes * (t->backward ? 2.0 : 1.0) * c->stack.passes /
                          mem;
    t->w.kernels += t->count * kernels * (t->backward ? 1.5 : 1.0) * c->stack.passes;
}

/* Share of the bf16 peak that the attention core reaches at head size 128: FlashAttention 1/2/3 papers and their repositories'
 * tables (causal, long sequences), on Ampere | Hopper | Blackwell. */
static double core_efficiency(const lt_plan_cluster *c, lt_plan_attention kernel, double head_dim,
                              bool backward) {
    static const double forward_of[LT_PLAN_ATTENTION_COUNT][3] = {
        {0.60, 0.45, 0.40}, {0.37, 0.20, 0.12}, {0.62, 0.40, 0.20}, {0.62, 0.60, 0.62}};
    const int generation = c->gpu.peak_tflops[LT_PLAN_NVFP4] > 0 ? 2
                           : c->gpu.peak_tflops[LT_PLAN_FP8] > 0 ? 1
                                                                 : 0;
    const double size = head_dim > 64 && head_dim < 128
                            ? 0.9
                            : 1.0; /* Sizes between two instantiations pad. */
    return forward_of[kernel][generation] * size * (backward ? 0.80 : 1.0);
}

static void attention_core(tally *t, double seqs, double seq, double heads, double qk, double v,
                           double window) {
    const lt_plan_job *j = t->j;
    const lt_plan_cluster *c = j->c;
    const lt_plan_attention kernel = c->stack.attention;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    const double cp = j->l->cp;
    double pairs = seqs * heads * seq * seq / cp, flops;
    if (kernel != LT_PLAN_ATTENTION_UNFUSED) {
        pairs *= 0.5 * (1.0 + (1.0 - c->stack.cp_balance) * (1.0 - 1.0 / cp));
        if (window > 0 && window < seq) {
            pairs *= 0.5 + 0.5 * lt_plan_min(1.0, 2.0 * window / seq);
        }
    }
    flops = pairs * 2.0 * (qk + v) *
            (t->backward ? (kernel == LT_PLAN_ATTENTION_UNFUSED ? 2.0 : 2.5) : 1.0);
    t->w.flops += t->count * flops;
    t->w.attention_s += t->count * flops /
                        (peak_of(c, LT_PLAN_BF16) * core_efficiency(c, kernel, qk, t->backward));
    if (kernel ==
        LT_PLAN_ATTENTION_UNFUSED) { /* Scores, softmax and dropout each go through memory: 13 and 17 bytes an element. */
        t->w.attention_s += t->count * pairs * (t->backward ? 15.0 : 11.0) / mem;
    }
    t->w.kernels += t->count * (kernel == LT_PLAN_ATTENTION_UNFUSED ? 5.0 : 1.0);
}

static void attention_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * m->seq) / j->l->cp;
    const double w = (double)m->width, h = (double)m->heads / tp, d = (double)m->head_dim;
    const double g = lt_plan_max(1.0, (double)m->kv_heads / tp),
                 part = j->l->sp ? tokens / tp : tokens;
    stream(t, part, 10.0 * w + (m->dropout ? 2.0 * w : 0.0), 2);
    if (m->kv_rank > 0) {
        const double qk = (double)(m->nope_dim + m->rope_dim), v = (double)m->v_dim,
                     r = (double)m->kv_rank;
        const double q = (double)m->q_rank;
        linear(t, tokens, q > 0 ? q : h * qk, w, 1);
        linear(t, tokens, q > 0 ? h * qk : 0, q, 1);
        linear(t, tokens, r + (double)m->rope_dim, w, 1);
        linear(t, tokens, h * (double)(m->nope_dim + m->v_dim), r, 1);
        linear(t, tokens, w, h * v, 1);
        stream(t, tokens, 4.0 * (q + r) + 8.0 * h * qk,
               6); /* Latent norms, RoPE, joining the rope and no-rope parts. */
        attention_core(t, (double)j->l->micro, (double)m->seq, h, qk, v, 0);
        return;
    }
    linear(t, tokens, (h + 2.0 * g) * d, w, 1);
    linear(t, tokens, w, h * d, 1);
    stream(t, tokens,
           (m->positions > 0 ? 0.0 : 4.0 * (h + g) * d) + (m->qk_norm ? 4.0 * (h + g) * d : 0.0),
           m->positions > 0 ? 0 : 2);
    attention_core(t, (double)j->l->micro, (double)m->seq, h, d, d, (double)m->window);
}

static void ffn(tally *t, double tokens, double in, double f, double groups) {
    const bool gated = t->j->m->gated;
    linear(t, tokens, (gated ? 2.0 : 1.0) * f, in, groups);
    linear(t, tokens, in, f, groups);
    stream(t, tokens * groups,
           (t->j->m->unfused_act ? UNFUSED_ACT_BYTES * (t->fused ? FUSED_SHARE : 1.0)
            : gated              ? 6.0
                                 : 4.0) *
               f,
           t->j->m->unfused_act ? 10 : 1);
}

static void dense_block(tally *t) {
    const lt_plan_job *j = t->j;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * j->m->seq) / j->l->cp;
    stream(t, j->l->sp ? tokens / tp : tokens, (j->m->dropout ? 12.0 : 10.0) * (double)j->m->width,
           2);
    ffn(t, tokens, (double)j->m->width, (double)j->m->ffn / tp, 1);
}

static void moe_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const lt_plan_layout *l = j->l;
    const double tp = l->tp, all = (double)(l->micro * m->seq) / l->cp, tokens = all / tp;
    const double k = (double)m->topk, w = (double)m->width,
                 in = (double)(m->latent > 0 ? m->latent : m->width);
    const double local = (double)m->experts / l->ep;
    stream(t, tokens, 10.0 * w, 2);
    linear(t, tokens, (double)m->experts, w, 1);
    stream(t, tokens, 12.0 * (double)m->experts,
           ROUTER_KERNELS); /* Scores, top-k, counts, load balance. */
    if (m->latent > 0) {
        linear(t, tokens, in, w, 1);
        linear(t, tokens, w, in, 1);
    }
    ffn(t, tokens * k / local, in, (double)m->expert_ffn, local);
    stream(t, tokens * k, PERMUTE_BYTES * (t->fused ? FUSED_SHARE : 1.0) * in,
           t->fused ? 2 : 6); /* Permute, un-permute and weigh every copy. */
    if (m->shared_ffn > 0) {
        ffn(t, all, w, (double)m->shared_ffn / tp, 1);
    }
    t->w.ep_s += t->fused ? 0.0 : t->count * SYNC_S;
    if (l->ep > 1) {
        t->w.ep_s += t->count * 2.0 * lt_plan_dispatch_s(j->c, tokens * in * 2.0, k, l->ep, 1);
    }
}

static void mamba_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * m->seq) / j->l->cp,
                 w = (double)m->width;
    const double d = (double)(m->mamba_heads * m->mamba_dim) / tp,
                 bc = 2.0 * (double)(m->mamba_groups * m->mamba_state) / tp;
    const double heads = (double)m->mamba_heads / tp, state = (double)m->mamba_state;
    const double chunk =
        128.0; /* The chunked scan of Mamba-2 (SSD): four products per chunk at low efficiency. */
    const double scan = tokens * heads *
                        (2.0 * chunk * (state + (double)m->mamba_dim) +
                         4.0 * state * (double)m->mamba_dim);
    stream(t, j->l->sp ? tokens / tp : tokens, 10.0 * w, 2);
    linear(t, tokens, 2.0 * d + bc + heads, w, 1);
    linear(t, tokens, w, d, 1);
    stream(t, tokens, 4.0 * (d + bc) + 16.0 * d + 4.0 * bc, 6);
    t->w.attention_s += t->count * scan * (t->backward ? 2.5 : 1.0) /
                        (peak_of(j->c, LT_PLAN_BF16) * SCAN_SHARE);
    t->w.flops += t->count * scan * (t->backward ? 2.0 : 1.0);
}

/* Reductions behind a mixer and behind a feed-forward part, tensor parallel. */
static void tp_comm(tally *t, double times) {
    const lt_plan_job *j = t->j;
    const double bytes = (double)(j->l->micro * j->m->seq) / j->l->cp * (double)j->m->width * 2.0;
    t->w.tp_s += times * lt_plan_collective_s(j->c, LT_PLAN_ALL_REDUCE, bytes, j->l->tp, 1);
}

static void cp_comm(tally *t, double times) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double kv = m->kv_rank > 0
                          ? (double)(m->heads * (m->nope_dim + m->rope_dim + m->v_dim)) / 2.0
                          : (double)m->kv_heads * (double)m->head_dim;
    const double bytes = (double)(j->l->micro * m->seq) * 2.0 * 2.0 * kv / j->l->tp;
    t->w.cp_s += times * (t->backward ? 2.0 : 1.0) *
                 lt_plan_collective_s(j->c, LT_PLAN_ALL_GATHER, bytes, j->l->cp, j->l->tp);
}

/* Around each kernel: ramp, drain, host gaps, and the small kernels that are not counted one by one. */
static void launch_gap(tally *t) {
    const double us = t->fused ? lt_plan_min(GRAPH_LAUNCH_US, t->j->c->stack.launch_us)
                               : t->j->c->stack.launch_us;
    t->w.launch_s = t->w.kernels * us * 1e-6;
}

static lt_plan_work layers_work(const lt_plan_job *j, bool backward) {
    const lt_plan_model *m = j->m;
    const double share = (double)((m->layers + j->l->pp - 1) / j->l->pp) / (double)m->layers;
    tally t = {.j = j,
               .backward = backward,
               .lora = j->l->tune == LT_PLAN_TUNE_LORA,
               .fused = experts_fused(j)};
    const double attn = share * (double)(m->n_attn + m->mtp),
                 moe = share * (double)(m->n_moe + (m->n_moe > 0 ? m->mtp : 0));
    const double dense = share * (double)(m->n_dense + (m->n_moe > 0 ? 0 : m->mtp));
    if ((t.count = attn) > 0) {
        attention_block(&t);
    }
    if ((t.count = share * (double)m->n_mamba) > 0) {
        mamba_block(&t);
    }
    if ((t.count = dense) > 0) {
        dense_block(&t);
    }
    if ((t.count = moe) > 0) {
        moe_block(&t);
    }
    if (j->l->tp > 1) {
        tp_comm(&t, share * (double)(m->n_attn + m->n_mamba + m->n_dense + m->n_moe));
    }
    if (j->l->cp > 1) {
        cp_comm(&t, attn);
    }
    launch_gap(&t);
    return t.w;
}

lt_plan_work lt_plan_forward_work(const lt_plan_job *j) {
    return layers_work(j, false);
}

lt_plan_work lt_plan_backward_work(const lt_plan_job *j) {
    return layers_work(j, true);
}

/* Of a layer's products, by size, those that torchtitan's recomputation by op runs again: k, o and w3 (memory.c). */
static double op_selective_share(const lt_plan_model *m) {
    const double w = (double)m->width, q = (double)(m->heads * m->head_dim),
                 k = (double)(m->kv_heads * m->head_dim), f = (double)m->ffn;
    return (k + q + f) * w / ((2.0 * q + 2.0 * k + 3.0 * f) * w);
}

lt_plan_work lt_plan_recompute_work(const lt_plan_job *j) {
    lt_plan_work w = {0}, f;
    if (j->l->recompute == LT_PLAN_RECOMPUTE_NONE) {
        return w;
    }
    f = layers_work(j, false);
    if (j->l->recompute == LT_PLAN_RECOMPUTE_FULL) {
        return f;
    }
    if (j->c->stack.attention == LT_PLAN_ATTENTION_UNFUSED) { /* Scores and softmax again. */
        w.attention_s = f.attention_s;
    } else {
        w.elementwise_s = 0.6 * f.elementwise_s; /* Norms and activation functions. */
        if (j->c->stack.op_selective > 0 && j->m->n_dense == j->m->layers) {
            w.gemm_s = op_selective_share(j->m) * f.gemm_s;
        }
    }
    return w;
}

lt_plan_work lt_plan_head_work(const lt_plan_job *j, bool backward) {
    const lt_plan_model *m = j->m;
    const double tokens = (double)(j->l->micro * m->seq) / j->l->cp,
                 v = (double)m->vocab / j->l->tp;
    lt_plan_layout plain = *j->l;
    const lt_plan_job bf16 = {m, j->c, &plain};
    tally t = {.j = &bf16, .backward = backward, .count = 1.0 + (double)m->mtp};
    if (plain.precision > LT_PLAN_BF16) {
        plain.precision = LT_PLAN_BF16; /* The output matrix stays in bf16 in every recipe. */
    }
    linear(&t, tokens, v, (double)m->width, 1);
    stream(&t, tokens, 8.0 * v,
           4); /* Logits to fp32, softmax, loss; backward: 16 bytes an element. */
    if (j->l->tp > 1) {
        t.w.tp_s = lt_plan_collective_s(j->c, LT_PLAN_ALL_REDUCE, tokens * (double)m->width * 2.0,
                                        j->l->tp, 1);
    }
    return t.w;
}

lt_plan_work lt_plan_embed_work(const lt_plan_job *j, bool backward) {
    tally t = {.j = j, .backward = backward, .count = 1};
    stream(&t, (double)(j->l->micro * j->m->seq) / j->l->cp, 4.0 * (double)j->m->width, 2);
    return t.w;
}
