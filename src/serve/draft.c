/* draft.c: see draft.h. */
#include "serve/draft.h"

#include <math.h>
#include <stdbool.h>

#define LEAST_MATCH   2
#define MOST_MATCH    64
#define STALE         256  /* Steps after which a time is measured anew, */
#define MOST_BELIEVED 16   /* times the number of its measurements, up to this. */
#define RECENT        64   /* Steps after which one without drafts is measured anew. */
#define SLOW          1.25 /* A step counts as at most this multiple of the known time. */
#define CREDIT        2
#define ALLOWED       0.01  /* Share of all steps that they may cost. */
#define WORST         2     /* Steps that one step may be said to cost. */
#define DUE           0.005 /* Share of the debt that falls due, a step. */
#define BELIEF        0.6   /* Rate of acceptance where nothing is known. */
#define NEW_TIME      0.1   /* Weight of a new measurement. */
#define FIRST         4     /* Draft tokens that a belief counts as. */
#define FORGET        0.01  /* Share of the weight of older drafts that a step takes away. */
#define MARGIN        1.03  /* A draft must promise this much more, for estimates are rough. */

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

double lt_draft_acceptance_at(const lt_draft_acceptance *l, const lt_draft_acceptance *all,
                              int64_t place) {
    const double believed = all != NULL ? lt_draft_acceptance_at(all, NULL, place) : BELIEF;
    return (l->accepted[place] + FIRST * believed) / (l->tried[place] + FIRST);
}

/* The token behind n_accepted accepted ones was tried, too, and rejected; those behind it were not
 * tried. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, double kept, int64_t n, int64_t n_accepted) {
    const int64_t n_tried = n_accepted < n ? n_accepted + 1 : n;
    for (int64_t i = 0; i < LT_DRAFT_MOST; i++) {
        const bool tried = i < n_tried;
        const double left = tried ? kept : n == 0 ? 1 - FORGET : 1;
        l->accepted[i] = left * l->accepted[i] + (i < n_accepted ? 1 : 0);
        l->tried[i] = left * l->tried[i] + (tried ? 1 : 0);
    }
}

/* The largest rows of each range of sizes. */
static const int16_t size_end[LT_DRAFT_SIZES] = {1,  2,  3,  4,  6,  8,  12,           16,
                                                 24, 32, 48, 64, 80, 96, LT_DRAFT_ROWS};

static int size_of(int64_t rows) {
    int i = 0;
    while (i < LT_DRAFT_SIZES - 1 && rows > size_end[i]) {
        i++;
    }
    return i;
}

/* What was confirmed is believed for longer. */
static bool known(const lt_draft_times *t, int i) {
    const int64_t n = t->of[i].n < MOST_BELIEVED ? t->of[i].n : MOST_BELIEVED;
    return t->n_steps - t->of[i].step < STALE * n;
}

void lt_draft_times_note(lt_draft_times *t, int64_t rows, double seconds) {
    const int i = size_of(rows);
    double weight;
    t->n_steps++;
    if (rows < 1 || rows > LT_DRAFT_ROWS || !(seconds > 0)) {
        return;
    }
    /* A single slow step says little. */
    if (t->of[i].n > 0 && seconds > SLOW * t->of[i].seconds) {
        seconds = SLOW * t->of[i].seconds;
    }
    weight = t->of[i].n < 1 / NEW_TIME ? 1 / (double)(t->of[i].n + 1) : NEW_TIME;
    t->of[i].seconds += weight * (seconds - t->of[i].seconds);
    t->of[i].rows += weight * ((double)rows - t->of[i].rows);
    t->of[i].n++;
    t->of[i].step = t->n_steps;
}

bool lt_draft_times_know(const lt_draft_times *t, int64_t rows) {
    const int i = size_of(rows);
    const int64_t often = t->of[i].n * RECENT / 2, long_ago = often < t->recent ? often : t->recent;
    return t->of[i].n > 0 && t->n_steps - t->of[i].step < (t->recent > 0 ? long_ago : RECENT);
}

/* Seconds of so many rows, between two points. */
static double between(double rows, double low, double low_s, double high, double high_s) {
    return low_s + (rows - low) / (high - low) * (high_s - low_s);
}

