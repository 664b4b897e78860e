/* layout.c: how a model is split over GPUs: checks that name two contradicting facts, shares of
 * parameters, text.
 *
 * World = tp * cp * dp * pp. Expert parallelism folds into the ranks of one stage: ep divides tp *
 * cp * dp, experts are not split by tp, and what is left (tp * cp * dp / ep) holds copies of the
 * same experts. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"

int64_t lt_plan_layout_gpus(const lt_plan_layout *l) {
    return (int64_t)l->tp * l->pp * l->cp * l->dp;
}

static lt_err check_sizes(const lt_plan_layout *l) {
    if (l->tp < 1 || l->pp < 1 || l->vpp < 1 || l->cp < 1 || l->ep < 1 || l->dp < 1 ||
        l->micro < 1 || l->accum < 1) {
        LT_FAIL(LT_ERR_ARG,
                "layout: every degree must be at least 1 (tp %d pp %d vpp %d cp %d ep %d dp %d "
                "micro %lld accum %lld)",
                l->tp, l->pp, l->vpp, l->cp, l->ep, l->dp, (long long)l->micro,
                (long long)l->accum);
    }
    if (l->zero < 0 || l->zero > 3) {
        LT_FAIL(LT_ERR_ARG, "layout: ZeRO stage %d is not 0, 1, 2 or 3", l->zero);
    }
    if (l->vpp > 1 && l->pp == 1) {
        LT_FAIL(LT_ERR_ARG, "layout: %d virtual stages contradict pp 1 (no pipeline)", l->vpp);
    }
    if (l->zero == 3 && l->pp > 1 && l->accum > 1 && l->vpp > 1) {
        return LT_OK; /* Allowed, since torchtitan does it, but slow. */
    }
    return LT_OK;
}

lt_err lt_plan_layout_check(const lt_plan_layout *l, const lt_plan_model *m,
                            const lt_plan_cluster *c) {
    const int64_t gpus = lt_plan_layout_gpus(l);
    LT_TRY(check_sizes(l));
    if (gpus > c->gpus) {
        LT_FAIL(LT_ERR_ARG,
                "layout: tp %d x cp %d x dp %d x pp %d = %lld GPUs, but cluster %s has %lld", l->tp,
                l->cp, l->dp, l->pp, (long long)gpus, c->name, (long long)c->gpus);
    }
    if (m->n_attn > 0 && m->n_heads % l->tp != 0) {
        LT_FAIL(LT_ERR_ARG, "layout: tp %d does not divide the %lld attention heads of %s", l->tp,
                (long long)m->n_heads, m->name);
    }
    if (l->pp > m->n_layers) {
        LT_FAIL(LT_ERR_ARG, "layout: pp %d is more than the %lld layers of %s", l->pp,
                (long long)m->n_layers, m->name);
    }
    if (l->ep > 1 && m->n_experts == 0) {
        LT_FAIL(LT_ERR_ARG, "layout: ep %d, but %s has no experts", l->ep, m->name);
    }
    if (l->ep > 1 && (m->n_experts % l->ep != 0 || (l->tp * l->cp * l->dp) % l->ep != 0)) {
        LT_FAIL(LT_ERR_ARG, "layout: ep %d must divide the %lld experts and tp x cp x dp = %d",
                l->ep, (long long)m->n_experts, l->tp * l->cp * l->dp);
    }
    if (m->max_seq % ((int64_t)2 * l->cp) != 0 && l->cp > 1) {
        LT_FAIL(LT_ERR_ARG, "layout: cp %d needs sequences divisible by %d, they are %lld tokens",
                l->cp, 2 * l->cp, (long long)m->max_seq);
    }
    if (c->gpu.peak_tflops[l->precision] <= 0 && l->precision != LT_PLAN_FP32) {
        static const char *const names[] = {
#define PRECISION_NAME(code, name) name,
            LT_PLAN_PRECISION_MAP(PRECISION_NAME)};
        LT_FAIL(LT_ERR_ARG, "layout: precision %s, but %s has no such units", names[l->precision],
                c->gpu.name);
    }
    return LT_OK;
}

