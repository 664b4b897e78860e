/* logits.c: see logits.h. */
#include "model/infer/logits.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

#define W      4
#define SAMPLE 1024 /* Number of elements from which the position of the k largest is estimated. */

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void store(float *p, vf x) {
    memcpy(p, &x, sizeof x);
}

static inline vf set(float x) {
    return (vf){x, x, x, x};
}

static inline vf pick(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

static inline bool any(vi mask) {
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}

bool lt_logits_best(const float *x, int64_t n, int32_t *best) {
    vf high[4] = {set(-INFINITY), set(-INFINITY), set(-INFINITY), set(-INFINITY)};
    vi nan = {0};
    float top = -INFINITY;
    int64_t i = 0;
    bool bad = false;

    for (; i + 4 * W <= n; i += 4 * W) {
        for (int j = 0; j < 4; j++) {
            const vf v = load(x + i + j * W);
            nan |= v != v;
            high[j] = pick(v > high[j], v, high[j]);
        }
    }
    for (int j = 0; j < 4 * W; j++) {
        top = high[j / W][j % W] > top ? high[j / W][j % W] : top;
    }
    for (; i < n; i++) {
        bad |= x[i] != x[i];
        top = x[i] > top ? x[i] : top;
    }
    *best = 0;
    for (i = 0; i < n && x[i] != top; i++) {}
    *best = i < n ? (int32_t)i : 0;
    return !bad && !any(nan);
}

/* e^x: x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7, n added to the
 * exponent. */
static inline vf exp4(vf x) {
    const vf shift = set(0x1.8p23f), low = set(-87.3365f);
    const vf c = pick(x > low, x, low);
    const vf t = c * 0x1.715476p0f + shift, n = t - shift;
    const vf r = (c - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    vf p = set(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return pick(x > low, (vf)((vi)p + ((vi)t << 23)), set(0.0f));
}

static double block_exp(const float *x, int64_t n, float high, float scale, float *y) {
    vf sum[4] = {set(0), set(0), set(0), set(0)};
    double total = 0.0;
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        for (int j = 0; j < 4; j++) {
            const vf e = exp4((load(x + i + j * W) - high) * scale);
            sum[j] += e;
            if (y != NULL) {
                store(y + i + j * W, e);
            }
        }
    }
    for (; i < n; i++) {
        const float e = exp4(set((x[i] - high) * scale))[0];
        total += (double)e;
        if (y != NULL) {
            y[i] = e;
        }
    }
    for (int j = 0; j < 4 * W; j++) {
        total += (double)sum[j / W][j % W];
    }
    return total;
}

double lt_logits_exp(const float *x, int64_t n, float high, float scale, float *y, double *sums) {
    double total = 0.0;
    for (int64_t i = 0; i < n; i += LT_LOGITS_BLOCK) {
        const int64_t count = n - i < LT_LOGITS_BLOCK ? n - i : LT_LOGITS_BLOCK;
        const double sum = block_exp(x + i, count, high, scale, y != NULL ? y + i : NULL);
        total += sum;
        if (sums != NULL) {
            sums[i / LT_LOGITS_BLOCK] = sum;
        }
    }
    return total;
}

double lt_logits_lse(const float *x, int64_t n, float high) {
    return (double)high + log(lt_logits_exp(x, n, high, 1.0f, NULL, NULL));
}

double lt_logits_entropy(const float *x, int64_t n, double lse) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double ln = (double)x[i] - lse;
        sum -= ln > -700 ? ln * exp(ln) : 0;
    }
    return sum;
}

int64_t lt_logits_count_above(const float *x, int64_t n, float than) {
    vi count[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0, total = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        for (int j = 0; j < 4; j++) {
            count[j] -= load(x + i + j * W) > set(than);
        }
    }
    for (; i < n; i++) {
        total += x[i] > than;
    }
    for (int j = 0; j < 4 * W; j++) {
        total += count[j / W][j % W];
    }
    return total;
}

int64_t lt_logits_collect(const float *x, int64_t n, float least, lt_candidate *out) {
    int64_t count = 0, i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        const vi hit = (load(x + i) >= set(least)) | (load(x + i + W) >= set(least)) |
                       (load(x + i + 2 * W) >= set(least)) | (load(x + i + 3 * W) >= set(least));
        for (int64_t k = i; any(hit) && k < i + 4 * W; k++) {
            out[count] = (lt_candidate){x[k], (int32_t)k};
            count += x[k] >= least;
        }
    }
    for (; i < n; i++) {
        out[count] = (lt_candidate){x[i], (int32_t)i};
        count += x[i] >= least;
    }
    return count;
}

