/* backend.h: the contract of a device. Three questions, three mechanisms, no `if (arch)` elsewhere:
 *   which memory and queue?   the backend's functions below
 *   which operations?         the op table (ops.h), one function pointer an op, no holes
 *   which implementation?     per op an ordered list; the first that accepts the arguments runs, the last is the
 *                             reference, which accepts everything (kernels/registry.h) */
#ifndef LT_TENSOR_BACKEND_H
#define LT_TENSOR_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"
#include "lateen/tensor.h"

typedef struct lt_queue
    lt_queue; /* An ordered stream of work on one device. Opaque; the CPU's runs at once. */
typedef struct lt_ops lt_ops;         /* tensor/ops.h */
typedef struct lt_op_list lt_op_list; /* kernels/registry.h */

typedef struct lt_backend {
    const char *name; /* "cpu", "ref", "cuda" */
    const lt_ops *ops;
    const lt_op_list *lists; /* LT_OP_COUNT of them: what ops chooses from. */
    bool host_memory;        /* The host may dereference what alloc returns. */
    lt_err (*alloc)(void **out, size_t bytes, const char *what); /* Zeroed. */
    void (*release)(void *data, size_t bytes);
    lt_err (*queue_open)(lt_queue **out);
    void (*queue_close)(lt_queue *q);
    lt_err (*sync)(lt_queue *q); /* Wait until all queued work is done; reports its failure. */
    lt_err (*upload)(lt_queue *q, void *dst, const void *host_src, size_t bytes);
    lt_err (*download)(lt_queue *q, void *host_dst, const void *src, size_t bytes);
    lt_err (*zero)(lt_queue *q, void *dst, size_t bytes);
    lt_err (*copy)(lt_queue *q, void *dst, const void *src, size_t bytes);
    size_t (*matmul_pack_bytes)(
        const lt_tensor *b, bool trans_b); /* Room matmul_pack needs; 0: b is not packed here. */
} lt_backend;

const lt_backend *
lt_backend_ref(void); /* Scalar C, double accumulation: specification and oracle. */
const lt_backend *lt_backend_cpu(void); /* The fastest this CPU has; never NULL. */
const lt_backend *lt_backend_cuda(
    void); /* One GPU (LATEEN_CUDA_DEVICE); NULL when there is none: lt_error_message says why. */

#endif
