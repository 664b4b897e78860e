/* step.c: one optimiser step, put together: layers -> stage -> pipeline -> data parallel ->
 * optimiser.
 *
 *     stage F, B   work of ops.c + the part of its communication that does not hide
 *     pipeline     slowest stage * micro-batches + bubble (closed form)
 *     data         gradients are reduced during the last backward pass, parameters gathered during
 *                  the first forward pass; under ZeRO-3 every micro-batch gathers twice and reduces
 *                  once, unless there is a pipeline
 *     contention   communication that hides still takes SMs and memory bandwidth: HIDDEN_COST of
 *                  its time
 *
 * The parts of lt_plan_time sum to step_s by construction; a test holds it. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"

/* vTrain (MICRO 2024): collectives during training run 30 % slower, and slow down compute likewise:
 * 0.3 to 0.6. */
#define HIDDEN_COST 0.40
#define TOKEN_BYTES 4.0 /* Bytes of a token in a shard: a 32-bit id. */
/* Read g, m, v, p; write m, v, p and the bf16 copy; read g once more for the norm. */
#define OPTIMISER_BYTES   34.0
#define BF16_MOMENTS_SAVE 8.0 /* Bytes of these that bf16 m and v save. */

typedef struct {
    double exposed, hidden;
} split;

/* Hide a share of communication behind `cover` seconds of compute. */
static split hide(double comm, double share, double cover) {
    const double hidden = lt_plan_min(comm * share, cover);
    return (split){comm - hidden + HIDDEN_COST * hidden, hidden};
}

typedef struct {
    lt_plan_work f, b, r, head_f, head_b, embed;
    double tp, cp, ep; /* Exposed communication of one micro-batch, forward and backward. */
    double forward, backward, extra_last, extra_first;
} stage;

static double busy(const lt_plan_work *w) {
    return w->gemm_s + w->attention_s + w->elementwise_s + w->launch_s;
}

static stage stage_of(const lt_plan_job *j) {
    const lt_plan_stack *k = &j->c->stack;
    stage s = {.f = lt_plan_forward_work(j),
               .b = lt_plan_backward_work(j),
               .r = lt_plan_recompute_work(j),
               .head_f = lt_plan_head_work(j, false),
               .head_b = lt_plan_head_work(j, true),
               .embed = lt_plan_embed_work(j, true)};
    const double tp_f = hide(s.f.tp_s, k->tp_overlap, s.f.gemm_s).exposed;
    const double tp_b = hide(s.b.tp_s, k->tp_overlap, s.b.gemm_s).exposed +
                        hide(s.r.tp_s, k->tp_overlap, s.r.gemm_s).exposed;
    const double cp_f = hide(s.f.cp_s, 1.0, s.f.attention_s).exposed;
    const double cp_b = hide(s.b.cp_s, 1.0, s.b.attention_s).exposed +
                        hide(s.r.cp_s, 1.0, s.r.attention_s).exposed;
    const double ep_f = hide(s.f.ep_s, k->ep_overlap, busy(&s.f)).exposed;
    const double ep_b = hide(s.b.ep_s, k->ep_overlap, busy(&s.b)).exposed +
                        hide(s.r.ep_s, k->ep_overlap, busy(&s.r)).exposed;
    const double layers = (double)((j->m->n_layers + j->l->pp - 1) / j->l->pp);
    s.tp = tp_f + tp_b;
    s.cp = cp_f + cp_b;
    s.ep = ep_f + ep_b;
    s.forward = busy(&s.f) + tp_f + cp_f + ep_f;
    s.backward = busy(&s.b) + busy(&s.r) + tp_b + cp_b + ep_b;
    s.extra_last = busy(&s.head_f) + busy(&s.head_b) + s.head_f.tp_s + s.head_b.tp_s;
    s.extra_first = busy(&s.embed);
    if (j->l->pp > 1) { /* An end stage with fewer layers has room for its embedding or head. */
        const double layer = (s.forward + s.backward) / layers;
        s.extra_last -= layer * lt_plan_stage_short(j->m, j->l, j->l->pp - 1);
        s.extra_first -= layer * lt_plan_stage_short(j->m, j->l, 0);
    }
    return s;
}

