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

int64_t lt_draft_find_in(const int32_t *text, int64_t n_text, const int32_t *tokens, int64_t n) {
    int64_t best = -1, longest = LEAST_MATCH - 1;
    for (int64_t end = n_text - 1; n >= LEAST_MATCH && end >= LEAST_MATCH && longest < MOST_MATCH;
         end--) {
        int64_t k = 0;
        if (text[end - 1] != tokens[n - 1] || text[end - 2] != tokens[n - 2]) {
            continue;
        }
        while (k < end && k < n && k < MOST_MATCH && text[end - 1 - k] == tokens[n - 1 - k]) {
            k++;
        }
        if (k > longest) {
            longest = k;
            best = end;
        }
    }
    return best;
}

int64_t lt_draft_find(const int32_t *tokens, int64_t n) {
    return lt_draft_find_in(tokens, n, tokens, n);
}

void lt_draft_acceptance_begin(lt_draft_acceptance *l, double rate) {
    *l = (lt_draft_acceptance){.n_accepted = (rate < 0 ? BELIEF : rate) * FIRST, .n_tried = FIRST};
}

double lt_draft_acceptance_rate(const lt_draft_acceptance *l) {
    return l->n_accepted / l->n_tried;
}

double lt_draft_acceptance_at(const lt_draft_acceptance *l, int64_t place) {
    return (l->accepted_at[place] + FIRST * lt_draft_acceptance_rate(l)) /
           (l->tried_at[place] + FIRST);
}

/* The token behind n_accepted accepted ones was tried, too, and rejected; those behind it were not
 * tried. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, int64_t n, int64_t n_accepted) {
    const int64_t n_tried = n_accepted < n ? n_accepted + 1 : n;
    const bool forgets = n == 0 && lt_draft_acceptance_rate(l) < BELIEF;
    if (n > 0) {
        l->n_accepted = KEPT * l->n_accepted + (double)n_accepted;
        l->n_tried = KEPT * l->n_tried + (double)n_tried;
    } else if (forgets) {
        l->n_accepted += FORGET * (BELIEF * l->n_tried - l->n_accepted);
    }
    for (int64_t i = 0; i < LT_DRAFT_MOST; i++) {
        const bool tried = i < n_tried;
        const double kept = tried ? KEPT : forgets ? 1 - FORGET : 1;
        l->accepted_at[i] = kept * l->accepted_at[i] + (i < n_accepted ? 1 : 0);
        l->tried_at[i] = kept * l->tried_at[i] + (tried ? 1 : 0);
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

/* Of the texts that may have another draft token, the one whose next is accepted with the highest
 * probability; -1: there is none. */
static int64_t most_likely(const lt_draft_text *texts, const double *next, int64_t n_texts) {
    int64_t best = -1;
    for (int64_t i = 0; i < n_texts; i++) {
        if (texts[i].n < texts[i].most && (best < 0 || next[i] > next[best])) {
            best = i;
        }
    }
    return best;
}

/* Seconds of the calls of the draft model: call k runs a row of each text that has more than k
 * draft tokens, and the first one also what it has not run yet. */
typedef struct {
    const lt_draft_times *times;
    int64_t rows[LT_DRAFT_MOST];
    double seconds;
} model_calls;

static void add_call(model_calls *c, const lt_draft_text *t) {
    int64_t *rows = &c->rows[t->n];
    if (t->behind == 0 || c->times == NULL) {
        return;
    }
    c->seconds -= *rows > 0 ? lt_draft_times_of(c->times, *rows) : 0;
    *rows += t->n == 0 ? t->behind : 1;
    c->seconds += lt_draft_times_of(c->times, *rows);
}

double lt_draft_choose(const lt_draft_times *steps, const lt_draft_times *model, int64_t n_rows,
                       lt_draft_text *texts, int64_t n_texts) {
    double next[LT_DRAFT_ROWS], gain = 0; /* gain: expected tokens from drafts. */
    int16_t order[LT_DRAFT_ROWS];
    model_calls calls = {.times = model};
    const double seconds = n_rows < LT_DRAFT_ROWS ? lt_draft_times_of(steps, n_rows) : 0;
    const double plain = seconds > 0 ? (double)n_rows / seconds : 0;
    double best = plain;
    int64_t n_best = 0, n = 0;
    for (int64_t i = 0; i < n_texts; i++) {
        texts[i].n = 0;
        next[i] = lt_draft_acceptance_at(texts[i].rates, 0);
    }
    while (plain > 0 && n_rows + n < LT_DRAFT_ROWS) { /* 0: a step must be measured first. */
        const int64_t i = most_likely(texts, next, n_texts);
        double rate;
        if (i < 0) {
            break;
        }
        if (texts[i].n == 0 && calls.rows[0] + texts[i].behind > LT_DRAFT_ROWS) {
            texts[i].most = 0; /* The draft model's first call is full. */
            continue;
        }
        add_call(&calls, &texts[i]);
        order[n++] = (int16_t)i;
        gain += next[i];
        texts[i].n++;
        next[i] *= texts[i].n < LT_DRAFT_MOST ? lt_draft_acceptance_at(texts[i].rates, texts[i].n)
                                              : 0;
        rate = ((double)n_rows + gain) / (lt_draft_times_of(steps, n_rows + n) + calls.seconds);
        if (rate > best * (n_best == 0 ? MARGIN : 1)) {
            best = rate;
            n_best = n;
        }
    }
    while (n > n_best) {
        texts[order[--n]].n--;
    }
    return n_best > 0 ? 1 - plain / best : 0;
}
