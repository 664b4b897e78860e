/* world.c: see world.h. */
#include "ops/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tensor/block.h"

enum { GUARD_BYTES = 256, PATTERN = 0xFF, POISON = 0xFF, PAD_ELEMENTS = 3, ALIGNED_PAD = 16 };

int lt_world_owner(const lt_setup *s, int tensor) {
    const char *alias = s->tensors[tensor].alias;
    return alias == NULL ? tensor : (int)(lt_setup_find(s, alias) - s->tensors);
}

/* One past the last element of a view, in elements. */
static int64_t view_extent(const lt_tensor *v) {
    int64_t last = 0;
    for (int i = 0; i < v->n_dims; i++) {
        last += (v->shape[i] - 1) * v->stride[i];
    }
    return last + 1;
}

static lt_err open_block(lt_world *w, int i, bool strided) {
    const lt_case_tensor *t = &w->setup.tensors[i];
    const bool aligned = w->setup.c->aligned; /* Strided rows that are 16-byte aligned. */
    const int64_t pad = !strided ? 0 : aligned ? ALIGNED_PAD : PAD_ELEMENTS;
    const lt_tensor view = lt_case_view(t, NULL, pad);
    const bool blocks = lt_dtype_is_block(t->dtype);
    const size_t elem = blocks ? 1 : lt_dtype_bytes(t->dtype);
    const size_t extent = blocks ? lt_dtype_row_bytes(t->dtype, t->count)
                                 : (size_t)view_extent(&view) * elem;
    lt_world_block *b = &w->blocks[i];

    b->start = GUARD_BYTES + (strided && !aligned && !t->contiguous ? elem : 0);
    b->bytes = b->start + extent + GUARD_BYTES;
    b->image = malloc(b->bytes);
    b->before = malloc(b->bytes);
    if (b->image == NULL || b->before == NULL) {
        LT_FAIL(LT_ERR_OOM, "tensor %s: %zu bytes", t->name, b->bytes);
    }
    LT_TRY(w->backend->alloc(w->device, &b->device, b->bytes, t->name));
    *t->slot = lt_case_view(t, (unsigned char *)b->device + b->start, pad);
    return LT_OK;
}

/* The format of packed weights is private to the backend: only products that request them, and
 * the packing itself, get memory for them. */
static lt_err open_packed(lt_world *w) {
    w->packed_bytes = lt_setup_packed_bytes(&w->setup, w->op, w->device);
    if (w->packed_bytes > 0) {
        LT_TRY(w->backend->alloc(w->device, &w->packed, w->packed_bytes, "packed weights"));
        lt_setup_set_packed(&w->setup, w->op, w->packed, w->packed_bytes);
    }
    return LT_OK;
}

lt_device *lt_world_ref(void) {
    static lt_device ref;
    ref.backend = lt_backend_ref();
    return &ref;
}

lt_err lt_world_open(lt_world *w, lt_device *device, const lt_op_cases *o, const lt_case *c,
                     lt_dtype act, bool as_forward, bool strided) {
    memset(w, 0, sizeof *w);
    w->device = device;
    w->backend = device->backend;
    w->op = o->op;
    lt_setup_build(&w->setup, o, c, act, as_forward);
    LT_TRY(w->backend->queue_open(device, &w->queue));
    for (int i = 0; i < w->setup.n_tensors; i++) {
        const int owner = lt_world_owner(&w->setup, i);
        if (owner == i) {
            LT_TRY(open_block(w, i, strided));
        } else {
            *w->setup.tensors[i].slot = *w->setup.tensors[owner].slot;
        }
    }
    return open_packed(w);
}

void lt_world_close(lt_world *w) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        lt_world_block *b = &w->blocks[i];
        free(b->image);
        free(b->before);
        if (b->device != NULL) {
            w->backend->release(w->device, b->device, b->bytes);
        }
    }
    if (w->packed != NULL) {
        w->backend->release(w->device, w->packed, w->packed_bytes);
    }
    if (w->queue != NULL) {
        w->backend->queue_close(w->queue);
    }
    memset(w, 0, sizeof *w);
}

static void load(double *to, const unsigned char *from, lt_dtype dtype, int64_t n) {
    for (int64_t i = 0; dtype == LT_I32 && i < n; i++) {
        to[i] = (double)((const int32_t *)(const void *)from)[i];
    }
    for (int64_t i = 0; dtype == LT_I64 && i < n; i++) {
        to[i] = (double)((const int64_t *)(const void *)from)[i];
    }
    if (dtype != LT_I32 && dtype != LT_I64) {
        lt_convert(to, LT_F64, from, dtype, (size_t)n);
    }
}