/* Bring the k first of the order to the front, in any order (Hoare's selection). */
static void select_first(lt_candidate *c, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const lt_candidate pivot = c[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (lt_candidate_before(&c[i], &pivot)) {
                i++;
            }
            while (lt_candidate_before(&pivot, &c[j])) {
                j--;
            }
            if (i <= j) {
                const lt_candidate swap = c[i];
                c[i++] = c[j];
                c[j--] = swap;
            }
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            return;
        }
    }
}

/* A bound that about 2 k elements probably reach, estimated from evenly spaced elements. -inf if k
 * is too large a share for an estimate. */
static float guess_bound(const float *x, int64_t n, int64_t k, lt_candidate *scratch) {
    const int64_t step = n / SAMPLE, rank = step > 0 ? 2 * k / step + 8 : SAMPLE;
    if (rank > SAMPLE / 4) {
        return -INFINITY;
    }
    for (int64_t i = 0; i < SAMPLE; i++) {
        scratch[i] = (lt_candidate){x[i * step], (int32_t)i};
    }
    select_first(scratch, SAMPLE, rank);
    float bound = INFINITY;
    for (int64_t i = 0; i < rank; i++) {
        bound = scratch[i].p < bound ? scratch[i].p : bound;
    }
    return bound;
}

int64_t lt_logits_top(const float *x, int64_t n, int64_t k, lt_candidate *out) {
    int64_t count;
    if (k <= 0) {
        return 0;
    }
    count = lt_logits_collect(x, n, guess_bound(x, n, k, out), out);
    if (count < k) {
        count = lt_logits_collect(x, n, -INFINITY, out);
    }
    if (count > k) {
        select_first(out, count, k);
        count = k;
    }
    for (int64_t i = 0; i < count; i++) { /* Excluded ids are not candidates. */
        if (out[i].p == -INFINITY) {
            out[i--] = out[--count];
        }
    }
    return count;
}

static void sift(lt_candidate *c, int64_t n, int64_t at) {
    const lt_candidate moving = c[at];
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && lt_candidate_before(&c[child + 1], &c[child]);
        if (!lt_candidate_before(&c[child], &moving)) {
            break;
        }
        c[at] = c[child];
        at = child;
    }
    c[at] = moving;
}

void lt_heap_make(lt_candidate *c, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) {
        sift(c, n, i);
    }
}

void lt_heap_pop(lt_candidate *c, int64_t n) {
    const lt_candidate top = c[0];
    LT_ASSERT(n > 0);
    c[0] = c[n - 1];
    if (n > 1) {
        sift(c, n - 1, 0);
    }
    c[n - 1] = top;
}

void lt_candidates_sort(lt_candidate *c, int64_t n, int64_t k) {
    k = k < n ? k : n;
    if (k < n) {
        select_first(c, n, k);
    }
    for (int64_t i = 1; i < k && k <= 32; i++) { /* Few: by insertion. */
        const lt_candidate x = c[i];
        int64_t j = i;
        for (; j > 0 && lt_candidate_before(&x, &c[j - 1]); j--) {
            c[j] = c[j - 1];
        }
        c[j] = x;
    }
    if (k > 32) {
        lt_heap_make(c, k);
        for (int64_t i = k; i > 1; i--) {
            lt_heap_pop(c, i);
        }
        for (int64_t i = 0; i < k / 2; i++) { /* Popped to the back: last first. */
            const lt_candidate swap = c[i];
            c[i] = c[k - 1 - i];
            c[k - 1 - i] = swap;
        }
    }
}

#define DIGIT 11 /* Bits of an id sorted at once. */

void lt_candidates_by_id(lt_candidate *c, int64_t n, lt_candidate *scratch) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        most = c[i].id > most ? c[i].id : most;
    }
    for (int64_t i = 1; i < n && n <= 64; i++) { /* Few: by insertion. */
        const lt_candidate x = c[i];
        int64_t j = i;
        for (; j > 0 && x.id < c[j - 1].id; j--) {
            c[j] = c[j - 1];
        }
        c[j] = x;
    }
    for (int shift = 0; n > 64 && most >> shift > 0; shift += DIGIT) {
        uint32_t from[1 << DIGIT] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++) {
            from[c[i].id >> shift & ((1 << DIGIT) - 1)]++;
        }
        for (int d = 0; d < 1 << DIGIT; d++) {
            const uint32_t count = from[d];
            from[d] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) {
            scratch[from[c[i].id >> shift & ((1 << DIGIT) - 1)]++] = c[i];
        }
        memcpy(c, scratch, (size_t)n * sizeof *c);
    }
}