char *lt_plan_layout_text(char out[LT_PLAN_TEXT_BYTES], const lt_plan_layout *l) {
    static const char *const recompute[] = {"none", "selective", "full"};
    char vpp[24] = "", cp[24] = "", ep[24] = "", zero[24] = "", re[32] = "";
    if (l->vpp > 1) {
        snprintf(vpp, sizeof vpp, "x%d", l->vpp);
    }
    if (l->cp > 1) {
        snprintf(cp, sizeof cp, " CP%d", l->cp);
    }
    if (l->ep > 1) {
        snprintf(ep, sizeof ep, " EP%d", l->ep);
    }
    if (l->zero > 0) {
        snprintf(zero, sizeof zero, " Z%d", l->zero);
    }
    if (l->recompute != LT_PLAN_RECOMPUTE_NONE) {
        snprintf(re, sizeof re, " re-%s", recompute[l->recompute]);
    }
    snprintf(out, LT_PLAN_TEXT_BYTES, "TP%d%s PP%d%s%s%s %s%d%s mb%lld x%lld%s", l->tp,
             l->sp && l->tp > 1 ? "+SP" : "", l->pp, vpp, cp, ep, l->dp_outer ? "DPo" : "DP", l->dp,
             zero, (long long)l->micro, (long long)l->accum, re);
    return out;
}

/* Layers of the fullest stage; embedding and head count as none here (step.c adds them). */
static double stage_layers(const lt_plan_model *m, const lt_plan_layout *l) {
    return (double)((m->n_layers + l->pp - 1) / l->pp);
}

/* Number of layers that a stage has less than the fullest. One or two fewer are deliberate, to
 * balance head and embedding; with more, the last stage just gets the rest (DeepSpeed's partition:
 * 78 layers on 12 stages are 7 ... 7, 1). */
double lt_plan_stage_short(const lt_plan_model *m, const lt_plan_layout *l, int stage) {
    const double full = stage_layers(m, l), missing = full * l->pp - (double)m->n_layers;
    if (l->pp == 1 || (stage != 0 && stage != l->pp - 1)) {
        return 0;
    }
    if (missing <= 2) {
        return missing >= (stage == 0 ? 2 : 1) ? 1 : 0;
    }
    return stage == 0 ? 0 : lt_plan_min(missing, l->vpp > 1 ? full / l->vpp : full - 1);
}

lt_plan_share lt_plan_stage_params(const lt_plan_model *m, const lt_plan_layout *l, int stage) {
    const lt_plan_params p = lt_plan_model_params(m);
    const double even = stage_layers(m, l) / (double)m->n_layers, tp = l->tp;
    const double layers = even - lt_plan_stage_short(m, l, stage) / (double)m->n_layers;
    lt_plan_share s;

    s.expert = layers * p.routed / l->ep;
    s.dense = layers * (p.attention + p.dense + p.moe - p.routed) / tp;
    if (stage == 0) {
        s.dense += p.embedding / tp;
    }
    if (stage == l->pp - 1) {
        s.dense += (m->tied && l->pp > 1 ? (double)m->vocab_size * (double)m->width : p.head) / tp;
    }
    return s;
}

int lt_plan_zero_ranks(const lt_plan_layout *l) {
    return l->dp * l->cp;
}

int lt_plan_expert_zero_ranks(const lt_plan_layout *l) {
    const int ranks = l->tp * l->cp * l->dp / l->ep;
    return ranks > 0 ? ranks : 1;
}

double lt_plan_precision_bytes(lt_plan_precision p) {
    switch (p) {
    case LT_PLAN_FP32:
        return 4.0;
    case LT_PLAN_BF16:
        return 2.0;
    case LT_PLAN_FP8:
    case LT_PLAN_MXFP8:
    case LT_PLAN_FP8ROW:
        return 1.0;
    case LT_PLAN_NVFP4:
        return 0.5625; /* 4 bits, and one scale byte per 16. */
    case LT_PLAN_PRECISION_COUNT:
        break;
    }
    return 2.0;
}
