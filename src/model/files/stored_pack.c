/* stored_pack.c: puts the matrices that stored_weights.c found where the products read them.
 *
 *     copy      host: ranges whose rows come in pairs (llama's q and k), or lie unaligned, or are
 *               random; experts in blocks that have a tensor each
 *     pack      ranges into the backend's layout; from then on the map is only read for embedding
 *               rows. On a device every range is packed, through one buffer for the largest one,
 *               and nothing else is kept: embedding rows are read from the packed matrix, too.
 *
 * A model that decodes is not packed: on a device, a copy of every range is made there. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"
#include "model/alloc.h"
#include "model/files/stored_weights.h"
#include "model/init.h"
#include "tensor/block.h"
#include "tensor/ops.h"

/* The source of ranges: a file, with rows in pairs or not, or random numbers. */
typedef struct {
    lt_model *m;
    const lt_stored_origin (*origins)[LT_STORED_RANGES]; /* NULL: random */
    uint64_t seed;
} making;

static size_t range_bytes(const lt_weight_range *range) {
    return (size_t)range->w.shape[0] * lt_dtype_row_bytes(range->w.dtype, range->w.shape[1]);
}

static size_t aligned(size_t bytes) {
    return (bytes + LT_STORED_ALIGN - 1) / LT_STORED_ALIGN * LT_STORED_ALIGN;
}

/* NF4_DOUBLE is encoded by way of NF4. */
static lt_dtype encoded_first(lt_dtype type) {
    return type == LT_NF4_DOUBLE ? LT_NF4 : type;
}

static int64_t n_blocks(const lt_weight_range *range) {
    size_t bytes;
    return range->w.shape[0] * range->w.shape[1] / lt_dtype_block(range->w.dtype, &bytes);
}

size_t lt_stored_range_bytes(const lt_weight_range *range) {
    const bool has_scales = range->w.dtype == LT_NF4_DOUBLE;
    return aligned(range_bytes(range)) +
           (has_scales ? aligned((size_t)lt_nf4_scales_count(n_blocks(range)) * sizeof(float)) : 0);
}

bool lt_stored_range_moves(const lt_weight_range *range, const lt_stored_origin *origin) {
    const lt_tensor *w = &range->w;
    const size_t align = lt_dtype_is_block(w->dtype) ? 1 : lt_dtype_bytes(w->dtype);
    bool unaligned = (uintptr_t)w->data % align != 0;
    for (int64_t e = 0; range->each != NULL && e < range->n_experts; e++) {
        unaligned = unaligned || (uintptr_t)range->each[e] % align != 0;
    }
    return origin->copied || origin->pair_rows > 0 || origin->type != w->dtype ||
           w->shape[1] < origin->cols || unaligned;
}

/* Whether the range must be rewritten, because its bytes differ from the file's or the host cannot
 * read them there. */
static bool needs_rewrite(const making *k, int param, int range) {
    return k->origins == NULL ||
           (!k->m->backend->host_memory && k->origins[param][range].each != NULL) ||
           lt_stored_range_moves(&k->m->stored[param].ranges[range], &k->origins[param][range]);
}

static bool needs_copy(const making *k, int param, int range) {
    return !k->m->backend->host_memory || needs_rewrite(k, param, range);
}

/* Copies rows of `cols` numbers of a matrix of the file to `dst`, in Lateen's order and in this
 * type. */
typedef struct {
    lt_stored_origin origin;
    int64_t cols;
    lt_dtype type;
    size_t from_bytes, to_bytes; /* Of a row of the file, and of one here. */
    unsigned char *dst;
    int bad; /* A scale of MXFP4 that cannot be kept, as its byte; -1: none was found. */
} row_copy;

/* A row in another type, a piece of whole blocks at a time. */
static void encode_row(const row_copy *c, unsigned char *dst, const unsigned char *src) {
    float values[LT_BLOCK_SUPER];
    for (int64_t at = 0; at < c->cols; at += LT_BLOCK_SUPER) {
        const int64_t n = c->cols - at < LT_BLOCK_SUPER ? c->cols - at : LT_BLOCK_SUPER;
        lt_block_decode(values, c->origin.type, src + lt_dtype_row_bytes(c->origin.type, at),
                        (size_t)n);
        lt_block_encode(dst + lt_dtype_row_bytes(c->type, at), c->type, values, (size_t)n);
    }
}

