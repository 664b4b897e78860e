/* ops.c: the time of one micro-batch's work on one GPU, op by op: a roofline whose ceilings depend
 * on size.
 *
 *     product   t = flops / (peak * gemm * shape(m, n, k)), or its bytes over memory bandwidth if
 *               that is longer;
 *               shape = share of the tiles that is not padding * share of the last wave that is
 *                       busy * k / (k + K_RAMP)
 *     attention t = pairs * 4 d / (peak * core efficiency of the kernel family on this head size)
 *     the rest  t = bytes / (memory bandwidth * memory)       bytes of fused kernels * the stack's
 *                                                             `passes`
 *     launch    a gap around each kernel. The GPU also waits where the host takes longer to launch
 *               a pass than the GPU to run it, and while the host launches the experts once it
 *               knows how many tokens each has. The host need not launch what CUDA graphs hold.
 *
 * gemm, memory (and network, in collective.c) are the stack's three fitted efficiencies; every
 * other constant here is the same for all stacks. Quantised products (fp8, mxfp8, nvfp4) pay for
 * casting their inputs, through memory. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"
#include "tensor/cost.h"

/* One value for all stacks and GPUs. Those without a source of their own were chosen on the fit
 * part of the published rows (docs/plan/validation.md). */
#define K_RAMP    128.0 /* Depth at which a product spends half of its time ramping up. */
#define WAVE_LOSS 0.333 /* Share of the last wave's idle time that no other work fills. */
/* How much faster products in narrow types are than in bf16, unless the chip's peaks are closer: a
 * layer's products without casts, as Transformer Engine measured them on B300 (its documentation,
 * examples/gemm_profiling: 13.10 ms in bf16, 6.81 in fp8, 7.16 in mxfp8, 3.76 in nvfp4; fp8 on H200
 * 1.90). The speed in nvfp4 is far from B300's peak of 6 times bf16's, and taken for B200 too. */
static const double narrow_speed[LT_PLAN_PRECISION_COUNT] = {
    [LT_PLAN_FP8] = 1.92, [LT_PLAN_MXFP8] = 1.83, [LT_PLAN_NVFP4] = 3.48};
#define WGRAD_BYTES 4.0 /* A weight's gradient is read, added to and written in 2 bytes. */
/* Kernels per expert of a grouped product that do not overlap with others. */
#define GROUP_KERNELS  0.34
#define ROUTER_KERNELS 3.4
#define PERMUTE_BYTES  14.0 /* Per element of every routed copy: sort, unsort, weigh and add. */
/* Per element of an activation in small kernels and fp32; fused: 6. */
#define UNFUSED_ACT_BYTES 74.0
/* Share of permutation and activation traffic that remains with a fused expert kernel. */
#define FUSED_SHARE 0.55
#define SCAN_SHARE  0.0225 /* Share of the bf16 peak that Mamba-2's chunked scan reaches. */
#define MISALIGNED  0.5    /* See alignment(). */
#define ADD_BYTES   4.0    /* Read and write, to add one more gradient to the input's. */
/* The host. A counted kernel stands for the few kernels that one module launches: host_us is their
 * total time. */
/* Share of host_us for one expert's part of a grouped product, which is a loop in C++. */
#define GROUP_HOST 0.12
/* Multiple of host_us for handling tokens around the experts, per layer and pass. */
#define MOE_HOST 11.0
/* Multiple of host_us for slicing and joining MLA's parts, per layer forward. */
#define MLA_HOST 10.0
/* From the arrival of the counts at the host to the host's first kernel on the GPU. */
#define SYNC_S 60e-6

/* Bytes of casting an element of a product's input. A scale a tensor (fp8): read for the maximum,
 * read again, write; blocks know their own maximum (mxfp8): read, write both layouts with scales;
 * nvfp4 rotates by a Hadamard matrix and reads for the maximum before; a scale a row: twice, along
 * both directions. In Transformer Engine's measurements (see above) the casts of a layer take 2.34
 * ms in fp8, 1.82 in mxfp8 and 2.69 in nvfp4: 1 to 0.78 to 1.15. */
static const double cast_bytes[LT_PLAN_PRECISION_COUNT] = {
    [LT_PLAN_FP8] = 5.0, [LT_PLAN_MXFP8] = 4.1, [LT_PLAN_NVFP4] = 5.8, [LT_PLAN_FP8ROW] = 6.0};

