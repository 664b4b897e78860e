/* prepare.c: see prepare.h. */
#include "model/pass/prepare.h"

#include <stdlib.h>

#include "model/pass/acts.h"
#include "model/lora/adapted.h"
#include "model/alloc.h"

typedef struct {
    float *rope, *rope_local, *f32;
} tables;

static size_t table_bytes(const lt_model_spec *spec, int64_t n) {
    return (size_t)(n * lt_rope_columns(spec) * 2) * sizeof(float);
}

/* Whether a text may be longer than those of which all tokens are rotated in the same way
 * (rope.c). */
static bool two_tables(const lt_model_spec *spec, int64_t max_seq) {
    return lt_rope_switch(spec) > 0 && max_seq > lt_rope_switch(spec);
}

static tables tables_carve(const lt_model_spec *spec, int64_t max_seq, lt_arena *a) {
    const size_t rope = spec->pos == LT_POS_ROPE ? table_bytes(spec, max_seq) : 0;
    const size_t all = two_tables(spec, max_seq) ? 2 * rope : rope;
    tables t;
    t.rope = lt_arena_take(a, all, LT_ARENA_ALIGN);
    t.rope_local = lt_arena_take(a, spec->rope_theta_local > 0 ? all : 0, LT_ARENA_ALIGN);
    t.f32 = lt_arena_take(a, (size_t)(spec->n_layers * lt_exec_f32_count(spec)) * sizeof(float),
                          LT_ARENA_ALIGN);
    return t;
}

/* Compute rows of the table on the host and copy them to the device. */
static lt_err put_table(lt_exec *r, float *device, int64_t n, bool local, int64_t length) {
    const size_t bytes = table_bytes(r->spec, n);
    float *host = malloc(bytes);
    lt_err err;
    if (host == NULL) {
        LT_FAIL(LT_ERR_OOM, "rotary table of %zu bytes", bytes);
    }
    err = lt_rope_table(host, r->spec, n, local, length);
    if (err == LT_OK) {
        err = lt_model_upload(r->model, device, host, bytes);
    }
    free(host);
    return err;
}

/* Make one or both tables: that for single tokens, and that for calls with several. */
static lt_err put_tables(lt_exec *r, float *device, int64_t max_seq, bool local, lt_tensor *out) {
    const int64_t columns = lt_rope_columns(r->spec), n = two_tables(r->spec, max_seq) ? 2 : 1;
    LT_TRY(put_table(r, device, max_seq, local, 0));
    if (n == 2) {
        LT_TRY(put_table(r, device + max_seq * columns * 2, max_seq, local, max_seq));
    }
    *out = lt_tensor_3d(device, LT_F32, n * max_seq, columns, 2);
    return LT_OK;
}

static lt_err fill_tables(lt_exec *r, const tables *t, int64_t max_seq) {
    const lt_model_spec *spec = r->spec;

    if (lt_exec_f32_count(spec) > 0 && !lt_model_has_master(r->model)) {
        LT_TRY(lt_exec_copy_f32(r, t->f32));
    }
    if (spec->pos != LT_POS_ROPE) {
        return LT_OK;
    }
    LT_TRY(put_tables(r, t->rope, max_seq, false, &r->rope));
    r->rope_local = r->rope;
    return spec->rope_theta_local > 0 ? put_tables(r, t->rope_local, max_seq, true, &r->rope_local)
                                      : LT_OK;
}

int64_t lt_exec_rope_rows(const lt_model_spec *spec, int64_t max_seq, int64_t n, int64_t end) {
    return two_tables(spec, max_seq) && n > 1 && end > lt_rope_switch(spec) ? max_seq : 0;
}

lt_err lt_exec_rope_fill(lt_exec *r, int64_t max_seq, int64_t end) {
    /* The second table of longrope is the same for all lengths. */
    if (r->spec->rope_scaling != LT_ROPE_DYNAMIC) {
        return LT_OK;
    }
    LT_TRY(r->backend->sync(r->queue));
    return put_table(r, (float *)r->rope.data + max_seq * lt_rope_columns(r->spec) * 2, end, false,
                     end);
}