/* A row of MXFP4 as Q5_0. */
static void change_row(row_copy *c, unsigned char *dst, const unsigned char *src,
                       const unsigned char *scales) {
    for (int64_t i = 0; i < c->cols / LT_BLOCK_SMALL; i++) {
        const bool apart = scales != NULL;
        const unsigned char *block = apart ? src + i * LT_BLOCK_SMALL / 2
                                           : src + lt_dtype_row_bytes(LT_MXFP4, i * LT_BLOCK_SMALL);
        const int e = apart ? scales[i] : block[0];
        if (!lt_block_mxfp4_as_q5_0(dst + lt_dtype_row_bytes(LT_Q5_0, i * LT_BLOCK_SMALL),
                                    apart ? block : block + 1, e, apart)) {
#pragma omp atomic write
            c->bad = e;
        }
    }
}

static void copy_row(void *ctx, size_t row) {
    row_copy *c = ctx;
    const lt_stored_origin *o = &c->origin;
    const int64_t from = lt_weight_source_row(o->pair_rows, o->row + (int64_t)row);
    const unsigned char *src = (o->each != NULL ? o->each[from / o->each_rows] +
                                                      (size_t)(from % o->each_rows) * c->from_bytes
                                                : o->data + (size_t)from * c->from_bytes) +
                               lt_dtype_row_bytes(o->type, o->col);
    unsigned char *dst = c->dst + row * c->to_bytes;
    if (o->type == LT_MXFP4 && c->type == LT_Q5_0) {
        const size_t first = (size_t)(from * o->cols / LT_BLOCK_SMALL);
        change_row(c, dst, src, o->scales != NULL ? o->scales + first : NULL);
    } else if (o->type == c->type) {
        memcpy(dst, src, c->to_bytes);
    } else {
        encode_row(c, dst, src);
    }
}

/* Release pages of the file that are not read again. */
static void forget_rows(const lt_stored_origin *o, int64_t rows, size_t row_bytes) {
    for (int64_t at = o->row, end = o->row + rows; o->each != NULL && at < end;
         at += o->each_rows) {
        lt_file_span_forget(o->each[at / o->each_rows], (size_t)o->each_rows * row_bytes);
    }
    if (o->each == NULL) {
        lt_file_span_forget(o->data + (size_t)o->row * row_bytes, (size_t)rows * row_bytes);
    }
}

/* Copy (rows, cols) of a matrix of the file, in this type. Pages that have been encoded are not
 * read again, and are released. */
static lt_err copy_rows(const lt_stored_origin *o, int64_t rows, int64_t cols, lt_dtype type,
                        unsigned char *dst) {
    row_copy c = {.origin = *o,
                  .cols = cols,
                  .type = type,
                  .from_bytes = o->scales != NULL ? (size_t)o->cols / 2
                                                  : lt_dtype_row_bytes(o->type, o->cols),
                  .to_bytes = lt_dtype_row_bytes(type, cols),
                  .dst = dst,
                  .bad = -1};
    lt_parallel_for((size_t)rows, copy_row, &c);
    if (c.bad >= 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: a block of MXFP4 has a scale of %s%d, and scales up to 2^16 can be kept; "
                "--dtype bf16 or fp32, or for training lora.base = dtype, widens all weights",
                o->name, c.bad == 255 ? "NaN, byte " : "2^", c.bad == 255 ? 255 : c.bad - 127);
    }
    if (o->type != type) {
        forget_rows(o, rows, c.from_bytes);
    }
    return LT_OK;
}

/* The blocks of a range, of NF4_DOUBLE still in NF4, to dst on the host. */
static lt_err write_blocks(const making *k, int param, int range, unsigned char *dst) {
    const lt_tensor *w = &k->m->stored[param].ranges[range].w;
    const lt_dtype type = encoded_first(w->dtype);
    if (k->origins == NULL) {
        lt_init_blocks(dst, type, k->m, &k->m->table.params[param], k->seed);
        return LT_OK;
    }
    return copy_rows(&k->origins[param][range], w->shape[0], w->shape[1], type, dst);
}