static double peak_of(const lt_plan_cluster *c, lt_plan_precision p) {
    const double *peak = c->gpu.peak_tflops;
    const double bf16 = peak[LT_PLAN_BF16];
    if (p == LT_PLAN_FP32) {
        /* TF32 by default. */
        return (peak[LT_PLAN_FP32] > 0 ? peak[LT_PLAN_FP32] : bf16 / 2.0) * 1e12;
    }
    if (peak[p] <= 0) {
        return bf16 * 1e12;
    }
    return (narrow_speed[p] > 0 ? lt_plan_min(peak[p], bf16 * narrow_speed[p]) : peak[p]) * 1e12;
}

/* What tiles leave of a product: padding at the edges, the idle part of the last wave, and the ramp
 * of the inner loop. The library picks among many tile shapes, so its smallest good one (128 x 64)
 * quantises. */
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

/* Since its release 26.06 Megatron-Bridge runs mxfp8 experts on Blackwell as one fused grouped
 * kernel (products, activation, casts) and the step as one CUDA graph, without telling the host the
 * token counts; 26.06.01
 * lost it for the clamped activation of GPT-OSS (release notes of v0.5.1). Not its Mamba
 * hybrids. */
static bool experts_fused(const lt_plan_job *j) {
    return j->c->stack.moe_fused >= (j->m->unfused_act ? 2 : 1) && j->m->n_moe > 0 &&
           j->m->n_mamba == 0 && j->l->precision == LT_PLAN_MXFP8 &&
           j->c->gpu.peak_tflops[LT_PLAN_NVFP4] > 0;
}

/* How tensor parallelism splits a product: by columns (its input is gathered) or by rows (its
 * output's gradient is). */
typedef enum { SIDE_PLAIN, SIDE_COLUMN, SIDE_ROW } side;

typedef struct {
    const lt_plan_job *j;
    lt_plan_work w;
    side side;
    bool cast_before; /* The previous product has cast this input. */
    bool backward, lora;
    bool fused;    /* experts_fused */
    bool wide;     /* These products remain in bf16. */
    bool captured; /* In a CUDA graph: the host launches none of these kernels. */
    double count;  /* Number of blocks of this kind on the stage. */
} tally;

static void kernels(tally *t, double n) {
    t->w.kernels += t->count * n;
    t->w.host_kernels += t->captured ? 0.0 : t->count * n;
}

/* Bytes of casting an element: x going forward, dy going backward. What tensor parallelism gathers
 * in 8 bits is cast before, each rank its share; only the transposed copy, for the weights'
 * gradient, is made of the whole (one byte read, one written). */
static double cast_of(const tally *t, lt_plan_precision p) {
    const lt_plan_job *j = t->j;
    const bool gathered = t->side == (t->backward ? SIDE_ROW : SIDE_COLUMN);
    const double tp = j->l->sp && j->c->stack.quantised_gather > 0 && p != LT_PLAN_FP8ROW ? j->l->tp
                                                                                          : 1.0;
    return gathered && tp > 1 ? cast_bytes[p] / tp + 2.0 * (1.0 - 1.0 / tp) : cast_bytes[p];
}

/* A linear layer y (m, n) = x (m, k) W: its product forward, or its two products backward. */
static void linear_in(tally *t, double m, double n, double k, double groups, lt_plan_precision p) {
    const lt_plan_cluster *c = t->j->c;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    const double group_kernels = t->fused ? 0.0 : GROUP_KERNELS;
    if (!t->backward) {
        t->w.gemm_s += t->count * group_s(c, m, n, k, groups, p, 2.0);
        t->w.flops += t->count * groups * 2.0 * m * n * k;
        kernels(t, 1 + group_kernels * (groups - 1));
    } else {
        t->w.gemm_s += t->count * group_s(c, m, k, n, groups, p, 2.0);
        if (!t->lora) {
            t->w.gemm_s += t->count *
                           group_s(c, k, n, m, groups, p, t->j->l->fp32_grads ? 8.0 : WGRAD_BYTES);
        }
        t->w.flops += t->count * groups * (t->lora ? 2.0 : 4.0) * m * n * k;
        kernels(t, 2.0 * (1 + group_kernels * (groups - 1)));
    }
    if (p > LT_PLAN_BF16 && !(t->fused && groups > 1) && (t->backward || !t->cast_before)) {
        t->w.elementwise_s += t->count * groups * cast_of(t, p) * m * (t->backward ? n : k) / mem;
        kernels(t, 1);
    }
    if (groups > 1 && !t->fused && !t->captured) {
        t->w.host_kernels += t->count * (groups - 1) * GROUP_HOST * (t->backward ? 2 : 1);
    }
}

