/* bench.h: `lateen bench kernels`: checks and timings of the GPU kernels, one function an op, one
 * row a measurement.
 *
 * An op's bench first compares its kernels with products and sums in double on the GPU's own inputs
 * (odd shapes, poisoned outputs, bit-identical repeats), then times them beside the peer with
 * timing.h. Rows go to the terminal and to a JSON file, from which docs/kernels.md is made. A new
 * op needs a function here and a row in bench.c's table. */
#ifndef LT_KERNELS_CUDA_BENCH_H
#define LT_KERNELS_CUDA_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/peer.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/timing.h"

typedef struct {
    lt_device *device;
    lt_cuda *gpu; /* The device's. */
    CUstream stream;
    lt_cublas *blas; /* NULL if cuBLASLt is missing. */
    lt_peer peer;    /* Measured in turn with attention; to NULL: no peer. */
    FILE *to;
    json_t *rows;          /* Array; lt_bench_row appends. */
    const char *json_path; /* Where the rows are written, after each one; "": nowhere. */
    /* Time only rows whose shape contains one of these, separated by commas; "" all. */
    const char *shape;
    bool ladder; /* Time every rung instead of only the shipped kernel. */
    bool check_only;
    int rounds;
    double sustained_s; /* 0: no sustained figures. */
    double copy_gbps;   /* Measured first: the limit of memory-bound ops. */
    int n_failed;       /* Number of failed checks. */
} lt_bench;

/* One measurement; 0 or NULL if it does not apply. flops and bytes are the least work of one
 * run. */
typedef struct {
    const char *op, *name, *idea, *shape;
    int rung;
    double ms, ms_best, ms_sustained, flops, bytes;
    /* The machine's limit in the unit that binds: flop/s if flops > 0 and limit_is_flops, else
     * bytes/s. */
    double limit;
    bool limit_is_flops, peer;
    double peer_ms;                   /* The vendor's time for the same shape in the same run. */
    bool peer_lacks;                  /* The vendor's library has no such kernel. */
    double error_max, error_relative; /* Against double; 0: not known. */
    lt_cuda_launched took;            /* The share of an SM that a rung takes. */
    lt_nvml_reading state;            /* sm_mhz 0: not read. */
} lt_bench_result;

void lt_bench_row(lt_bench *b, const lt_bench_result *r);
/* Report a check: prints it if it failed, and counts it. */
void lt_bench_check(lt_bench *b, const char *op, const char *what, bool good, const char *fmt, ...)
    LT_PRINTF(5, 6);

/* The share of an SM that the kernel queued by t takes; queues one more run of it. */
LT_MUST_USE lt_err lt_bench_took(lt_bench *b, lt_cuda_launched *out, const lt_timing *t);

/* Whether the options leave this row out. */
bool lt_bench_skips(const lt_bench *b, const char *shape);

/* If err is not OK, the row could not be measured: print which and why, and count it. The other
 * rows are still measured. */
void lt_bench_failed(lt_bench *b, const char *op, const char *shape, lt_err err);

/* Fill x with normal numbers of a type named as in types.cuh ("fp32", "bf16"); integers: with small
 * integers instead. */
LT_MUST_USE lt_err lt_bench_random(lt_bench *b, void *x, int64_t n, const char *dtype,
                                   uint64_t seed, float scale, bool integers);
/* |x - ref| / |ref|, the greatest |x - ref| / bound (bound NULL: 0), and the number of elements
 * that are not finite. x is (rows, cols) with row stride ld; ref and bound are double, contiguous,
 * on the device. */
typedef struct {
    double relative, scaled_max, n_bad;
} lt_bench_error;
LT_MUST_USE lt_err lt_bench_compare(lt_bench *b, lt_bench_error *out, const void *x,
                                    const char *dtype, const double *ref, const double *bound,
                                    int64_t rows, int64_t cols, int64_t ld);
/* ref = alpha op(a) op(b) + beta c0 in double, and the same of absolute values into bound. Strides
 * in elements. */
typedef struct {
    int m, n, k, ldc;
    int64_t a_row, a_col, b_row, b_col;
    const void *a, *b;
    const float *c0;
    float alpha, beta;
    const char *dtype;
} lt_bench_gemm;
LT_MUST_USE lt_err lt_bench_gemm_ref(lt_bench *b, double *ref, double *bound,
                                     const lt_bench_gemm *g);

/* ops: comma-separated names, "" for all. shape: parts of rows' shapes, commas between, "" for all
 * rows. json_path "" writes none. peer "" is none, else a command of peer.h for attention's rows:
 * to the line "forward|backward B T HEADS DIM causal|full" it answers with milliseconds. DEVICE
 * when a check failed. */
typedef struct {
    const char *ops, *shape, *json_path, *peer;
    bool ladder, check_only;
    int rounds;
    double sustained_s;
} lt_bench_options;
LT_MUST_USE lt_err lt_bench_kernels(FILE *to, const lt_bench_options *o);

/* Benches of one op each. */
LT_MUST_USE lt_err lt_bench_sgemm(lt_bench *b);
LT_MUST_USE lt_err lt_bench_gemm_ops(lt_bench *b);
LT_MUST_USE lt_err lt_bench_attention(lt_bench *b);
LT_MUST_USE lt_err lt_bench_memory_ops(lt_bench *b);
LT_MUST_USE lt_err lt_bench_thesis(lt_bench *b);
LT_MUST_USE lt_err lt_bench_decode(lt_bench *b);
LT_MUST_USE lt_err lt_bench_quant(lt_bench *b);
LT_MUST_USE lt_err lt_bench_scaled(lt_bench *b);

#endif