static void pipeline_parts(const lt_plan_job *j, const stage *s, bool simulate, lt_plan_time *t) {
    const lt_plan_layout *l = j->l;
    const double bytes = (double)(l->micro * j->m->max_seq) / l->cp * (double)j->m->width * 2.0 /
                         (l->sp || l->tp > 1 ? l->tp : 1);
    const int64_t stride = (int64_t)l->tp * l->cp * (l->dp_outer ? 1 : l->dp);
    const double send = l->pp > 1 ? lt_plan_collective_s(j->c, LT_PLAN_SEND, bytes, 2, stride)
                                  : 0.0;
    /* Weight gradients are slightly less than half of the backward products, and recompute is not
     * part of them. */
    const lt_plan_pipeline p = {.stages = l->pp,
                                .chunks = l->vpp,
                                .micros = l->accum,
                                .schedule = l->pp == 1 ? LT_PLAN_ONE_F_ONE_B : l->schedule,
                                .forward_s = s->forward,
                                .backward_s = s->backward,
                                .weight_share = 0.5 * s->b.gemm_s / lt_plan_max(1e-12, s->backward),
                                .send_s = send,
                                .first_extra_s = l->pp > 1 ? s->extra_first : 0,
                                .last_extra_s = l->pp > 1 ? s->extra_last
                                                          : s->extra_last + s->extra_first};
    const double n = (double)l->accum;
    double all = lt_plan_pipeline_closed(&p), run_s;
    /* In the steady state, sends between stages overlap only partly with compute; each chunk sends
     * both ways. */
    const double sends = l->pp > 1 ? n * 2.0 * l->vpp * send * (1.0 - j->c->stack.dp_overlap) : 0.0;
    const double extra = lt_plan_max(p.first_extra_s, p.last_extra_s);
    if (simulate && l->pp > 1 && lt_plan_pipeline_simulate(&p, &run_s, NULL, 0, NULL) == LT_OK) {
        all = run_s;
    }
    t->forward_s = s->forward;
    t->backward_s = s->backward;
    t->gemm = n * (s->f.gemm_s + s->b.gemm_s + s->r.gemm_s);
    t->attention = n * (s->f.attention_s + s->b.attention_s + s->r.attention_s);
    t->elementwise = n * (s->f.elementwise_s + s->b.elementwise_s + s->r.elementwise_s);
    t->launch = n * (s->f.launch_s + s->b.launch_s + s->r.launch_s);
    t->tp_comm = n * s->tp;
    t->cp_comm = n * s->cp;
    t->ep_comm = n * s->ep;
    t->pp_comm = sends;
    if (extra > 0) { /* The head counts by its products and traffic. */
        const double whole = busy(&s->head_f) + busy(&s->head_b),
                     gemm = s->head_f.gemm_s + s->head_b.gemm_s;
        t->gemm += n * extra * gemm / lt_plan_max(whole, 1e-12);
        t->elementwise += n * extra * (1.0 - gemm / lt_plan_max(whole, 1e-12));
    }
    t->bubble = all - n * (s->forward + s->backward + lt_plan_max(0.0, extra));
    t->comm_total_s = n * (s->f.tp_s + s->b.tp_s + s->r.tp_s + s->f.cp_s + s->b.cp_s + s->f.ep_s +
                           s->b.ep_s) +
                      sends;
}

