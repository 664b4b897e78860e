/* moe.c (ref): mixture-of-experts routing. ops.h has formulas and layouts; here are the details
 * that it leaves open.
 *
 * Slots: kept assignments in (expert, assignment) order, so slot_row[expert_start[e] ..
 * expert_start[e + 1]) rises; then the dropped ones in order of assignment. An expert keeps its
 * first `capacity` assignments in row-major order. Backward: with w = p / sum (normalise) or w = p
 * over a row's K chosen, dropped ones having a constant weight 0:
 *     dp_k = (dw_k - sum_j dw_j w_j) / sum   or   dp_k = dw_k
 *     dp_e += aux_coef E f_e / R for all e;  dlogit = p (dp - sum_e p_e dp_e) + z_coef 2 lse p /
 *     R */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

/* Softmax of row r into probs; returns the log-sum-exp. */
static double row_lse(const lt_tensor *logits, int64_t r) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t e = 0; e < logits->shape[1]; e++) {
        max = fmax(max, get(logits, at2(logits, r, e)));
    }
    for (int64_t e = 0; e < logits->shape[1]; e++) {
        sum += exp(get(logits, at2(logits, r, e)) - max);
    }
    return max + log(sum);
}

/* The K largest probabilities of row r, ties to the lower index, compared on the logits (which
 * order like them). */
static void choose_row(const lt_moe_route_args *a, int64_t r, double lse) {
    const int64_t n_experts = a->logits.shape[1], top_k = a->experts.shape[1];
    bool taken[LT_MOE_MAX_EXPERTS] = {false};
    double sum = 0.0;

    for (int64_t e = 0; e < n_experts; e++) {
        set(&a->probs, at2(&a->probs, r, e), exp(get(&a->logits, at2(&a->logits, r, e)) - lse));
    }
    for (int64_t k = 0; k < top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n_experts; e++) {
            if (!taken[e] && (best < 0 || get(&a->logits, at2(&a->logits, r, e)) >
                                              get(&a->logits, at2(&a->logits, r, best)))) {
                best = e;
            }
        }
        taken[best] = true;
        sum += exp(get(&a->logits, at2(&a->logits, r, best)) - lse);
        set_i32(&a->experts, at2(&a->experts, r, k), best);
    }
    for (int64_t k = 0; k < top_k; k++) {
        const int64_t e = get_i32(&a->experts, at2(&a->experts, r, k));
        const double p = exp(get(&a->logits, at2(&a->logits, r, e)) - lse);
        set(&a->weights, at2(&a->weights, r, k), a->normalise ? p / sum : p);
    }
}

static void sort_slots(const lt_moe_route_args *a) {
    const int64_t n_experts = a->logits.shape[1], top_k = a->experts.shape[1];
    const int64_t n = a->logits.shape[0] * top_k;
    int64_t slot = 0;

    for (int64_t e = 0; e < n_experts; e++) { /* 1. Kept assignments, one expert after another. */
        int64_t n_kept = 0;
        set_i32(&a->expert_start, e, slot);
        for (int64_t i = 0; i < n; i++) {
            if (get_i32(&a->experts, at2(&a->experts, i / top_k, i % top_k)) != e) {
                continue;
            }
            if (a->capacity > 0 && n_kept == a->capacity) {
                set(&a->weights, at2(&a->weights, i / top_k, i % top_k), 0.0);
                continue;
            }
            set_i32(&a->slot_row, slot++, i);
            n_kept++;
        }
    }
    set_i32(&a->expert_start, n_experts, slot);
    if (a->capacity > 0) { /* 2. Dropped ones: those beyond an expert's first `capacity`. */
        int64_t seen[LT_MOE_MAX_EXPERTS] = {0};
        for (int64_t i = 0; i < n; i++) {
            const int32_t e = get_i32(&a->experts, at2(&a->experts, i / top_k, i % top_k));
            if (seen[e]++ >= a->capacity) {
                set_i32(&a->slot_row, slot++, i);
            }
        }
    }
    LT_ASSERT(slot == n);
}

/* f_e of the load-balancing loss: the share of all assignments that chose e, before dropping. */
static void expert_share(double *share, const lt_tensor *experts, int64_t n_experts) {
    const double n = (double)(experts->shape[0] * experts->shape[1]);
    for (int64_t e = 0; e < n_experts; e++) {
        share[e] = 0.0;
    }
    for (int64_t r = 0; r < experts->shape[0]; r++) {
        for (int64_t k = 0; k < experts->shape[1]; k++) {
            share[get_i32(experts, at2(experts, r, k))] += 1.0 / n;
        }
    }
}

