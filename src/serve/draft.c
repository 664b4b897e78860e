/* draft.c: see draft.h. */
#include "serve/draft.h"

#include <math.h>
#include <stdbool.h>

#define LEAST_MATCH 2
#define MOST_MATCH  16
#define STALE       512  /* Steps after which a time is measured anew. */
#define BELIEF      0.6  /* Rate of a text that has had no draft. */
#define NEW_TIME    0.2  /* Weight of a new measurement. */
#define FIRST       4    /* Draft tokens that the belief counts as. */
#define KEPT        0.9  /* Weight of older drafts, a draft. */
#define FORGET      0.01 /* How far a low rate returns to BELIEF in a step. */
#define MARGIN      1.03 /* A draft must promise this much more, for estimates are rough. */

int64_t lt_draft_find(const int32_t *tokens, int64_t n) {
    int64_t best = -1, longest = LEAST_MATCH - 1;
    for (int64_t end = n - 1; end >= LEAST_MATCH && longest < MOST_MATCH; end--) {
        int64_t k = 0;
        if (tokens[end - 1] != tokens[n - 1] || tokens[end - 2] != tokens[n - 2]) {
            continue;
        }
        while (k < end && k < MOST_MATCH && tokens[end - 1 - k] == tokens[n - 1 - k]) {
            k++;
        }
        if (k > longest) {
            longest = k;
            best = end;
        }
    }
    return best;
}

void lt_draft_write(int32_t *tokens, int64_t n, int64_t match, int64_t n_draft) {
    for (int64_t i = 0; i < n_draft; i++) { /* match < n, so each source is known. */
        tokens[n + i] = tokens[match + i];
    }
}

void lt_draft_acceptance_begin(lt_draft_acceptance *l) {
    *l = (lt_draft_acceptance){.n_accepted = BELIEF * FIRST, .n_tried = FIRST};
}

double lt_draft_acceptance_rate(const lt_draft_acceptance *l) {
    return l->n_accepted / l->n_tried;
}

/* The token behind n_accepted accepted ones was tried, too, and rejected; those behind it were not
 * tried. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, int64_t n, int64_t n_accepted) {
    if (n > 0) {
        l->n_accepted = KEPT * l->n_accepted + (double)n_accepted;
        l->n_tried = KEPT * l->n_tried + (double)(n_accepted < n ? n_accepted + 1 : n);
    } else if (lt_draft_acceptance_rate(l) < BELIEF) {
        l->n_accepted += FORGET * (BELIEF * l->n_tried - l->n_accepted);
    }
}

static bool known(const lt_draft_times *t, int64_t rows) {
    return t->seconds[rows] > 0 && t->n_steps - t->step[rows] < STALE;
}

void lt_draft_times_note(lt_draft_times *t, int64_t rows, double seconds) {
    t->n_steps++;
    if (rows < 1 || rows > LT_DRAFT_ROWS || !(seconds > 0)) {
        return;
    }
    /* A single slow step says little: it counts as at most twice what is known. */
    if (t->seconds[rows] > 0 && seconds > 2 * t->seconds[rows]) {
        seconds = 2 * t->seconds[rows];
    }
    t->seconds[rows] = known(t, rows) ? t->seconds[rows] + NEW_TIME * (seconds - t->seconds[rows])
                                      : seconds;
    t->step[rows] = t->n_steps;
}

double lt_draft_times_of(const lt_draft_times *t, int64_t rows) {
    int64_t low = rows, high = rows;
    while (low > 0 && !known(t, low)) {
        low--;
    }
    while (high <= LT_DRAFT_ROWS && !known(t, high)) {
        high++;
    }
    if (low == 0 || high > LT_DRAFT_ROWS) {
        return low > 0 ? t->seconds[low] : high <= LT_DRAFT_ROWS ? t->seconds[high] : 0;
    }
    return low == high ? t->seconds[low]
                       : t->seconds[low] + (t->seconds[high] - t->seconds[low]) *
                                               (double)(rows - low) / (double)(high - low);
}

int64_t lt_draft_choose(const lt_draft_times *t, int64_t n_rows,
                        const lt_draft_acceptance *const *rates, int64_t n_texts) {
    double best = 0, gain = 0; /* gain: expected tokens from drafts. */
    int64_t choice = 0;
    for (int64_t k = 0; k <= LT_DRAFT_MOST && n_rows + k * n_texts <= LT_DRAFT_ROWS; k++) {
        const double seconds = lt_draft_times_of(t, n_rows + k * n_texts);
        double rate;
        for (int64_t i = 0; k > 0 && i < n_texts; i++) {
            gain += pow(lt_draft_acceptance_rate(rates[i]), (double)k);
        }
        if (!(seconds > 0)) { /* Nothing is known: measure a step without drafts. */
            return 0;
        }
        rate = ((double)n_rows + gain) / seconds;
        if (k == 0 || rate > best * (choice == 0 ? MARGIN : 1)) {
            best = rate;
            choice = k;
        }
    }
    return choice;
}
