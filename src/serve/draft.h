/* draft.h: speculative decoding: draft tokens that one step of the model verifies together.
 *
 *     text so far: ... the big red fox ... ran to the big red
 *                          └─ the longest earlier ─┘      └▶ draft: fox ...
 *                             match of its end
 *
 * A step runs the last token and the draft after it. The logits of the last token give the next
 * one; if it equals the first draft token, that token's logits give the one after it, and so on.
 * Keys and values of rejected draft tokens are overwritten.
 *
 * PROPOSERS (the table of step_draft.c)
 *     prediction  the request contains the expected text: what follows the end of the text there
 *     ngram       what follows the longest earlier match of the end of the text (prompt lookup
 *                 decoding: Saxena 2023)
 *     model       the tokens of a second, smaller model (step_draft_model.c)
 *     head        the tokens of a head that reads the served model's hidden states, of one layer
 *                 or of several (model/infer/draft_head.h)
 * A copied draft never changes a text: each token is drawn as without it. The same holds for a
 * draft model where tokens are not drawn at random, for requests that ask for it, and on devices.
 * Otherwise the draw takes the draft's distribution into account (model/infer/sampler.h), which
 * accepts more tokens and changes the text, but not its distribution.
 *
 * BRANCHES  The step may also verify other drafts of a text, which begin with another token: what
 *           followed another match, or the next most probable token of the model or head. Each is
 *           a sequence of the step that runs the last token once more (scheduler.h); if the next
 *           token is its first one, its pages become those of the text. Tokens that are drawn from
 *           the draft's distribution q are drawn without replacement and tried in the order of the
 *           draws (Jeon et al. 2024, arXiv:2402.14160).
 *
 *     text so far: ... ran to the big red ─┬─ fox jumped     the draft
 *                                          └─ hat fell       a branch
 *
 * DEVICES   A device chooses a token from each row of a draft at once, each as if the draft tokens
 *           before it were those of the text; the host keeps those up to the first that differs
 *           from the draft. Steps of few rows a text are recorded (model/infer/paged_forward.h).
 *
 * HOW MANY  More rows make a step longer. While the engine runs, it measures the times of steps by
 *           their number of rows, those of the draft model, and how often draft tokens are
 *           accepted. Draft tokens are added one by one, each to the text where it is most
 *           probably accepted; of all these numbers of tokens, that with the most tokens a second
 *           is taken. It may be 0. An account of what drafts have really gained and cost bounds
 *           the cost of wrong estimates.
 * FAIR      Long drafts of some texts make the steps of all texts longer. So a token counts as
 *           1 / pace^2, where pace is the recent number of tokens of its text in a step. In the
 *           long run this rule minimizes the sum of the times that texts of equal length take.
 *           Without it, texts with worse drafts got none, and ran alone at last: with 16 texts that
 *           repeat themselves, the speed was 0.75 instead of 0.94 of that with the best fixed
 *           length (simulated).
 * GPUS      run padded steps: as many rows as the next bucket has, and as many rows of each text as
 *           a draft of up to 3 tokens needs, or one of LT_DRAFT_MOST (model/infer/paged_forward.h).
 *           Times are kept in the same way, and the best choice among short drafts alone is looked
 *           for, too. The first steps of each bucket are recorded, which takes longer and happens
 *           once: they are neither measured nor charged to the drafts.
 * ACCEPTED  The probability that a draft token is accepted depends on three things. Each text has
 *           rates by the place in the draft; a text with few drafts so far uses those of all
 *           texts, and a place that was seldom tried uses the rate of the place before it. A place
 *           that is not tried is forgotten slowly, so that it is tried again; without that, a
 *           length that once did badly would never come back. Wrong draft tokens come in groups,
 *           or at regular distances where a text repeats itself, so the rate of a place is
 *           corrected by the number of tokens since the last wrong one. For example, a text repeats
 *           11 tokens, of which the drafter does not know one: with drafts of 4 tokens every third
 *           draft begins at the unknown one, and only a trial shows that drafts of 5 meet it at
 *           their end.
 * TRIED     Comparing lengths by the tokens that each has really brought, with occasional trials of
 *           other lengths, was as good for texts that repeat themselves, but 5 to 20 % slower for
 *           others, because each length is rarely seen and its mean varies. */
