/* ring_args.h: arguments of gemv_ring.cu and gemm_q_ring.cu (beside.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_RING_ARGS_H
#define LT_KERNELS_CUDA_GEMM_RING_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * x;
    const void *w;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldx, ldw, ldy;
    int n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
    const LT_ELEM(elem) * add;       /* With NORM. */
    LT_ELEM(elem) * sum, *normed;
    const LT_ELEM(PARAM) * gain;
    float *rstd;
    long long ld_add, ld_sum, ld_normed;
    float eps, gain_offset;
    int q_heads, kv_heads, dim; /* With TAIL 2. */
    const int *positions, *slots;
    const float *table;
    LT_ELEM(elem) * k_pages, *v_pages;
    LT_ELEM(elem) * act; /* With TAIL 1. */
    long long ld_act;
} lt_gemv_ring_args;

/* Dynamic shared memory: first the rings of the warps, with STAGES stages of this many bytes each
 * (gemv_ring.cu; gemm_q_ring.cu: one tile); then, in gemm_q_ring.cu, x in 8 bits, each of whose
 * rows is padded by 64 bytes of numbers and 16 of factors; then what beside.cuh lays out: x in
 * pieces of 16 bytes (HELD), with rows padded by 64 bytes; the norm's gains and one float per
 * piece; the angles and the slot of each row. */
#define LT_RING_STAGE_BYTES(unroll, columns) ((unroll) * (columns)*512)
#define LT_RING_EIGHT_BYTES(m, tiles, factor_bytes)                                                \
    ((m) * ((tiles)*128 + 64 + (tiles) * (factor_bytes) + 16))
#define LT_RING_X_PITCH(k)             (((k) + 7) / 8 + 4)
#define LT_RING_X_BYTES(m, k)          ((m)*LT_RING_X_PITCH(k) * 16)
#define LT_RING_GAIN_BYTES(k, of_gain) ((k) * (of_gain))
#define LT_RING_PART_FLOATS(m, k)      ((m) * ((k) / 8))
#define LT_RING_ANGLE_FLOATS(m, dim)   ((m) * (dim))
#define LT_RING_SLOT_INTS(m)           (m)

static_assert(sizeof(lt_gemv_ring_args) == 216, "the same on host and device");

#endif
