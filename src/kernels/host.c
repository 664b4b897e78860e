/* host.c: host memory as a backend's memory. Blocks are anonymous mappings: zeroed by the kernel at
 * first touch (so pages are near the thread that uses them), with huge pages where the kernel
 * grants them. */
#include "kernels/host.h"

#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

lt_err lt_host_map(void **out, size_t bytes, const char *what) {
    const size_t size = bytes > 0 ? bytes : 1;
    void *data;

    LT_ASSERT(out != NULL && what != NULL);
    data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        LT_FAIL(LT_ERR_OOM, "%s: no room for %.1f MiB: %s", what, (double)size / 1048576.0,
                strerror(errno));
    }
    if (size >= HUGE_PAGE_BYTES) {
        (void)madvise(data, size, MADV_HUGEPAGE); /* A hint; small pages work too. */
    }
    *out = data;
    return LT_OK;
}

void lt_host_unmap(void *data, size_t bytes) {
    if (data != NULL) {
        munmap(data, bytes > 0 ? bytes : 1);
    }
}

lt_err lt_host_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    return lt_host_map(out, bytes, what);
}

void lt_host_release(lt_device *d, void *data, size_t bytes) {
    (void)d;
    lt_host_unmap(data, bytes);
}

/* Work runs at once, when it is queued. */
struct lt_queue {
    lt_device *device;
};

lt_err lt_host_queue_open(lt_device *d, lt_queue **out) {
    lt_queue *q = malloc(sizeof *q);
    if (q == NULL) {
        LT_FAIL(LT_ERR_OOM, "queue");
    }
    q->device = d;
    *out = q;
    return LT_OK;
}

void lt_host_queue_close(lt_queue *q) {
    free(q);
}

/* ---- Threads and cores ---- */

/* State of a device that was opened with threads or cores of its own. */
typedef struct {
    int n_threads;
    bool bound;
    cpu_set_t cores; /* Valid if bound. */
} own_cores;

/* The settings that the calling thread uses now, and those it had before it drove a device with
 * threads of its own: OpenMP's pool, its size and the cores belong to a thread. Settings are
 * compared, not devices, so a closed device cannot be mistaken for another. */
static _Thread_local struct {
    bool drives;
    own_cores now, before;
} thread;

static void thread_bind(const cpu_set_t *cores, int n_threads) {
    /* Bind every thread of the pool, because threads that exist already have other cores. */
#pragma omp parallel num_threads(n_threads)
    { (void)sched_setaffinity(0, sizeof *cores, cores); }
}

static void thread_take(const own_cores *to, const own_cores *from) {
    omp_set_num_threads(to->n_threads);
    if (to->bound || from->bound) {
        thread_bind(to->bound ? &to->cores : &thread.before.cores, to->n_threads);
    }
    thread.now = *to;
}

void lt_host_drive(const lt_device *d) {
    const own_cores *own = d != NULL ? d->own : NULL;
    if (own == NULL) {
        if (thread.drives) {
            thread_take(&thread.before, &thread.now);
            thread.drives = false;
        }
        return;
    }
    if (!thread.drives) {
        thread.before = (own_cores){.n_threads = omp_get_max_threads()};
        (void)sched_getaffinity(0, sizeof thread.before.cores, &thread.before.cores);
        thread.now = thread.before;
        thread.drives = true;
    } else if (thread.now.n_threads == own->n_threads && thread.now.bound == own->bound &&
               CPU_EQUAL(&thread.now.cores, &own->cores)) {
        return;
    }
    const own_cores from = thread.now;
    thread_take(own, &from);
}

/* Parse a list such as "0-3,8". */
static lt_err cores_read(cpu_set_t *out, const char *text) {
    const char *at = text;
    CPU_ZERO(out);
    do {
        char *end;
        long from = strtol(at, &end, 10), to = from;
        bool good = end != at && *at >= '0' && *at <= '9';
        if (good && *end == '-') {
            at = end + 1;
            to = strtol(at, &end, 10);
            good = *at >= '0' && *at <= '9';
        }
        if (!good || from > to || to >= CPU_SETSIZE || (*end != '\0' && *end != ',')) {
            LT_FAIL(LT_ERR_ARG, "cores '%.60s': a list like 0-3,8 of numbers below %d", text,
                    CPU_SETSIZE);
        }
        for (long core = from; core <= to; core++) {
            CPU_SET((size_t)core, out);
        }
        at = *end == ',' ? end + 1 : NULL;
    } while (at != NULL);
    return LT_OK;
}

/* Refuse cores that this process may not use; otherwise threads would silently run elsewhere. */
static lt_err cores_check(const cpu_set_t *cores, const char *text) {
    lt_err err = LT_OK;
    cpu_set_t before, one;
    if (sched_getaffinity(0, sizeof before, &before) != 0) {
        LT_FAIL(LT_ERR_IO, "cores of this thread: %s", strerror(errno));
    }
    for (int core = 0; core < CPU_SETSIZE && err == LT_OK; core++) {
        CPU_ZERO(&one);
        CPU_SET((size_t)core, &one);
        if (CPU_ISSET((size_t)core, cores) && sched_setaffinity(0, sizeof one, &one) != 0) {
            err = lt_error_set(LT_ERR_NOT_FOUND,
                               "cores '%.60s': core %d is not one that this "
                               "process may use",
                               text, core);
        }
    }
    (void)sched_setaffinity(0, sizeof before, &before);
    return err;
}

