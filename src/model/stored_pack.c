/* stored_pack.c: places the matrices that stored_weights.c found where the products read them.
 *
 *     copy      host: ranges whose rows come in pairs (llama's q and k), or lie unaligned, or are
 *               random
 *     pack      ranges into the backend's layout; from then on the map is only read for embedding
 *               rows. On a device every range is packed, through one buffer for the largest one,
 *               and nothing else is kept: embedding rows are read from the packed matrix, too. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/alloc.h"
#include "model/stored_weights.h"
#include "model/init.h"
#include "tensor/ops.h"

#define ALIGN 64

/* Where ranges come from: a file, with rows in pairs or not, or random numbers. */
typedef struct {
    lt_model *m;
    const int64_t (*pair_rows)[LT_STORED_RANGES]; /* NULL: random */
    uint64_t seed;
} making;

static size_t range_bytes(const lt_weight_range *range) {
    return (size_t)range->w.shape[0] * lt_dtype_row_bytes(range->w.dtype, range->w.shape[1]);
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool needs_copy(const making *k, int param, int range) {
    const lt_tensor *w = &k->m->stored[param].ranges[range].w;
    const size_t align = lt_dtype_is_block(w->dtype) ? 1 : lt_dtype_bytes(w->dtype);
    return k->pair_rows == NULL || k->pair_rows[param][range] > 0 ||
           (uintptr_t)w->data % align != 0;
}

/* One range on its way to `dst`: rows in their place. */
typedef struct {
    const lt_weight_range *range;
    int64_t pair_rows;
    size_t row_bytes;
    unsigned char *dst;
} row_copy;

static void copy_rows(void *ctx, size_t head) {
    const row_copy *c = ctx;
    const int64_t step = c->pair_rows > 0 ? c->pair_rows : c->range->w.shape[0];
    const unsigned char *src = c->range->w.data;
    for (int64_t r = (int64_t)head * step; r < ((int64_t)head + 1) * step; r++) {
        memcpy(c->dst + (size_t)lt_weight_target_row(c->pair_rows, r) * c->row_bytes,
               src + (size_t)r * c->row_bytes, c->row_bytes);
    }
}

/* A range as it is to be multiplied, to dst on the host. */
static void write_range(const making *k, int param, int range, unsigned char *dst) {
    const lt_weight_range *w = &k->m->stored[param].ranges[range];
    if (k->pair_rows == NULL) {
        lt_init_blocks(dst, w->w.dtype, k->m, &k->m->table.params[param], k->seed);
        return;
    }
    const int64_t pair_rows = k->pair_rows[param][range];
    row_copy c = {w, pair_rows, lt_dtype_row_bytes(w->w.dtype, w->w.shape[1]), dst};
    lt_parallel_for(pair_rows > 0 ? (size_t)(w->w.shape[0] / pair_rows) : 1, copy_rows, &c);
}

/* On a host: all ranges that may not stay where they are, in one allocation. */
static lt_err copy_all(const making *k) {
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
                    total += aligned(range_bytes(range));
                    continue;
                }
                write_range(k, i, j, (unsigned char *)m->stored_copies + at);
                range->w.data = (unsigned char *)m->stored_copies + at;
                at += aligned(range_bytes(range));
            }
        }
        if (pass == 0 && total > 0) {
            LT_TRY(m->backend->alloc(m->device, &m->stored_copies, total, "weights"));
            m->stored_copies_bytes = total;
        }
    }
    return LT_OK;
}

/* Are two packed neighbours one matrix? The first must end where a group of packed rows does:
 * there, and only there, one row more takes more room. */
static bool joins(const lt_model *m, const lt_weight_range *a, const lt_weight_range *b) {
    const size_t bytes = m->backend->matmul_pack_bytes(m->device, &a->w, true);
    lt_tensor more = a->w;
    more.shape[0]++;
    return a->packed != NULL && b->packed != NULL && a->w.dtype == b->w.dtype &&
           b->first_row == a->first_row + a->w.shape[0] && aligned(bytes) == bytes &&
           m->backend->matmul_pack_bytes(m->device, &more, true) > bytes;
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
    for (int i = 0; !m->backend->host_memory && i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const size_t bytes = range_bytes(&m->stored[i].ranges[j]);
            p->raw_bytes = bytes > p->raw_bytes ? bytes : p->raw_bytes;
        }
    }
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
    if (needs_copy(p->k, param, range)) {
        write_range(p->k, param, range, p->host);
        bytes = p->host;
    }
    LT_TRY(lt_model_upload(p->k->m, p->raw, bytes, range_bytes(r)));
    r->w.data = p->raw;
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
    if (p->raw != NULL) { /* Another range's place next. */
        LT_TRY(b->sync(p->q));
        r->w.data = NULL;
    }
    r->packed = p->at;
    p->at += aligned(bytes);
    return LT_OK;
}

/* Ranges packed side by side are one matrix from now on, whose plain rows lie apart. */
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

/* A host looks embedding rows up in the plain blocks. */
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

lt_err lt_stored_weights_place(lt_model *m, const int64_t (*pair_rows)[LT_STORED_RANGES],
                               uint64_t seed) {
    const making k = {m, pair_rows, seed};
    LT_TRY(m->backend->host_memory ? copy_all(&k) : LT_OK);
    LT_TRY(pack_all(&k));
    lt_param_table_skip_stored(&m->table, m->stored);
    return LT_OK;
}
