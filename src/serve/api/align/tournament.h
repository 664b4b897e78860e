/* tournament.h: a knock-out among the texts of a group's candidates, judged by the served model
 * (Liu et al. 2025, "PairJudge", arXiv:2501.13007).
 *
 *     round    the remaining texts, two by two in their order; an odd one goes on without a match
 *     match    the model is asked which of two answers is better, A or B, once in each order, so
 *              that a preference for a place cancels out. Of the two letters' probabilities p, an
 *              answer's share is p / (p_A + p_B); the higher mean share wins, the first of equals
 *
 * A round's matches are requests of one token, which run in one batch. */
#ifndef LT_SERVE_TOURNAMENT_H
#define LT_SERVE_TOURNAMENT_H

#include "serve/api/reply.h"

typedef struct lt_tournament lt_tournament;

/* Refuse a model that has no single tokens for the letters, before anything is written. */
bool lt_tournament_check(const lt_reply *j, lt_api_error *e);
/* Begin a tournament among n texts, and take over their memory in any case. The first round begins:
 * the reply waits for its matches (parts_left). */
bool lt_tournament_open(lt_tournament **out, lt_reply *j, lt_json_out *texts, int64_t n,
                        lt_api_error *e);
void lt_tournament_close(lt_tournament *t); /* Accepts NULL. */
/* Handle an event of a match. True: the tournament is over. *e reports a failure (status not 0).
 * Each DONE must be followed by lt_reply_let_go. */
bool lt_tournament_event(lt_tournament *t, lt_part *p, const lt_event *ev, lt_api_error *e);
/* Number of matches that a text has won, including rounds without an opponent. */
int64_t lt_tournament_wins(const lt_tournament *t, int64_t i);
int64_t lt_tournament_tokens(const lt_tournament *t); /* Number of tokens read in all matches. */

#endif
