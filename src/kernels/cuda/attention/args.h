/* args.h: arguments of attention's kernels on tensor cores (mask.cuh, bwd.cuh, sm80.cuh). */
#ifndef LT_KERNELS_CUDA_ATTENTION_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_ARGS_H

#include "kernels/cuda/common/args.h"

/* Common to forward and backward; B sequences of T queries and up to S keys, H query and G key
 * heads. */
typedef struct {
    int batch, q_heads, kv_heads, q_tokens, kv_tokens;
    int window; /* with WINDOW */
    /* number of (batch, head) pairs processed together, so that their K and V stay in L2 */
    int section;
    float scale;          /* factor of q.k */
    float softcap;        /* with SOFTCAP */
    const int *kv_len;    /* (B), or NULL: all kv_tokens */
    const int *doc_start; /* (B, T), with DOC */
    const float *alibi;   /* (H): slopes, with ALIBI */
    const float *sinks;   /* (H), with SINKS */
    float *lse;           /* (B, H, T); may be NULL in the forward pass */
    /* (4), zeros before and after each call: number of tiles drawn and of blocks finished;
     * backward: of pieces of dQ drawn and of warps finished */
    unsigned *counter;
    /* PAGED: sequence b has rows q_start[b] .. q_start[b + 1] of q and out. Sequences of fewer than
     * q_least rows are left to other kernels, and none has more than q_tokens; their keys are in
     * pages table[b][..]. */
    const int *q_start, *table;
    int table_ld, q_least;
    void *out; /* Forward: where rows are stored directly from registers. */
    long long out_ld, out_head_ld, out_batch_ld;
    int out_width;
} lt_attn_args;

/* Strides in elements; the D elements of a row are contiguous. */
typedef struct {
    long long token, head, batch;
} lt_attn_strides;

/* Backward on Hopper. Rows are (b, h, t) with t padded to `padded`, a multiple of 128: index (b H +
 * h) padded + t. */
typedef struct {
    lt_attn_args a;
    int padded;
    float *lse2;  /* log-sum-exp in units of log2; +inf in rows that see nothing or do not exist */
    float *delta; /* sum over D of dO O */
    float *unit;  /* integer units of dq_acc that stand for 1.0 of dQ (before `scale`) */
    /* int32 (places, H / G, padded / 64, D / 64): pieces of 64 x 64, each in the register order of
     * a warpgroup */
    void *dq_acc;
    /* (rows / 64, D / 64, 4): how many tiles of keys have been added to a piece; zeros at the
     * end */
    unsigned *added;
    unsigned *bounds;  /* (B, G, 2): bits of max |K|, max |V row|^2 */
    unsigned *cleared; /* (B, G): how often the sums of its pieces have been reset to zero */
    int width;         /* D; HEAD_DIM is at least as large */
    void *dq;
    lt_attn_strides dq_strides;
    void *dk, *dv; /* where rows are stored directly from registers */
    lt_attn_strides dk_strides, dv_strides;
    int places; /* number of buffers for sums of dQ, which (batch, key head) pairs use in turn */
} lt_attn_bwd_args;

/* bwd_edges.cu: bounds of K's and V's rows; deltas of O's and dO's; sinks' gradient. */
typedef struct {
    lt_attn_bwd_args w;
    const LT_ELEM(elem) * k, *v;
    lt_attn_strides sk, sv;
} lt_attn_bwd_bounds_args;
typedef struct {
    lt_attn_bwd_args w;
    const LT_ELEM(elem) * o, *d_o;
    lt_attn_strides so, sd;
} lt_attn_bwd_delta_args;
typedef struct {
    lt_attn_bwd_args w;
    float *dsinks; /* (H) */
} lt_attn_bwd_sinks_args;

/* Forward and backward on mma.sync; every row begins on 16 bytes. */
typedef struct {
    lt_attn_args a;
    const LT_ELEM(elem) * q, *k, *v, *d_o;
    LT_ELEM(elem) * o, *dq, *dk, *dv;
    float *delta; /* (B, H, T): sum over D of dO O */
    lt_attn_strides sq, sk, sv, so, sdo, sdq, sdk, sdv;
    int width; /* D; WIDTH is at least as large */
} lt_attn_sm80_args;

