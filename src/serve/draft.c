/* draft.c: see draft.h. */
#include "serve/draft.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define LEAST_MATCH   2
#define MOST_MATCH    64
#define STALE         256   /* After this many steps a time is measured again, */
#define MOST_BELIEVED 16    /* times the number of its measurements, up to this. */
#define RECENT        64    /* Likewise for a time without drafts. */
#define SLOW          1.25  /* A step counts as at most this multiple of the known time. */
#define FAST          2     /* A mean of fewer than FEW measurements that is this multiple of the */
#define FEW           10    /* next one is discarded. */
#define CREDIT        2     /* Number of steps that drafts may cost before they gain; */
#define SAVED         16    /* gains that are saved for times when they lose; */
#define ALLOWED       0.01  /* share of all steps that they may cost. */
#define WORST         2     /* A single step counts as at most this many steps. */
#define DUE           0.005 /* Share of the debt that is due per step. */
#define BELIEF        0.6   /* Acceptance rate while nothing is known. */
#define BELIEF_OTHER  0.2   /* The same for a branch's first token if those before it are wrong. */
#define NEW_TIME      0.1   /* Weight of a new measurement. */
/* Number of draft tokens as which the rate of all texts counts for a text, */
#define FIRST     10
#define FIRST_ALL 8     /* and the rate at the previous position for all texts. */
#define KEPT_RUN  0.97  /* Decay of a run's older tokens per new token, */
#define AGE_RUN   0.998 /* and of all runs per draft. */
#define FORESEEN  0.3   /* Below this probability the token after a draft counts as wrong. */
#define KEPT_PACE 0.985 /* Decay of the pace per step. */
#define UNUSUAL   8     /* A call counts as at most this many times its expected time. */
/* A draft must promise this much more, because the estimates are rough. */
#define MARGIN 1.03

/* A match of this length, the tokens before text[end], was found: insert it at its position. */
static int put_match(const int32_t *text, int64_t end, int64_t length, int n, int most, int64_t *at,
                     int64_t *lengths) {
    int place = 0, last = 0;
    while (last < n && text[at[last]] != text[end]) {
        last++;
    }
    if (last < n && lengths[last] >= length) {
        return n;
    }
    while (place < last && lengths[place] >= length) {
        place++;
    }
    if (place == most) {
        return n;
    }
    n += last == n && n < most;
    for (int i = last < n ? last : n - 1; i > place; i--) {
        at[i] = at[i - 1];
        lengths[i] = lengths[i - 1];
    }
    at[place] = end;
    lengths[place] = length;
    return n;
}

int lt_draft_find_all(const int32_t *text, int64_t n_text, const int32_t *tokens, int64_t n,
                      int most, int64_t *at) {
    int64_t lengths[LT_DRAFT_BRANCHES] = {0};
    int n_found = 0;
    for (int64_t end = n_text - 1;
         n >= LEAST_MATCH && end >= LEAST_MATCH && lengths[0] < MOST_MATCH; end--) {
        int64_t k = 0;
        if (text[end - 1] != tokens[n - 1] || text[end - 2] != tokens[n - 2]) {
            continue;
        }
        while (k < end && k < n && k < MOST_MATCH && text[end - 1 - k] == tokens[n - 1 - k]) {
            k++;
        }
        n_found = put_match(text, end, k, n_found, most, at, lengths);
    }
    return n_found;
}

int64_t lt_draft_find_in(const int32_t *text, int64_t n_text, const int32_t *tokens, int64_t n) {
    int64_t at;
    return lt_draft_find_all(text, n_text, tokens, n, 1, &at) > 0 ? at : -1;
}

int64_t lt_draft_find(const int32_t *tokens, int64_t n) {
    return lt_draft_find_in(tokens, n, tokens, n);
}

double lt_draft_acceptance_at(const lt_draft_acceptance *l, const lt_draft_acceptance *all,
                              int64_t place) {
    const double believed = all != NULL ? lt_draft_acceptance_at(all, NULL, place) : 0;
    double rate = BELIEF;
    if (all != NULL) {
        return (l->accepted[place] + FIRST * believed) / (l->tried[place] + FIRST);
    }
    for (int64_t i = 0; i <= place; i++) { /* Without data, a position is like the one before it. */
        rate = (l->accepted[i] + FIRST_ALL * rate) / (l->tried[i] + FIRST_ALL);
    }
    return rate;
}

