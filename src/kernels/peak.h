/* peak.h: what a backend's own matrix product reaches on this machine: the peak that MFU is a share
 * of. `lateen train`, `bench` and `doctor` all ask here, so their percentages are of one number. */
#ifndef LT_KERNELS_PEAK_H
#define LT_KERNELS_PEAK_H

#include "tensor/backend.h"

/* FLOP/s of a square product in dtype, the best of a few runs (0.1 s). */
LT_MUST_USE lt_err lt_matmul_peak(double *flops, lt_device *device, lt_dtype dtype);

/* MFU: rate, FLOP/s that a step reached, as a share of *peak, 0 to 1. A rate above the peak tells
 * that the machine was busy while that was measured: *peak is then measured again, on a CPU, where
 * that takes little, and is at least the rate. */
LT_MUST_USE lt_err lt_matmul_peak_share(double *share, double *peak, double rate, lt_device *device,
                                        lt_dtype dtype);

#endif
