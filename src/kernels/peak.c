/* peak.c: see peak.h. On a CPU, products start at 2.1 GFLOP, a few milliseconds, and their side
 * doubles until one takes long enough to show the peak. On a device, all sizes from 34 MFLOP to 1.1
 * TFLOP run, because a small product that waits for another process's work looks slow. The series
 * stops after a size that took a tenth of a second twice, which no GPU needs, because an emulated
 * device (tests/emu, the tests' device without memory) would need hours. */
#include "kernels/peak.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/ops.h"

#define SIDE_LEAST        1024
#define SIDE_LEAST_DEVICE 256
#define SIDE_MOST         8192
#define LONG_S            1e-3
/* Time spent on one size; another round would not change the result. */
#define ENOUGH_S 0.1
/* The best round counts, because a busy machine may be idle during one of them. */
#define N_ROUNDS 8

/* Fill m with small normal numbers, copied from the host. */
static lt_err fill(const lt_backend *be, lt_queue *q, void *m, size_t bytes) {
    lt_err err = LT_OK;
    void *host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "peak measurement: %zu bytes", bytes);
    }
    memset(host, 0x3C, bytes); /* Each element is 0.0115 in either type. */
    LT_TRY_DONE(be->upload(q, m, host, bytes));
    LT_TRY_DONE(be->sync(q));
done:
    free(host);
    return err;
}

/* Seconds of the fastest of some products of size side x side x side. */
static lt_err time_product(double *seconds, lt_queue *q, lt_dtype dtype, int64_t side) {
    const size_t bytes = (size_t)(side * side) * lt_dtype_bytes(dtype);
    lt_err err = LT_OK;
    void *m[3] = {NULL};
    double spent = 0.0;
    lt_device *device = lt_queue_device(q);
    const lt_backend *be = device->backend;

    *seconds = INFINITY;
    for (int i = 0; i < 3; i++) {
        LT_TRY_DONE(be->alloc(device, &m[i], bytes, "peak measurement"));
        LT_TRY_DONE(fill(be, q, m[i], bytes));
    }
    for (int round = 0; round < N_ROUNDS && (round < (be->host_memory ? 1 : 2) || spent < ENOUGH_S);
         round++) {
        const double start = lt_clock_s();
        const lt_matmul_args a = {.y = lt_tensor_2d(m[0], dtype, side, side),
                                  .a = lt_tensor_2d(m[1], dtype, side, side),
                                  .b = lt_tensor_2d(m[2], dtype, side, side),
                                  .trans_b = true};
        LT_TRY_DONE(be->ops->matmul(q, &a));
        LT_TRY_DONE(be->sync(q));
        *seconds = fmin(*seconds, lt_clock_s() - start);
        spent += lt_clock_s() - start;
    }
done:
    for (int i = 0; i < 3; i++) {
        if (m[i] != NULL) {
            be->release(device, m[i], bytes);
        }
    }
    return err;
}

lt_err lt_matmul_peak(double *flops, lt_device *device, lt_dtype dtype) {
    lt_err err = LT_OK;
    lt_queue *q = NULL;
    const lt_backend *be = device->backend;

    LT_ASSERT(flops != NULL && device != NULL);
    *flops = 0.0;
    LT_TRY_DONE(be->queue_open(device, &q));
    for (int64_t side = be->host_memory ? SIDE_LEAST : SIDE_LEAST_DEVICE; side <= SIDE_MOST;
         side *= 2) {
        double seconds;
        err = time_product(&seconds, q, dtype, side);
        if (err == LT_ERR_OOM && *flops > 0.0) {
            err = LT_OK; /* The model has taken the memory; smaller products were measured. */
            break;
        }
        LT_TRY_DONE(err);
        *flops = fmax(*flops, 2.0 * (double)side * (double)side * (double)side / seconds);
        if (seconds > (be->host_memory ? LONG_S : ENOUGH_S)) {
            break;
        }
    }
done:
    if (q != NULL) {
        be->queue_close(q);
    }
    return err;
}

lt_err lt_matmul_peak_known(double *flops, lt_device *device, lt_dtype dtype) {
    const char *text = getenv("LATEEN_PEAK_GFLOPS");
    char *end = NULL;
    LT_ASSERT(flops != NULL && device != NULL);
    if (text == NULL) {
        return lt_matmul_peak(flops, device, dtype);
    }
    *flops = 1e9 * strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*flops) || *flops <= 0.0) {
        LT_FAIL(LT_ERR_ARG, "LATEEN_PEAK_GFLOPS is '%s', not a number above 0", text);
    }
    return LT_OK;
}

lt_err lt_matmul_peak_share(double *share, double *peak, double rate, lt_device *device,
                            lt_dtype dtype) {
    LT_ASSERT(share != NULL && peak != NULL && device != NULL);
    if (rate > *peak) {
        double again = rate;
        if (device->backend->host_memory) {
            LT_TRY(lt_matmul_peak(&again, device, dtype));
        }
        *peak = fmax(again, rate);
    }
    *share = rate / *peak;
    return LT_OK;
}
