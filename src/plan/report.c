/* report.c: computes everything that the reports print: search, run length, price, energy, goodput,
 * what-ifs, warnings. */
#include "plan/report.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/error.h"

/* Share of a GPU's power while it waits; the rest is the swing when a job stops. */
#define IDLE_SHARE 0.15

static void LT_PRINTF(2, 3) warn(lt_plan_report *r, const char *fmt, ...) {
    va_list args;
    if (r->n_warnings < LT_PLAN_WARNINGS) {
        va_start(args, fmt);
        vsnprintf(r->warning[r->n_warnings++], LT_PLAN_TEXT_BYTES, fmt, args);
        va_end(args);
    }
}

static void warnings(lt_plan_report *r) {
    const lt_plan_choice *b = &r->found.best[0];
    const double used = b->memory.total / r->cluster.gpu.memory_bytes;
    const double chinchilla = 20.0 * lt_plan_model_params(&r->model).active;
    if (!r->cluster.stack.anchored) {
        warn(r,
             "stack '%s' was not measured on %s: the efficiencies are this GPU's defaults, so "
             "expect an error of 15 %%",
             r->cluster.stack.name, r->cluster.gpu.name);
    }
    if (used > 0.93) {
        warn(r,
             "memory is %.0f %% full: fragmentation may end the run; the next layout with more "
             "room costs little",
             100 * used);
    }
    if (b->time.bubble / b->time.step_s > 0.10) {
        warn(r,
             "the pipeline is idle %.0f %% of the time: a larger batch or more virtual stages "
             "would help",
             100 * b->time.bubble / b->time.step_s);
    }
    if (b->time.dp_comm / b->time.step_s > 0.10) {
        warn(r,
             "%.0f %% of a step waits for gradients: the batch per replica is small for this "
             "network",
             100 * b->time.dp_comm / b->time.step_s);
    }
    if (r->goodput.mtbf_s < 3.0 * 3600.0) {
        warn(r, "there is a failure every %.1f h: keep %lld spare nodes and save every %.0f min",
             r->goodput.mtbf_s / 3600.0, (long long)r->goodput.spares,
             r->goodput.interval_s / 60.0);
    }
    if (r->swing_mw > 10) {
        warn(
            r,
            "power swings by %.0f MW when the job starts or stops: agree on ramps with the utility",
            r->swing_mw);
    }
    if (r->tokens < 0.5 * chinchilla && r->query.tune == LT_PLAN_TUNE_ALL) {
        warn(r, "%.3g tokens are few for %.3g active parameters (20 a parameter: %.3g)", r->tokens,
             lt_plan_model_params(&r->model).active, chinchilla);
    }
}

/* Best step time of the same question on a changed cluster; per sample if the batch changes too
 * (what_if). */
static double best_with(const lt_plan_report *r, const lt_plan_cluster *c, const lt_plan_query *q) {
    lt_plan_found f = {0};
    lt_plan_query quiet = *q;
    double best = NAN;
    quiet.progress = NULL;
    if (lt_plan_search(&r->model, c, &quiet, &f) == LT_OK && f.n_fit > 0) {
        best = f.best[0].time.step_s;
    }
    lt_plan_found_free(&f);
    return best;
}

static void what_if(lt_plan_report *r, const char *change, const lt_plan_cluster *c,
                    const lt_plan_query *q) {
    const double samples = (double)q->batch_seqs / (double)r->query.batch_seqs;
    lt_plan_what_if *w = &r->what_if[r->n_what_ifs];
    if (r->n_what_ifs < LT_PLAN_WHAT_IFS) {
        snprintf(w->change, sizeof w->change, "%s", change);
        w->step_s = best_with(r, c, q);
        w->step_s /= samples;
        /* A change that makes it slower is not listed. */
        r->n_what_ifs += isfinite(w->step_s) && w->step_s < r->found.best[0].time.step_s ? 1 : 0;
    }
}

