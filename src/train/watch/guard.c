/* guard.c: see guard.h. Mean and deviation are computed from the ring each time, which is exact and
 * cheap compared with a step. */
#include "train/watch/guard.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"

/* At each checkpoint the old spread counts for this much less, so that the spread of the first,
 * steep losses fades. */
#define SPREAD_FADES 0.9

void lt_guard_open(lt_guard *g, const lt_recipe *r) {
    *g = (lt_guard){.recipe = r, .best = INFINITY};
}

/* How many standard deviations x lies above the mean of the ring; 0 until the ring is full. */
static double z_score(const lt_guard_ring *ring, int64_t window, double x) {
    double mean = 0.0, square = 0.0, deviation;
    if (ring->n < window) {
        return 0.0;
    }
    for (int64_t i = 0; i < window; i++) {
        mean += ring->values[i];
    }
    mean /= (double)window;
    for (int64_t i = 0; i < window; i++) {
        square += (ring->values[i] - mean) * (ring->values[i] - mean);
    }
    deviation = sqrt(square / (double)window);
    return deviation > 0.0 ? (x - mean) / deviation : 0.0;
}

static void ring_add(lt_guard_ring *ring, int64_t window, double x) {
    ring->values[ring->next] = x;
    ring->next = (ring->next + 1) % window;
    ring->n = ring->n < window ? ring->n + 1 : window;
}

/* "nan" without the sign that glibc may print. */
static const char *number(char out[32], double x) {
    (void)snprintf(out, 32, "%g", x);
    return isnan(x) ? "nan" : out;
}

bool lt_guard_allows(const lt_guard *g, double loss, double grad_norm, char *why,
                     size_t why_bytes) {
    const lt_recipe *r = g->recipe;
    const double loss_z = z_score(&g->loss, r->guard_window, loss),
                 grad_z = z_score(&g->grad, r->guard_window, grad_norm);
    char a[32], b[32];

    why[0] = '\0';
    if (!isfinite(loss) || !isfinite(grad_norm)) {
        snprintf(why, why_bytes, "loss %s, gradient norm %s", number(a, loss),
                 number(b, grad_norm));
    } else if (r->guard_loss > 0.0 && loss_z > r->guard_loss) {
        snprintf(why, why_bytes, "loss %.4f is %.1f deviations above the last %lld", loss, loss_z,
                 (long long)r->guard_window);
    } else if (r->guard_grad > 0.0 && grad_z > r->guard_grad) {
        snprintf(why, why_bytes, "gradient norm %.3f is %.1f deviations above the last %lld",
                 grad_norm, grad_z, (long long)r->guard_window);
    }
    return why[0] == '\0';
}

void lt_guard_note(lt_guard *g, bool applied, double loss, double grad_norm) {
    const lt_recipe *r = g->recipe;
    if (!applied) {
        g->skipped++;
        g->skipped_in_a_row++;
        g->not_finite_in_a_row = isfinite(loss) && isfinite(grad_norm) ? 0
                                                                       : g->not_finite_in_a_row + 1;
        return;
    }
    g->skipped_in_a_row = 0;
    g->not_finite_in_a_row = 0;
    g->best = isinf(g->best) ? loss : g->best;
    ring_add(&g->loss, r->guard_window, loss);
    ring_add(&g->grad, r->guard_window, grad_norm);
}

static json_t *ring_save(const lt_guard_ring *ring) {
    json_t *values = json_array();
    for (int64_t i = 0; i < ring->n; i++) {
        json_array_append_new(values, json_real(ring->values[i]));
    }
    return json_pack("{s:I, s:o}", "next", (json_int_t)ring->next, "values", values);
}

/* The i-th of the last losses, where 1 is the newest: counted backwards from `next`, around the
 * end of the ring. */
static double last_loss(const lt_guard_ring *ring, int64_t i) {
    return ring->values[ring->next >= i ? ring->next - i : ring->n + ring->next - i];
}

