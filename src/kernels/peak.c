/* peak.c: see peak.h. The product is as large as keeps the machine busy and as small as costs nothing at start: on a host 2.1 GFLOP. */
#include "kernels/peak.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/ops.h"

#define SIDE_HOST   1024
#define SIDE_DEVICE 4096
#define N_ROUNDS    4

/* Fill m with small normal numbers, by way of the host. */
static lt_err fill(const lt_backend *be, lt_queue *q, void *m, size_t bytes) {
    lt_err err = LT_OK;
    void *host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "peak measurement: %zu bytes", bytes);
    }
    memset(host, 0x3C, bytes); /* 0.0115 in either type. */
    LT_TRY_DONE(be->upload(q, m, host, bytes));
    LT_TRY_DONE(be->sync(q));
done:
    free(host);
    return err;
}

static lt_err one_round(double *flops, const lt_backend *be, lt_queue *q, void *const m[3],
                        lt_dtype dtype, int64_t side) {
    const double start = lt_clock_s();
    const lt_matmul_args a = {.y = lt_tensor_2d(m[0], dtype, side, side),
                              .a = lt_tensor_2d(m[1], dtype, side, side),
                              .b = lt_tensor_2d(m[2], dtype, side, side),
                              .trans_b = true};
    double rate;
    LT_TRY(be->ops->matmul(q, &a));
    LT_TRY(be->sync(q));
    rate = 2.0 * (double)side * (double)side * (double)side / (lt_clock_s() - start);
    *flops = rate > *flops ? rate : *flops;
    return LT_OK;
}

lt_err lt_matmul_peak(double *flops, const lt_backend *be, lt_dtype dtype) {
    const int64_t side = be->host_memory ? SIDE_HOST : SIDE_DEVICE;
    const size_t bytes = (size_t)(side * side) * lt_dtype_bytes(dtype);
    lt_err err = LT_OK;
    void *m[3] = {NULL};
    lt_queue *q = NULL;

    LT_ASSERT(flops != NULL && be != NULL);
    *flops = 0.0;
    LT_TRY_DONE(be->queue_open(&q));
    for (int i = 0; i < 3; i++) {
        LT_TRY_DONE(be->alloc(&m[i], bytes, "peak measurement"));
        LT_TRY_DONE(fill(be, q, m[i], bytes));
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        LT_TRY_DONE(one_round(flops, be, q, m, dtype, side));
    }
done:
    for (int i = 0; i < 3; i++) {
        if (m[i] != NULL) {
            be->release(m[i], bytes);
        }
    }
    if (q != NULL) {
        be->queue_close(q);
    }
    return err;
}
