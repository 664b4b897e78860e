/* decode_q.cu: rows, by id, of a table in the block types of files (tensor/block.h): the
 * embedding of a quantised model, and, with ids 0, 1, 2, ..., the weights of a quantised model
 * beside which adapters are trained (model/files/decoded.h).
 *
 * SHAPES    table (V, C) of TYPE; ids (rows) int32; y (rows, C) of DTYPE; C whole blocks. Rows of
 *           y and of pos_table are 16-byte aligned.
 * PART      table holds ids first .. first + n_ids - 1; rows of other ids are 0.
 * MAP       a thread decodes 32 neighbours of a row: one block of 32, or a part of a larger one.
 * BOUND     2 bytes per element (bf16) are written, and 0.56 (Q4_K, NF4) to 1.06 (Q8_0) read.
 * NUMERICS  the F32 numbers of lt_block_decode, rounded once, at the store. Products and
 *           differences are rounded separately, as ggml and bitsandbytes round them. */
#include "common/early.cuh"
#include "common/late.cuh"
#include "kernels/cuda/ops/decode_q_args.h"
#ifndef NF4
#define NF4 0 /* 1: NF4; 2: NF4_DOUBLE */
#endif
#if NF4 == 0
#include "common/blocks.cuh"
#endif

#define THREADS 128
#define GROUP   32
#define PIECE   VEC_ELEMS(DTYPE)

#if NF4
/* Decode half a block, whose bytes are at codes and whose scale is d. The high half of a byte is
 * the first of its two numbers. */
INLINE void decode_half(float *x, const u8 *codes, float d, const float *values) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        x[i] = __fmul_rn(values[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15], d);
    }
}
#if NF4 == 1
INLINE void decode(float *x, const lt_cuda_decode_q_args *a, i64 id, int group,
                   const float *values) {
    const u8 *const block = a->table + id * a->row_bytes + group / 2 * 36;
    decode_half(x, block + 4 + group % 2 * 16, *(const float *)block, values);
}
#else
INLINE void decode(float *x, const lt_cuda_decode_q_args *a, i64 id, int group,
                   const float *values) {
    const u8 *const block = a->table + id * a->row_bytes + group / 2 * 33;
    const i64 of_matrix = id * (a->groups / 2) + group / 2;
    const float of_group = a->scales[257 + of_matrix / 256],
                d = __fadd_rn(__fmul_rn(a->scales[1 + block[0]], of_group), a->scales[0]);
    decode_half(x, block + 1 + group % 2 * 16, d, values);
}
#endif
#else
INLINE void decode(float *x, const lt_cuda_decode_q_args *a, i64 id, int group,
                   const float *values) {
    group32 g;
    (void)values;
    unpack_group(&g, a->table + id * a->row_bytes, group);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        x[i] = __fadd_rn(__fmul_rn(g.scale[i / 16], (float)((int)g.u[i] - OFFSET)), -g.least);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) decode_q(const lt_cuda_decode_q_args a) {
    const i64 item = (i64)blockIdx.x * THREADS + threadIdx.x, row = item / a.groups;
    const int group = (int)(item % a.groups), first = GROUP * group;
    float x[GROUP];
#if NF4
    /* In shared memory, because lanes read different values, which reads of arguments would
     * serialise. */
    __shared__ float values[16];
    if (threadIdx.x < 16) {
        values[threadIdx.x] = a.values[threadIdx.x];
    }
    __syncthreads();
#else
    const float *const values = 0;
#endif
    wait_for_others();
    if (row >= a.rows) {
        return;
    }
    const int id = late_id(a.ids[row], a.late) - a.first;
    const bool held = id >= 0 && id < a.n_ids;
    if (held) {
        decode(x, &a, id, group, values);
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        x[i] = held ? __fmul_rn(a.scale, x[i]) : 0.0f;
    }
    if (a.pos_table && held) {
        const DTYPE *const pos = a.pos_table + a.positions[row] * a.ld_pos + first;
        for (int i = 0; i < GROUP; i++) {
            x[i] = __fadd_rn(x[i], TO_F32(DTYPE, pos[i]));
        }
    }
    DTYPE *const y = a.y + row * a.ldy + first;
#pragma unroll
    for (int i = 0; i < GROUP; i += PIECE) {
        *(uint4 *)(y + i) = PACK(DTYPE, x + i);
    }
}