static void store(unsigned char *to, lt_dtype dtype, const double *from, int64_t n) {
    for (int64_t i = 0; dtype == LT_I32 && i < n; i++) {
        ((int32_t *)(void *)to)[i] = (int32_t)from[i];
    }
    for (int64_t i = 0; dtype == LT_I64 && i < n; i++) {
        ((int64_t *)(void *)to)[i] = (int64_t)from[i];
    }
    if (dtype != LT_I32 && dtype != LT_I64) {
        lt_convert(to, dtype, from, LT_F64, (size_t)n);
    }
}

void lt_round_to(lt_dtype dtype, double *values, int64_t n) {
    enum { SOME = 512 };
    double raw[SOME];
    for (int64_t i = 0; lt_dtype_is_block(dtype) && i < n; i++) {
        /* Blocks are rounded together, when they are written. */
        values[i] = (double)(float)values[i];
    }
    for (int64_t i = 0; !lt_dtype_is_block(dtype) && i < n; i += SOME) {
        const int64_t some = n - i < SOME ? n - i : SOME;
        store((unsigned char *)raw, dtype, values + i, some);
        load(values + i, (unsigned char *)raw, dtype, some);
    }
}

/* A tensor in its block as runs of neighbouring elements, in row-major order, which is also the
 * order in memory. One of a block type is a single run of bytes. */
typedef struct {
    const lt_tensor *v;
    size_t start, elem;
    int n_outer; /* Number of dimensions outside a run. */
    int64_t n_runs, length;
} runs;

static runs runs_of(const lt_world *w, int tensor) {
    const lt_case_tensor *t = &w->setup.tensors[tensor];
    const lt_tensor *v = t->slot;
    runs r = {.v = v,
              .start = w->blocks[lt_world_owner(&w->setup, tensor)].start,
              .elem = 1,
              .n_runs = 1,
              .length = 1};
    if (lt_dtype_is_block(v->dtype)) {
        LT_ASSERT(t->contiguous);
        r.length = (int64_t)lt_dtype_row_bytes(v->dtype, t->count);
        return r;
    }
    r.elem = lt_dtype_bytes(v->dtype);
    r.n_outer = v->n_dims;
    while (r.n_outer > 0 && v->stride[r.n_outer - 1] == r.length) {
        r.length *= v->shape[--r.n_outer];
    }
    for (int d = 0; d < r.n_outer; d++) {
        r.n_runs *= v->shape[d];
    }
    return r;
}

/* Byte offset in the block of the i-th run. */
static size_t run_at(const runs *r, int64_t i) {
    int64_t at = 0;
    for (int d = r->n_outer - 1; d >= 0; d--) {
        at += i % r->v->shape[d] * r->v->stride[d];
        i /= r->v->shape[d];
    }
    return r->start + (size_t)at * r->elem;
}

/* Write whole rows of a block type, encoded. */
static void put_blocks(unsigned char *to, const lt_case_tensor *t, const double *values) {
    float *x = malloc((size_t)t->count * sizeof *x);
    LT_ASSERT(x != NULL && t->contiguous);
    for (int64_t i = 0; i < t->count; i++) {
        x[i] = (float)values[i];
    }
    lt_block_encode(to, t->dtype, x, (size_t)t->count);
    free(x);
}

/* Read whole rows of a block type, decoded. */
static void get_blocks(double *values, const lt_case_tensor *t, const unsigned char *from) {
    float *x = malloc((size_t)t->count * sizeof *x);
    LT_ASSERT(x != NULL && t->contiguous);
    lt_block_decode(x, t->dtype, from, (size_t)t->count);
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = (double)x[i];
    }
    free(x);
}

void lt_world_put(lt_world *w, int tensor, const double *values) {
    const lt_case_tensor *t = &w->setup.tensors[tensor];
    unsigned char *image = w->blocks[lt_world_owner(&w->setup, tensor)].image;
    if (lt_dtype_is_block(t->dtype)) {
        put_blocks(image + w->blocks[tensor].start, t, values);
        return;
    }
    const runs r = runs_of(w, tensor);
    for (int64_t i = 0; i < r.n_runs; i++) {
        store(image + run_at(&r, i), t->dtype, values + i * r.length, r.length);
    }
}

