/* search.c: all layouts that fit, ranked by step time.
 *
 * Candidates are enumerated in the order tp, pp, cp, ep, micro-batch, virtual stages, recompute,
 * ZeRO; what cannot divide is pruned there and counted by reason. The rest is priced in parallel:
 * memory first (microseconds), time for those that fit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "plan/plan.h"

#define MAX_CANDIDATES ((size_t)1 << 21)
#define SIMULATED      32
/* Number of candidates that a parallel task prices between progress calls. */
#define BLOCK 256

typedef struct {
    const lt_plan_model *m;
    const lt_plan_cluster *c;
    const lt_plan_query *q;
    lt_plan_choice *list;
    size_t n, room;
    size_t pruned[LT_PLAN_PRUNE_COUNT];
    bool out_of_memory;
} finder;

static void add(finder *f, const lt_plan_layout *l) {
    if (f->n == f->room) {
        const size_t room = f->room == 0 ? 1024 : 2 * f->room;
        lt_plan_choice *grown = room > MAX_CANDIDATES ? NULL
                                                      : realloc(f->list, room * sizeof *grown);
        if (grown == NULL) {
            f->out_of_memory = true;
            return;
        }
        f->list = grown;
        f->room = room;
    }
    f->list[f->n] = (lt_plan_choice){0};
    f->list[f->n++].layout = *l;
}

static void with_state(finder *f, lt_plan_layout l) {
    const int from = f->q->recompute >= 0 ? f->q->recompute : 0;
    const int to = f->q->recompute >= 0 ? f->q->recompute : f->q->recompute == -2 ? 1 : 2;
    for (int re = from; re <= to; re++) {
        l.recompute = (lt_plan_recompute)re;
        if (f->q->zero >= 0) {
            l.zero = f->q->zero;
            add(f, &l);
            continue;
        }
        l.zero = lt_plan_zero_ranks(&l) > 1 ? 1 : 0;
        add(f, &l);
        if (l.pp == 1 && lt_plan_zero_ranks(&l) > 1) {
            l.zero = 3;
            add(f, &l);
        }
    }
}

/* With one chunk per stage: 1F1B, or the requested schedule. */
static lt_plan_schedule plain_schedule(const finder *f) {
    return f->q->schedule > 0 && f->q->schedule - 1 != LT_PLAN_INTERLEAVED
               ? (lt_plan_schedule)(f->q->schedule - 1)
               : LT_PLAN_ONE_F_ONE_B;
}

static void with_schedule(finder *f, lt_plan_layout l) {
    const int layers = (int)((f->m->n_layers + l.pp - 1) / l.pp);
    const bool chunks = f->q->schedule == 0 || f->q->schedule - 1 == LT_PLAN_INTERLEAVED;
    const bool plain = f->q->schedule == 0 || l.pp == 1 || !chunks;
    if (f->q->vpp > 0) {
        if (f->q->exact && f->q->vpp > 1 && l.accum % l.pp != 0) {
            f->pruned[LT_PLAN_PRUNE_BATCH]++;
            return;
        }
        l.vpp = f->q->vpp;
        l.schedule = l.vpp > 1 ? LT_PLAN_INTERLEAVED : plain_schedule(f);
        with_state(f, l);
        return;
    }
    for (int v = 1; v <= layers && v <= 12; v++) {
        if (layers % v != 0 || (v == 1 && !plain) ||
            (v > 1 && (!chunks || l.pp == 1 || l.accum % l.pp != 0))) {
            continue;
        }
        l.vpp = v;
        l.schedule = v > 1 ? LT_PLAN_INTERLEAVED : plain_schedule(f);
        with_state(f, l);
    }
}

static void with_micro(finder *f, lt_plan_layout l) {
    const int64_t per_replica = f->q->batch_seqs / l.dp;
    const int64_t unit = f->q->micro > 0 && f->q->exact ? f->q->micro : 1;
    const bool even = f->q->batch_seqs % (l.dp * unit) == 0;
    if (per_replica < 1 || (!even && (f->q->micro == 0 || f->q->exact))) {
        f->pruned[LT_PLAN_PRUNE_BATCH]++;
        return;
    }
    if (f->q->micro > 0) {
        l.micro = f->q->micro;
        l.accum = (int64_t)lt_plan_max(1.0,
                                       round((double)f->q->batch_seqs / (double)(l.dp * l.micro)));
        with_schedule(f, l);
        return;
    }
    for (int64_t micro = 1; micro <= per_replica && micro <= 64; micro *= 2) {
        if (per_replica % micro == 0) {
            l.micro = micro;
            l.accum = per_replica / micro;
            with_schedule(f, l);
        }
    }
}

