/* backend.h: the contract of a device. Three mechanisms answer three questions, so that no other
 * code tests for a kind of device:
 *
 *   which memory and queue?   the backend's functions below, which take the device or a queue
 *   which operations?         the op table (ops.h), with a function pointer for each op, no holes
 *   which implementation?     an ordered list for each op; the first that accepts the arguments on
 *                             the device runs; the last is the reference, which accepts everything
 *                             (kernels/registry.h) */
#ifndef LT_TENSOR_BACKEND_H
#define LT_TENSOR_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"
#include "lateen/device.h"
#include "lateen/tensor.h"

/* An ordered stream of work on one device. Each backend has its own struct lt_queue, whose first
 * member is the queue's device (lt_queue_device). The CPU's queue runs work immediately. */
typedef struct lt_queue lt_queue;
typedef struct lt_moment lt_moment; /* The position of a queue at a call of moment_mark. */
/* Identifies an allocation to other ranks, which may be other processes of this machine. */
typedef struct {
    unsigned char bytes[128];
} lt_memory_handle;
typedef struct lt_graph lt_graph;     /* Work that is recorded once and queued again as a whole. */
typedef struct lt_ops lt_ops;         /* tensor/ops.h */
typedef struct lt_op_list lt_op_list; /* kernels/registry.h */