/* The token after n_accepted accepted ones was tried, too, and rejected; later ones were not tried,
 * which says nothing about them. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, double kept, int64_t n, int64_t n_accepted) {
    const int64_t n_tried = n_accepted < n ? n_accepted + 1 : n;
    for (int64_t i = 0; i < LT_DRAFT_MOST; i++) {
        const bool tried = i < n_tried;
        const double left = tried ? kept : i >= n ? (1 + kept) / 2 : 1;
        l->accepted[i] = left * l->accepted[i] + (i < n_accepted ? 1 : 0);
        l->tried[i] = left * l->tried[i] + (tried ? 1 : 0);
    }
}

double lt_draft_others_at(const lt_draft_others *l, const lt_draft_others *all, int branch) {
    const double believed = all != NULL ? lt_draft_others_at(all, NULL, branch) : BELIEF_OTHER;
    const double weight = all != NULL ? FIRST : FIRST_ALL;
    return (l->right[branch] + weight * believed) / (l->tried[branch] + weight);
}

void lt_draft_others_note(lt_draft_others *l, double kept, int n, int right) {
    for (int i = 0; i < n && i <= right; i++) {
        l->right[i] = kept * l->right[i] + (i == right ? 1 : 0);
        l->tried[i] = kept * l->tried[i] + 1;
    }
}

/* The longest run of each range. */
static const int16_t run_end[LT_DRAFT_RUNS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                               11, 12, 13, 14, 15, 19, 23, 31, 47, 63, INT16_MAX};

static int range_of_run(int64_t run) {
    int i = 0;
    while (i < LT_DRAFT_RUNS - 1 && run > run_end[i]) {
        i++;
    }
    return i;
}

static double by_place(const lt_draft_text *t, int64_t place) {
    return lt_draft_acceptance_at(t->own, t->all,
                                  place < LT_DRAFT_MOST ? place : LT_DRAFT_MOST - 1);
}

/* One wrong token, with as many expected, stands for what is not known. */
double lt_draft_text_accepts(const lt_draft_text *t, int64_t place) {
    const int i = range_of_run(t->run + place);
    const double usual = t->runs != NULL ? (t->runs->wrong[i] + 1) / (t->runs->expected[i] + 1) : 1;
    const double p = 1 - (1 - by_place(t, place)) * usual;
    return p > 0 ? p : 0;
}

void lt_draft_runs_note(lt_draft_runs *r, const lt_draft_text *t, int64_t n_accepted) {
    for (int i = 0; i < LT_DRAFT_RUNS && t->n > 0; i++) {
        r->wrong[i] *= AGE_RUN;
        r->expected[i] *= AGE_RUN;
    }
    for (int64_t k = 0; k < t->n && k <= n_accepted; k++) {
        const int i = range_of_run(t->run + k);
        r->wrong[i] = KEPT_RUN * r->wrong[i] + (k == n_accepted ? 1 : 0);
        r->expected[i] = KEPT_RUN * r->expected[i] + 1 - by_place(t, k);
    }
}

/* It remains unknown whether the token after a fully accepted draft would have been right: it
 * counts as wrong if that was to be expected. */
int64_t lt_draft_run_after(const lt_draft_text *t, int64_t n_accepted) {
    const bool wrong = n_accepted < t->n || (t->n > 0 && lt_draft_text_accepts(t, t->n) < FORESEEN);
    return wrong ? 0 : t->run + t->n + 1;
}

double lt_draft_pace_after(double pace, int64_t n_tokens) {
    return KEPT_PACE * (pace > 0 ? pace : 1) + (1 - KEPT_PACE) * (double)n_tokens;
}

/* The largest number of rows in each range of sizes. */
static const int16_t size_end[LT_DRAFT_SIZES] = {1,  2,  3,  4,  6,  8,  12,
                                                 16, 24, 32, 48, 64, 96, LT_DRAFT_ROWS};

static int size_of(int64_t rows) {
    int i = 0;
    while (i < LT_DRAFT_SIZES - 1 && rows > size_end[i]) {
        i++;
    }
    return i;
}

