/* draft.h: speculative decoding by n-grams: draft tokens from the text itself, which one step of
 * the model verifies together (prompt lookup decoding: Saxena 2023).
 *
 *     text so far: ... the big red fox ... ran to the big red
 *                          └─ the longest earlier ─┘      └▶ draft: fox ...
 *                             match of its end
 *
 * A step runs the last token and the draft behind it. The logits of the last token give the next
 * one; if it equals the first draft token, that token's logits give the one after it, and so on.
 * Each token is drawn as without a draft, so a draft never changes a text; it saves steps. Keys and
 * values of rejected draft tokens are overwritten.
 *
 * HOW MANY  More rows make a step longer. The times of steps by their number of rows are measured
 *           while the engine runs, and so is each text's rate of acceptance; the number of draft
 *           tokens with the most tokens a second is taken. It may be 0. */
#ifndef LT_SERVE_DRAFT_H
#define LT_SERVE_DRAFT_H

#include <stdint.h>

#define LT_DRAFT_MOST 8   /* Draft tokens of one text. */
#define LT_DRAFT_ROWS 128 /* Steps of more rows are not measured, and have no draft. */

/* The end of an earlier match of the last tokens of tokens[0..n), the longest (at least 2, at most
 * 16 tokens; of equal ones the last): what follows it is tokens[result]. -1: there is none. */
int64_t lt_draft_find(const int32_t *tokens, int64_t n);

/* Write a draft of n_draft tokens behind tokens[0..n): what follows the match that lt_draft_find
 * found. Where the match reaches the end of the text, the draft continues itself. */
void lt_draft_write(int32_t *tokens, int64_t n, int64_t match, int64_t n_draft);

/* What one text's drafts have shown: how often a draft token was accepted, lately, if those before
 * it were. */
typedef struct {
    double n_accepted, n_tried; /* Sums in which older drafts weigh less. */
} lt_draft_acceptance;

void lt_draft_acceptance_begin(lt_draft_acceptance *l);
double lt_draft_acceptance_rate(const lt_draft_acceptance *l);
/* n_accepted of n draft tokens were accepted. n 0: there was no draft, and a low rate is forgotten
 * slowly. */
void lt_draft_acceptance_note(lt_draft_acceptance *l, int64_t n, int64_t n_accepted);

/* Seconds of steps by rows, as they were lately. */
typedef struct {
    double seconds[LT_DRAFT_ROWS + 1]; /* 0: not known. */
    int64_t step[LT_DRAFT_ROWS + 1];   /* Which step was the last of that size. */
    int64_t n_steps;
} lt_draft_times;

void lt_draft_times_note(lt_draft_times *t, int64_t rows, double seconds);
/* What a step of so many rows takes: measured, or between its neighbours; beyond those, as the next
 * one, so that it will be tried. 0: nothing is known. */
double lt_draft_times_of(const lt_draft_times *t, int64_t rows);

/* How many draft tokens a text should get, at most LT_DRAFT_MOST, in a step that runs n_rows
 * without drafts, n_texts of which may have one; rates (n_texts). */
int64_t lt_draft_choose(const lt_draft_times *t, int64_t n_rows,
                        const lt_draft_acceptance *const *rates, int64_t n_texts);

#endif
