/* memory.c: bytes per GPU by kind, on the fullest pipeline stage.
 *
 *     weights      2 B a parameter (4 in fp32); ZeRO-3 keeps 1/ranks, plus what is gathered in
 *                  `buffers`
 *     gradients    4 or 2 B; from ZeRO-2 on 1/ranks
 *     optimiser    fp32 master (in fp32: the weights) + Adam's two moments, 12 B, with moments in
 *                  bf16 8; from ZeRO-1 on 1/ranks
 *     activations  per layer (Korthikanti et al. 2022, arXiv:2205.05198, eq. 1-6, generalised to
 *                  gated, grouped-query, MoE and flash attention) x layers of the stage x
 *                  micro-batches in flight
 *                      GPipe: all; 1F1B, stage p: min(pp - p, accum); zero-bubble: min(pp, accum);
 *                      interleaved, stage 0: pp (1 + (pp - 1) / (pp vpp))
 *     logits       of one micro-batch on the last stage, with the copies that the stack keeps
 *     buffers      CUDA context, NCCL, what ZeRO-3 gathers and reduces, gradients of the layer
 *                  whose backward pass runs
 *     margin       fragmentation: 4 % of everything that the allocator moves
 *
 * A published figure is one of three things, which differ by a tenth and more (see
 * lt_plan_memory_shown):
 *     allocated    torch.cuda.max_memory_allocated: tensors alone
 *     reserved     max_memory_reserved: also what the caching allocator keeps of freed blocks. It
 *                  returns nothing while memory is left, and blocks of different sizes are not
 *                  interchangeable, so the phases of a step add up instead of sharing
 *     device       nvidia-smi: reserved, and what lives outside the allocator: context, kernels,
 *                  NCCL
 *
 * With dropout masks and unfused attention the layer formula is the paper's, term by term:
 *     s b h (10 + 24/t + 5 a s / (h t)),
 * and with sequence parallelism
 *     s b h / t (34 + 5 a s / h). */
#include "base/error.h"
#include "plan/plan.h"

#define MARGIN_SHARE 0.04
/* Context and kernels of a PyTorch process: 1,573 MiB on an A100 (BigScience's log), of which the
 * later lazy loading of kernels leaves less. A communicator holds 4 MiB and smaller buffers per
 * channel and direction (NCCL_BUFFSIZE, up to 24 to 32 channels), a few hundred MiB, and a job
 * opens several. */
#define CONTEXT_BYTES (1.5 * LT_PLAN_GB)
#define NCCL_BYTES    (1.0 * LT_PLAN_GB)
/* Share of the caching allocator's reserve that no tensor uses. GMLake (ASPLOS 2024,
 * arXiv:2401.08156) reports 15 % on average and up to 33 % over eight models trained on A100s. */
#define IDLE_SHARE 0.11

typedef struct {
    double whole, split; /* Bytes per token: not divided by tp without SP; always divided. */
} act;

