/* blocks.h: method blockwise: an answer is written in blocks of `every` tokens, each the best of n
 * (Mudgal et al. 2024, controlled decoding, arXiv:2310.17022).
 *
 *     "alignment": {"method": "blockwise", "n": 4, "every": 32, "reward": "reward"}
 *
 * With a border ("\n\n"), a block is a step: it ends there, or after `every` tokens.
 *
 * A `width` over 1 makes it a beam search of steps: `width` texts are kept, and each that has not
 * ended gets n / width continuations in a round. The `width` best of these and of the texts that
 * have ended are kept for the next round. The search is over when all kept texts have ended, and
 * only then is the answer known.
 *
 *     n continuations of the text so far ─▶ scores ─▶ one is kept, and only now becomes part of the
 *          ▲                                          answer: stop strings, items, the stream
 *          └──────── if it has not ended ◀────────────┘
 *
 * Each round is a request to the engine that goes on with the tokens so far (lt_request.n_given),
 * so it finds their pages, and with n = 1 the answer is that of a plain request. */
#ifndef LT_SERVE_BLOCKS_H
#define LT_SERVE_BLOCKS_H

#include "lateen/serve.h"
#include "serve/api/api_params.h"

typedef struct lt_reply lt_reply;
typedef struct lt_part lt_part;
typedef struct lt_blocks lt_blocks;

/* Read the method's fields; j->blocks is set. */
bool lt_blocks_read(lt_reply *j, lt_api_error *e);
void lt_blocks_free(lt_blocks *b); /* Accepts NULL. */
/* The request of a part in a round, after n_given tokens, with at most most_tokens in all. */
void lt_blocks_shape(const lt_blocks *b, const lt_part *p, lt_request *r, int64_t n_given,
                     int64_t most_tokens);
/* Cancel the requests other than that of the answer's own part. j->blocks may be NULL. */
void lt_blocks_cancel(const lt_reply *j);
/* Handle an event of a round; of the reward model, about a candidate. Both may free the reply. */
void lt_blocks_event(const lt_event *ev);
void lt_blocks_judged(lt_part *p, const lt_event *ev);
/* Number of tokens in continuations that were dropped. */
int64_t lt_blocks_dropped(const lt_blocks *b); /* 0 for NULL. */
/* "alignment": {...} */
void lt_blocks_write(lt_json_out *o, const lt_reply *j);

#endif
