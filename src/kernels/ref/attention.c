/* attention.c (ref): softmax attention and its backward, row by row; the T x S matrix never exists.
 *
 * For query (b, t) of head h at position p = kv_len - T + t, over the visible keys s (masks: ops.h)
 * of head g = h / (H / G):
 *     raw = scale <q, k_s>,  x_s = (softcap ? softcap tanh(raw / softcap) : raw) + alibi[h] (s - p)
 *     lse = log(sum_s exp(x_s) + exp(sinks[h])),  P_s = exp(x_s - lse),  out = sum_s P_s v_s
 * Backward, with delta = <dout, out> (Dao et al. 2022, appendix B):
 *     dP_s = <dout, v_s>,  dx_s = P_s (dP_s - delta),  draw_s = dx_s (1 - tanh^2)
 *     dq = scale sum_s draw_s k_s,  dk_s = scale sum_(h, t) draw_s q,  dv_s = sum_(h, t) P_s dout,
 *     dsinks[h] -= sum_(b, t) exp(sinks[h] - lse) delta
 * dq is summed over s rising; dk, dv over h, then t rising; dsinks over b, then t rising. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

enum { MAX_HEAD_DIM = 1024 }; /* One output row lives on the stack in double. */

/* A query's position and the half-open range of keys it sees. */
typedef struct {
    int64_t pos, from, to;
} span;

static span visible(const lt_attention_args *a, int64_t b, int64_t t) {
    const int64_t n_keys = present(&a->kv_len) ? get_i32(&a->kv_len, at1(&a->kv_len, b))
                                               : a->k.shape[1];
    span s = {.pos = n_keys - a->q.shape[1] + t, .from = 0, .to = n_keys};

    LT_ASSERT(n_keys >= 0 && n_keys <= a->k.shape[1]);
    if (a->causal) {
        s.to = min_i64(s.to, s.pos + 1);
    }
    if (a->window > 0) {
        s.from = max_i64(s.from, s.pos - a->window + 1);
    }
    if (present(&a->doc_start)) {
        s.from = max_i64(s.from, get_i32(&a->doc_start, at2(&a->doc_start, b, t)));
    }
    return s;
}

static double dot(const lt_tensor *x, int64_t x_at, const lt_tensor *y, int64_t y_at, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += get(x, x_at + i * x->stride[3]) * get(y, y_at + i * y->stride[3]);
    }
    return sum;
}

/* The masked logit x_s; *slope gets d(x_s)/d(raw). */
static double logit(const lt_attention_args *a, int64_t b, int64_t t, int64_t h, int64_t s,
                    int64_t pos, double *slope) {
    const int64_t g = h / (a->q.shape[2] / a->k.shape[2]);
    double x = (double)a->scale *
               dot(&a->q, at4(&a->q, b, t, h, 0), &a->k, at4(&a->k, b, s, g, 0), a->q.shape[3]);
    *slope = 1.0;
    if (a->softcap > 0.0f) {
        const double th = tanh(x / (double)a->softcap);
        x = (double)a->softcap * th;
        *slope = 1.0 - th * th;
    }
    if (present(&a->alibi)) {
        x += get(&a->alibi, at1(&a->alibi, h)) * (double)(s - pos);
    }
    return x;
}

static void forward_row(const lt_attention_args *a, int64_t b, int64_t t, int64_t h) {
    const int64_t g = h / (a->q.shape[2] / a->k.shape[2]), n_d = a->q.shape[3];
    const span seen = visible(a, b, t);
    const double sink = present(&a->sinks) ? get(&a->sinks, at1(&a->sinks, h)) : -INFINITY;
    double out[MAX_HEAD_DIM] = {0}, max = sink, sum, slope;

    for (int64_t s = seen.from; s < seen.to; s++) {
        max = fmax(max, logit(a, b, t, h, s, seen.pos, &slope));
    }
    sum = max == -INFINITY ? 0.0 : exp(sink - max);
    for (int64_t s = seen.from; s < seen.to; s++) {
        const double e = exp(logit(a, b, t, h, s, seen.pos, &slope) - max);
        const int64_t v = at4(&a->v, b, s, g, 0);
        sum += e;
        for (int64_t d = 0; d < n_d; d++) {
            out[d] += e * get(&a->v, v + d * a->v.stride[3]);
        }
    }
    for (int64_t d = 0; d < n_d; d++) {
        set(&a->out, at4(&a->out, b, t, h, d), sum > 0.0 ? out[d] / sum : 0.0);
    }
    if (present(&a->lse)) {
        set(&a->lse, at3(&a->lse, b, h, t), sum > 0.0 ? max + log(sum) : -INFINITY);
    }
}

