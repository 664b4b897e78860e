/* lora_dropout.c: see lora_dropout.h. It determines which words of which random stream belong to a
 * module, and to the tokens and columns of this rank; the op drop does the rest. */
#include "model/lora/lora_dropout.h"

#include "base/rng.h"
#include "model/blocks/context.h"
#include "model/init.h"

lt_err lt_lora_drop(lt_exec *r, const lt_lora_site *s, int part, lt_tensor y, lt_tensor x,
                    bool add) {
    const lt_lora_run *run = r->lora;
    const lt_context *c = r->context;
    const double p = run->lora->options.dropout;
    const lt_param_table *t = &run->lora->params->table;
    const lt_param *a = &t->params[s->a];
    const bool divided = a->local_shape[1] < a->shape[1];
    const int64_t piece = c == NULL ? r->seq : r->seq / 2;
    lt_drop_args args = {.y = y,
                         .x = x,
                         .seed = run->lora->seed,
                         .stream = lt_rng_mix(lt_init_stream(a->name) + (uint64_t)part + 1),
                         .first_row = run->drop.first_row,
                         .row_step = run->drop.row_step,
                         .seq = r->seq,
                         .piece = piece,
                         .blocks = ((divided ? a->shape[1] : x.shape[1]) + 3) / 4,
                         .column = divided ? lt_param_boxes(t, a)[0].first[1] : 0,
                         .threshold = (uint32_t)(p * 0x1p32),
                         .factor = (float)(1.0 / (1.0 - p)),
                         .add = add};
    LT_ASSERT(x.shape[0] == r->batch * r->seq);
    for (int i = 0; c != NULL && i < 2; i++) {
        args.starts[i] = lt_context_piece(c->n, c->rank, i) * piece;
    }
    return lt_exec_drop(r, &args);
}
