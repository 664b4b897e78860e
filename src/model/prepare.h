/* prepare.h: what inference needs of a model once, before its first token: the rotary tables,
 * xIELU's scalars in F32, the weights in the layout the backend's products like best. Session (one
 * user) and forward (many) each own one. */
#ifndef LT_MODEL_PREPARE_H
#define LT_MODEL_PREPARE_H

#include "base/arena.h"
#include "model/exec.h"

typedef struct {
    /* rope, rope_local: (max_seq, columns, 2) F32 each; what ops want in F32: exec.h */
    lt_arena tables;
    lt_arena packed;
    uint64_t version; /* Of the weights that both are made of. */
} lt_prepared;

/* Open the run on the model and prepare it for positions [0, max_seq). pack: also lay out the
 * weights for the products, which pays when many tokens follow. On failure release what there is
 * with lt_exec_release. */
LT_MUST_USE lt_err lt_exec_prepare(lt_exec *r, lt_prepared *p, const lt_model *m, int64_t max_seq,
                                   bool pack);
/* The weights may have changed (lt_model.version): what was made of them is made anew, in the same
 * places. *changed: they had. Nothing of r may be in its queue. */
LT_MUST_USE lt_err lt_exec_refresh(lt_exec *r, lt_prepared *p, bool *changed);
/* How far the rows of r->rope lie behind their positions in a call that brings n tokens of a text,
 * after which it has `end`: 0 for tokens that come alone and wherever the length of a text decides
 * nothing, else max_seq; lt_exec_rope_fill then makes the rows for that length. */
int64_t lt_exec_rope_rows(const lt_model_spec *spec, int64_t max_seq, int64_t n, int64_t end);
LT_MUST_USE lt_err lt_exec_rope_fill(lt_exec *r, int64_t max_seq, int64_t end);
size_t lt_exec_tables_bytes(const lt_model_spec *spec, int64_t max_seq); /* Of `tables` above. */
void lt_exec_release(lt_exec *r, lt_prepared *p);                        /* Closes the queue too. */

#endif