/* The points on both sides; -1: there is none. */
static void find_points(const lt_draft_times *t, int64_t rows, int *low, int *high) {
    *low = *high = -1;
    for (int i = 0; i < LT_DRAFT_SIZES; i++) {
        if (known(t, i) && t->of[i].rows <= (double)rows) {
            *low = i;
        } else if (known(t, i) && *high < 0) {
            *high = i;
        }
    }
}

double lt_draft_times_of(const lt_draft_times *t, int64_t rows) {
    int low, high;
    find_points(t, rows, &low, &high);
    if (low < 0 || high < 0) {
        return low >= 0 ? t->of[low].seconds : high >= 0 ? t->of[high].seconds : 0;
    }
    return between((double)rows, t->of[low].rows, t->of[low].seconds, t->of[high].rows,
                   t->of[high].seconds);
}

void lt_draft_account_begin(lt_draft_account *a) {
    *a = (lt_draft_account){.balance = CREDIT};
}

void lt_draft_account_note(lt_draft_account *a, bool drafted, double step_s, double plain_s,
                           int64_t n_accepted, int64_t n_rows) {
    const double due = DUE * a->debt;
    double net = ALLOWED;
    if (drafted && plain_s > 0) {
        net += (double)n_accepted / (double)n_rows - (step_s - plain_s) / plain_s;
    }
    net = net > -WORST ? net : -WORST; /* A single slow step says little. */
    if (net > 0) {
        const double paid = net < a->debt ? net : a->debt;
        a->debt -= paid;
        net -= paid;
    }
    a->debt -= a->debt < due ? a->debt : due;
    a->balance += net - due;
    a->balance = a->balance < CREDIT ? a->balance : CREDIT;
}

void lt_draft_account_borrow(lt_draft_account *a, double seconds, double plain_s) {
    a->debt += plain_s > 0 ? seconds / plain_s : 0;
}

/* The text whose next draft token is accepted with the highest probability, among those that may
 * have another; -1: there is none. */
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

static double acceptance_at(const lt_draft_text *t, int64_t place) {
    return lt_draft_acceptance_at(t->own, t->all, place);
}

/* The time of a step of so many rows with drafts: at least that of n_rows without. Below the fewest
 * rows that were measured with drafts, it is interpolated between these and n_rows without. */
static double time_of_drafts(const lt_draft_times *steps, const lt_draft_times *drafted,
                             int64_t n_rows, double plain_s, int64_t rows) {
    double s = lt_draft_times_of(drafted, rows);
    int low, high;
    if (steps == drafted || s == 0) {
        return s > 0 ? s : lt_draft_times_of(steps, rows);
    }
    find_points(drafted, rows, &low, &high);
    if (low < 0) {
        s = between((double)rows, (double)n_rows, plain_s, drafted->of[high].rows,
                    drafted->of[high].seconds);
    }
    return s > plain_s ? s : plain_s;
}

double lt_draft_choose(const lt_draft_times *steps, const lt_draft_times *drafted,
                       const lt_draft_times *model, int64_t n_rows, lt_draft_text *texts,
                       int64_t n_texts) {
    double next[LT_DRAFT_ROWS], gain = 0; /* gain: expected tokens from drafts. */
    int16_t order[LT_DRAFT_ROWS];
    model_calls calls = {.times = model};
    const double seconds = n_rows < LT_DRAFT_ROWS && lt_draft_times_know(steps, n_rows)
                               ? lt_draft_times_of(steps, n_rows)
                               : 0;
    const double plain = seconds > 0 ? (double)n_rows / seconds : 0;
    double best = plain;
    int64_t n_best = 0, n = 0;
    for (int64_t i = 0; i < n_texts; i++) {
        texts[i].n = 0;
        next[i] = acceptance_at(&texts[i], 0);
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
        next[i] *= texts[i].n < LT_DRAFT_MOST ? acceptance_at(&texts[i], texts[i].n) : 0;
        rate = ((double)n_rows + gain) /
               (time_of_drafts(steps, drafted, n_rows, seconds, n_rows + n) + calls.seconds);
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
