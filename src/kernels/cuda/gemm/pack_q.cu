/* pack_q.cu: ggml's rows of blocks into rows that gemv_q.cu reads 16 bytes at a time; and rows of blocks as an embedding's rows.
 *
 * SHAPES    src: N rows of K / 32 groups, any alignment. dst: N rows of `row_bytes`: K numbers of BITS bits, then K / GROUP scales, then (MINS) K / 32 minima, both fp16.
 *           8 neighbours of 4 bits are a word: its bytes' low halves are elements 0 .. 3, the high halves 4 .. 7.
 * MAP       a thread a group of 32.
 * NUMERICS  a simple format's numbers are kept; a K format's d * s is rounded to fp16 once (2^-11, less than what 16-bit activations round).
 *@spec sm_80 sm_90a: TYPE=Q8_0 BITS=8 GROUP=32 MINS=0 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q4_0 BITS=4 GROUP=32 MINS=0 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q4_1 BITS=4 GROUP=32 MINS=1 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q5_0 BITS=8 GROUP=32 MINS=0 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q5_1 BITS=8 GROUP=32 MINS=1 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q4_K BITS=4 GROUP=32 MINS=1 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q5_K BITS=8 GROUP=32 MINS=1 DTYPE=bf16
 *@spec sm_80 sm_90a: TYPE=Q6_K BITS=8 GROUP=16 MINS=0 DTYPE=bf16 */
#include "common/blocks.cuh"
#include "common/early.cuh"

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
pack_q(u8 *dst, const u8 *src, i64 rows, int groups, i64 src_bytes, i64 row_bytes) {
    const i64 item = (i64)blockIdx.x * THREADS + threadIdx.x, row = item / groups;
    const int g = (int)(item % groups), cols = groups * 32;
    group32 x;
    if (row >= rows) {
        return;
    }
    u8 *const out = dst + row * row_bytes;
    unpack_group(&x, src + row * src_bytes, g);
    for (int i = 0; i < 32 * BITS / 8; i++) {
        const int at = i / 4 * 8 + i % 4; /* BITS=4: of the low half. */
        out[g * 32 * BITS / 8 + i] = BITS == 8 ? x.u[i] : (u8)(x.u[at & 31] | x.u[(at + 4) & 31] << 4);
    }
    fp16 *const scales = (fp16 *)(out + cols * BITS / 8), *const minima = scales + cols / GROUP;
    for (int i = 0; i < 32 / GROUP; i++) {
        scales[g * (32 / GROUP) + i] = f32_to_fp16(x.scale[i]);
    }
    if (MINS) {
        minima[g] = f32_to_fp16(x.least);
    }
}

/* y (R, 32 groups) = scale * rows ids of the table [+ pos_table rows]. */
extern "C" __global__ void __launch_bounds__(THREADS)
embed_q(DTYPE *y, const u8 *table, const int *ids, const DTYPE *pos_table, const int *positions, i64 rows, int groups, float scale, i64 ldy,
        i64 src_bytes, i64 ld_pos) {
    const i64 item = (i64)blockIdx.x * THREADS + threadIdx.x, row = item / groups;
    const int g = (int)(item % groups);
    group32 x;
    wait_for_others();
    if (row >= rows) {
        return;
    }
    unpack_group(&x, table + (i64)ids[row] * src_bytes, g);
    for (int i = 0; i < 32; i++) {
        float v = scale * (x.scale[i / 16] * (float)((int)x.u[i] - OFFSET) - x.least);
        if (pos_table) {
            v += TO_F32(DTYPE, pos_table[(i64)positions[row] * ld_pos + g * 32 + i]);
        }
        y[row * ldy + g * 32 + i] = FROM_F32(DTYPE, v);
    }
}
