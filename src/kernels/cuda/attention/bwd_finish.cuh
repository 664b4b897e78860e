/* bwd_finish.cuh: dQ from its sums within bwd_sm90.cu: a piece, 64 query rows x 64 columns, as soon
 * as all tiles of keys that see any of the rows have added theirs.
 *
 * COUNT     w->added has 16 bytes a piece, cleared by attn_bwd_prepare. The adding warp also counts
 *           by a bulk add, for which it does not wait. A piece is complete at adds_of, the number
 *           of tiles whose walk (tile_locate) includes its rows. The walk of a tile of keys key ..
 *           last begins at the rows of first_token(key), so that it includes all rows whose last
 *           query's range ends at or after key. It ends after the rows of end_token(last), so that
 *           it includes all rows whose first query's range begins at or before last.
 *           The additions are not ordered before their count: waiting for an addition and then
 *           releasing the count would take microseconds a step. So the sums themselves show whether
 *           they are complete: the first number of each 16 bytes is a multiple of ADDS plus one for
 *           each addition, and is read again until it has all of them. (It counts modulo ADDS, so
 *           ADDS additions that are all missing would not be noticed; but tiles add to a piece at
 *           different places of their walks. Sums of an earlier head cannot be mistaken for these,
 *           because zeroes are released before the first addition.)
 * FINISH    Two warps a block, and at the end those that had the products, draw pieces in order,
 *           read the count until it is complete, read the sums, which are still in the L2, and
 *           write dQ, 16 bytes a lane.
 * PLACES    The sums of a few (batch, key head)s stay in the L2. Where there are more, the n-th has
 *           place n % places. A finishing warp leaves zeroes behind (the copy engine writes them:
 *           stores by the warp took as long as everything else), and a block that would add to the
 *           sums of the n-th waits until all pieces of the one before in that place are finished.
 *           That one is of an earlier section (bwd_tiles.cuh): its tiles were drawn before, and its
 *           pieces before those of any later one. So of all tiles in progress the one drawn first
 *           waits for none, and there is no deadlock. */
#ifndef LT_CUDA_ATTENTION_BWD_FINISH_CUH
#define LT_CUDA_ATTENTION_BWD_FINISH_CUH

#include "attention/bwd_tiles.cuh"

/* finishing warps of a block: two from the beginning, and the consumers' after the last tile */
#define FINISHERS (2 + 4 * CONSUMERS)
#define ZEROES    LT_ATTN_BWD_ZEROES /* bytes of zeros in shared memory */
#define ADDS      8                  /* the number of adds is known modulo this */

/* The number of tiles, at least one, that add to queries 64 i .. 64 i + 63. */
INLINE int adds_of(const lt_attn_args *a, int b, int n_keys, int i) {
    const int lo = range_of(a, b, n_keys, 64 * i).lo, hi = range_of(a, b, n_keys, 64 * i + 63).hi;
    return hi < 0 || lo >= n_keys ? 0 : max_i(0, hi / TILE_KEYS - lo / TILE_KEYS + 1);
}