/* The number of rows that such a step runs. */
static double rows_run(const lt_draft_times *t, int64_t rows) {
    return t->padded ? size_end[size_of(rows)] : (double)rows;
}

/* A time with more measurements stays valid for longer. */
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
    /* A single slow step means little, and even less if it was the first one. */
    if (t->of[i].n > 0 && seconds > SLOW * t->of[i].seconds) {
        seconds = SLOW * t->of[i].seconds;
    }
    if (t->of[i].n < FEW && FAST * seconds < t->of[i].seconds) {
        t->of[i].n = 0;
        t->of[i].rows = t->of[i].seconds = 0;
    }
    weight = t->of[i].n < 1 / NEW_TIME ? 1 / (double)(t->of[i].n + 1) : NEW_TIME;
    t->of[i].seconds += weight * (seconds - t->of[i].seconds);
    t->of[i].rows += weight * (rows_run(t, rows) - t->of[i].rows);
    t->of[i].n++;
    t->of[i].step = t->n_steps;
}

bool lt_draft_times_know(const lt_draft_times *t, int64_t rows) {
    const int i = size_of(rows);
    const int64_t often = t->of[i].n * RECENT / 2, long_ago = often < t->recent ? often : t->recent;
    return t->of[i].n > 0 && t->n_steps - t->of[i].step < (t->recent > 0 ? long_ago : RECENT);
}

/* Seconds for this many rows, interpolated between two points. */
static double between(double rows, double low, double low_s, double high, double high_s) {
    return low_s + (rows - low) / (high - low) * (high_s - low_s);
}

/* The points on both sides; -1: there is none. */
static void find_points(const lt_draft_times *t, double rows, int *low, int *high) {
    *low = *high = -1;
    for (int i = 0; i < LT_DRAFT_SIZES; i++) {
        if (known(t, i) && t->of[i].rows <= rows) {
            *low = i;
        } else if (known(t, i) && *high < 0) {
            *high = i;
        }
    }
}

double lt_draft_times_of(const lt_draft_times *t, int64_t rows) {
    const double run = rows_run(t, rows);
    int low, high;
    find_points(t, run, &low, &high);
    if (low < 0 || high < 0) {
        return low >= 0 ? t->of[low].seconds : high >= 0 ? t->of[high].seconds : 0;
    }
    return between(run, t->of[low].rows, t->of[low].seconds, t->of[high].rows, t->of[high].seconds);
}

double lt_draft_catch_up_note(lt_draft_catch_up *c, double seconds, int64_t rows) {
    const double more = c->rows > 0 && rows > c->rows ? (double)rows / (double)c->rows : 1.0;
    const double expected = more * c->seconds;
    const bool unusual = c->rows > 0 && seconds > UNUSUAL * expected;
    *c = (lt_draft_catch_up){unusual ? UNUSUAL * expected : seconds, rows};
    return unusual ? expected : seconds;
}

void lt_draft_account_begin(lt_draft_account *a) {
    *a = (lt_draft_account){.balance = CREDIT};
}

void lt_draft_account_note(lt_draft_account *a, bool drafted, double step_s, double plain_s,
                           int64_t n_accepted, int64_t n_rows) {
    const double due = DUE * a->debt;
    /* Only gains are saved, and not the allowance. */
    const double most = a->balance > CREDIT || n_accepted > 0 ? SAVED : CREDIT;
    double net = ALLOWED;
    if (drafted && plain_s > 0) {
        net += (double)n_accepted / (double)n_rows - (step_s - plain_s) / plain_s;
    }
    net = net > -WORST ? net : -WORST; /* A single slow step means little. */
    if (net > 0) {
        const double paid = net < a->debt ? net : a->debt;
        a->debt -= paid;
        net -= paid;
    }
    a->debt -= a->debt < due ? a->debt : due;
    a->balance += net - due;
    a->balance = a->balance < most ? a->balance : most;
}

void lt_draft_account_borrow(lt_draft_account *a, double seconds, double plain_s) {
    a->debt += plain_s > 0 ? seconds / plain_s : 0;
}

/* The text whose next draft token is accepted with the highest probability, among those that may
 * have another, of at most `most`, and for whose first one the draft model's first call has `room`;
 * -1: there is none. */
