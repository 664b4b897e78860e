/* driver.c: opens the CUDA driver. See driver.h. The table is filled once per process and then only
 * read. */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

/* cuLaunchKernelEx with clusters, tensor maps: CUDA 12.0, driver 525. */
#define MIN_DRIVER_VERSION 12000

static lt_cu_api api;
static lt_err load_err = LT_OK;
static char load_message[512];
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static void load_failed(lt_err err, const char *fmt, ...) LT_PRINTF(2, 3);
static void load_failed(lt_err err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(load_message, sizeof load_message, fmt, ap);
    va_end(ap);
    load_err = err;
}

static void load(void) {
    int version = 0;
    CUresult r;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        load_failed(LT_ERR_UNSUPPORTED,
                    "no NVIDIA driver on this machine (libcuda.so.1 cannot be opened)");
        return;
    }
    /* Read the version first: an old driver lacks symbols, and its version says more than their
     * names. */
    *(void **)&api.cuDriverGetVersion = dlsym(lib, "cuDriverGetVersion");
    if (api.cuDriverGetVersion == NULL || api.cuDriverGetVersion(&version) != LT_CU_SUCCESS) {
        load_failed(LT_ERR_UNSUPPORTED, "libcuda.so.1 does not tell its version");
        return;
    }
    if (version < MIN_DRIVER_VERSION) {
        load_failed(
            LT_ERR_UNSUPPORTED,
            "the NVIDIA driver is too old: it serves CUDA %d.%d, Lateen needs 12.0 (driver 525) "
            "or newer",
            version / 1000, version % 1000 / 10);
        return;
    }
#define LOAD(field, symbol, params)                                                                \
    *(void **)&api.field = dlsym(lib, symbol);                                                     \
    if (api.field == NULL) {                                                                       \
        load_failed(LT_ERR_UNSUPPORTED, "the NVIDIA driver (CUDA %d.%d) has no symbol %s",         \
                    version / 1000, version % 1000 / 10, symbol);                                  \
        return;                                                                                    \
    }
    LT_CU_MAP(LOAD)
#undef LOAD
    r = api.cuInit(0);
    if (r != LT_CU_SUCCESS) {
        const char *text = NULL;
        api.cuGetErrorString(r, &text);
        load_failed(r == LT_CU_ERROR_NO_DEVICE ? LT_ERR_UNSUPPORTED : LT_ERR_DEVICE,
                    "the NVIDIA driver does not start: %s (code %d)", text ? text : "?", (int)r);
    }
}

lt_err lt_cu_load(const lt_cu_api **out) {
    LT_ASSERT(out != NULL);
    pthread_once(&load_once, load);
    if (load_err != LT_OK) {
        LT_FAIL(load_err, "%s", load_message);
    }
    *out = &api;
    return LT_OK;
}

lt_err lt_cu_check(CUresult r, const char *fmt, ...) {
    char context[768];
    const char *name = NULL, *text = NULL;
    va_list ap;
    if (r == LT_CU_SUCCESS) {
        return LT_OK;
    }
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    if (api.cuGetErrorName != NULL) {
        api.cuGetErrorName(r, &name);
        api.cuGetErrorString(r, &text);
    }
    return lt_error_set(r == LT_CU_ERROR_OUT_OF_MEMORY ? LT_ERR_OOM : LT_ERR_DEVICE, "%s: %s (%s)",
                        context, text ? text : "unknown failure", name ? name : "?");
}