/* Address of a piece's sums in a buffer. */
INLINE u32 *sums_of(const lt_attn_bwd_args *w, int place_head, int i, int column) {
    return (u32 *)w->dq_acc +
           (((i64)place_head * (w->padded / 64) + i) * (HEAD_DIM / 64) + column) * 4096;
}
/* One thread waits, before adding for a (batch, key head) pair, until its buffer is zero. */
INLINE void place_await(const lt_attn_bwd_args *w, int pair) {
    const int pieces = w->a.q_heads / w->a.kv_heads * div_up(w->a.q_tokens, 64) * (HEAD_DIM / 64);
    if (pair >= w->places) {
        count_await(w->cleared + pair - w->places, (u32)pieces);
        fence_proxy_async_global();
    }
}
/* 16 bytes, read from the L2. */
INLINE int4 load_fresh(const int4 *at) {
    int4 v;
    asm volatile("ld.relaxed.gpu.global.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}
/* A warp finishes a piece. It is in the register order of a warpgroup: four times 16 rows, of which
 * a lane has two, 8 apart. */
INLINE void finish_piece(const lt_attn_bwd_args *w, u32 zeroes, int b_head, int i, int piece) {
    const int lane = (int)threadIdx.x % 32, b = b_head / w->a.q_heads, h = b_head % w->a.q_heads,
              group = w->a.q_heads / w->a.kv_heads;
    const int adds = adds_of(&w->a, b, keys_of(&w->a, b), i), column = piece * 64 + lane % 4 * 8;
    const bool seen = adds > 0;
    const i64 row0 = (i64)b_head * w->padded + i * 64;
    u32 *const first = sums_of(w, b_head % (w->places * group), i, piece);
    const int4 *sums = (const int4 *)first + lane;
    elem *to = (elem *)w->dq + b * w->dq_strides.batch + h * w->dq_strides.head + column;
    const float scales[2] = {w->a.scale / w->unit[row0 + lane],
                             w->a.scale / w->unit[row0 + 32 + lane]};

    if (lane == 0 && seen) {
        count_await(w->added + (row0 / 64 * (HEAD_DIM / 64) + piece) * 4, (u32)adds);
    }
    __syncwarp();
#pragma unroll 1
    for (int n = 0; n < 8; n++, sums += 128) { /* 16 rows x 32 columns */
        const int r = n / 2 * 16 + lane / 4, t = i * 64 + r;
        const float ours = n < 4 ? scales[0] : scales[1];
        const float low = __shfl_sync(0xffffffffu, ours, r % 32),
                    high = __shfl_sync(0xffffffffu, ours, r % 32 + 8);
        elem *at = to + t * w->dq_strides.token + n % 2 * 32;
        const bool there = column + n % 2 * 32 < w->width;
        int4 v[4];
        u32 x[4], y[4];
        bool whole;
        do {
            whole = true;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                v[k] = seen ? load_fresh(sums + k * 32) : make_int4(0, 0, 0, 0);
                whole &= ((v[k].x - adds) & (ADDS - 1)) == 0;
            }
        } while (__any_sync(0xffffffffu, !whole && seen));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = PACK_ELEM((float)(seen ? v[k].x - adds : 0) * low, (float)v[k].y * low);
            y[k] = PACK_ELEM((float)v[k].z * high, (float)v[k].w * high);
        }
        const uint4 upper = quad_turn(x), lower = quad_turn(y);
        if (there && t < w->a.q_tokens) {
            *(uint4 *)at = upper;
        }
        if (there && t + 8 < w->a.q_tokens) {
            *(uint4 *)(at + 8 * w->dq_strides.token) = lower;
        }
    }
    __syncwarp();
    if (lane == 0 && seen && w->places < pairs_of(&w->a)) {
#pragma unroll 1
        for (int k = 0; k < 4096 * 4 / ZEROES; k++) {
            bulk_store((u8 *)first + k * ZEROES, zeroes, ZEROES);
        }
        tma_store_commit();
    }
}

/* A finishing warp draws pieces until none is left. */
INLINE void finish_dq(const lt_attn_bwd_args *w, u32 zeroes) {
    const int per_head = div_up(w->a.q_tokens, 64) * (HEAD_DIM / 64),
              n_pieces = w->a.batch * w->a.q_heads * per_head, group = w->a.q_heads / w->a.kv_heads;
    const bool one = threadIdx.x % 32 == 0;
    int n = one ? (int)atomicAdd(w->a.counter + 2, 1) : 0;
    int whole = -1; /* (batch, key head) pair of the previous piece, which is still to be counted */
    for (;;) {
        const int now = warp_uniform(n);
        /* Do this before waiting for this piece, whose adds may wait for the buffer of the last
         * one. */
        if (one && whole >= 0) {
            tma_store_wait(0);
            count_release(w->cleared + whole);
        }
        if (now >= n_pieces) {
            break;
        }
        /* The number of the next piece is fetched while this one is finished. */
        n = one ? (int)atomicAdd(w->a.counter + 2, 1) : 0;
        finish_piece(w, zeroes, now / per_head, now % per_head / (HEAD_DIM / 64),
                     now % (HEAD_DIM / 64));
        whole = now / (per_head * group);
    }
    /* The last warp resets the counters. */
    if (one && atomicAdd(w->a.counter + 3, 1) == FINISHERS * gridDim.x - 1) {
        w->a.counter[2] = 0;
        w->a.counter[3] = 0;
    }
}

#endif