/* bytes per token of fused elementwise traffic. */
static void stream(tally *t, double tokens, double bytes, double launches) {
    const lt_plan_cluster *c = t->j->c;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    t->w.elementwise_s += t->count * tokens * bytes * (t->backward ? 2.0 : 1.0) * c->stack.passes /
                          mem;
    kernels(t, launches * (t->backward ? 1.5 : 1.0) * c->stack.passes);
}

/* The head size a kernel computes with: flash kernels exist for a few sizes (the repositories of
 * FlashAttention 1, 2 and 3), and what lies between pads to the next. Without them the scores are
 * plain products of that depth. */
static double kernel_head(lt_plan_attention kernel, double size) {
    static const double sizes[LT_PLAN_ATTENTION_COUNT][9] = {
        [LT_PLAN_ATTENTION_FLASH1] = {16, 32, 64, 128},
        [LT_PLAN_ATTENTION_FLASH2] = {32, 64, 96, 128, 160, 192, 224, 256},
        [LT_PLAN_ATTENTION_FLASH3] = {64, 96, 128, 192, 256}};
    for (int i = 0; i < 9 && sizes[kernel][i] > 0; i++) {
        if (size <= sizes[kernel][i]) {
            return sizes[kernel][i];
        }
    }
    return size;
}

/* Share of the products' rate that is left where rows are no multiple of 16 bytes: a head size that
 * is not a multiple of 8 (Anthony et al. 2024, The Case for Co-Designing Model Architectures with
 * Hardware, fig. 7: throughput of the score product drops to half and less). */
static double alignment(double size) {
    return fmod(size, 8.0) == 0 ? 1.0 : MISALIGNED;
}

/* What runs on Blackwell under the name of FlashAttention 3 is cuDNN's attention. With rows of T
 * tokens it reaches share * T / (T + ramp) of the bf16 peak, by cuDNN's own measurements with a
 * causal mask and heads of 128 and 192 (cudnn-frontend, benchmark/sdpa_benchmark_training/results
 * of 15 June 2026: GB200 and GB300, 2,048 to 16,384 tokens, within 9 % forward and 15 % backward).
 * Blackwell Ultra computes exponentials twice as fast. narrow: how much faster it is in mxfp8, at
 * 4,096 tokens. Heads of 64 take as long as heads of 128, because they need as many
 * exponentials. */
static const struct {
    double share, ramp;
} cudnn_rate[2][2] = {{{0.66, 900}, {0.54, 1000}}, {{0.86, 1000}, {0.60, 1050}}};
static const struct {
    double head, narrow[2];
} cudnn_heads[] = {{128, {1.25, 0.90}}, {192, {1.47, 1.32}}};

static double cudnn_efficiency(const lt_plan_cluster *c, double head_dim, double tokens,
                               bool backward) {
    const double *peak = c->gpu.peak_tflops;
    const int ultra = peak[LT_PLAN_NVFP4] > 5.0 * peak[LT_PLAN_BF16], wide = head_dim > 128;
    const double narrow = c->stack.narrow_attention > 0 && head_dim >= 128
                              ? cudnn_heads[wide].narrow[backward]
                              : 1.0;
    return cudnn_rate[ultra][backward].share * tokens /
           (tokens + cudnn_rate[ultra][backward].ramp) *
           lt_plan_min(1.0, head_dim / cudnn_heads[wide].head) * narrow;
}

/* Share of the bf16 peak that the attention core reaches at head size 128: FlashAttention 1/2/3
 * papers and their repositories' tables (causal, long sequences), on Ampere | Hopper |
 * Blackwell. */
static double core_efficiency(const lt_plan_cluster *c, lt_plan_attention kernel, double head_dim,
                              double tokens, bool backward) {
    static const double forward_of[LT_PLAN_ATTENTION_COUNT][3] = {
        {0.60, 0.45, 0.40}, {0.37, 0.20, 0.12}, {0.62, 0.40, 0.20}, {0.62, 0.60, 0.62}};
    const double *peak = c->gpu.peak_tflops;
    const int generation = peak[LT_PLAN_NVFP4] > 0 ? 2 : peak[LT_PLAN_FP8] > 0 ? 1 : 0;
    const double size = kernel == LT_PLAN_ATTENTION_UNFUSED
                            ? alignment(head_dim)
                            : head_dim / kernel_head(kernel, head_dim);
    if (kernel == LT_PLAN_ATTENTION_FLASH3 && generation == 2) {
        return cudnn_efficiency(c, head_dim, tokens, backward);
    }
    return forward_of[kernel][generation] * size * (backward ? 0.80 : 1.0);
}

