/* held.c: see held.h.
 *
 *     find      every matrix whose tensors are all of a type that products take: its runs point into the map
 *     copy      runs whose rows come in pairs (llama's q and k), or lie unaligned, or must be in a device's memory
 *     pack      runs into the backend's layout; from then on the map is only read for embedding rows
 * Values are not looked at: a file with NaN shows as NaN logits. */
#include "model/held.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/alloc.h"
#include "tensor/block.h"
#include "tensor/ops.h"

#define ALIGN 64

typedef struct {
    const lt_source *source;
    const lt_model *m;
    const lt_param *param;
    lt_held held;
    int64_t pair_rows[LT_HELD_RUNS];
    bool holdable;
} finding;

static bool is_matrix(lt_param_kind kind) {
    return kind == LT_PARAM_EMBED || kind == LT_PARAM_QKV || kind == LT_PARAM_ATTN_OUT ||
           kind == LT_PARAM_UP || kind == LT_PARAM_DOWN || kind == LT_PARAM_HEAD;
}

/* A device packs the blocks that it multiplies; all else becomes BF16 there. */
static bool product_takes(const lt_model *m, const lt_tensor *w) {
    if (!m->backend->host_memory) {
        return lt_dtype_is_block(w->dtype) && m->backend->matmul_pack_bytes(w, true) > 0;
    }
    return w->dtype == LT_F32 || w->dtype == LT_F16 || w->dtype == LT_BF16 ||
           lt_block_partner(w->dtype) != LT_PARTNER_NONE;
}

static lt_err find_part(void *ctx, const char *name, const lt_weight *w, const lt_name_place *p) {
    finding *f = ctx;
    const lt_tensor rows = lt_tensor_2d((void *)(uintptr_t)w->data, w->type, p->rows, p->cols);
    lt_weight_run *run;
    (void)name;
    if (p->turned || p->stacked || w->n_dims != 2 || !product_takes(f->m, &rows) ||
        f->held.n_runs == LT_HELD_RUNS) {
        f->holdable = false;
        return LT_OK;
    }
    f->pair_rows[f->held.n_runs] = lt_weight_pair_rows(f->source, &f->m->spec, p);
    run = &f->held.runs[f->held.n_runs++];
    run->first_row = (p->first - f->param->offset) / p->cols;
    run->w = rows;
    return LT_OK;
}

static size_t run_bytes(const lt_weight_run *run) {
    return (size_t)run->w.shape[0] * lt_dtype_row_bytes(run->w.dtype, run->w.shape[1]);
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool needs_copy(const lt_model *m, const lt_weight_run *run, int64_t pair_rows) {
    const size_t align = lt_dtype_is_block(run->w.dtype) ? 1 : lt_dtype_bytes(run->w.dtype);
    return pair_rows > 0 || !m->backend->host_memory || (uintptr_t)run->w.data % align != 0;
}

/* One run on its way to `dst`: rows in their place. */
typedef struct {
    const lt_weight_run *run;
    int64_t pair_rows;
    size_t row_bytes;
    unsigned char *dst;
} row_copy;

static void copy_rows(void *ctx, size_t head) {
    const row_copy *c = ctx;
    const int64_t step = c->pair_rows > 0 ? c->pair_rows : c->run->w.shape[0];
    const unsigned char *src = c->run->w.data;
    for (int64_t r = (int64_t)head * step; r < ((int64_t)head + 1) * step; r++) {
        memcpy(c->dst + (size_t)lt_weight_target_row(c->pair_rows, r) * c->row_bytes,
               src + (size_t)r * c->row_bytes, c->row_bytes);
    }
}

static lt_err copy_run(lt_model *m, lt_weight_run *run, int64_t pair_rows, unsigned char *dst) {
    const size_t bytes = run_bytes(run);
    row_copy c = {run, pair_rows, lt_dtype_row_bytes(run->w.dtype, run->w.shape[1]), dst};
    unsigned char *host = dst;
    lt_err err = LT_OK;

    if (!m->backend->host_memory) {
        host = malloc(bytes);
        if (host == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu bytes of a weight on their way to the device", bytes);
        }
        c.dst = host;
    }
    lt_parallel_for(pair_rows > 0 ? (size_t)(run->w.shape[0] / pair_rows) : 1, copy_rows, &c);
    if (host != dst) {
        err = lt_model_upload(m, dst, host, bytes);
        free(host);
    }
    run->w.data = dst;
    return err;
}

/* Copies of all runs that need one, in one allocation. */
static lt_err copy_all(lt_model *m, int64_t (*pair_rows)[LT_HELD_RUNS]) {
    size_t total = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < m->table.n_params; i++) {
            for (int j = 0; j < m->held[i].n_runs; j++) {
                lt_weight_run *run = &m->held[i].runs[j];
                if (!needs_copy(m, run, pair_rows[i][j])) {
                    continue;
                }
                if (pass == 0) {
                    total += aligned(run_bytes(run));
                    continue;
                }
                const size_t bytes = aligned(run_bytes(run));
                LT_TRY(copy_run(m, run, pair_rows[i][j], (unsigned char *)m->held_copies + at));
                at += bytes;
            }
        }
        if (pass == 0 && total > 0) {
            LT_TRY(m->backend->alloc(&m->held_copies, total, "weights"));
            m->held_copies_bytes = total;
        }
    }
    return LT_OK;
}

