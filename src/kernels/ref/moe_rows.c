/* moe_rows.c (ref): rows into expert order and back. Slot i < n = expert_start[E] holds assignment
 * slot_row[i] = r K + k:
 *     gather    y[i] = x[r]
 *     backward  dx[r] (+)= sum over the slots of r, i rising, of dy[i]
 *     combine   y[r] = sum_k weights[r][k] x[i]
 *     backward  dx[i] = weights[r][k] dy[r],  dweights[r][k] = <x[i], dy[r]>
 *     bias      y[i] += bias[e], e the expert of slot i
 *     backward  dbias[e] += sum over its slots of dy[i]
 * A dropped assignment has no slot: it adds nothing, and its dweight is 0. Rows of y (gather) and
 * dx (combine) from n on are not touched. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static int64_t n_kept(const lt_tensor *expert_start) {
    return get_i32(expert_start, expert_start->shape[0] - 1);
}

lt_err lt_ref_moe_gather_fwd(lt_queue *q, const lt_moe_gather_args *a) {
    const int64_t n = n_kept(&a->expert_start);
    (void)q;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = get_i32(&a->slot_row, i) / a->top_k;
        for (int64_t c = 0; c < a->x.shape[1]; c++) {
            set(&a->y, at2(&a->y, i, c), get(&a->x, at2(&a->x, r, c)));
        }
    }
    return LT_OK;
}

/* Find the slots of row r, at most top_k, in rising order; returns how many there are. */
static int64_t find_slots(int64_t *slots, const lt_tensor *slot_row, int64_t n, int64_t r,
                          int64_t top_k) {
    int64_t found = 0;
    for (int64_t i = 0; i < n && found < top_k; i++) {
        if (get_i32(slot_row, i) / top_k == r) {
            slots[found++] = i;
        }
    }
    return found;
}

lt_err lt_ref_moe_gather_bwd(lt_queue *q, const lt_moe_gather_bwd_args *a) {
    const int64_t n = n_kept(&a->expert_start);
    (void)q;
    LT_ASSERT(a->top_k <= LT_MOE_MAX_TOP_K);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->dx.shape[0]; r++) {
        int64_t slots[LT_MOE_MAX_TOP_K];
        const int64_t n_slots = find_slots(slots, &a->slot_row, n, r, a->top_k);
        for (int64_t c = 0; c < a->dx.shape[1]; c++) {
            double dx = a->add_dx ? get(&a->dx, at2(&a->dx, r, c)) : 0.0;
            for (int64_t j = 0; j < n_slots; j++) {
                dx += get(&a->dy, at2(&a->dy, slots[j], c));
            }
            set(&a->dx, at2(&a->dx, r, c), dx);
        }
    }
    return LT_OK;
}

lt_err lt_ref_moe_combine_fwd(lt_queue *q, const lt_moe_combine_args *a) {
    const int64_t n = n_kept(&a->expert_start), top_k = a->weights.shape[1];
    (void)q;
    LT_ASSERT(top_k <= LT_MOE_MAX_TOP_K);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.shape[0]; r++) {
        int64_t slots[LT_MOE_MAX_TOP_K];
        const int64_t n_slots = find_slots(slots, &a->slot_row, n, r, top_k);
        for (int64_t c = 0; c < a->y.shape[1]; c++) {
            double y = 0.0;
            for (int64_t j = 0; j < n_slots; j++) {
                const int64_t k = get_i32(&a->slot_row, slots[j]) % top_k;
                y += get(&a->weights, at2(&a->weights, r, k)) * get(&a->x, at2(&a->x, slots[j], c));
            }
            set(&a->y, at2(&a->y, r, c), y);
        }
    }
    return LT_OK;
}

lt_err lt_ref_moe_combine_bwd(lt_queue *q, const lt_moe_combine_bwd_args *a) {
    const int64_t n = n_kept(&a->expert_start), top_k = a->weights.shape[1];
    (void)q;
    for (int64_t r = 0; r < a->dweights.shape[0]; r++) {
        for (int64_t k = 0; k < top_k; k++) {
            set(&a->dweights, at2(&a->dweights, r, k), 0.0);
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = get_i32(&a->slot_row, i) / top_k, k = get_i32(&a->slot_row, i) % top_k;
        const double w = get(&a->weights, at2(&a->weights, r, k));
        double dw = 0.0;
        for (int64_t c = 0; c < a->dy.shape[1]; c++) {
            const double dy = get(&a->dy, at2(&a->dy, r, c));
            /* Read before dx is written, which may be in x's memory. */
            dw += get(&a->x, at2(&a->x, i, c)) * dy;
            set(&a->dx, at2(&a->dx, i, c), w * dy);
        }
        set(&a->dweights, at2(&a->dweights, r, k), dw);
    }
    return LT_OK;
}

/* The expert of slot i. */
static int64_t expert_of(const lt_tensor *expert_start, int64_t i) {
    int64_t e = 0;
    while (get_i32(expert_start, e + 1) <= i) {
        e++;
    }
    return e;
}

lt_err lt_ref_moe_bias_fwd(lt_queue *q, const lt_moe_bias_args *a) {
    const int64_t n = n_kept(&a->expert_start);
    (void)q;
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = expert_of(&a->expert_start, i);
        for (int64_t c = 0; c < a->y.shape[1]; c++) {
            set(&a->y, at2(&a->y, i, c),
                get(&a->y, at2(&a->y, i, c)) + get(&a->bias, at2(&a->bias, e, c)));
        }
    }
    return LT_OK;
}

lt_err lt_ref_moe_bias_bwd(lt_queue *q, const lt_moe_bias_bwd_args *a) {
    (void)q;
    for (int64_t e = 0; e < a->dbias.shape[0]; e++) {
        for (int64_t c = 0; c < a->dbias.shape[1]; c++) {
            double sum = get(&a->dbias, at2(&a->dbias, e, c));
            for (int64_t i = get_i32(&a->expert_start, e); i < get_i32(&a->expert_start, e + 1);
                 i++) {
                sum += get(&a->dy, at2(&a->dy, i, c));
            }
            set(&a->dbias, at2(&a->dbias, e, c), sum);
        }
    }
    return LT_OK;
}
