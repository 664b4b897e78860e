/* choose.c (ref): penalty_set and choose as defined in ops.h: all ids are sorted, then cut.
 *
 * The order of ids is total (more likely first, then by index), so every set below is unique. A
 * weight that is 0 in double is never drawn. */
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

/* ---- penalty_set ---- */

lt_err lt_ref_penalty_set(lt_queue *q, const lt_penalty_set_args *a) {
    (void)q;
    LT_ASSERT(a->penalties.dtype == LT_I32 && a->edits.shape[1] == 2);
    for (int64_t n = 0; n < a->slots.shape[0]; n++) {
        const int64_t slot = get_i32(&a->slots, at1(&a->slots, n));
        const int64_t first = get_i32(&a->starts, at1(&a->starts, n)),
                      end = get_i32(&a->starts, at1(&a->starts, n + 1));
        LT_ASSERT(slot >= 0 && slot < a->penalties.shape[0] && end <= a->edits.shape[0]);
        memset((int32_t *)a->penalties.data + at2(&a->penalties, slot, 0), 0,
               (size_t)a->penalties.shape[1] * sizeof(int32_t));
        for (int64_t i = first; i < end; i++) {
            const int64_t place = get_i32(&a->edits, at2(&a->edits, i, 0));
            LT_ASSERT(place >= 0 && place < a->penalties.shape[1]);
            set_i32(&a->penalties, at2(&a->penalties, slot, place),
                    get_i32(&a->edits, at2(&a->edits, i, 1)));
        }
    }
    return LT_OK;
}

/* ---- choose ---- */

typedef struct {
    double l, w; /* Logit, later adjusted; weight relative to the best, which has 1. */
    double key;  /* Sort key of a cut: smaller ones are kept first. */
    int64_t id;
} candidate;