static int64_t most_likely(const lt_draft_text *texts, const double *next, const double *weight,
                           int64_t n_texts, int64_t most, int64_t room) {
    int64_t best = -1;
    double highest = -1;
    for (int64_t i = 0; i < n_texts; i++) {
        const lt_draft_text *t = &texts[i];
        const double rank = weight[i] * next[i];
        if (t->n < t->most && t->n < most && (t->n > 0 || t->behind <= room) && rank > highest) {
            best = i;
            highest = rank;
        }
    }
    return best;
}

/* Seconds of the calls of the draft model: call k runs a row of each text that has more than k
 * draft tokens, and the first one also what it has not run yet. Where that is more than it is in
 * texts that always have drafts, it is run once for many drafts, and its time does not count. Each
 * layer of a head with several runs the rows of the first call, in a call of its own, and of each
 * text as many again as there are further layers. */
typedef struct {
    const lt_draft_times *times;
    int64_t layers;
    int64_t rows[LT_DRAFT_MOST];
    int64_t first; /* Rows of the first call. */
    double seconds;
} model_calls;

static void add_rows(model_calls *c, int64_t call, int64_t n) {
    int64_t *rows = &c->rows[call];
    c->seconds -= *rows > 0 ? lt_draft_times_of(c->times, *rows) : 0;
    *rows += n;
    c->seconds += lt_draft_times_of(c->times, *rows);
}

/* Add one token to a draft or branch that has n. */
static void add_call(model_calls *c, int64_t behind, int64_t n) {
    if (behind == 0 || c->times == NULL) {
        return;
    }
    if (n >= c->layers) {
        add_rows(c, n, 1);
    }
    for (int64_t call = 0; n == 0 && call < c->layers; call++) {
        add_rows(c, call, c->layers + (behind > c->layers));
    }
    c->first += n == 0 ? behind : 0;
}

/* The time of a step of this many rows with drafts: at least that of n_rows without. Below the
 * fewest rows that were measured with drafts, it is interpolated between these and n_rows
 * without. */
static double time_among(const lt_draft_known *k, const lt_draft_times *drafted, int64_t n_rows,
                         double plain_s, int64_t rows) {
    const double run = rows_run(drafted, rows);
    double s = lt_draft_times_of(drafted, rows);
    int low, high;
    if (k->plain == drafted || s == 0) {
        return s > 0 ? s : lt_draft_times_of(k->plain, rows);
    }
    find_points(drafted, run, &low, &high);
    if (low < 0) {
        s = between(run, (double)n_rows, plain_s, drafted->of[high].rows,
                    drafted->of[high].seconds);
    }
    return s > plain_s ? s : plain_s;
}

/* A step with longer drafts is assumed to take as long as one with shorter ones until one was
 * measured. */
static double time_of_drafts(const lt_draft_known *k, int64_t longest, int64_t n_rows,
                             double plain_s, int64_t rows) {
    const bool is_long = longest > k->few && lt_draft_times_of(k->drafted[1], rows) > 0;
    return time_among(k, k->drafted[is_long], n_rows, plain_s, rows);
}

/* A choice of draft tokens, in the order in which they were added. */
typedef struct {
    double rate; /* Weighted tokens per second. */
    int64_t n;
    double weight[LT_DRAFT_ROWS]; /* The texts of the tokens. */
    int16_t order[LT_DRAFT_ROWS]; /* Their texts. */
} choice;

/* The best choice with at most `most` draft tokens per text; *c holds the choice to beat. */
static void choose_up_to(const lt_draft_known *k, int64_t most, int64_t n_rows, double plain_s,
                         lt_draft_text *texts, int64_t n_texts, choice *c) {
    double next[LT_DRAFT_ROWS], gain = 0; /* gain: expected number of tokens from drafts. */
    int16_t order[LT_DRAFT_ROWS];
    model_calls calls = {.times = k->model, .layers = k->model_layers > 1 ? k->model_layers : 1};
    int64_t longest = 0;
    bool found = false;
    for (int64_t i = 0; i < n_texts; i++) {
        texts[i].n = 0;
        next[i] = lt_draft_text_accepts(&texts[i], 0);
    }
    for (int64_t n = 1; n_rows + n <= LT_DRAFT_ROWS; n++) {
        const int64_t i = most_likely(texts, next, c->weight, n_texts, most,
                                      LT_DRAFT_ROWS - calls.first);
        double rate;
        if (i < 0) {
            break;
        }
        add_call(&calls, texts[i].behind, texts[i].n);
        order[n - 1] = (int16_t)i;
        gain += c->weight[i] * next[i];
        texts[i].n++;
        longest = texts[i].n > longest ? texts[i].n : longest;
        next[i] *= texts[i].n < LT_DRAFT_MOST ? lt_draft_text_accepts(&texts[i], texts[i].n) : 0;
        rate = ((double)n_rows + gain) /
               (time_of_drafts(k, longest, n_rows, plain_s, n_rows + n) + calls.seconds);
        if (rate > c->rate * (c->n == 0 ? MARGIN : 1)) {
            c->rate = rate;
            c->n = n;
            found = true;
        }
    }
    if (found) {
        memcpy(c->order, order, (size_t)c->n * sizeof *order);
    }
}

