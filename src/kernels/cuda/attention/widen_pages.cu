/* widen_pages.cu: the pages that prompts attend to, from CODES (K) and VCODES (V; coded.cuh, 0:
 * numbers already) to 16 bits, side by side, for fwd_sm90.cu, which the copy engine feeds with
 * 16-bit pages.
 *
 * SHAPES    pages (n, page, G, D) of K and of V in codes; wide pages of the same shape in
 *           DTYPE, as many as the sequences of at least q_least rows have; D a multiple of 64.
 * MAP       block x makes wide page x of K or V (y). Its first warp finds the sequence whose page
 *           that is, by a running sum of pages over sequences; a thread takes 8 numbers at a time.
 * MOVEMENT  HBM codes ──8 bytes a thread──▶ floats ──16 bytes──▶ HBM (L2: fwd_sm90.cu reads soon)
 * BOUND     memory: 3 bytes a number, once a call, where the attention of a prompt of T rows makes
 *           2 T products of each: 3 % of its time from 2,000 rows on.
 * NUMERICS  e4m3 exactly, blocks rounded once. Rows after a sequence's last token are zeros.
 * WINDOW    pages before the first key that any row sees are left out, in whole tiles of keys. */
#include "attention/coded.cuh"
#include "common/early.cuh"
#include "kernels/cuda/attention/widen_pages_args.h"

#ifndef VCODES
#define VCODES CODES
#endif
#define THREADS 256
#define AT_ONCE 8
#define TILE    128 /* Most keys that fwd_sm90.cu reads at once. */
#define ALL     0xffffffffu

/* The sequence to which wide page x belongs, or -1; its index among the sequence's pages; and the
 * first of its keys that any row sees. */
typedef struct {
    int sequence, index, seen;
} owner;

INLINE void owner_find(owner *out, const lt_attn_widen_pages_args *a, int x) {
    const int lane = (int)threadIdx.x;
    int before = 0;
    for (int b0 = 0; b0 < a->sequences && before <= x; b0 += 32) {
        const int b = b0 + lane, rows = b < a->sequences ? a->q_start[b + 1] - a->q_start[b] : 0;
        const int keys = rows >= a->q_least ? a->kv_len[b] : 0,
                  pages = (keys + a->page - 1) / a->page;
        int sum = pages;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(ALL, sum, d);
            sum += lane >= d ? other : 0;
        }
        const int first = before + sum - pages;
        if (x >= first && x < first + pages) {
            out->sequence = b;
            out->index = x - first;
            out->seen = a->window > 0 && a->window < keys - rows ? keys - rows - (int)a->window + 1
                                                                 : 0;
        }
        before += __shfl_sync(ALL, sum, 31);
    }
}

/* Widen n numbers of the pool starting at `first`; from `known` on they become zeros. */
INLINE void widen(DTYPE *dst, const u8 *pages, i64 first, int n, int known, const int codes) {
    const u8 *const src = pages + (codes == 0 ? 2 * first : CODED_SIZE(codes, first));
    for (int i = (int)threadIdx.x * AT_ONCE; i < n; i += THREADS * AT_ONCE) {
        float f[AT_ONCE] = {0.0f};
        if (i < known && codes == 0) {
            *(uint4 *)(dst + i) = *(const uint4 *)((const DTYPE *)src + i);
            continue;
        }
        if (i < known) {
            coded_eight(f, src, i, codes);
        }
        *(uint4 *)(dst + i) = PACK(DTYPE, f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    widen_pages(const __grid_constant__ lt_attn_widen_pages_args a) {
    __shared__ owner mine;
    const int x = (int)blockIdx.x, which = (int)blockIdx.y;

    if (threadIdx.x == 0) {
        mine.sequence = -1;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        owner_find(&mine, &a, x);
    }
    __syncthreads();
    wait_for_others();
    if (mine.sequence < 0 || (mine.index + 1) * a.page <= mine.seen / TILE * TILE) {
        return;
    }
    if (threadIdx.x == 0 && which == 0) {
        a.wide_table[(i64)mine.sequence * a.columns + mine.index] = x;
    }
    const i64 size = (i64)a.page * a.row, page = a.table[mine.sequence * a.table_ld + mine.index];
    const int left = a.kv_len[mine.sequence] - mine.index * a.page;
    DTYPE *const dst = a.wide[which] + x * size;
    if (which == 0) {
        widen(dst, a.coded[0], page * size, a.page * a.row, left * a.row, CODES);
    } else {
        widen(dst, a.coded[1], page * size, a.page * a.row, left * a.row, VCODES);
    }
}
