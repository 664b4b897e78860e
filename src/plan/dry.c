/* dry.c: see dry.h. */
#include "plan/dry.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "kernels/host.h"
#include "model/alloc.h"
#include "tensor/backend.h"
#include "train/optimiser.h"

struct lt_queue {
    lt_device *device;         /* First: lt_queue_device. */
    const lt_dry_rates *rates; /* NULL: time is not counted. */
    lt_dry_step so_far;
};

/* Addresses without memory: an access ends the process. */
static lt_err dry_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    void *const p = mmap(NULL, bytes > 0 ? bytes : 1, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        LT_FAIL(LT_ERR_OOM, "%s: no addresses for %.1f GiB", what, (double)bytes / 0x1p30);
    }
    *out = p;
    return LT_OK;
}

static void dry_release(lt_device *d, void *data, size_t bytes) {
    (void)d;
    if (data != NULL) {
        (void)munmap(data, bytes > 0 ? bytes : 1);
    }
}

static lt_err dry_queue_open(lt_device *d, lt_queue **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_OOM, "queue");
    }
    (*out)->device = d;
    return LT_OK;
}

static void dry_queue_close(lt_queue *q) {
    free(q);
}

static lt_err dry_sync(lt_queue *q) {
    (void)q;
    return LT_OK;
}

static lt_err dry_upload(lt_queue *q, void *dst, const void *host, size_t bytes) {
    (void)q, (void)dst, (void)host, (void)bytes;
    return LT_OK;
}

static lt_err dry_download(lt_queue *q, void *host, const void *src, size_t bytes) {
    (void)q, (void)src;
    memset(host, 0, bytes);
    return LT_OK;
}

static void count_stream(lt_queue *q, double bytes) {
    if (q->rates != NULL) {
        q->so_far.stream_s += q->rates->stream(q->rates->ctx, bytes);
    }
}

static lt_err dry_zero(lt_queue *q, void *dst, size_t bytes) {
    (void)dst;
    count_stream(q, (double)bytes);
    return LT_OK;
}

static lt_err dry_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                              int64_t n) {
    (void)dst, (void)stride_bytes;
    count_stream(q, (double)piece_bytes * (double)n);
    return LT_OK;
}

static lt_err dry_copy(lt_queue *q, void *dst, const void *src, size_t bytes) {
    (void)dst, (void)src;
    count_stream(q, 2.0 * (double)bytes);
    return LT_OK;
}

static lt_err dry_order(lt_queue *after, lt_queue *before) {
    (void)after, (void)before;
    return LT_OK;
}

static lt_err count_op(lt_queue *q, lt_op op, const void *args) {
    if (q->rates != NULL) {
        q->so_far.calls[op]++;
        q->so_far.ops_s[op] += q->rates->clock(q->rates->ctx, op, args);
    }
    return LT_OK;
}
#define DRY_OP(name, args)                                                                         \
    static lt_err dry_##name(lt_queue *q, const args *a) {                                         \
        return count_op(q, LT_OP_##name, a);                                                       \
    }
LT_OP_MAP(DRY_OP)
#define DRY_FIELD(name, args) .name = dry_##name,
static const lt_ops dry_ops = {LT_OP_MAP(DRY_FIELD)};

static const lt_backend dry_backend = {.name = "dry",
                                       .ops = &dry_ops,
                                       .host_memory = false,
                                       .dry = true,
                                       .alloc = dry_alloc,
                                       .release = dry_release,
                                       .queue_open = dry_queue_open,
                                       .queue_close = dry_queue_close,
                                       .sync = dry_sync,
                                       .upload = dry_upload,
                                       .download = dry_download,
                                       .zero = dry_zero,
                                       .zero_pieces = dry_zero_pieces,
                                       .copy = dry_copy,
                                       .host_alloc = lt_host_alloc,
                                       .host_release = lt_host_release,
                                       .order = dry_order};

/* Queue what training queues for one step (train/step.c). */
static lt_err queue_step(lt_pass *pass, lt_optimiser *optimiser, const lt_recipe *r,
                         const lt_pass_options *o, int64_t micros) {
    lt_err err = LT_OK;
    const size_t n = (size_t)(o->batch * o->seq);
    const lt_step_plan plan = lt_recipe_plan(r, 1, 0);
    int32_t *ids = calloc(n, sizeof *ids);
    lt_pass_result result = {0};
    if (ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "rows of tokens");
    }
    const lt_pass_batch b = {.batch = o->batch, .seq = o->seq, .tokens = ids, .labels = ids};
    LT_TRY_DONE(lt_pass_zero_gradients(pass));
    for (int64_t i = 0; i < micros; i++) {
        LT_TRY_DONE(lt_pass_stage(pass, &b));
        LT_TRY_DONE(lt_pass_train_staged(pass, 1.0f));
        LT_TRY_DONE(lt_pass_collect(pass, &result));
    }
    LT_TRY_DONE(lt_optimiser_sumsq(optimiser, lt_pass_gradients(pass)));
    LT_TRY_DONE(lt_optimiser_step(optimiser, lt_pass_gradients(pass), 1.0f, &plan));
done:
    free(ids);
    return err;
}

lt_err lt_dry_step_run(lt_dry_step *out, const lt_recipe *r, const lt_model_spec *spec,
                       lt_dtype dtype, const lt_pass_options *o, int64_t micros,
                       const lt_dry_rates *rates) {
    lt_err err = LT_OK;
    lt_device device = {.backend = &dry_backend};
    const lt_model_options options = {.dtype = dtype, .trainable = true, .device = &device};
    lt_pass_options eager = *o;
    lt_model *m = NULL;
    lt_pass *pass = NULL;
    lt_optimiser optimiser = {0};
    lt_queue *q;

    eager.eager = true;
    LT_TRY(lt_model_alloc(&m, spec, &options));
    LT_TRY_DONE(lt_pass_open(&pass, m, &eager));
    q = lt_pass_queue(pass);
    LT_TRY_DONE(lt_optimiser_open(&optimiser, r, m, q));
    q->rates = rates;
    LT_TRY_DONE(queue_step(pass, &optimiser, r, &eager, micros));
    *out = q->so_far;
    out->step_s = out->stream_s;
    for (int op = 0; op < LT_OP_COUNT; op++) {
        out->step_s += out->ops_s[op];
    }
done:
    lt_optimiser_close(&optimiser);
    lt_pass_close(pass);
    lt_model_close(m);
    return err;
}
