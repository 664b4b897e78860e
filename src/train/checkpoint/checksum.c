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
#include "model/files/stored_weights.h"
#include "parallel/whole.h"
#include "tensor/block.h"

#define PIECE_BYTES ((size_t)16 << 20)
#define PLACES      8 /* Places of bytes for an element of another type: at least its size. */

typedef struct {
    const lt_model *m;
    const lt_world *world; /* NULL: there is only one rank. */
    const lt_shards *shards;
    void *piece; /* Buffer for data from a device; NULL: the memory is the host's. */
    uint64_t sum;
} summing;

/* The term that the upper 32 bits of a place add to its lower ones. */
static uint32_t high_of(uint64_t place) {
    return (uint32_t)(place >> 32) * 0xC2B2AE35u;
}

/* The term of value x at a place of the whole model. */
static uint64_t product(uint32_t x, uint32_t at) {
    return (uint64_t)(x + at * 0x9E3779B9u) * (at * 0x85EBCA6Bu | 1u);
}

/* Sum over n elements, starting at element `first` of the whole model. */
static uint64_t sum_of(const void *data, lt_dtype dtype, int64_t first, int64_t n) {
    const uint32_t *wide = data;
    const uint16_t *narrow = data;
    const bool is_wide = dtype == LT_F32;
    const uint32_t high = high_of((uint64_t)first);
    uint64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum) if (n > 65536)
    for (int64_t i = 0; i < n; i++) {
        sum += product(is_wide ? wide[i] : narrow[i], (uint32_t)(first + i) + high);
    }
    return sum;
}

/* Bring bytes of the model's memory to the host, one piece at a time. */
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

/* Whether this rank, among those that hold the box, adds it to the sum. */
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

/* Sum over n rows of bytes. The first row begins at place `first` of the whole model, and each row
 * `step` places after the previous one. */
static uint64_t sum_of_rows(const unsigned char *data, int64_t n, int64_t bytes, uint64_t first,
                            uint64_t step) {
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) if (n * bytes > 65536)
    for (int64_t r = 0; r < n; r++) {
        const unsigned char *row = data + r * bytes;
        const uint64_t row_at = first + (uint64_t)r * step;
        const uint32_t high = high_of(row_at), low = (uint32_t)row_at;
        for (int64_t i = 0; i < bytes; i++) {
            sum += product(row[i], low + (uint32_t)i + high);
        }
    }
    return sum;
}

/* n rows of a range, starting at its row `first`, on the host; NF4_DOUBLE as NF4, the form in which
 * a part of the rows would be kept. *type: their type. Free it with free(). */
static lt_err rows_of(const summing *s, unsigned char **out, lt_dtype *type,
                      const lt_weight_range *range, int64_t first, int64_t n) {
    const lt_tensor *w = &range->w, *c = &range->scales;
    const bool doubled = w->dtype == LT_NF4_DOUBLE;
    const size_t bytes = lt_dtype_row_bytes(w->dtype, w->shape[1]), all = (size_t)n * bytes,
                 scales = doubled ? (size_t)c->shape[0] * sizeof(float) : 0;
    const int64_t blocks = w->shape[1] / LT_BLOCK_NF4;
    unsigned char *const rows = malloc(all), *wide = NULL;
    float *const of = malloc(scales + 1);
    lt_err err = rows != NULL && of != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "%zu bytes", all);
    *type = doubled ? LT_NF4 : w->dtype;
    err = err == LT_OK
              ? lt_model_download(s->m, rows, (const char *)w->data + (size_t)first * bytes, all)
              : err;
    if (err == LT_OK && doubled) {
        err = lt_model_download(s->m, of, c->data, scales);
        wide = malloc((size_t)n * lt_dtype_row_bytes(LT_NF4, w->shape[1]));
        err = err == LT_OK && wide == NULL ? lt_error_set(LT_ERR_OOM, "%zu bytes", all) : err;
    }
    if (err == LT_OK && doubled) {
        lt_nf4_double_to_nf4(wide, rows, of, first * blocks, n * blocks);
    }
    *out = doubled ? wide : rows;
    free(doubled ? rows : NULL);
    free(of);
    return err;
}

/* The place in the whole model of a row's first byte; its first element is element `local` of this
 * rank's part of the matrix. */
static uint64_t place_of(const summing *s, const lt_param *p, int64_t local, lt_dtype type) {
    int64_t run;
    const int64_t whole = lt_param_whole_index(&s->m->table, p, local, &run),
                  row = whole / p->shape[1] * p->shape[1];
    return (uint64_t)(p->whole_at + row) * PLACES + lt_dtype_row_bytes(type, whole - row);
}