#ifndef LT_SERVE_DRAFT_H
#define LT_SERVE_DRAFT_H

#include "lateen/serve.h"

#define LT_DRAFT_ROWS 128 /* Steps with more rows are not measured, and have no drafts. */

/* The end of the longest earlier match of the last tokens of tokens[0..n) (at least 2, at most 64
 * tokens; of equally long ones the last): tokens[result] follows it. -1: there is none. */
int64_t lt_draft_find(const int32_t *tokens, int64_t n);
/* The same in another text, text[0..n_text): text[result] follows the match, result < n_text. */
int64_t lt_draft_find_in(const int32_t *text, int64_t n_text, const int32_t *tokens, int64_t n);
/* The same for up to `most` matches, at most LT_DRAFT_BRANCHES, that are followed by different
 * tokens, the longest first; the search ends at a match of 64 tokens. Returns how many. */
int lt_draft_find_all(const int32_t *text, int64_t n_text, const int32_t *tokens, int64_t n,
                      int most, int64_t *at);

/* How often a draft token of one text, or of all texts, was recently accepted if those before it
 * were, by its position in the draft. Zeroed, nothing is known. */
typedef struct {
    /* Sums in which older drafts have less weight. */
    double accepted[LT_DRAFT_MOST], tried[LT_DRAFT_MOST];
} lt_draft_acceptance;

/* all: the rate of all texts, which is assumed for a text with little data; NULL: l is that. */
double lt_draft_acceptance_at(const lt_draft_acceptance *l, const lt_draft_acceptance *all,
                              int64_t place);
/* n_accepted of n draft tokens were accepted. kept: decay of the weight of older drafts. Positions
 * after the draft, all of them if n is 0, decay half as fast. */
#define LT_DRAFT_KEPT     0.97 /* Remaining weight for one text, */
#define LT_DRAFT_KEPT_ALL 0.99 /* and for all texts. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, double kept, int64_t n, int64_t n_accepted);

/* By the number of tokens since the last wrong draft token (the run): how many tokens were wrong
 * there, and how many were expected to be by the rates of positions. Zeroed, nothing is known. */
#define LT_DRAFT_RUNS 22 /* Number of distinct ranges of runs. */
typedef struct {
    double wrong[LT_DRAFT_RUNS], expected[LT_DRAFT_RUNS];
} lt_draft_runs;

/* How often, recently, the first token of branch k was right if those of the draft and of the
 * branches before it were wrong. Zeroed, nothing is known. */
#define LT_DRAFT_OTHERS (LT_DRAFT_BRANCHES - 1)
typedef struct {
    double right[LT_DRAFT_OTHERS], tried[LT_DRAFT_OTHERS];
} lt_draft_others;

/* all: of all texts; NULL: l is that. n first tokens were known; branch `right` had the right one,
 * n: none. */
double lt_draft_others_at(const lt_draft_others *l, const lt_draft_others *all, int branch);
void lt_draft_others_note(lt_draft_others *l, double kept, int n, int right);

/* A text that may have a draft. */
typedef struct {
    const lt_draft_acceptance *own, *all; /* Its acceptance, and that of all texts. */
    const lt_draft_runs *runs;            /* Of all texts; NULL: not used. */
    int64_t run;                          /* Tokens since its last wrong draft token. */
    int64_t most;                         /* Most draft tokens, up to LT_DRAFT_MOST; */
    /* if the draft model makes them, tokens that it must first catch up with; 0: they are
     * copied. */
    int64_t behind;
    double pace; /* Tokens per step, recently; 0: not known, as 1. */
    /* Most branches, and how often their first tokens are right. */
    int n_others;
    const lt_draft_others *own_others, *all_others;
    int64_t n;                       /* Chosen number of draft tokens, and of each branch. */
    int64_t branch[LT_DRAFT_OTHERS]; /* 0: there is none. */
} lt_draft_text;

