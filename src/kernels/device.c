/* device.c: devices by kind and by name. See lateen/device.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/runtime.h"
#include "kernels/host.h"

#define MAX_INDEX 99999

/* The index of a GPU; -1: the text is not a number. */
static int index_of(const char *text) {
    const size_t n = strlen(text);
    return n == 0 || n > 5 || strspn(text, "0123456789") != n ? -1 : atoi(text);
}

static lt_err default_index(int *index) {
    const char *wish = getenv("LATEEN_CUDA_DEVICE");
    wish = wish == NULL || wish[0] == '\0' ? "0" : wish;
    *index = index_of(wish);
    if (*index < 0) {
        LT_FAIL(LT_ERR_ARG, "LATEEN_CUDA_DEVICE='%.40s' is not the number of a GPU", wish);
    }
    return LT_OK;
}

static lt_err open_on(lt_device *d, const lt_backend *backend, int index) {
    d->backend = backend;
    d->index = index;
    return backend->open != NULL ? backend->open(d) : LT_OK;
}

static lt_err open_gpu(lt_device *d, int index) {
    if (index == LT_DEVICE_DEFAULT) {
        LT_TRY(default_index(&index));
    }
    return open_on(d, lt_backend_cuda(), index);
}

/* The device that the text names. */
typedef struct {
    lt_device_kind kind;
    int index, n_threads; /* n_threads and cores are for a CPU. */
    char cores[256];
} wish;

static lt_err open_wish(lt_device *d, const wish *w) {
    if (w->kind != LT_DEVICE_CPU) {
        const lt_err err = open_gpu(d, w->index);
        if (err == LT_OK) {
            return LT_OK;
        }
        if (w->kind == LT_DEVICE_CUDA) {
            return lt_error_prefix(err, "device cuda");
        }
    }
    LT_TRY(open_on(d, lt_backend_cpu(), w->index == LT_DEVICE_DEFAULT ? 0 : w->index));
    const lt_err err = lt_host_own(d, w->n_threads, w->cores);
    if (err != LT_OK) {
        lt_host_close(d);
        return lt_error_prefix(err, "device cpu");
    }
    return LT_OK;
}

static lt_err open_new(lt_device **out, const wish *w) {
    lt_device *d = calloc(1, sizeof *d);
    lt_err err;
    if (d == NULL) {
        LT_FAIL(LT_ERR_OOM, "device");
    }
    err = open_wish(d, w);
    if (err != LT_OK) {
        free(d);
        return err;
    }
    *out = d;
    return LT_OK;
}

lt_err lt_device_open(lt_device **out, lt_device_kind kind, int index) {
    LT_ASSERT(out != NULL && index >= LT_DEVICE_DEFAULT && index <= MAX_INDEX);
    return open_new(out, &(wish){.kind = kind, .index = index});
}

static lt_err cores_keep(wish *w, const char *cores) {
    if (strlen(cores) >= sizeof w->cores) {
        LT_FAIL(LT_ERR_ARG, "device cpu: a list of cores of %zu characters", strlen(cores));
    }
    memcpy(w->cores, cores, strlen(cores) + 1);
    return LT_OK;
}

lt_err lt_device_open_cpu(lt_device **out, int n_threads, const char *cores) {
    wish w = {.kind = LT_DEVICE_CPU, .n_threads = n_threads};
    LT_ASSERT(out != NULL && cores != NULL);
    LT_TRY(cores_keep(&w, cores));
    return open_new(out, &w);
}

static lt_err name_read(wish *w, const char *name) {
    /* In the order of lt_device_kind. */
    static const char *const names[] = {"cpu", "cuda", "auto"};
    *w = (wish){.index = LT_DEVICE_DEFAULT};
    for (int i = 0; i < 3; i++) {
        w->kind = (lt_device_kind)i;
        if (strcmp(name, names[i]) == 0) {
            return LT_OK;
        }
    }
    if (strncmp(name, "cpu:", 4) == 0 && name[4] != '\0') {
        w->kind = LT_DEVICE_CPU;
        return cores_keep(w, name + 4);
    }
    w->kind = LT_DEVICE_CUDA;
    w->index = strncmp(name, "cuda:", 5) == 0 ? index_of(name + 5) : -1;
    if (w->index < 0) {
        LT_FAIL(LT_ERR_ARG, "device '%.40s' is not one of %s", name, LT_DEVICE_NAMES);
    }
    return LT_OK;
}