static bool worth_packing(const lt_model_spec *spec, const lt_param *p) {
    const lt_param_kind kind = p->kind;
    return kind == LT_PARAM_QKV || kind == LT_PARAM_ATTN_OUT || kind == LT_PARAM_HEAD ||
           (kind == LT_PARAM_EMBED && spec->tied) ||
           ((kind == LT_PARAM_UP || kind == LT_PARAM_DOWN) && !p->experts);
}

/* Take memory for the packed matrices; with a NULL base, measure it. */
static void packed_carve(lt_exec *r, lt_arena *a) {
    const lt_param_table *t = &r->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        size_t bytes = 0;
        if (worth_packing(r->spec, p) &&
            (r->model->stored == NULL || r->model->stored[i].n_ranges == 0)) {
            const lt_tensor w = lt_exec_weight(r, p->kind, p->layer);
            bytes = r->backend->matmul_pack_bytes(r->device, &w, true);
        }
        r->packed[i] = bytes > 0 ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
    }
}

/* Pack every matrix from the current weights. */
static lt_err fill_packed(lt_exec *r) {
    const lt_param_table *t = &r->model->table;
    for (int i = 0; r->packed != NULL && i < t->n_params; i++) {
        if (r->packed[i] != NULL) {
            const lt_param *p = &t->params[i];
            LT_TRY(lt_exec_matmul_pack(
                r, &(lt_matmul_pack_args){.dst = (void *)(uintptr_t)r->packed[i],
                                          .b = lt_exec_weight(r, p->kind, p->layer),
                                          .trans_b = true}));
        }
    }
    return LT_OK;
}

static lt_err pack_weights(lt_exec *r, lt_arena *a) {
    const lt_param_table *t = &r->model->table;
    r->packed = calloc((size_t)t->n_params, sizeof *r->packed);
    if (r->packed == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d packed weights", t->n_params);
    }
    packed_carve(r, a);
    if (a->used_bytes > 0) { /* Packing reads the weights, so all must be loaded. */
        LT_TRY(lt_model_wait((lt_model *)(uintptr_t)r->model));
    }
    LT_TRY(lt_arena_place(a, r->device, "packed weights"));
    packed_carve(r, a);
    return fill_packed(r);
}

lt_err lt_exec_refresh(lt_exec *r, lt_prepared *p, bool *changed) {
    LT_TRY(lt_lora_refresh(r));
    *changed = p->version != r->model->version;
    if (!*changed) {
        return LT_OK;
    }
    if (r->f32 != NULL) {
        LT_TRY(lt_exec_copy_f32(r, (float *)(uintptr_t)r->f32));
    }
    LT_TRY(fill_packed(r));
    LT_TRY(r->backend->sync(r->queue));
    p->version = r->model->version;
    return LT_OK;
}

size_t lt_exec_tables_bytes(const lt_model_spec *spec, int64_t max_seq) {
    lt_arena a = {0};
    (void)tables_carve(spec, max_seq, &a);
    return a.used_bytes;
}

lt_err lt_exec_prepare(lt_exec *r, lt_prepared *p, const lt_model *m, int64_t max_seq, bool pack) {
    tables t;

    *p = (lt_prepared){.version = m->version};
    LT_TRY(lt_exec_open(r, m, NULL));
    if (!lt_param_table_is_whole(&m->table)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "only a part of this model is held here, so it cannot run alone");
    }
    (void)tables_carve(r->spec, max_seq, &p->tables);
    LT_TRY(lt_arena_place(&p->tables, r->device, "rotary tables"));
    t = tables_carve(r->spec, max_seq, &p->tables);
    LT_TRY(fill_tables(r, &t, max_seq));
    return pack ? pack_weights(r, &p->packed) : LT_OK;
}

void lt_exec_release(lt_exec *r, lt_prepared *p) {
    lt_arena_release(&p->tables, r->device);
    lt_arena_release(&p->packed, r->device);
    free(r->packed);
    lt_exec_close(r);
}
