/* judge.h: a candidate's text goes through the reward model beside the served one (serve --reward).
 *
 *     a chat         its messages and the answer, by the reward model's chat template
 *     a completion   prompt and text as a user's message and its answer; if the reward model has no
 *                    template, one after the other
 *
 * The score is the output of the head at the last token. Requests of all groups are batched.
 *
 * A PROCESS REWARD MODEL reads the text in steps, divided at borders (data/steps.h), after the
 * messages with the opening of an answer, or after the prompt of a completion, as it was trained
 * (align/preference_data.h). Each step has a score; 'alignment.aggregate' says how they become
 * one. */
#ifndef LT_SERVE_JUDGE_H
#define LT_SERVE_JUDGE_H

#include "serve/api/reply.h"

/* Whether the server has a process reward model. */
bool lt_judge_has_steps(const lt_server *s);
/* Append a step and the separator to *ids, and the position of the separator's last token to *at.
 * s: the server of a process reward model. Can be called on any of the server's threads. */
bool lt_judge_add_step(lt_server *s, const char *step, size_t n, lt_ids *ids, lt_ids *at,
                       lt_api_error *e);
/* Refuse 'alignment.reward' if there is no reward model; read how steps are judged. */
bool lt_judge_read(lt_reply *j, lt_api_error *e);
/* Submit the text of an answer to j's request. p gets the events, and must not move until DONE.
 * known (n_known): scores of its first steps, which are not computed again, except that of the
 * text's last step. With DONE, p->steps has the scores of all steps. A later call for the same p
 * frees them; at the end lt_judge_close does. */
bool lt_judge_submit(lt_reply *j, lt_part *p, const char *text, size_t n, const double *known,
                     int64_t n_known, lt_api_error *e);
void lt_judge_close(lt_part *p);
/* "steps": the scores of the steps, if there are any. */
void lt_judge_write(lt_json_out *o, const double *steps, int64_t n);
/* Handle an event of the reward model: the score of a text. The number of tokens that were read is
 * added. j fails if the text could not be judged. True: the event is DONE. */
bool lt_judge_event(lt_reply *j, const lt_event *ev, double *score, int64_t *tokens);

#endif
