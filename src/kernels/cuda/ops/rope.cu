/* rope.cu — rotary embedding of heads. With the norm of each head before it: qk_norm.cu.
 *
 * SHAPES    x, y (rows, H, D) of DTYPE, heads of a wider row too; positions (rows) int32; table (P,
 *           D/2, 2) fp32 cos, sin. Halves convention: y[i] = x[i] c - x[i + D/2] s, y[i + D/2] =
 *           x[i + D/2] c + x[i] s. Whole heads rotate (N = D); D = LANES * 2 W. Else: rope_any.cu.
 * MAP       LANES threads per head; a thread holds W elements of the first half and the W of the
 *           second half that rotate with them.
 * MOVEMENT  x ──2 x 16 B──▶ registers ─▶ rotate with table[position] (L2: H heads share it) ──▶ y
 * BOUND     4 bytes per element (bf16).
 * PAGES     rope_kv: heads of q, k and v of a row that decodes: q and k are rotated in place, and
 *           k and v are also stored in the pages, in the slots of their rows; EIGHT: as e4m3,
 *           rounded from what y holds, as kv_write would. Positions, slots and table are read
 *           before the earlier kernels are done (fuse.h).
 * REFS      Su et al. 2021, arXiv:2104.09864. */
#include "common/fp8.cuh"
#include "ops/rope.cuh"
#include "kernels/cuda/ops/rope_args.h"

#ifndef EIGHT
#define EIGHT 0
#endif
#if EIGHT
typedef u8 page_elem;
#else
typedef DTYPE page_elem;
#endif

#define THREADS       256
#define HEADS_AT_ONCE (THREADS / LANES)

extern "C" __global__ void __launch_bounds__(THREADS) rope(const lt_cuda_rope_args w) {
    const i64 head = (i64)blockIdx.x * HEADS_AT_ONCE + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    float a[W], b[W];
    wait_for_others();
    if (head >= w.n_heads) {
        return;
    }
    const DTYPE *const x = w.x + row_at(w.at.x, head, w.at.n) + lane * W;
    DTYPE *const y = w.y + row_at(w.at.y, head, w.at.n) + lane * W;
    piece_load_stream(a, x);
    piece_load_stream(b, x + D / 2);
    rotate(a, b, w.table, w.positions[(u32)head / (u32)w.at.n.n1], lane, w.sign);
    piece_store(y, a);
    piece_store(y + D / 2, b);
}

#if EIGHT
INLINE void page_store(page_elem *page, const float *x) {
#pragma unroll
    for (int i = 0; i < W; i += 4) {
        float y[4];
        for (int j = 0; j < 4; j++) {
            y[j] = TO_F32(DTYPE, FROM_F32(DTYPE, x[i + j]));
        }
        *(u32 *)(page + i) = f8_pack4(y[0], y[1], y[2], y[3], 0);
    }
}
#else
#define page_store piece_store
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_kv(const __grid_constant__ lt_rope_kv_args w) {
    const int head = (int)blockIdx.x * HEADS_AT_ONCE + (int)threadIdx.x / LANES,
              heads = w.q_heads + 2 * w.kv_heads;
    const int lane = threadIdx.x % LANES, row = head / heads, h = head % heads,
              rotated = w.q_heads + w.kv_heads;
    const bool there = row < w.rows;
    const int position = there ? w.positions[row] : 0, slot = there ? w.slots[row] : -1;
    DTYPE *const y = w.y + row * w.ld + h * D + lane * W;
    float a[W], b[W];

    wait_for_others();
    if (!there) {
        return;
    }
    piece_load_stream(a, y);
    piece_load_stream(b, y + D / 2);
    if (h < rotated) {
        rotate(a, b, w.table, position, lane, 1.0f);
        piece_store(y, a);
        piece_store(y + D / 2, b);
    }
    if (h >= w.q_heads && slot >= 0) {
        const int g = h < rotated ? h - w.q_heads : h - rotated;
        page_elem *const page = (page_elem *)(h < rotated ? w.k_pages : w.v_pages) +
                                ((i64)slot * w.kv_heads + g) * D + lane * W;
        page_store(page, a);
        page_store(page + D / 2, b);
    }
}
