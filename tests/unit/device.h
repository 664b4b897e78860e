/* device.h: devices for tests that name them by their table of functions. A test program opens
 * them from one thread and keeps them open until it ends. */
#ifndef LT_TESTS_UNIT_DEVICE_H
#define LT_TESTS_UNIT_DEVICE_H

#include <stdlib.h>

#include "base/error.h"
#include "tensor/backend.h"

/* The GPU, opened at the first call; NULL: there is none. */
static inline lt_device *gpu_device(void) {
    static lt_device *gpu;
    static bool asked;
    if (!asked) {
        asked = true;
        (void)!lt_device_open(&gpu, LT_DEVICE_CUDA, LT_DEVICE_DEFAULT);
    }
    return gpu;
}

/* LATEEN_TEST_CORE=1: run only the core cases, because an emulated GPU is slow
 * (tests/suites/38_emu_programs.sh); tests/long/emu.sh and a real GPU run all. */
static inline bool core_only(void) {
    return getenv("LATEEN_TEST_CORE") != NULL;
}

/* Its table of functions; NULL: there is no GPU. */
static inline const lt_backend *gpu_backend(void) {
    return gpu_device() != NULL ? gpu_device()->backend : NULL;
}

/* The device for this table of functions, which may be a test's own: the GPU if the table is one
 * of a GPU, else host memory. It is the same at every call. NULL for NULL. */
static inline lt_device *device_of(const lt_backend *b) {
    static lt_device devices[16];
    for (size_t i = 0; b != NULL; i++) {
        LT_ASSERT(i < sizeof devices / sizeof *devices);
        if (devices[i].backend == NULL) {
            devices[i] = b->open != NULL ? *gpu_device() : (lt_device){0};
            devices[i].backend = b;
        }
        if (devices[i].backend == b) {
            return &devices[i];
        }
    }
    return NULL;
}

#endif
