/* backend.h: the contract of a device. Three questions, three mechanisms, no `if (arch)` elsewhere:
 *   which memory and queue?   the backend's functions below, which are given the device or a queue
 *   which operations?         the op table (ops.h), one function pointer an op, no holes
 *   which implementation?     per op an ordered list; the first that accepts the arguments on the
 *                             device runs, the last is the reference, which accepts everything
 *                             (kernels/registry.h) */
#ifndef LT_TENSOR_BACKEND_H
#define LT_TENSOR_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"
#include "lateen/device.h"
#include "lateen/tensor.h"

/* An ordered stream of work on one device. Each backend has its own struct lt_queue, whose first
 * member is the queue's device (lt_queue_device). The CPU's runs work at once. */
typedef struct lt_queue lt_queue;
typedef struct lt_graph lt_graph;     /* Work recorded once, queued again as a whole. */
typedef struct lt_ops lt_ops;         /* tensor/ops.h */
typedef struct lt_op_list lt_op_list; /* kernels/registry.h */

typedef struct lt_backend {
    const char *name; /* "cpu", "ref", "cuda" */
    const lt_ops *ops;
    const lt_op_list *lists; /* LT_OP_COUNT of them: what ops chooses from. */
    bool host_memory;        /* The host may dereference what alloc returns. */
    /* Fill in d->own of GPU d->index, and give it back. NULL: there is nothing to open. */
    lt_err (*open)(lt_device *d);
    void (*close)(lt_device *d);
    lt_err (*alloc)(lt_device *d, void **out, size_t bytes, const char *what); /* Zeroed. */
    void (*release)(lt_device *d, void *data, size_t bytes);
    lt_err (*queue_open)(lt_device *d, lt_queue **out);
    void (*queue_close)(lt_queue *q);
    lt_err (*sync)(lt_queue *q); /* Wait until all queued work is done; reports its failure. */
    /* Transfers are queued like other work: the host leaves host_src alone and host_dst unread
     * until a sync says they are done. */
    lt_err (*upload)(lt_queue *q, void *dst, const void *host_src, size_t bytes);
    lt_err (*download)(lt_queue *q, void *host_dst, const void *src, size_t bytes);
    lt_err (*zero)(lt_queue *q, void *dst, size_t bytes);
    /* n pieces, stride_bytes from one to the next; all of whole F32 words. */
    lt_err (*zero_pieces)(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                          int64_t n);
    lt_err (*copy)(lt_queue *q, void *dst, const void *src, size_t bytes);
    /* Host memory, zeroed, from and to which transfers run beside other work. */
    lt_err (*host_alloc)(lt_device *d, void **out, size_t bytes, const char *what);
    void (*host_release)(lt_device *d, void *data, size_t bytes);
    /* Whatever is queued on `after` from now on waits for what is queued on `before` now. */
    lt_err (*order)(lt_queue *after, lt_queue *before);
    /* Between begin and end, ops, zero, zero_pieces and copy are recorded instead of run; nothing
     * may be transferred, waited for or allocated. Launch queues them all, with the pointers and
     * numbers they were recorded with. NULL: this backend has no graphs. A begun graph is ended
     * also after a failure. */
    lt_err (*graph_begin)(lt_queue *q);
    lt_err (*graph_end)(lt_queue *q, lt_graph **out);
    lt_err (*graph_launch)(lt_queue *q, lt_graph *g);
    void (*graph_close)(lt_device *d, lt_graph *g); /* Accepts NULL. */
    /* Stopwatch: mark i (0, 1, ...) gets the moment at which the queue comes here; between waits
     * and tells. NULL: work runs at once, look at the clock. */
    lt_err (*mark)(lt_queue *q, int64_t i);
    lt_err (*between)(lt_queue *q, int64_t from, int64_t to, double *seconds);
    /* Wait until the queue has come to mark i, not for what stands behind it; reports a failure
     * before it. NULL where mark is. */
    lt_err (*reach)(lt_queue *q, int64_t i);
    lt_err (*memory_left)(lt_device *d,
                          size_t *bytes); /* What alloc could still give; NULL: unknown. */
    lt_err (*energy)(lt_device *d,
                     double *joules); /* Used since some moment; NULL or a failure: not known. */
    /* Kernels that had to be compiled since the device was opened; NULL: none ever. */
    int64_t (*n_compiled)(lt_device *d);
    /* Kernels that were made ready since the device was opened; NULL likewise. */
    int64_t (*n_kernels)(lt_device *d);
    /* Between rehearse and rehearsed this thread's ops on d do nothing but look for their kernels;
     * those that would have to be compiled, `missing` so far, are then compiled for later, as many
     * at once as there are cores. rehearsed returns when the first n_first are there; compiling
     * tells whether others are still to come. NULL where n_compiled is. */
    void (*rehearse)(lt_device *d);
    int64_t (*missing)(lt_device *d);
    void (*rehearsed)(lt_device *d, int64_t n_first);
    bool (*compiling)(lt_device *d);
    /* Room matmul_pack needs; 0: b is not packed here. */
    size_t (*matmul_pack_bytes)(const lt_device *d, const lt_tensor *b, bool trans_b);
} lt_backend;

/* One device. {.backend = lt_backend_cpu()} is a whole CPU device whose loops use as many threads
 * as the thread that drives it would. */
struct lt_device {
    const lt_backend *backend;
    int index;                         /* Of its kind. */
    void *own;                         /* The backend's: a GPU's lt_cuda; NULL on a host's. */
    struct lt_device_opening *opening; /* device.c; NULL: it is open. */
};

/* Tables of functions: none of them is a device, and they are always there. */
const lt_backend *lt_backend_ref(void);  /* Scalar C, double accumulation: the oracle. */
const lt_backend *lt_backend_cpu(void);  /* The fastest this CPU has. */
const lt_backend *lt_backend_cuda(void); /* A GPU's. */

/* NULL for no queue, which a host's ops bear. */
static inline lt_device *lt_queue_device(const lt_queue *q) {
    return q != NULL ? *(lt_device *const *)(const void *)q : NULL;
}

/* For a program whose kernels stand in one queue, called before it has threads: a GPU opens with
 * one of CUDA's hardware queues instead of 8, some 45 ms sooner. What the environment says of it
 * stays. */
void lt_device_few_queues(void);

#endif