/* May the runs of a parameter be packed as one matrix? Each but the last must end where a group of packed rows does, which is so when the packed parts
 * are together as large as the packed whole. */
static size_t packed_as_one(const lt_model *m, const lt_held *h) {
    lt_tensor whole = h->runs[0].w;
    size_t parts = 0;
    whole.shape[0] = 0;
    for (int j = 0; j < h->n_runs; j++) {
        if (h->runs[j].w.dtype != whole.dtype || h->runs[j].first_row != whole.shape[0]) {
            return 0;
        }
        whole.shape[0] += h->runs[j].w.shape[0];
        parts += m->backend->matmul_pack_bytes(&h->runs[j].w, true);
    }
    return m->backend->matmul_pack_bytes(&whole, true) == parts ? parts : 0;
}

static lt_err pack_run(lt_model *m, lt_queue *q, lt_weight_run *run, unsigned char **at) {
    const size_t bytes = m->backend->matmul_pack_bytes(&run->w, true);
    if (bytes > 0) {
        LT_TRY(m->backend->ops->matmul_pack(
            q, &(lt_matmul_pack_args){.dst = *at, .b = run->w, .trans_b = true}));
        run->packed = *at;
        *at += aligned(bytes);
    }
    return LT_OK;
}

static lt_err pack_param(lt_model *m, lt_queue *q, lt_held *h, unsigned char **at) {
    const bool as_one = h->n_runs > 1 && packed_as_one(m, h) > 0;
    for (int j = 0; j < h->n_runs; j++) {
        LT_TRY(pack_run(m, q, &h->runs[j], at));
    }
    if (as_one) { /* Packed side by side: from now on one matrix, whose plain rows lie apart. */
        for (int j = 1; j < h->n_runs; j++) {
            h->runs[0].w.shape[0] += h->runs[j].w.shape[0];
        }
        h->runs[0].w.data = NULL;
        h->n_runs = 1;
    }
    return LT_OK;
}

static lt_err pack_all(lt_model *m) {
    lt_err err = LT_OK;
    lt_queue *q = NULL;
    unsigned char *at;
    size_t total = 0;

    for (int i = 0; i < m->table.n_params; i++) {
        const bool head = m->table.params[i].kind != LT_PARAM_EMBED || m->spec.tied;
        for (int j = 0; head && j < m->held[i].n_runs; j++) {
            total += aligned(m->backend->matmul_pack_bytes(&m->held[i].runs[j].w, true));
        }
    }
    if (total == 0) {
        return LT_OK;
    }
    LT_TRY(m->backend->alloc(&m->held_packed, total, "packed weights"));
    m->held_packed_bytes = total;
    at = m->held_packed;
    LT_TRY_DONE(m->backend->queue_open(&q));
    for (int i = 0; i < m->table.n_params; i++) {
        if (m->held[i].n_runs > 0 && (m->table.params[i].kind != LT_PARAM_EMBED || m->spec.tied)) {
            LT_TRY_DONE(pack_param(m, q, &m->held[i], &at));
        }
    }
    LT_TRY_DONE(m->backend->sync(q));
done:
    if (q != NULL) {
        m->backend->queue_close(q);
    }
    return err;
}

lt_err lt_held_open(lt_model *m, const lt_source *source) {
    lt_err err = LT_OK;
    int64_t(*pair_rows)[LT_HELD_RUNS] = calloc((size_t)m->table.n_params, sizeof *pair_rows);

    m->held = calloc((size_t)m->table.n_params, sizeof *m->held);
    if (m->held == NULL || pair_rows == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%d weights", m->table.n_params);
    }
    for (int i = 0; i < m->table.n_params; i++) {
        finding f = {.source = source, .m = m, .param = &m->table.params[i], .holdable = true};
        if (!is_matrix(f.param->kind) || f.param->n_dims != 2) {
            continue;
        }
        LT_TRY_DONE(lt_weight_each_part(source, &m->spec, f.param, find_part, &f));
        if (f.holdable) {
            m->held[i] = f.held;
            memcpy(pair_rows[i], f.pair_rows, sizeof f.pair_rows);
        }
    }
    LT_TRY_DONE(copy_all(m, pair_rows));
    LT_TRY_DONE(pack_all(m));
    lt_param_table_skip_held(&m->table, m->held);
done:
    free(pair_rows);
    return err;
}

lt_err lt_held_keep(lt_model *m, lt_source *source) {
    m->held_source = malloc(sizeof *m->held_source);
    if (m->held_source == NULL) {
        LT_FAIL(LT_ERR_OOM, "model");
    }
    *m->held_source = *source;
    m->held_source->path = NULL; /* The caller's. */
    *source = (lt_source){0};
    return LT_OK;
}

void lt_held_close(lt_model *m) {
    if (m->held_copies != NULL) {
        m->backend->release(m->held_copies, m->held_copies_bytes);
    }
    if (m->held_packed != NULL) {
        m->backend->release(m->held_packed, m->held_packed_bytes);
    }
    if (m->held_source != NULL) {
        lt_weight_source_close(m->held_source);
    }
    free(m->held_source);
    free(m->held);
}
