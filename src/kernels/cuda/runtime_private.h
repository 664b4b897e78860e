/* runtime_private.h: the inside of lt_cuda, for runtime.c and kernel.c only. */
#ifndef LT_KERNELS_CUDA_RUNTIME_PRIVATE_H
#define LT_KERNELS_CUDA_RUNTIME_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cuda/runtime.h"

/* Specialised texts that can be loaded at once; the tuner opens and closes a device of its
 * own. */
#define LT_CUDA_MAX_MODULES 4096
#define LT_CUDA_TABLE_SLOTS 16384 /* A power of two, at least twice the number of kernels. */

/* One compiled and loaded text. */
typedef struct {
    CUmodule handle;
    const char *file, *defines; /* Owned. */
} lt_cuda_module;

/* One kernel in the lookup table, an open-addressing hash by (file, entry, defines). */
typedef struct {
    lt_cuda_kernel kernel; /* entry is owned; file and defines belong to the module. */
    int module;
} lt_cuda_slot;

/* A stream and its side streams. */
typedef struct lt_cuda_side {
    CUstream of, streams[LT_CUDA_SIDE_STREAMS];
    struct lt_cuda_side *next;
} lt_cuda_side;

struct lt_cuda {
    const lt_cu_api *cu;
    CUdevice device;
    CUcontext context;
    lt_cuda_info info;
    bool sync_each; /* LATEEN_CUDA_SYNC=1. */
    bool shared;    /* Set by lt_cuda_share. */
    /* For messages and benches only: the last launch of any queue: its kernel, the threads of its
     * blocks and the shared memory that it requested. */
    _Atomic(const lt_cuda_kernel *) last_launch;
    atomic_int last_threads;
    atomic_size_t last_shared;
    atomic_int n_compiled, n_kernels; /* Written under the lock. */

    pthread_mutex_t lock; /* Protects everything below. */
    int n_modules;
    lt_cuda_module modules[LT_CUDA_MAX_MODULES];
    lt_cuda_slot *slots[LT_CUDA_TABLE_SLOTS];
    lt_cuda_side *sides;
};

void lt_cuda_kernels_unload(lt_cuda *c);

#endif
