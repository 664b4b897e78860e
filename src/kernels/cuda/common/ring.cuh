/* ring.cuh: a place in a ring of stages in shared memory, and the parity of the phase of its
 * mbarriers. The reader of a fresh ring begins at {0, 0}, and the writer at {0, 1}, since a wait
 * for the phase before the first passes at once. */
#ifndef LT_RING_CUH
#define LT_RING_CUH

#include "common/types.cuh"

typedef struct {
    int slot;
    u32 phase;
} ring_pos;
INLINE void ring_step(ring_pos *r, int slots) {
    if (++r->slot == slots) {
        r->slot = 0;
        r->phase ^= 1;
    }
}

#endif
