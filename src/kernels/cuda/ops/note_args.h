/* note_args.h: arguments of note.cu. */
#ifndef LT_KERNELS_CUDA_OPS_NOTE_ARGS_H
#define LT_KERNELS_CUDA_OPS_NOTE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int *notes;
    const int *slots, *starts;
    const LT_ELEM(int2) * edits;
    int width;
    long long ld;
} lt_cuda_note_args;

static_assert(sizeof(lt_cuda_note_args) == 48, "the same on host and device");

#endif
