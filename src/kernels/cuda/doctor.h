/* doctor.h: the properties and measured rates of a GPU, for `lateen doctor`. */
#ifndef LT_KERNELS_CUDA_DOCTOR_H
#define LT_KERNELS_CUDA_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>

#include "lateen/device.h"

/* A new JSON object of an open GPU: name, arch, sms, memory_bytes, driver; from NVML clocks, power,
 * temperature, ecc, nvlinks, peers; with `measure` copy_gbps and bf16_tflops (a second). Fields
 * that cannot be had are left out. */
LT_MUST_USE lt_err lt_cuda_doctor(json_t **out, lt_device *device, bool measure);

#endif