static act attention_act(const lt_plan_model *m, const lt_plan_layout *l,
                         lt_plan_attention kernel) {
    const double w = (double)m->width, h = (double)m->n_heads, d = (double)m->head_dim,
                 g = (double)m->n_kv_heads;
    /* A query sees the whole sequence, also under CP. */
    const double keys = (double)m->max_seq / l->cp * l->cp;
    /* Norm input, QKV input, dropout mask. */
    act a = {.whole = 2.0 * w + 2.0 * w + (m->dropout ? w : 0.0)};
    if (m->kv_rank > 0) {
        const double qk = (double)(m->nope_dim + m->rope_dim), v = (double)m->v_dim;
        /* The latents and their norms. */
        a.whole += 2.0 * (double)(m->q_rank + m->kv_rank + m->rope_dim) * 2.0;
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
    const double blocks = (double)m->n_layers, w = (double)m->width;
    /* Selective recompute covers the attention core if that is stored, else the norms and
     * activation functions. */
    const bool drop = l->recompute == LT_PLAN_RECOMPUTE_SELECTIVE &&
                      kernel != LT_PLAN_ATTENTION_UNFUSED;
    const double attn = (double)m->n_attn / blocks, mamba = (double)m->n_mamba / blocks;
    const double dense = (double)m->n_dense / blocks, moe = (double)m->n_moe / blocks;
    act a = attention_act(m, l, kernel), sum;

    sum.whole = attn * a.whole + (dense + moe) * (4.0 * w + (m->dropout ? w : 0.0));
    sum.split = attn * a.split + dense * ffn_act(m, (double)m->ffn_width, !drop);
    if (drop) {
        sum.whole -= 2.0 * w * (attn + dense + moe); /* Norm outputs are recomputed. */
    }
    if (m->n_moe > 0) {
        const double k = (double)m->top_k, in = (double)(m->latent > 0 ? m->latent : m->width);
        const double fe = (double)m->expert_ffn_width, fs = (double)m->shared_ffn_width;
        sum.split += moe * (k * (4.0 * in + ffn_act(m, fe, !drop)) +
                            (fs > 0 ? ffn_act(m, fs, !drop) : 0.0) + 4.0 * (double)m->n_experts);
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
    const double tokens = (double)(l->micro * m->max_seq) / l->cp, tp = l->tp;
    act a;
    if (l->recompute == LT_PLAN_RECOMPUTE_FULL) {
        /* Only the layer's input is kept. */
        return tokens * 2.0 * (double)m->width / (l->sp ? tp : 1.0);
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
    if (l->schedule == LT_PLAN_ZERO_BUBBLE) { /* A late stage defers more weight gradients. */
        return lt_plan_min(accum, pp);
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

/* A layer's results that torchtitan's selective recomputation by op keeps: attention's, and every
 * other product's, in the order in which they run: of q k v o w1 w3 w2 the first, third, fifth and
 * seventh (torchtitan/models/llama3/parallelize_llama.py). */
static double op_selective_bytes(const lt_plan_model *m) {
    const double q = (double)(m->n_heads * m->head_dim), v = (double)(m->n_kv_heads * m->head_dim);
    return 2.0 * ((double)m->width + 2.0 * q + v + (double)m->ffn_width + (double)m->width);
}

static double layer_bytes(const lt_plan_job *j) {
    const lt_plan_layout *l = j->l;
    if (j->c->stack.op_selective > 0 && l->recompute == LT_PLAN_RECOMPUTE_SELECTIVE &&
        j->m->n_dense == j->m->n_layers) {
        return (double)(l->micro * j->m->max_seq) / l->cp * op_selective_bytes(j->m) / l->tp;
    }
    return lt_plan_activation_layer_bytes(j->m, l, j->c->stack.attention);
}

static double runtime_bytes(const lt_plan_layout *l) {
    return CONTEXT_BYTES + (lt_plan_layout_gpus(l) > 1 ? NCCL_BYTES : 0.0);
}

/* Gradients of one layer's activations during its backward pass: three (or two) of the feed-forward
 * part, and the residual stream's. */
static double backward_bytes(const lt_plan_job *j) {
    const lt_plan_model *m = j->m;
    const double f = m->n_dense > 0 ? (double)m->ffn_width
                                    : (double)m->top_k * (double)m->expert_ffn_width;
    return (double)(j->l->micro * m->max_seq) / j->l->cp * 2.0 *
           ((m->gated ? 3.0 : 2.0) * f + 2.0 * (double)m->width) / j->l->tp;
}

/* What ZeRO-3 holds beyond its shards. FSDP gathers two layers, and the embedding and the head
 * once, in 2 bytes; gradients go to their reduction in 4. Under a pipeline a stage stays gathered,
 * and its gradients whole in 4 bytes, from the first micro-batch to the last. */
static double gathered_bytes(const lt_plan_job *j, const lt_plan_share *p, double layers) {
    const double ends = (double)j->m->vocab_size * (double)j->m->width / j->l->tp;
    const double one = lt_plan_max(0.0, p->dense + p->expert - 2.0 * ends) / layers;
    if (j->l->pp > 1) {
        return (2.0 + 4.0) * (p->dense + p->expert);
    }
    return 2.0 * (2.0 * one + 2.0 * ends) + 4.0 * lt_plan_max(one, ends);
}

static lt_plan_memory stage_memory(const lt_plan_job *j, int stage) {
    const lt_plan_layout *l = j->l;
    const lt_plan_model *m = j->m;
    const lt_plan_share p = lt_plan_stage_params(m, l, stage);
    const double layers = (double)((m->n_layers + l->pp - 1) / l->pp) -
                          lt_plan_stage_short(m, l, stage),
                 tokens = (double)(l->micro * m->max_seq) / l->cp;
    const double weight = l->precision == LT_PLAN_FP32 ? 4.0 : 2.0;
    const double master = l->precision == LT_PLAN_FP32 ? 0.0 : 4.0;
    const bool lora = l->tune == LT_PLAN_TUNE_LORA;
    lt_plan_layout whole = *l;
    lt_plan_memory r = {.stage = stage};

    r.weights = state_bytes(p.dense, p.expert, weight, l->zero >= 3, l);
    if (!lora) {
        r.gradients = state_bytes(p.dense, p.expert, l->fp32_grads ? 4.0 : 2.0, l->zero >= 2, l);
        r.optimiser = state_bytes(p.dense, p.expert, master + (l->bf16_moments ? 4.0 : 8.0),
                                  l->zero >= 1, l);
    }
    r.activations = layer_bytes(j) * layers * in_flight(l, stage);
    if (j->c->stack.deepspeed_pipe > 0 && l->pp > 1) {
        const double boundary = tokens * 2.0 * (double)m->width / (l->sp ? l->tp : 1.0);
        const double buffers = lt_plan_min((double)l->accum, in_flight(l, stage) + 1.0);
        r.activations *= buffers / in_flight(l, stage);
        r.activations += 2.0 * boundary * buffers;
        if (l->fp32_grads) { /* BF16_Optimizer keeps the bf16 gradients beside its fp32 ones. */
            r.gradients += state_bytes(p.dense, p.expert, 2.0, false, l);
        }
    }
    /* All activations of one layer exist while its backward pass runs. */
    if (l->recompute == LT_PLAN_RECOMPUTE_FULL) {
        whole.recompute = LT_PLAN_RECOMPUTE_NONE;
        r.activations += lt_plan_activation_layer_bytes(m, &whole, j->c->stack.attention);
    }
    if (stage == l->pp - 1) {
        r.logits = tokens * (double)m->vocab_size / l->tp * j->c->stack.logit_bytes;
    }
    r.buffers = runtime_bytes(l) + backward_bytes(j);
    if (l->zero >= 3) {
        r.buffers += gathered_bytes(j, &p, layers);
        /* DTensor keeps what it gathered of a layer's two inputs; Megatron gathers again. */
        if (l->sp && l->tp > 1) {
            r.buffers += 2.0 * tokens * 2.0 * (double)m->width;
        }
    }
    r.margin = MARGIN_SHARE * (r.activations + r.logits + r.gradients + r.buffers);
    r.total = r.weights + r.gradients + r.optimiser + r.activations + r.logits + r.buffers +
              r.margin;
    return r;
}

lt_plan_memory lt_plan_memory_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                       const lt_plan_layout *l) {
    const lt_plan_job j = {m, c, l};
    /* The first stage holds the most micro-batches, and the last the logits; the second has one
     * layer more than a first stage that makes room for the embedding. */
    const int stages[] = {0, 1, l->pp - 1};
    lt_plan_memory most;
    LT_ASSERT(m != NULL && c != NULL && l != NULL);
    most = stage_memory(&j, 0);
    for (int i = 1; i < 3 && l->pp > 1; i++) {
        const lt_plan_memory r = stage_memory(&j, stages[i]);
        most = r.total > most.total ? r : most;
    }
    return most;
}

double lt_plan_memory_shown(const lt_plan_memory *r, const lt_plan_layout *l,
                            lt_plan_memory_figure figure) {
    const double tensors = r->total - r->margin - runtime_bytes(l);
    LT_ASSERT(r != NULL && l != NULL);
    if (figure == LT_PLAN_MEMORY_ALLOCATED) {
        return tensors;
    }
    return tensors / (1.0 - IDLE_SHARE) +
           (figure == LT_PLAN_MEMORY_DEVICE ? runtime_bytes(l) : 0.0);
}
