/* collective.c: hierarchical alpha-beta collectives with a choice of algorithm.
 *
 * A group of n ranks at a stride falls into domains (GPUs that share scale-up links): g members in
 * each of d = n / g.
 *     inside  t = 2 (g-1)/g S / link     all-reduce; half of it for all-gather and reduce-scatter
 *     across  each member drives its own NIC with S / g:  t = 2 (d-1)/d (S/g) / nic
 * The two levels are pipelined, so the slower one counts, plus the latencies of the shorter of ring
 * and tree.
 *
 * Oversubscription: a ring in rank order crosses a pod's uplink once per group. With q members of
 * the group in a pod, the pod's GPUs ask 1/q of their bandwidth of the uplinks, which offer
 * 1/oversub: the ring slows down by max(1, oversub / q). All-to-all crosses with nearly all of its
 * bytes and slows down by oversub. That is why rings over a 7:1 core lose little and
 * expert-parallel traffic a lot.
 *
 * Rails: tier 0 is one switch per rail, which joins the GPUs with the same index in many nodes. All
 * traffic between those nodes takes one hop, because traffic for another rail first crosses the
 * scale-up links. Refs: Hockney 1994; Thakur et al. 2005; nccl-tests PERFORMANCE.md. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"

typedef struct {
    double inner, outer;        /* Number of members in a domain; number of domains. */
    double link, nic;           /* Bytes per second. */
    double alpha_in, alpha_out; /* Seconds. */
} group;

/* Ring: the slowest tier that its traffic leaves. All-to-all: the tier whose uplinks finish last,
 * each carrying the share of the bytes that leaves it. */
static double tier_slow_down(const lt_plan_cluster *c, int tier, double ranks, double stride,
                             bool all_to_all) {
    const double members = lt_plan_max(1.0, (double)c->tier[tier].gpus / stride);
    if (all_to_all) {
        return c->tier[tier].oversub * (ranks - members) / lt_plan_max(1.0, ranks - 1.0);
    }
    return c->tier[tier].oversub / members;
}

static group group_of(const lt_plan_cluster *c, int64_t ranks, int64_t stride, bool all_to_all) {
    const int64_t domain = c->gpu.domain_gpus;
    const int64_t span = ranks * stride;
    double slow = 1.0;
    group g = {.inner = 1,
               .link = c->gpu.link_gbps * LT_PLAN_GB * c->link_share,
               .nic = c->nic_gbps * LT_PLAN_GB * c->stack.network,
               .alpha_in = c->link_latency_us * 1e-6,
               .alpha_out = c->latency_us * 1e-6};
    if (stride < domain) {
        g.inner = lt_plan_min((double)ranks, floor((double)domain / (double)stride));
    }
    g.outer = ceil((double)ranks / g.inner);
    for (int i = 0; i < c->n_tiers && span > c->tier[i].gpus; i++) {
        const int above = i + 1 < c->n_tiers ? i + 1 : i;
        slow = lt_plan_max(slow, tier_slow_down(c, i, (double)ranks, (double)stride, all_to_all));
        g.alpha_out = lt_plan_max(g.alpha_out, c->tier[above].latency_us * 1e-6);
    }
    g.nic /= slow;
    return g;
}

/* Share of the bytes for another domain that first cross their own domain to the GPU whose rail
 * leads there (NCCL's PXN). */
static double hop(const lt_plan_cluster *c, const group *g) {
    return c->rails ? (g->inner - 1.0) / g->inner : 0.0;
}

/* One half of an all-reduce (reduce-scatter or all-gather) of S bytes. */
static double half_s(const group *g, double bytes) {
    const double in = g->inner > 1 ? (g->inner - 1) / g->inner * bytes / g->link : 0.0;
    const double out = g->outer > 1 ? (g->outer - 1) / g->outer * bytes / g->inner / g->nic : 0.0;
    const double steps_in = g->inner > 1 ? lt_plan_min(g->inner - 1, 2.0 * ceil(log2(g->inner)))
                                         : 0.0;
    const double steps_out = g->outer > 1 ? lt_plan_min(g->outer - 1, 2.0 * ceil(log2(g->outer)))
                                          : 0.0;
    return lt_plan_max(in, out) + steps_in * g->alpha_in + steps_out * g->alpha_out;
}

double lt_plan_collective_s(const lt_plan_cluster *c, lt_plan_verb verb, double bytes,
                            int64_t ranks, int64_t stride) {
    group g;
    LT_ASSERT(c != NULL && ranks >= 1 && stride >= 1);
    if (bytes <= 0 || (ranks == 1 && verb != LT_PLAN_SEND)) {
        return 0;
    }
    g = group_of(c, ranks, stride, verb == LT_PLAN_ALL_TO_ALL);
    switch (verb) {
    case LT_PLAN_ALL_REDUCE:
        return 2.0 * half_s(&g, bytes);
    case LT_PLAN_ALL_GATHER:
    case LT_PLAN_REDUCE_SCATTER:
        return half_s(&g, bytes);
    case LT_PLAN_ALL_TO_ALL: {
        const double n = (double)ranks, near = (g.inner - 1) / n, far = (n - g.inner) / n;
        return lt_plan_max((near + hop(c, &g) * far) * bytes / g.link, far * bytes / g.nic) +
               (far > 0 ? g.alpha_out : g.alpha_in) * ceil(log2(n));
    }
    case LT_PLAN_SEND:
        return stride < c->gpu.domain_gpus ? bytes / g.link + g.alpha_in
                                           : bytes / g.nic + g.alpha_out;
    }
    return 0;
}

/* Expected number of n equal places (domains or ranks, which hold the experts in order) that a
 * token reaches when it chooses `copies` experts, all from `limit` of `groups` groups of experts (0
 * groups: from all). Each place counts once. */
static double places_reached(double n, double copies, double groups, double limit) {
    double open = n;
    if (groups > 1 && limit > 0 && limit < groups) {
        if (n >= groups) {
            open = n * limit / groups;
        } else {
            /* groups / n groups use a place; the product is the probability that none of them is
             * chosen. */
            double none = 1.0;
            for (double i = 0; i < groups / n; i++) {
                none *= lt_plan_max(0.0, (groups - limit - i) / (groups - i));
            }
            open = n * (1.0 - none);
        }
    }
    return open <= 1.0 ? open : open * (1.0 - pow(1.0 - 1.0 / open, copies));
}

double lt_plan_dispatch_s(const lt_plan_cluster *c, double bytes, double copies, int64_t groups,
                          int64_t limit, int64_t ranks, int64_t stride) {
    group g;
    double domains, far, near;
    LT_ASSERT(c != NULL && ranks >= 1 && stride >= 1);
    if (bytes <= 0 || ranks == 1) {
        return 0;
    }
    g = group_of(c, ranks, stride, true);
    domains = (double)ranks / g.inner;
    /* The own domain and the own rank are as likely as any other, and cost nothing. */
    far = places_reached(domains, copies, (double)groups, (double)limit) * (domains - 1.0) /
          domains;
    near = places_reached((double)ranks, copies, (double)groups, (double)limit) * (g.inner - 1.0) /
           g.inner;
    return lt_plan_max((near + hop(c, &g) * far) * bytes / g.link, far * bytes / g.nic) +
           (far > 0 ? g.alpha_out : g.alpha_in) * ceil(log2((double)ranks));
}
