/* choose.c (ref): a token from a row of logits, as ops.h says it: all ids are sorted, then cut.
 *
 * The order of ids is total (likelier first, then by index), so every set below is one. A weight that is 0 in double is never drawn. */
#include <stdlib.h>

#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

typedef struct {
    double l, w; /* Logit; weight relative to the best, which has 1; 0 where it was cut. */
    int64_t id;
} candidate;

static int by_likelihood(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->l != y->l ? (x->l > y->l ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* All ids of a row, sorted. LT_CHOOSE_NAN, LT_CHOOSE_NONE, or 0. */
static int read_row(const lt_choose_args *a, int64_t row, candidate *c) {
    const double cap = (double)a->softcap;
    const int64_t n = a->logits.shape[1];
    for (int64_t v = 0; v < n; v++) {
        const double x = get(&a->logits, at2(&a->logits, row, v));
        c[v] = (candidate){cap > 0.0 ? cap * tanh(x / cap) : x, 0.0, v};
        if (isnan(x)) {
            return LT_CHOOSE_NAN;
        }
    }
    qsort(c, (size_t)n, sizeof *c, by_likelihood);
    return c[0].l == -INFINITY ? LT_CHOOSE_NONE : 0;
}

/* How many of the sorted candidates are left; their weights are set. */
static int64_t cut(candidate *c, int64_t n, const double *how) {
    double total = 0.0, sum = 0.0;
    int64_t kept = 0;
    n = how[LT_CHOOSE_TOP_K] > 0.0 ? min_i64(n, (int64_t)how[LT_CHOOSE_TOP_K]) : n;
    for (int64_t i = 0; i < n; i++) {
        c[i].w = exp((c[i].l - c[0].l) / how[LT_CHOOSE_TEMPERATURE]);
        total += c[i].w;
    }
    while (how[LT_CHOOSE_TOP_P] < 1.0 && kept < n &&
           (kept == 0 || sum < how[LT_CHOOSE_TOP_P] * total)) {
        sum += c[kept++].w;
    }
    n = how[LT_CHOOSE_TOP_P] < 1.0 ? kept : n;
    while (n > 1 && c[n - 1].w < how[LT_CHOOSE_MIN_P]) {
        n--;
    }
    return n;
}

/* c: sorted before and after. */
static int64_t draw(candidate *c, int64_t n_all, const double *how) {
    const int64_t n = cut(c, n_all, how);
    double total = 0.0, left;
    int64_t id = c[0].id;
    qsort(c, (size_t)n, sizeof *c, by_id);
    for (int64_t i = 0; i < n; i++) {
        total += c[i].w;
    }
    left = how[LT_CHOOSE_DRAW] * total;
    for (int64_t i = 0; i < n && left >= 0.0; i++) {
        left -= c[i].w;
        id = c[i].w > 0.0 ? c[i].id : id;
    }
    qsort(c, (size_t)n, sizeof *c, by_likelihood);
    return id;
}

static void report(const lt_choose_args *a, int64_t p, const candidate *c, int64_t id, int n_top) {
    const int64_t n = a->logits.shape[1];
    double sum = 0.0, l = 0.0;
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp(c[i].l - c[0].l);
        l = c[i].id == id ? c[i].l : l;
    }
    while (c[rank].l > l) {
        rank++;
    }
    set(&a->logprob, at1(&a->logprob, p), l - c[0].l - log(sum));
    set_i32(&a->rank, at1(&a->rank, p), rank);
    for (int64_t i = 0; i < n_top && i < n && c[i].l > -INFINITY; i++) {
        set_i32(&a->top_id, at2(&a->top_id, p, i), c[i].id);
        set(&a->top_logprob, at2(&a->top_logprob, p, i), c[i].l - c[0].l - log(sum));
    }
}

static void clear(const lt_choose_args *a, int64_t p) {
    set_i32(&a->id, at1(&a->id, p), LT_CHOOSE_IDLE);
    if (present(&a->logprob)) {
        set(&a->logprob, at1(&a->logprob, p), 0.0);
        set_i32(&a->rank, at1(&a->rank, p), 0);
        for (int64_t i = 0; i < LT_CHOOSE_TOP; i++) {
            set_i32(&a->top_id, at2(&a->top_id, p, i), -1);
            set(&a->top_logprob, at2(&a->top_logprob, p, i), 0.0);
        }
    }
}

lt_err lt_ref_choose(lt_queue *q, const lt_choose_args *a) {
    const int64_t n = a->logits.shape[1];
    candidate *c = malloc((size_t)n * sizeof *c);

    (void)q;
    LT_ASSERT(a->how.shape[1] == LT_CHOOSE_HOW_COUNT && a->how.dtype == LT_F64);
    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "choose: %lld candidates", (long long)n);
    }
    for (int64_t p = 0; p < a->rows.shape[0]; p++) {
        const int32_t row = get_i32(&a->rows, at1(&a->rows, p));
        const double *how = (const double *)a->how.data + at2(&a->how, p, 0);
        int64_t id;
        int none;
        LT_ASSERT(row >= -1 && row < a->logits.shape[0]);
        clear(a, p);
        if (row < 0) {
            continue;
        }
        none = read_row(a, row, c);
        id = none != 0                                              ? none
             : how[LT_CHOOSE_TEMPERATURE] > 0.0 && isfinite(c[0].l) ? draw(c, n, how)
                                                                    : c[0].id;
        set_i32(&a->id, at1(&a->id, p), id);
        if (none == 0 && how[LT_CHOOSE_N_TOP] >= 0.0) {
            report(a, p, c, id, (int)how[LT_CHOOSE_N_TOP]);
        }
    }
    free(c);
    return LT_OK;
}
