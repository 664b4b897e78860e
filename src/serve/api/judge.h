/* judge.h: a candidate's text goes through the reward model beside the served one (serve --reward).
 *
 *     a chat         its messages and the answer, by the reward model's chat template
 *     a completion   prompt and text as a user's message and its answer; if the reward model has no
 *                    template, one behind the other
 *
 * The score is what the head says at the last token. Requests of all groups are batched. */
#ifndef LT_SERVE_JUDGE_H
#define LT_SERVE_JUDGE_H

#include "serve/api/reply.h"

/* Refuse 'alignment.reward' where there is no reward model. */
bool lt_judge_check(const lt_reply *j, lt_api_error *e);
/* Submit the text of an answer to j's request. p gets the events, and must not move until DONE. */
bool lt_judge_submit(lt_reply *j, lt_part *p, const char *text, size_t n, lt_api_error *e);
/* Take an event of the reward model: the score of a text, and the tokens that were read are added.
 * j fails if the text could not be judged. True: the event is DONE. */
bool lt_judge_event(lt_reply *j, const lt_event *ev, double *score, int64_t *tokens);

#endif
