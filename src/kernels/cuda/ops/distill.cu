/* distill.cu — divergence of a teacher's and a student's distributions, forward and the gradient in
 * place, one block a row. src/kernels/ref/distill.c has the formulas.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart; teacher (rows, V) of TEACHER, or ids, logp
 *           (rows, K) with K at most THREADS (WORDS 1); labels (rows) int32, -1: nothing but zeros.
 * MAP       512 threads a row; thread t holds columns t, t + 512, ...; of the teacher's words
 *           thread t has word t.
 * MOVEMENT
 *     whole    both rows HBM ──▶ sums of exponentials ─▶ both rows from L2 ──▶ terms ─▶ both rows
 *                  from L2 ──▶ gradient ──▶ student's row HBM
 *     words    the student's row HBM, without the words, which are set to -inf meanwhile ──▶ sum ─▶
 *                  the words' terms ─▶ the row from L2 ──▶ gradient ──▶ HBM, then the words'
 * BOUND     whole, with gradient: 2 bytes a logit of bf16 read and 2 written, 4 of the teacher's.
 * MEASURED  not yet.
 * NUMERICS  fp32; logarithms of probabilities are l - max - log sum; fixed order of sums. */
#include "ops/xent.cuh"
#include "kernels/cuda/ops/distill_args.h"

#define THREADS 512
#define N_WARPS (THREADS / WARP)
#define REST    1e-7f /* LT_DISTILL_REST of tensor/ops.h. */
#define SUMS    12    /* Reductions of a row, each with its own floats. */

enum { FORWARD, REVERSE, MIXED }; /* KIND: beta 0, 1, between. */

/* A sum of exponentials: log is the logarithm of the sum of exp(x - top). */
typedef struct {
    float top, log;
} total;

typedef struct {
    float d, u;
} terms;

INLINE total make_total(float top, float log) {
    total t;
    t.top = top;
    t.log = log;
    return t;
}
INLINE terms make_terms(float d, float u) {
    terms t;
    t.d = d;
    t.u = u;
    return t;
}
INLINE float exp_of(float x) {
    return exp2_fast(x * LOG2_E);
}
/* A logit with the cap, if there is one. */
INLINE float soft(float x, float softcap) {
    return softcap > 0.0f ? capped(x, softcap) : x;
}
INLINE float minus(float l, total t) {
    return (l - t.top) - t.log;
}
INLINE total add_totals(total a, total b) {
    const float top = fmaxf(a.top, b.top);
    if (!(top > NEGATIVE)) {
        return a;
    }
    return make_total(top, logf(exp_of(a.top - top + a.log) + exp_of(b.top - top + b.log)));
}
INLINE float weighed(float weight, float x) { /* 0 log 0 = 0 */
    return weight == 0.0f ? 0.0f : weight * x;
}

INLINE terms terms_of(float logp, float logq, const lt_cuda_distill_args *a) {
    const float p = exp_of(logp), q = exp_of(logq);
    if (KIND == FORWARD) {
        return make_terms(weighed(p, logp - logq), -p);
    }
    if (KIND == REVERSE) {
        const float d = weighed(q, logq - logp);
        return make_terms(d, d);
    }
    const float x = logp + a->log_beta, y = logq + a->log_other, high = fmaxf(x, y),
                logm = high + logf(1.0f + exp_of(fminf(x, y) - high)),
                of_q = weighed(q, logq - logm);
    return make_terms(a->beta * weighed(p, logp - logm) + (1.0f - a->beta) * of_q,
                      (1.0f - a->beta) * of_q);
}

/* The total of the block, from each thread's sum and the largest value that it has seen. */
INLINE total block_total(float top, float sum, float (*slots)[N_WARPS]) {
    const float all = block_max(top, slots[0], N_WARPS);
    const float mine = top > NEGATIVE ? sum * exp_of(top - all) : 0.0f;
    return make_total(all, all > NEGATIVE ? logf(block_sum(mine, slots[1], N_WARPS))
                                          : block_sum(0.0f, slots[1], N_WARPS));
}

