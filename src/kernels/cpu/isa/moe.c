/* moe.c: mixture-of-experts routing and the moves into expert order and back (layouts:
 * tensor/ops.h).
 *
 * ROUTE     E is small (8 to 512) and R * E floats pass through once; the softmax of a row lies on
 *           the stack. Slots come from one counting sort.
 * MOVES     Each call inverts slot_row into a table from (r, k) to slots, in which every row
 *           of the result finds its sources. The moves run in parallel over result rows; each
 *           is summed over its slots in rising order, as the reference does.
 * NUMERICS  Sums over rows (aux losses) run over fixed chunks in double. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

#include <math.h>

typedef struct {
    float values[LT_MOE_MAX_EXPERTS + 16];
} expert_row;

/* Softmax of a row of logits into p, padded with zeros to a whole vector; returns its
 * log-sum-exp. */
static float softmax_row(expert_row *p, const float *logits, int64_t n) {
    vf high = v_set(-INFINITY);
    vf sum = {0};
    for (int64_t e = 0; e < n; e += VEC) {
        high = v_max(v_first(v_get(logits, LT_F32, e, n - e), n - e, -INFINITY), high);
    }
    const float max = v_max_of(high);
    for (int64_t e = 0; e < n; e += VEC) {
        const vf x = v_exp(v_first(v_get(logits, LT_F32, e, n - e) - max, n - e, -INFINITY));
        v_store(p->values + e, x);
        sum += x;
    }
    const float total = v_sum(sum);
    for (int64_t e = 0; e < n; e += VEC) {
        v_store(p->values + e, v_load(p->values + e) / total);
    }
    return max + logf(total);
}

static const float *f32_row(const lt_tensor *t, int64_t r) {
    return (const float *)t->data + r * t->stride[0];
}

/* Choose the K largest logits, ties going to the lower index, and their weights. */
static void choose(const lt_moe_route_args *a, int64_t r, const expert_row *p) {
    const float *logits = f32_row(&a->logits, r);
    const int64_t n_experts = a->logits.shape[1];
    const int64_t top_k = a->experts.shape[1];
    int32_t *experts = (int32_t *)a->experts.data + r * a->experts.stride[0];
    float *weights = (float *)a->weights.data + r * a->weights.stride[0];
    bool taken[LT_MOE_MAX_EXPERTS] = {false};
    float sum = 0.0f;
    for (int64_t k = 0; k < top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n_experts; e++) {
            if (!taken[e] && (best < 0 || logits[e] > logits[best])) {
                best = e;
            }
        }
        taken[best] = true;
        experts[k] = (int32_t)best;
        weights[k] = p->values[best];
        sum += weights[k];
    }
    for (int64_t k = 0; a->normalise && k < top_k; k++) {
        weights[k] /= sum;
    }
}

/* Counting sort of the assignments by expert; those beyond capacity come last, with weight 0. */
static void sort_slots(const lt_moe_route_args *a) {
    const int64_t n_experts = a->logits.shape[1];
    const int64_t top_k = a->experts.shape[1];
    const int64_t rows = a->logits.shape[0];
    int32_t *slot_row = a->slot_row.data;
    int32_t *start = a->expert_start.data;
    int64_t count[LT_MOE_MAX_EXPERTS] = {0};
    int64_t next[LT_MOE_MAX_EXPERTS];
    int64_t total = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *experts = (const int32_t *)a->experts.data + r * a->experts.stride[0];
        for (int64_t k = 0; k < top_k; k++) {
            count[experts[k]]++;
        }
    }
    for (int64_t e = 0; e < n_experts; e++) {
        start[e] = (int32_t)total;
        next[e] = total;
        total += a->capacity > 0 && count[e] > a->capacity ? a->capacity : count[e];
    }
    start[n_experts] = (int32_t)total;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *experts = (const int32_t *)a->experts.data + r * a->experts.stride[0];
        float *weights = (float *)a->weights.data + r * a->weights.stride[0];
        for (int64_t k = 0; k < top_k; k++) {
            const int32_t e = experts[k];
            if (next[e] < start[e + 1]) {
                slot_row[next[e]++] = (int32_t)(r * top_k + k);
            } else {
                slot_row[total++] = (int32_t)(r * top_k + k);
                weights[k] = 0.0f;
            }
        }
    }
}

