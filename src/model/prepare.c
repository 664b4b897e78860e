/* prepare.c: see prepare.h. */
#include "model/prepare.h"

#include <stdlib.h>

#include "model/acts.h"
#include "model/alloc.h"

typedef struct {
    float *rope, *rope_local, *xielu;
} tables;

static tables tables_carve(const lt_model_spec *spec, int64_t max_seq, lt_arena *a) {
    const size_t rope = (size_t)(spec->pos == LT_POS_ROPE ? max_seq * spec->head_dim : 0) *
                        sizeof(float);
    tables t;
    t.rope = lt_arena_take(a, rope, LT_ARENA_ALIGN);
    t.rope_local = lt_arena_take(a, spec->rope_theta_local > 0 ? rope : 0, LT_ARENA_ALIGN);
    t.xielu = lt_arena_take(a, (size_t)spec->n_layers * 2 * sizeof(float), LT_ARENA_ALIGN);
    return t;
}

static lt_err fill_tables(lt_run *r, const tables *t, int64_t max_seq) {
    lt_err err = LT_OK;
    const lt_model_spec *spec = r->spec;
    const size_t bytes = (size_t)(max_seq * spec->head_dim) * sizeof(float);
    float *host = NULL;

    if (spec->act == LT_ACT_XIELU && r->model->master == NULL) {
        LT_TRY_DONE(lt_run_copy_xielu(r, t->xielu));
    }
    if (spec->pos != LT_POS_ROPE) {
        goto done;
    }
    host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rotary table of %zu bytes", bytes);
    }
    for (int local = 0; local <= (spec->rope_theta_local > 0); local++) {
        LT_TRY_DONE(lt_rope_table(host, spec, max_seq, local != 0));
        LT_TRY_DONE(lt_model_upload(r->model, local ? t->rope_local : t->rope, host, bytes));
    }
    r->rope = r->rope_local = lt_tensor_3d(t->rope, LT_F32, max_seq, spec->head_dim / 2, 2);
    r->rope_local.data = spec->rope_theta_local > 0 ? t->rope_local : t->rope;
done:
    free(host);
    return err;
}

static bool worth_packing(const lt_model_spec *spec, lt_param_kind kind) {
    return kind == LT_PARAM_QKV || kind == LT_PARAM_ATTN_OUT || kind == LT_PARAM_HEAD ||
           (kind == LT_PARAM_EMBED && spec->tied) ||
           ((kind == LT_PARAM_UP || kind == LT_PARAM_DOWN) && spec->n_experts == 0);
}

/* Places of the packed matrices; with a NULL base it measures. */
static void packed_carve(lt_run *r, lt_arena *a) {
    const lt_param_table *t = &r->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        size_t bytes = 0;
        if (worth_packing(r->spec, p->kind) &&
            (r->model->held == NULL || r->model->held[i].n_runs == 0)) {
            const lt_tensor w = lt_run_weight(r, p->kind, p->layer);
            bytes = r->backend->matmul_pack_bytes(&w, true);
        }
        r->packed[i] = bytes > 0 ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
    }
}

static lt_err pack_weights(lt_run *r, lt_arena *a) {
    const lt_param_table *t = &r->model->table;
    r->packed = calloc((size_t)t->n_params, sizeof *r->packed);
    if (r->packed == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d packed weights", t->n_params);
    }
    packed_carve(r, a);
    if (a->used_bytes > 0) { /* They are read: all must be there. */
        LT_TRY(lt_model_wait((lt_model *)(uintptr_t)r->model));
    }
    LT_TRY(lt_arena_place(a, r->backend, "packed weights"));
    packed_carve(r, a);
    for (int i = 0; i < t->n_params; i++) {
        if (r->packed[i] != NULL) {
            const lt_param *p = &t->params[i];
            LT_TRY(lt_run_matmul_pack(
                r, &(lt_matmul_pack_args){.dst = (void *)(uintptr_t)r->packed[i],
                                          .b = lt_run_weight(r, p->kind, p->layer),
                                          .trans_b = true}));
        }
    }
    return LT_OK;
}

size_t lt_run_tables_bytes(const lt_model_spec *spec, int64_t max_seq) {
    lt_arena a = {0};
    (void)tables_carve(spec, max_seq, &a);
    return a.used_bytes;
}

lt_err lt_run_prepare(lt_run *r, lt_prepared *p, const lt_model *m, int64_t max_seq, bool pack) {
    tables t;

    *p = (lt_prepared){0};
    LT_TRY(lt_run_open(r, m));
    (void)tables_carve(r->spec, max_seq, &p->tables);
    LT_TRY(lt_arena_place(&p->tables, r->backend, "rotary tables"));
    t = tables_carve(r->spec, max_seq, &p->tables);
    LT_TRY(fill_tables(r, &t, max_seq));
    return pack ? pack_weights(r, &p->packed) : LT_OK;
}

void lt_run_release(lt_run *r, lt_prepared *p) {
    lt_arena_release(&p->tables, r->backend);
    lt_arena_release(&p->packed, r->backend);
    free(r->packed);
    lt_run_close(r);
}