static void data_parts(const lt_plan_job *j, const stage *s, lt_plan_time *t) {
    const lt_plan_layout *l = j->l;
    const lt_plan_share p = lt_plan_stage_params(j->m, l, l->pp > 1 ? 1 : 0);
    const double grad = l->fp32_grads ? 4.0 : 2.0, n = (double)l->accum;
    const int64_t ranks = lt_plan_zero_ranks(l),
                  stride = (int64_t)l->tp * (l->dp_outer ? l->pp : 1);
    const int64_t e_ranks = lt_plan_expert_zero_ranks(l), e_stride = l->ep;
    double reduce =
        lt_plan_collective_s(j->c, LT_PLAN_REDUCE_SCATTER, p.dense * grad, ranks, stride) +
        lt_plan_collective_s(j->c, LT_PLAN_REDUCE_SCATTER, p.expert * grad, e_ranks, e_stride);
    /* Weights with one scale per tensor may be sent in 8 bits; blocks are cast after the gather. */
    const double param = j->c->stack.quantised_params > 0 && l->precision == LT_PLAN_FP8 ? 1.0
                                                                                         : 2.0;
    double gather = lt_plan_collective_s(j->c, LT_PLAN_ALL_GATHER, p.dense * param, ranks, stride) +
                    lt_plan_collective_s(j->c, LT_PLAN_ALL_GATHER, p.expert * param, e_ranks,
                                         e_stride);
    if (l->tune == LT_PLAN_TUNE_LORA) {
        reduce = gather = 0;
    }
    /* The stage stays gathered and its gradients stay whole, so this happens once per step
     * (memory.c). */
    if (l->zero >= 3 && l->pp > 1) {
        t->dp_comm = hide(gather, j->c->stack.dp_overlap, s->forward).exposed +
                     hide(reduce, j->c->stack.dp_overlap, s->backward).exposed;
        t->comm_total_s += gather + reduce;
        return;
    }
    if (l->zero >= 3) {
        const split f = hide(gather, j->c->stack.dp_overlap, s->forward),
                    b = hide(gather + reduce, j->c->stack.dp_overlap, s->backward);
        t->dp_comm = n * (f.exposed + b.exposed);
        t->comm_total_s += n * (2.0 * gather + reduce);
        return;
    }
    if (l->zero == 0) {
        gather = reduce; /* The other half of the all-reduce also comes after the backward pass. */
        t->dp_comm = hide(reduce + gather, j->c->stack.dp_overlap, s->backward).exposed;
    } else {
        t->dp_comm = hide(reduce, j->c->stack.dp_overlap, s->backward).exposed +
                     hide(gather, j->c->stack.dp_overlap, s->forward).exposed;
    }
    t->comm_total_s += reduce + gather;
}

static void optimiser_part(const lt_plan_job *j, lt_plan_time *t) {
    const lt_plan_layout *l = j->l;
    const lt_plan_share p = lt_plan_stage_params(j->m, l, 0);
    const double own = l->zero >= 1 ? p.dense / lt_plan_zero_ranks(l) +
                                          p.expert / lt_plan_expert_zero_ranks(l)
                                    : p.dense + p.expert;
    if (l->tune == LT_PLAN_TUNE_LORA) {
        return;
    }
    t->optimiser = own * (OPTIMISER_BYTES - (l->bf16_moments ? BF16_MOMENTS_SAVE : 0.0)) /
                   (j->c->gpu.memory_gbps * LT_PLAN_GB * j->c->stack.memory);
}

static lt_plan_time estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                             const lt_plan_layout *l, bool simulate) {
    const lt_plan_job j = {m, c, l};
    const stage s = stage_of(&j);
    const double gpus = (double)lt_plan_layout_gpus(l),
                 tokens = (double)(l->micro * l->accum * l->dp) * (double)m->max_seq;
    const double peak = c->gpu.peak_tflops[LT_PLAN_BF16] * 1e12;
    lt_plan_time t = {0};

    LT_ASSERT(m != NULL && c != NULL && l != NULL);
    pipeline_parts(&j, &s, simulate, &t);
    data_parts(&j, &s, &t);
    optimiser_part(&j, &t);
    t.step_s = t.gemm + t.attention + t.elementwise + t.launch + t.tp_comm + t.cp_comm + t.ep_comm +
               t.pp_comm + t.dp_comm + t.bubble + t.optimiser;
    /* The next batch is read during this step's compute. */
    t.data = lt_plan_max(0.0,
                         tokens * TOKEN_BYTES / (c->storage_read_gbps * LT_PLAN_GB) - t.step_s);
    t.step_s += t.data;
    if (gpus > c->gpu.node_gpus) {
        t.straggler = t.step_s * c->straggler;
        t.step_s += t.straggler;
    }
    t.tokens_s = tokens / t.step_s;
    t.tokens_s_gpu = t.tokens_s / gpus;
    t.mfu = t.tokens_s_gpu * lt_plan_model_flops(m, LT_PLAN_FLOPS_MODEL_CAUSAL, m->max_seq) / peak;
    if (l->tune == LT_PLAN_TUNE_LORA) {
        t.mfu *= 2.0 / 3.0; /* Without weight gradients: 4 N of the 6 N. */
    }
    t.hfu = t.mfu * (l->recompute == LT_PLAN_RECOMPUTE_FULL ? 4.0 / 3.0 : 1.0);
    return t;
}

lt_plan_time lt_plan_step_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                   const lt_plan_layout *l) {
    return estimate(m, c, l, false);
}

lt_plan_time lt_plan_step_simulate(const lt_plan_model *m, const lt_plan_cluster *c,
                                   const lt_plan_layout *l) {
    return estimate(m, c, l, true);
}
