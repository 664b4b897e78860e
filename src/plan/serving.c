/* serving.c: tokens a second and latency of a model on a node, from the two rooflines of inference.
 *
 *     prefill   2 N flops a prompt token + causal attention, at the products' efficiency
 *     decode    a step reads every weight it touches once and every sequence's KV cache once; batch
 *               b shares the weights. An MoE layer touches E (1 - (1 - k/E)^b) of its E experts
 *     tp        tensor parallelism: two all-reduces a layer of b tokens, bound by latency
 *     host      one step costs HOST_S of scheduling, plus launch gaps: the time of a step at batch
 *               1 that memory bandwidth does not explain
 *
 * Continuous batching at saturation: a sequence takes its share of prefill, then `output` steps;
 * slots = what the KV cache holds. docs/plan/serving.md compares it with published measurements of
 * vLLM and TensorRT-LLM. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"

/* vLLM 0.19, 8B on H100, c=1: 6.44 ms per token against 5.6 from bandwidth at 0.8. */
#define HOST_S 0.7e-3
/* Decode kernels of vLLM and TensorRT-LLM; training stacks reach less. */
#define BANDWIDTH_SHARE 0.80
#define PRODUCT_SHARE   0.70
#define MEMORY_SHARE    0.90 /* Share of the GPU's memory that an engine takes. */
#define ACTIVATION_GB   2.0

/* Bytes of keys and values of a sequence of this many tokens; layers with a window keep at most the
 * window. */
static double kv_bytes(const lt_plan_model *m, double tokens, double each) {
    /* The size of the latent. */
    const double width = m->kv_rank > 0 ? (double)(m->kv_rank + m->rope_dim)
                                        : 2.0 * (double)(m->n_kv_heads * m->head_dim);
    const double near = lt_plan_min(tokens, (double)m->window);
    return ((double)(m->n_attn - m->n_windowed) * tokens + (double)m->n_windowed * near) * width *
           each;
}

/* Weight bytes of the whole model that one decode step of b tokens reads. */
static double touched_bytes(const lt_plan_model *m, double b, double each) {
    const lt_plan_params p = lt_plan_model_params(m);
    double moe = 0;
    if (m->n_moe > 0) {
        const double share = 1.0 - pow(1.0 - (double)m->top_k / (double)m->n_experts, b);
        moe = p.moe - p.routed + p.routed * share;
    }
    return (p.attention + p.dense + moe + (double)m->vocab_size * (double)m->width) * each;
}

static double step_s(const lt_plan_model *m, const lt_plan_cluster *c, const lt_plan_serve_query *q,
                     double b, double context) {
    const double each = lt_plan_precision_bytes(q->precision),
                 bandwidth = c->gpu.memory_gbps * LT_PLAN_GB * BANDWIDTH_SHARE;
    const double read = touched_bytes(m, b, each) / q->tp / bandwidth;
    const double kv_split = m->kv_rank > 0 ? 1.0 : lt_plan_min(q->tp, (double)m->n_kv_heads);
    const double kv = b * kv_bytes(m, context, q->kv_bytes) / kv_split / bandwidth;
    const double flops = 2.0 *
                         (lt_plan_model_params(m).active - lt_plan_model_params(m).embedding) * b /
                         q->tp;
    const double compute = flops / (c->gpu.peak_tflops[q->precision] * 1e12 * PRODUCT_SHARE);
    const double comm = q->tp > 1 ? 2.0 * (double)m->n_layers *
                                        (lt_plan_collective_s(c, LT_PLAN_ALL_REDUCE,
                                                              b * (double)m->width * 2.0, q->tp, 1))
                                  : 0.0;
    return lt_plan_max(read, compute) + kv + comm + HOST_S;
}

static bool tp_fits(const lt_plan_model *m, int64_t tp) {
    const bool keys = m->kv_rank > 0 || m->n_kv_heads % tp == 0 || tp % m->n_kv_heads == 0;
    return m->n_attn == 0 || (m->n_heads % tp == 0 && keys);
}

lt_err lt_plan_serve_check(const lt_plan_model *m, const lt_plan_serve_query *q) {
    int64_t off = 0;
    while (!(off < q->tp && tp_fits(m, q->tp - off)) &&
           !(q->tp + off <= m->n_heads && tp_fits(m, q->tp + off))) {
        off++;
    }
    if (off > 0) {
        LT_FAIL(LT_ERR_ARG,
                "tp %d does not divide the %lld heads and %lld heads of keys of %s; the nearest "
                "that does is tp %lld",
                q->tp, (long long)m->n_heads, (long long)m->n_kv_heads, m->name,
                (long long)(off < q->tp && tp_fits(m, q->tp - off) ? q->tp - off : q->tp + off));
    }
    return LT_OK;
}

lt_plan_serve lt_plan_serve_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                     const lt_plan_serve_query *q) {
    lt_plan_serve r = {0};
    const double each = lt_plan_precision_bytes(q->precision),
                 context = (double)q->prompt + 0.5 * (double)q->output;
    const double room = MEMORY_SHARE * c->gpu.memory_bytes * q->tp -
                        ACTIVATION_GB * LT_PLAN_GB * q->tp;
    const double kv_copies = m->kv_rank > 0
                                 ? q->tp
                                 : lt_plan_max(1.0, (double)q->tp / (double)m->n_kv_heads);
    const lt_plan_params p = lt_plan_model_params(m);
    double prefill_flops, peak, cycle;

    LT_ASSERT(q->tp >= 1 && q->prompt >= 1 && q->output >= 1);
    r.weight_bytes = p.total * each;
    r.kv_bytes_token = kv_bytes(m, context, q->kv_bytes) / context;
    r.fits = r.weight_bytes < room;
    if (!r.fits) {
        return r;
    }
    r.kv_tokens = (room - r.weight_bytes) / (r.kv_bytes_token * kv_copies);
    r.batch = q->batch > 0 ? q->batch
                           : (int64_t)lt_plan_max(1.0, lt_plan_min(1024.0, r.kv_tokens / context));
    peak = c->gpu.peak_tflops[q->precision] * 1e12 * PRODUCT_SHARE * q->tp;
    prefill_flops = (2.0 * (p.active - p.embedding) +
                     lt_plan_model_flops(m, LT_PLAN_FLOPS_MODEL_CAUSAL, q->prompt) / 3.0 -
                     lt_plan_model_flops(m, LT_PLAN_FLOPS_SIX_N, q->prompt) / 3.0) *
                    (double)q->prompt;
    r.first_token_s = lt_plan_max(prefill_flops / peak,
                                  touched_bytes(m, (double)q->prompt, each) / q->tp /
                                      (c->gpu.memory_gbps * LT_PLAN_GB * BANDWIDTH_SHARE)) +
                      HOST_S;
    r.token_s = step_s(m, c, q, (double)r.batch, context);
    r.stream_tokens_s = 1.0 / step_s(m, c, q, 1.0, context);
    /* Time of one batch. */
    cycle = r.first_token_s * (double)r.batch + r.token_s * (double)q->output;
    r.output_tokens_s = (double)(r.batch * q->output) / cycle;
    r.total_tokens_s = (double)(r.batch * (q->output + q->prompt)) / cycle;
    return r;
}