static void attention_core(tally *t, double seqs, double seq, double heads, double qk, double v) {
    const lt_plan_job *j = t->j;
    const double window = (double)j->m->window,
                 near = j->m->n_attn > 0 ? (double)j->m->n_windowed / (double)j->m->n_attn : 0.0;
    const lt_plan_cluster *c = j->c;
    const lt_plan_attention kernel = c->stack.attention;
    const double mem = c->gpu.memory_gbps * LT_PLAN_GB * c->stack.memory;
    const double cp = j->l->cp;
    double pairs = seqs * heads * seq * seq / cp, flops;
    if (kernel != LT_PLAN_ATTENTION_UNFUSED) {
        pairs *= 0.5 * (1.0 + (1.0 - c->stack.cp_balance) * (1.0 - 1.0 / cp));
        if (window > 0 && window < seq) {
            pairs *= 1.0 - near + near * lt_plan_min(1.0, 2.0 * window / seq);
        }
    }
    flops = pairs * 2.0 * (qk + v) *
            (t->backward ? (kernel == LT_PLAN_ATTENTION_UNFUSED ? 2.0 : 2.5) : 1.0);
    t->w.flops += t->count * flops;
    t->w.attention_s += t->count * flops /
                        (peak_of(c, LT_PLAN_BF16) *
                         core_efficiency(c, kernel, qk, seq, t->backward));
    /* Scores, softmax and dropout each pass through memory: 13 and 17 bytes per element. */
    if (kernel == LT_PLAN_ATTENTION_UNFUSED) {
        t->w.attention_s += t->count * pairs * (t->backward ? 15.0 : 11.0) / mem;
    }
    kernels(t, kernel == LT_PLAN_ATTENTION_UNFUSED ? 5.0 : 1.0);
}

/* A linear layer in the run's precision; recipes of 8 and 4 bits keep some layers wider. */
static void linear(tally *t, double m, double n, double k, double groups) {
    const lt_plan_precision p = t->wide && t->j->l->precision != LT_PLAN_FP32 ? LT_PLAN_BF16
                                                                              : t->j->l->precision;
    const double all = t->count, wide = p > LT_PLAN_BF16
                                            ? lt_plan_min(1.0, t->j->c->stack.wide_layers /
                                                                   (double)t->j->m->n_layers)
                                            : 0.0;
    t->count = all * (1.0 - wide);
    linear_in(t, m, n, k, groups, p);
    if (wide > 0) {
        t->count = all * wide;
        linear_in(t, m, n, k, groups, LT_PLAN_BF16);
    }
    t->count = all;
}

/* Several outputs of one input: one product, or, if the software keeps their matrices apart, one
 * each, with the input cast once. */
static void joined(tally *t, double m, const double *n, size_t parts, double k, double groups) {
    double all = 0;
    for (size_t i = 0; i < parts; i++) {
        if (t->j->c->stack.split_products > 0) {
            t->cast_before = i > 0;
            linear(t, m, n[i], k, groups);
        }
        all += n[i];
    }
    t->cast_before = false;
    if (!(t->j->c->stack.split_products > 0)) {
        linear(t, m, all, k, groups);
    } else if (t->backward) { /* The gradients of the input are summed. */
        t->w.elementwise_s += t->count * groups * (double)(parts - 1) * ADD_BYTES * m * k /
                              (t->j->c->gpu.memory_gbps * LT_PLAN_GB * t->j->c->stack.memory);
    }
}

static bool in_graph(const lt_plan_job *j, unsigned part) {
    return (j->c->stack.graph & part) == part;
}

/* MLA's products from the latent vectors to the heads; its norms, RoPE, and joining the parts with
 * and without RoPE. */
static void mla_up(tally *t, double tokens, double h) {
    const lt_plan_model *m = t->j->m;
    const double qk = (double)(m->nope_dim + m->rope_dim), q = (double)m->q_rank,
                 r = (double)m->kv_rank;
    if (q > 0) {
        linear(t, tokens, h * qk, q, 1);
    }
    linear(t, tokens, h * (double)(m->nope_dim + m->v_dim), r, 1);
    stream(t, tokens, 4.0 * (q + r) + 8.0 * h * qk, 6);
    if (!t->captured) {
        t->w.host_kernels += t->count * MLA_HOST * (t->backward ? 1.5 : 1.0);
    }
}

