/* stragglers.c: see stragglers.h. */
#include "train/watch/stragglers.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

lt_err lt_stragglers_open(lt_stragglers *s, int n, int peers, double over, double window_s) {
    const size_t room = (size_t)n;
    *s = (lt_stragglers){.n = n, .peers = peers, .over = over, .window_s = window_s};
    if (over == 0.0 || peers < 2) {
        s->n = 0;
        return LT_OK;
    }
    s->sums = calloc(room, sizeof *s->sums);
    s->sorted = calloc(room, sizeof *s->sorted);
    s->means = calloc(room, sizeof *s->means);
    s->shares = calloc(room, sizeof *s->shares);
    s->slow = calloc(room, sizeof *s->slow);
    s->news = calloc(room, sizeof *s->news);
    if (s->sums == NULL || s->sorted == NULL || s->means == NULL || s->shares == NULL ||
        s->slow == NULL || s->news == NULL) {
        lt_stragglers_close(s);
        LT_FAIL(LT_ERR_OOM, "times of %d ranks", n);
    }
    return LT_OK;
}

void lt_stragglers_close(lt_stragglers *s) {
    free(s->sums);
    free(s->sorted);
    free(s->means);
    free(s->shares);
    free(s->slow);
    free(s->news);
    *s = (lt_stragglers){0};
}

void lt_stragglers_add(lt_stragglers *s, int rank, double compute_s) {
    if (s->n > 0) {
        s->sums[rank] += compute_s;
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of the peers of `rank`, not counting itself. */
static double median_of_peers(const lt_stragglers *s, int rank) {
    const int first = rank / s->peers * s->peers, others = s->peers - 1;
    int n = 0;
    for (int i = first; i < first + s->peers; i++) {
        if (i != rank) {
            s->sorted[n++] = s->sums[i];
        }
    }
    qsort(s->sorted, (size_t)others, sizeof *s->sorted, by_size);
    return 0.5 * (s->sorted[(others - 1) / 2] + s->sorted[others / 2]);
}

static void judge(lt_stragglers *s) {
    for (int i = 0; i < s->n; i++) {
        const double median = median_of_peers(s, i);
        const bool was = s->slow[i];
        s->means[i] = s->sums[i] / (double)s->steps;
        s->shares[i] = median > 0.0 ? s->sums[i] / median - 1.0 : 0.0;
        s->slow[i] = s->shares[i] > s->over;
        s->news[i] = s->slow[i] != was;
    }
}

bool lt_stragglers_pass(lt_stragglers *s, double passed_s) {
    s->passed_s += passed_s;
    s->steps++;
    if (s->n == 0 || s->passed_s < s->window_s || s->steps < LT_STRAGGLERS_LEAST_STEPS) {
        return false;
    }
    judge(s);
    memset(s->sums, 0, (size_t)s->n * sizeof *s->sums);
    s->passed_s = 0.0;
    s->steps = 0;
    return true;
}

int lt_stragglers_slowest(const lt_stragglers *s) {
    int found = -1;
    for (int i = 0; i < s->n; i++) {
        found = s->slow[i] && (found < 0 || s->shares[i] > s->shares[found]) ? i : found;
    }
    return found;
}