static void expert_share(double *share, const lt_tensor *experts, int64_t n_experts) {
    const double n = (double)(experts->shape[0] * experts->shape[1]);
    memset(share, 0, (size_t)n_experts * sizeof *share);
    for (int64_t r = 0; r < experts->shape[0]; r++) {
        for (int64_t k = 0; k < experts->shape[1]; k++) {
            share[((const int32_t *)experts->data)[r * experts->stride[0] + k]] += 1.0;
        }
    }
    for (int64_t e = 0; e < n_experts; e++) {
        share[e] /= n;
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_route_fwd)(lt_queue *q, const void *args) {
    const lt_moe_route_args *a = args;
    const int64_t rows = a->logits.shape[0];
    const int64_t n_experts = a->logits.shape[1];
    const int64_t n_chunks = row_chunks(rows);
    double *sums = NULL; /* (n_chunks, n_experts + 1): of the probabilities, and of lse^2. */
    (void)q;
    LT_ASSERT(n_experts <= LT_MOE_MAX_EXPERTS && a->experts.shape[1] <= n_experts);
    LT_TRY(lt_cpu_scratch(&sums, LT_CPU_SLOT_PARTIAL,
                          (size_t)(n_chunks * (n_experts + 1)) * sizeof *sums));
#pragma omp parallel for schedule(static) if (rows * n_experts > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        double *sum = sums + chunk * (n_experts + 1);
        memset(sum, 0, (size_t)(n_experts + 1) * sizeof *sum);
        for (int64_t r = chunk_start(rows, n_chunks, chunk);
             r < chunk_start(rows, n_chunks, chunk + 1); r++) {
            expert_row p;
            const double lse = (double)softmax_row(&p, f32_row(&a->logits, r), n_experts);
            memcpy((float *)a->probs.data + r * a->probs.stride[0], p.values,
                   (size_t)n_experts * sizeof(float));
            choose(a, r, &p);
            for (int64_t e = 0; e < n_experts; e++) {
                sum[e] += (double)p.values[e];
            }
            sum[n_experts] += lse * lse;
        }
    }
    if (a->aux.data != NULL) {
        double share[LT_MOE_MAX_EXPERTS];
        double aux[2] = {0.0, 0.0};
        expert_share(share, &a->experts, n_experts);
        for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
            for (int64_t e = 0; e < n_experts; e++) {
                aux[0] += share[e] * sums[chunk * (n_experts + 1) + e];
            }
            aux[1] += sums[chunk * (n_experts + 1) + n_experts];
        }
        ((float *)a->aux.data)[0] = (float)(aux[0] * (double)n_experts / (double)rows);
        ((float *)a->aux.data)[a->aux.stride[0]] = (float)(aux[1] / (double)rows);
    }
    sort_slots(a);
    return LT_OK;
}

/* dp of the chosen experts: dw, or through the division by their sum. A dropped one has the
 * constant weight 0. */
static void chosen_bwd(const lt_moe_route_bwd_args *a, int64_t r, float *dp) {
    const int64_t top_k = a->experts.shape[1];
    const int32_t *experts = (const int32_t *)a->experts.data + r * a->experts.stride[0];
    const float *weights = f32_row(&a->weights, r);
    const float *probs = f32_row(&a->probs, r);
    const float *dweights = f32_row(&a->dweights, r);
    float sum = 0.0f;
    float inner = 0.0f;
    for (int64_t k = 0; k < top_k; k++) {
        sum += probs[experts[k]];
        inner += weights[k] == 0.0f ? 0.0f : dweights[k] * probs[experts[k]];
    }
    for (int64_t k = 0; k < top_k; k++) {
        const float dw = weights[k] == 0.0f ? 0.0f : dweights[k];
        dp[experts[k]] += a->normalise ? (dw - inner / sum) / sum : dw;
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_route_bwd)(lt_queue *q, const void *args) {
    const lt_moe_route_bwd_args *a = args;
    const int64_t rows = a->logits.shape[0];
    const int64_t n = a->logits.shape[1];
    const float scale = a->aux_scale.data != NULL ? *(const float *)a->aux_scale.data : 1.0f,
                aux_coef = a->aux_coef * scale, z_coef = a->z_coef * scale;
    double share[LT_MOE_MAX_EXPERTS];
    (void)q;
    LT_ASSERT(n <= LT_MOE_MAX_EXPERTS && a->experts.shape[1] <= LT_MOE_MAX_TOP_K);
    expert_share(share, &a->experts, n);
#pragma omp parallel for schedule(static) if (rows * n > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float *probs = f32_row(&a->probs, r);
        float *dlogits = (float *)a->dlogits.data + r * a->dlogits.stride[0];
        expert_row dp = {{0}};
        expert_row p;
        float inner = 0.0f;
        const float lse = softmax_row(&p, f32_row(&a->logits, r), n);
        const float z = z_coef * 2.0f * lse / (float)rows;
        for (int64_t e = 0; e < n; e++) {
            dp.values[e] = (float)((double)aux_coef * (double)n * share[e] / (double)rows);
        }
        chosen_bwd(a, r, dp.values);
        for (int64_t e = 0; e < n; e++) {
            inner += probs[e] * dp.values[e];
        }
        for (int64_t e = 0; e < n; e++) {
            dlogits[e] = probs[e] * (dp.values[e] - inner) + z * probs[e];
        }
    }
    return LT_OK;
}