static void with_experts(finder *f, lt_plan_layout l) {
    const int64_t ranks = (int64_t)l.tp * l.cp * l.dp;
    if (f->m->n_experts == 0 || f->q->ep > 0) {
        l.ep = f->q->ep > 0 ? f->q->ep : 1;
        if (ranks % l.ep != 0) {
            f->pruned[LT_PLAN_PRUNE_SHAPE]++;
            return;
        }
        with_micro(f, l);
        return;
    }
    for (int64_t ep = 1; ep <= ranks && ep <= f->m->n_experts; ep *= 2) {
        if (f->m->n_experts % ep == 0 && ranks % ep == 0) {
            l.ep = (int)ep;
            with_micro(f, l);
        }
    }
}

static void with_order(finder *f, lt_plan_layout l) {
    l.dp_outer = false;
    with_experts(f, l);
    /* The two orders differ only in a network with tiers. */
    if (f->c->n_tiers > 0 && l.pp > 1 && l.dp > 1) {
        l.dp_outer = true;
        with_experts(f, l);
    }
}

static void with_split(finder *f, int tp, int pp) {
    const int64_t rest = f->q->gpus / ((int64_t)tp * pp);
    const int max_cp = f->q->cp > 0 ? f->q->cp : (int)lt_plan_max(1.0, (double)f->q->seq / 8192.0);
    for (int cp = f->q->cp > 0 ? f->q->cp : 1; cp <= max_cp && cp <= rest; cp *= 2) {
        lt_plan_layout l = {.tp = tp,
                            .pp = pp,
                            .cp = cp,
                            .ep = 1,
                            .vpp = 1,
                            .dp = (int)(rest / cp),
                            .sp = tp > 1 && !f->q->sp_off,
                            .precision = f->q->precision,
                            .tune = f->q->tune,
                            .fp32_grads = f->q->fp32_grads,
                            .bf16_moments = f->q->bf16_moments,
                            .again = f->q->again,
                            .again_layers = f->q->again_layers};
        if (rest % cp != 0) {
            f->pruned[LT_PLAN_PRUNE_SHAPE]++;
            continue;
        }
        with_order(f, l);
    }
}

static void enumerate(finder *f) {
    const lt_plan_query *q = f->q;
    for (int tp = q->tp > 0 ? q->tp : 1; tp <= (q->tp > 0 ? q->tp : q->gpus); tp *= 2) {
        if (f->m->n_attn > 0 && f->m->n_heads % tp != 0 && q->tp == 0) {
            f->pruned[LT_PLAN_PRUNE_SHAPE]++;
            continue;
        }
        if (tp > f->c->gpu.domain_gpus && q->tp == 0) {
            f->pruned[LT_PLAN_PRUNE_TOPOLOGY]++;
            break;
        }
        for (int pp = q->pp > 0 ? q->pp : 1;
             pp <= (q->pp > 0 ? q->pp : f->m->n_layers) && pp <= q->gpus; pp++) {
            if (q->gpus % ((int64_t)tp * pp) != 0) {
                continue;
            }
            if (q->pp == 0 && f->m->n_layers % pp != 0 && f->m->n_layers / pp < 4) {
                /* Uneven stages of few layers all wait for the fullest. */
                f->pruned[LT_PLAN_PRUNE_SHAPE]++;
                continue;
            }
            with_split(f, tp, pp);
        }
    }
}

static void price(void *ctx, size_t block) {
    finder *f = ctx;
    const size_t end = (block + 1) * BLOCK < f->n ? (block + 1) * BLOCK : f->n;
    for (size_t i = block * BLOCK; i < end; i++) {
        lt_plan_choice *x = &f->list[i];
        x->memory = lt_plan_memory_estimate(f->m, f->c, &x->layout);
        x->time = (lt_plan_time){.step_s = INFINITY};
        if (x->memory.total <= f->c->gpu.memory_bytes) {
            x->time = lt_plan_step_estimate(f->m, f->c, &x->layout);
        }
    }
}

