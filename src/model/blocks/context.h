/* context.h: context parallelism: the tokens of each sequence are divided over a group of ranks.
 *
 * A sequence of T tokens is cut into 2n equal pieces. Rank r of n holds pieces r and 2n - 1 - r,
 * one after the other, so that causal attention costs every rank the same:
 *
 *     n = 3     pieces  0 1 2 3 4 5         rank 0: 0 5    rank 1: 1 4    rank 2: 2 3
 *
 * Everything but attention works on a row alone. Attention needs the keys and values of other
 * ranks, and gets them in one of three ways:
 *
 *   gather    Keys and values of all ranks are gathered, one layer at a time. Each piece of queries
 *             attends to the keys up to its own end. The forward pass has the bits of one rank if
 *             pieces are whole tiles. (Llama 3, arXiv:2407.21783, 3.3.2)
 *   ulysses   An all-to-all turns "some tokens of all heads" into "all tokens of some heads", and
 *             another turns the result back. It has the bits of one rank; the number of ranks must
 *             divide that of the heads. (Jacobs et al. 2023, arXiv:2309.14509)
 *   ring      Keys and values go round a ring while attention uses those that are here; results are
 *             merged by their log-sum-exp. It holds the keys of two ranks at any time. (Liu et al.
 *             2023, arXiv:2310.01889)
 *
 * Bytes that a rank sends for a layer of G key heads of D columns, rows of R tokens (of T / n
 * each), elements of e bytes, k = 2 R G D e:
 *
 *             forward              backward
 *   gather    (n - 1) k            (n - 1) k again, then (n - 1) k in F32
 *   ring      (n - 1) k            (n - 1) k, and n k in F32
 *   ulysses   (1 - 1/n) R (2 H + 2 G) D e      the same, and as much again to send q, k, v and out
 *                                              anew
 *
 * Document starts are indices in the whole sequence. */
#ifndef LT_MODEL_CONTEXT_H
#define LT_MODEL_CONTEXT_H

#include "base/arena.h"
#include "model/blocks/exec.h"
#include "model/pass/pass.h"

typedef struct lt_context {
    lt_group *group;
    lt_context_kind kind;
    int n, rank;
    bool begun; /* The gather of a backward pass has begun. */
    /* Scratch of one attention call; the kind determines which are used. */
    void *mine, *sent, *received, *whole, *dwhole, *part, *out, *dout;
    float *acc, *dq_acc, *lse, *travel[2];
    int32_t *starts;     /* Document starts, see context_ring.c. */
    int32_t *all_starts; /* (B, T) of whole sequences. */
} lt_context;

/* Piece `half` (0 or 1) of rank r of n, among the 2n. */
static inline int lt_context_piece(int n, int r, int half) {
    return half == 0 ? r : 2 * n - 1 - r;
}

/* Whether the group can divide this model's attention in this way. ARG names the numbers. */
LT_MUST_USE lt_err lt_context_check(const lt_model_spec *s, const lt_pass_options *o);
/* Take the scratch, and set up the fields that do not depend on memory. No-ops without a group. */
void lt_context_carve(lt_context *c, const lt_model_spec *s, lt_dtype dtype,
                      const lt_pass_options *o, lt_arena *a);
void lt_context_set(lt_context *c, const lt_pass_options *o);

/* The attention op over whole sequences. The arguments are those of this rank's rows. Without a
 * context (r->context NULL) these functions are the ops themselves. */
LT_MUST_USE lt_err lt_context_attention_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_context_attention_bwd(lt_exec *r, const lt_attention_bwd_args *a);
/* May be called before lt_context_attention_bwd, with the arguments of the forward pass: keys and
 * values of other ranks are then transferred while other work is computed in between. */
LT_MUST_USE lt_err lt_context_attention_begin(lt_exec *r, const lt_attention_args *a);

/* This rank's columns of rows (n_rows, seq) of 4-byte values, in place: what was at [row * seq + t]
 * of the whole goes to [row * (seq / n) + local t]. seq must be a multiple of 2n. */
void lt_context_take(void *rows, int64_t n_rows, int64_t seq, int n, int rank);
/* The reverse: whole rows (n_rows, seq) from those of all ranks, by_rank (n, n_rows, seq / n). */
void lt_context_put(void *rows, const void *by_rank, int64_t n_rows, int64_t seq, int n);

/* ---- What the three ways share (context.c) ---- */

/* x (B, T, heads, D), with adjacent heads, as (B, T, heads * D). */
lt_tensor lt_context_rows(const lt_tensor *x);
/* Contiguous (B, T, W) over memory. */
lt_tensor lt_context_block(void *data, lt_dtype dtype, int64_t B, int64_t T, int64_t W);
/* Columns [first, first + n) of the last dimension; lt_context_tokens: of the dimension before
 * it. */
lt_tensor lt_context_cols(const lt_tensor *x, int64_t first, int64_t n);
lt_tensor lt_context_tokens(const lt_tensor *x, int64_t first, int64_t n);
/* Columns of (B, T, W) as (B, T, heads, d). */
lt_tensor lt_context_heads(const lt_tensor *x, int64_t first, int64_t heads, int64_t d);
LT_MUST_USE lt_err lt_context_copy(lt_exec *r, lt_tensor y, lt_tensor x);
/* Lines (B, H, n) F32 without gaps, which attention on GPUs wants, over memory. */
lt_tensor lt_context_lines(const lt_tensor *of, void *data, int64_t n);
/* Columns [first, first + n) of starts (B, T) I32, without gaps in memory. */
LT_MUST_USE lt_err lt_context_some_starts(lt_exec *r, lt_tensor *out, int32_t *memory,
                                          const lt_tensor *starts, int64_t first, int64_t n);
/* Join by_rank (n, B, T, W), the rows of all ranks, to whole (B, n T, W) in the sequence's order;
 * and the reverse. */
LT_MUST_USE lt_err lt_context_join(lt_exec *r, lt_tensor whole, void *by_rank, lt_dtype dtype);
LT_MUST_USE lt_err lt_context_part(lt_exec *r, void *by_rank, lt_dtype dtype, lt_tensor whole);
/* Whole document starts (B, n T) of this batch; absent if there are none. */
LT_MUST_USE lt_err lt_context_starts(lt_exec *r, lt_tensor *out);

/* context_gather.c, context_ulysses.c, context_ring.c. */
LT_MUST_USE lt_err lt_context_gather_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_context_gather_begin(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_context_gather_bwd(lt_exec *r, const lt_attention_bwd_args *a);
LT_MUST_USE lt_err lt_context_ulysses_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_context_ulysses_bwd(lt_exec *r, const lt_attention_bwd_args *a);
LT_MUST_USE lt_err lt_context_ring_fwd(lt_exec *r, const lt_attention_args *a);
LT_MUST_USE lt_err lt_context_ring_bwd(lt_exec *r, const lt_attention_bwd_args *a);

#endif
