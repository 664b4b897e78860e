/* checksum.c: see checksum.h. The sum is of products of 32 bits, (x + a(i)) b(i) with b odd, which
 * vectorise; a change of one element changes its product (as in Black et al. 1999, UMAC's NH). It
 * shows that a model has changed; it does not protect against somebody who constructs two models
 * with the same sum. */
#include "train/checkpoint/checksum.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "model/alloc.h"
#include "parallel/whole.h"

#define PIECE_BYTES ((size_t)16 << 20)

typedef struct {
    const lt_model *m;
    const lt_world *world; /* NULL: this rank is alone. */
    const lt_shards *shards;
    void *piece; /* What comes from a device; NULL: memory is the host's. */
    uint64_t sum;
} summing;

/* n elements from element `first` of the whole model on. */
static uint64_t sum_of(const void *data, lt_dtype dtype, int64_t first, int64_t n) {
    const uint32_t *wide = data;
    const uint16_t *narrow = data;
    const bool is_wide = dtype == LT_F32;
    const uint32_t high = (uint32_t)((uint64_t)first >> 32) * 0xC2B2AE35u;
    uint64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum) if (n > 65536)
    for (int64_t i = 0; i < n; i++) {
        const uint32_t at = (uint32_t)(first + i) + high;
        const uint32_t x = is_wide ? wide[i] : narrow[i];
        sum += (uint64_t)(x + at * 0x9E3779B9u) * (at * 0x85EBCA6Bu | 1u);
    }
    return sum;
}

/* Bytes of the model's memory, on the host, a piece at a time. */
static lt_err bring(const summing *s, const void **out, const char *data, size_t bytes) {
    *out = s->piece != NULL ? s->piece : data;
    return s->piece != NULL ? lt_model_download(s->m, s->piece, data, bytes) : LT_OK;
}

static lt_err add_run(summing *s, const char *data, int64_t first, int64_t n) {
    const lt_dtype dtype = s->m->weights.dtype;
    const size_t each = lt_dtype_bytes(dtype);
    const int64_t most = (int64_t)(PIECE_BYTES / each);
    for (int64_t at = 0; at < n; at += most) {
        const int64_t count = n - at < most ? n - at : most;
        const void *host;
        LT_TRY(bring(s, &host, data + (size_t)at * each, (size_t)count * each));
        s->sum += sum_of(host, dtype, first + at, count);
    }
    return LT_OK;
}

/* Is this the one rank, of those that hold the box, that adds it to the sum? */
static bool counts(const summing *s, const lt_param *p, const lt_box *box) {
    return s->world == NULL || lt_whole_sends(s->world, s->shards, p, box);
}

static lt_err add_param(summing *s, const lt_param *p) {
    const lt_param_table *t = &s->m->table;
    const char *data = lt_param_data(&s->m->weights, p);
    const size_t each = lt_dtype_bytes(s->m->weights.dtype);
    int64_t local = 0;
    for (int b = 0; b < p->n_boxes; b++) {
        const lt_box *box = &lt_param_boxes(t, p)[b];
        const int64_t end = local + lt_box_count(box, p->n_dims);
        for (int64_t at = local, run; at < end && counts(s, p, box); at += run) {
            const int64_t whole = lt_param_whole_index(t, p, at, &run);
            run = run < end - at ? run : end - at;
            LT_TRY(add_run(s, data + (size_t)at * each, p->whole_at + whole, run));
        }
        local = end;
    }
    return LT_OK;
}

static lt_err add_bytes(summing *s, const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        const size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        const void *host;
        LT_TRY(bring(s, &host, data + at, n));
        s->sum = XXH3_64bits_withSeed(host, n, s->sum);
    }
    return LT_OK;
}

/* Weights in other types: on a host their ranges, on a device the bytes into which they are
 * packed. */
static lt_err add_stored(summing *s) {
    const lt_model *m = s->m;
    if (m->stored_packed != NULL) {
        return add_bytes(s, m->stored_packed, m->stored_packed_bytes);
    }
    for (int i = 0; m->stored != NULL && i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const lt_tensor *w = &m->stored[i].ranges[j].w, *c = &m->stored[i].ranges[j].scales;
            LT_TRY(add_bytes(s, w->data,
                             (size_t)w->shape[0] * lt_dtype_row_bytes(w->dtype, w->shape[1])));
            LT_TRY(add_bytes(s, c->data, (size_t)c->shape[0] * sizeof(float)));
        }
    }
    return LT_OK;
}

static lt_err add_model(summing *s) {
    for (int i = 0; i < s->m->table.n_params; i++) {
        const lt_param *p = &s->m->table.params[i];
        LT_TRY(p->at >= 0 && p->local_count > 0 ? add_param(s, p) : LT_OK);
    }
    return add_stored(s);
}

lt_err lt_weights_checksum(uint64_t *out, const lt_model *m, const lt_world *world,
                           const lt_shards *shards) {
    const bool ranks = world != NULL && world->comm != NULL;
    summing s = {.m = m, .world = ranks ? world : NULL, .shards = shards};
    int n_parts;
    const int part = !ranks           ? 0
                     : shards != NULL ? lt_shards_part(shards, &n_parts)
                                      : lt_world_part(world, &n_parts);
    lt_err err = LT_OK;
    if (!m->backend->host_memory) {
        s.piece = malloc(PIECE_BYTES);
        if (s.piece == NULL) {
            LT_FAIL(LT_ERR_OOM, "checksum of the weights");
        }
    }
    err = part >= 0 ? add_model(&s) : LT_OK; /* Another rank has the same. */
    free(s.piece);
    LT_TRY(err);
    if (ranks) {
        LT_TRY(lt_all_reduce(world->mesh.world, &s.sum, &s.sum, 1, LT_I64, LT_REDUCE_SUM, NULL));
    }
    *out = s.sum;
    return LT_OK;
}