lt_err lt_host_own(lt_device *d, int n_threads, const char *cores) {
    own_cores *own;
    if (n_threads < 0) {
        LT_FAIL(LT_ERR_ARG, "a CPU device of %d threads", n_threads);
    }
    if (n_threads == 0 && cores[0] == '\0') {
        return LT_OK;
    }
    own = calloc(1, sizeof *own);
    if (own == NULL) {
        LT_FAIL(LT_ERR_OOM, "a CPU device");
    }
    d->own = own;
    own->n_threads = n_threads;
    if (cores[0] != '\0') {
        LT_TRY(cores_read(&own->cores, cores));
        LT_TRY(cores_check(&own->cores, cores));
        own->bound = true;
        own->n_threads = n_threads > 0 ? n_threads : CPU_COUNT(&own->cores);
    }
    return LT_OK;
}

void lt_host_close(lt_device *d) {
    free(d->own);
    d->own = NULL;
}

lt_err lt_host_sync(lt_queue *q) {
    (void)q;
    return LT_OK;
}

lt_err lt_host_copy(lt_queue *q, void *dst, const void *src, size_t bytes) {
    (void)q;
    memcpy(dst, src, bytes);
    return LT_OK;
}

/* Uses all threads for large buffers: a large model's gradients take one thread tens of
 * milliseconds. */
lt_err lt_host_zero(lt_queue *q, void *dst, size_t bytes) {
    const int64_t n_pieces = (int64_t)(bytes / HUGE_PAGE_BYTES) + 1;
    lt_host_drive(lt_queue_device(q));
#pragma omp parallel for schedule(static) if (n_pieces > 4)
    for (int64_t i = 0; i < n_pieces; i++) {
        const size_t from = (size_t)i * HUGE_PAGE_BYTES;
        memset((char *)dst + from, 0,
               bytes - from < HUGE_PAGE_BYTES ? bytes - from : HUGE_PAGE_BYTES);
    }
    return LT_OK;
}

lt_err lt_host_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                           int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(lt_host_zero(q, (char *)dst + (size_t)i * stride_bytes, piece_bytes));
    }
    return LT_OK;
}

lt_err lt_host_order(lt_queue *after, lt_queue *before) {
    (void)after;
    (void)before;
    return LT_OK;
}

lt_matmul_args lt_matmul_of_expert(const lt_matmul_grouped_args *a, int64_t e, int64_t from,
                                   int64_t to) {
    lt_tensor slice = a->weights ? lt_tensor_rows(&a->y, e, 1) : lt_tensor_rows(&a->b, e, 1);
    slice.n_dims = 2;
    slice.shape[0] = slice.shape[1], slice.stride[0] = slice.stride[1];
    slice.shape[1] = slice.shape[2], slice.stride[1] = slice.stride[2];
    if (a->b_each != NULL && !a->weights) {
        slice.data = (void *)(uintptr_t)a->b_each[e];
    }
    return (lt_matmul_args){.y = a->weights ? slice : lt_tensor_rows(&a->y, from, to - from),
                            .a = lt_tensor_rows(&a->a, from, to - from),
                            .b = a->weights ? lt_tensor_rows(&a->b, from, to - from) : slice,
                            .trans_a = a->weights,
                            .trans_b = !a->weights && a->trans_b,
                            .accumulate = a->accumulate,
                            .fixed_order = a->fixed_order,
                            .b_packed = a->b_packed != NULL
                                            ? (const char *)a->b_packed + (size_t)e * a->packed_step
                                            : NULL};
}

lt_err lt_matmul_lora_in_parts(const lt_ops *ops, lt_queue *q, const lt_matmul_lora_args *a) {
    const int64_t rank = a->u.shape[1] / a->n_parts;
    LT_TRY(ops->matmul(q, &a->base));
    for (int i = 0; i < a->n_parts; i++) {
        const lt_lora_add_part *p = &a->parts[i];
        LT_TRY(ops->matmul(
            q, &(lt_matmul_args){.y = lt_tensor_cols(&a->base.y, p->first_of_y, p->columns),
                                 .a = lt_tensor_cols(&a->u, i * rank, rank),
                                 .b = a->base.trans_b
                                          ? lt_tensor_rows(&a->v, p->first_of_b, p->columns)
                                          : lt_tensor_cols(&a->v, p->first_of_b, p->columns),
                                 .trans_b = a->base.trans_b,
                                 .accumulate = true,
                                 .fixed_order = a->base.fixed_order}));
    }
    return LT_OK;
}

lt_err lt_matmul_act_in_parts(const lt_ops *ops, lt_queue *q, const lt_matmul_act_args *a) {
    LT_ASSERT(a->kind != LT_ACT_XIELU && (!a->backward || a->d.data != NULL));
    LT_TRY(ops->matmul(q, &(lt_matmul_args){.y = a->backward ? a->d : a->x,
                                            .a = a->a,
                                            .b = a->b,
                                            .bias = a->bias,
                                            .trans_b = a->trans_b,
                                            .fixed_order = a->fixed_order,
                                            .b_packed = a->b_packed}));
    if (!a->backward) {
        return ops->act_fwd(q, &(lt_act_args){.y = a->y, .x = a->x, .kind = a->kind});
    }
    return ops->act_bwd(q, &(lt_act_bwd_args){.dx = a->y, .dy = a->d, .x = a->x, .kind = a->kind});
}
