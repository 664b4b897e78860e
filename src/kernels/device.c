/* device.c: from the name of a device to its backend. */
#include <stdlib.h>

#include "base/error.h"
#include "tensor/backend.h"

lt_err lt_device_backend(const lt_backend **out, lt_device device) {
    const lt_backend *gpu = device == LT_DEVICE_CPU ? NULL : lt_backend_cuda();
    LT_ASSERT(out != NULL);
    if (gpu == NULL && device == LT_DEVICE_CUDA) {
        return lt_error_prefix(LT_ERR_UNSUPPORTED, "device cuda");
    }
    *out = gpu != NULL ? gpu : lt_backend_cpu();
    return LT_OK;
}

/* Each costs a channel and its memory; copies have others. Serving runs one step at a time
 * (docs/speed/start-up.md). */
void lt_device_few_queues(void) {
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 0);
}