lt_err lt_device_name_kind(lt_device_kind *out, const char *name) {
    wish w;
    LT_TRY(name_read(&w, name));
    *out = w.kind;
    return LT_OK;
}

lt_err lt_device_open_named(lt_device **out, const char *name) {
    wish w;
    LT_TRY(name_read(&w, name));
    return open_new(out, &w);
}

lt_err lt_device_open_rank(lt_device **out, const char *name, int local_rank) {
    const char *env = getenv("LATEEN_CUDA_DEVICE");
    int n = 0;
    wish w;
    LT_TRY(name_read(&w, name));
    if (w.kind == LT_DEVICE_CPU) {
        return open_new(out, &w);
    }
    if (w.index != LT_DEVICE_DEFAULT) {
        LT_FAIL(LT_ERR_ARG, "device '%s' with several ranks: each takes a GPU of its own; say cuda",
                name);
    }
    /* The streams of a rank wait for those of other ranks (comm/peer.h). A stream that shared a
     * hardware queue with such a stream would wait, too. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if ((env == NULL || env[0] == '\0') && lt_cuda_count(&n) == LT_OK && n > 1) {
        w.index = local_rank;
        if (local_rank >= n) {
            LT_FAIL(LT_ERR_ARG, "rank %d of this machine has no GPU: there are %d", local_rank, n);
        }
    }
    return open_new(out, &w);
}

/* The work of the thread that opens a device, and its result. */
struct lt_device_opening {
    lt_device *device;
    wish wish;
    lt_err err;
    char message[512];
    bool apart; /* It runs on its own thread. */
    pthread_t thread;
};

static void *opening_run(void *arg) {
    struct lt_device_opening *o = arg;
    o->err = open_wish(o->device, &o->wish);
    if (o->err != LT_OK) {
        (void)snprintf(o->message, sizeof o->message, "%s", lt_error_message());
    }
    return NULL;
}

lt_err lt_device_open_async(lt_device **out, const char *name) {
    lt_err err = LT_OK;
    lt_device *d = calloc(1, sizeof *d);
    struct lt_device_opening *o = calloc(1, sizeof *o);
    if (d == NULL || o == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "device %s", name);
    }
    LT_TRY_DONE(name_read(&o->wish, name));
    o->device = d;
    o->apart = o->wish.kind != LT_DEVICE_CPU &&
               pthread_create(&o->thread, NULL, opening_run, o) == 0;
    if (!o->apart) {
        (void)opening_run(o);
    }
    d->opening = o;
    *out = d;
    return LT_OK;
done:
    free(o);
    free(d);
    return err;
}

lt_err lt_device_ready(lt_device *d) {
    struct lt_device_opening *o = d->opening;
    if (o != NULL && o->apart) {
        pthread_join(o->thread, NULL);
        o->apart = false;
    }
    if (o != NULL && o->err == LT_OK) {
        free(o);
        d->opening = NULL;
    }
    return d->opening == NULL ? LT_OK : lt_error_set(o->err, "%s", o->message);
}

void lt_device_close(lt_device *d) {
    if (d != NULL && lt_device_ready(d) != LT_OK) {
        free(d->opening);
        free(d);
    } else if (d != NULL) {
        if (d->backend->close != NULL) {
            d->backend->close(d);
        }
        free(d);
    }
}

/* Each queue costs a channel and its memory; copies have queues of their own. Serving runs one
 * step at a time (docs/speed/start-up.md). */
void lt_device_few_queues(void) {
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 0);
}