/* The probability that the draft token at this position is accepted if those before it are. */
double lt_draft_text_accepts(const lt_draft_text *t, int64_t place);
/* n_accepted of the t->n draft tokens were accepted. Call it before the acceptance is noted. */
void lt_draft_runs_note(lt_draft_runs *r, const lt_draft_text *t, int64_t n_accepted);
/* The text's run after that, including its next token. */
int64_t lt_draft_run_after(const lt_draft_text *t, int64_t n_accepted);

/* The pace of a text that had this many tokens in a step. */
double lt_draft_pace_after(double pace, int64_t n_tokens);

#define LT_DRAFT_SIZES 14 /* Number of distinct sizes of steps. */

/* Recent seconds of steps by their rows: for each range of sizes one point, the mean of the
 * measurements. */
typedef struct {
    struct {
        double rows, seconds;
        int64_t n, step; /* Number of measurements, 0: none; and the step of the last one. */
    } of[LT_DRAFT_SIZES];
    int64_t n_steps;
    /* A time is known for this many steps after its last measurement, but for at most 32 for each
     * measurement; 0: for 64. */
    int64_t recent;
    bool padded; /* A step runs as many rows as the largest one of its range. */
} lt_draft_times;

void lt_draft_times_note(lt_draft_times *t, int64_t rows, double seconds);
/* The time of a step with this many rows, interpolated between the points on both sides; beyond
 * them, that of the nearest point, so that such a step will be tried. 0: nothing is known. */
double lt_draft_times_of(const lt_draft_times *t, int64_t rows);
/* Whether the time of such steps is known, and not only of others. */
bool lt_draft_times_know(const lt_draft_times *t, int64_t rows);

/* The last call in which the draft model caught up with texts; zeroed: none. */
typedef struct {
    double seconds;
    int64_t rows;
} lt_draft_catch_up;

/* Note the time of another such call. Returns the time that it counts as: a call that took many
 * times longer than the last one suggests had kernels to compile, which happens once for a number
 * of rows. */
double lt_draft_catch_up_note(lt_draft_catch_up *c, double seconds, int64_t rows);

/* What drafts have gained and cost, in steps without drafts. They may cost more than they gain only
 * by a hundredth of all steps, and by a few steps at once. Gains are saved, up to a bound, so that
 * drafts that pay on average do not pause after a few bad ones. */
typedef struct {
    double balance; /* Below 0, no drafts are made. */
    double debt;    /* Spent before any gain, and repaid from later gains. */
} lt_draft_account;

void lt_draft_account_begin(lt_draft_account *a);
/* A step took step_s, and would have taken plain_s without drafts; it gave n_accepted tokens in
 * addition to those of its n_rows. drafted false: it had no drafts. */
void lt_draft_account_note(lt_draft_account *a, bool drafted, double step_s, double plain_s,
                           int64_t n_accepted, int64_t n_rows);
void lt_draft_account_borrow(lt_draft_account *a, double seconds, double plain_s);

/* The known times for the next step. */
typedef struct {
    const lt_draft_times *plain; /* Of steps without drafts. */
    /* Of steps in which no draft has more than `few` tokens, and of the others. Both may be the
     * same, and that of steps without drafts. */
    const lt_draft_times *drafted[2];
    int64_t few;
    const lt_draft_times *model; /* Of calls of the draft model; NULL: there is none. */
    int64_t model_layers;        /* For a head: number of calls that every draft needs; 0: as 1. */
    int64_t most_branches;       /* Most branches of a step. */
} lt_draft_known;

/* Choose n and the branches of each text in a step that runs n_rows without drafts. Returns the
 * share of a token's time that the drafts save. */
double lt_draft_choose(const lt_draft_known *k, int64_t n_rows, lt_draft_text *texts,
                       int64_t n_texts);

#endif