/* Write a part of a matrix in NF4_DOUBLE as NF4, with the scales that its blocks have in the whole
 * matrix. */
static lt_err write_doubled(const lt_stored_origin *o, const lt_tensor *w, unsigned char *dst) {
    const int64_t n = o->rows * o->cols / LT_BLOCK_NF4;
    const size_t row_bytes = lt_dtype_row_bytes(LT_NF4, o->cols),
                 part_bytes = lt_dtype_row_bytes(LT_NF4, w->shape[1]),
                 at = lt_dtype_row_bytes(LT_NF4, o->col), once_bytes = (size_t)o->rows * row_bytes,
                 twice_bytes = lt_dtype_row_bytes(LT_NF4_DOUBLE, o->rows * o->cols),
                 scales_bytes = (size_t)lt_nf4_scales_count(n) * sizeof(float);
    lt_stored_origin whole = *o;
    unsigned char *once = malloc(once_bytes + twice_bytes);
    float *scales = malloc(scales_bytes);
    if (once == NULL || scales == NULL) {
        free(once);
        free(scales);
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a weight in NF4", once_bytes + twice_bytes);
    }
    whole.row = whole.col = 0;
    (void)!copy_rows(&whole, o->rows, o->cols, LT_NF4, once); /* Only MXFP4 can fail. */
    lt_nf4_double_encode(once + once_bytes, scales, once, n);
    lt_nf4_double_to_nf4(once, once + once_bytes, scales, 0, n);
    for (int64_t i = 0; i < w->shape[0]; i++) {
        memcpy(dst + (size_t)i * part_bytes, once + (size_t)(o->row + i) * row_bytes + at,
               part_bytes);
    }
    free(scales);
    free(once);
    return LT_OK;
}

/* Write a range in the form that products read to dst on the host, followed by its scales. */
static lt_err write_range(const making *k, int param, int range, unsigned char *dst) {
    const lt_weight_range *w = &k->m->stored[param].ranges[range];
    if (k->origins != NULL && k->origins[param][range].doubled) {
        return write_doubled(&k->origins[param][range], &w->w, dst);
    }
    if (w->w.dtype != LT_NF4_DOUBLE) {
        return write_blocks(k, param, range, dst);
    }
    const size_t bytes = lt_dtype_row_bytes(LT_NF4, w->w.shape[0] * w->w.shape[1]);
    unsigned char *once = malloc(bytes);
    if (once == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a weight in NF4", bytes);
    }
    const lt_err err = write_blocks(k, param, range, once);
    lt_nf4_double_encode(dst, (float *)(dst + aligned(range_bytes(w))), once, n_blocks(w));
    free(once);
    return err;
}

lt_err lt_stored_range_write(lt_model *m, const lt_stored_origin (*origins)[LT_STORED_RANGES],
                             int param, int range, unsigned char *dst) {
    const making k = {m, origins, 0};
    return write_range(&k, param, range, dst);
}

/* The largest range. */
static size_t most_bytes(const lt_model *m) {
    size_t most = 0;
    for (int i = 0; i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const size_t bytes = lt_stored_range_bytes(&m->stored[i].ranges[j]);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

/* Write a range to `dst` in the backend's memory. room: host memory, if the backend's is
 * elsewhere. */
static lt_err copy_range(const making *k, int param, int range, unsigned char *dst, void *room) {
    lt_weight_range *w = &k->m->stored[param].ranges[range];
    const bool rewritten = needs_rewrite(k, param, range);
    const void *bytes = rewritten ? room : w->w.data;
    LT_TRY(rewritten ? write_range(k, param, range, room != NULL ? room : dst) : LT_OK);
    LT_TRY(room != NULL ? lt_model_upload(k->m, dst, bytes,
                                          rewritten ? lt_stored_range_bytes(w) : range_bytes(w))
                        : LT_OK);
    w->w.data = dst;
    w->each = NULL;
    if (w->w.dtype == LT_NF4_DOUBLE) {
        w->scales = lt_tensor_1d(dst + aligned(range_bytes(w)), LT_F32,
                                 lt_nf4_scales_count(n_blocks(w)));
    }
    return LT_OK;
}

/* All ranges that may not stay where they are, in one allocation. */
static lt_err copy_to(const making *k, void *room) {
    lt_model *m = k->m;
    size_t total = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < m->table.n_params; i++) {
            for (int j = 0; j < m->stored[i].n_ranges; j++) {
                lt_weight_range *range = &m->stored[i].ranges[j];
                if (!needs_copy(k, i, j)) {
                    continue;
                }
                if (pass == 0) {
                    total += lt_stored_range_bytes(range);
                    continue;
                }
                LT_TRY(copy_range(k, i, j, (unsigned char *)m->stored_copies + at, room));
                at += lt_stored_range_bytes(range);
            }
        }
        if (pass == 0 && total > 0) {
            LT_TRY(m->backend->alloc(m->device, &m->stored_copies, total, "weights"));
            m->stored_copies_bytes = total;
        }
    }
    return LT_OK;
}

