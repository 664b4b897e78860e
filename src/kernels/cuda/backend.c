/* backend.c: the CUDA backend: memory and queues of a GPU, and its op table. Each device has a
 * lt_cuda: context, loaded kernels, facts about the GPU.
 *
 * The list of an op has the entries of its launchers (ops/). An op without a list, or arguments
 * that all entries refuse, are UNSUPPORTED with the reasons: nothing silently runs on the host. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/ops/elementwise_args.h"
#include "kernels/cuda/ops/fuse.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/peers.h"
#include "kernels/cuda/preload.h"

/* The list of each op, the same on all GPUs: filled once per process and then only read. */
static lt_op_list lists[LT_OP_COUNT];

lt_cuda *lt_cuda_device_gpu(const lt_device *d) {
    LT_ASSERT(d != NULL && d->own != NULL);
    return d->own;
}

const lt_cuda_info *lt_cuda_device_info(const lt_device *d) {
    return lt_cuda_get_info(lt_cuda_device_gpu(d));
}

static lt_err backend_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    lt_cuda *gpu = lt_cuda_device_gpu(d);
    LT_TRY(lt_cuda_alloc(gpu, out, bytes, what));
    LT_TRY(lt_cuda_fill(gpu, NULL, *out, 0, bytes));
    return lt_cuda_sync(gpu, NULL);
}

static void backend_release(lt_device *d, void *data, size_t bytes) {
    (void)bytes;
    lt_cuda_free(lt_cuda_device_gpu(d), data);
}

static lt_err open_queue(lt_device *d, lt_queue **out, bool first) {
    lt_queue *q = calloc(1, sizeof *q);
    lt_err err;
    if (q == NULL) {
        LT_FAIL(LT_ERR_OOM, "queue");
    }
    q->device = d;
    q->gpu = lt_cuda_device_gpu(d);
    q->fuse = calloc(1, sizeof *q->fuse);
    err = q->fuse != NULL ? lt_cuda_stream_open(q->gpu, &q->stream, first)
                          : lt_error_set(LT_ERR_OOM, "queue");
    if (err != LT_OK) {
        free(q->fuse);
        free(q);
        return err;
    }
    *out = q;
    return lt_fuse_record(q, lists, false);
}

static lt_err backend_queue_open(lt_device *d, lt_queue **out) {
    return open_queue(d, out, false);
}

static lt_err backend_queue_open_first(lt_device *d, lt_queue **out) {
    return open_queue(d, out, true);
}

static void backend_queue_close(lt_queue *q) {
    if (q != NULL) {
        lt_cuda_free(q->gpu, q->scratch); /* It waits for the queue. */
        for (int i = 0; i < q->n_outgrown; i++) {
            lt_cuda_free(q->gpu, q->outgrown[i]);
        }
        lt_cuda_free(q->gpu, q->wide);
        lt_cuda_free(q->gpu, q->sgemm_workspace);
        lt_cuda_event_close(q->gpu, q->passed);
        for (int64_t i = 0; i < q->n_marks; i++) {
            lt_cuda_event_close(q->gpu, q->marks[i]);
        }
        free(q->marks);
        lt_cublas_close(q->cublas);
        lt_cuda_stream_close(q->gpu, q->stream);
        free(q->fuse);
        free(q);
    }
}

static lt_err backend_sync(lt_queue *q) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_sync(q->gpu, q->stream);
}

static lt_err backend_upload(lt_queue *q, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_upload(q->gpu, q->stream, dst, src, bytes);
}

static lt_err backend_download(lt_queue *q, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_download(q->gpu, q->stream, dst, src, bytes);
}

static lt_err backend_zero(lt_queue *q, void *dst, size_t bytes) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_fill(q->gpu, q->stream, dst, 0, bytes);
}

#define ZERO_THREADS    256 /* As in elementwise.cu. */
#define ZERO_BLOCKS     64  /* Blocks that clear one piece. */
#define ZERO_MAX_PIECES 65535

