/* runtime.h: one GPU, opened: kernels by name, launches, memory, streams, events, graphs, tensor
 * maps.
 *
 *     lt_cuda *gpu;
 *     LT_TRY(lt_cuda_open(&gpu, 0));
 *     const lt_cuda_kernel *k;
 *     LT_TRY(lt_cuda_kernel_get(gpu, &k, "ops/norm.cu", "norm_fwd", "DTYPE=bf16 ..."));
 *     void *args[] = {&a};
 *     lt_cuda_dims dims = {.grid = {rows}, .block = {256}};
 *     LT_TRY(lt_cuda_launch(gpu, stream, k, &dims, args));
 *
 * lt_cuda_kernel_get compiles the kernel or takes it from the cache. Device pointers are plain
 * `void *` (one address space). Every call makes the device's context current on the calling
 * thread. A failed call names the kernel, its defines and the launch. Work is asynchronous: an
 * error in a kernel shows at the next synchronisation, which names the last launch;
 * LATEEN_CUDA_SYNC=1 synchronises after each launch to find the faulty one.
 *
 * Threads: lookups (kernel_get) are locked; everything else may be called from several threads as
 * CUDA allows. */
#ifndef LT_KERNELS_CUDA_RUNTIME_H
#define LT_KERNELS_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "kernels/cuda/driver.h"

typedef struct lt_cuda lt_cuda;

typedef struct {
    int index;
    char name[128];
    char arch[16]; /* The architecture that kernels are compiled for: "sm_90a", "sm_80". */
    int cc;        /* Compute capability, 10 * major + minor: 90, 80. */
    int n_sms;
    /* shared: the most that one block may request. */
    size_t memory_bytes, l2_bytes, shared_optin_bytes;
    int clock_mhz, memory_clock_mhz, memory_bus_bits;
    bool ecc;
    int driver_version; /* CUDA version that the driver supports: 13000 is 13.0. */
    char pci[32];
} lt_cuda_info;

/* Number of GPUs that the driver shows; UNSUPPORTED without a driver. */
LT_MUST_USE lt_err lt_cuda_count(int *n);
/* What the driver says about a GPU, without opening it. */
LT_MUST_USE lt_err lt_cuda_describe(lt_cuda_info *out, int device);
LT_MUST_USE lt_err lt_cuda_open(lt_cuda **out, int device);
/* Unloads its kernels; the caller has freed its memory. Accepts NULL. */
void lt_cuda_close(lt_cuda *c);
const lt_cuda_info *lt_cuda_get_info(const lt_cuda *c);
/* From now on another library's kernels (NCCL's) run beside those of this program, and occupy some
 * multiprocessors at unknown times. Call it before work is queued. */
void lt_cuda_share(lt_cuda *c);
bool lt_cuda_is_shared(const lt_cuda *c);
/* For driver calls that this header does not wrap (after lt_cuda_make_current). */
const lt_cu_api *lt_cuda_api(const lt_cuda *c);
LT_MUST_USE lt_err lt_cuda_make_current(lt_cuda *c);

/* ---- Kernels ---- */
typedef struct {
    CUfunction function;
    const char *file, *entry, *defines;
    /* Static shared memory; local memory (stack and spills) per thread. */
    int n_regs, shared_bytes, local_bytes;
} lt_cuda_kernel;

/* The kernel `entry` of text `file`, specialised by `defines` (see compile.h) and loaded. The
 * same three strings find it again. It lives as long as c. Dynamic shared memory up to the
 * device's limit is already allowed. */
LT_MUST_USE lt_err lt_cuda_kernel_get(lt_cuda *c, const lt_cuda_kernel **out, const char *file,
                                      const char *entry, const char *defines);
/* Address and size of a __device__ or __constant__ variable of the same text. */
LT_MUST_USE lt_err lt_cuda_kernel_global(lt_cuda *c, const lt_cuda_kernel *k, const char *name,
                                         void **ptr, size_t *bytes);
/* Blocks of this kernel that fit one SM. */
LT_MUST_USE lt_err lt_cuda_occupancy(lt_cuda *c, const lt_cuda_kernel *k, int threads,
                                     size_t dynamic_shared, int *blocks);
/* What the last launch used of an SM: for benches, where one thread launches. */
typedef struct {
    int n_regs, threads, blocks_per_sm; /* Registers per thread, threads per block. */
} lt_cuda_launched;
LT_MUST_USE lt_err lt_cuda_last_launch(lt_cuda *c, lt_cuda_launched *out);
/* Number of kernels compiled (not loaded from the disk cache) since open: a warm start has 0. */
int lt_cuda_n_compiled(const lt_cuda *c);
int lt_cuda_n_kernels(const lt_cuda *c); /* Number of kernels compiled or loaded since open. */

typedef struct {
    unsigned grid[3], block[3]; /* A 0 counts as 1. */
    unsigned cluster[3];        /* All 0: no cluster. */
    size_t dynamic_shared_bytes;
    /* Programmatic dependent launch: start early; the kernel waits with griddepcontrol.wait. */
    bool overlap_previous;
} lt_cuda_dims;

/* n / d, rounded up. */
static inline int64_t lt_cuda_div_up(int64_t n, int64_t d) {
    return (n + d - 1) / d;
}

LT_MUST_USE lt_err lt_cuda_launch(lt_cuda *c, CUstream s, const lt_cuda_kernel *k,
                                  const lt_cuda_dims *d, void **args);

