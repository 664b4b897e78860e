/* qk_norm.c (ref): RMSNorm of each head of q and k and its rotation, forward and backward. With n =
 * x rstd, w the whole gain of the head's kind and (c, s) = table[position][i], N = 2 *
 * table.shape[1]:
 *     forward    u = n w
 *                y[i] = u[i] c - u[i + N/2] s,  y[i + N/2] = u[i + N/2] c + u[i] s    for i < N/2
 *                y[i] = u[i]                                                          for i >= N
 *     backward   du: dy rotated back (-s for s);  g = du w;  dx = rstd (g - n mean(g n))
 *                dgain += sum over rows and heads of du n
 * The gains' gradients are summed before any dx is written, because dx may be dy's own memory. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

/* Element i of a head of t (R, H, D), rotated by the position of its row; sign -1 rotates
 * back. */
static double rotated(const lt_tensor *t, const lt_tensor *table, int64_t pos, double sign,
                      int64_t r, int64_t h, int64_t i) {
    const int64_t half = table->shape[1];
    const double v = get(t, at3(t, r, h, i));
    if (i >= 2 * half) {
        return v;
    }
    const int64_t pair = i < half ? i : i - half, other = i < half ? i + half : pair;
    const double c = get(table, at3(table, pos, pair, 0));
    const double s = get(table, at3(table, pos, pair, 1)) * (i < half ? -sign : sign);
    return v * c + get(t, at3(t, r, h, other)) * s;
}

static int64_t position_of(const lt_tensor *positions, const lt_tensor *table, int64_t r) {
    const int32_t pos = get_i32(positions, at1(positions, r));
    LT_ASSERT(pos >= 0 && pos < table->shape[0]);
    return pos;
}

static double weight(const lt_tensor *q_gain, const lt_tensor *k_gain, int64_t n_q, double offset,
                     int64_t h, int64_t i) {
    const lt_tensor *gain = h < n_q ? q_gain : k_gain;
    return offset + get(gain, at1(gain, i));
}

/* Forward for one head; u (D) F64 is scratch memory. */
static void forward_head(const lt_qk_norm_args *a, const lt_tensor *u, int64_t r, int64_t h) {
    const int64_t width = a->x.shape[2], pos = position_of(&a->positions, &a->table, r);
    double sum_sq = 0.0;
    for (int64_t i = 0; i < width; i++) {
        const double v = get(&a->x, at3(&a->x, r, h, i));
        sum_sq += v * v;
    }
    const double rstd = 1.0 / sqrt(sum_sq / (double)width + (double)a->eps);
    for (int64_t i = 0; i < width; i++) {
        set(u, i,
            get(&a->x, at3(&a->x, r, h, i)) * rstd *
                weight(&a->q_gain, &a->k_gain, a->n_q, (double)a->gain_offset, h, i));
    }
    for (int64_t i = 0; i < width; i++) {
        set(&a->y, at3(&a->y, r, h, i), rotated(u, &a->table, pos, 1.0, 0, 0, i));
    }
    if (present(&a->rstd)) {
        set(&a->rstd, r * a->x.shape[1] + h, rstd);
    }
}

#define MAX_WIDTH 4096

static lt_tensor one_head(double *room, int64_t width) {
    LT_ASSERT(width <= MAX_WIDTH);
    return lt_tensor_3d(room, LT_F64, 1, 1, width);
}

lt_err lt_ref_qk_norm_fwd(lt_queue *q, const lt_qk_norm_args *a) {
    (void)q;
    LT_ASSERT(a->x.n_dims == 3 && a->y.n_dims == 3 && a->y.data != a->x.data);
    LT_ASSERT(2 * a->table.shape[1] <= a->x.shape[2] && a->n_q <= a->x.shape[1]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->x.shape[0]; r++) {
        double room[MAX_WIDTH];
        const lt_tensor u = one_head(room, a->x.shape[2]);
        for (int64_t h = 0; h < a->x.shape[1]; h++) {
            forward_head(a, &u, r, h);
        }
    }
    return LT_OK;
}

static double rotated_back(const lt_qk_norm_bwd_args *b, int64_t r, int64_t h, int64_t i) {
    return rotated(&b->dy, &b->table, position_of(&b->positions, &b->table, r), -1.0, r, h, i);
}

static double normalised(const lt_qk_norm_bwd_args *b, int64_t r, int64_t h, int64_t i) {
    return get(&b->x, at3(&b->x, r, h, i)) * get(&b->rstd, r * b->x.shape[1] + h);
}

/* The gradient of one gain, from heads [from, to) of all rows. */
static void gain_gradient(const lt_qk_norm_bwd_args *b, const lt_tensor *dgain, int64_t from,
                          int64_t to) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < b->x.shape[2]; i++) {
        double sum = 0.0;
        for (int64_t r = 0; r < b->x.shape[0]; r++) {
            for (int64_t h = from; h < to; h++) {
                sum += rotated_back(b, r, h, i) * normalised(b, r, h, i);
            }
        }
        set(dgain, at1(dgain, i), get(dgain, at1(dgain, i)) + sum);
    }
}

static void backward_head(const lt_qk_norm_bwd_args *b, const lt_tensor *g, int64_t r, int64_t h) {
    const int64_t width = b->x.shape[2];
    const double rstd = get(&b->rstd, r * b->x.shape[1] + h);
    double mean_gn = 0.0;
    for (int64_t i = 0; i < width; i++) {
        const double gi = rotated_back(b, r, h, i) *
                          weight(&b->q_gain, &b->k_gain, b->n_q, (double)b->gain_offset, h, i);
        set(g, i, gi);
        mean_gn += gi * normalised(b, r, h, i) / (double)width;
    }
    for (int64_t i = 0; i < width; i++) {
        set(&b->dx, at3(&b->dx, r, h, i), rstd * (get(g, i) - normalised(b, r, h, i) * mean_gn));
    }
}

lt_err lt_ref_qk_norm_bwd(lt_queue *q, const lt_qk_norm_bwd_args *b) {
    (void)q;
    LT_ASSERT(present(&b->rstd) && b->n_q <= b->x.shape[1]);
    if (present(&b->dq_gain)) {
        gain_gradient(b, &b->dq_gain, 0, b->n_q);
    }
    if (present(&b->dk_gain)) {
        gain_gradient(b, &b->dk_gain, b->n_q, b->x.shape[1]);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < b->x.shape[0]; r++) {
        double room[MAX_WIDTH];
        const lt_tensor g = one_head(room, b->x.shape[2]);
        for (int64_t h = 0; h < b->x.shape[1]; h++) {
            backward_head(b, &g, r, h);
        }
    }
    return LT_OK;
}