static lt_err copy_all(const making *k) {
    const size_t bytes = k->m->backend->host_memory ? 0 : most_bytes(k->m);
    void *room = bytes > 0 ? malloc(bytes) : NULL;
    lt_err err;
    if (bytes > 0 && room == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a weight on their way to the device", bytes);
    }
    err = copy_to(k, room);
    free(room);
    return err;
}

/* Do two packed neighbours form one matrix? The first must end at the end of a group of packed
 * rows: there, and only there, one more row takes more room. */
static bool joins(const lt_model *m, const lt_weight_range *a, const lt_weight_range *b) {
    const size_t bytes = m->backend->matmul_pack_bytes(m->device, &a->w, true);
    lt_tensor more = a->w;
    more.shape[0]++;
    return a->packed != NULL && b->packed != NULL && a->w.dtype == b->w.dtype &&
           a->n_experts == 0 && b->n_experts == 0 && b->first_row == a->first_row + a->w.shape[0] &&
           aligned(bytes) == bytes && m->backend->matmul_pack_bytes(m->device, &more, true) > bytes;
}

/* The state of packing, one range at a time. raw, host: room for the largest range in device and
 * host memory; NULL on a CPU. */
typedef struct {
    const making *k;
    lt_queue *q;
    unsigned char *at; /* In stored_packed. */
    void *raw, *host;
    size_t raw_bytes;
} packing;

static lt_err packing_open(packing *p, const making *k) {
    const lt_model *m = k->m;
    *p = (packing){.k = k, .at = m->stored_packed};
    p->raw_bytes = m->backend->host_memory ? 0 : most_bytes(m);
    if (p->raw_bytes > 0) {
        p->host = malloc(p->raw_bytes);
        if (p->host == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu bytes of a weight on their way to the device", p->raw_bytes);
        }
        LT_TRY(m->backend->alloc(m->device, &p->raw, p->raw_bytes, "weights on their way"));
    }
    return m->backend->queue_open(m->device, &p->q);
}

static void packing_close(packing *p) {
    const lt_backend *b = p->k->m->backend;
    if (p->q != NULL) {
        b->queue_close(p->q);
    }
    if (p->raw != NULL) {
        b->release(p->k->m->device, p->raw, p->raw_bytes);
    }
    free(p->host);
}

/* On a device: the range's bytes to where the packing kernel reads them. */
static lt_err bring(packing *p, int param, int range) {
    lt_weight_range *r = &p->k->m->stored[param].ranges[range];
    const void *bytes = r->w.data;
    if (needs_rewrite(p->k, param, range)) {
        LT_TRY(write_range(p->k, param, range, p->host));
        bytes = p->host;
    }
    LT_TRY(lt_model_upload(p->k->m, p->raw, bytes, range_bytes(r)));
    r->w.data = p->raw;
    r->each = NULL;
    return LT_OK;
}

static lt_err pack_range(packing *p, int param, int range) {
    const lt_backend *b = p->k->m->backend;
    lt_weight_range *r = &p->k->m->stored[param].ranges[range];
    const size_t bytes = b->matmul_pack_bytes(p->k->m->device, &r->w, true);
    if (bytes == 0) {
        return LT_OK;
    }
    LT_TRY(p->raw != NULL ? bring(p, param, range) : LT_OK);
    LT_TRY(b->ops->matmul_pack(p->q,
                               &(lt_matmul_pack_args){.dst = p->at, .b = r->w, .trans_b = true}));
    if (p->raw != NULL) { /* The place of another range follows. */
        LT_TRY(b->sync(p->q));
        r->w.data = NULL;
    }
    r->packed = p->at;
    p->at += aligned(bytes);
    return LT_OK;
}