void lt_world_get(const lt_world *w, int tensor, double *values) {
    const lt_case_tensor *t = &w->setup.tensors[tensor];
    const unsigned char *image = w->blocks[lt_world_owner(&w->setup, tensor)].image;
    if (lt_dtype_is_block(t->dtype)) {
        get_blocks(values, t, image + w->blocks[tensor].start);
        return;
    }
    const runs r = runs_of(w, tensor);
    for (int64_t i = 0; i < r.n_runs; i++) {
        load(values + i * r.length, image + run_at(&r, i), t->dtype, r.length);
    }
}

static void poison(lt_world *w, int tensor) {
    const runs r = runs_of(w, tensor);
    for (int64_t i = 0; i < r.n_runs; i++) {
        memset(w->blocks[tensor].image + run_at(&r, i), POISON, (size_t)r.length * r.elem);
    }
}

void lt_world_fill(lt_world *w, const lt_values *v) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        lt_world_block *b = &w->blocks[i];
        if (b->image == NULL) {
            continue;
        }
        memset(b->image, PATTERN, b->bytes);
        if (w->setup.tensors[i].role == LT_ROLE_IN || w->setup.tensors[i].role == LT_ROLE_INOUT) {
            LT_ASSERT(v->values[i] != NULL);
            lt_world_put(w, i, v->values[i]);
        } else {
            poison(w, i);
        }
        memcpy(b->before, b->image, b->bytes);
    }
}

lt_err lt_world_run(lt_world *w, const lt_op_impl *impl) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        lt_world_block *b = &w->blocks[i];
        if (b->image != NULL) {
            LT_TRY(w->backend->upload(w->queue, b->device, b->before, b->bytes));
        }
    }
    LT_TRY(lt_setup_pack(&w->setup, w->op, w->device, w->queue, w->packed));
    LT_TRY(impl->run(w->queue, w->setup.args));
    LT_TRY(w->backend->sync(w->queue));
    for (int i = 0; i < w->setup.n_tensors; i++) {
        lt_world_block *b = &w->blocks[i];
        if (b->image != NULL) {
            LT_TRY(w->backend->download(w->queue, b->image, b->device, b->bytes));
        }
    }
    return w->backend->sync(w->queue);
}

/* True: bytes [from, to) of the block have not changed. */
static bool untouched(const lt_world_block *b, size_t from, size_t to) {
    return memcmp(b->image + from, b->before + from, to - from) == 0;
}

const char *lt_world_damage(const lt_world *w) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        const lt_case_tensor *t = &w->setup.tensors[i];
        const lt_world_block *b = &w->blocks[i];
        size_t from = 0;
        bool good = true;
        if (b->image == NULL) {
            continue;
        }
        if (t->role != LT_ROLE_IN) { /* Results may change, but only their own elements. */
            const runs r = runs_of(w, i);
            for (int64_t k = 0; k < r.n_runs; k++) {
                const size_t at = run_at(&r, k);
                good = good && untouched(b, from, at);
                from = at + (size_t)r.length * r.elem;
            }
        }
        if (!good || !untouched(b, from, b->bytes)) {
            return t->name;
        }
    }
    return NULL;
}

lt_err lt_values_fill(double *values, const lt_case_tensor *t, void *ctx) {
    lt_rng r = {.seed = 20260101};
    for (const char *s = t->c->name; *s != '\0'; s++) {
        r.seed = lt_rng_mix(r.seed ^ (uint64_t)*s);
    }
    for (const char *s = t->name; *s != '\0'; s++) {
        r.stream = lt_rng_mix(r.stream ^ (uint64_t)*s);
    }
    t->fill(values, t, &r);
    (void)ctx;
    return LT_OK;
}

static lt_err reserve(lt_values *v, int tensor, const lt_case_tensor *t) {
    v->values[tensor] = malloc((size_t)t->count * sizeof(double));
    if (v->values[tensor] == NULL) {
        LT_FAIL(LT_ERR_OOM, "values of %s", t->name);
    }
    return LT_OK;
}

/* Fill the inputs that need no forward run. */
static lt_err fill_inputs(lt_values *v, const lt_setup *s, lt_values_from *from, void *ctx) {
    for (int i = 0; i < s->n_tensors; i++) {
        const lt_case_tensor *t = &s->tensors[i];
        if ((t->role != LT_ROLE_IN && t->role != LT_ROLE_INOUT) || t->source != NULL) {
            continue;
        }
        LT_TRY(reserve(v, i, t));
        LT_TRY(from(v->values[i], t, ctx));
        lt_round_to(t->dtype, v->values[i], t->count);
    }
    return LT_OK;
}