/* slots[r * K + k] = the slot of assignment (r, k), -1 if it was dropped; *n gets the number of
 * slots. */
static lt_err find_slots(int32_t **slots, int64_t *n, const lt_tensor *slot_row,
                         const lt_tensor *expert_start, int64_t count) {
    const int32_t *from = slot_row->data;
    *n = ((const int32_t *)expert_start->data)[expert_start->shape[0] - 1];
    LT_TRY(lt_cpu_scratch(slots, LT_CPU_SLOT_PARTIAL, (size_t)count * sizeof **slots));
    memset(*slots, 0xFF, (size_t)count * sizeof **slots);
    for (int64_t i = 0; i < *n; i++) {
        (*slots)[from[i]] = (int32_t)i;
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_moe_gather_fwd)(lt_queue *q, const void *args) {
    const lt_moe_gather_args *a = args;
    const int64_t n = ((const int32_t *)a->expert_start.data)[a->expert_start.shape[0] - 1];
    const int64_t width = a->x.shape[1];
    const int32_t *slot_row = a->slot_row.data;
    (void)q;
#pragma omp parallel for schedule(static) if (n * width > PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) {
        memcpy(at_element(&a->y, i * a->y.stride[0]),
               at_element(&a->x, slot_row[i] / a->top_k * a->x.stride[0]),
               (size_t)width * lt_dtype_bytes(a->x.dtype));
    }
    return LT_OK;
}

/* dst row = (add ? dst row : 0) + sum over the slots of row r, in ascending order, of weight *
 * rows[slot]. */
LT_INLINE void sum_slots(const lt_tensor *dst, int64_t r, bool add, const lt_tensor *rows,
                         const int32_t *slots, const float *weights, int64_t top_k,
                         const lt_dtype dtype) {
    int32_t order[LT_MOE_MAX_TOP_K];
    float w[LT_MOE_MAX_TOP_K];
    int64_t n_slots = 0;
    for (int64_t k = 0; k < top_k; k++) { /* Insertion sort of at most K slots. */
        if (slots[r * top_k + k] >= 0) {
            int64_t at = n_slots++;
            for (; at > 0 && order[at - 1] > slots[r * top_k + k]; at--) {
                order[at] = order[at - 1];
                w[at] = w[at - 1];
            }
            order[at] = slots[r * top_k + k];
            w[at] = weights != NULL ? weights[k] : 1.0f;
        }
    }
    for (int64_t c = 0; c < dst->shape[1]; c += VEC) {
        const int64_t n = dst->shape[1] - c;
        vf sum = {0};
        if (add) {
            sum = v_get(dst->data, dtype, r * dst->stride[0] + c, n);
        }
        for (int64_t j = 0; j < n_slots; j++) {
            sum += w[j] * v_get(rows->data, dtype, order[j] * rows->stride[0] + c, n);
        }
        v_put(dst->data, dtype, r * dst->stride[0] + c, sum, n);
    }
}

LT_INLINE void gather_bwd_rows(const lt_moe_gather_bwd_args *a, const int32_t *slots,
                               const lt_dtype dtype) {
    const int64_t rows = a->dx.shape[0];
#pragma omp parallel for schedule(static) if (rows * a->dx.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        sum_slots(&a->dx, r, a->add_dx, &a->dy, slots, NULL, a->top_k, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_gather_bwd)(lt_queue *q, const void *args) {
    const lt_moe_gather_bwd_args *a = args;
    int32_t *slots = NULL;
    int64_t n;
    (void)q;
    LT_ASSERT(a->top_k <= LT_MOE_MAX_TOP_K);
    LT_TRY(find_slots(&slots, &n, &a->slot_row, &a->expert_start, a->dx.shape[0] * a->top_k));
    BY_DTYPE(a->dx.dtype, gather_bwd_rows, a, slots);
    return LT_OK;
}

LT_INLINE void combine_rows(const lt_moe_combine_args *a, const int32_t *slots,
                            const lt_dtype dtype) {
    const int64_t rows = a->y.shape[0];
#pragma omp parallel for schedule(static) if (rows * a->y.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        sum_slots(&a->y, r, false, &a->x, slots, f32_row(&a->weights, r), a->weights.shape[1],
                  dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_combine_fwd)(lt_queue *q, const void *args) {
    const lt_moe_combine_args *a = args;
    const int64_t top_k = a->weights.shape[1];
    int32_t *slots = NULL;
    int64_t n;
    (void)q;
    LT_ASSERT(top_k <= LT_MOE_MAX_TOP_K);
    LT_TRY(find_slots(&slots, &n, &a->slot_row, &a->expert_start, a->y.shape[0] * top_k));
    BY_DTYPE(a->y.dtype, combine_rows, a, slots);
    return LT_OK;
}

