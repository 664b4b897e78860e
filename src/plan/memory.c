/* memory.c: bytes per GPU by kind, on the fullest pipeline stage.
 *
 *     weights      2 B a parameter (4 in fp32); ZeRO-3 keeps 1/ranks, plus what is gathered in `buffers`
 *     gradients    4 or 2 B; from ZeRO-2 on 1/ranks
 *     optimiser    fp32 master + Adam's two moments, 12 B; from ZeRO-1 on 1/ranks
 *     activations  per layer (Korthikanti et al. 2022, arXiv:2205.05198, eq. 1-6, generalised to gated, grouped-query, MoE
 *                  and flash attention) x layers of the stage x micro-batches in flight
 *                      GPipe all; 1F1B stage p: min(pp - p, accum); interleaved: pp (1 + (pp-1)/(pp vpp)) of stage 0
 *     logits       of one micro-batch on the last stage, with what the stack keeps beside them
 *     margin       fragmentation: 4 % of everything that the allocator moves
 *
 * With dropout masks and unfused attention the layer formula is the paper's, term by term:
 *     s b h (10 + 24/t + 5 a s / (h t))     and with sequence parallelism     s b h / t (34 + 5 a s / h). */
#include "base/error.h"
#include "plan/plan.h"

#define MARGIN_SHARE 0.04
#define RUNTIME_BYTES                                                                              \
    (1.5 * LT_PLAN_GB) /* CUDA context, NCCL channels, cuBLAS workspace; seen on A100 and H100. */

typedef struct {
    double whole, split; /* Bytes per token: not divided by tp without SP, and always divided. */
} act;

static act attention_act(const lt_plan_model *m, const lt_plan_layout *l,
                         lt_plan_attention kernel) {
    const double w = (double)m->width, h = (double)m->heads, d = (double)m->head_dim,
                 g = (double)m->kv_heads;
    const double keys = (double)m->seq / l->cp *
                        l->cp; /* A query sees the whole sequence also under CP. */
    act a = {.whole = 2.0 * w + 2.0 * w +
                      (m->dropout ? w : 0.0)}; /* Norm input, QKV input, dropout mask. */
    if (m->kv_rank > 0) {
        const double qk = (double)(m->nope_dim + m->rope_dim), v = (double)m->v_dim;
        a.whole += 2.0 * (double)(m->q_rank + m->kv_rank + m->rope_dim) *
                   2.0; /* Latents and their norms. */
        a.split = 2.0 * h * (2.0 * qk + v) + 2.0 * h * v;
    } else {
        a.split = 2.0 * (h * d + 2.0 * g * d) + 2.0 * h * d;
    }
    if (kernel == LT_PLAN_ATTENTION_UNFUSED && l->recompute == LT_PLAN_RECOMPUTE_NONE) {
        a.split += (m->dropout ? 5.0 : 2.0) * h * keys;
    } else if (kernel != LT_PLAN_ATTENTION_UNFUSED) {
        a.split += 4.0 * h; /* Log-sum-exp. */
    }
    return a;
}

static double ffn_act(const lt_plan_model *m, double f, bool keep_output) {
    return (m->gated ? 4.0 : 2.0) * f + (keep_output ? 2.0 * f : 0.0);
}

static act block_act(const lt_plan_model *m, const lt_plan_layout *l, lt_plan_attention kernel) {
    const double blocks = (double)m->layers, w = (double)m->width;
    /* Selective recompute means the attention core where that is stored, else norms and activation functions. */
    const bool drop = l->recompute == LT_PLAN_RECOMPUTE_SELECTIVE &&
                      kernel != LT_PLAN_ATTENTION_UNFUSED;
    const double attn = (double)m->n_attn / blocks, mamba = (double)m->n_mamba / blocks;
    const double dense = (double)m->n_dense / blocks, moe = (double)m->n_moe / blocks;
    act a = attention_act(m, l, kernel), sum;

    sum.whole = attn * a.whole + (dense + moe) * (4.0 * w + (m->dropout ? w : 0.0));
    sum.split = attn * a.split + dense * ffn_act(m, (double)m->ffn, !drop);
    if (drop) {
        sum.whole -= 2.0 * w * (attn + dense + moe); /* Norm outputs. */
    }
    if (m->n_moe > 0) {
        const double k = (double)m->topk, in = (double)(m->latent > 0 ? m->latent : m->width);
        const double fe = (double)m->expert_ffn, fs = (double)m->shared_ffn;
        sum.split += moe * (k * (4.0 * in + ffn_act(m, fe, !drop)) +
                            (fs > 0 ? ffn_act(m, fs, !drop) : 0.0) + 4.0 * (double)m->experts);
    }
    if (m->n_mamba > 0) {
        const double d = (double)(m->mamba_heads * m->mamba_dim),
                     bc = 2.0 * (double)(m->mamba_groups * m->mamba_state);
        sum.whole += mamba * 4.0 * w;
        sum.split += mamba * 2.0 * (2.0 * d + bc + (d + bc) + 2.0 * d);
    }
    return sum;
}