static void what_ifs(lt_plan_report *r) {
    lt_plan_cluster c = r->cluster;
    lt_plan_query q = r->query;
    c.stack.gemm = lt_plan_min(1.0, c.stack.gemm * 1.1);
    what_if(r, "products 10 % more efficient", &c, &q);
    c = r->cluster;
    c.gpu.memory_gbps *= 1.25;
    what_if(r, "memory 25 % faster", &c, &q);
    c = r->cluster;
    c.gpu.memory_bytes *= 1.5;
    what_if(r, "50 % more memory a GPU", &c, &q);
    c = r->cluster;
    c.nic_gbps *= 2;
    what_if(r, "network twice as fast", &c, &q);
    c = r->cluster;
    c.gpu.link_gbps *= 2;
    what_if(r, "scale-up links twice as fast", &c, &q);
    c = r->cluster;
    c.gpu.domain_gpus *= 8;
    what_if(r, "scale-up domain 8x larger", &c, &q);
    c = r->cluster;
    c.stack.tp_overlap = lt_plan_max(0.9, c.stack.tp_overlap);
    what_if(r, "tensor-parallel traffic hidden", &c, &q);
    c = r->cluster;
    if (q.precision == LT_PLAN_BF16 && c.gpu.peak_tflops[LT_PLAN_FP8] > 0) {
        q.precision = LT_PLAN_FP8;
        what_if(r, "products in fp8 (mind the loss)", &c, &q);
        q = r->query;
    }
    if (q.schedule == 0 && r->found.best[0].layout.pp > 1) {
        q.schedule = 1 + LT_PLAN_ZERO_BUBBLE;
        what_if(r, "zero-bubble pipeline (ZB-H1)", &c, &q);
        q = r->query;
    }
    q.batch_seqs *= 2;
    what_if(r, "batch twice as large (per sample)", &c, &q);
}

lt_err lt_plan_report_make(lt_plan_report *r, double interval_s, bool async_save,
                           bool sensitivity) {
    const lt_plan_cluster *c = &r->cluster;
    const double gpus = (double)r->query.gpus;
    double step_tokens;

    LT_TRY(lt_plan_search(&r->model, c, &r->query, &r->found));
    if (r->found.n_fit == 0) {
        if (r->found.n_tried == 0) {
            LT_FAIL(LT_ERR_ARG,
                    "%lld GPUs contradict a batch of %lld sequences and the degrees asked for: no "
                    "split divides all of them (%s has %lld heads, %lld layers)",
                    (long long)r->query.gpus, (long long)r->query.batch_seqs, r->model.name,
                    (long long)r->model.n_heads, (long long)r->model.n_layers);
        }
        LT_FAIL(
            LT_ERR_ARG,
            "%s does not fit %lld x %s: the smallest of %zu layouts needs %.1f GiB a GPU, and a "
            "GPU has %.1f GiB",
            r->model.name, (long long)r->query.gpus, c->gpu.name, r->found.n_tried,
            r->found.nearest_bytes / LT_PLAN_GIB, c->gpu.memory_bytes / LT_PLAN_GIB);
    }
    LT_TRY(lt_plan_layout_check(&r->found.best[0].layout, &r->model, c));
    step_tokens = (double)(r->query.batch_seqs * r->model.max_seq);
    r->goodput = lt_plan_goodput_estimate(&r->model, c, r->query.gpus, interval_s, async_save);
    r->steps = ceil(r->tokens / step_tokens);
    r->days_pure = r->steps * r->found.best[0].time.step_s / 86400.0;
    /* The step already contains stragglers. */
    r->days = r->days_pure / lt_plan_max(1e-6, r->goodput.ettr);
    r->gpu_hours = r->days * 24.0 * gpus;
    r->money = r->gpu_hours * c->price_gpu_h;
    r->mwh = r->gpu_hours * (c->gpu.power_w * 0.85 + c->gpu.host_power_w) * c->pue / 1e6;
    r->swing_mw = gpus * c->gpu.power_w * (0.85 - IDLE_SHARE) / 1e6;
    warnings(r);
    if (sensitivity) {
        what_ifs(r);
    }
    return LT_OK;
}

void lt_plan_report_close(lt_plan_report *r) {
    if (r != NULL) {
        lt_plan_found_free(&r->found);
    }
}
