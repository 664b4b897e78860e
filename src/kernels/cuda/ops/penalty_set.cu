/* penalty_set.cu — starts rows of penalties: zeroes them, then sets some words (tensor/ops.h).
 *
 * SHAPES    penalties (S, width) int32, ld apart; slots (N); edits (E, 2) of which row n has
 *           [starts[n], starts[n + 1]).
 * MAP       a block of 1024 threads per row: it zeroes the row, waits at a barrier, then sets the
 *           words.
 * BOUND     4 bytes per id: 128,256 ids are 0.5 MB, about 8 us for one SM. Runs once per request;
 *           the rows of a step's new requests run in parallel. */
#include "common/early.cuh"
#include "kernels/cuda/ops/penalty_set_args.h"

#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS)
    penalty_set(const lt_cuda_penalty_set_args w) {
    wait_for_others();
    int *row = w.penalties + (i64)w.slots[blockIdx.x] * w.ld;
    const int end = w.starts[blockIdx.x + 1];
    for (int i = threadIdx.x; i < w.width; i += THREADS) {
        row[i] = 0;
    }
    __syncthreads();
    for (int i = w.starts[blockIdx.x] + (int)threadIdx.x; i < end; i += THREADS) {
        const int2 edit = w.edits[i];
        row[edit.x] = edit.y;
    }
}