static void check_shapes(const lt_attention_args *a) {
    LT_ASSERT(a->q.n_dims == 4 && a->k.n_dims == 4 && a->v.n_dims == 4 && a->out.n_dims == 4);
    LT_ASSERT(a->q.shape[3] == a->k.shape[3] && a->q.shape[3] == a->v.shape[3]);
    LT_ASSERT(a->q.shape[3] <= MAX_HEAD_DIM && a->q.shape[2] % a->k.shape[2] == 0);
}

lt_err lt_ref_attention_fwd(lt_queue *q, const lt_attention_args *a) {
    (void)q;
    check_shapes(a);
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t b = 0; b < a->q.shape[0]; b++) {
        for (int64_t h = 0; h < a->q.shape[2]; h++) {
            for (int64_t t = 0; t < a->q.shape[1]; t++) {
                forward_row(a, b, t, h);
            }
        }
    }
    return LT_OK;
}

/* P_s and draw_s of one (query, key) pair. */
static void pair(const lt_attention_bwd_args *a, int64_t b, int64_t t, int64_t h, int64_t s,
                 int64_t pos, double *p, double *draw) {
    const lt_attention_args *f = &a->fwd;
    const int64_t g = h / (f->q.shape[2] / f->k.shape[2]);
    const double delta = get(&a->delta, at3(&a->delta, b, h, t));
    const double dp = dot(&a->dout, at4(&a->dout, b, t, h, 0), &f->v, at4(&f->v, b, s, g, 0),
                          f->q.shape[3]);
    double slope;

    *p = exp(logit(f, b, t, h, s, pos, &slope) - get(&f->lse, at3(&f->lse, b, h, t)));
    *draw = *p * (dp - delta) * slope;
}

static void backward_query(const lt_attention_bwd_args *a, int64_t b, int64_t t, int64_t h) {
    const lt_attention_args *f = &a->fwd;
    const int64_t g = h / (f->q.shape[2] / f->k.shape[2]), n_d = f->q.shape[3];
    const span seen = visible(f, b, t);
    double dq[MAX_HEAD_DIM] = {0}, p, draw;

    set(&a->delta, at3(&a->delta, b, h, t),
        dot(&a->dout, at4(&a->dout, b, t, h, 0), &f->out, at4(&f->out, b, t, h, 0), n_d));
    for (int64_t s = seen.from; s < seen.to; s++) {
        pair(a, b, t, h, s, seen.pos, &p, &draw);
        for (int64_t d = 0; d < n_d; d++) {
            dq[d] += (double)f->scale * draw * get(&f->k, at4(&f->k, b, s, g, d));
        }
    }
    for (int64_t d = 0; d < n_d; d++) {
        set(&a->dq, at4(&a->dq, b, t, h, d), dq[d]);
    }
}

static void backward_key(const lt_attention_bwd_args *a, int64_t b, int64_t s, int64_t g) {
    const lt_attention_args *f = &a->fwd;
    const int64_t group = f->q.shape[2] / f->k.shape[2], n_d = f->q.shape[3];
    double dk[MAX_HEAD_DIM] = {0}, dv[MAX_HEAD_DIM] = {0}, p, draw;

    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t t = 0; t < f->q.shape[1]; t++) {
            const span seen = visible(f, b, t);
            if (s < seen.from || s >= seen.to) {
                continue;
            }
            pair(a, b, t, h, s, seen.pos, &p, &draw);
            for (int64_t d = 0; d < n_d; d++) {
                dk[d] += (double)f->scale * draw * get(&f->q, at4(&f->q, b, t, h, d));
                dv[d] += p * get(&a->dout, at4(&a->dout, b, t, h, d));
            }
        }
    }
    for (int64_t d = 0; d < n_d; d++) {
        set(&a->dk, at4(&a->dk, b, s, g, d), dk[d]);
        set(&a->dv, at4(&a->dv, b, s, g, d), dv[d]);
    }
}