/* Ranges packed side by side become one matrix, whose rows are no longer contiguous in unpacked
 * form. */
static lt_err pack_param(packing *p, int param) {
    lt_stored_weight *h = &p->k->m->stored[param];
    int n = 0;
    for (int j = 0; j < h->n_ranges; j++) {
        LT_TRY(pack_range(p, param, j));
        if (n > 0 && joins(p->k->m, &h->ranges[n - 1], &h->ranges[j])) {
            h->ranges[n - 1].w.shape[0] += h->ranges[j].w.shape[0];
            h->ranges[n - 1].w.data = NULL;
        } else {
            h->ranges[n++] = h->ranges[j];
        }
    }
    h->n_ranges = n;
    return LT_OK;
}

/* A host looks up rows of the embedding in unpacked blocks. */
static bool is_packed(const lt_model *m, int param) {
    return m->stored[param].n_ranges > 0 && (m->table.params[param].kind != LT_PARAM_EMBED ||
                                             m->spec.tied || !m->backend->host_memory);
}

static lt_err pack_all(const making *k) {
    lt_err err = LT_OK;
    lt_model *m = k->m;
    packing p = {.k = k};
    size_t total = 0;

    for (int i = 0; i < m->table.n_params; i++) {
        for (int j = 0; is_packed(m, i) && j < m->stored[i].n_ranges; j++) {
            total += aligned(
                m->backend->matmul_pack_bytes(m->device, &m->stored[i].ranges[j].w, true));
        }
    }
    if (total == 0) {
        return LT_OK;
    }
    LT_TRY(m->backend->alloc(m->device, &m->stored_packed, total, "packed weights"));
    m->stored_packed_bytes = total;
    LT_TRY_DONE(packing_open(&p, k));
    for (int i = 0; i < m->table.n_params; i++) {
        LT_TRY_DONE(is_packed(m, i) ? pack_param(&p, i) : LT_OK);
    }
    LT_TRY_DONE(m->backend->sync(p.q));
done:
    packing_close(&p);
    return err;
}

int64_t lt_stored_most_rows(const lt_param_table *t, const lt_stored_weight *stored) {
    int64_t most = 0;
    for (int i = 0; i < t->n_params; i++) {
        for (int j = 0; j < stored[i].n_ranges; j++) {
            const int64_t rows = stored[i].ranges[j].w.shape[0];
            most = rows > most ? rows : most;
        }
    }
    return most;
}

lt_err lt_stored_number_rows(lt_model *m) {
    const int64_t most = lt_stored_most_rows(&m->table, m->stored);
    lt_err err;
    int32_t *numbers;
    m->row_numbers_bytes = (size_t)most * sizeof *numbers;
    numbers = malloc(m->row_numbers_bytes);
    if (numbers == NULL) {
        LT_FAIL(LT_ERR_OOM, "numbers of %lld rows", (long long)most);
    }
    for (int64_t i = 0; i < most; i++) {
        numbers[i] = (int32_t)i;
    }
    err = m->backend->alloc(m->device, &m->row_numbers, m->row_numbers_bytes, "row numbers");
    err = err == LT_OK ? lt_model_upload(m, m->row_numbers, numbers, m->row_numbers_bytes) : err;
    free(numbers);
    return err;
}

lt_err lt_stored_weights_place(lt_model *m, const lt_stored_origin (*origins)[LT_STORED_RANGES],
                               uint64_t seed) {
    const making k = {m, origins, seed};
    LT_TRY(m->backend->host_memory || m->options.decoded ? copy_all(&k) : LT_OK);
    LT_TRY(m->options.decoded ? LT_OK : pack_all(&k));
    LT_TRY(m->options.decoded ? lt_stored_number_rows(m) : LT_OK);
    lt_param_table_skip_stored(&m->table, m->stored, NULL);
    return LT_OK;
}
