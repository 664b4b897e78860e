/* nvml.h: clocks, power, temperature, ECC and links of a GPU, from NVIDIA's management library,
 * which is opened with dlopen. */
#ifndef LT_KERNELS_CUDA_NVML_H
#define LT_KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    int sm_mhz, memory_mhz, sm_mhz_max;
    int temperature_c;
    double power_w, power_limit_w;
    /* Reasons, as NVML's bit mask: 0x4 is the power cap, 0x20 and 0x40 heat. */
    unsigned long long throttle;
    long long ecc_uncorrected; /* Since boot; -1: not known. */
    bool ecc;
    int n_nvlinks; /* Active ones. */
} lt_nvml_reading;

/* Load the library. UNSUPPORTED: it is missing; DEVICE: it does not find its driver. */
LT_MUST_USE lt_err lt_nvml_open(void);
/* A function of the loaded library; NULL: it has none of that name. For readings that are not
 * declared here (platform/health/nvml.c). */
void *lt_nvml_symbol(const char *name);

/* Read the GPU with this PCI id ("0000:18:00.0"). UNSUPPORTED without the library; fields that the
 * GPU does not report are 0. */
LT_MUST_USE lt_err lt_nvml_read(lt_nvml_reading *out, const char *pci);

/* Joules that the GPU has used since its driver was loaded. UNSUPPORTED if NVML or the GPU does not
 * count them. */
LT_MUST_USE lt_err lt_nvml_energy(double *joules, const char *pci);

#endif
