/* draw.cuh: persistent blocks, or clusters of CLUSTER = 1 or 2, draw tiles from a counter in
 * memory. */
#ifndef LT_CUDA_ATTENTION_DRAW_CUH
#define LT_CUDA_ATTENTION_DRAW_CUH

#include "attention/mask.cuh"
#include "common/ring.cuh"

#ifndef CLUSTER
#define CLUSTER 1
#endif
/* Slots of a ring in the cluster's second block, for which the first draws. */
#define DRAWS 2
/* bytes of shared memory: full, empty and 8 bytes per slot */
#define DRAW_BYTES (CLUSTER > 1 ? 24 * DRAWS : 0)

INLINE void draws_init(u32 drawn) {
    for (int i = 0; i < 2 * DRAWS && CLUSTER > 1; i++) {
        mbarrier_init(drawn + 8 * i, 1);
    }
}
/* Which pair the t-th tile belongs to, and which of its `each` it is: pairs go in sections of
 * a->section, in each of which the first tiles of all pairs come first, then the second ones, and
 * so on. */
typedef struct {
    int pair, nth;
} turn;
INLINE turn turn_of(const lt_attn_args *a, int t, int pairs, int each) {
    const int first = t / (a->section * each) * a->section, inside = t % (a->section * each),
              width = min_i(a->section, pairs - first);
    const turn at = {first + inside % width, inside / width};
    return at;
}
/* Initial state of the drawing thread. */
INLINE ring_pos draws_begin(void) {
    const ring_pos at = {0, CLUSTER > 1 && cluster_cta_rank() == 0};
    return at;
}
/* One thread: the next tile, behind those that are not drawn, but begun with. Drawn when the one
 * before is on its way whole, not when it begins: who begins a long tile would own the next, too,
 * while others run out of work. */
INLINE int draw(const lt_attn_args *a, u32 drawn, ring_pos *at, int begun) {
#if CLUSTER > 1
    const u32 full = drawn + 8 * at->slot, empty = full + 8 * DRAWS, word = empty + 8 * DRAWS;
    int t;
    if (cluster_cta_rank() == 0) {
        mbarrier_wait(empty, at->phase);
        t = begun + (int)atomicAdd(a->counter, 1);
        st_async_v2(remote_address(word, 1), __int_as_float(t), 0.0f, remote_address(full, 1));
    } else {
        mbarrier_expect(full, 8);
        mbarrier_wait(full, at->phase);
        t = ld_shared_s32(word);
        mbarrier_arrive_remote(empty, 0);
    }
    ring_step(at, DRAWS);
    return t;
#else
    (void)drawn, (void)at;
    return begun + (int)atomicAdd(a->counter, 1);
#endif
}

#endif