static void attention_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * m->max_seq) / j->l->cp;
    const double w = (double)m->width, h = (double)m->n_heads / tp, d = (double)m->head_dim;
    const double g = lt_plan_max(1.0, (double)m->n_kv_heads / tp),
                 part = j->l->sp ? tokens / tp : tokens;
    t->captured = in_graph(j, LT_PLAN_PART_ATTENTION);
    stream(t, part, 10.0 * w + (m->dropout ? 2.0 * w : 0.0), 2);
    if (m->kv_rank > 0) {
        const double qk = (double)(m->nope_dim + m->rope_dim), v = (double)m->v_dim,
                     r = (double)m->kv_rank, q = (double)m->q_rank;
        linear(t, tokens, q > 0 ? q : h * qk, w, 1);
        linear(t, tokens, r + (double)m->rope_dim, w, 1);
        linear(t, tokens, w, h * v, 1);
        mla_up(t, tokens, h);
        attention_core(t, (double)j->l->micro, (double)m->max_seq, h, qk, v);
        return;
    }
    t->wide = j->c->stack.wide_attention > 0;
    t->side = SIDE_COLUMN;
    joined(t, tokens, (const double[]){h * d, g * d, g * d}, 3, w, 1);
    t->side = SIDE_ROW;
    linear(t, tokens, w, h * d, 1);
    t->side = SIDE_PLAIN;
    t->wide = false;
    stream(t, tokens,
           (m->positions > 0 ? 0.0 : 4.0 * (h + g) * d) + (m->qk_norm ? 4.0 * (h + g) * d : 0.0),
           m->positions > 0 ? 0 : 2);
    attention_core(t, (double)j->l->micro, (double)m->max_seq, h, d, d);
}

static void activation(tally *t, double tokens, double f) {
    const lt_plan_model *m = t->j->m;
    const double bytes = m->unfused_act ? UNFUSED_ACT_BYTES * (t->fused ? FUSED_SHARE : 1.0)
                         : m->gated     ? 6.0
                                        : 4.0;
    stream(t, tokens, bytes * f, m->unfused_act ? 10 : 1);
}

static void ffn(tally *t, double tokens, double in, double f, double groups) {
    const bool gated = t->j->m->gated;
    t->side = groups > 1 ? SIDE_PLAIN : SIDE_COLUMN;
    joined(t, tokens, (const double[]){f, f}, gated ? 2 : 1, in, groups);
    t->side = groups > 1 ? SIDE_PLAIN : SIDE_ROW;
    linear(t, tokens, in, f, groups);
    t->side = SIDE_PLAIN;
    activation(t, tokens * groups, f);
}

static void dense_block(tally *t) {
    const lt_plan_job *j = t->j;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * j->m->max_seq) / j->l->cp;
    t->captured = in_graph(j, LT_PLAN_PART_DENSE);
    stream(t, j->l->sp ? tokens / tp : tokens, (j->m->dropout ? 12.0 : 10.0) * (double)j->m->width,
           2);
    ffn(t, tokens, (double)j->m->width, (double)j->m->ffn_width / tp, 1);
}

/* Seconds to send tokens to their experts, `bytes` being one copy of every token; the way back
 * costs the same. */
static double expert_traffic_s(const lt_plan_job *j, double bytes) {
    const lt_plan_model *m = j->m;
    const double k = (double)m->top_k;
    if (j->c->stack.ep_copies > 0) {
        return lt_plan_collective_s(j->c, LT_PLAN_ALL_TO_ALL, bytes * k, j->l->ep, 1);
    }
    return lt_plan_dispatch_s(j->c, bytes, k, m->route_groups, m->route_limit, j->l->ep, 1);
}

/* Seconds that the host needs to launch the kernels that one counted kernel stands for. */
static double host_s(const lt_plan_cluster *c) {
    return c->stack.host_us * 1e-6 * c->gpu.host_time;
}

static double busy_s(const lt_plan_work *w) {
    return w->gemm_s + w->attention_s + w->elementwise_s;
}

/* From the router's counts on. Forward, the host must know them before it can launch anything: it
 * begins when the GPU has nothing left to do, so that here, and not over the whole pass, the slower
 * of the two counts. Backward the counts are known. */
static void experts(tally *t, double all, double tokens) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double k = (double)m->top_k, w = (double)m->width,
                 local = (double)m->n_experts / j->l->ep;
    const double in = (double)(m->latent > 0 ? m->latent : m->width), ep = t->w.ep_s;
    const lt_plan_work before = t->w;
    const bool waits = !t->fused && !t->captured;
    if (m->latent > 0) {
        t->wide = j->c->stack.wide_attention > 0;
        linear(t, tokens, in, w, 1);
        linear(t, tokens, w, in, 1);
        t->wide = false;
    }
    ffn(t, tokens * k / local, in, (double)m->expert_ffn_width, local);
    /* Permute, unpermute and weigh every copy. */
    stream(t, tokens * k, PERMUTE_BYTES * (t->fused ? FUSED_SHARE : 1.0) * in, t->fused ? 2 : 6);
    if (m->shared_ffn_width > 0) {
        ffn(t, all, w, (double)m->shared_ffn_width / j->l->tp, 1);
    }
    /* With one rank there is none. */
    t->w.ep_s += t->count * 2.0 * expert_traffic_s(j, tokens * in * 2.0);
    if (waits) {
        t->w.host_kernels += t->count * MOE_HOST;
        t->w.syncs += t->count;
    }
    if (waits && !t->backward) {
        const double host = (t->w.host_kernels - before.host_kernels) * host_s(j->c);
        const double gpu = busy_s(&t->w) - busy_s(&before) + t->w.ep_s - ep;
        t->w.stall_s += lt_plan_max(0.0, host - gpu);
    }
}

