/* prepare.h: the data that inference prepares once, before the first token: the rotary tables,
 * xIELU's scalars in F32, and the weights in the layout that the backend's products prefer. A
 * session and a paged forward pass each own one. */
#ifndef LT_MODEL_PREPARE_H
#define LT_MODEL_PREPARE_H

#include "base/arena.h"
#include "model/blocks/exec.h"

typedef struct {
    /* rope, rope_local: (max_seq, columns, 2) F32 each; parameters that ops need in F32:
     * exec.h */
    lt_arena tables;
    lt_arena packed;
    uint64_t version; /* Version of the weights from which both were made. */
} lt_prepared;

/* Open r on the model and prepare it for positions [0, max_seq). pack: also pack the weights for
 * the products, which pays off for many tokens. After a failure, call lt_exec_release, too. */
LT_MUST_USE lt_err lt_exec_prepare(lt_exec *r, lt_prepared *p, const lt_model *m, int64_t max_seq,
                                   bool pack);
/* If the weights have changed (lt_model.version), derive the data from them again, in the same
 * memory. *changed: they have. The queue of r must be empty. */
LT_MUST_USE lt_err lt_exec_refresh(lt_exec *r, lt_prepared *p, bool *changed);
/* The offset from positions to rows of r->rope in a call with n tokens of a text that then has
 * `end` tokens: 0 for single tokens and if rotation does not depend on the length; otherwise
 * max_seq, and lt_exec_rope_fill makes the rows for that length. */
int64_t lt_exec_rope_rows(const lt_model_spec *spec, int64_t max_seq, int64_t n, int64_t end);
LT_MUST_USE lt_err lt_exec_rope_fill(lt_exec *r, int64_t max_seq, int64_t end);
/* Bytes of `tables` above. */
size_t lt_exec_tables_bytes(const lt_model_spec *spec, int64_t max_seq);
void lt_exec_release(lt_exec *r, lt_prepared *p); /* Closes the queue, too. */

#endif
