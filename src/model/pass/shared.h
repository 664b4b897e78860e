/* shared.h: computes tokens that rows of a batch have in common only once.
 *
 * The two rows of a pair have the same prompt, and so have the answers of a group of GRPO. The
 * tokens of the prompt see the same tokens in each of these rows, so everything that is computed
 * for them is the same. Tokens after the last label of a row have no effect. So a pass over a
 * batch of (B, T) tokens has R rows, one for each token that is needed, and no padding:
 *
 *     batch (B, T)         R = 7 rows                attention, (B, T)
 *     a b c p q .          a b c p c r s             a b c p . .
 *     a b c r s t                                    a b c r s .
 *
 * (a b c is a prompt; c has the label p in one row and r in the other, and q and t have none.)
 *
 * Only attention reads other tokens than its own. It works on the batch as it was given: q, k and v
 * of the R rows are gathered into it, and its results are gathered back. In the backward pass the
 * gradient of a row is the sum over the tokens that it stands for. The result is read only from
 * the first of these, so the gradients of the others' results are 0.
 *
 * Tokens are shared if all tokens before them are equal, too; only consecutive rows are compared.
 * A token that has a label is not shared, so the row of a label is unique.
 *
 * The gradients are those of separate rows up to the order of sums. This saves all products,
 * norms and activations of the prompts, except for one prompt of each group; attention itself is
 * not cheaper. (For pairs: Wang, Hegde 2024, arXiv:2410.20305; for groups of answers: Liu et al.
 * 2025, arXiv:2506.05433, which use a mask for attention instead.)
 *
 * Rows are not shared in models with experts, whose load counts every token, nor in passes that
 * divide the tokens of each row among ranks (context.h), identify a row by its place (dropout,
 * several adapters), or run a part of the layers. */
#ifndef LT_MODEL_SHARED_H
#define LT_MODEL_SHARED_H

#include "base/arena.h"
#include "model/blocks/exec.h"
#include "model/pass/pass.h"

/* Tables of a batch, I32, one after the other:
 *     spread   (B T)    the row of each token; -1: it is not needed
 *     first    (B T)    the same for the first token of a row; -1 for others
 *     tokens   (B T)    the tokens of row 0, row 1, ...
 *     start    (R + 1)  where the tokens of each row begin
 *     place    (R)      the first token of each row; -1: the row only pads a tile */
typedef struct {
    int32_t *spread, *first, *tokens, *start, *place;
} lt_shared_tables;

/* Elements of the tables for R rows, and of tables that have room for any batch. */
static inline int64_t lt_shared_elements(int64_t n_tokens, int64_t rows) {
    return 3 * n_tokens + 2 * rows + 1;
}
static inline int64_t lt_shared_room(int64_t n_tokens) {
    return lt_shared_elements(n_tokens, n_tokens);
}
lt_shared_tables lt_shared_tables_in(int32_t *memory, int64_t n_tokens, int64_t rows);

/* Write the tables of a batch to memory of lt_shared_room elements. Returns R, a multiple of
 * `step`; 0: too little would be saved, and rows are not shared. */
int64_t lt_shared_plan(int32_t *memory, const lt_pass_batch *b, int64_t step);

/* The rows of a pass's batch. */
typedef struct lt_shared {
    int64_t batch, seq, rows;      /* B, T, R; 0: rows are not shared. */
    int32_t *memory;               /* The tables, on the device. */
    void *qkv, *out, *dqkv, *dout; /* Scratch of attention, (B T, columns). */
} lt_shared;

/* Whether a pass with these options may share rows. */
bool lt_shared_possible(const lt_pass_options *o, const lt_model_spec *s);
/* The scratch of an attention call. */
void lt_shared_carve(lt_shared *x, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                     lt_arena *a);

/* The attention op: args are those of the R rows; lse and delta have room for (B, H, T). */
LT_MUST_USE lt_err lt_shared_attention_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_shared_attention_bwd(lt_exec *r, const lt_attention_bwd_args *a);

#endif