/* A token of a text weighs less the more tokens the text has had, and 1 on average. */
static void weigh(const lt_draft_text *texts, int64_t n_texts, double *weight) {
    double sum = 0;
    for (int64_t i = 0; i < n_texts; i++) {
        weight[i] = texts[i].pace > 0 ? 1 / (texts[i].pace * texts[i].pace) : 1;
        sum += weight[i];
    }
    for (int64_t i = 0; i < n_texts; i++) {
        weight[i] *= (double)n_texts / sum;
    }
}

/* ---- Branches ---- */

/* Steps with more texts have no branches, because the choice would take too long. */
#define BRANCH_TEXTS 4
#define LEAST_GAIN   0.01 /* Rows that gain fewer tokens are not considered. */

/* A draft (k = 0) or branch k of a text, while it is being chosen. */
typedef struct {
    double next; /* Probability that its next token is accepted. */
    /* `next` times the text's weight, divided by the rows that the token takes; below 0: there is
     * no next token. */
    double rank;
    int64_t n;
} twig;

typedef struct {
    double rate; /* Tokens a second, weighted. */
    twig twigs[BRANCH_TEXTS][LT_DRAFT_BRANCHES];
} tree;

/* Its next token, at position t->n, may run; the first one of a branch takes two rows. */
static void set_rank(twig *t, const lt_draft_text *text, int k, int64_t most, double weight) {
    const bool ends = t->n == text->most || t->n == most;
    t->rank = ends ? -1 : weight * t->next / (k > 0 && t->n == 0 ? 2 : 1);
}

/* Branch k of a text can begin: all drafts before it are wrong at their first tokens. */
static void open_branch(tree *b, const lt_draft_text *text, int i, int k, int64_t most,
                        double weight) {
    twig *t = b->twigs[i];
    double wrong = 1 - lt_draft_text_accepts(text, 0);
    for (int r = 0; r < k - 1; r++) {
        wrong *= 1 - lt_draft_others_at(text->own_others, text->all_others, r);
    }
    t[k].next = wrong * lt_draft_others_at(text->own_others, text->all_others, k - 1);
    set_rank(&t[k], text, k, most, weight);
}

/* The twig whose next token is worth most; NULL: there is none. */
static twig *best_twig(tree *b, int n_texts, int *text, int *k) {
    twig *best = NULL;
    for (int i = 0; i < n_texts; i++) {
        for (int j = 0; j < LT_DRAFT_BRANCHES; j++) {
            twig *t = &b->twigs[i][j];
            if (t->rank >= 0 && (best == NULL || t->rank > best->rank)) {
                best = t;
                *text = i;
                *k = j;
            }
        }
    }
    return best;
}

/* As choose_up_to, with branches: tokens are added where a row gains most. *c holds the choice to
 * beat. */
