/* guide.h: the methods of "alignment" that change how every token is chosen, not which of several
 * answers is kept: watermark, steer, guidance and the blends of models. They need no group, so each
 * choice of the request is an answer.
 *
 *     "alignment": {"method": "watermark", "scheme": "gumbel", "key": "..."}
 *     "alignment": {"method": "steer", "vector": "calm", "scale": 2}
 *     "alignment": {"method": "guidance", "negative": "A dull story.", "scale": 1.5}
 *     "alignment": {"method": "contrastive", "amateur": "small"} */
#ifndef LT_SERVE_GUIDE_H
#define LT_SERVE_GUIDE_H

#include <stdbool.h>
#include <stddef.h>

#include "serve/api/api_params.h"

typedef struct lt_reply lt_reply;

/* Refuse fields of "alignment" that `by` (a method, perhaps with its variant) does not read, since
 * they would have no effect, and require those that it needs. reads, needs: names, ended by
 * NULL. */
bool lt_guide_fields(const json_t *alignment, const char *const *reads, const char *const *needs,
                     const char *by, lt_api_error *e);

/* use_beam_search, length_penalty and early_stopping of a request: its choices are the texts that a
 * beam search finds, the best first. */
bool lt_guide_beam_search(lt_reply *j, lt_api_error *e);
/* The same for method beam, whose fields have been read: width r->n_choices. `by` names it. */
bool lt_guide_set_beam(lt_reply *j, const char *by, lt_api_error *e);

/* Read the method's fields into the request. */
bool lt_guide_watermark(lt_reply *j, lt_api_error *e);
bool lt_guide_steer(lt_reply *j, lt_api_error *e);
bool lt_guide_negative(lt_reply *j, lt_api_error *e);
bool lt_guide_contrastive(lt_reply *j, lt_api_error *e);
bool lt_guide_experts(lt_reply *j, lt_api_error *e);

#endif