typedef struct lt_backend {
    const char *name; /* "cpu", "ref", "cuda" */
    const lt_ops *ops;
    /* LT_OP_COUNT lists of implementations, from which the functions of ops choose. */
    const lt_op_list *lists;
    bool host_memory; /* The host may dereference what alloc returns. */
    /* Nothing is stored or computed (plan/dry.c): data need not be made. */
    bool dry;
    /* Set d->own for GPU d->index, and release it. NULL: there is nothing to open. */
    lt_err (*open)(lt_device *d);
    void (*close)(lt_device *d);
    lt_err (*alloc)(lt_device *d, void **out, size_t bytes, const char *what); /* Zeroed. */
    void (*release)(lt_device *d, void *data, size_t bytes);
    lt_err (*queue_open)(lt_device *d, lt_queue **out);
    /* The same, with priority: its ops get free multiprocessors before those of other queues.
     * NULL if moment_open is NULL. */
    lt_err (*queue_open_first)(lt_device *d, lt_queue **out);
    void (*queue_close)(lt_queue *q);
    lt_err (*sync)(lt_queue *q); /* Wait until all queued work is done; reports its failure. */
    /* Transfers are queued like other work: until a sync has returned, the host must not change
     * host_src or read host_dst. */
    lt_err (*upload)(lt_queue *q, void *dst, const void *host_src, size_t bytes);
    lt_err (*download)(lt_queue *q, void *host_dst, const void *src, size_t bytes);
    lt_err (*zero)(lt_queue *q, void *dst, size_t bytes);
    /* Zero n pieces that are stride_bytes apart; all sizes are multiples of 4. */
    lt_err (*zero_pieces)(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                          int64_t n);
    lt_err (*copy)(lt_queue *q, void *dst, const void *src, size_t bytes);
    /* Zeroed host memory whose transfers overlap with other work. */
    lt_err (*host_alloc)(lt_device *d, void **out, size_t bytes, const char *what);
    void (*host_release)(lt_device *d, void *data, size_t bytes);
    /* Work queued on `after` from now on waits for the work queued on `before` so far. */
    lt_err (*order)(lt_queue *after, lt_queue *before);
    /* Between begin and end, ops, zero, zero_pieces and copy are recorded instead of run;
     * transfers, waits and allocations are not allowed. Launch queues them all with the recorded
     * pointers and numbers. If nothing was recorded, the graph is NULL, and launch queues
     * nothing. graph_begin NULL: this backend has no graphs. The caller must end a begun graph
     * even after a failure. */
    lt_err (*graph_begin)(lt_queue *q);
    lt_err (*graph_end)(lt_queue *q, lt_graph **out);
    lt_err (*graph_launch)(lt_queue *q, lt_graph *g);
    void (*graph_close)(lt_device *d, lt_graph *g); /* Accepts NULL. */
    /* Stopwatch: mark i (0, 1, ...) records the time at which the queue reaches this point;
     * `between` waits for two marks and returns the time between them. NULL: work runs
     * immediately, so the caller reads the clock. */
    lt_err (*mark)(lt_queue *q, int64_t i);
    lt_err (*between)(lt_queue *q, int64_t from, int64_t to, double *seconds);
    /* Wait until the queue reaches mark i, but not for the work after it; returns a failure of
     * the work before it. NULL if mark is NULL. */
    lt_err (*reach)(lt_queue *q, int64_t i);
    /* For work that a library queues by itself (comm/nccl.c). A moment can be marked repeatedly;
     * native is the driver's handle of the queue. moment_passed never waits. moment_between: the
     * seconds between two moments that have passed and were opened with `timed`. NULL: work runs at
     * once. */
    lt_err (*moment_open)(lt_device *d, lt_moment **out, bool timed);
    void (*moment_close)(lt_device *d, lt_moment *m); /* Accepts NULL. */
    lt_err (*moment_mark)(lt_queue *q, lt_moment *m);
    lt_err (*moment_follow)(lt_queue *q, lt_moment *m); /* q continues when m has passed. */
    lt_err (*moment_passed)(lt_device *d, lt_moment *m, bool *passed);
    /* The host continues when m has passed. */
    lt_err (*moment_reach)(lt_device *d, lt_moment *m);
    lt_err (*moment_between)(lt_device *d, lt_moment *from, lt_moment *to, double *seconds);
    void *(*native)(lt_queue *q);
    /* For transfers between GPUs of one machine by their copy engines (comm/peer.h). memory_share
     * makes a handle of an allocation, given its first byte. memory_reach makes the allocation of a
     * handle accessible to copies and flags of this device (UNSUPPORTED if that is not possible);
     * memory_leave ends that. flag_set: the word, in this device's memory or in memory that was
     * reached, becomes `value` after all work queued on q so far. flag_wait: q waits until the
     * word, in this device's memory, minus `value` is at least 0 as a signed number. NULL if
     * moment_open is NULL. */
    lt_err (*memory_share)(lt_device *d, void *data, lt_memory_handle *out);
    lt_err (*memory_reach)(lt_device *d, const lt_memory_handle *h, void **out);
    void (*memory_leave)(lt_device *d, const lt_memory_handle *h, void *data);
    lt_err (*flag_set)(lt_queue *q, uint32_t *word, uint32_t value);
    lt_err (*flag_wait)(lt_queue *q, uint32_t *word, uint32_t value);
    /* From now on a library's kernels run beside the ops of this device, and occupy some of its
     * multiprocessors at times that the ops do not control. NULL if moment_open is NULL. */
    void (*share)(lt_device *d);
    /* Bytes that alloc could still give; NULL: unknown. */
    lt_err (*memory_left)(lt_device *d, size_t *bytes);
    /* Energy used since an arbitrary moment; NULL or a failure: unknown. */
    lt_err (*energy)(lt_device *d, double *joules);
    /* Number of kernels compiled since the device was opened; NULL: the backend compiles none. */
    int64_t (*n_compiled)(lt_device *d);
    /* Number of kernels loaded since the device was opened; NULL as above. */
    int64_t (*n_kernels)(lt_device *d);
    /* Between preload and preloaded, the ops of this thread on d only look up their kernels.
     * `missing` counts those that must be compiled; preloaded then starts compiling them, one per
     * core at a time, and returns when the first n_first are ready. compiling says whether others
     * are still being compiled. NULL if n_compiled is NULL. */
    void (*preload)(lt_device *d);
    int64_t (*missing)(lt_device *d);
    void (*preloaded)(lt_device *d, int64_t n_first);
    bool (*compiling)(lt_device *d);
    /* Bytes that matmul_pack writes; 0: this backend does not pack b. */
    size_t (*matmul_pack_bytes)(const lt_device *d, const lt_tensor *b, bool trans_b);
} lt_backend;

/* One device. {.backend = lt_backend_cpu()} is a complete CPU device, whose loops use the number of
 * threads set for the thread that drives it. */
struct lt_device {
    const lt_backend *backend;
    int index;                         /* Index among the devices of its kind. */
    void *own;                         /* State of the backend: a GPU's lt_cuda; NULL on a CPU. */
    struct lt_device_opening *opening; /* device.c; NULL: it is open. */
};

/* Constant tables of functions, not devices. */
const lt_backend *lt_backend_ref(void);  /* Scalar C, double accumulation: the oracle. */
const lt_backend *lt_backend_cpu(void);  /* The fastest implementations for this CPU. */
const lt_backend *lt_backend_cuda(void); /* For NVIDIA GPUs. */

/* The device of a queue; NULL for a NULL queue, which ops on the CPU accept. */
static inline lt_device *lt_queue_device(const lt_queue *q) {
    return q != NULL ? *(lt_device *const *)(const void *)q : NULL;
}

/* For a program that uses a single queue; call it before starting threads. A GPU then opens with
 * one of CUDA's hardware queues instead of 8, which takes some 45 ms less. A setting in the
 * environment has priority. */
void lt_device_few_queues(void);

#endif