/* Dynamic shared memory in bytes. fwd_sm90.cu: Q of each consumer and slot, and O if the copy
 * engine stores it; K and V of each stage; barriers and tiles. */
#define LT_ATTN_FORWARD_PLACES 512
#define LT_ATTN_FORWARD_BYTES(width, bn, consumers, o_direct, q_slots, stages)                     \
    (1024 + 64 * (width)*2 * (consumers) * ((q_slots) + !(o_direct)) +                             \
     (bn) * (width)*4 * (stages) + LT_ATTN_FORWARD_PLACES)
/* Kernels on mma.sync: a row of `width` columns; fwd_sm80.cu: Q, and K and V of a step;
 * bwd_sm80.cu: two tiles of rows, twice two tiles of a step, and their log-sum-exps and deltas. */
#define LT_ATTN_SM80_LINE(width) (((width) + 63) / 64 * 128)
#define LT_ATTN_SM80_FORWARD_BYTES(rows, step, width)                                              \
    (((rows) + 2 * (step)) * LT_ATTN_SM80_LINE(width))
#define LT_ATTN_SM80_BACKWARD_BYTES(rows, step, width)                                             \
    ((2 * (rows) + 4 * (step)) * LT_ATTN_SM80_LINE(width) + (step)*16)

/* bwd_sm90.cu: tiles of keys (of K and V; two if dQ is not computed), stages of Q and dO, dS and
 * dQ, log-sum-exps, deltas (and units); barriers and tiles; zeros. */
#define LT_ATTN_BWD_PLACES 448
#define LT_ATTN_BWD_ZEROES 1024
#define LT_ATTN_BWD_BYTES(width, bn, bm, cluster, stages, dq)                                      \
    ((bn) * (width)*2 * ((dq) ? 2 : 4) + (stages) * (2 * (bm) * (width)*2 + 2 * (bm)*4) +          \
     ((dq) ? 2 * (bn) * (cluster) * (bm)*2 + 2 * 64 * 64 * 4 + (stages) * (bm)*4 : 0) +            \
     LT_ATTN_BWD_PLACES + LT_ATTN_BWD_ZEROES)
/* bwd_dq_sm90.cu: rings of either width; barriers and tiles. */
#define LT_ATTN_BWD_DQ_RINGS  (192 << 10)
#define LT_ATTN_BWD_DQ_PLACES 512
#define LT_ATTN_BWD_DQ_BYTES  (1024 + LT_ATTN_BWD_DQ_RINGS + LT_ATTN_BWD_DQ_PLACES)
/* bwd_wide_sm90.cu: tiles of rows, stages of a step's tiles, with OF=1 two places for P;
 * log-sum-exps and deltas; barriers and tiles. */
#define LT_ATTN_BWD_WIDE_PLACES 256
#define LT_ATTN_BWD_WIDE_BYTES(width, by_keys)                                                     \
    (1024 + 64 * (width)*2 * ((by_keys) ? 6 : 7) + ((by_keys) ? 2 * 64 * 64 * 4 : 0) +             \
     2 * 2 * 64 * 4 + LT_ATTN_BWD_WIDE_PLACES)

static_assert(sizeof(lt_attn_args) == 152, "the same on host and device");
static_assert(sizeof(lt_attn_strides) == 24, "the same on host and device");
static_assert(sizeof(lt_attn_bwd_args) == 328, "the same on host and device");
static_assert(sizeof(lt_attn_bwd_bounds_args) == 392, "the same on host and device");
static_assert(sizeof(lt_attn_bwd_delta_args) == 392, "the same on host and device");
static_assert(sizeof(lt_attn_bwd_sinks_args) == 336, "the same on host and device");
static_assert(sizeof(lt_attn_sm80_args) == 424, "the same on host and device");

#endif
