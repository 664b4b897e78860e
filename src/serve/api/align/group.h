/* group.h: a group of candidates of which one becomes the answer: the field "alignment" of chat and
 * completions.
 *
 *     "alignment": {"method": "best_of_n", "n": 8}
 *
 * The candidates are the choices of one request to the engine, so they share the prompt's pages,
 * and each costs only its own tokens. A method is a row: the rule of lateen/select.h that keeps
 * one, and which candidates may be cut before their ends:
 *
 *     a choice ends ─▶ its score ─▶ decided? ─▶ the others are cancelled ─┐
 *     a token comes ─▶ its confidence; each `every` tokens the worst are cut   │
 *     all have ended or were cut ─▶ one is kept ─▶ the formatter writes it ◀──┘
 *
 * docs/alignment.md explains each method, score and field. */
#ifndef LT_SERVE_GROUP_H
#define LT_SERVE_GROUP_H

#include "lateen/serve.h"
#include "serve/api/api_params.h"
#include "serve/api/json_out.h"

typedef struct lt_reply lt_reply;
typedef struct lt_reply_choice lt_reply_choice;
typedef struct lt_part lt_part;
typedef struct lt_group lt_group;

/* Read the field; set the number of choices and what the engine reports with each token. Call it
 * after lt_reply_configure; without the field, j->group is NULL. */
bool lt_group_read(lt_reply *j, lt_api_error *e);
void lt_group_free(lt_group *g); /* Accepts NULL. */

/* The choice has a new token. */
void lt_group_token(lt_reply_choice *c, const lt_event *ev);
/* Its text has been added to the choice's, and the choice continues. */
void lt_group_grown(lt_reply_choice *c);
/* The choice has ended by itself. */
void lt_group_ended(lt_reply_choice *c);
/* Handle an event of the reward model about a candidate's text. */
void lt_group_judged(lt_part *p, const lt_event *ev);
/* Shape the engine's request: the choices that run in this round. */
void lt_group_shape(const lt_group *g, lt_part *p, lt_request *r);
/* Called when a round is over. True: the next one has begun. */
bool lt_group_goes_on(lt_part *p);
/* Called when all have ended: keep one, whose index in the answer becomes 0. */
bool lt_group_keep(lt_reply *j, lt_api_error *e);
/* The choice that was kept. */
lt_reply_choice *lt_group_kept(const lt_reply *j);
/* "alignment": {...} */
void lt_group_write(lt_json_out *o, const lt_reply *j);

/* The fields of "alignment", for the documentation. */
extern const lt_field_table lt_fields_alignment;

#endif