static int64_t n_recent(const lt_guard *g) {
    return g->loss.n < LT_GUARD_RECENT ? g->loss.n : LT_GUARD_RECENT;
}

double lt_guard_recent(const lt_guard *g) {
    const int64_t n = n_recent(g);
    double sum = 0.0;
    for (int64_t i = 1; i <= n; i++) {
        sum += last_loss(&g->loss, i);
    }
    return sum / (double)n;
}

static double recent_deviation(const lt_guard *g) {
    const int64_t n = n_recent(g);
    const double mean = lt_guard_recent(g);
    double sum = 0.0;
    for (int64_t i = 1; i <= n; i++) {
        const double off = last_loss(&g->loss, i) - mean;
        sum += off * off;
    }
    return sqrt(sum / (double)n);
}

bool lt_guard_suspects(const lt_guard *g, double loss) {
    const double far = fmax(fmax(1.0, 0.5 * g->best), 4.0 * g->spread),
                 high = fmax(fmax(0.5, 0.25 * g->best), 1.5 * g->spread);
    /* The mean of the last losses is NaN, so no limit is passed, until there is one. */
    return loss > g->best + far || lt_guard_recent(g) > g->best + high;
}

void lt_guard_note_good(lt_guard *g) {
    if (g->loss.n >= LT_GUARD_RECENT || g->loss.n == g->recipe->guard_window) {
        g->best = fmin(g->best, lt_guard_recent(g));
        g->spread = fmax(SPREAD_FADES * g->spread, recent_deviation(g));
    }
}

/* Restore the ring as saved if the window has the same size; otherwise keep the newest values, from
 * index 0 on. */
static lt_err ring_load(lt_guard_ring *ring, int64_t window, const json_t *state,
                        const char *what) {
    const json_t *values = json_object_get(state, "values");
    const int64_t n = (int64_t)json_array_size(values);
    int64_t next = 0, first, kept = n;

    LT_TRY(lt_json_i64(state, "next", &next, false, what));
    if (n > LT_GUARD_WINDOW_MAX || next < 0 || next > n) {
        LT_FAIL(LT_ERR_STATE, "%s: the guard's window holds %lld steps, its next is %lld", what,
                (long long)n, (long long)next);
    }
    first = next % (n > 0 ? n : 1); /* The oldest value. */
    if ((n < window && next == n) || (n == window && next < n)) {
        first = 0;
    } else {
        kept = n < window ? n : window;
        next = kept % window;
    }
    for (int64_t i = 0; i < kept; i++) {
        const int64_t from = n > 0 ? (first + n - kept + i) % n : 0;
        ring->values[i] = json_number_value(json_array_get(values, (size_t)from));
    }
    ring->n = kept;
    ring->next = next;
    return LT_OK;
}

json_t *lt_guard_save(const lt_guard *g) {
    return json_pack("{s:I, s:I, s:o, s:f, s:o, s:o}", "skipped", (json_int_t)g->skipped,
                     "skipped_in_a_row", (json_int_t)g->skipped_in_a_row, "best",
                     isfinite(g->best) ? json_real(g->best) : json_null(), "spread", g->spread,
                     "loss", ring_save(&g->loss), "grad", ring_save(&g->grad));
}

lt_err lt_guard_load(lt_guard *g, const json_t *state, const char *what) {
    LT_TRY(lt_json_i64(state, "skipped", &g->skipped, false, what));
    LT_TRY(lt_json_i64(state, "skipped_in_a_row", &g->skipped_in_a_row, false, what));
    LT_TRY(ring_load(&g->loss, g->recipe->guard_window, json_object_get(state, "loss"), what));
    LT_TRY(ring_load(&g->grad, g->recipe->guard_window, json_object_get(state, "grad"), what));
    /* Older checkpoints have no such value. */
    g->best = g->loss.n > 0 ? lt_guard_recent(g) : INFINITY;
    g->spread = 0.0;
    LT_TRY(lt_json_f64(state, "best", &g->best, true, what));
    return lt_json_f64(state, "spread", &g->spread, true, what);
}