/* Add a logit that a thread has read, unless it is the one set aside. */
INLINE void add_logit(running *r, float x, float softcap, float scale) {
    const float y = soft(x, softcap) * scale;
    if (x == NEGATIVE) {
        return;
    }
    if (y > r->top) {
        r->sum *= exp_of(r->top - y);
        r->top = y;
    }
    r->sum += exp_of(y - r->top);
}

INLINE total student_total(const DTYPE *row, const lt_cuda_distill_args *a, float scale,
                           float (*slots)[N_WARPS]) {
    running r = {NEGATIVE, 0.0f, 0};
    for (int col = threadIdx.x; col < a->cols; col += THREADS) {
        add_logit(&r, TO_F32(DTYPE, row[col]), a->softcap, scale);
    }
    return block_total(r.top, r.sum, slots);
}

/* The values derived from a row. */
typedef struct {
    total lse, teacher, rest, hard; /* hard: at temperature 1. */
    float rest_slope, u; /* rest_slope: of a token that is not named, over exp(l - rest). */
    float scale;
} facts;

/* The derivative of the loss by a capped logit, from `slope`, that of D by it over the
 * temperature. */
INLINE float derivative(const lt_cuda_distill_args *a, const facts *f, float l, float slope,
                        bool is_label) {
    float d = (1.0f - a->share) * a->inv_t * slope;
    if (a->share > 0.0f) {
        d += a->share * (exp_of(minus(l, f->hard)) - (is_label ? 1.0f : 0.0f));
    }
    return f->scale * (a->softcap > 0.0f ? d * (1.0f - (l / a->softcap) * (l / a->softcap)) : d);
}

INLINE terms whole_terms(const lt_cuda_distill_args *a, const facts *f, const TEACHER *teacher,
                         float l, int col) {
    const float t = soft(TO_F32(TEACHER, teacher[col]), a->teacher_softcap) * a->inv_t;
    return terms_of(minus(t, f->teacher), minus(l * a->inv_t, f->lse), a);
}

/* Write the gradient of a row with a whole teacher distribution; returns D. */
INLINE float run_whole(const lt_cuda_distill_args *a, DTYPE *row, const TEACHER *teacher, int label,
                       facts *f, float (*slots)[N_WARPS]) {
    running r = {NEGATIVE, 0.0f, 0};
    terms all = {0.0f, 0.0f};
    for (int col = threadIdx.x; col < a->cols; col += THREADS) {
        add_logit(&r, TO_F32(TEACHER, teacher[col]), a->teacher_softcap, a->inv_t);
    }
    f->teacher = block_total(r.top, r.sum, slots);
    f->lse = student_total(row, a, a->inv_t, slots + 2);
    for (int col = threadIdx.x; col < a->cols; col += THREADS) {
        const terms t = whole_terms(a, f, teacher, soft(TO_F32(DTYPE, row[col]), a->softcap), col);
        all.d += t.d;
        all.u += t.u;
    }
    const float d = block_sum(all.d, slots[4], N_WARPS), u = block_sum(all.u, slots[5], N_WARPS);
    if (a->grad_scale == 0.0f) {
        return d;
    }
    for (int col = threadIdx.x; col < a->cols; col += THREADS) {
        const float l = soft(TO_F32(DTYPE, row[col]), a->softcap),
                    slope = whole_terms(a, f, teacher, l, col).u -
                            exp_of(minus(l * a->inv_t, f->lse)) * u;
        row[col] = FROM_F32(DTYPE, derivative(a, f, l, slope, col == label));
    }
    return d;
}

