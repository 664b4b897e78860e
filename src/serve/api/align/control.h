/* control.h: ends the reasoning of a chat early, by a rule: the field "reasoning" of the request.
 *
 *     "reasoning": {"control": "deer", "threshold": 0.95}
 *
 * At certain places of the reasoning the text is stopped, and a trial asks what the answer would be
 * now: a separate request whose prompt is the text so far followed by the words of `probe`. The
 * result of the trial decides whether the reasoning ends or goes on:
 *
 *            ┌───────────────── goes on ──────────────────┐
 *     runs ──┴─▶ a place is reached ─▶ stops ─▶ trial ────┴─▶ ends: the mark that closes the
 *                                                            reasoning, then the answer
 *
 * The trial finds the text's pages in the prefix cache. A stopped text goes on as if it had not
 * been stopped (lt_request.n_given), so a control that never ends anything changes no token. */
#ifndef LT_SERVE_CONTROL_H
#define LT_SERVE_CONTROL_H

#include "lateen/serve.h"
#include "serve/api/api_params.h"
#include "serve/api/json_out.h"

typedef struct lt_reply lt_reply;
typedef struct lt_reply_choice lt_reply_choice;
typedef struct lt_part lt_part;
typedef struct lt_control lt_control;

/* Read the field; without it j->control is NULL. Call it before lt_reply_configure and before the
 * prompt. */
bool lt_control_read(lt_reply *j, lt_api_error *e);
void lt_control_free(lt_control *k); /* Accepts NULL. */

/* Called when a token has arrived, and its text[0..n) has been taken. */
void lt_control_token(lt_reply_choice *c, int32_t id, const char *text, size_t n);
/* Add to the engine's request what the control needs. k NULL: no-op. */
LT_MUST_USE lt_err lt_control_shape(lt_control *k, lt_request *r);
/* Whether this token is the mark that closes the reasoning, and the control decides about it. */
bool lt_control_closes(const lt_part *p, const lt_event *ev);
/* Whether the part is being stopped. If so, ignore further events of its engine's request. */
bool lt_control_stopped(const lt_part *p);
/* The engine's request of a stopped part has ended: start the trial. */
void lt_control_stop(lt_reply *j);
/* Handle an event if it belongs to the trial; false: it does not. */
bool lt_control_event(const lt_event *ev);
/* The client has gone. */
void lt_control_cancel(lt_reply *j);
int64_t lt_control_tokens(const lt_reply *j); /* Number of tokens of all trials. */
/* "reasoning_control": {...} */
void lt_control_write(lt_json_out *o, const lt_reply *j);

/* The fields of "reasoning", for the documentation. */
extern const lt_field_table lt_fields_reasoning;

#endif
