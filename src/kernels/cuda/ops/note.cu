/* note.cu — rows of notes begin anew: zero but for some words (tensor/ops.h).
 *
 * SHAPES    notes (S, width) int32, ld apart; slots (N); edits (E, 2) of which row n has
 *           [starts[n], starts[n + 1]).
 * MAP       a block of 1024 threads a row: all of it zero, a barrier, then its words.
 * BOUND     4 bytes an id: 128,256 ids 0.5 MB, about 8 us for one SM; once a request, and the rows
 *           of a step's new requests beside each other. */
#include "common/early.cuh"
#include "kernels/cuda/ops/note_args.h"

#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS) note(const lt_cuda_note_args w) {
    wait_for_others();
    int *row = w.notes + (i64)w.slots[blockIdx.x] * w.ld;
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