/* All of an SM's memory becomes shared memory while k runs there, and none is left for the L1. By
 * default the driver gives a kernel about what its blocks need, and an SM changes how its memory
 * is divided only when it is empty. So kernels whose blocks should run beside each other need the
 * same division. */
void lt_cuda_all_shared(lt_cuda *c, const lt_cuda_kernel *k);

/* ---- Memory ---- */
LT_MUST_USE lt_err lt_cuda_alloc(lt_cuda *c, void **out, size_t bytes, const char *what);
void lt_cuda_free(lt_cuda *c, void *p); /* Accepts NULL. */
/* Pinned host memory, zeroed. */
LT_MUST_USE lt_err lt_cuda_alloc_pinned(lt_cuda *c, void **out, size_t bytes, const char *what);
void lt_cuda_free_pinned(lt_cuda *c, void *p, size_t bytes);
LT_MUST_USE lt_err lt_cuda_upload(lt_cuda *c, CUstream s, void *dst, const void *src, size_t bytes);
LT_MUST_USE lt_err lt_cuda_download(lt_cuda *c, CUstream s, void *dst, const void *src,
                                    size_t bytes);
LT_MUST_USE lt_err lt_cuda_copy(lt_cuda *c, CUstream s, void *dst, const void *src, size_t bytes);
LT_MUST_USE lt_err lt_cuda_fill(lt_cuda *c, CUstream s, void *dst, unsigned char byte,
                                size_t bytes);
LT_MUST_USE lt_err lt_cuda_memory_left(lt_cuda *c, size_t *free_bytes);

/* A device arena: measure with an lt_arena whose base is NULL, then open it here; lt_arena_take
 * works on both (base/arena.h). The memory is a plain allocation, zeroed. Close it with
 * lt_cuda_arena_close, not with lt_arena_close. */
LT_MUST_USE lt_err lt_cuda_arena_open(lt_cuda *c, lt_arena *a, const char *name);
void lt_cuda_arena_close(lt_cuda *c, lt_arena *a);

/* ---- Streams, events, graphs (the driver's own handles) ---- */
/* first: free multiprocessors go to its kernels before those of other streams. */
LT_MUST_USE lt_err lt_cuda_stream_open(lt_cuda *c, CUstream *out, bool first);
void lt_cuda_stream_close(lt_cuda *c, CUstream s);
/* The i-th side stream of s, for work that may run at the same time as s's own work within an op:
 * if blocks of both wait for an SM, its blocks go first. It is opened at the first request, and
 * closed with s. At its end an op makes s wait for the side streams (lt_cuda_stream_follow), so
 * that a recording of s contains their work, too. */
#define LT_CUDA_SIDE_STREAMS 2
LT_MUST_USE lt_err lt_cuda_side_stream(lt_cuda *c, CUstream *out, CUstream s, int i);
/* `later` waits for the work that has been queued on `earlier` so far. One of them is a side
 * stream of the other. */
LT_MUST_USE lt_err lt_cuda_stream_follow(lt_cuda *c, CUstream later, CUstream earlier);
LT_MUST_USE lt_err lt_cuda_sync(lt_cuda *c, CUstream s);
LT_MUST_USE lt_err lt_cuda_event_open(lt_cuda *c, CUevent *out, bool timing);
void lt_cuda_event_close(lt_cuda *c, CUevent e);
LT_MUST_USE lt_err lt_cuda_event_record(lt_cuda *c, CUevent e, CUstream s);
/* Work queued on s from now on waits for e. */
LT_MUST_USE lt_err lt_cuda_event_wait(lt_cuda *c, CUstream s, CUevent e);
/* Never waits; reports a failure of the work before it. */
LT_MUST_USE lt_err lt_cuda_event_passed(lt_cuda *c, CUevent e, bool *passed);
LT_MUST_USE lt_err lt_cuda_event_reach(lt_cuda *c, CUevent e); /* The host waits for e. */
/* Waits for `to`. */
LT_MUST_USE lt_err lt_cuda_event_elapsed(lt_cuda *c, double *ms, CUevent from, CUevent to);

LT_MUST_USE lt_err lt_cuda_capture_begin(lt_cuda *c, CUstream s);
LT_MUST_USE lt_err lt_cuda_capture_end(lt_cuda *c, CUstream s, CUgraphExec *out);
LT_MUST_USE lt_err lt_cuda_graph_launch(lt_cuda *c, CUgraphExec g, CUstream s);
void lt_cuda_graph_close(lt_cuda *c, CUgraphExec g);

/* ---- Tensor maps: what the copy engine (TMA) is told about a tensor in memory ---- */
typedef struct {
    int type; /* LT_CU_TMAP_BF16, ... */
    int elem_bytes;
    int rank;         /* 1..5; dimension 0 is the contiguous one. */
    uint64_t size[5]; /* Elements. */
    /* Strides of dimensions 1..rank-1 (index 0 is unused); multiples of 16. */
    uint64_t stride_bytes[5];
    uint32_t box[5];  /* Elements copied at once in each dimension, at most 256. */
    int swizzle;      /* LT_CU_TMAP_SWIZZLE_* */
    int l2_promotion; /* LT_CU_TMAP_L2_* */
} lt_tensor_map_spec;
/* Reads past the tensor's edge give zeros, writes there have no effect. ptr is 16-byte aligned.
 * Needs compute capability 9.0. */
LT_MUST_USE lt_err lt_cuda_tensor_map(lt_cuda *c, CUtensorMap *out, void *ptr,
                                      const lt_tensor_map_spec *spec);

#endif
