/* peak.h: the rate of a backend's own matrix product on this machine: the peak of which MFU is a
 * share. `lateen train`, `bench` and `doctor` all use it, so their percentages refer to the same
 * number. */
#ifndef LT_KERNELS_PEAK_H
#define LT_KERNELS_PEAK_H

#include "tensor/backend.h"

/* FLOP/s of a square product in dtype, the best of a few runs (0.1 s), of sizes that the device has
 * memory for. */
LT_MUST_USE lt_err lt_matmul_peak(double *flops, lt_device *device, lt_dtype dtype);

/* The peak of a training run: LATEEN_PEAK_GFLOPS of the environment if it is set, for machines
 * whose peak is known and for many short runs, else measured. */
LT_MUST_USE lt_err lt_matmul_peak_known(double *flops, lt_device *device, lt_dtype dtype);

/* MFU: rate, the FLOP/s that a step reached, as a share of *peak, 0 to 1. A rate above the peak
 * means that the machine was busy when the peak was measured: *peak is then measured again, on a
 * CPU, where that is quick, and is at least the rate. */
LT_MUST_USE lt_err lt_matmul_peak_share(double *share, double *peak, double rate, lt_device *device,
                                        lt_dtype dtype);

#endif