lt_err lt_values_make(lt_values *v, const lt_setup *s, const lt_op_cases *o, lt_values_from *from,
                      void *ctx) {
    const lt_op_cases *f = o->forward != LT_OP_COUNT ? lt_all_op_cases[o->forward] : NULL;
    lt_setup typed;
    lt_world world = {0};
    lt_values inputs = {0};
    bool needs = false;
    lt_err err = fill_inputs(v, s, from, ctx);

    for (int i = 0; i < s->n_tensors; i++) {
        needs = needs || s->tensors[i].source != NULL;
    }
    if (err != LT_OK || !needs) {
        return err;
    }
    lt_setup_build(&typed, f, s->c, s->act, true);
    /* Values are rounded to the types of the case, then computed in F64. */
    LT_TRY_DONE(fill_inputs(&inputs, &typed, from, ctx));
    LT_TRY_DONE(lt_world_open(&world, lt_world_ref(), f, s->c, LT_F64, true, false));
    lt_world_fill(&world, &inputs);
    LT_TRY_DONE(lt_world_run(&world, lt_registry_list(lt_backend_ref(), f->op).impls));
    for (int i = 0; i < s->n_tensors; i++) {
        const lt_case_tensor *t = &s->tensors[i];
        const lt_case_tensor *source = t->source != NULL ? lt_setup_find(&world.setup, t->source)
                                                         : NULL;
        if (source == NULL) {
            continue;
        }
        LT_ASSERT(source->count == t->count);
        LT_TRY_DONE(reserve(v, i, t));
        lt_world_get(&world, (int)(source - world.setup.tensors), v->values[i]);
        lt_round_to(t->dtype, v->values[i], t->count);
    }
done:
    lt_values_free(&inputs);
    lt_world_close(&world);
    return err;
}

void lt_values_free(lt_values *v) {
    for (int i = 0; i < LT_SETUP_MAX_TENSORS; i++) {
        free(v->values[i]);
        v->values[i] = NULL;
    }
}

lt_err lt_values_want(lt_values *want, const lt_op_cases *o, const lt_case *c, const lt_values *v) {
    lt_world world = {0};
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_world_open(&world, lt_world_ref(), o, c, LT_F64, false, false));
    lt_world_fill(&world, v);
    LT_TRY_DONE(lt_world_run(&world, lt_registry_list(lt_backend_ref(), o->op).impls));
    for (int i = 0; i < world.setup.n_tensors; i++) {
        const lt_case_tensor *t = &world.setup.tensors[i];
        if (t->role == LT_ROLE_OUT || t->role == LT_ROLE_INOUT) {
            LT_TRY_DONE(reserve(want, i, t));
            lt_world_get(&world, i, want->values[i]);
        }
    }
done:
    lt_world_close(&world);
    return err;
}

lt_tolerance lt_tolerance_of(const lt_op_cases *o, const lt_case_tensor *t, lt_dtype act) {
    lt_tolerance tol = t->dtype == LT_BF16 || (t->wide && act == LT_BF16) ? o->bf16 : o->f32;
    /* Only casts write F16: half a unit in the last place, and half of the smallest subnormal. */
    if (t->dtype == LT_F16) {
        return (lt_tolerance){0x1p-11, 0x1p-41};
    }
    if (t->slack > 0.0) {
        tol.rtol *= t->slack;
        tol.atol *= t->slack;
    }
    return tol;
}

double lt_compare(const double *got, const double *want, const lt_case_tensor *t, lt_tolerance tol,
                  int64_t *worst_at) {
    double largest = t->floor, worst = 0.0;
    *worst_at = 0;
    for (int64_t i = 0; i < t->count; i++) {
        largest = isfinite(want[i]) ? fmax(largest, fabs(want[i])) : largest;
    }
    for (int64_t i = 0; i < t->count; i++) {
        const bool whole = t->dtype == LT_I32 || t->dtype == LT_I64;
        const double limit = whole ? 0.0 : tol.rtol * fabs(want[i]) + tol.atol * largest;
        const double error = fabs(got[i] - want[i]);
        double ratio;
        if (isnan(want[i])) {
            /* Rows that are never written, or NaN on purpose. */
            ratio = isnan(got[i]) && (t->partial || t->may_be_nan) ? 0.0 : INFINITY;
        } else if (got[i] == want[i]) {
            ratio = 0.0; /* Also equal infinities. */
        } else {
            ratio = isfinite(error) && limit > 0.0 ? error / limit : INFINITY;
        }
        if (ratio > worst) {
            worst = ratio;
            *worst_at = i;
        }
    }
    return worst;
}