static void moe_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double all = (double)(j->l->micro * m->max_seq) / j->l->cp, tokens = all / j->l->tp;
    t->captured = in_graph(j, LT_PLAN_PART_ROUTER);
    stream(t, tokens, 10.0 * (double)m->width, 2);
    t->wide = true; /* Every recipe routes in bf16 or wider. */
    linear(t, tokens, (double)m->n_experts, (double)m->width, 1);
    t->wide = false;
    /* Scores, top-k, counts, load balance. */
    stream(t, tokens, 12.0 * (double)m->n_experts, ROUTER_KERNELS);
    t->captured = in_graph(j, LT_PLAN_PART_ALL);
    experts(t, all, tokens);
}

static void mamba_block(tally *t) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double tp = j->l->tp, tokens = (double)(j->l->micro * m->max_seq) / j->l->cp,
                 w = (double)m->width;
    const double d = (double)(m->mamba_heads * m->mamba_dim) / tp,
                 bc = 2.0 * (double)(m->mamba_groups * m->mamba_state) / tp;
    const double heads = (double)m->mamba_heads / tp, state = (double)m->mamba_state;
    /* The chunked scan of Mamba-2 (SSD): four products per chunk at low efficiency. */
    const double chunk = 128.0;
    const double scan = tokens * heads *
                        (2.0 * chunk * (state + (double)m->mamba_dim) +
                         4.0 * state * (double)m->mamba_dim);
    t->captured = in_graph(j, LT_PLAN_PART_MAMBA);
    stream(t, j->l->sp ? tokens / tp : tokens, 10.0 * w, 2);
    linear(t, tokens, 2.0 * d + bc + heads, w, 1);
    linear(t, tokens, w, d, 1);
    stream(t, tokens, 4.0 * (d + bc) + 16.0 * d + 4.0 * bc, 6);
    t->w.attention_s += t->count * scan * (t->backward ? 2.5 : 1.0) /
                        (peak_of(j->c, LT_PLAN_BF16) * SCAN_SHARE);
    t->w.flops += t->count * scan * (t->backward ? 2.0 : 1.0);
}

/* Around each mixer and each feed-forward part, tensor parallel: gather the sequence before, sum
 * and scatter it behind (an all-reduce without sequence parallelism). Where the input of an 8-bit
 * product is cast before it is gathered, half of the bytes travel. */
static void tp_comm(tally *t, double times) {
    const lt_plan_job *j = t->j;
    const lt_plan_layout *l = j->l;
    const double bytes = (double)(l->micro * j->m->max_seq) / l->cp * (double)j->m->width * 2.0;
    const double share = l->sp && j->c->stack.quantised_gather > 0 && l->precision != LT_PLAN_FP8ROW
                             ? lt_plan_precision_bytes(l->precision) / 2.0
                             : 1.0;
    const double gather = lt_plan_collective_s(j->c, LT_PLAN_ALL_GATHER, bytes * share, l->tp, 1);
    t->w.tp_gather_s += times * gather;
    t->w.tp_s += times *
                 (gather + lt_plan_collective_s(j->c, LT_PLAN_REDUCE_SCATTER, bytes, l->tp, 1));
}

static void cp_comm(tally *t, double times) {
    const lt_plan_job *j = t->j;
    const lt_plan_model *m = j->m;
    const double kv = m->kv_rank > 0
                          ? (double)(m->n_heads * (m->nope_dim + m->rope_dim + m->v_dim)) / 2.0
                          : (double)m->n_kv_heads * (double)m->head_dim;
    const double bytes = (double)(j->l->micro * m->max_seq) * 2.0 * 2.0 * kv / j->l->tp;
    t->w.cp_s += times * (t->backward ? 2.0 : 1.0) *
                 lt_plan_collective_s(j->c, LT_PLAN_ALL_GATHER, bytes, j->l->cp, j->l->tp);
}

