/* failure.c: the loss by failures and saves, in closed form.
 *
 *     M mean time between failures of the whole job; w blocking part of a save;
 *     u restart (detect, reschedule, load, warm up); tau time between saves
 *     Young         tau = sqrt(2 w M)                                               (Young 1974)
 *     Daly          tau = sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w for w < 2M, else M
 *                                                                                   (Daly 2006)
 *     exact         efficiency = tau / (M e^(u/M) (e^((tau + w) / M) - 1)): failures are
 *                   exponential, also during restarts
 *     first order   (1 - (u + tau / 2) / M) / (1 + w / tau)
 *                                                       (Kokolis et al. 2024, arXiv:2410.21680)
 *
 * Goodput = productive time / wall time = ETTR * (1 - stragglers). The loss in ETTR is split into
 * saves, rework and restarts. Asynchronous saves block only for the copy to host memory, but a
 * failure may also lose the work done while the last one was being persisted. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"
#include "platform/agent/memory.h"

#define COPY_SHARE 0.4 /* Share of the bandwidth to the host that a copy gets during training. */
/* Bytes per parameter in a checkpoint: bf16 weight, fp32 master, two moments. */
#define OPTIMISER_STATE 14.0

double lt_plan_young_s(double mtbf_s, double save_s) {
    return sqrt(2.0 * save_s * mtbf_s);
}

double lt_plan_daly_first_s(double mtbf_s, double save_s) {
    return sqrt(2.0 * save_s * mtbf_s) - save_s;
}

double lt_plan_daly_s(double mtbf_s, double save_s) {
    return lt_daly_interval_s(mtbf_s, save_s);
}

double lt_plan_ettr_exact(double mtbf_s, double save_s, double restart_s, double interval_s) {
    LT_ASSERT(mtbf_s > 0 && interval_s > 0);
    return interval_s / (mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + save_s) / mtbf_s));
}

double lt_plan_ettr_first_order(double mtbf_s, double save_s, double restart_s, double interval_s) {
    const double keep = 1.0 - (restart_s + interval_s / 2.0) / mtbf_s;
    return lt_plan_max(0.0, keep) / (1.0 + save_s / interval_s);
}

int64_t lt_plan_spares(double nodes, double node_rate_per_s, double repair_s, double quantile) {
    /* Nodes under repair at a random moment: binomial(n, q) with q = rate * repair / (1 + rate *
     * repair). */
    const double q = node_rate_per_s * repair_s / (1.0 + node_rate_per_s * repair_s);
    double log_p, sum;
    if (q <= 0 || nodes <= 0) {
        return 0;
    }
    log_p = nodes * log1p(-q);
    sum = exp(log_p);
    for (int64_t k = 0; k < (int64_t)nodes; k++) {
        if (sum >= quantile) {
            return k;
        }
        log_p += log((nodes - (double)k) / ((double)k + 1.0) * q / (1.0 - q));
        sum += exp(log_p);
    }
    return (int64_t)nodes;
}

lt_plan_goodput lt_plan_goodput_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                         int64_t gpus, double interval_s, bool async) {
    lt_plan_goodput g = {0};
    const double rate = lt_plan_cluster_failures_per_s(c, gpus),
                 nodes = (double)gpus / c->gpu.node_gpus;
    double copy_s, lag_s, whole, no_rework, no_save;

    g.checkpoint_bytes = lt_plan_model_params(m).total * OPTIMISER_STATE;
    g.mtbf_s = rate > 0 ? 1.0 / rate : 1e30;
    g.failures_per_day = rate * 86400.0;
    g.save_s = g.checkpoint_bytes / (c->storage_write_gbps * LT_PLAN_GB);
    /* Half a second to synchronise the ranks and to flush. */
    copy_s = g.checkpoint_bytes / ((double)gpus * COPY_SHARE * c->gpu.pcie_gbps * LT_PLAN_GB) + 0.5;
    g.block_s = async ? lt_plan_min(copy_s, g.save_s) : g.save_s;
    lag_s = async ? g.save_s : 0.0; /* Only a save that is on disk counts. */
    g.restart_s = c->detect_s + c->reschedule_s + c->load_s + c->warmup_s +
                  g.checkpoint_bytes / (c->storage_read_gbps * LT_PLAN_GB);
    g.interval_s = interval_s > 0 ? interval_s : lt_plan_daly_s(g.mtbf_s, g.block_s);
    /* The next save cannot start before the last is on disk. */
    g.interval_s = lt_plan_max(g.interval_s, lag_s);
    whole = lt_plan_ettr_exact(g.mtbf_s, g.block_s, g.restart_s, g.interval_s) *
            exp(-lag_s / g.mtbf_s);
    no_save = g.interval_s / (g.interval_s + g.block_s);
    no_rework = lt_plan_ettr_exact(g.mtbf_s, g.block_s, 0, g.interval_s) * exp(-lag_s / g.mtbf_s);
    g.ettr = whole;
    g.checkpoint_loss = 1.0 - no_save;
    g.rework_loss = no_save - no_rework;
    g.restart_loss = no_rework - whole;
    g.straggler_loss = c->straggler;
    g.goodput = whole * (1.0 - c->straggler);
    g.spares = lt_plan_spares(nodes, rate / lt_plan_max(nodes, 1.0), c->repair_h * 3600.0, 0.99);
    return g;
}
