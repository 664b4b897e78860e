/* host.h: memory and queue of a backend that computes in the host's own memory: all work is done
 * when the call returns. An initialiser sets everything in lt_backend except its name, its op
 * table and its lists. */
#ifndef LT_KERNELS_HOST_H
#define LT_KERNELS_HOST_H

#include "kernels/registry.h"

lt_err lt_host_map(void **out, size_t bytes, const char *what); /* The memory is zeroed. */
void lt_host_unmap(void *data, size_t bytes);
lt_err lt_host_alloc(lt_device *d, void **out, size_t bytes, const char *what);
void lt_host_release(lt_device *d, void *data, size_t bytes);
lt_err lt_host_queue_open(lt_device *d, lt_queue **out);
void lt_host_queue_close(lt_queue *q);
/* The calling thread's parallel loops run on the device's threads and cores from now on. Ops do
 * this by themselves. */
void lt_host_drive(const lt_device *d);
/* Give a device n_threads threads (0: one per core) on these cores ("0-3,8"; "": those on which the
 * driving thread may run). */
LT_MUST_USE lt_err lt_host_own(lt_device *d, int n_threads, const char *cores);
void lt_host_close(lt_device *d);
lt_err lt_host_sync(lt_queue *q);
lt_err lt_host_copy(lt_queue *q, void *dst, const void *src, size_t bytes);
lt_err lt_host_zero(lt_queue *q, void *dst, size_t bytes);
lt_err lt_host_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                           int64_t n);
/* The product of expert e, whose rows are [from, to). */
lt_matmul_args lt_matmul_of_expert(const lt_matmul_grouped_args *a, int64_t e, int64_t from,
                                   int64_t to);

/* matmul_lora as one op for the base and one for each part. */
lt_err lt_matmul_lora_in_parts(const lt_ops *ops, lt_queue *q, const lt_matmul_lora_args *a);
/* matmul_act as two ops. */
lt_err lt_matmul_act_in_parts(const lt_ops *ops, lt_queue *q, const lt_matmul_act_args *a);

lt_err lt_host_order(lt_queue *after, lt_queue *before);

/* An op of a CPU backend, which runs on the queue's device. */
#define LT_HOST_TRAMPOLINE(name, args)                                                             \
    static lt_err call_##name(lt_queue *q, const args *a) {                                        \
        lt_host_drive(lt_queue_device(q));                                                         \
        return lt_registry_run(&LT_REGISTRY_LISTS[LT_OP_##name], LT_OP_##name, q, a);              \
    }

#define LT_HOST_BACKEND_FIELDS                                                                     \
    .host_memory = true, .close = lt_host_close, .alloc = lt_host_alloc,                           \
    .release = lt_host_release, .queue_open = lt_host_queue_open,                                  \
    .queue_close = lt_host_queue_close, .sync = lt_host_sync, .upload = lt_host_copy,              \
    .download = lt_host_copy, .zero = lt_host_zero, .zero_pieces = lt_host_zero_pieces,            \
    .copy = lt_host_copy, .host_alloc = lt_host_alloc, .host_release = lt_host_release,            \
    .order = lt_host_order

#endif