/* What the GPU waits for launches: a gap around each kernel, a round trip wherever the host must
 * know the GPU's counts, and all that the host needs longer to launch a pass than the GPU to run
 * it. Under CUDA_LAUNCH_BLOCKING the two take turns instead. */
static void launch_gap(tally *t) {
    const lt_plan_stack *k = &t->j->c->stack;
    lt_plan_work *w = &t->w;
    const double gaps = w->kernels * k->launch_us * 1e-6,
                 busy = w->gemm_s + w->attention_s + w->elementwise_s + gaps;
    w->launch_s = gaps;
    if (!(k->launch_blocking > 0)) {
        w->launch_s += w->syncs * SYNC_S +
                       lt_plan_max(w->stall_s, w->host_kernels * host_s(t->j->c) - busy);
    }
}

static lt_plan_work layers_work(const lt_plan_job *j, bool backward) {
    const lt_plan_model *m = j->m;
    const double share = (double)((m->n_layers + j->l->pp - 1) / j->l->pp) / (double)m->n_layers;
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
        /* tp does not split experts: their tokens leave from the scattered sequence. */
        tp_comm(&t, share * (double)(m->n_attn + m->n_mamba + m->n_dense +
                                     (m->shared_ffn_width > 0 || !j->l->sp ? m->n_moe : 0)));
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

/* Share, by size, of a layer's products that torchtitan's recomputation by op runs again: k, o and
 * w3 (memory.c). */
static double op_selective_share(const lt_plan_model *m) {
    const double w = (double)m->width, q = (double)(m->n_heads * m->head_dim),
                 k = (double)(m->n_kv_heads * m->head_dim), f = (double)m->ffn_width;
    return (k + q + f) * w / ((2.0 * q + 2.0 * k + 3.0 * f) * w);
}

/* The modules named by selective recomputation, forward once more. */
static lt_plan_work modules_work(const lt_plan_job *j) {
    const lt_plan_model *m = j->m;
    const unsigned again = j->l->again;
    const double share = (double)((m->n_layers + j->l->pp - 1) / j->l->pp) / (double)m->n_layers;
    const double tokens = (double)(j->l->micro * m->max_seq) / j->l->cp, tp = j->l->tp,
                 w = (double)m->width, h = (double)m->n_heads / tp;
    const double moe = share * (double)(m->n_moe + (m->n_moe > 0 ? m->mtp : 0)),
                 attn = share * (double)(m->n_attn + m->mtp);
    static const unsigned parts[] = {LT_PLAN_PART_ATTENTION, LT_PLAN_PART_MAMBA, LT_PLAN_PART_DENSE,
                                     LT_PLAN_PART_ROUTER};
    tally t = {.j = j, .fused = experts_fused(j)};
    if ((again & LT_PLAN_AGAIN_NORM) != 0) {
        const double counts[] = {(double)m->n_attn, (double)m->n_mamba, (double)m->n_dense,
                                 (double)m->n_moe};
        /* They are in the graph of their block. */
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            t.captured = in_graph(j, parts[i]);
            t.count = share * counts[i];
            stream(&t, j->l->sp ? tokens / tp : tokens, 4.0 * w, 1);
        }
    }
    t.captured = in_graph(j, LT_PLAN_PART_ATTENTION);
    if ((again & LT_PLAN_AGAIN_MLA_UP) != 0 && (t.count = attn) > 0 && m->kv_rank > 0) {
        mla_up(&t, tokens, h);
    }
    if ((again & LT_PLAN_AGAIN_CORE) != 0 && (t.count = attn) > 0) {
        const bool mla = m->kv_rank > 0;
        attention_core(&t, (double)j->l->micro, (double)m->max_seq, h,
                       (double)(mla ? m->nope_dim + m->rope_dim : m->head_dim),
                       (double)(mla ? m->v_dim : m->head_dim));
    }
    t.captured = in_graph(j, LT_PLAN_PART_DENSE);
    if ((again & LT_PLAN_AGAIN_DENSE) != 0 && (t.count = share * (double)m->n_dense) > 0) {
        ffn(&t, tokens, w, (double)m->ffn_width / tp, 1);
    }
    t.captured = in_graph(j, LT_PLAN_PART_ALL);
    if ((t.count = moe) > 0 && (again & LT_PLAN_AGAIN_MOE) != 0) {
        moe_block(&t);
    } else if (t.count > 0) {
        if ((again & LT_PLAN_AGAIN_MOE_ACT) != 0) {
            activation(&t, tokens / tp * (double)m->top_k, (double)m->expert_ffn_width);
        }
        if ((again & LT_PLAN_AGAIN_SHARED) != 0 && m->shared_ffn_width > 0) {
            ffn(&t, tokens, w, (double)m->shared_ffn_width / tp, 1);
        }
    }
    launch_gap(&t);
    return t.w;
}