static void aux_losses(const lt_moe_route_args *a) {
    const int64_t n_rows_ = a->logits.shape[0], n_experts = a->logits.shape[1];
    double share[LT_MOE_MAX_EXPERTS], balance = 0.0, z = 0.0;

    expert_share(share, &a->experts, n_experts);
    for (int64_t r = 0; r < n_rows_; r++) {
        const double lse = row_lse(&a->logits, r);
        z += lse * lse / (double)n_rows_;
        for (int64_t e = 0; e < n_experts; e++) {
            balance += share[e] * exp(get(&a->logits, at2(&a->logits, r, e)) - lse);
        }
    }
    set(&a->aux, at1(&a->aux, 0), balance * (double)n_experts / (double)n_rows_);
    set(&a->aux, at1(&a->aux, 1), z);
}

lt_err lt_ref_moe_route_fwd(lt_queue *q, const lt_moe_route_args *a) {
    (void)q;
    LT_ASSERT(a->logits.shape[1] <= LT_MOE_MAX_EXPERTS &&
              a->experts.shape[1] <= a->logits.shape[1]);
    LT_ASSERT(lt_tensor_contiguous(&a->slot_row) && lt_tensor_contiguous(&a->expert_start));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->logits.shape[0]; r++) {
        choose_row(a, r, row_lse(&a->logits, r));
    }
    sort_slots(a);
    if (present(&a->aux)) {
        aux_losses(a);
    }
    return LT_OK;
}

/* dp_k of the row's chosen experts, computed from dweights. */
static void chosen_bwd(const lt_moe_route_bwd_args *a, int64_t r, double *dp) {
    const int64_t top_k = a->experts.shape[1];
    double sum = 0.0, mean = 0.0, dw[LT_MOE_MAX_TOP_K], p[LT_MOE_MAX_TOP_K];

    for (int64_t k = 0; k < top_k; k++) {
        const int64_t e = get_i32(&a->experts, at2(&a->experts, r, k));
        const bool dropped = get(&a->weights, at2(&a->weights, r, k)) == 0.0;
        p[k] = get(&a->probs, at2(&a->probs, r, e));
        dw[k] = dropped ? 0.0 : get(&a->dweights, at2(&a->dweights, r, k));
        sum += p[k];
    }
    for (int64_t k = 0; k < top_k; k++) {
        mean += dw[k] * p[k] / sum;
    }
    for (int64_t k = 0; k < top_k; k++) {
        const int64_t e = get_i32(&a->experts, at2(&a->experts, r, k));
        dp[e] += a->normalise ? (dw[k] - mean) / sum : dw[k];
    }
}

lt_err lt_ref_moe_route_bwd(lt_queue *q, const lt_moe_route_bwd_args *a) {
    const int64_t n = a->logits.shape[0], n_experts = a->logits.shape[1];
    const double scale = a->aux_scale.data != NULL ? get(&a->aux_scale, 0) : 1.0;
    double share[LT_MOE_MAX_EXPERTS];

    (void)q;
    LT_ASSERT(n_experts <= LT_MOE_MAX_EXPERTS && a->experts.shape[1] <= LT_MOE_MAX_TOP_K);
    expert_share(share, &a->experts, n_experts);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < n; r++) {
        double dp[LT_MOE_MAX_EXPERTS], inner = 0.0;
        const double z = scale * (double)a->z_coef * 2.0 * row_lse(&a->logits, r) / (double)n;
        for (int64_t e = 0; e < n_experts; e++) {
            dp[e] = scale * (double)a->aux_coef * (double)n_experts * share[e] / (double)n;
        }
        chosen_bwd(a, r, dp);
        for (int64_t e = 0; e < n_experts; e++) {
            inner += get(&a->probs, at2(&a->probs, r, e)) * dp[e];
        }
        for (int64_t e = 0; e < n_experts; e++) {
            const double p = get(&a->probs, at2(&a->probs, r, e));
            set(&a->dlogits, at2(&a->dlogits, r, e), p * (dp[e] - inner) + z * p);
        }
    }
    return LT_OK;
}