static int by_likelihood(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->l != y->l ? (x->l > y->l ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static int by_key(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static void sort(candidate *c, int64_t n, int (*order)(const void *, const void *)) {
    qsort(c, (size_t)n, sizeof *c, order);
}

/* Read all ids of a row. False: one logit is NaN. */
static bool read_row(const lt_choose_args *a, int64_t row, candidate *c) {
    const double cap = (double)a->softcap;
    bool numbers = true;
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const double x = get(&a->logits, at2(&a->logits, row, v));
        c[v] = (candidate){.l = cap > 0.0 ? cap * tanh(x / cap) : x, .id = v};
        numbers = numbers && !isnan(x);
    }
    return numbers;
}

/* Adjust a logit by the row's penalties and mask: in F32, the penalties in double. */
static double wanted(const lt_choose_args *a, const double *how, int64_t id, double l) {
    const int64_t slot = (int64_t)how[LT_CHOOSE_SLOT], mask = (int64_t)how[LT_CHOOSE_MASK];
    const uint32_t bits = mask < 0 ? UINT32_MAX
                                   : (uint32_t)get_i32(&a->masks, at2(&a->masks, mask, id / 32));
    const int32_t penalty = slot < 0 ? 0 : get_i32(&a->penalties, at2(&a->penalties, slot, id));
    const int32_t k = penalty >> LT_PENALTY_BIAS_SHIFT & (LT_PENALTY_BIASES - 1);
    const double n = (double)(penalty & LT_PENALTY_COUNT);
    float x = (float)l;
    if (k > 0) {
        const int32_t word = get_i32(&a->penalties,
                                     at2(&a->penalties, slot, a->logits.shape[1] + k));
        float bias;
        memcpy(&bias, &word, sizeof bias);
        x += bias;
    }
    if (!(bits >> id % 32 & 1u) ||
        (how[LT_CHOOSE_BANS] != 0.0 && (penalty & LT_PENALTY_END) != 0)) {
        x = -INFINITY;
    }
    if ((penalty & (LT_PENALTY_PROMPT | LT_PENALTY_COUNT)) != 0) {
        double y = (double)x;
        y = y > 0.0 ? y / how[LT_CHOOSE_REPETITION] : y * how[LT_CHOOSE_REPETITION];
        y -= how[LT_CHOOSE_FREQUENCY] * n;
        y -= n > 0.0 ? how[LT_CHOOSE_PRESENCE] : 0.0;
        x = (float)y;
    }
    return (double)x;
}

/* Count the newest id in the output. */
static void count_new(const lt_choose_args *a, const double *how) {
    const int64_t slot = (int64_t)how[LT_CHOOSE_SLOT];
    int64_t id = (int64_t)how[LT_CHOOSE_NEW];
    if (slot < 0 || id == LT_CHOOSE_NO_NEW) {
        return;
    }
    if (id < 0) {
        const int32_t late = get_i32(&a->late, at1(&a->late, -1 - id));
        id = late > 0 ? late : 0;
    }
    const int64_t at = at2(&a->penalties, slot, id);
    set_i32(&a->penalties, at, get_i32(&a->penalties, at) + 1);
}

/* The fewest of the sorted candidates, at least one, whose weights make up the share. */
static int64_t share_of(const candidate *c, int64_t n, double share) {
    double total = 0.0, sum = 0.0;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        total += c[i].w;
    }
    while (kept < n && (kept == 0 || sum < share * total)) {
        sum += c[kept++].w;
    }
    return kept;
}

/* Locally typical sampling (Meister et al. 2023). A constant that all candidates share does not
 * change the distances from the mean, so the information itself is not needed. */
static int64_t cut_typical(candidate *c, int64_t n, const double *how) {
    double total = 0.0, mean = 0.0;
    const double best = c[0].l;
    for (int64_t i = 0; i < n; i++) {
        c[i].key = (best - c[i].l) / how[LT_CHOOSE_TEMPERATURE];
        total += c[i].w;
        mean += c[i].w > 0.0 ? c[i].w * c[i].key : 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        c[i].key = fabs(c[i].key - mean / total);
    }
    sort(c, n, by_key);
    n = share_of(c, n, how[LT_CHOOSE_TYPICAL]);
    sort(c, n, by_likelihood);
    return n;
}

/* Sort and cut the candidates, set their weights, and return how many are left. */
static int64_t cut(candidate *c, int64_t n, const double *how) {
    n = how[LT_CHOOSE_TOP_K] > 0.0 ? min_i64(n, (int64_t)how[LT_CHOOSE_TOP_K]) : n;
    const double best = c[0].l;
    for (int64_t i = 0; i < n; i++) {
        c[i].w = exp((c[i].l - best) / how[LT_CHOOSE_TEMPERATURE]);
    }
    n = how[LT_CHOOSE_TYPICAL] < 1.0 ? cut_typical(c, n, how) : n;
    n = how[LT_CHOOSE_TOP_P] < 1.0 ? share_of(c, n, how[LT_CHOOSE_TOP_P]) : n;
    while (n > 1 && c[n - 1].w < how[LT_CHOOSE_MIN_P] * c[0].w) {
        n--;
    }
    return n;
}

static int64_t draw(candidate *c, int64_t n_all, const double *how) {
    const int64_t best = c[0].id, n = cut(c, n_all, how);
    double total = 0.0, left;
    int64_t id = c[0].w > 0.0 ? c[0].id : best;
    sort(c, n, by_id);
    for (int64_t i = 0; i < n; i++) {
        total += c[i].w;
    }
    left = how[LT_CHOOSE_DRAW] * total;
    for (int64_t i = 0; i < n && left >= 0.0; i++) {
        left -= c[i].w;
        id = c[i].w > 0.0 ? c[i].id : id;
    }
    return id;
}

/* Choose from the adjusted logits; a forced id is judged by the unadjusted row. c: from read_row;
 * its contents are lost. */
static int64_t choose(const lt_choose_args *a, const double *how, candidate *c) {
    const int64_t n = a->logits.shape[1];
    const bool adjusted = (how[LT_CHOOSE_SLOT] >= 0.0 || how[LT_CHOOSE_MASK] >= 0.0) &&
                          how[LT_CHOOSE_FORCED] < 0.0;
    for (int64_t v = 0; v < n; v++) {
        c[v].l = adjusted ? wanted(a, how, c[v].id, c[v].l) : c[v].l;
    }
    sort(c, n, by_likelihood);
    return c[0].l == -INFINITY                                    ? LT_CHOOSE_NONE
           : how[LT_CHOOSE_FORCED] >= 0.0                         ? (int64_t)how[LT_CHOOSE_FORCED]
           : how[LT_CHOOSE_TEMPERATURE] > 0.0 && isfinite(c[0].l) ? draw(c, n, how)
                                                                  : c[0].id;
}

static void report(const lt_choose_args *a, int64_t p, candidate *c, int64_t id, int n_top) {
    const int64_t n = a->logits.shape[1];
    double sum = 0.0, l = 0.0;
    int64_t rank = 0;
    sort(c, n, by_likelihood);
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

static void pick(const lt_choose_args *a, int64_t p, int64_t row, candidate *c) {
    const double *how = (const double *)a->how.data + at2(&a->how, p, 0);
    int64_t id = LT_CHOOSE_NAN;
    count_new(a, how);
    if (read_row(a, row, c)) {
        id = choose(a, how, c);
    }
    set_i32(&a->id, at1(&a->id, p), id);
    if (id >= 0 && how[LT_CHOOSE_N_TOP] >= 0.0) {
        (void)read_row(a, row, c);
        report(a, p, c, id, (int)how[LT_CHOOSE_N_TOP]);
    }
}

/* The slot of a pick's penalties; -1: it has none, or is idle. */
static int64_t slot_of(const lt_choose_args *a, int64_t p) {
    const double *how = (const double *)a->how.data + at2(&a->how, p, 0);
    return get_i32(&a->rows, at1(&a->rows, p)) < 0 ? -1 : (int64_t)how[LT_CHOOSE_SLOT];
}

static bool slots_are_distinct(const lt_choose_args *a) {
    for (int64_t p = 0; p < a->rows.shape[0]; p++) {
        for (int64_t k = 0; k < p; k++) {
            if (slot_of(a, p) >= 0 && slot_of(a, k) == slot_of(a, p)) {
                return false;
            }
        }
    }
    return true;
}

lt_err lt_ref_choose(lt_queue *q, const lt_choose_args *a) {
    const int64_t n = a->logits.shape[1];
    candidate *c = malloc((size_t)n * sizeof *c);

    (void)q;
    LT_ASSERT(a->how.shape[1] == LT_CHOOSE_HOW_COUNT && a->how.dtype == LT_F64);
    LT_ASSERT(slots_are_distinct(a));
    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "choose: %lld candidates", (long long)n);
    }
    for (int64_t p = 0; p < a->rows.shape[0]; p++) {
        const int32_t row = get_i32(&a->rows, at1(&a->rows, p));
        LT_ASSERT(row >= LT_CHOOSE_SKIP && row < a->logits.shape[0]);
        if (row != LT_CHOOSE_SKIP) {
            clear(a, p);
        }
        if (row >= 0) {
            pick(a, p, row, c);
        }
    }
    free(c);
    return LT_OK;
}