static int by_time(const void *a, const void *b) {
    const lt_plan_choice *x = a, *y = b;
    if (x->time.step_s != y->time.step_s) {
        return x->time.step_s < y->time.step_s ? -1 : 1;
    }
    return (x->memory.total > y->memory.total) - (x->memory.total < y->memory.total);
}

static bool same_split(const lt_plan_layout *a, const lt_plan_layout *b) {
    return a->tp == b->tp && a->pp == b->pp && a->vpp == b->vpp && a->cp == b->cp &&
           a->ep == b->ep && a->zero == b->zero && a->micro == b->micro &&
           a->recompute == b->recompute;
}

/* The two orders of the axes often cost the same; the second would then only fill the list. */
static size_t drop_twins(lt_plan_choice *list, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool twin = false;
        for (size_t back = 1; back <= 4 && back <= kept; back++) {
            twin = twin || (same_split(&list[kept - back].layout, &list[i].layout) &&
                            list[i].time.step_s < 1.002 * list[kept - back].time.step_s);
        }
        if (!twin) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* Price the first few again with simulated pipelines, until all of the first few are (the closed
 * form covers uniform stages only). */
static void simulate_best(const finder *f, lt_plan_choice *list, size_t n) {
    const size_t few = n < SIMULATED ? n : SIMULATED;
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < few; i++) {
            if (!list[i].simulated) {
                list[i].time = lt_plan_step_simulate(f->m, f->c, &list[i].layout);
                list[i].simulated = changed = true;
            }
        }
        qsort(list, n, sizeof *list, by_time);
    }
}

/* Check each degree that a user asks for against the facts that it may contradict. */
static lt_err check_degrees(const lt_plan_model *m, const lt_plan_query *q) {
    const int64_t tp = q->tp > 0 ? q->tp : 1, pp = q->pp > 0 ? q->pp : 1,
                  cp = q->cp > 0 ? q->cp : 1;
    const int64_t stage = q->pp > 0 ? (m->n_layers + pp - 1) / pp : 0;
    if (q->gpus % (tp * pp * cp) != 0) {
        LT_FAIL(LT_ERR_ARG, "tp %lld x pp %lld x cp %lld does not divide %lld GPUs", (long long)tp,
                (long long)pp, (long long)cp, (long long)q->gpus);
    }
    if (m->n_attn > 0 && m->n_heads % tp != 0) {
        LT_FAIL(LT_ERR_ARG, "tp %lld does not divide the %lld attention heads of %s", (long long)tp,
                (long long)m->n_heads, m->name);
    }
    if (pp > m->n_layers) {
        LT_FAIL(LT_ERR_ARG, "pp %lld is more than the %lld layers of %s", (long long)pp,
                (long long)m->n_layers, m->name);
    }
    if (cp > 1 && q->seq % (2 * cp) != 0) {
        LT_FAIL(LT_ERR_ARG,
                "cp %lld needs sequences that are a multiple of %lld tokens; these have %lld",
                (long long)cp, (long long)(2 * cp), (long long)q->seq);
    }
    if (q->ep > 1 && m->n_experts == 0) {
        LT_FAIL(LT_ERR_ARG, "ep %d divides experts, and %s has no experts", q->ep, m->name);
    }
    if (q->ep > 1 && m->n_experts % q->ep != 0) {
        LT_FAIL(LT_ERR_ARG, "ep %d does not divide the %lld experts of %s", q->ep,
                (long long)m->n_experts, m->name);
    }
    if (q->vpp > 1 && q->pp == 1) {
        LT_FAIL(LT_ERR_ARG, "%d virtual stages need a pipeline, and pp is 1", q->vpp);
    }
    if (q->vpp > 1 && stage > 0 && stage % q->vpp != 0) {
        LT_FAIL(LT_ERR_ARG,
                "%d virtual stages do not divide the %lld layers of a stage (%s over pp %lld)",
                q->vpp, (long long)stage, m->name, (long long)pp);
    }
    return LT_OK;
}

