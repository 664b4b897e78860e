/* scratch.c: see scratch.h. A pthread key's destructor frees the buffers when the thread ends. */
#include "kernels/cpu/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct {
    void *data[LT_CPU_SLOT_COUNT];
    size_t bytes[LT_CPU_SLOT_COUNT];
} scratch_set;

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void scratch_free(void *set) {
    scratch_set *s = set;
    for (int i = 0; i < LT_CPU_SLOT_COUNT; i++) {
        free(s->data[i]);
    }
    free(s);
}

/* The main thread ends by exit(), which runs no key destructors: free its set here, so that leak
 * checkers stay silent. */
static void scratch_at_exit(void) {
    scratch_set *s = pthread_getspecific(scratch_key);
    if (s != NULL) {
        pthread_setspecific(scratch_key, NULL);
        scratch_free(s);
    }
}

static void scratch_init(void) {
    const int rc = pthread_key_create(&scratch_key, scratch_free);
    LT_ASSERT(rc == 0);
    atexit(scratch_at_exit);
}

lt_err lt_cpu_scratch(void *out, lt_cpu_slot slot, size_t bytes) {
    LT_ASSERT(slot < LT_CPU_SLOT_COUNT);
    pthread_once(&scratch_once, scratch_init);
    scratch_set *s = pthread_getspecific(scratch_key);
    if (s == NULL) {
        s = calloc(1, sizeof *s);
        if (s == NULL || pthread_setspecific(scratch_key, s) != 0) {
            free(s);
            LT_FAIL(LT_ERR_OOM, "scratch of a CPU thread");
        }
    }
    if (s->bytes[slot] < bytes) {
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        free(s->data[slot]);
        s->bytes[slot] = 0;
        s->data[slot] = aligned_alloc(2 << 20, (rounded + (2 << 20) - 1) / (2 << 20) * (2 << 20));
        if (s->data[slot] == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu bytes of CPU kernel scratch", rounded);
        }
        s->bytes[slot] = rounded;
    }
    memcpy(out, &s->data[slot], sizeof(void *)); /* out points to a pointer of any type. */
    return LT_OK;
}
