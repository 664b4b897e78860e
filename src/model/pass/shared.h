/* shared.h: what rows of a batch have in common is computed once.
 *
 * The two rows of a pair have one prompt, and so have the answers of a group of GRPO. A prompt's
 * tokens see the same tokens in each of these rows, so everything that is computed of them is the
 * same. And what stands behind the last label of a row decides nothing. So a pass over a batch of
 * (B, T) tokens holds R rows, one of each token that is needed, and no padding:
 *
 *     batch (B, T)         R = 7 rows                attention, (B, T)
 *     a b c p q .          a b c p c r s             a b c p . .
 *     a b c r s t                                    a b c r s .
 *
 * (a b c is a prompt; c has the label p in one row and r in the other, and q and t have none.)
 *
 * Only attention reads other tokens than its own. It works on the batch as it was given: q, k and v
 * of the R rows are gathered into it, and its results are gathered back. In the backward pass the
 * gradient of a row is the sum over the tokens that it stands for. A token of the result is read
 * once, from the first of these, so the gradients of the others' results are 0.
 *
 * Tokens are the same where all before them are, too, which is looked for between neighbours. A row
 * shares no token of its own that has a label, so a label's row is known.
 *
 * The gradients are those of separate rows up to the order of sums. What is saved are all products,
 * norms and activations of prompts but one of each group; attention itself is not cheaper. (For
 * pairs: Wang, Hegde 2024, arXiv:2410.20305; for groups of answers: Liu et al. 2025,
 * arXiv:2506.05433, which give attention a mask instead.)
 *
 * Not shared are rows of models with experts, whose load counts every token, and of passes that
 * divide each row's tokens over ranks (context.h), know a row by its place (dropout, several
 * adapters), or run a part of the layers. */
#ifndef LT_MODEL_SHARED_H
#define LT_MODEL_SHARED_H

#include "base/arena.h"
#include "model/blocks/exec.h"
#include "model/pass/pass.h"

/* Tables of a batch, I32, one behind the other:
 *     spread   (B T)    the row of each token; -1: it is not needed
 *     first    (B T)    the same of the first token of a row, -1 of others
 *     tokens   (B T)    the tokens of row 0, row 1, ...
 *     start    (R + 1)  where those of each row begin
 *     place    (R)      the first token of each row; -1: of a row that only fills up a tile */
typedef struct {
    int32_t *spread, *first, *tokens, *start, *place;
} lt_shared_tables;

/* Elements of tables for R rows, and in which any batch finds room. */
static inline int64_t lt_shared_elements(int64_t n_tokens, int64_t rows) {
    return 3 * n_tokens + 2 * rows + 1;
}
static inline int64_t lt_shared_room(int64_t n_tokens) {
    return lt_shared_elements(n_tokens, n_tokens);
}
lt_shared_tables lt_shared_tables_in(int32_t *memory, int64_t n_tokens, int64_t rows);

/* Write the tables of a batch to memory of lt_shared_room elements. Returns R, a multiple of
 * `step`; 0: too little would be saved, and rows are computed one by one. */
int64_t lt_shared_plan(int32_t *memory, const lt_pass_batch *b, int64_t step);

/* The rows of a pass's batch. */
typedef struct lt_shared {
    int64_t batch, seq, rows;      /* B, T, R; 0: rows are not shared. */
    int32_t *memory;               /* The tables, on the device. */
    void *qkv, *out, *dqkv, *dout; /* Scratch of attention, (B T, columns). */
} lt_shared;

/* May a pass with these options share rows? */
bool lt_shared_possible(const lt_pass_options *o, const lt_model_spec *s);
/* The scratch of an attention call. */
void lt_shared_carve(lt_shared *x, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                     lt_arena *a);

/* The attention op: args are those of the R rows; lse and delta have room for (B, H, T). */
LT_MUST_USE lt_err lt_shared_attention_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_shared_attention_bwd(lt_exec *r, const lt_attention_bwd_args *a);

#endif