static lt_err check(const lt_plan_model *m, const lt_plan_cluster *c, const lt_plan_query *q) {
    LT_TRY(lt_plan_model_check(m));
    if (q->gpus < 1 || q->batch_seqs < 1) {
        LT_FAIL(LT_ERR_ARG, "search: %lld GPUs, batch of %lld sequences", (long long)q->gpus,
                (long long)q->batch_seqs);
    }
    if (q->gpus > c->gpus) {
        LT_FAIL(LT_ERR_ARG, "%lld GPUs asked for, but cluster %s has %lld", (long long)q->gpus,
                c->name, (long long)c->gpus);
    }
    if (q->precision > LT_PLAN_BF16 && c->gpu.peak_tflops[q->precision] <= 0) {
        static const char *const names[] = {
#define PRECISION_NAME(code, name) name,
            LT_PLAN_PRECISION_MAP(PRECISION_NAME)};
        LT_FAIL(LT_ERR_ARG, "precision %s asked for, but %s has no such units", names[q->precision],
                c->gpu.name);
    }
    if (q->schedule == 1 + LT_PLAN_INTERLEAVED && q->pp == 1) {
        LT_FAIL(LT_ERR_ARG, "an interleaved schedule needs a pipeline, and pp is 1");
    }
    if (q->vpp > 1 && q->schedule > 0 && q->schedule != 1 + LT_PLAN_INTERLEAVED) {
        LT_FAIL(LT_ERR_ARG, "%d virtual stages need the interleaved schedule", q->vpp);
    }
    if (q->exact) {
        LT_TRY(check_degrees(m, q));
    }
    if (q->tp > 0 && q->pp > 0 && q->gpus % ((int64_t)q->tp * q->pp) != 0) {
        LT_FAIL(LT_ERR_ARG, "tp %d x pp %d does not divide %lld GPUs", q->tp, q->pp,
                (long long)q->gpus);
    }
    return LT_OK;
}

lt_err lt_plan_search(const lt_plan_model *m, const lt_plan_cluster *c, const lt_plan_query *q,
                      lt_plan_found *out) {
    const double start = lt_clock_s();
    lt_plan_model model = *m;
    finder f = {.m = &model, .c = c, .q = q};
    size_t blocks, fit = 0;

    LT_ASSERT(m != NULL && c != NULL && q != NULL && out != NULL);
    *out = (lt_plan_found){0};
    if (q->seq > 0) {
        model.max_seq = q->seq;
    }
    LT_TRY(check(&model, c, q));
    enumerate(&f);
    if (f.out_of_memory) {
        free(f.list);
        LT_FAIL(LT_ERR_LIMIT, "search: more than %zu layouts; fix some degrees", f.n);
    }
    blocks = (f.n + BLOCK - 1) / BLOCK;
    /* In slices, so that progress can be shown between them. */
    for (size_t done = 0; done < blocks; done += 16) {
        const size_t slice = blocks - done < 16 ? blocks - done : 16;
        finder part = f;
        part.list = f.list + done * BLOCK;
        part.n = f.n - done * BLOCK;
        lt_parallel_for(slice, price, &part);
        if (q->progress != NULL) {
            q->progress(q->progress_ctx,
                        (done + slice) * BLOCK < f.n ? (done + slice) * BLOCK : f.n, f.n);
        }
    }
    out->nearest_bytes = INFINITY;
    for (size_t i = 0; i < f.n; i++) {
        fit += isfinite(f.list[i].time.step_s);
        out->nearest_bytes = lt_plan_min(out->nearest_bytes, f.list[i].memory.total);
    }
    memcpy(out->pruned, f.pruned, sizeof f.pruned);
    out->pruned[LT_PLAN_PRUNE_MEMORY] = f.n - fit;
    if (f.n > 0) {
        qsort(f.list, f.n, sizeof *f.list, by_time);
    }
    out->best = f.list;
    out->n_tried = f.n;
    fit = drop_twins(f.list, fit);
    if (fit > 0) {
        simulate_best(&f, f.list, fit);
    }
    out->n_fit = fit;
    out->n_best = q->max_results > 0 && (size_t)q->max_results < fit ? (size_t)q->max_results : fit;
    out->seconds = lt_clock_s() - start;
    return LT_OK;
}

void lt_plan_found_free(lt_plan_found *f) {
    if (f != NULL) {
        free(f->best);
        *f = (lt_plan_found){0};
    }
}
