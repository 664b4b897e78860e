/* decode_args.h: arguments of decode.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_DECODE_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_DECODE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    /* q_tokens: tokens per sequence, or the most; window 0: none */
    int batch, q_heads, kv_heads, q_tokens, splits, table_ld, window;
    /* tiles per split; 0: div_up(tiles, splits) */
    int share;
    /* splits that a block of decode_split computes one after another */
    int turns;
    /* where in shared memory the warps' results are combined: after the rings; 0: in their
     * memory */
    int meet;
    /* elements between heads of q and of out */
    int head_ld;
    float scale, softcap;
    const LT_ELEM(elem) * q;
    const LT_ELEM(k_elem) * k;
    const LT_ELEM(v_elem) * v;
    const int *table, *kv_len, *q_start; /* q_start NULL: q_tokens per sequence */
    const float *alibi, *sinks;
    LT_ELEM(elem) * out;
    float *part;            /* (B, G * row tiles, splits, 16, D + 2): O, max, sum */
    long long q_ld, out_ld; /* elements between tokens */
    int result;             /* decode_walk: where in shared memory a split's result is */
    const int *packs;       /* PACKS: (B, 3) */
} lt_attn_decode_args;

/* Sequences of one row that share a tile of 16 rows with all heads of a group. */
#define LT_DECODE_PACK(group) ((group) <= 8 ? 16 / (group) : 1)

/* Contents of a page (CODES and VCODES of decode.cu): 16-bit numbers, e4m3, Q8_0 or Q4_0. */
#define LT_DECODE_ROW_BYTES(width, codes)                                                          \
    ((codes) == 0   ? 2 * (width)                                                                  \
     : (codes) == 1 ? (width)                                                                      \
     : (codes) == 2 ? (width) / 32 * 34                                                            \
                    : (width) / 32 * 18)
/* Dynamic shared memory in bytes. Each of the 4 warps has a ring of tiles of 16 keys of K and V.
 * For codes it has so many tiles that three blocks of heads of 128 fit on an SM of 227 KB. At the
 * end of a split the warps exchange O, maximum and sum of 16 rows. */
#define LT_DECODE_WARPS 4
#define LT_DECODE_STAGES(width, codes, vcodes)                                                     \
    ((width) <= 64 ? 6 : (codes) > 0 && (vcodes) > 0 ? 4 : (width) <= 128 ? 3 : 2)
#define LT_DECODE_RING_BYTES(width, codes, vcodes)                                                 \
    (LT_DECODE_WARPS * LT_DECODE_STAGES(width, codes, vcodes) * 16 *                               \
     (LT_DECODE_ROW_BYTES(width, codes) + LT_DECODE_ROW_BYTES(width, vcodes)))
#define LT_DECODE_RESULT_BYTES(width) (16 * ((width) + 2) * 4)
#define LT_DECODE_MEET_BYTES(width)   (LT_DECODE_WARPS * LT_DECODE_RESULT_BYTES(width))

static_assert(sizeof(lt_attn_decode_args) == 168, "the same on host and device");

#endif