static lt_err backend_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                                  int64_t n) {
    LT_TRY(lt_fuse_flush(q, lists));
    const int64_t words = (int64_t)(piece_bytes / 4);
    lt_cuda_zero_pieces_args call = {
        .dst = dst, .stride = (int64_t)(stride_bytes / 4), .words = words};
    void *args[] = {&call};
    LT_ASSERT(piece_bytes % 4 == 0 && stride_bytes % 4 == 0 && n <= ZERO_MAX_PIECES);
    if (n <= 1) {
        return n == 1 ? backend_zero(q, dst, piece_bytes) : LT_OK;
    }
    const int64_t blocks = LT_CUDA_DIV_UP(words, ZERO_THREADS);
    return lt_cuda_run_early(q, "ops/elementwise.cu", "zero_pieces", "DTYPE=fp32 W=4",
                             blocks < ZERO_BLOCKS ? blocks : ZERO_BLOCKS, (int)n, ZERO_THREADS,
                             args);
}

static lt_err backend_copy(lt_queue *q, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_copy(q->gpu, q->stream, dst, src, bytes);
}

static lt_err backend_host_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    return lt_cuda_alloc_pinned(lt_cuda_device_gpu(d), out, bytes, what);
}

static void backend_host_release(lt_device *d, void *data, size_t bytes) {
    lt_cuda_free_pinned(lt_cuda_device_gpu(d), data, bytes);
}

static lt_err backend_order(lt_queue *after, lt_queue *before) {
    LT_TRY(lt_fuse_flush(before, lists));
    LT_TRY(lt_fuse_flush(after, lists));
    if (before->passed == NULL) {
        LT_TRY(lt_cuda_event_open(before->gpu, &before->passed, false));
    }
    LT_TRY(lt_cuda_event_record(before->gpu, before->passed, before->stream));
    return lt_cuda_event_wait(after->gpu, after->stream, before->passed);
}

static lt_err backend_graph_begin(lt_queue *q) {
    LT_TRY(lt_fuse_record(q, lists, true));
    return lt_cuda_capture_begin(q->gpu, q->stream);
}

static lt_err backend_graph_end(lt_queue *q, lt_graph **out) {
    CUgraphExec exec = NULL;
    const lt_err held = lt_fuse_record(q, lists, false);
    LT_TRY(lt_cuda_capture_end(q->gpu, q->stream, &exec));
    if (held != LT_OK) {
        lt_cuda_graph_close(q->gpu, exec);
        return held;
    }
    *out = (lt_graph *)exec;
    return LT_OK;
}

static lt_err backend_graph_launch(lt_queue *q, lt_graph *g) {
    return lt_cuda_graph_launch(q->gpu, (CUgraphExec)g, q->stream);
}

static void backend_graph_close(lt_device *d, lt_graph *g) {
    if (g != NULL) {
        lt_cuda_graph_close(lt_cuda_device_gpu(d), (CUgraphExec)g);
    }
}

static lt_err backend_mark(lt_queue *q, int64_t i) {
    LT_TRY(lt_fuse_flush(q, lists));
    if (i >= q->n_marks) {
        const int64_t n = 2 * i + 64;
        CUevent *grown = realloc(q->marks, (size_t)n * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "stopwatch of %lld marks", (long long)n);
        }
        q->marks = grown;
        while (q->n_marks < n) {
            LT_TRY(lt_cuda_event_open(q->gpu, &q->marks[q->n_marks], true));
            q->n_marks++;
        }
    }
    return lt_cuda_event_record(q->gpu, q->marks[i], q->stream);
}

static lt_err backend_between(lt_queue *q, int64_t from, int64_t to, double *seconds) {
    double ms = 0.0;
    LT_ASSERT(from < q->n_marks && to < q->n_marks);
    LT_TRY(lt_cuda_event_elapsed(q->gpu, &ms, q->marks[from], q->marks[to]));
    *seconds = ms * 1e-3;
    return LT_OK;
}

static lt_err backend_reach(lt_queue *q, int64_t i) {
    LT_ASSERT(i < q->n_marks);
    return lt_cuda_event_reach(q->gpu, q->marks[i]);
}

static lt_err backend_moment_open(lt_device *d, lt_moment **out, bool timed) {
    CUevent event = NULL;
    LT_TRY(lt_cuda_event_open(lt_cuda_device_gpu(d), &event, timed));
    *out = (lt_moment *)event;
    return LT_OK;
}