static void backward_sink(const lt_attention_bwd_args *a, int64_t h) {
    const lt_attention_args *f = &a->fwd;
    const double sink = get(&f->sinks, at1(&f->sinks, h));
    double sum = 0.0;

    for (int64_t b = 0; b < f->q.shape[0]; b++) {
        for (int64_t t = 0; t < f->q.shape[1]; t++) {
            sum += exp(sink - get(&f->lse, at3(&f->lse, b, h, t))) *
                   get(&a->delta, at3(&a->delta, b, h, t));
        }
    }
    set(&a->dsinks, at1(&a->dsinks, h), get(&a->dsinks, at1(&a->dsinks, h)) - sum);
}

lt_err lt_ref_attention_bwd(lt_queue *q, const lt_attention_bwd_args *a) {
    const lt_attention_args *f = &a->fwd;

    (void)q;
    check_shapes(f);
    LT_ASSERT(present(&f->lse) && present(&a->delta));
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t b = 0; b < f->q.shape[0]; b++) { /* 1. delta and dq. */
        for (int64_t h = 0; h < f->q.shape[2]; h++) {
            for (int64_t t = 0; t < f->q.shape[1]; t++) {
                backward_query(a, b, t, h);
            }
        }
    }
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t b = 0; b < f->k.shape[0]; b++) { /* 2. dk and dv, which need every delta. */
        for (int64_t g = 0; g < f->k.shape[2]; g++) {
            for (int64_t s = 0; s < f->k.shape[1]; s++) {
                backward_key(a, b, s, g);
            }
        }
    }
    if (present(&f->sinks) && present(&a->dsinks)) {
#pragma omp parallel for schedule(static)
        for (int64_t h = 0; h < f->q.shape[2]; h++) { /* 3. dsinks. */
            backward_sink(a, h);
        }
    }
    return LT_OK;
}

static int64_t within(int64_t x, int64_t most) {
    return x < 0 ? 0 : x < most ? x : most;
}

lt_err lt_ref_attention_starts(lt_queue *q, const lt_attention_starts_args *a) {
    const int64_t T = a->y.shape[1], piece = a->piece;
    (void)q;
    LT_ASSERT(a->y.n_dims == 2 && a->q_first >= 0 && a->q_first + T <= 2 * piece);
    for (int64_t b = 0; b < a->y.shape[0]; b++) {
        for (int64_t t = 0; t < T; t++) {
            const int64_t own = a->q_first + t;
            int64_t first = present(&a->doc_start)
                                ? get_i32(&a->doc_start, at2(&a->doc_start, b, t))
                                : 0;
            if (a->window > 0) {
                const int64_t place = a->q_piece[own >= piece] * piece + own % piece,
                              seen = place - a->window + 1;
                first = seen > first ? seen : first;
            }
            set_i32(&a->y, at2(&a->y, b, t),
                    within(first - a->k_piece[0] * piece, piece) +
                        within(first - a->k_piece[1] * piece, piece));
        }
    }
    return LT_OK;
}

lt_err lt_ref_attention_merge(lt_queue *q, const lt_attention_merge_args *a) {
    const int64_t *const n = a->out.shape; /* B, T, H, D */
    (void)q;
    LT_ASSERT(a->out.n_dims == 4 && a->part.n_dims == 4);
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t b = 0; b < n[0]; b++) {
        for (int64_t h = 0; h < n[2]; h++) {
            for (int64_t t = 0; t < n[1]; t++) {
                const int64_t at = at3(&a->lse, b, h, t);
                const double before = a->first ? -INFINITY : get(&a->lse, at),
                             part = get(&a->part_lse, at3(&a->part_lse, b, h, t)),
                             sink = present(&a->sinks) ? get(&a->sinks, at1(&a->sinks, h))
                                                       : -INFINITY;
                const double max = fmax(fmax(before, part), sink);
                const double sum = max == -INFINITY
                                       ? 0.0
                                       : exp(before - max) + exp(part - max) + exp(sink - max);
                const double lse = sum > 0.0 ? max + log(sum) : -INFINITY;
                const double keep = sum > 0.0 ? exp(before - lse) : 0.0,
                             join = sum > 0.0 ? exp(part - lse) : 0.0;
                for (int64_t d = 0; d < n[3]; d++) {
                    const int64_t to = at4(&a->out, b, t, h, d);
                    const double x = get(&a->part, at4(&a->part, b, t, h, d));
                    set(&a->out, to, (a->first ? 0.0 : keep * get(&a->out, to)) + join * x);
                }
                set(&a->lse, at, lse);
            }
        }
    }
    return LT_OK;
}