static void choose_tree(const lt_draft_known *k, int64_t most, int64_t n_rows, double plain_s,
                        lt_draft_text *texts, int n_texts, const double *weight, tree *c) {
    tree b = {0};
    model_calls calls = {.times = k->model, .layers = k->model_layers > 1 ? k->model_layers : 1};
    int64_t rows = n_rows, longest = 0, n_branches = 0;
    double gain = 0;
    for (int i = 0; i < n_texts; i++) {
        for (int j = 0; j < LT_DRAFT_BRANCHES; j++) {
            b.twigs[i][j].rank = -1;
        }
        b.twigs[i][0].next = lt_draft_text_accepts(&texts[i], 0);
        set_rank(&b.twigs[i][0], &texts[i], 0, most, weight[i]);
    }
    for (;;) {
        int i = 0, j = 0;
        twig *t = best_twig(&b, n_texts, &i, &j);
        const int64_t more = j > 0 && t != NULL && t->n == 0 ? 2 : 1;
        if (t == NULL || t->rank < LEAST_GAIN || rows + more > LT_DRAFT_ROWS) {
            break;
        }
        if (t->n == 0 && ((j > 0 && n_branches == k->most_branches) ||
                          texts[i].behind > LT_DRAFT_ROWS - calls.first)) {
            t->rank = -1;
            continue;
        }
        rows += more;
        n_branches += more - 1;
        gain += weight[i] * t->next;
        add_call(&calls, texts[i].behind, t->n);
        t->n++;
        if (t->n == 1 && j < texts[i].n_others) {
            open_branch(&b, &texts[i], i, j + 1, most, weight[i]);
        }
        longest = t->n > longest ? t->n : longest;
        t->next *= t->n == LT_DRAFT_MOST ? 0
                   : j == 0              ? lt_draft_text_accepts(&texts[i], t->n)
                                         : by_place(&texts[i], t->n);
        set_rank(t, &texts[i], j, most, weight[i]);
        b.rate = ((double)n_rows + gain) /
                 (time_of_drafts(k, longest, n_rows, plain_s, rows) + calls.seconds);
        if (n_branches > 0 && b.rate > c->rate) {
            *c = b;
        }
    }
}

/* Branches must promise more than drafts alone, as these must promise more than none. */
static double add_branches(const lt_draft_known *k, int64_t n_rows, double plain_s,
                           lt_draft_text *texts, int64_t n_texts, const choice *chosen) {
    const double least = chosen->rate * MARGIN;
    tree c = {.rate = least};
    bool any = false;
    for (int64_t i = 0; i < n_texts; i++) {
        any |= texts[i].n_others > 0;
    }
    if (!any || k->most_branches == 0 || n_texts > BRANCH_TEXTS) {
        return chosen->rate;
    }
    /* A longer draft needs one more call of the draft model, but a branch does not. */
    for (int64_t most = 1; most <= LT_DRAFT_MOST; most++) {
        if (k->model != NULL || most == k->few || most == LT_DRAFT_MOST) {
            choose_tree(k, most, n_rows, plain_s, texts, (int)n_texts, chosen->weight, &c);
        }
    }
    if (!(c.rate > least)) {
        return chosen->rate;
    }
    for (int64_t i = 0; i < n_texts; i++) {
        texts[i].n = c.twigs[i][0].n;
        for (int j = 0; j < LT_DRAFT_OTHERS; j++) {
            texts[i].branch[j] = c.twigs[i][j + 1].n;
        }
    }
    return c.rate;
}

double lt_draft_choose(const lt_draft_known *k, int64_t n_rows, lt_draft_text *texts,
                       int64_t n_texts) {
    const double plain_s = n_rows < LT_DRAFT_ROWS && lt_draft_times_know(k->plain, n_rows)
                               ? lt_draft_times_of(k->plain, n_rows)
                               : 0;
    const double plain = plain_s > 0 ? (double)n_rows / plain_s : 0;
    choice c = {.rate = plain};
    weigh(texts, n_texts, c.weight);
    if (plain > 0) { /* 0: a step without drafts must be measured first. */
        choose_up_to(k, k->few, n_rows, plain_s, texts, n_texts, &c);
    }
    if (plain > 0 && k->few < LT_DRAFT_MOST) {
        choose_up_to(k, LT_DRAFT_MOST, n_rows, plain_s, texts, n_texts, &c);
    }
    for (int64_t i = 0; i < n_texts; i++) {
        texts[i].n = 0;
        memset(texts[i].branch, 0, sizeof texts[i].branch);
    }
    for (int64_t i = 0; i < c.n; i++) {
        texts[c.order[i]].n++;
    }
    c.rate = plain > 0 ? add_branches(k, n_rows, plain_s, texts, n_texts, &c) : c.rate;
    return c.rate > plain ? 1 - plain / c.rate : 0;
}