static void backend_moment_close(lt_device *d, lt_moment *m) {
    lt_cuda_event_close(lt_cuda_device_gpu(d), (CUevent)m);
}

static lt_err backend_moment_mark(lt_queue *q, lt_moment *m) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_event_record(q->gpu, (CUevent)m, q->stream);
}

static lt_err backend_moment_follow(lt_queue *q, lt_moment *m) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_event_wait(q->gpu, q->stream, (CUevent)m);
}

static lt_err backend_moment_passed(lt_device *d, lt_moment *m, bool *passed) {
    return lt_cuda_event_passed(lt_cuda_device_gpu(d), (CUevent)m, passed);
}

static lt_err backend_moment_reach(lt_device *d, lt_moment *m) {
    return lt_cuda_event_reach(lt_cuda_device_gpu(d), (CUevent)m);
}

static lt_err backend_moment_between(lt_device *d, lt_moment *from, lt_moment *to,
                                     double *seconds) {
    double ms = 0.0;
    LT_TRY(lt_cuda_event_elapsed(lt_cuda_device_gpu(d), &ms, (CUevent)from, (CUevent)to));
    *seconds = ms * 1e-3;
    return LT_OK;
}

static void *backend_native(lt_queue *q) {
    return q->stream;
}

static lt_err backend_flag_set(lt_queue *q, uint32_t *word, uint32_t value) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_flag_set(q->gpu, q->stream, word, value);
}

static lt_err backend_flag_wait(lt_queue *q, uint32_t *word, uint32_t value) {
    LT_TRY(lt_fuse_flush(q, lists));
    return lt_cuda_flag_wait(q->gpu, q->stream, word, value);
}

static lt_err backend_memory_share(lt_device *d, void *data, lt_memory_handle *out) {
    return lt_cuda_memory_share(lt_cuda_device_gpu(d), data, out);
}

static lt_err backend_memory_reach(lt_device *d, const lt_memory_handle *h, void **out) {
    return lt_cuda_memory_reach(lt_cuda_device_gpu(d), h, out);
}

static void backend_memory_leave(lt_device *d, const lt_memory_handle *h, void *data) {
    lt_cuda_memory_leave(lt_cuda_device_gpu(d), h, data);
}

static void backend_share(lt_device *d) {
    lt_cuda_share(lt_cuda_device_gpu(d));
}

static lt_err backend_memory_left(lt_device *d, size_t *bytes) {
    return lt_cuda_memory_left(lt_cuda_device_gpu(d), bytes);
}

static int64_t backend_n_compiled(lt_device *d) {
    return lt_cuda_n_compiled(lt_cuda_device_gpu(d));
}

static int64_t backend_n_kernels(lt_device *d) {
    return lt_cuda_n_kernels(lt_cuda_device_gpu(d));
}

static lt_err backend_energy(lt_device *d, double *joules) {
    return lt_nvml_energy(joules, lt_cuda_device_info(d)->pci);
}

static void backend_preload(lt_device *d) {
    lt_preload_begin(lt_cuda_device_gpu(d));
}

static int64_t backend_missing(lt_device *d) {
    (void)d;
    return lt_preload_missing();
}

static void backend_preloaded(lt_device *d, int64_t n_first) {
    (void)d;
    lt_preload_end(n_first);
}

static bool backend_compiling(lt_device *d) {
    (void)d;
    return lt_preload_compiling();
}

static size_t backend_pack_bytes(const lt_device *d, const lt_tensor *b, bool trans_b) {
    (void)d; /* The layout is the same on all GPUs. */
    return lt_cuda_pack_bytes(b, trans_b);
}

/* An op of a step that is being recorded may be held back (ops/fuse.h). */
static lt_err run_op(lt_queue *q, lt_op op, const void *args) {
    bool taken = false;
    LT_TRY(lt_fuse_offer(q, lists, op, args, &taken));
    return taken ? LT_OK : lt_registry_run(&lists[op], op, q, args);
}
#define TRAMPOLINE(name, args)                                                                     \
    static lt_err call_##name(lt_queue *q, const args *a) {                                        \
        return run_op(q, LT_OP_##name, a);                                                         \
    }