/* One slot: dweight = <x, dy>, then dx = weight dy (dx may alias x). */
LT_INLINE void combine_bwd_slot(const lt_moe_combine_bwd_args *a, int64_t slot, int64_t r,
                                int64_t k, const lt_dtype dtype) {
    const float weight = f32_row(&a->weights, r)[k];
    const int64_t at_dy = r * a->dy.stride[0];
    vf dot = {0};
    for (int64_t c = 0; c < a->dy.shape[1]; c += VEC) {
        const int64_t n = a->dy.shape[1] - c;
        const vf d = v_get(a->dy.data, dtype, at_dy + c, n);
        dot += d * v_get(a->x.data, dtype, slot * a->x.stride[0] + c, n);
        v_put(a->dx.data, dtype, slot * a->dx.stride[0] + c, weight * d, n);
    }
    ((float *)a->dweights.data)[r * a->dweights.stride[0] + k] = v_sum(dot);
}

LT_INLINE void combine_bwd_slots(const lt_moe_combine_bwd_args *a, int64_t n,
                                 const lt_dtype dtype) {
    const int64_t top_k = a->weights.shape[1];
    const int32_t *slot_row = a->slot_row.data;
#pragma omp parallel for schedule(static) if (n * a->dy.shape[1] > PARALLEL_MIN)
    for (int64_t slot = 0; slot < n; slot++) {
        combine_bwd_slot(a, slot, slot_row[slot] / top_k, slot_row[slot] % top_k, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_combine_bwd)(lt_queue *q, const void *args) {
    const lt_moe_combine_bwd_args *a = args;
    const int64_t n = ((const int32_t *)a->expert_start.data)[a->expert_start.shape[0] - 1];
    (void)q;
    for (int64_t r = 0; r < a->dweights.shape[0]; r++) { /* Dropped assignments keep 0. */
        memset((float *)a->dweights.data + r * a->dweights.stride[0], 0,
               (size_t)a->dweights.shape[1] * sizeof(float));
    }
    BY_DTYPE(a->dy.dtype, combine_bwd_slots, a, n);
    return LT_OK;
}

/* The expert of a row in expert order: start[e] <= row < start[e + 1]. */
static int64_t expert_of(const int32_t *start, int64_t n_experts, int64_t row) {
    int64_t low = 0, high = n_experts;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        *(start[middle] <= row ? &low : &high) = middle;
    }
    return low;
}

LT_INLINE void bias_rows(const lt_moe_bias_args *a, const lt_dtype dtype) {
    const int32_t *start = a->expert_start.data;
    const int64_t n_experts = a->bias.shape[0], rows = start[n_experts], width = a->y.shape[1];
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = r * a->y.stride[0],
                      from = expert_of(start, n_experts, r) * a->bias.stride[0];
        for (int64_t c = 0; c < width; c += VEC) {
            const int64_t n = width - c;
            const vf bias = v_get(a->bias.data, dtype, from + c, n);
            v_put(a->y.data, dtype, at + c, v_get(a->y.data, dtype, at + c, n) + bias, n);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_bias_fwd)(lt_queue *q, const void *args) {
    const lt_moe_bias_args *a = args;
    (void)q;
    BY_DTYPE(a->y.dtype, bias_rows, a);
    return LT_OK;
}

/* One expert's sums, one vector of columns at a time, with rows in ascending order. */
LT_INLINE void bias_sums(const lt_moe_bias_bwd_args *a, const lt_dtype dtype) {
    const int32_t *start = a->expert_start.data;
    const int64_t n_experts = a->dbias.shape[0], width = a->dy.shape[1];
    const int64_t pieces = (width + VEC - 1) / VEC;
#pragma omp parallel for schedule(static) if (start[n_experts] * width > PARALLEL_MIN)
    for (int64_t i = 0; i < n_experts * pieces; i++) {
        const int64_t e = i / pieces, c = i % pieces * VEC, n = width - c;
        vf sum = {0};
        for (int64_t r = start[e]; r < start[e + 1]; r++) {
            sum += v_get(a->dy.data, dtype, r * a->dy.stride[0] + c, n);
        }
        const int64_t at = e * a->dbias.stride[0] + c;
        v_put(a->dbias.data, LT_F32, at, v_get(a->dbias.data, LT_F32, at, n) + sum, n);
    }
}

lt_err LT_ISA_NAME(lt_cpu_moe_bias_bwd)(lt_queue *q, const void *args) {
    const lt_moe_bias_bwd_args *a = args;
    (void)q;
    BY_DTYPE(a->dy.dtype, bias_sums, a);
    return LT_OK;
}