/* The same for a row whose teacher names tokens, of which this thread has one, or none (id -1). */
INLINE float run_words(const lt_cuda_distill_args *a, DTYPE *row, int id, float logp, int label,
                       facts *f, float (*slots)[N_WARPS]) {
    const bool has = id >= 0;
    const DTYPE stored = has ? row[id] : FROM_F32(DTYPE, 0.0f);
    const float l = has ? soft(TO_F32(DTYPE, stored), a->softcap) : NEGATIVE, own = l * a->inv_t;
    const total top = block_total(own, has ? 1.0f : 0.0f, slots);
    const float given = block_sum(has ? exp_of(logp) : 0.0f, slots[2], N_WARPS),
                n = block_sum(has ? 1.0f : 0.0f, slots[3], N_WARPS);
    total of = top; /* The divisor of the student's named tokens. */
    terms all = {0.0f, 0.0f}, mine = {0.0f, 0.0f}, rest = {0.0f, 0.0f};
    float rest_q = 0.0f;
    if (a->rest) {
        if (has) {
            row[id] = FROM_F32(DTYPE, NEGATIVE);
        }
        __syncthreads();
        f->rest = student_total(row, a, a->inv_t, slots + 4);
        __syncthreads();
        if (has) {
            row[id] = stored;
        }
        of = f->lse = add_totals(top, f->rest);
    }
    if (a->rest && n < (float)a->cols) {
        const float logq = (f->rest.top - f->lse.top) + (f->rest.log - f->lse.log);
        rest = terms_of(logf(fmaxf(1.0f - given, REST)), logq, a);
        rest_q = exp_of(logq);
    }
    if (has) {
        mine = terms_of(a->rest ? logp : logp - logf(given), minus(own, of), a);
    }
    all.d = block_sum(mine.d, slots[6], N_WARPS) + rest.d;
    all.u = block_sum(mine.u, slots[7], N_WARPS) + rest.u;
    if (a->grad_scale == 0.0f) {
        return all.d;
    }
    f->rest_slope = rest.u - rest_q * all.u;
    __syncthreads(); /* The named tokens are restored. */
    for (int col = threadIdx.x; col < a->cols; col += THREADS) {
        const float x = soft(TO_F32(DTYPE, row[col]), a->softcap),
                    slope = a->rest ? f->rest_slope * exp_of(minus(x * a->inv_t, f->rest)) : 0.0f;
        row[col] = FROM_F32(DTYPE, derivative(a, f, x, slope, col == label));
    }
    __syncthreads();
    if (has) {
        const float slope = mine.u - exp_of(minus(own, of)) * all.u;
        row[id] = FROM_F32(DTYPE, derivative(a, f, l, slope, id == label));
    }
    return all.d;
}

extern "C" __global__ void __launch_bounds__(THREADS) distill(const lt_cuda_distill_args a) {
    __shared__ float slots[SUMS][N_WARPS];
    wait_for_others();
    const i64 r = blockIdx.x;
    DTYPE *row = a.logits + r * a.ld;
    const int label = a.labels[r];
    facts f;
    float hit = 0.0f, d;
    f.scale = a.weights ? a.grad_scale * a.weights[r] : a.grad_scale;
    if (label < 0) {
        for (int col = threadIdx.x; a.grad_scale != 0.0f && col < a.cols; col += THREADS) {
            row[col] = FROM_F32(DTYPE, 0.0f);
        }
        if (threadIdx.x == 0) {
            a.loss[r] = 0.0f;
        }
        return;
    }
    if (a.share > 0.0f) {
        hit = soft(TO_F32(DTYPE, row[label]), a.softcap);
        f.hard = student_total(row, &a, 1.0f, slots + 8);
    }
    if (!WORDS) {
        d = run_whole(&a, row, a.teacher + r * a.ld_teacher, label, &f, slots);
    } else {
        const bool has = (int)threadIdx.x < a.k;
        const int id = has ? a.ids[r * a.ld_ids + threadIdx.x] : -1;
        d = run_words(&a, row, id, id >= 0 ? a.logp[r * a.ld_logp + threadIdx.x] : NEGATIVE, label,
                      &f, slots);
    }
    if (threadIdx.x == 0) {
        a.loss[r] = (1.0f - a.share) * d +
                    (a.share > 0.0f ? a.share * (f.hard.log - (hit - f.hard.top)) : 0.0f);
    }
}
