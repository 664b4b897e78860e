/* work_gpu.c: tiers 2 and 3 of GPUs: copies there and back, known products on all multiprocessors,
 * patterns in memory. All GPUs work at the same time, each driven by a thread, because faults of
 * the power supply or of a switch show only then. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/cuda/runtime.h"
#include "kernels/peak.h"
#include "platform/health/facts.h"
#include "platform/health/known.h"
#include "platform/health/work.h"

#define COPY_BYTES ((size_t)256 << 20)
#define N_COPIES   4
/* 24 x 24 tiles of 128 x 128: more than any GPU has multiprocessors. */
#define SIDE  3072
#define GPU_S 0.5
#define PIECE ((size_t)64 << 20)

typedef struct {
    pthread_t thread;
    int index;
    const lt_work_plan *plan;
    /* NAN: not measured. */
    double up_gbps, down_gbps, copy_wrong, products, wrong, tflops, pattern_wrong;
    lt_failure failure;
} gpu_work;

static double faster(double best, size_t bytes, double seconds) {
    const double rate = (double)bytes / seconds * 1e-9;
    return rate > best ? rate : best;
}

lt_err lt_copies_run(lt_device *device, size_t bytes, double *up_gbps, double *down_gbps,
                     double *wrong) {
    lt_err err = LT_OK;
    const lt_backend *be = device->backend;
    void *there = NULL, *from = NULL, *back = NULL;
    lt_queue *q = NULL;

    LT_TRY_DONE(be->queue_open(device, &q));
    LT_TRY_DONE(be->alloc(device, &there, bytes, "copies"));
    LT_TRY_DONE(be->host_alloc(device, &from, bytes, "copies"));
    LT_TRY_DONE(be->host_alloc(device, &back, bytes, "copies"));
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        ((uint64_t *)from)[i] = lt_pattern_word(LT_PATTERNS, i);
    }
    for (int copy = 0; copy < N_COPIES; copy++) {
        const double start = lt_clock_s();
        double middle;
        LT_TRY_DONE(be->upload(q, there, from, bytes));
        LT_TRY_DONE(be->sync(q));
        middle = lt_clock_s();
        LT_TRY_DONE(be->download(q, back, there, bytes));
        LT_TRY_DONE(be->sync(q));
        *up_gbps = faster(*up_gbps, bytes, middle - start);
        *down_gbps = faster(*down_gbps, bytes, lt_clock_s() - middle);
    }
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        *wrong += ((uint64_t *)from)[i] != ((uint64_t *)back)[i];
    }
done:
    be->host_release(device, from, bytes);
    be->host_release(device, back, bytes);
    if (there != NULL) {
        be->release(device, there, bytes);
    }
    if (q != NULL) {
        be->queue_close(q);
    }
    return err;
}

/* Test the device's memory in pieces of PIECE bytes. */
static lt_err run_patterns(lt_device *device, lt_queue *q, void **pieces, size_t n, uint64_t *host,
                           double *wrong) {
    const lt_backend *be = device->backend;
    for (int pattern = 0; pattern < LT_PATTERNS; pattern++) {
        for (size_t p = 0; p < n; p++) {
            for (size_t i = 0; i < PIECE / sizeof *host; i++) {
                host[i] = lt_pattern_word(pattern, p * (PIECE / sizeof *host) + i);
            }
            LT_TRY(be->upload(q, pieces[p], host, PIECE));
            LT_TRY(be->sync(q));
        }
        for (size_t p = 0; p < n; p++) {
            LT_TRY(be->download(q, host, pieces[p], PIECE));
            LT_TRY(be->sync(q));
            for (size_t i = 0; i < PIECE / sizeof *host; i++) {
                *wrong += host[i] != lt_pattern_word(pattern, p * (PIECE / sizeof *host) + i);
            }
        }
    }
    return LT_OK;
}

lt_err lt_patterns_run(lt_device *device, size_t bytes, double *wrong) {
    lt_err err = LT_OK;
    const lt_backend *be = device->backend;
    const size_t n = bytes / PIECE > 0 ? bytes / PIECE : 1;
    void **pieces = calloc(n, sizeof *pieces), *host = NULL;
    lt_queue *q = NULL;

    if (pieces == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "memory patterns");
    }
    LT_TRY_DONE(be->queue_open(device, &q));
    LT_TRY_DONE(be->host_alloc(device, &host, PIECE, "memory patterns"));
    for (size_t p = 0; p < n; p++) {
        LT_TRY_DONE(be->alloc(device, &pieces[p], PIECE, "memory patterns"));
    }
    LT_TRY_DONE(run_patterns(device, q, pieces, n, host, wrong));
