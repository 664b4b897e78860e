/* reply_shift.c: answers that continue at the end of the context (serve/step_shift.c): the
 * request's n_keep and n_discard, prompts that do not fit, and the report in the answer. */
#include <string.h>

#include "serve/api/reply.h"

bool lt_reply_shifts(const lt_reply *j) {
    const lt_request *r = &j->request;
    return j->server->o.context_shift && !r->embed && !r->beam.on && !r->guidance.on &&
           r->blend.n == 0 && j->group == NULL && j->blocks == NULL && j->control == NULL;
}

/* Number of tokens at the beginning that are kept, including BOS. */
static int64_t kept(const lt_reply *j, int64_t n_prompt) {
    const int64_t most = lt_server_context(j->model) - LT_SHIFT_LEFT;
    const int64_t asked = j->params.n_keep < 0 ? n_prompt
                                               : j->params.n_keep + j->model->vocabulary.adds_bos;
    return asked < most ? asked : most;
}

bool lt_reply_cut(const lt_reply *j, lt_ids *prompt) {
    const int64_t context = lt_server_context(j->model), n = (int64_t)prompt->n;
    const int64_t keep = kept(j, n), block = (context - keep) / 2;
    int64_t dropped;
    if (n < context) {
        return false;
    }
    dropped = (n - keep - block) / block * block;
    memmove(prompt->data + keep, prompt->data + keep + dropped,
            (size_t)(n - keep - dropped) * sizeof *prompt->data);
    prompt->n -= (size_t)dropped;
    return true;
}

/* An answer without a limit has at most as many tokens as the context. */
int64_t lt_reply_room(const lt_reply *j, const lt_part *p) {
    const int64_t context = lt_server_context(j->model);
    if (!lt_reply_shifts(j)) {
        return context - (int64_t)p->prompt.n;
    }
    return j->request.max_tokens < 0 ? context : LT_SHIFT_TOKENS;
}

lt_shift lt_reply_shift(const lt_reply *j) {
    return (lt_shift){.on = lt_reply_shifts(j),
                      .keep = j->params.n_keep < 0 ? -1 : kept(j, 0),
                      .discard = j->params.n_discard};
}

/* After a stop string the engine continues until it is told: a shift there does not count. */
bool lt_reply_is_truncated(const lt_reply_choice *c) {
    const int64_t read = (int64_t)c->part->prompt.n + c->new_tokens;
    return c->part->cut || (c->dropped > 0 && read > lt_server_context(c->reply->model));
}