/* w += by * x. */
static void add(lt_plan_work *w, const lt_plan_work *x, double by) {
    const double from[] = {x->gemm_s,  x->attention_s,  x->elementwise_s, x->launch_s,
                           x->tp_s,    x->cp_s,         x->ep_s,          x->flops,
                           x->kernels, x->host_kernels, x->syncs,         x->stall_s};
    double *const field[] = {&w->gemm_s,  &w->attention_s,  &w->elementwise_s, &w->launch_s,
                             &w->tp_s,    &w->cp_s,         &w->ep_s,          &w->flops,
                             &w->kernels, &w->host_kernels, &w->syncs,         &w->stall_s};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        *field[i] += by * from[i];
    }
}

/* The last product of each dense block, and the sum over tensor-parallel ranks after it. */
static lt_plan_work last_product(const lt_plan_job *j) {
    const lt_plan_model *m = j->m;
    const double tokens = (double)(j->l->micro * m->max_seq) / j->l->cp, tp = j->l->tp;
    tally t = {.j = j, .side = SIDE_ROW};
    t.count = (double)((m->n_layers + j->l->pp - 1) / j->l->pp) / (double)m->n_layers *
              (double)m->n_dense;
    linear(&t, tokens, (double)m->width, (double)m->ffn_width / tp, 1);
    t.w.tp_s = t.count * lt_plan_collective_s(j->c, LT_PLAN_REDUCE_SCATTER,
                                              tokens * (double)m->width * 2.0, j->l->tp, 1);
    return t.w;
}

lt_plan_work lt_plan_recompute_work(const lt_plan_job *j) {
    lt_plan_work w = {0}, f;
    if (j->l->recompute == LT_PLAN_RECOMPUTE_NONE) {
        return w;
    }
    if (j->l->recompute == LT_PLAN_RECOMPUTE_SELECTIVE && j->l->again != 0) {
        return modules_work(j);
    }
    f = layers_work(j, false);
    if (j->l->recompute == LT_PLAN_RECOMPUTE_FULL) {
        /* Megatron's block method: this many layers of each chunk of a stage. */
        if (j->l->again_layers > 0) {
            const double chunk = ceil((double)j->m->n_layers / ((double)j->l->pp * j->l->vpp));
            add(&w, &f, lt_plan_min(1.0, j->l->again_layers / chunk));
            return w;
        }
        if (j->c->stack.early_stop > 0) {
            const lt_plan_work last = last_product(j);
            add(&f, &last, -1.0);
        }
        return f;
    }
    if (j->c->stack.attention == LT_PLAN_ATTENTION_UNFUSED) { /* Scores and softmax are repeated. */
        w.attention_s = f.attention_s;
    } else {
        w.elementwise_s = 0.6 * f.elementwise_s; /* Norms and activation functions. */
        if (j->c->stack.op_selective > 0 && j->m->n_dense == j->m->n_layers) {
            w.gemm_s = op_selective_share(j->m) * f.gemm_s;
            w.tp_s = f.tp_gather_s; /* Its list of kept tensors has only the reduce-scatters. */
        }
    }
    return w;
}

lt_plan_work lt_plan_head_work(const lt_plan_job *j, bool backward) {
    const lt_plan_model *m = j->m;
    const double tokens = (double)(j->l->micro * m->max_seq) / j->l->cp,
                 v = (double)m->vocab_size / j->l->tp;
    lt_plan_layout plain = *j->l;
    const lt_plan_job bf16 = {m, j->c, &plain};
    tally t = {.j = &bf16, .backward = backward, .count = 1.0 + (double)m->mtp};
    if (plain.precision > LT_PLAN_BF16) {
        plain.precision = LT_PLAN_BF16; /* The output matrix remains in bf16 in every recipe. */
    }
    linear(&t, tokens, v, (double)m->width, 1);
    /* Logits to fp32, softmax, loss; backward 16 bytes per element. */
    stream(&t, tokens, 8.0 * v, 4);
    if (j->l->tp > 1) {
        t.w.tp_s = lt_plan_collective_s(j->c, LT_PLAN_ALL_REDUCE, tokens * (double)m->width * 2.0,
                                        j->l->tp, 1);
    }
    return t.w;
}

lt_plan_work lt_plan_embed_work(const lt_plan_job *j, bool backward) {
    tally t = {.j = j, .backward = backward, .count = 1};
    stream(&t, (double)(j->l->micro * j->m->max_seq) / j->l->cp, 4.0 * (double)j->m->width, 2);
    return t.w;
}