LT_OP_MAP(TRAMPOLINE)
static const lt_ops ops = {LT_OP_MAP(LT_REGISTRY_FIELD)};

/* A kernel's name in the cache contains the compiler's version. That library has 100 MB and takes 8
 * ms to open, so it is opened while the context is made, which takes 50 ms and more. */
static void *find_compiler(void *unused) {
    int version;
    (void)unused;
    (void)!lt_nvrtc_version(&version, NULL);
    return NULL;
}

static lt_err open_gpu(lt_cuda **out, int index) {
    const lt_cu_api *cu;
    pthread_t finding;
    LT_TRY(lt_cu_load(&cu));
    const bool finds = pthread_create(&finding, NULL, find_compiler, NULL) == 0;
    const lt_err err = lt_cuda_open(out, index);
    if (finds) {
        pthread_join(finding, NULL);
    }
    return err;
}

static lt_err backend_open(lt_device *d) {
    const double start_s = lt_clock_s();
    lt_cuda *gpu = NULL;
    const lt_err err = open_gpu(&gpu, d->index);
    lt_log_debug("cuda: GPU %d opened (error %d) in %.3f s", d->index, (int)err,
                 lt_clock_s() - start_s);
    d->own = gpu;
    return err;
}

static void backend_close(lt_device *d) {
    lt_cuda_close(d->own);
    d->own = NULL;
}

static void fill_lists(void) {
#define LIST_FILL(op)                                                                              \
    lists[LT_OP_##op].impls = lt_cuda_##op##_impls;                                                \
    while (lists[LT_OP_##op].n_impls < LT_REGISTRY_MAX_IMPLS &&                                    \
           lt_cuda_##op##_impls[lists[LT_OP_##op].n_impls].run != NULL) {                          \
        lists[LT_OP_##op].n_impls++;                                                               \
    }
    LT_CUDA_OWN_OPS(LIST_FILL)
}

const lt_backend *lt_backend_cuda(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const lt_backend backend = {.name = "cuda",
                                       .ops = &ops,
                                       .lists = lists,
                                       .host_memory = false,
                                       .open = backend_open,
                                       .close = backend_close,
                                       .alloc = backend_alloc,
                                       .release = backend_release,
                                       .queue_open = backend_queue_open,
                                       .queue_open_first = backend_queue_open_first,
                                       .queue_close = backend_queue_close,
                                       .sync = backend_sync,
                                       .upload = backend_upload,
                                       .download = backend_download,
                                       .zero = backend_zero,
                                       .zero_pieces = backend_zero_pieces,
                                       .copy = backend_copy,
                                       .host_alloc = backend_host_alloc,
                                       .host_release = backend_host_release,
                                       .order = backend_order,
                                       .graph_begin = backend_graph_begin,
                                       .graph_end = backend_graph_end,
                                       .graph_launch = backend_graph_launch,
                                       .graph_close = backend_graph_close,
                                       .mark = backend_mark,
                                       .between = backend_between,
                                       .reach = backend_reach,
                                       .moment_open = backend_moment_open,
                                       .moment_close = backend_moment_close,
                                       .moment_mark = backend_moment_mark,
                                       .moment_follow = backend_moment_follow,
                                       .moment_passed = backend_moment_passed,
                                       .moment_reach = backend_moment_reach,
                                       .moment_between = backend_moment_between,
                                       .native = backend_native,
                                       .memory_share = backend_memory_share,
                                       .memory_reach = backend_memory_reach,
                                       .memory_leave = backend_memory_leave,
                                       .flag_set = backend_flag_set,
                                       .flag_wait = backend_flag_wait,
                                       .share = backend_share,
                                       .memory_left = backend_memory_left,
                                       .energy = backend_energy,
                                       .n_compiled = backend_n_compiled,
                                       .n_kernels = backend_n_kernels,
                                       .preload = backend_preload,
                                       .missing = backend_missing,
                                       .preloaded = backend_preloaded,
                                       .compiling = backend_compiling,
                                       .matmul_pack_bytes = backend_pack_bytes};
    (void)pthread_once(&once, fill_lists);
    return &backend;
}
