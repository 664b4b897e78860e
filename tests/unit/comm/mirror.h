/* mirror.h: buffers for tests of verbs, which a world of GPUs copies to device memory. A test
 * takes and returns them as host memory; up and down copy them to the GPU and back, and `on`
 * gives their address there. */
#ifndef LT_TEST_MIRROR_H
#define LT_TEST_MIRROR_H

#include <stdlib.h>

#include "base/error.h"
#include "tensor/backend.h"

#define MIRROR_BYTES ((size_t)24 << 20)

/* For the rank of this thread: host memory and the memory of its GPU, byte for byte; NULL: a
 * world of host memory. */
static _Thread_local struct {
    lt_device *device;
    lt_queue *queue;
    char *host;
    void *data;
    size_t used;
} mirror;

static void *take(size_t bytes) {
    void *p = mirror.host + mirror.used;
    if (mirror.host == NULL) {
        return malloc(bytes);
    }
    mirror.used += (bytes + 255) / 256 * 256;
    LT_ASSERT(mirror.used <= MIRROR_BYTES);
    return p;
}

static void give(void *p) {
    if (mirror.host == NULL) {
        free(p);
    } else {
        mirror.used = 0; /* A case returns everything that it has taken. */
    }
}

static void *on(const void *p) {
    return mirror.host == NULL ? (void *)(uintptr_t)p
                               : (char *)mirror.data + ((const char *)p - mirror.host);
}

static lt_err up(const void *p, size_t bytes) {
    if (mirror.host == NULL || bytes == 0) {
        return LT_OK;
    }
    LT_TRY(mirror.device->backend->upload(mirror.queue, on(p), p, bytes));
    return mirror.device->backend->sync(mirror.queue);
}

static lt_err down(void *p, size_t bytes) {
    if (mirror.host == NULL || bytes == 0) {
        return LT_OK;
    }
    LT_TRY(mirror.device->backend->download(mirror.queue, p, on(p), bytes));
    return mirror.device->backend->sync(mirror.queue);
}

#endif