/* Rows [first, end) of what is held of a matrix, which lie in one box, as far as a range has them:
 * by their bytes and by their place in the whole, so that the sum does not depend on who has
 * them. */
static lt_err add_rows(summing *s, const lt_param *p, const lt_weight_range *range, int64_t first,
                       int64_t end) {
    const int64_t cols = range->w.shape[1], range_end = range->first_row + range->w.shape[0];
    const int64_t most = (int64_t)(PIECE_BYTES / lt_dtype_row_bytes(range->w.dtype, cols)) + 1;
    first = first > range->first_row ? first : range->first_row;
    end = end < range_end ? end : range_end;
    for (int64_t at = first; at < end; at += most) {
        const int64_t n = end - at < most ? end - at : most;
        unsigned char *rows = NULL;
        lt_dtype type;
        const lt_err err = rows_of(s, &rows, &type, range, at - range->first_row, n);
        if (err == LT_OK) {
            s->sum += sum_of_rows(rows, n, (int64_t)lt_dtype_row_bytes(type, cols),
                                  place_of(s, p, at * cols, type), (uint64_t)p->shape[1] * PLACES);
        }
        free(rows);
        LT_TRY(err);
    }
    return LT_OK;
}

/* Add the part of a range that lies in this rank's slice of its unit's blocks. */
static lt_err add_slice(summing *s, const lt_param *p, const lt_weight_range *range) {
    const lt_stored_slices *of = s->m->slices;
    const lt_tensor *w = &range->w;
    const size_t row_bytes = lt_dtype_row_bytes(w->dtype, w->shape[1]), first = range->at,
                 slice = (size_t)of->own * of->bytes[p->unit],
                 slice_end = slice + of->bytes[p->unit];
    size_t at = slice > first ? slice - first : 0, end = (size_t)w->shape[0] * row_bytes;
    end = slice_end < first + end ? (slice_end > first ? slice_end - first : 0) : end;
    unsigned char *const bytes = malloc(end > at ? end - at : 1), *from = bytes;
    lt_err err = LT_OK;
    if (bytes == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes", end - at);
    }
    if (at < end) {
        err = lt_model_download(s->m, bytes, of->base[p->unit] + (first + at - slice), end - at);
    }
    while (err == LT_OK && at < end) {
        const size_t in_row = at % row_bytes, left = row_bytes - in_row,
                     n = end - at < left ? end - at : left;
        const int64_t local = (range->first_row + (int64_t)(at / row_bytes)) * w->shape[1];
        s->sum += sum_of_rows(from, 1, (int64_t)n, place_of(s, p, local, w->dtype) + in_row, 0);
        from += n;
        at += n;
    }
    free(bytes);
    return err;
}

static lt_err add_matrix(summing *s, const lt_param *p) {
    const lt_stored_weight *h = &s->m->stored[p->number];
    int64_t row = 0;
    for (int b = 0; h->n_ranges > 0 && b < p->n_boxes; b++) {
        const lt_box *box = &lt_param_boxes(&s->m->table, p)[b];
        const int64_t end = row + box->extent[0];
        for (int j = 0; counts(s, p, box) && j < h->n_ranges; j++) {
            const bool in_box = h->ranges[j].first_row >= row && h->ranges[j].first_row < end;
            LT_TRY(s->m->slices == NULL ? add_rows(s, p, &h->ranges[j], row, end)
                   : in_box             ? add_slice(s, p, &h->ranges[j])
                                        : LT_OK);
        }
        row = end;
    }
    return LT_OK;
}

/* Add weights in other types: their ranges or, on a device, the bytes into which they are
 * packed. */
static lt_err add_stored(summing *s) {
    const lt_model *m = s->m;
    if (m->stored_packed != NULL) {
        return add_bytes(s, m->stored_packed, m->stored_packed_bytes);
    }
    for (int i = 0; m->stored != NULL && i < m->table.n_params; i++) {
        LT_TRY(add_matrix(s, &m->table.params[i]));
    }
    return LT_OK;
}

static lt_err add_model(summing *s) {
    for (int i = 0; i < s->m->table.n_params; i++) {
        const lt_param *p = &s->m->table.params[i];
        const bool here = p->at >= 0 && p->local_count > 0 && !s->m->options.elsewhere;
        LT_TRY(here ? add_param(s, p) : LT_OK);
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
    err = part >= 0 ? add_model(&s) : LT_OK; /* Another rank adds the same part. */
    free(s.piece);
    LT_TRY(err);
    if (ranks) {
        LT_TRY(lt_all_reduce(world->mesh.world, &s.sum, &s.sum, 1, LT_I64, LT_REDUCE_SUM, NULL));
    }
    *out = s.sum;
    return LT_OK;
}