double lt_plan_activation_layer_bytes(const lt_plan_model *m, const lt_plan_layout *l,
                                      lt_plan_attention attention) {
    const double tokens = (double)(l->micro * m->seq) / l->cp, tp = l->tp;
    act a;
    if (l->recompute == LT_PLAN_RECOMPUTE_FULL) {
        return tokens * 2.0 * (double)m->width / (l->sp ? tp : 1.0); /* Only the layer's input. */
    }
    a = block_act(m, l, attention);
    return tokens * (a.whole / (l->sp ? tp : 1.0) + a.split / tp);
}

/* Micro-batches whose activations live at once on a stage, in units of whole stages. */
static double in_flight(const lt_plan_layout *l, int stage) {
    const double accum = (double)l->accum, pp = l->pp;
    if (l->schedule == LT_PLAN_GPIPE) {
        return accum;
    }
    if (l->vpp > 1) {
        return lt_plan_min(accum,
                           pp * (1.0 + (pp - 1.0) / (pp * l->vpp)) - 2.0 * stage / (double)l->vpp);
    }
    return lt_plan_min(accum, (double)(l->pp - stage));
}

static double state_bytes(double dense, double expert, double each, bool sharded,
                          const lt_plan_layout *l) {
    return each * (dense / (sharded ? lt_plan_zero_ranks(l) : 1) +
                   expert / (sharded ? lt_plan_expert_zero_ranks(l) : 1));
}

static lt_plan_memory stage_memory(const lt_plan_job *j, int stage) {
    const lt_plan_layout *l = j->l;
    const lt_plan_model *m = j->m;
    const lt_plan_share p = lt_plan_stage_params(m, l, stage);
    const double layers = (double)((m->layers + l->pp - 1) / l->pp) -
                          lt_plan_stage_short(m, l, stage),
                 tokens = (double)(l->micro * m->seq) / l->cp;
    const double weight = l->precision == LT_PLAN_FP32 ? 4.0 : 2.0;
    const bool lora = l->tune == LT_PLAN_TUNE_LORA;
    lt_plan_layout whole = *l;
    lt_plan_memory r = {.stage = stage};

    r.weights = state_bytes(p.dense, p.expert, weight, l->zero >= 3, l);
    if (!lora) {
        r.gradients = state_bytes(p.dense, p.expert, l->fp32_grads ? 4.0 : 2.0, l->zero >= 2, l);
        r.optimizer = state_bytes(p.dense, p.expert, l->precision == LT_PLAN_FP32 ? 8.0 : 12.0,
                                  l->zero >= 1, l);
    }
    r.activations = lt_plan_activation_layer_bytes(m, l, j->c->stack.attention) * layers *
                    in_flight(l, stage);
    if (j->c->stack.deepspeed_pipe > 0 && l->pp > 1) {
        const double boundary = tokens * 2.0 * (double)m->width / (l->sp ? l->tp : 1.0);
        const double buffers = lt_plan_min((double)l->accum, in_flight(l, stage) + 1.0);
        r.activations *= buffers / in_flight(l, stage);
        r.activations += 2.0 * boundary * buffers;
        if (l->fp32_grads) { /* BF16_Optimizer keeps the bf16 gradients beside its fp32 ones. */
            r.gradients += state_bytes(p.dense, p.expert, 2.0, false, l);
        }
    }
    if (l->recompute ==
        LT_PLAN_RECOMPUTE_FULL) { /* One layer is alive in full while its backward pass runs. */
        whole.recompute = LT_PLAN_RECOMPUTE_NONE;
        r.activations += lt_plan_activation_layer_bytes(m, &whole, j->c->stack.attention);
    }
    if (stage == l->pp - 1) {
        r.logits = tokens * (double)m->vocab / l->tp * j->c->stack.logit_bytes;
    }
    r.buffers = RUNTIME_BYTES;
    if (l->zero >= 3 && l->pp == 1) {
        r.buffers += 2.0 * 2.0 * (p.dense + p.expert) / layers;
    } else if (
        l->zero >=
        3) { /* Under a pipeline the stage stays gathered, and its gradients whole, from the first micro-batch to the last. */
        r.buffers += 4.0 * (p.dense + p.expert);
    }
    r.margin = MARGIN_SHARE * (r.activations + r.logits + r.gradients + r.buffers);
    r.total = r.weights + r.gradients + r.optimizer + r.activations + r.logits + r.buffers +
              r.margin;
    return r;
}

lt_plan_memory lt_plan_memory_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                       const lt_plan_layout *l) {
    const lt_plan_job j = {m, c, l};
    lt_plan_memory first, last;
    LT_ASSERT(m != NULL && c != NULL && l != NULL);
    first = stage_memory(&j, 0);
    if (l->pp == 1) {
        return first;
    }
    last = stage_memory(&j, l->pp - 1);
    return last.total > first.total ? last : first;
}