done:
    for (size_t p = 0; pieces != NULL && p < n && pieces[p] != NULL; p++) {
        be->release(device, pieces[p], PIECE);
    }
    be->host_release(device, host, PIECE);
    if (q != NULL) {
        be->queue_close(q);
    }
    free(pieces);
    return err;
}

static lt_err run_gpu(gpu_work *w) {
    lt_err err = LT_OK;
    const double burn_s = w->plan->burn_s;
    lt_device *device = NULL;
    double flops = 0.0;
    size_t left = 0;

    LT_TRY(lt_device_open(&device, LT_DEVICE_CUDA, w->index));
    w->copy_wrong = 0.0;
    LT_TRY_DONE(lt_copies_run(device, COPY_BYTES, &w->up_gbps, &w->down_gbps, &w->copy_wrong));
    LT_TRY_DONE(lt_known_run(device, LT_BF16, SIDE, burn_s > 0.0 ? burn_s : GPU_S, &w->products,
                             &w->wrong));
    LT_TRY_DONE(lt_matmul_peak(&flops, device, LT_BF16));
    w->tflops = flops * 1e-12;
    if (burn_s > 0.0) {
        LT_TRY_DONE(device->backend->memory_left(device, &left));
        w->pattern_wrong = 0.0;
        LT_TRY_DONE(lt_patterns_run(device, (size_t)((double)left * w->plan->memory_share),
                                    &w->pattern_wrong));
    }
done:
    lt_device_close(device);
    return err;
}

static void *gpu_thread(void *arg) {
    gpu_work *w = arg;
    lt_failure_keep(&w->failure, run_gpu(w));
    return NULL;
}

/* Add the results of a GPU. One on which work returns an error, and not wrong bits, has failed,
 * too. */
static void add_work(lt_facts *f, const gpu_work *w) {
    char object[16];
    const bool failed = lt_failure_raise(&w->failure) != LT_OK;

    snprintf(object, sizeof object, "gpu%d", w->index);
    if (failed) {
        lt_facts_skip(f, object, "%s", lt_error_message());
    }
    lt_facts_add(f, LT_CHECK_GPU_PRODUCTS, object, w->wrong + failed);
    lt_facts_add(f, LT_CHECK_GPU_COPIES, object, w->copy_wrong);
    if (!failed) {
        lt_facts_add(f, LT_CHECK_GPU_UPLOAD, object, w->up_gbps);
        lt_facts_add(f, LT_CHECK_GPU_DOWNLOAD, object, w->down_gbps);
        lt_facts_add(f, LT_CHECK_GPU_FLOPS, object, w->tflops);
        lt_facts_add(f, LT_CHECK_GPU_PATTERNS, object, w->pattern_wrong);
    }
}

lt_err lt_facts_of_gpu_work(lt_facts *f, const lt_work_plan *p) {
    int n = 0, n_started = 0;
    gpu_work *all;

    for (int i = 0; i < f->n_gpus; i++) { /* Measured before our own work uses memory. */
        const lt_gpu_reading *g = &f->gpus[i];
        char object[16];
        snprintf(object, sizeof object, "gpu%d", g->index);
        lt_facts_add(f, LT_CHECK_GPU_IN_USE, object,
                     g->memory_used_mib / (g->memory_used_mib + g->memory_free_mib));
    }
    if (lt_cuda_count(&n) != LT_OK || n == 0) {
        return LT_OK; /* Tier 1 reports missing GPUs. */
    }
    all = calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "work of %d GPUs", n);
    }
    for (; n_started < n; n_started++) {
        all[n_started] = (gpu_work){
            .index = n_started, .plan = p, .copy_wrong = NAN, .tflops = NAN, .pattern_wrong = NAN};
        if (pthread_create(&all[n_started].thread, NULL, gpu_thread, &all[n_started]) != 0) {
            break;
        }
    }
    for (int i = 0; i < n_started; i++) {
        pthread_join(all[i].thread, NULL);
        add_work(f, &all[i]);
    }
    free(all);
    if (n_started < n) {
        LT_FAIL(LT_ERR_OOM, "thread %d of %d, one for each GPU", n_started, n);
    }
    return LT_OK;
}
